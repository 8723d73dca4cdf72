//! Runs of several modes, by the interpreter: one mode after the other, for the iterations that a run was in each. What goes
//! over from mode to mode is found by a rule of its own, which shares no code with the executor's. And random modes.

use std::borrow::Cow;

use bytes::Bytes;
use zbmd_backends::interpret::Interpreter;
use zbmd_backends::op::Registry;
use zbmd_executor::ModeEntry;
use zbmd_ir::verify::{VerifiedModes, verify_modes};
use zbmd_ir::{
    BlobId, ChannelId, Graph, Machine, Mode, Modes, Program, Role, State, TiSlice, TiVec, Value,
};
use zbmd_scheduler::{Block, ScheduleOptions, schedule};

use crate::random::{self, Shape};
use crate::run::Streams;

/// Every 48 iterations a token asks for a mode. `memory` goes over; `pairs` takes and gives other numbers of tokens.
pub const DECIDING: &str = r#"Model(
    name: "deciding",
    sources: { "in": Stream(dtype: f32) },
    actors: {
        "pick": Expr("x < 0.4 ? 0 : x < 0.7 ? 1 : 2"),
        "memory": Expr("0.5 * s + x", inputs: { "x": f32, "s": f32 }),
    },
    channels: [
        (from: "in", to: ["pick", "memory.x"]),
        (from: "pick", to: ["mode"], initial: [0]),
    ],
    modes: {
        "plain": Mode(channels: [(from: "memory", to: ["memory.s", "out"], initial: [0.0])]),
        "pairs": Mode(
            actors: { "half": Fir([0.5, 0.25], decimate: 2) },
            channels: [
                (from: "memory", to: ["memory.s", "half"], initial: [0.0]),
                (from: "half", to: ["out"]),
            ],
        ),
        "squared": Mode(
            actors: { "square": Expr("x * x") },
            channels: [
                (from: "memory", to: ["memory.s", "square"], initial: [0.0]),
                (from: "square", to: ["out"]),
            ],
        ),
    },
    mode_from: (from: "pick", every: 48),
    sinks: { "out": Stream(), "mode": Stream() },
)"#;

/// The tokens on a graph's channels at a border.
pub type Tokens = TiVec<ChannelId, Vec<u8>>;

/// What a graph begins with that a run goes over to: from a graph, the tokens on its channels, and the next graph.
pub type Carry = fn(&Graph, &Tokens, &Graph) -> Tokens;

/// The iterations of a run that were in one mode, one after the other.
#[derive(Clone, Debug)]
pub struct Leg<'a> {
    /// What is computed.
    pub graph: Cow<'a, Graph>,
    /// Its constants.
    pub blobs: &'a TiSlice<BlobId, Bytes>,
    /// The first iteration of the run in it.
    pub first: u64,
}

/// The legs of a run that was in these modes; `entries` begins with the first mode.
///
/// # Panics
/// If there is no such mode.
pub fn legs<'a>(modes: &'a VerifiedModes, entries: &[ModeEntry]) -> Vec<Leg<'a>> {
    let leg = |entry: &ModeEntry| {
        let mode = modes.names().iter().position(|name| *name == entry.mode);
        let program = &modes.programs()[mode.expect("a mode")];
        Leg {
            graph: Cow::Borrowed(&program.graph),
            blobs: &program.blobs,
            first: entry.iteration,
        }
    };
    entries.iter().map(leg).collect()
}

