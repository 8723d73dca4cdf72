//! Tick calendars beside self-timed rings and dynamic queues, on the same simulated nodes and links:
//! `cargo run --release -p zbmd-tests --bin tick_rivals`. Prints the table of `compiler/docs/ticks.md`. With
//! `--applications N` it plans and simulates N applications of aegir's shape instead, and says what that takes; with
//! `--copies` it prints what plans take that keep borders on a second node. The voice detector needs the ONNX model in `$ZBMD_DATA`; without it the table lacks its rows, and says so on stderr.

use std::collections::BTreeMap;

use zbmd_compiler::{CompileOptions, graph_of_file};
use zbmd_ir::Graph;
use zbmd_tests::data::file;
use zbmd_tests::rivals::{compare, copies, copies_line, measure_applications, table};
use zbmd_tests::run::graph_file;
use zbmd_ticks::{TickMachine, Topology};

/// A model on a machine.
struct Entry {
    model: &'static str,
    /// Copies of it that share the machine.
    copies: u32,
    default_ticks: u64,
    frame_bits: u32,
    iterations: u64,
}

/// With few firings in an iteration, more of them are simulated. Many copies on narrow links get in each other's way.
const ENTRIES: [Entry; 7] = [
    Entry {
        model: "agc",
        copies: 1,
        default_ticks: 20,
        frame_bits: 64,
        iterations: 400,
    },
    Entry {
        model: "pll",
        copies: 1,
        default_ticks: 20,
        frame_bits: 64,
        iterations: 400,
    },
    Entry {
        model: "fm",
        copies: 1,
        default_ticks: 20,
        frame_bits: 64,
        iterations: 80,
    },
    Entry {
        model: "cd2dat",
        copies: 1,
        default_ticks: 4,
        frame_bits: 64,
        iterations: 40,
    },
    Entry {
        model: "adsb",
        copies: 1,
        default_ticks: 20,
        frame_bits: 64,
        iterations: 20,
    },
    Entry {
        model: "vad",
        copies: 1,
        default_ticks: 20,
        frame_bits: 64,
        iterations: 40,
    },
    Entry {
        model: "pll",
        copies: 12,
        default_ticks: 8,
        frame_bits: 8,
        iterations: 200,
    },
];

fn main() {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (Some("--applications"), Some(count)) => {
            let count = count.parse().expect("a number of applications");
            print_effort(count);
        }
        (Some("--copies"), None) => print_copies(),
        (None, _) => print_table(),
        _ => eprintln!("usage: tick_rivals [--applications N | --copies]"),
    }
}

fn print_effort(count: usize) {
    let effort = measure_applications(count, 20_000);
    println!(
        "{count} applications: planned in {:.3} s, verified in {:.3} s, period {} ticks (bound {})",
        effort.planning.as_secs_f64(),
        effort.verification.as_secs_f64(),
        effort.period,
        effort.bound
    );
    println!(
        "{} node-ticks in {:.2} s: {:.3} us each",
        effort.node_ticks,
        effort.simulation.as_secs_f64(),
        effort.simulation.as_secs_f64() * 1e6 / effort.node_ticks as f64
    );
}

/// A model's graph, unless it needs data that is not there.
fn graph_of(model: &str) -> Option<Graph> {
    let mut options = CompileOptions {
        registry: zbmd_tests::actors::registry(),
        ..CompileOptions::default()
    };
    if model == "vad" {
        let detector = std::path::absolute(file("models/silero_vad.onnx")?).expect("a path");
        let detector = format!("{:?}", detector.display().to_string());
        options.params.insert("detector".to_owned(), detector);
    }
    let path = graph_file(&format!("{model}/model.ron"));
    let (graph, _) = graph_of_file(path, &options).unwrap_or_else(|errors| panic!("{errors}"));
    Some(graph)
}

/// An entry's model with its name, and the machine that it runs on.
fn model_of(entry: &Entry) -> Option<(String, Graph, TickMachine)> {
    let machine = TickMachine {
        topology: Topology::Torus {
            rows: 4,
            columns: 4,
        },
        frame_bits: entry.frame_bits,
        latency_ticks: 12,
        memory_bytes: 1 << 24,
        op_ticks: BTreeMap::new(),
        default_ticks: entry.default_ticks,
        clocks: None,
    };
    let graph = copies(&graph_of(entry.model)?, entry.copies);
    let name = match entry.copies {
        1 => entry.model.to_owned(),
        copies => format!("{copies} x {}", entry.model),
    };
    Some((name, graph, machine))
}

fn print_table() {
    let mut comparisons = Vec::new();
    for entry in &ENTRIES {
        let Some((name, graph, machine)) = model_of(entry) else {
            continue;
        };
        for variation in [0.0, 0.5] {
            let iterations = entry.iterations;
            comparisons.push(compare(&name, &graph, &machine, variation, iterations));
        }
    }
    print!("{}", table(&comparisons));
}

fn print_copies() {
    println!(
        "| model | period | with copies | latency | with copies | frames | with copies | bytes | with copies |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    for entry in &ENTRIES {
        if let Some((name, graph, machine)) = model_of(entry) {
            println!("{}", copies_line(&name, &graph, &machine));
        }
    }
}
