//! Gated actors of random graphs: replayed, on any number of devices and through killed workers, they give what the
//! interpreter gives, which looks at each firing by itself and splits no calls. And what would be wrong about a gate is
//! seen.
//!
//! No test harness: this program is its own worker process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
use zbmd_executor::supervise::{Event, What};
use zbmd_executor::{Engine, Isolation, RunOptions};
use zbmd_ir::verify::Verified;
use zbmd_ir::{ActorId, Channel, ClosedAnswer, Gate, Graph, LiveParameter, PlanId, Program, Value};
use zbmd_scheduler::ScheduleOptions;
use zbmd_scheduler::buffers::{Mode, Unit};
use zbmd_tests::gates::add_gates;
use zbmd_tests::harness::{self, Test};
use zbmd_tests::random::{self, Shape};
use zbmd_tests::run::{
    drive_with, interpret_program, interpret_with_changes, random_inputs, replay_program,
};
use zbmd_tests::sample::cases;
use zbmd_tests::{losses, mix};

/// The seed's graph with gates; `None` if none of its actors can have one.
fn gated_graph(seed: u64) -> Option<Graph> {
    let mut graph = random::graph(seed, Shape::default());
    (add_gates(&mut graph, seed) > 0).then_some(graph)
}

/// The plans for a graph that the seed asks for; some have buffers that are smaller than a block.
fn program_of(seed: u64, graph: Graph) -> Verified<Program> {
    let options = match seed / 12 % 3 {
        0 => ScheduleOptions {
            buffers: Mode::Min(Unit::Tokens),
            ..ScheduleOptions::default()
        },
        _ => random::block_options(seed),
    };
    random::program(seed, graph, &options)
}

/// Iterations that fill a plan's pipeline, with a tail.
fn some_iterations(program: &Program) -> u64 {
    let main = &program.plans[PlanId(0)];
    (main.block * (u64::from(main.stages) + 2) + 1).min(40)
}

fn random_gated_graphs_replay_like_the_interpreter() {
    let registry = mix::registry();
    let (mut gates, mut held, mut in_rows, mut compared) = (0, 0, 0, 0);
    for seed in 0..cases(64) {
        let Some(graph) = gated_graph(seed) else {
            continue;
        };
        let program = program_of(seed, graph);
        let main = &program.plans[PlanId(0)];
        let found = program.graph.actors.iter().filter_map(|actor| actor.gate());
        let found: Vec<&Gate> = found.collect();
        gates += found.len();
        held += found.iter().filter(|gate| gate.held() > 0).count();
        in_rows += u32::from(main.block > 1);

        let inputs = random_inputs(&program, some_iterations(&program), seed);
        let (outputs, outcome) = replay_program(program.clone(), &registry, &inputs, None, None);
        let (expected, state) = interpret_program(&program, &registry, &inputs, None);
        assert_eq!(outcome.state, state, "seed {seed}: the final states differ");
        assert!(outputs == expected, "seed {seed}: the outputs differ");
        compared += outputs.values().map(Vec::len).sum::<usize>();
    }
    println!("{gates} gates, {held} that hold something, {in_rows} graphs with blocks");
    assert!(
        gates > 320 && held > 128 && in_rows > 6 && compared > 32_000,
        "{gates} {held} {in_rows} {compared}: a weak sample"
    );
}

/// A gated actor whose parameters are live changes at the firing that the interpreter says, open or not.
fn gated_actors_follow_live_parameters() {
    let registry = mix::registry();
    let mut checked = 0;
    for seed in 0..cases(20) {
        let Some(mut graph) = gated_graph(seed) else {
            continue;
        };
        let parameter = LiveParameter {
            name: "a".to_owned(),
            is_list: false,
            initial: vec![1.0],
            min: -100.0,
            max: 100.0,
        };
        for actor in graph.actors.iter_mut().filter(|a| a.gate().is_some()) {
            let live = Value::Live(Box::new(parameter.clone()));
            actor.params.insert("salt".to_owned(), live);
        }
        let program = program_of(seed, graph);
        let inputs = random_inputs(&program, some_iterations(&program), seed);
        let engine = Engine::new(program.clone(), &registry).expect("an engine");
        let session = engine.start(losses::options(Isolation::Threads));
        let session = session.expect("a session");
        let handle = session.parameters();
        let mut changes = Vec::new();
        let source = inputs.keys().next().expect("a source");
        for index in [2, 5, 11] {
            let when = zbmd_executor::When::Token { source, index };
            let number = index as f64 / 7.0;
            if let Ok(position) = handle.set(&[("a", &[number])], when) {
                changes.push(zbmd_ir::ParameterChange {
                    position,
                    values: vec![(0, vec![number])],
                });
            }
        }
        let sinks = program.graph.sinks();
        let sinks = sinks.map(|(_, actor)| actor.name.clone()).collect();
        let (outputs, _) = drive_with(session, &inputs, sinks, 1, || ());
        let (expected, _) = interpret_with_changes(&program, &registry, &inputs, &changes);
        assert!(outputs == expected, "seed {seed}: the outputs differ");
        checked += changes.len();
    }
    assert!(checked > 26, "{checked}: a weak sample");
}

