//! Every listing of the README and of the book runs.
//!
//! Blocks of a page run in order in a folder of its own, which has the models of `graphs`:
//!
//! - a `sh` block runs, with this build's `zbmdc` and `zbmd-run` on the path and a `cargo` that takes only what other
//!   tests run; `<!-- exit: N -->` says that it ends with that code;
//! - `<!-- file: NAME -->` before a block writes it to a file, `<!-- same: PATH -->` holds it to a file of this
//!   repository, `<!-- output -->` to what the last `sh` block printed, or said where it printed nothing
//!   (`ZBMD_BLESS=1` writes it);
//! - `<!-- needs: PATH -->` leaves the next `sh` block out where the data of `ZBMD_DATA` lacks a file, which is copied
//!   (`gpu`: where there is none);
//! - `<!-- varies -->` stands before an output that differs from computer to computer, `<!-- part -->` before a part of
//!   something that stands elsewhere. Rust blocks are documentation tests, mermaid drawings by hand have `<!-- drawn
//!   -->`.
//!
//! No test harness: this program is `zbmd-run` too, by that name.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What may follow `cargo`, and where it runs.
const CARGO: [(&str, &str); 8] = [
    (
        "run --release -p zbmd-examples --example quickstart",
        ".ci/run, unoptimised and with the features of the workspace",
    ),
    ("build --release --bins", ".ci/run, which builds more"),
    ("test --workspace", ".ci/run"),
    ("doc --workspace --open", ".ci/run, without a browser"),
    ("run", "compiler/cli/tests/project.rs"),
    ("test", "compiler/cli/tests/project.rs"),
    ("bench", "compiler/cli/tests/project.rs, once"),
    ("insta accept", "nowhere: accepting is for people"),
];

fn main() -> ExitCode {
    let name = std::env::args_os()
        .next()
        .map(PathBuf::from)
        .unwrap_or_default();
    #[cfg(target_os = "linux")]
    zbmd_executor::serve_if_worker(&zbmd_backends::standard_registry());
    if name.file_name().is_some_and(|n| n == "zbmd-run") {
        return zbmd_run::main_with(zbmd_backends::standard_registry());
    }
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let mut wrong = Vec::new();
    for page in pages() {
        if only
            .as_ref()
            .is_none_or(|o| page.to_string_lossy().contains(o.as_str()))
        {
            println!("{}", page.display());
            wrong.extend(check(&page));
        }
    }
    wrong.iter().for_each(|w| println!("{w}"));
    ExitCode::from(u8::from(!wrong.is_empty()))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("a folder")
}

/// The README and what was written by hand of the book.
fn pages() -> Vec<PathBuf> {
    let docs = std::fs::read_dir(root().join("compiler/docs")).expect("the book");
    let mut pages: Vec<PathBuf> = docs.map(|entry| entry.expect("a file").path()).collect();
    pages.retain(|p| p.extension().is_some_and(|e| e == "md"));
    pages.retain(|p| !p.ends_with("format.md") && !p.ends_with("ops.md"));
    pages.push(root().join("README.md"));
    pages.sort();
    pages
}

/// Tests that a page names as `file.rs::test` and that are not there.
fn missing_tests(path: &Path, page: &str) -> Vec<String> {
    let code = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter_map(|word| word.split_once(".rs::"));
    let there = |(file, test): &(&str, &str)| {
        std::fs::read_to_string(root().join(format!("{file}.rs")))
            .is_ok_and(|text| text.contains(&format!("fn {test}(")))
    };
    let missing = code.filter(|named| !named.0.contains('\n') && !there(named));
    missing
        .map(|(file, test)| format!("{}: no test {file}.rs::{test}", path.display()))
        .collect()
}

/// A fenced block: the line it begins in, its language, the mark before it and its text.
struct Block {
    line: usize,
    language: String,
    mark: String,
    text: String,
}

fn blocks(page: &str) -> Vec<Block> {
    let (mut blocks, mut mark) = (Vec::new(), String::new());
    let mut lines = page.lines().enumerate();
    while let Some((i, line)) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let body = lines.by_ref().map(|(_, l)| l).take_while(|l| *l != "```");
            let text = body.map(|l| format!("{l}\n")).collect();
            let mark = std::mem::take(&mut mark);
            blocks.push(Block {
                line: i + 1,
                language: language.to_owned(),
                mark,
                text,
            });
        } else if let Some(text) = line
            .strip_prefix("<!-- ")
            .and_then(|l| l.strip_suffix(" -->"))
        {
            mark = text.to_owned();
        } else if !line.is_empty() {
            mark.clear();
        }
    }
    blocks
}

