//! settle
pub mod settler;
