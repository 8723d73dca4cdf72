//! From a model file to the bytes of its sinks: on a plan for so many devices, or by the reference interpreter.
//!
//! Panics where something fails: callers are tests, and the message is all that is wanted.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use zbmd_backends::interpret::Interpreter;
use zbmd_backends::op::Registry;
use zbmd_compiler::{CompileOptions, Compiled, MachineChoice, compile_file};
use zbmd_executor::{Engine, Outcome, RunOptions, Session};
use zbmd_ir::verify::{Verified, verify};
use zbmd_ir::{Contingencies, Contingency, ParameterChange, PlanId, Program, State};

/// Bytes of sources or sinks, by name.
pub type Streams = BTreeMap<String, Vec<u8>>;

/// Streams of one name each.
pub fn streams<const N: usize>(entries: [(&str, Vec<u8>); N]) -> Streams {
    entries
        .into_iter()
        .map(|(name, bytes)| (name.to_owned(), bytes))
        .collect()
}

/// Path of a file in `graphs/`, or in the folder that `ZBMD_GRAPHS` names, for binaries that run elsewhere.
pub fn graph_file(relative: &str) -> PathBuf {
    let graphs = std::env::var_os("ZBMD_GRAPHS").map(PathBuf::from);
    let here = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../graphs");
    graphs.unwrap_or_else(here).join(relative)
}

/// Compiles `graphs/{model}` for that many like CPU devices.
///
/// # Panics
/// With the diagnostics, where the model does not compile, or compiles with warnings.
pub fn compile(model: &str, devices: usize, registry: &Registry) -> Compiled {
    let options = CompileOptions {
        registry: registry.clone(),
        machine: MachineChoice::Uniform(devices),
        ..CompileOptions::default()
    };
    compile_with(model, &options)
}

/// The same with other options.
///
/// # Panics
/// As [`compile`].
pub fn compile_with(model: &str, options: &CompileOptions) -> Compiled {
    match compile_file(graph_file(model), options) {
        Ok(compiled) => {
            let warnings = compiled.warnings.to_string();
            assert!(warnings.is_empty(), "{model}: {warnings}");
            compiled
        }
        Err(diagnostics) => panic!("{model}: {diagnostics}"),
    }
}

/// Runs a compiled model to the end of its inputs, or for so many iterations; what the sinks got, and the outcome.
///
/// # Panics
/// If the run fails, or a source has no input.
pub fn replay(
    compiled: Compiled,
    registry: &Registry,
    inputs: &Streams,
    iterations: Option<u64>,
    state: Option<State>,
) -> (Streams, Outcome) {
    replay_program(compiled.program, registry, inputs, iterations, state)
}

/// [`replay`] for a program that did not come from a model file.
///
/// # Panics
/// As [`replay`].
pub fn replay_program(
    program: Verified<Program>,
    registry: &Registry,
    inputs: &Streams,
    iterations: Option<u64>,
    state: Option<State>,
) -> (Streams, Outcome) {
    let engine = Engine::new(program, registry).expect("an engine");
    // Tests share the computer with other tests: pinning and locking would only make them quarrel.
    let options = RunOptions {
        state,
        iterations,
        pin: false,
        lock_memory: false,
        ..RunOptions::default()
    };
    let sinks = engine
        .program()
        .graph
        .sinks()
        .map(|(_, actor)| actor.name.clone())
        .collect();
    let session = engine.start(options).expect("a session");
    drive(session, inputs, sinks)
}

/// Serves every source and sink of a session from a thread of its own.
///
/// # Panics
/// If the run fails.
pub fn drive(session: Session, inputs: &Streams, sinks: Vec<String>) -> (Streams, Outcome) {
    drive_with(session, inputs, sinks, 1, || {})
}

/// Between the pieces of [`drive_with`].
const PIECE_PAUSE: Duration = Duration::from_millis(1);

