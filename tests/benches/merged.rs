//! Several models in one calendar beside the same models one after the other: `cargo bench -p zbmd-tests --bench merged`.
//!
//! Each model's program replays so many seconds of its own samples on one device, and so does the merged program, by
//! turns: the time of the merged calendar over the sum of those of its parts. The goal is at most 1.02.

use std::collections::BTreeMap;
use std::path::PathBuf;

use zbmd_backends::standard_registry;
use zbmd_compiler::{CompileOptions, Compiled, MachineChoice, compile_file, compile_files};
use zbmd_executor::{Engine, RunOptions};
use zbmd_tests::figures::load;
use zbmd_tests::run::{Streams, drive, graph_file};

/// Rounds by turns.
const ROUNDS: usize = 15;

/// A model, its source, bytes of a token and tokens a second.
#[derive(Clone, Copy)]
struct Part {
    name: &'static str,
    file: &'static str,
    source: &'static str,
    token_bytes: usize,
    rate: usize,
}

const AGC: Part = Part {
    name: "agc",
    file: "agc/model.ron",
    source: "iq",
    token_bytes: 8,
    rate: 48_000,
};
const CD2DAT: Part = Part {
    name: "cd2dat",
    file: "cd2dat/model.ron",
    source: "cd",
    token_bytes: 4,
    rate: 44_100,
};
const FM: Part = Part {
    name: "fm",
    file: "fm/model.ron",
    source: "iq",
    token_bytes: 2,
    rate: 2_400_000,
};

fn main() {
    println!("load {}", load());
    for (parts, seconds) in [
        (&[AGC, CD2DAT][..], 20),
        (&[CD2DAT, FM], 10),
        (&[AGC, CD2DAT, FM], 10),
    ] {
        measure(parts, seconds);
    }
}

fn options() -> CompileOptions {
    CompileOptions {
        machine: MachineChoice::Uniform(1),
        ..CompileOptions::default()
    }
}

/// A program ready to run, and what its sources are given.
struct Subject {
    engine: Engine,
    inputs: Streams,
}

impl Subject {
    fn new(compiled: Compiled, inputs: Streams) -> Self {
        Self {
            engine: Engine::new(compiled.program, &standard_registry()).expect("an engine"),
            inputs,
        }
    }

    /// Milliseconds of a whole run.
    fn run(&self) -> f64 {
        let sinks = self.engine.program().graph.sinks();
        let sinks = sinks.map(|(_, actor)| actor.name.clone()).collect();
        let session = self.engine.start(RunOptions::default()).expect("a session");
        let (_, outcome) = drive(session, &self.inputs, sinks);
        outcome.report.elapsed_ns as f64 / 1e6
    }

    fn plan(&self) -> String {
        let plan = &self.engine.program().plans[zbmd_ir::PlanId(0)];
        format!(
            "blocks of {}, period {:.1} us",
            plan.block,
            plan.period_ns as f64 / 1e3
        )
    }
}

fn input(part: Part, seconds: usize) -> Vec<u8> {
    let bytes = part.token_bytes * part.rate * seconds;
    match part.token_bytes {
        2 => (0..bytes).map(|place| (place * 37 % 251) as u8).collect(),
        _ => (0..bytes / 4)
            .flat_map(|place| ((place * 37 % 251) as f32 / 251.0 - 0.5).to_ne_bytes())
            .collect(),
    }
}

fn measure(parts: &[Part], seconds: usize) {
    let alone = parts.iter().map(|part| {
        let compiled = compile_file(graph_file(part.file), &options());
        let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
        let inputs = BTreeMap::from([(part.source.to_owned(), input(*part, seconds))]);
        Subject::new(compiled, inputs)
    });
    let alone: Vec<Subject> = alone.collect();
    let paths: Vec<PathBuf> = parts.iter().map(|part| graph_file(part.file)).collect();
    let compiled = compile_files(&paths, &options());
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    let inputs = parts.iter().map(|part| {
        let source = format!("{}/{}", part.name, part.source);
        (source, input(*part, seconds))
    });
    let merged = Subject::new(compiled, inputs.collect());

    let names: Vec<&str> = parts.iter().map(|part| part.name).collect();
    println!("{}: {}", names.join("+"), merged.plan());
    for (part, subject) in parts.iter().zip(&alone) {
        println!("  {}: {}", part.name, subject.plan());
    }

    // What is first touched in the first round counts for nobody.
    let mut ratios = Vec::new();
    let mut sums = Vec::new();
    for round in 0..=ROUNDS {
        let merged_first = round % 2 == 0;
        let early = merged_first.then(|| merged.run());
        let sum: f64 = alone.iter().map(Subject::run).sum();
        let together = early.unwrap_or_else(|| merged.run());
        if round > 0 {
            ratios.push(together / sum);
            sums.push(sum);
        }
    }
    ratios.sort_by(f64::total_cmp);
    sums.sort_by(f64::total_cmp);
    println!(
        "  {seconds} s of samples: one after the other {:.1} ms (median of {ROUNDS}); merged over that: median {:.3}, from {:.3} to {:.3}",
        sums[ROUNDS / 2],
        ratios[ROUNDS / 2],
        ratios[0],
        ratios[ROUNDS - 1],
    );
}
