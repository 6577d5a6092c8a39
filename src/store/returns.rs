//! What giving a sold lead back asks of the store and is answered.

use jiff::Timestamp;

use crate::domain::event::Returned;

/// Gives a lead back that the books know as sold and not returned.
#[derive(Debug, Clone)]
pub struct SaleReturn {
    /// What goes into the journal. Its `windows` get their units back in the same step.
    pub event: Returned,
    /// Past this, by the store's clock, nothing may be given back: what the caller read in the books is too old to prove that
    /// nobody else has done it.
    pub not_after: Timestamp,
}

/// What giving back found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReturnReply {
    /// It was given back by this call.
    Done,
    /// It had been, a short while ago; nothing was touched.
    Already,
    /// `not_after` has passed; nothing was touched.
    TooLate,
}