/// Workers are processes that are killed: what is held, and whether gates were open, is computed again.
#[cfg(target_os = "linux")]
fn killed_workers_change_nothing_behind_gates() {
    const FAULTS: &str = "Inject(kinds: [kill], every: (\"10ms\", \"30ms\"), \
        wait_for_border_after: 3, seed: 5)";
    const PIECES: usize = 300;
    let (mut gates, mut recovered) = (0, 0);
    for seed in 0..cases(12) {
        let Some(graph) = gated_graph(seed) else {
            continue;
        };
        let program = program_of(seed, graph);
        gates += program
            .graph
            .actors
            .iter()
            .filter(|a| a.gate().is_some())
            .count();
        let block = program.plans[PlanId(0)].block;
        let inputs = random_inputs(&program, (2 * block).max(PIECES as u64), seed);
        let engine = Engine::new(program.clone(), &mix::registry()).expect("an engine");
        let recoveries = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&recoveries);
        let mut supervised = losses::supervised(&engine, losses::HARDY, Some(FAULTS));
        supervised.listener = Some(Arc::new(move |event: &Event| {
            if matches!(event.what, What::Lost { .. }) {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        }));
        let options = RunOptions {
            supervised: Some(supervised),
            ..losses::options(Isolation::Processes { program: None })
        };
        let session = engine.start(options).expect("a session");
        let sinks = program.graph.sinks();
        let sinks = sinks.map(|(_, actor)| actor.name.clone()).collect();
        let (outputs, outcome) = drive_with(session, &inputs, sinks, PIECES, || {
            std::thread::sleep(std::time::Duration::from_millis(1));
        });
        let (expected, state) = interpret_program(&program, &mix::registry(), &inputs, None);
        assert!(outputs == expected, "seed {seed}: the outputs differ");
        assert_eq!(outcome.state, state, "seed {seed}: the final states differ");
        recovered += recoveries.load(Ordering::Relaxed);
    }
    println!("{gates} gates, {recovered} losses");
    assert!(gates > 20 && recovered > 30, "a weak sample");
}

/// Something wrong about a graph's gates; false where there is nothing to get wrong.
type SeededBug = fn(&mut Graph) -> bool;

/// Gated actors with their gates.
fn gated_actors(graph: &Graph) -> Vec<(ActorId, Gate)> {
    let actors = graph.actors.iter_enumerated();
    actors
        .filter_map(|(id, actor)| Some((id, actor.gate()?.clone())))
        .collect()
}

/// Changes the gates of all actors; false if nothing changed.
fn change_gates(graph: &mut Graph, mut change: impl FnMut(&mut Gate) -> bool) -> bool {
    let mut is_changed = false;
    for (id, mut gate) in gated_actors(graph) {
        is_changed |= change(&mut gate);
        let value = Value::Gate(Box::new(gate));
        graph.actors[id]
            .params
            .insert(Gate::PARAM.to_owned(), value);
    }
    is_changed
}

/// Moves a reader of one of the channels that `is_meant` says by a token; false if there is none.
fn move_readers(graph: &mut Graph, is_meant: impl Fn(&Graph, ActorId, u32) -> bool) -> bool {
    let mut is_changed = false;
    for id in graph.channels.keys().collect::<Vec<_>>() {
        if graph.is_state(id) {
            continue;
        }
        let readers = graph.channels[id].readers.clone();
        for (index, reader) in readers.iter().enumerate() {
            if is_meant(graph, reader.to.actor, reader.to.port) {
                graph.channels[id].readers[index].delay += 1;
                is_changed = true;
            }
        }
        fill_initial(&mut graph.channels[id]);
    }
    is_changed
}

