//! What happens behind the publishers' backs: events move into the books, what dead gateways left open is ended, counters
//! are set from the books.

pub mod decision;
pub mod lives;
pub mod reconcile;
pub mod recovery;
pub mod resolve;
pub mod returns;
pub mod seed;
pub mod settler;
