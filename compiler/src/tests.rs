//! Models as text, from end to end.

mod gates;
mod graphs;
mod hostile;
mod modes;
mod mutate;
mod onnx;
mod onnx_passes;
mod quantised;
mod rendered;
mod sequences;

use zbmd_ir::{Graph, Value};

use crate::{CompileOptions, Diagnostics, MachineChoice, check_str, compile_str};

/// `CODE message` of everything said of a model.
pub(crate) fn said(diagnostics: &Diagnostics) -> Vec<String> {
    diagnostics
        .list
        .iter()
        .map(|d| format!("{} {}", d.code, d.message))
        .collect()
}

/// Errors and warnings of a model.
pub(crate) fn check(text: &str) -> Vec<String> {
    match check_str("model.ron", text, "", &CompileOptions::default()) {
        Ok(diagnostics) | Err(diagnostics) => said(&diagnostics),
    }
}

/// The graph of a model without mistakes, compiled for one device.
pub(crate) fn graph(text: &str) -> Graph {
    let options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        ..CompileOptions::default()
    };
    match compile_str("model.ron", text, "", &options) {
        Ok(compiled) => compiled.program.graph.clone(),
        Err(diagnostics) => panic!("{diagnostics}"),
    }
}

/// The channel written by an actor: `readers with delays; initial bytes`.
pub(crate) fn channel(graph: &Graph, actor: &str) -> (Vec<(String, u64)>, Vec<f32>) {
    let id = graph
        .find(actor)
        .unwrap_or_else(|| panic!("no actor {actor}"));
    let channel = graph
        .channels
        .iter()
        .find(|c| c.from.actor == id)
        .expect("every output has a channel");
    let readers = channel
        .readers
        .iter()
        .map(|r| {
            let reader = &graph.actors[r.to.actor];
            (
                format!("{}.{}", reader.name, reader.inputs[r.to.port as usize].name),
                r.delay,
            )
        })
        .collect();
    let floats = channel
        .initial
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    (readers, floats)
}

/// A sink's sample rate.
pub(crate) fn sample_rate(graph: &Graph, sink: &str) -> Option<f64> {
    let id = graph.find(sink)?;
    graph.actors[id]
        .params
        .get("sample_rate")
        .and_then(Value::as_float)
}