/// Zeros before the initial tokens, as far as delays have grown.
fn fill_initial(channel: &mut Channel) {
    let needed = (channel.history() * channel.token.bytes()) as usize;
    let missing = needed.saturating_sub(channel.initial.len());
    channel.initial.splice(0..0, vec![0; missing]);
}

fn windows_begin_one_token_late(graph: &mut Graph) -> bool {
    // The history that a gated actor looks at after an opening is one token short: what it sees lies a token back.
    let gated = gated_actors(graph);
    move_readers(graph, |graph, actor, port| {
        let input = &graph.actors[actor].inputs[port as usize];
        let gate = gated.iter().find(|(id, _)| *id == actor);
        gate.is_some_and(|(_, gate)| port < gate.input) && input.window > input.rate
    })
}

fn gates_are_a_token_late(graph: &mut Graph) -> bool {
    let gated = gated_actors(graph);
    move_readers(graph, |_, actor, port| {
        let gate = gated.iter().find(|(id, _)| *id == actor);
        gate.is_some_and(|(_, gate)| port == gate.input)
    })
}

fn gates_look_one_token_less_back(graph: &mut Graph) -> bool {
    let mut is_changed = false;
    for (id, gate) in gated_actors(graph) {
        let port = &mut graph.actors[id].inputs[gate.input as usize];
        if port.window > port.rate {
            // The reader's delay stays: the newest token is not looked at.
            port.window -= 1;
            is_changed = true;
        }
    }
    is_changed
}

fn held_outputs_are_forgotten_at_the_start(graph: &mut Graph) -> bool {
    let mut is_changed = false;
    for (id, gate) in gated_actors(graph) {
        let held = gate.held();
        let outputs = graph.actors[id].outputs.len();
        for channel in &mut graph.channels {
            if channel.from.actor == id && channel.from.port as usize >= outputs - held {
                channel.initial.fill(0);
                is_changed = true;
            }
        }
    }
    is_changed
}

fn states_are_cleared_instead_of_kept(graph: &mut Graph) -> bool {
    change_gates(graph, |gate| {
        let is_kept = gate.states == ClosedAnswer::Hold;
        gate.states = ClosedAnswer::Zero;
        is_kept
    })
}

fn states_are_kept_instead_of_cleared(graph: &mut Graph) -> bool {
    change_gates(graph, |gate| {
        let is_cleared = gate.states == ClosedAnswer::Zero;
        gate.states = ClosedAnswer::Hold;
        is_cleared
    })
}

fn held_outputs_give_zeros(graph: &mut Graph) -> bool {
    let mut is_changed = false;
    for (id, gate) in gated_actors(graph) {
        let actor = &graph.actors[id];
        let bare = actor.ungated().into_owned();
        let port = actor.inputs[gate.input as usize].clone();
        let cleared = bare.with_gate(port, gate.states, |_| ClosedAnswer::Zero);
        graph.actors[id] = cleared;

        // The states that held the outputs go.
        let channels = std::mem::take(&mut graph.channels).into_iter();
        let first_held = bare.outputs.len() as u32;
        let is_kept =
            |channel: &Channel| channel.from.actor != id || channel.from.port < first_held;
        graph.channels = channels.filter(is_kept).collect();
        is_changed |= gate.held() > 0;
    }
    is_changed
}

fn gates_never_close(graph: &mut Graph) -> bool {
    let mut is_changed = false;
    for actor in graph.actors.iter_mut().filter(|a| a.op == "Threshold") {
        let level = Value::Int(i64::MIN);
        actor.params.insert("level".to_owned(), level);
        is_changed = true;
    }
    is_changed
}

/// Each bug, put into the graphs that are replayed, makes them differ from what the interpreter makes of the right ones.
fn seeded_bugs_are_caught() {
    let bugs: [(&str, SeededBug); 8] = [
        ("windows begin one token late", windows_begin_one_token_late),
        ("gates are a token late", gates_are_a_token_late),
        (
            "gates look one token less back",
            gates_look_one_token_less_back,
        ),
        (
            "held outputs are forgotten at the start",
            held_outputs_are_forgotten_at_the_start,
        ),
        (
            "states are cleared instead of kept",
            states_are_cleared_instead_of_kept,
        ),
        (
            "states are kept instead of cleared",
            states_are_kept_instead_of_cleared,
        ),
        ("held outputs give zeros", held_outputs_give_zeros),
        ("gates never close", gates_never_close),
    ];
    let registry = mix::registry();
    for (what, bug) in bugs {
        let (mut tried, mut caught) = (0, 0);
        for seed in 0..60u64 {
            let Some(graph) = gated_graph(seed) else {
                continue;
            };
            let mut damaged = graph.clone();
            if !bug(&mut damaged)
                || zbmd_ir::verify::check_graph(&damaged, &zbmd_ir::TiVec::new()).is_err()
            {
                continue;
            }
            let right = program_of(seed, graph);
            let wrong = program_of(seed, damaged);
            let inputs = random_inputs(&right, some_iterations(&right), seed);
            let (outputs, _) = replay_program(wrong, &registry, &inputs, None, None);
            let (expected, _) = interpret_program(&right, &registry, &inputs, None);
            tried += 1;
            caught += usize::from(outputs != expected);
            if caught > 0 {
                break;
            }
        }
        println!("{what}: {caught} of {tried} graphs differ");
        assert!(caught > 0, "{what}: never seen in {tried} graphs");
    }
}

