//! The pages behind `zbmdc explain`: what a code means, an example that fails with exactly it, and the fix.

mod analysis;
mod onnx;
mod structure;
mod syntax;
mod types;

use crate::codes::Code;

/// What a code means.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// The code.
    pub code: Code,
    /// The explanation.
    pub text: &'static str,
    /// Something that fails with it.
    pub example: Example,
    /// How to fix that.
    pub fix: &'static str,
}

/// Something that fails.
#[derive(Clone, Copy, Debug)]
pub enum Example {
    /// Files, and the arguments of `zbmdc` that fail on them.
    Command {
        /// Names and contents.
        files: &'static [(&'static str, &'static [u8])],
        /// Arguments, separated by blanks.
        command: &'static str,
    },
    /// Rust code, for what only embedders meet.
    Rust(&'static str),
}

/// A model that fails in `zbmdc check`.
const fn model(files: &'static [(&'static str, &'static [u8])]) -> Example {
    Example::Command {
        files,
        command: "check model.ron",
    }
}

macro_rules! entry {
    ($code:ident, $text:literal, $model:literal, $fix:literal) => {
        Page {
            code: Code::$code,
            text: $text,
            example: model(&[("model.ron", $model.as_bytes())]),
            fix: $fix,
        }
    };
}
use entry;

/// The page of a code.
pub fn page(code: Code) -> &'static Page {
    let pages = [
        syntax::PAGES,
        structure::PAGES,
        types::PAGES,
        analysis::PAGES,
        onnx::PAGES,
    ];
    let found = pages.into_iter().flatten().find(|p| p.code == code);
    assert!(found.is_some(), "{code} has no page");
    found.unwrap_or(&syntax::PAGES[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_page() {
        for &code in Code::ALL {
            assert_eq!(page(code).code, code);
        }
    }
}
