//! Runs programs from bytes to bytes, by calendar and by the interpreter.

use std::collections::BTreeMap;

use zbmd_backends::interpret::Interpreter;
use zbmd_backends::op::Registry;
use zbmd_executor::{Engine, Outcome, RunOptions};
use zbmd_ir::verify::Verified;
use zbmd_ir::{Program, State};

/// Bytes of each stream by name.
pub type Streams = BTreeMap<String, Vec<u8>>;

/// Replays the program's calendars: pushes all inputs from threads, collects all outputs.
///
/// # Panics
/// If the run fails: callers test runs that must not.
pub fn replay(
    program: &Verified<Program>,
    registry: &Registry,
    inputs: &Streams,
    options: RunOptions,
) -> (Streams, Outcome) {
    let engine = Engine::new(program.clone(), registry).expect("the program's kernels exist");
    let mut session = engine.start(options).expect("memory and threads for a run");
    let outputs = std::thread::scope(|scope| {
        let mut readers = Vec::new();
        for (_, sink) in program.graph.sinks() {
            let mut handle = session.sink(&sink.name).expect("every sink has a handle");
            readers.push((
                sink.name.clone(),
                scope.spawn(move || {
                    let mut all = Vec::new();
                    let token = handle.token().bytes() as usize;
                    let mut chunk = vec![0; token.max(1 << 16) / token * token];
                    loop {
                        let tokens =
                            handle.pull_some_bytes(&mut chunk).expect("the run goes on") as usize;
                        if tokens == 0 {
                            return all;
                        }
                        all.extend_from_slice(&chunk[..tokens * token]);
                    }
                }),
            ));
        }
        for (_, source) in program.graph.sources() {
            let mut handle = session.source(&source.name).expect("every source has a handle");
            let bytes: &[u8] = inputs.get(&source.name).map_or(&[], Vec::as_slice);
            scope.spawn(move || {
                // A run that was told to end after some iterations stops taking tokens.
                let _ = handle.push_bytes(bytes);
                handle.close();
            });
        }
        let joined = readers
            .into_iter()
            .map(|(name, thread)| (name, thread.join().expect("readers do not panic")));
        joined.collect::<Streams>()
    });
    (outputs, session.join().expect("the run ends well"))
}

/// Interprets the program's graph token by token.
///
/// # Panics
/// If it fails.
pub fn interpret(
    program: &Program,
    registry: &Registry,
    inputs: &Streams,
    from: Option<&State>,
) -> (Streams, State) {
    let mut interpreter = Interpreter::new(&program.graph, &program.blobs, registry)
        .expect("the graph's kernels exist");
    if let Some(state) = from {
        interpreter.restore(state).expect("the state is of this graph");
    }
    let outcome = interpreter.run(inputs, None).expect("the interpreter runs verified graphs");
    (outcome.outputs, outcome.state)
}
