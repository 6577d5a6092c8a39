//! Tests over real sockets, against a desk that only notes what it was asked.

pub(crate) mod support;

mod api;
mod buyers;
mod hostile;
mod secure;
mod shutdown;
