//! The pages that are checked in are those that the program makes; `ZBMD_BLESS=1` writes them.

use std::path::Path;

use zbmd_backends::TensorOp;
use zbmd_backends::op::{Op, Registry, example_inputs};
use zbmd_ir::{Actor, DType, TokenType};

use super::{OpSupport, format_page, op_page, params_of, resolve};
use crate::values::StatedShape;
use crate::{CompileOptions, MachineChoice, compile_str};

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
    current("ops.md", &op_page(&zbmd_backends::standard_registry()));
}

#[test]
fn every_op_is_shown_with_types_it_takes() {
    let registry = zbmd_backends::standard_registry();
    let without: Vec<&str> = registry
        .names()
        .filter(|name| *name != "Custom")
        .filter(|name| {
            registry
                .op(name)
                .is_some_and(|op| OpSupport::of(&registry, &**op).cpu.is_empty())
        })
        .collect();
    assert!(
        without.is_empty(),
        "`example_inputs` has nothing that these take: {without:?}"
    );
    assert!(TensorOp::all().count() > 100);
}

/// A model around an op's example, with a source for each of its inputs and a sink for each of its outputs.
fn model_of(op: &dyn Op, actor: &Actor) -> String {
    let stateless_inputs = &actor.inputs[..actor.inputs.len() - actor.state.len()];
    let stateless_outputs = &actor.outputs[..actor.outputs.len() - actor.state.len()];
    let mut sources = String::new();
    let mut channels = String::new();
    for (i, port) in stateless_inputs.iter().enumerate() {
        let dtype = port.token.dtype;
        let shape = StatedShape::of(&port.token);
        sources += &format!("\"s{i}\": Stream(dtype: {dtype}, shape: {shape}), ");
        channels += &format!("(from: \"s{i}\", to: [\"a.{}\"]), ", port.name);
    }
    let mut sinks = String::new();
    for (o, port) in stateless_outputs.iter().enumerate() {
        sinks += &format!("\"o{o}\": Stream(), ");
        channels += &format!("(from: \"a.{}\", to: [\"o{o}\"]), ", port.name);
    }
    format!(
        "Model(sources: {{{sources}}}, actors: {{\"a\": {}}}, channels: [{channels}], sinks: {{{sinks}}})",
        op.doc().example
    )
}

#[test]
fn every_example_of_the_catalogue_compiles() {
    let registry = zbmd_backends::standard_registry();
    let options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        ..CompileOptions::default()
    };
    let mut failures = Vec::new();
    for name in registry.names() {
        let op = &**registry.op(name).expect("an op");
        let model = match example_actor(&registry, op) {
            Some(actor) => model_of(op, &actor),
            None => {
                failures.push(format!("{name}: its example does not resolve"));
                continue;
            }
        };
        if let Err(diagnostics) = compile_str("model.ron", &model, "", &options) {
            failures.push(format!("{name}: {model}\n{diagnostics}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The actor of an op's example exactly as it is printed, with the first type that its inputs can have.
fn example_actor(registry: &Registry, op: &dyn Op) -> Option<Actor> {
    let params = params_of(op.doc().example, op.positional())?;
    DType::ALL.into_iter().find_map(|dtype| {
        let inputs = match op.name() {
            "Custom" => [("x".to_owned(), TokenType::new(DType::U8, [112]))].into(),
            _ => example_inputs(op, dtype).into_iter().collect(),
        };
        resolve(registry, op, &params, inputs)
    })
}