/// Compiles a model and runs it on one device and on two; both give the same.
fn run_model(text: &str, inputs: &[(&str, Vec<f32>)]) -> Vec<(String, Vec<f32>)> {
    let inputs: zbmd_tests::run::Streams = inputs
        .iter()
        .map(|(name, tokens)| {
            let bytes = tokens.iter().flat_map(|token| token.to_le_bytes());
            ((*name).to_owned(), bytes.collect())
        })
        .collect();
    let mut found = Vec::new();
    for devices in [1, 2] {
        let options = CompileOptions {
            machine: MachineChoice::Uniform(devices),
            ..CompileOptions::default()
        };
        let compiled = compile_str("model.ron", text, "", &options);
        let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
        assert!(
            compiled.warnings.to_string().is_empty(),
            "{}",
            compiled.warnings
        );
        let registry = &options.registry;
        let (expected, _) = interpret_program(&compiled.program, registry, &inputs, None);
        let (outputs, _) = replay_program(compiled.program, registry, &inputs, None, None);
        assert!(
            outputs == expected,
            "{devices} devices differ from the interpreter"
        );
        found.push(outputs);
    }
    assert!(found[0] == found[1], "two devices give something else");
    let outputs = found.swap_remove(0).into_iter();
    outputs
        .map(|(name, bytes)| {
            let tokens = bytes.chunks_exact(4);
            let tokens = tokens.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            (name, tokens.collect())
        })
        .collect()
}

/// Numbers 1, 2, 3, … and levels that open a gate at some of them.
fn numbers_and_levels() -> (Vec<f32>, Vec<f32>) {
    let numbers = (1..=24u8).map(f32::from).collect();
    let levels = (0..24).map(|index| f32::from(u8::from([4, 5, 11, 12, 18].contains(&index))));
    (numbers, levels.collect())
}

/// What a sum of the last three numbers is at an index; nothing comes before the first.
fn sum_of_three(numbers: &[f32], index: usize) -> f32 {
    numbers[index.saturating_sub(2)..=index].iter().sum()
}

fn windows_see_what_came_before_an_opening() {
    let (numbers, levels) = numbers_and_levels();
    for (closed, after) in [("hold", 0), ("zero", 0), ("hold", 2), ("zero", 3)] {
        let text = format!(
            r#"Model(
    sources: {{ "x": Stream(dtype: f32), "level": Stream(dtype: f32) }},
    actors: {{ "sum": Fir([1.0, 1.0, 1.0], gate: Gate("level", closed: {closed}, after: {after})) }},
    channels: [(from: "x", to: ["sum"]), (from: "sum", to: ["y"])],
    sinks: {{ "y": Stream() }},
)"#
        );
        let inputs = [("x", numbers.clone()), ("level", levels.clone())];
        let (_, found) = run_model(&text, &inputs).swap_remove(0);
        let mut last = 0.0;
        for (index, &got) in found.iter().enumerate() {
            let first = index.saturating_sub(after);
            let is_open = levels[first..=index].contains(&1.0);
            let expected = match is_open {
                true => sum_of_three(&numbers, index),
                false if closed == "hold" => last,
                false => 0.0,
            };
            assert_eq!(got, expected, "{closed} {after}: token {index}");
            last = expected;
        }
    }
}

