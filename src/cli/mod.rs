//! cli

pub mod stress;
pub mod stub_buyer;
