//! The `capgate` command.

fn main() {}
