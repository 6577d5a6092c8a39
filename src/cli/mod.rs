//! cli

pub mod check;
pub mod key;
