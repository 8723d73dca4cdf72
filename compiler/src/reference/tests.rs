//! The pages that are checked in are those that the program makes; `ZBMD_BLESS=1` writes them.

use std::path::Path;

use zbmd_backends::TensorOp;
use zbmd_backends::op::Registry;

use super::{Found, PROBES, format_page, op_page};

fn current(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(name);
    if std::env::var_os("ZBMD_BLESS").is_some() {
        std::fs::write(&path, text).expect("the page");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "docs/{name} is out of date: run this test with ZBMD_BLESS=1"
    );
}

#[test]
fn the_format_page_is_current() {
    current("format.md", &format_page());
}

#[test]
fn the_op_page_is_current() {
    current("ops.md", &op_page(&Registry::standard()));
}

#[test]
fn every_op_is_shown_with_types_it_takes() {
    let registry = Registry::standard();
    let without: Vec<&str> = registry
        .names()
        .filter(|name| *name != "Custom")
        .filter(|name| {
            registry
                .op(name)
                .is_some_and(|op| Found::of(&registry, &**op).cpu.is_empty())
        })
        .collect();
    assert!(
        without.is_empty(),
        "`PROBES` has nothing that these take: {without:?}"
    );
    assert!(PROBES.iter().all(|(name, ..)| registry.op(name).is_some()));
    assert!(TensorOp::all().count() > 100);
}