/// Tokens go over to channels whose writers have one name, at one output, where as many of one type lie; others begin as
/// declared.
pub fn carry_by_name(from: &Graph, tokens: &Tokens, to: &Graph) -> Tokens {
    let name = |graph: &Graph, id: ChannelId| {
        let channel = &graph.channels[id];
        let writer = &graph.actors[channel.from.actor];
        let history = channel.history();
        (
            writer.name.clone(),
            channel.from.port,
            channel.token.clone(),
            history,
        )
    };
    let begin = |id: ChannelId| {
        let wanted = name(to, id);
        let found = from
            .channels
            .keys()
            .find(|known| name(from, *known) == wanted);
        match found {
            Some(found) if wanted.3 > 0 => tokens[found].clone(),
            _ => to.channels[id].initial.clone(),
        }
    };
    to.channels.keys().map(begin).collect()
}

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
    let (outputs, state) = interpreted_legs(&legs(modes, entries), registry, inputs, carry_by_name);
    let last = entries.last().map_or(0, |entry| entry.iteration);
    assert!(state.iterations >= last, "there was input for all modes");
    (outputs, state)
}

/// What the interpreter makes of the input where tokens decide about the mode: the run goes on in steps of as many iterations
/// as there are from one decision to the next. The state that is left, and where it was in each mode.
///
/// # Panics
/// If the interpretation fails, or the modes have no decision.
pub fn interpreted_deciding(
    modes: &VerifiedModes,
    registry: &Registry,
    inputs: &Streams,
) -> (Streams, State, Vec<ModeEntry>) {
    let decision = modes.decision().expect("a decision");
    let entry = |mode: usize, iteration| ModeEntry {
        mode: modes.names()[mode].clone(),
        iteration,
    };
    let mut mode = 0;
    let mut entries = vec![entry(0, 0)];
    let mut state = State::initial(&modes.programs()[0].graph);
    let mut outputs = Streams::new();
    loop {
        let program = &modes.programs()[mode];
        let graph = &program.graph;
        let mut interpreter =
            Interpreter::new(graph, &program.blobs, registry).expect("an interpreter");
        interpreter.restore(&state).expect("it fits");
        let rest = graph.sources().zip(&state.consumed);
        let rest = rest.map(|((_, actor), (_, tokens))| {
            let taken = (tokens * actor.outputs[0].token.bytes()) as usize;
            (actor.name.clone(), inputs[&actor.name][taken..].to_vec())
        });
        let step = decision.every - state.iterations % decision.every;
        let outcome = interpreter
            .run(&rest.collect(), Some(step))
            .expect("the interpretation ends well");
        for (name, bytes) in outcome.outputs {
            outputs.entry(name).or_default().extend(bytes);
        }
        let done = outcome.state.iterations - state.iterations;
        state = outcome.state;
        if done < step {
            return (outputs, state, entries);
        }

        let wanted = decided(graph, &decision.actor, &state.channels);
        let wanted = wanted.and_then(|number| decision.modes.get(number).copied());
        let is_allowed = |to: &u32| modes.changes().contains(&(mode as u32, *to));
        let Some(to) = wanted.filter(is_allowed) else {
            continue;
        };
        mode = to as usize;
        let next = &modes.programs()[mode].graph;
        let counts = next.sources().zip(&state.consumed);
        state.consumed = counts.map(|((id, _), (_, tokens))| (id, *tokens)).collect();
        state.channels = carry_by_name(graph, &state.channels, next);
        entries.push(entry(mode, state.iterations));
    }
}

/// The last number that an actor's first output has written.
fn decided(graph: &Graph, actor: &str, tokens: &Tokens) -> Option<usize> {
    let mut channels = graph.channels.iter_enumerated();
    let (id, _) = channels.find(|(_, channel)| {
        graph.actors[channel.from.actor].name == actor && channel.from.port == 0
    })?;
    let bytes = &tokens[id];
    let number = i64::from_ne_bytes(bytes[bytes.len() - 8..].try_into().expect("eight bytes"));
    usize::try_from(number).ok()
}

