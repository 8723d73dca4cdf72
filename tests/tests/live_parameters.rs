//! Live parameters that are set while a run goes on: every firing has the values that the interpreter gives it, which
//! follows each token to what it was made from and knows no calendar. So it is where workers are killed meanwhile.
//!
//! No test harness: this program is its own worker process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use zbmd_executor::supervise::{Event, What};
use zbmd_executor::{Caller, Engine, Isolation, RunOptions, SetError, When};
use zbmd_ir::verify::Verified;
use zbmd_ir::{
    ChangePosition, Graph, LiveParameter, ParameterChange, PlanId, Program, Role, State, Value,
    live_parameters,
};
use zbmd_tests::harness::{self, Test};
use zbmd_tests::losses;
use zbmd_tests::mix;
use zbmd_tests::random::{self, Shape};
use zbmd_tests::run::{Streams, drive_with, interpret_with_changes, random_inputs};
use zbmd_tests::sample::cases;

/// Gives about half of a graph's actors one of three live parameters each: `a` and `b` are numbers, `c` is a list.
fn add_live_parameters(graph: &mut Graph, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let parameter = |name: &str, initial: Vec<f64>| LiveParameter {
        name: name.to_owned(),
        is_list: initial.len() > 1,
        initial,
        min: -100.0,
        max: 100.0,
    };
    let parameters = [
        parameter("a", vec![1.0]),
        parameter("b", vec![2.0]),
        parameter("c", vec![3.0, 4.0, 5.0]),
    ];
    let computes = graph.actors.iter_mut().filter(|a| a.role == Role::Compute);
    for (index, actor) in computes.enumerate() {
        if index == 0 || rng.bool() {
            let live = Value::Live(Box::new(parameters[rng.usize(..3)].clone()));
            let deep = Value::List(vec![Value::Int(7), live]);
            actor.params.insert("salt".to_owned(), deep);
        }
    }
}

/// The seed's program, with live parameters.
fn program(seed: u64, shape: Shape) -> Verified<Program> {
    let mut graph = random::graph(seed, shape);
    add_live_parameters(&mut graph, seed);
    random::program(seed, graph, &random::block_options(seed))
}

/// Random values for some of the parameters.
fn random_values(program: &Program, rng: &mut fastrand::Rng) -> Vec<(String, Vec<f64>)> {
    let mut parameters = live_parameters(&program.graph);
    rng.shuffle(&mut parameters);
    let count = 1 + rng.usize(..parameters.len());
    let chosen = parameters.into_iter().take(count);
    let with_numbers = chosen.map(|parameter| {
        let numbers = parameter.initial.iter().map(|_| rng.f64());
        (parameter.name, numbers.collect())
    });
    with_numbers.collect()
}

/// The change as the program's graph has it.
fn change(
    program: &Program,
    position: ChangePosition,
    values: &[(String, Vec<f64>)],
) -> ParameterChange {
    let parameters = live_parameters(&program.graph);
    let index = |name: &str| parameters.iter().position(|p| p.name == name);
    let mut numbered: Vec<(u32, Vec<f64>)> = values
        .iter()
        .map(|(name, numbers)| (index(name).expect("a parameter") as u32, numbers.clone()))
        .collect();
    numbered.sort_by_key(|(index, _)| *index);
    ParameterChange {
        position,
        values: numbered,
    }
}

/// What is compared of a state: the changes that it keeps say the same in other words.
fn without_changes(state: State) -> State {
    State {
        changes: Vec::new(),
        ..state
    }
}

/// How a program is run, and how often its parameters are set meanwhile.
struct Plan {
    options: RunOptions,
    /// Pieces of the input, a millisecond apart.
    pieces: usize,
    /// Changes before the first token, and while tokens flow, each up to this.
    max_changes_before: usize,
    max_changes_meanwhile: usize,
    max_pause: Duration,
}

/// What was set, the sinks' bytes and the last state.
struct ChangedRun {
    changes: Vec<ParameterChange>,
    outputs: Streams,
    state: State,
}