/// A running sum in a sub-model: its feedback is a channel between gated actors.
fn feedback_behind_a_gate_is_kept_or_cleared() {
    let (numbers, levels) = numbers_and_levels();
    for (state, initial) in [("hold", 100.0f32), ("zero", 100.0)] {
        let text = format!(
            r#"Model(
    sources: {{ "x": Stream(dtype: f32), "level": Stream(dtype: f32) }},
    models: {{ "running": Model(
        inputs: {{ "x": f32 }},
        outputs: {{ "y": f32 }},
        actors: {{ "sum": Expr("a + b", inputs: {{ "a": f32, "b": f32 }}), "copy": Gain(1.0), "out": Gain(2.0) }},
        channels: [
            (from: "x", to: ["sum.a"]),
            (from: "sum", to: ["copy", "out"]),
            (from: "copy", to: ["sum.b"], initial: [{initial:?}]),
            (from: "out", to: ["y"]),
        ],
    ) }},
    actors: {{ "running": Sub("running", gate: Gate("level", closed: hold, state: {state})) }},
    channels: [(from: "x", to: ["running"]), (from: "running", to: ["y"])],
    sinks: {{ "y": Stream() }},
)"#
        );
        let inputs = [("x", numbers.clone()), ("level", levels.clone())];
        let (_, found) = run_model(&text, &inputs).swap_remove(0);
        let (mut sum, mut given) = (initial, 0.0);
        for (index, &got) in found.iter().enumerate() {
            if levels[index] != 0.0 {
                sum += numbers[index];
                given = 2.0 * sum;
            } else if state == "zero" {
                sum = 0.0;
            }
            assert_eq!(got, given, "{state}: token {index}");
        }
    }
}

/// A gate with a token for two numbers, which one actor reads twice; and one with four tokens a firing.
fn gates_keep_the_pace_of_what_they_gate() {
    let text = r#"Model(
    sources: { "x": Stream(dtype: f32, rate: 4), "level": Stream(dtype: f32) },
    models: { "both": Model(
        inputs: { "x": f32 },
        outputs: { "fast": f32, "slow": f32 },
        actors: { "plus": Expr("x + 1.0"), "half": Decimate(2) },
        channels: [
            (from: "x", to: ["plus", "half"]),
            (from: "plus", to: ["fast"]),
            (from: "half", to: ["slow"]),
        ],
    ) },
    actors: {
        "both": Sub("both", gate: Gate("level", closed: zero)),
        "fourth": Decimate(4),
        "any": Gain(3.0, gate: Gate("x", closed: zero)),
    },
    channels: [
        (from: "x", to: ["both", "fourth"]),
        (from: "both.fast", to: ["fast"]),
        (from: "both.slow", to: ["slow"]),
        (from: "fourth", to: ["any"]),
        (from: "any", to: ["some"]),
    ],
    sinks: { "fast": Stream(), "slow": Stream(), "some": Stream() },
)"#;
    let numbers = vec![
        1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 0.0, 0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0,
    ];
    let levels = vec![0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0];
    let found = run_model(text, &[("x", numbers), ("level", levels)]);
    let of = |name: &str| {
        let mut streams = found.iter();
        let (_, tokens) = streams.find(|(known, _)| known == name).expect("a sink");
        tokens.clone()
    };
    let fast = [
        0.0, 0.0, 0.0, 0.0, 6.0, 7.0, 8.0, 9.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
    ];
    assert_eq!(of("fast"), fast);
    assert_eq!(of("slow"), [0.0, 0.0, 5.0, 7.0, 0.0, 0.0, 0.0, 0.0]);
    // Of four tokens one that is not zero suffices: the third firing is open, and gives three times nothing.
    assert_eq!(of("some"), [3.0, 15.0, 0.0, 0.0]);
}

fn main() {
    #[cfg(target_os = "linux")]
    zbmd_executor::serve_if_worker(&mix::registry());
    let tests: &[Test] = &[
        (
            "random_gated_graphs_replay_like_the_interpreter",
            random_gated_graphs_replay_like_the_interpreter,
        ),
        (
            "gated_actors_follow_live_parameters",
            gated_actors_follow_live_parameters,
        ),
        ("seeded_bugs_are_caught", seeded_bugs_are_caught),
        (
            "windows_see_what_came_before_an_opening",
            windows_see_what_came_before_an_opening,
        ),
        (
            "feedback_behind_a_gate_is_kept_or_cleared",
            feedback_behind_a_gate_is_kept_or_cleared,
        ),
        (
            "gates_keep_the_pace_of_what_they_gate",
            gates_keep_the_pace_of_what_they_gate,
        ),
        #[cfg(target_os = "linux")]
        (
            "killed_workers_change_nothing_behind_gates",
            killed_workers_change_nothing_behind_gates,
        ),
    ];
    harness::run_apart(tests, || true);
}
