//! The picture in the README is what the tool draws.

use std::collections::BTreeMap;
use std::path::Path;

use zbmd_compiler::view::{View, svg};
use zbmd_compiler::{CompileOptions, MachineChoice, compile_file};
use zbmd_ir::verify::Verified;
use zbmd_ir::{Device, DeviceId, Link, Machine, Program};

fn root(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// Two like devices that do not depend on the computer.
fn machine() -> Machine {
    let device = |i: u32| Device {
        name: format!("cpu:{i}"),
        backend: "cpu".into(),
        cores: vec![],
        memory_bytes: 1 << 30,
        flops_per_s: 4_000_000_000,
        bytes_per_s: 8_000_000_000,
        programmatic: false,
    };
    let link = |from, to| Link {
        from: DeviceId(from),
        to: DeviceId(to),
        bytes_per_s: 4_000_000_000,
        latency_ns: 300,
    };
    Machine {
        devices: vec![device(0), device(1)].into(),
        links: [link(0, 1), link(1, 0)].into_iter().collect(),
        ..Machine::default()
    }
}

fn quickstart() -> Verified<Program> {
    let machine = MachineChoice::Given(machine());
    let options = CompileOptions {
        machine,
        ..CompileOptions::default()
    };
    compile_file(root("graphs/quickstart/model.ron"), &options)
        .expect("it compiles")
        .program
}

/// `ZBMD_BLESS=1 cargo test -p zbmd-compiler --test docs` draws it again.
#[test]
fn the_picture_is_up_to_date() {
    let program = quickstart();
    let view = View::of(&program, &BTreeMap::new());
    let drawn = svg::plan(&view, &view.plans[0]);
    let path = root("compiler/docs/quickstart.svg");
    if std::env::var_os("ZBMD_BLESS").is_some() {
        std::fs::create_dir_all(root("compiler/docs")).expect("a folder");
        std::fs::write(&path, &drawn).expect("the picture");
    }
    let kept = std::fs::read_to_string(&path).expect("the picture");
    assert!(
        drawn == kept,
        "compiler/docs/quickstart.svg is out of date: see this test's comment"
    );
}
