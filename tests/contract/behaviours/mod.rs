//! The behaviours of [`super::store`], by subject.

mod claims;
mod confirms;
mod ends;
mod journal;
mod persons;
mod races;
mod reconcile;
mod recovery;
mod returns;
mod seeds;
mod takes;

pub use claims::*;
pub use confirms::*;
pub use ends::*;
pub use journal::*;
pub use persons::*;
pub use races::*;
pub use reconcile::*;
pub use recovery::*;
pub use returns::*;
pub use seeds::*;
pub use takes::*;
