//! Static rules: which buyers may have a lead, decided in memory. No I/O.
