//! Each parameter of a tensor op is named in one source file: there is one reader of it, so that no two operators can
//! disagree about what it means or what its default is. `attributes.rs` has those that several families share.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use zbmd_ops_nn::TensorOp;

/// Parameters of all tensor ops.
const COMMON: [&str; 3] = ["outputs", "view", "packed"];

fn parameters() -> BTreeSet<&'static str> {
    let own = TensorOp::all().flat_map(|op| op.params.iter().copied());
    own.chain(COMMON).collect()
}

/// The sources below a folder. `table.rs` says which operator has which parameter, and reads none.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let entries = std::fs::read_dir(folder).expect("the crate has sources");
    for entry in entries {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("src/table.rs") {
            files.push(path);
        }
    }
    files
}

/// The string literals of a source that are the first argument of a call, or the value of a constant: whatever names a
/// parameter to a reader. Patterns such as `Some("same")` are values, not names. Unit tests do not count.
fn named(source: &str) -> BTreeSet<&str> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let mut names = BTreeSet::new();
    for (quote, _) in code.match_indices('"') {
        let before = code[..quote].trim_end();
        // The name of a GPU kernel is an argument too.
        let is_argument =
            before.ends_with('(') && !before.ends_with("Some(") && !before.ends_with("gathered(");
        let is_constant = before.ends_with('=') && before.contains("const ") && {
            let line = before.lines().last().unwrap_or_default();
            line.contains("const ")
        };
        if !is_argument && !is_constant {
            continue;
        }
        if let Some(length) = code[quote + 1..].find('"') {
            names.insert(&code[quote + 1..][..length]);
        }
    }
    names
}

#[test]
fn each_parameter_is_named_in_one_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let parameters = parameters();
    let mut files_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in sources(&folder) {
        let source = std::fs::read_to_string(&path).expect("a readable source");
        let file = path.strip_prefix(&folder).expect("a path below it");
        for name in named(&source).intersection(&parameters) {
            let files = files_of.entry((*name).to_owned()).or_default();
            files.push(file.display().to_string());
        }
    }

    assert!(
        files_of.len() > 50,
        "the scan finds the readers: {files_of:?}"
    );
    files_of.retain(|_, files| files.len() > 1);
    assert!(
        files_of.is_empty(),
        "read in two files (share one reader in `attributes.rs`): {files_of:?}"
    );
}

#[test]
fn the_scan_tells_names_from_values() {
    let source = r#"
        const SIZE: &str = "kernel_shape";
        let pads = cx.sizes("pads", 2 * rank, 0)?;
        let word = cx.args.word_opt(
            "mode",
        )?;
        if word == Some("reverse") || word == "axis" {}
        #[cfg(test)]
        fn test() { cx.flag("upper", true); }
    "#;
    let expected = ["kernel_shape", "mode", "pads"];
    assert_eq!(named(source), BTreeSet::from(expected));
}
