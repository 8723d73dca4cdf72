//! The command `zbmd-run`.

fn main() {}