/// [`drive`] with sources that are fed in so many pieces, a millisecond apart, and `meanwhile` while the streams are
/// served.
///
/// # Panics
/// As [`drive`].
pub fn drive_with(
    mut session: Session,
    inputs: &Streams,
    sinks: Vec<String>,
    pieces: usize,
    meanwhile: impl FnOnce(),
) -> (Streams, Outcome) {
    std::thread::scope(|scope| {
        for (name, bytes) in inputs {
            let mut source = session.source(name).expect("a source");
            let token_bytes = source.token().bytes() as usize;
            let piece_tokens = (bytes.len() / token_bytes).div_ceil(pieces).max(1);
            scope.spawn(move || {
                for piece in bytes.chunks(piece_tokens * token_bytes) {
                    // A run with a bound on its iterations takes no more than that: the rest is refused, and not wanted.
                    if source.push_bytes(piece).is_err() {
                        return;
                    }
                    if pieces > 1 {
                        std::thread::sleep(PIECE_PAUSE);
                    }
                }
            });
        }
        let pulls: Vec<_> = sinks
            .into_iter()
            .map(|name| {
                let mut sink = session.sink(&name).expect("a sink");
                let token_bytes = sink.token().bytes() as usize;
                let pull = move || {
                    let mut all = Vec::new();
                    let mut part = vec![0; token_bytes * 65_536usize.div_ceil(token_bytes)];
                    loop {
                        let tokens = sink.pull_bytes(&mut part).expect("tokens");
                        all.extend_from_slice(&part[..tokens as usize * token_bytes]);
                        if (tokens as usize) < part.len() / token_bytes {
                            return (name, all);
                        }
                    }
                };
                scope.spawn(pull)
            })
            .collect();
        meanwhile();
        let outcome = session.join().expect("the run ends well");
        (
            pulls
                .into_iter()
                .map(|p| p.join().expect("a sink's thread"))
                .collect(),
            outcome,
        )
    })
}

/// Compiles and runs: what the sinks got.
///
/// # Panics
/// As [`compile`] and [`replay`].
pub fn run(
    model: &str,
    devices: usize,
    registry: &Registry,
    inputs: &Streams,
    iterations: Option<u64>,
) -> Streams {
    replay(
        compile(model, devices, registry),
        registry,
        inputs,
        iterations,
        None,
    )
    .0
}

/// The same by the reference interpreter, which knows no plan.
///
/// # Panics
/// If the model does not compile or the run fails.
pub fn interpret(
    model: &str,
    registry: &Registry,
    inputs: &Streams,
    iterations: Option<u64>,
) -> Streams {
    interpret_program(
        &compile(model, 1, registry).program,
        registry,
        inputs,
        iterations,
    )
    .0
}

/// [`interpret`] for a program that did not come from a model file; also the state that is left.
///
/// # Panics
/// If the run fails.
pub fn interpret_program(
    program: &Program,
    registry: &Registry,
    inputs: &Streams,
    iterations: Option<u64>,
) -> (Streams, State) {
    let mut interpreter =
        Interpreter::new(&program.graph, &program.blobs, registry).expect("an interpreter");
    let outcome = interpreter
        .run(inputs, iterations)
        .expect("the interpretation ends well");
    (outcome.outputs, outcome.state)
}

/// [`interpret_program`] with changes of live parameters.
///
/// # Panics
/// If the interpretation fails.
pub fn interpret_with_changes(
    program: &Program,
    registry: &Registry,
    inputs: &Streams,
    changes: &[ParameterChange],
) -> (Streams, State) {
    let mut interpreter =
        Interpreter::new(&program.graph, &program.blobs, registry).expect("an interpreter");
    changes
        .iter()
        .for_each(|change| interpreter.change(change.clone()));
    let outcome = interpreter
        .run(inputs, None)
        .expect("the interpretation ends well");
    (outcome.outputs, outcome.state)
}

/// Random bytes for each source: enough for `iterations` and a little more.
///
/// # Panics
/// If the graph is inconsistent.
pub fn random_inputs(program: &Program, iterations: u64, seed: u64) -> Streams {
    let mut rng = fastrand::Rng::with_seed(seed);
    let q = zbmd_scheduler::repetition(&program.graph).expect("verified graphs are consistent");
    let sources = program.graph.sources().map(|(id, source)| {
        let port = &source.outputs[0];
        let tokens = q[id] * port.rate * iterations + rng.u64(0..q[id] * port.rate);
        let bytes = (0..tokens * port.token.bytes())
            .map(|_| rng.u8(..))
            .collect();
        (source.name.clone(), bytes)
    });
    sources.collect()
}

/// The program of what is left after a loss: the entry's plans in place of `main` and `tail`.
///
/// # Panics
/// If they are no plans.
pub fn without_lost(program: &Program, entry: &Contingency) -> Verified<Program> {
    let mut left = program.clone();
    let named = |id: PlanId, name: &str| {
        let mut plan = program.plans[id].clone();
        plan.name = name.into();
        plan
    };
    let tail = entry.tail.map(|tail| named(tail, "tail"));
    left.plans = std::iter::once(named(entry.main, "main"))
        .chain(tail)
        .collect();
    left.contingencies = Contingencies::default();
    verify(left).expect("a plan for what is left is a plan")
}
