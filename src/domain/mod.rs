//! Pure types: what a lead, a buyer, a cap and an outcome *are*. No tokio, no I/O.

pub mod address;
pub mod cap;
pub mod event;
pub mod explanation;
pub mod field;
pub mod id;
pub mod lead;
pub mod lease;
pub mod matching;
pub mod money;
pub mod outcome;
pub mod parked;
pub mod person;
pub mod phone;
pub mod place;
pub mod pointer;
pub mod routing;
pub mod signature;
pub mod template;
pub mod window;
pub mod words;
pub mod xml;
