//! Arguments with characters that cannot be seen: `zbmd-run` shows them escaped, whatever is wrong with them.
#![cfg(unix)]

use std::path::Path;
use std::process::Command;

use zbmd_ir::text::is_hidden;

/// Runs `zbmd-run`; its exit code. What it writes must have no hidden characters.
#[track_caller]
fn run(folder: &Path, args: &[&str]) -> Option<i32> {
    let output = Command::new(env!("CARGO_BIN_EXE_zbmd-run"))
        .args(args)
        .current_dir(folder)
        .output()
        .expect("zbmd-run starts");
    for bytes in [&output.stdout, &output.stderr] {
        let text = String::from_utf8(bytes.clone()).expect("zbmd-run writes UTF-8");
        let is_raw = |c: char| is_hidden(c) && !matches!(c, '\n' | '\t');
        assert!(!text.contains(is_raw), "zbmd-run {args:?}: {text:?}");
    }
    output.status.code()
}

#[test]
fn arguments_are_shown_escaped() {
    let folder = tempfile::tempdir().expect("a folder");
    let hidden = "a\u{1b}[31m\r\u{8}\u{7f}\u{9b}2J\u{202e}\u{2066}\u{200b}z";
    let bundle = format!("{hidden}.zbmd");
    std::fs::write(folder.path().join(&bundle), "no bundle").expect("a file");
    let missing = format!("no-{hidden}.zbmd");
    let pair = format!("{hidden}={hidden}");
    let cases: &[(&[&str], i32)] = &[
        (&[&bundle], 5),
        (&[&missing], 4),
        (&[&bundle, hidden], 2),
        (&[&bundle, "--iterations", hidden], 2),
        (&[&bundle, "--duration", hidden], 2),
        (&[&bundle, "-i", hidden], 2),
        (&[&bundle, "-i", &pair], 5),
        (&[&bundle, "--isolation", hidden], 2),
        (&["top", hidden], 2),
        (&["top", "4294967295"], 8),
    ];
    for (args, code) in cases {
        assert_eq!(run(folder.path(), args), Some(*code), "{args:?}");
    }
}
