//! The settler over a store that is nothing but journals, and real books.