/// What is wrong with a page.
fn check(path: &Path) -> Vec<String> {
    let page = std::fs::read_to_string(path).expect("a page");
    let dir = tempfile::tempdir().expect("a folder");
    let bin = tempfile::tempdir().expect("a folder");
    lay_out(dir.path(), bin.path());
    let (mut wrong, mut printed) = (missing_tests(path, &page), None);
    let mut lines: Vec<String> = page.lines().map(str::to_owned).collect();
    // Outputs to write, by the lines they take the place of; the last first, so that lines keep their numbers.
    let mut outputs: Vec<(std::ops::Range<usize>, String)> = Vec::new();
    for block in blocks(&page) {
        let place = format!("{}:{}", path.display(), block.line);
        let (kind, rest) = block.mark.split_once(": ").unwrap_or((&block.mark, ""));
        let exit = if kind == "exit" { rest } else { "0" };
        match (kind, block.language.as_str()) {
            ("file", _) => std::fs::write(dir.path().join(rest), &block.text).expect("a file"),
            ("same", _) => {
                let kept = std::fs::read_to_string(root().join(rest)).expect("a file");
                // Comments at the top of a model need not stand here.
                if !kept.ends_with(&block.text) {
                    wrong.push(format!("{place}: it is not the end of {rest}"));
                }
            }
            ("needs", "sh") if !needed(rest, dir.path()) => {
                println!("SKIPPED: {place} needs {rest}");
            }
            (_, "sh") => match run(&block.text, exit, dir.path(), bin.path()) {
                Ok(output) => printed = Some(output),
                Err(said) => wrong.push(format!("{place}: {said}")),
            },
            ("output", _) => match &printed {
                Some(output) if *output == block.text => {}
                Some(output) => {
                    let body = block.line..block.line + block.text.lines().count();
                    outputs.push((body, output.clone()));
                    wrong.push(format!("{place}: now it prints\n{output}"));
                }
                None => wrong.push(format!("{place}: nothing was run before")),
            },
            ("varies" | "part", _) | ("drawn", "mermaid") => {}
            (_, language) if language.starts_with("rust") => {}
            (_, language) => wrong.push(format!("{place}: nothing tests this `{language}` block")),
        }
    }
    if !outputs.is_empty() && std::env::var_os("ZBMD_BLESS").is_some() {
        for (body, output) in outputs.into_iter().rev() {
            lines.splice(body, output.lines().map(str::to_owned));
        }
        std::fs::write(path, lines.join("\n") + "\n").expect("the page");
    }
    wrong
}

/// Models to work on and programs to call.
fn lay_out(dir: &Path, bin: &Path) {
    let graphs = Command::new("cp")
        .arg("-r")
        .arg(root().join("graphs"))
        .arg(dir)
        .status();
    assert!(graphs.expect("cp").success());
    let link = |from: &Path, name: &str| {
        std::os::unix::fs::symlink(from, bin.join(name)).expect("a link");
    };
    link(Path::new(env!("CARGO_BIN_EXE_zbmdc")), "zbmdc");
    link(&std::env::current_exe().expect("this program"), "zbmd-run");
    let taken: Vec<String> = CARGO.iter().map(|(args, _)| format!("'{args}'")).collect();
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in\n{}) ;;\n*) echo \"no test runs: cargo $*\" >&2; exit 1;;\nesac\n",
        taken.join("|")
    );
    let cargo = bin.join("cargo");
    std::fs::write(&cargo, script).expect("a script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&cargo, mode).expect("a script");
}

/// Copies a file of the shared data, if it is here; or whether there is a GPU.
fn needed(path: &str, dir: &Path) -> bool {
    if path == "gpu" {
        return zbmd_backends::devices::gpus().is_ok_and(|gpus| !gpus.is_empty());
    }
    if path == "openssl" {
        return Command::new(path).arg("version").output().is_ok();
    }
    let (from, to) = path.split_once(" as ").unwrap_or((path, path));
    let Some(data) = std::env::var_os("ZBMD_DATA") else {
        return false;
    };
    std::fs::copy(Path::new(&data).join(from), dir.join(to)).is_ok()
}

/// What a script prints, or else says; what it did where it does not end with the code `exit`.
fn run(script: &str, exit: &str, dir: &Path, bin: &Path) -> Result<String, String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("sh")
        .args(["-e", "-c", script])
        .current_dir(dir)
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("HOME", dir)
        .env("XDG_CACHE_HOME", dir.join("cache"))
        .env("COLUMNS", "100")
        .output()
        .expect("sh");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    if output.status.code().map(|code| code.to_string()).as_deref() != Some(exit) {
        return Err(format!(
            "{script}ends with {}, not {exit}:\n{out}{said}",
            output.status
        ));
    }
    Ok(if out.is_empty() { said } else { out })
}