/// As [`interpreted`], for legs of any graphs over the same streams; ends where a leg has too little input.
///
/// # Panics
/// If the interpretation fails, or there is no leg.
pub fn interpreted_legs(
    legs: &[Leg<'_>],
    registry: &Registry,
    inputs: &Streams,
    carry: Carry,
) -> (Streams, State) {
    let mut outputs = Streams::new();
    let mut present: &Graph = &legs[0].graph;
    let mut state = State::initial(present);
    for (index, leg) in legs.iter().enumerate() {
        let next: &Graph = &leg.graph;
        let counts = next.sources().zip(&state.consumed);
        let consumed = counts.map(|((id, _), (_, tokens))| (id, *tokens));
        state = State {
            iterations: leg.first,
            channels: carry(present, &state.channels, next),
            consumed: consumed.collect(),
            changes: Vec::new(),
        };
        present = next;

        let mut interpreter =
            Interpreter::new(present, leg.blobs, registry).expect("an interpreter");
        interpreter.restore(&state).expect("it fits");
        let rest = present.sources().zip(&state.consumed);
        let rest = rest.map(|((_, actor), (_, tokens))| {
            let taken = (tokens * actor.outputs[0].token.bytes()) as usize;
            (actor.name.clone(), inputs[&actor.name][taken..].to_vec())
        });
        let iterations = legs.get(index + 1).map(|next| next.first - leg.first);
        let outcome = interpreter
            .run(&rest.collect(), iterations)
            .expect("the interpretation ends well");
        for (name, bytes) in outcome.outputs {
            outputs.entry(name).or_default().extend(bytes);
        }
        state = outcome.state;
        if iterations.is_some_and(|iterations| state.iterations - leg.first < iterations) {
            break;
        }
    }
    (outputs, state)
}

/// Another graph over the same streams: it takes and gives them at other rates, some of its actors do something else, and
/// some have another name, so that the tokens which they left behind stay there.
fn vary(graph: &mut Graph, rng: &mut fastrand::Rng) {
    for (index, actor) in graph.actors.iter_mut().enumerate() {
        match actor.role {
            Role::Source => actor.outputs[0].rate *= rng.u64(1..=3),
            Role::Sink => {
                let port = &mut actor.inputs[0];
                let more = port.rate * rng.u64(0..=2);
                port.rate += more;
                port.window += more;
            }
            Role::Compute => {
                if rng.u8(..) < 100 {
                    let salt = Value::Int(rng.i64(..));
                    actor.params.insert("salt".to_owned(), salt);
                }
                if rng.u8(..) < 60 {
                    actor.name = format!("other{index}");
                }
            }
        }
    }
    for channel in &mut graph.channels {
        channel.initial.iter_mut().for_each(|byte| *byte ^= 0x3c);
    }
}

fn planned(graph: Graph, machine: &Machine, seed: u64) -> Program {
    let costs = random::costs(&graph, machine, seed);
    let block = [Block::Auto, Block::Fixed(1), Block::Fixed(7)][(seed % 3) as usize];
    let options = ScheduleOptions {
        block,
        ..ScheduleOptions::default()
    };
    let plans =
        schedule(&graph, machine, &costs, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    Program {
        graph,
        machine: machine.clone(),
        plans: plans.into(),
        ..Program::default()
    }
}

/// The seed's modes, 2 to 4 of them, on a machine of 1 to 4 devices; most changes are allowed.
///
/// # Panics
/// If they cannot be scheduled, or the verifier refuses them.
pub fn random_modes(seed: u64) -> VerifiedModes {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x30de5);
    let machine = random::machine(1 + (seed % 4) as usize);
    let shape = Shape {
        actors: 16,
        max_rate: 6,
        ..Shape::default()
    };
    let first = random::graph(seed, shape);
    let count = rng.u32(2..=4);
    let list = (0..count).map(|index| {
        let mut graph = first.clone();
        if index > 0 {
            vary(&mut graph, &mut rng);
        }
        Mode {
            name: format!("m{index}"),
            program: planned(graph, &machine, seed + u64::from(index)),
        }
    });
    let list: Vec<Mode> = list.collect();
    let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
    let changes = pairs
        .filter(|(from, to)| from != to && (*to == (from + 1) % count || rng.u8(..) < 180))
        .collect();
    let modes = Modes {
        list,
        changes,
        decision: None,
    };
    verify_modes(modes).unwrap_or_else(|error| panic!("seed {seed}: {error}"))
}
