//! Runs of several modes, by the interpreter: one mode after the other, for the iterations that a run was in each.

use zbmd_backends::interpret::Interpreter;
use zbmd_backends::op::Registry;
use zbmd_executor::ModeEntry;
use zbmd_ir::verify::VerifiedModes;
use zbmd_ir::{State, carried_tokens};

use crate::run::Streams;

/// What the interpreter makes of the input with these changes of mode, and the state that is left. `entries` begins with
/// the first mode.
///
/// # Panics
/// If the interpretation fails, or has no input for all iterations of a mode.
pub fn interpreted(
    modes: &VerifiedModes,
    registry: &Registry,
    inputs: &Streams,
    entries: &[ModeEntry],
) -> (Streams, State) {
    let program = |name: &str| {
        let mode = modes.names().iter().position(|known| known == name);
        &modes.programs()[mode.expect("a mode")]
    };
    let mut outputs = Streams::new();
    let mut present = program(&entries[0].mode);
    let mut state = State::initial(&present.graph);
    for (index, entry) in entries.iter().enumerate() {
        let next = program(&entry.mode);
        let counts = next.graph.sources().zip(&state.consumed);
        let consumed = counts.map(|((id, _), (_, tokens))| (id, *tokens));
        state = State {
            iterations: entry.iteration,
            channels: carried_tokens(&present.graph, &state.channels, &next.graph),
            consumed: consumed.collect(),
            changes: Vec::new(),
        };
        present = next;

        let mut interpreter =
            Interpreter::new(&present.graph, &present.blobs, registry).expect("an interpreter");
        interpreter.restore(&state).expect("it fits");
        let rest = present.graph.sources().zip(&state.consumed);
        let rest = rest.map(|((_, actor), (_, tokens))| {
            let taken = (tokens * actor.outputs[0].token.bytes()) as usize;
            (actor.name.clone(), inputs[&actor.name][taken..].to_vec())
        });
        let iterations = entries
            .get(index + 1)
            .map(|next| next.iteration - entry.iteration);
        let outcome = interpreter
            .run(&rest.collect(), iterations)
            .expect("the interpretation ends well");
        if let Some(iterations) = iterations {
            let done = outcome.state.iterations - entry.iteration;
            assert_eq!(done, iterations, "there was input for all of them");
        }
        for (name, bytes) in outcome.outputs {
            outputs.entry(name).or_default().extend(bytes);
        }
        state = outcome.state;
    }
    (outputs, state)
}
