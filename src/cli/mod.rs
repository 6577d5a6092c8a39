//! cli

pub mod stress;
mod stub_behaviour;
pub mod stub_buyer;
