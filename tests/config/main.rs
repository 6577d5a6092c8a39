//! Both files through the public interface: what is taken, what is refused, and how it is said.

#![allow(clippy::expect_used, reason = "a test that cannot set itself up should say so and stop")]

mod buyers;
mod caps;
mod example;
mod inputs;
mod process;
mod reload;
mod requests;
mod routing;
mod support;
