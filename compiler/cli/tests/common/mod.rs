//! What the tests of the command share.

use std::path::Path;
use std::process::{Command, Output};

/// Runs `zbmdc` in that folder to its end.
pub(crate) fn zbmdc(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zbmdc"))
        .args(args)
        .current_dir(dir)
        .env_remove("NO_COLOR")
        .output()
        .expect("zbmdc starts")
}

/// What it wrote.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("zbmdc writes UTF-8")
}