/// Runs the seed's program with changes at random tokens, and as it goes on with others at the next block.
fn run_with_changes(seed: u64, engine: &Engine, inputs: &Streams, plan: Plan) -> ChangedRun {
    let program = engine.program();
    let session = engine.start(plan.options).expect("a session");
    let handle = session.parameters();
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x5e7);
    let mut changes = Vec::new();

    let sources: Vec<(String, u64)> = program
        .graph
        .sources()
        .map(|(_, actor)| {
            let bytes = inputs[&actor.name].len() as u64;
            let tokens = bytes / actor.outputs[0].token.bytes();
            (actor.name.clone(), tokens.max(1))
        })
        .collect();
    let mut set = |when: When<'_>, rng: &mut fastrand::Rng| {
        let values = random_values(program, rng);
        let named: Vec<(&str, &[f64])> = values
            .iter()
            .map(|(name, numbers)| (name.as_str(), numbers.as_slice()))
            .collect();
        match handle.set(&named, when) {
            Ok(position) => changes.push(change(program, position, &values)),
            Err(SetError::Full | SetError::Ended | SetError::TooLate { .. }) => {}
            Err(error) => panic!("seed {seed}: {error}"),
        }
    };

    // Nothing has begun: every token can be named.
    for _ in 0..rng.usize(..=plan.max_changes_before) {
        let (source, tokens) = &sources[rng.usize(..sources.len())];
        let index = rng.u64(..*tokens);
        set(When::Token { source, index }, &mut rng);
    }
    let sinks = program.graph.sinks();
    let sinks = sinks.map(|(_, actor)| actor.name.clone()).collect();
    let (outputs, outcome) = drive_with(session, inputs, sinks, plan.pieces, || {
        for _ in 0..rng.usize(..=plan.max_changes_meanwhile) {
            let (source, tokens) = &sources[rng.usize(..sources.len())];
            let index = rng.u64(..*tokens);
            let when = if rng.bool() {
                When::NextBlock
            } else {
                When::Token { source, index }
            };
            set(when, &mut rng);
            std::thread::sleep(plan.max_pause.mul_f64(rng.f64()));
        }
    });
    ChangedRun {
        changes,
        outputs,
        state: outcome.state,
    }
}

/// Holds a run to the interpreter; whether the changes made a difference.
fn check_run(seed: u64, program: &Program, inputs: &Streams, run: ChangedRun) -> bool {
    let registry = mix::registry();
    let ChangedRun {
        changes,
        outputs,
        state,
    } = run;
    let (expected, last) = interpret_with_changes(program, &registry, inputs, &changes);
    assert!(
        outputs == expected,
        "seed {seed}: the outputs differ: {changes:?}"
    );
    let (state, last) = (without_changes(state), without_changes(last));
    assert_eq!(state, last, "seed {seed}: the final states differ");
    let (unchanged, _) = interpret_with_changes(program, &registry, inputs, &[]);
    outputs != unchanged
}

fn random_changes_of_random_graphs_take_effect_where_the_interpreter_puts_them() {
    let (mut set, mut in_blocks, mut differing) = (0, 0, 0);
    for seed in 0..cases(100) {
        let program = program(seed, Shape::default());
        // A graph of sources and sinks alone has none.
        if live_parameters(&program.graph).is_empty() {
            continue;
        }
        let main = &program.plans[PlanId(0)];
        let iterations = (main.block * (u64::from(main.stages) + 2) + 1).min(40);
        let inputs = random_inputs(&program, iterations, seed);
        let plan = Plan {
            options: losses::options(Isolation::Threads),
            pieces: 1,
            max_changes_before: 3,
            max_changes_meanwhile: 3,
            max_pause: Duration::from_micros(200),
        };
        let engine = Engine::new(program.clone(), &mix::registry()).expect("an engine");
        let run = run_with_changes(seed, &engine, &inputs, plan);
        set += run.changes.len();
        in_blocks += usize::from(main.block > 1 && !run.changes.is_empty());
        differing += usize::from(check_run(seed, &program, &inputs, run));
    }
    println!("{set} changes, {in_blocks} graphs with blocks, {differing} with other outputs");
    assert!(
        set > 166 && in_blocks > 16 && differing > 50,
        "a weak sample"
    );
}

/// Programs that the calling thread runs take them between two calls.
fn calls_have_what_was_set_before_them() {
    const CALLS: u64 = 12;
    let registry = mix::registry();
    let (mut called, mut differing) = (0, 0);
    for seed in 0..cases(60) {
        let program = program(seed, Shape::default());
        let engine = Engine::new(program.clone(), &registry).expect("an engine");
        // Most are for several devices.
        let Ok(mut caller) = engine.caller() else {
            continue;
        };
        if live_parameters(&program.graph).is_empty() {
            continue;
        }

        let block = program.plans[PlanId(0)].block;
        let inputs = random_inputs(&program, CALLS * block, seed);
        let mut rng = fastrand::Rng::with_seed(seed ^ 0xca11);
        let mut outputs = Streams::new();
        let mut changes = Vec::new();
        for call in 0..CALLS {
            for _ in 0..rng.usize(..3) {
                let values = random_values(&program, &mut rng);
                let named: Vec<(&str, &[f64])> = values
                    .iter()
                    .map(|(name, numbers)| (name.as_str(), numbers.as_slice()))
                    .collect();
                caller.set(&named).expect("values in their ranges");
                let position = ChangePosition::Iteration(call * block);
                changes.push(change(&program, position, &values));
            }
            call_one(&mut caller, &inputs, call as usize, &mut outputs);
        }
        let (expected, _) = interpret_with_changes(&program, &registry, &inputs, &changes);
        assert!(outputs == expected, "seed {seed}: the outputs differ");
        let (unchanged, _) = interpret_with_changes(&program, &registry, &inputs, &[]);
        called += 1;
        differing += usize::from(outputs != unchanged);

        let error = caller.set(&[("no such", &[1.0])]).expect_err("refused");
        assert!(matches!(error, SetError::Unknown { .. }), "{error}");
    }
    println!("{called} programs were called, {differing} with other outputs");
    assert!(called > 8 && differing > 4, "a weak sample");
}

/// The call with this number: its part of the inputs, and what it gives behind the outputs.
fn call_one(caller: &mut Caller, inputs: &Streams, call: usize, outputs: &mut Streams) {
    let tokens: Vec<&[u8]> = caller
        .inputs()
        .map(|(name, bytes)| &inputs[name][call * bytes..][..bytes])
        .collect();
    let sinks = caller.outputs();
    let sinks: Vec<(String, usize)> = sinks
        .map(|(name, bytes)| (name.to_owned(), bytes))
        .collect();
    let mut results: Vec<Vec<u8>> = sinks.iter().map(|(_, bytes)| vec![0; *bytes]).collect();
    let mut places: Vec<&mut [u8]> = results.iter_mut().map(Vec::as_mut_slice).collect();
    caller.call(&tokens, &mut places).expect("it runs");
    for ((name, _), result) in sinks.into_iter().zip(results) {
        outputs.entry(name).or_default().extend(result);
    }
}

/// Workers are processes that are killed between a change and its effect, and after it: what was computed again had the
/// values that it had before.
#[cfg(target_os = "linux")]
fn killed_workers_change_nothing_of_what_was_set() {
    const FAULTS: &str = "Inject(kinds: [kill], every: (\"10ms\", \"30ms\"), \
        wait_for_border_after: 3, seed: 5)";
    const PIECES: usize = 300;
    let (mut set, mut recovered, mut differing) = (0, 0, 0);
    for seed in 0..cases(12) {
        let program = program(seed, Shape::default());
        if live_parameters(&program.graph).is_empty() {
            continue;
        }
        let block = program.plans[PlanId(0)].block;
        let iterations = (2 * block).max(PIECES as u64);
        let inputs = random_inputs(&program, iterations, seed);
        let engine = Engine::new(program.clone(), &mix::registry()).expect("an engine");
        let recoveries = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&recoveries);
        let mut supervised = losses::supervised(&engine, losses::HARDY, Some(FAULTS));
        supervised.listener = Some(Arc::new(move |event: &Event| {
            if matches!(event.what, What::Lost { .. }) {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        }));
        let plan = Plan {
            options: RunOptions {
                supervised: Some(supervised),
                ..losses::options(Isolation::Processes { program: None })
            },
            pieces: PIECES,
            max_changes_before: 8,
            max_changes_meanwhile: 100,
            max_pause: Duration::from_millis(8),
        };
        let run = run_with_changes(seed, &engine, &inputs, plan);
        set += run.changes.len();
        recovered += recoveries.load(Ordering::Relaxed);
        differing += usize::from(check_run(seed, &program, &inputs, run));
    }
    println!("{set} changes, {recovered} losses, {differing} graphs with other outputs");
    assert!(
        set > 200 && recovered > 50 && differing > 6,
        "a weak sample"
    );
}

/// Changes at tokens that never come are kept, so there is a limit to them; and they change nothing.
fn changes_that_never_take_effect_are_limited() {
    let program = program(4, Shape::default());
    let inputs = random_inputs(&program, 300, 4);
    let engine = Engine::new(program.clone(), &mix::registry()).expect("an engine");
    let session = engine.start(losses::options(Isolation::Threads));
    let session = session.expect("a session");
    let handle = session.parameters();
    let parameter = &live_parameters(&program.graph)[0];
    let (source, _) = inputs.iter().next().expect("a source");
    let never = When::Token {
        source,
        index: 1 << 50,
    };

    let sinks = program.graph.sinks();
    let sinks = sinks.map(|(_, actor)| actor.name.clone()).collect();
    let mut refusal = None;
    let (outputs, _) = drive_with(session, &inputs, sinks, 300, || {
        for number in 0u32.. {
            let value = f64::from(number % 100);
            let numbers = vec![value; parameter.initial.len()];
            match handle.set(&[(&parameter.name, &numbers)], never) {
                Ok(_) => {}
                Err(SetError::Full) => std::thread::sleep(Duration::from_micros(100)),
                Err(error) => {
                    refusal = Some(error);
                    return;
                }
            }
        }
    });
    assert_eq!(refusal, Some(SetError::Pending { limit: 1024 }));
    let (expected, _) = interpret_with_changes(&program, &mix::registry(), &inputs, &[]);
    assert!(
        outputs == expected,
        "a change that is to come has taken effect"
    );
}

fn main() {
    #[cfg(target_os = "linux")]
    zbmd_executor::serve_if_worker(&mix::registry());
    let tests: &[Test] = &[
        (
            "random_changes_of_random_graphs_take_effect_where_the_interpreter_puts_them",
            random_changes_of_random_graphs_take_effect_where_the_interpreter_puts_them,
        ),
        (
            "calls_have_what_was_set_before_them",
            calls_have_what_was_set_before_them,
        ),
        (
            "changes_that_never_take_effect_are_limited",
            changes_that_never_take_effect_are_limited,
        ),
        #[cfg(target_os = "linux")]
        (
            "killed_workers_change_nothing_of_what_was_set",
            killed_workers_change_nothing_of_what_was_set,
        ),
    ];
    harness::run_apart(tests, || true);
}
