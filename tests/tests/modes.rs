//! Runs that change their mode while tokens flow: every sink has the tokens that the interpreter gives, which runs the modes
//! one after the other for the iterations that the run says it was in each, and knows no calendar. So it is where workers are
//! killed meanwhile.
//!
//! No test harness: this program is its own worker process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use zbmd_compiler::{CompileOptions, Losses, MachineChoice, compile_str};
use zbmd_executor::supervise::{Event, What};
use zbmd_executor::{
    Engine, EngineError, Isolation, ModeEntry, ModeError, ModeHandle, Outcome, RunOptions,
    ScheduledMode, SetError, SwapError, When,
};
use zbmd_ir::trace::Trace;
use zbmd_ir::verify::{Verified, VerifiedModes, verify_modes};
use zbmd_ir::{Graph, Mode, Modes, PresentMode, Program, State, carried_channels};
use zbmd_tests::harness::{self, Test};
use zbmd_tests::losses;
use zbmd_tests::mix;
use zbmd_tests::modes::{
    Carry, Leg, Tokens, carry_by_name, interpreted, interpreted_deciding, interpreted_legs, legs,
    random_modes as modes,
};
use zbmd_tests::run::{Streams, drive_with, random_inputs};
use zbmd_tests::sample::cases;

/// Input for about so many blocks of the mode that takes most.
fn inputs(modes: &VerifiedModes, blocks: u64, seed: u64) -> Streams {
    let mut all = Streams::new();
    for program in modes.programs() {
        let iterations = program.plans.iter().map(|plan| plan.block).max();
        let streams = random_inputs(program, blocks * iterations.unwrap_or(1), seed);
        for (name, bytes) in streams {
            let known = all.entry(name).or_default();
            if bytes.len() > known.len() {
                *known = bytes;
            }
        }
    }
    all
}

/// Goes over to random modes until the run ends; where it was in each.
fn change_at_random(
    seed: u64,
    handle: &ModeHandle,
    max_changes: usize,
    max_pause: Duration,
) -> Vec<ModeEntry> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0xc4a);
    let mut entries = vec![ModeEntry {
        mode: handle.names()[0].clone(),
        iteration: 0,
    }];
    for _ in 0..max_changes {
        let name = handle.names()[rng.usize(..handle.names().len())].clone();
        let present = handle.present();
        match handle.change(&name) {
            Ok(change) => match change.wait() {
                Ok(entry) if name == present.mode => assert_eq!(entry, present),
                Ok(entry) => {
                    assert_eq!((&entry.mode, &entry), (&name, &handle.present()));
                    entries.push(entry);
                }
                Err(ModeError::Ended) => break,
                // Lost, and the present mode does without it.
                Err(ModeError::NoPlan { .. }) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            },
            Err(ModeError::NoPlan { .. }) => {}
            Err(ModeError::NotAllowed { from, to }) => {
                assert_eq!((from, to), (present.mode, name));
            }
            Err(ModeError::Ended) => break,
            Err(error) => panic!("seed {seed}: {error}"),
        }
        std::thread::sleep(max_pause.mul_f64(rng.f64()));
    }
    entries
}

/// What a run with changes of mode gave.
struct Run {
    outputs: Streams,
    outcome: Outcome,
    entries: Vec<ModeEntry>,
}

/// Runs the seed's modes with random changes.
fn run_with_changes(
    seed: u64,
    modes: &VerifiedModes,
    options: RunOptions,
    (inputs, pieces): (&Streams, usize),
    (max_changes, max_pause): (usize, Duration),
) -> Run {
    let engine = Engine::with_modes(modes.clone(), &mix::registry()).expect("an engine");
    let graph = &engine.program().graph;
    let sinks = graph.sinks().map(|(_, actor)| actor.name.clone()).collect();
    let session = engine.start(options).expect("a session");
    let handle = session.modes();
    let mut entries = Vec::new();
    let (outputs, outcome) = drive_with(session, inputs, sinks, pieces, || {
        entries = change_at_random(seed, &handle, max_changes, max_pause);
    });
    Run {
        outputs,
        outcome,
        entries,
    }
}

/// Runs the seed's modes with random changes, and holds them to the interpreter; how many changes there were.
fn check(
    seed: u64,
    modes: &VerifiedModes,
    options: RunOptions,
    (inputs, pieces): (&Streams, usize),
    (max_changes, max_pause): (usize, Duration),
) -> usize {
    let run = run_with_changes(
        seed,
        modes,
        options,
        (inputs, pieces),
        (max_changes, max_pause),
    );
    let Run {
        outputs,
        outcome,
        entries,
    } = run;
    let (expected, last) = interpreted(modes, &mix::registry(), inputs, &entries);
    for (name, bytes) in &outputs {
        let wanted = &expected[name];
        assert_eq!(
            bytes.len(),
            wanted.len(),
            "seed {seed}: `{name}`, {entries:?}"
        );
        assert!(
            bytes == wanted,
            "seed {seed}: `{name}` differs, {entries:?}"
        );
    }
    assert_eq!(outcome.state, last, "seed {seed}: the final states differ");
    assert_eq!(outcome.report.iterations, last.iterations);
    entries.len() - 1
}

/// How many channels some change carries over, and how many it does not.
fn carried(modes: &VerifiedModes) -> (usize, usize) {
    let graphs = |mode: u32| &modes.programs()[mode as usize].graph;
    let mut counts = (0, 0);
    for &(from, to) in modes.changes() {
        let carried = carried_channels(graphs(from), graphs(to));
        for (id, channel) in graphs(to).channels.iter_enumerated() {
            match (channel.history() > 0, carried[id]) {
                (true, Some(_)) => counts.0 += 1,
                (true, None) => counts.1 += 1,
                (false, _) => {}
            }
        }
    }
    counts
}

fn random_changes_between_random_modes_are_those_of_the_interpreter() {
    let (mut changes, mut kept, mut dropped) = (0, 0, 0);
    for seed in 0..cases(40) {
        let modes = modes(seed);
        let inputs = inputs(&modes, 30, seed);
        let mut options = losses::options(Isolation::Threads);
        if seed % 2 == 0 {
            let engine = Engine::with_modes(modes.clone(), &mix::registry()).expect("an engine");
            options.supervised = Some(losses::supervised(&engine, "Supervision()", None));
        }
        let pause = Duration::from_millis(2);
        changes += check(seed, &modes, options, (&inputs, 20), (40, pause));
        let counts = carried(&modes);
        kept += counts.0;
        dropped += counts.1;
    }
    println!("{changes} changes; {kept} states carried over, {dropped} not");
    assert!(changes > 166 && kept > 33 && dropped > 33, "a weak sample");
}

/// A walk of the seed's modes that is known ahead: up to so many changes, some of them at one iteration, few at a border of
/// blocks.
fn random_schedule(seed: u64, modes: &VerifiedModes, max_changes: usize) -> Vec<ScheduledMode> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x5c4ed);
    let (mut mode, mut iteration) = (0, 0);
    let mut schedule = Vec::new();
    for _ in 0..rng.usize(1..=max_changes) {
        let allowed = modes.changes().iter().filter(|(from, _)| *from == mode);
        let next: Vec<u32> = allowed.map(|(_, to)| *to).collect();
        let Some(to) = rng.choice(next) else { break };
        iteration += rng.u64(0..=9);
        mode = to;
        schedule.push(ScheduledMode {
            iteration,
            mode,
            changes: Vec::new(),
        });
    }
    schedule
}

/// Where a run with such a schedule was in each mode.
fn entries_of(modes: &VerifiedModes, schedule: &[ScheduledMode]) -> Vec<ModeEntry> {
    let entry = |mode: u32, iteration| ModeEntry {
        mode: modes.names()[mode as usize].clone(),
        iteration,
    };
    let changes = schedule.iter().map(|next| entry(next.mode, next.iteration));
    std::iter::once(entry(0, 0)).chain(changes).collect()
}

/// A run makes the changes that are known ahead at their iterations, whatever its blocks; so do two, of which the second goes
/// on where the first one ended.
fn modes_that_are_known_ahead_come_at_their_iterations() {
    let (mut changes, mut splits_in_modes) = (0, 0);
    for seed in 300..300 + cases(30) {
        let modes = modes(seed);
        let inputs = inputs(&modes, 80, seed);
        let registry = mix::registry();
        let engine = Engine::with_modes(modes.clone(), &registry).expect("an engine");
        let sinks = || -> Vec<String> {
            let sinks = engine.program().graph.sinks();
            sinks.map(|(_, actor)| actor.name.clone()).collect()
        };
        let mut options = losses::options(Isolation::Threads);
        if seed % 2 == 0 {
            options.supervised = Some(losses::supervised(&engine, "Supervision()", None));
        }
        let schedule = random_schedule(seed, &modes, 8);
        let (expected, last) =
            interpreted(&modes, &registry, &inputs, &entries_of(&modes, &schedule));
        changes += schedule.len();
        options.scheduled_modes = schedule.clone();
        let session = engine.start(options.clone()).expect("a session");
        let (outputs, outcome) = drive_with(session, &inputs, sinks(), 1, || ());
        assert!(outputs == expected, "seed {seed}: {schedule:?}");
        assert_eq!(outcome.state, last, "seed {seed}");

        let split = fastrand::Rng::with_seed(seed)
            .u64(..40)
            .min(last.iterations);
        let (before, after): (Vec<ScheduledMode>, Vec<ScheduledMode>) = schedule
            .into_iter()
            .partition(|next| next.iteration < split);
        splits_in_modes += usize::from(!before.is_empty());
        options.iterations = Some(split);
        options.scheduled_modes = before;
        let session = engine.start(options.clone()).expect("a session");
        let (first_outputs, first) = drive_with(session, &inputs, sinks(), 1, || ());
        assert_eq!(first.state.iterations, split, "seed {seed}");

        let graph = &modes.programs()[first.present_mode.mode as usize].graph;
        let rest = graph.sources().zip(&first.state.consumed);
        let rest = rest.map(|((_, actor), (_, tokens))| {
            let taken = (tokens * actor.outputs[0].token.bytes()) as usize;
            (actor.name.clone(), inputs[&actor.name][taken..].to_vec())
        });
        let rest: Streams = rest.collect();
        options.iterations = None;
        options.state = Some(first.state);
        options.present_mode = first.present_mode;
        options.scheduled_modes = after;
        let session = engine.start(options).expect("a session");
        let (outputs, outcome) = drive_with(session, &rest, sinks(), 1, || ());
        for (name, bytes) in &expected {
            let both = [&first_outputs[name][..], &outputs[name][..]].concat();
            assert!(both == *bytes, "seed {seed}: `{name}` from {split} on");
        }
        assert_eq!(outcome.state, last, "seed {seed}, from {split} on");
    }
    println!("{changes} changes, {splits_in_modes} runs went on after some");
    assert!(changes > 75 && splits_in_modes > 11, "a weak sample");
}

/// Three modes of which the input's tokens choose one, every so many iterations, by a number that stands for none now and then;
/// one of them takes two tokens an iteration, and one does not decide. What is remembered goes from each to each.
fn deciding(every: u64) -> String {
    let automaton = format!(
        r#"initial_mode: "pairs",
    changes: [("plain", "pairs"), ("pairs", "plain"), ("pairs", "squared"), ("squared", "plain")],
    mode_from: (from: "pick", every: {every})"#
    );
    let pick = "x < 0.3 ? 0 : x < 0.5 ? 1 : x < 0.7 ? 2 : 3";
    zbmd_tests::modes::DECIDING
        .replace("x < 0.4 ? 0 : x < 0.7 ? 1 : 2", pick)
        .replace(r#"mode_from: (from: "pick", every: 48)"#, &automaton)
}

/// The modes that tokens ask for are entered at the iterations of the interpreter, whatever the devices and blocks.
fn check_decisions(seed: u64, options: &dyn Fn(&Engine) -> RunOptions, tokens: usize) -> usize {
    let mut rng = fastrand::Rng::with_seed(seed);
    let every = [7, 48, 96, 250][rng.usize(..4)];
    let text = deciding(every);
    let devices = 1 + (seed % 3) as usize;
    let modes = compiled(&text, devices, Losses::Single);
    let input: Vec<u8> = (0..tokens).flat_map(|_| rng.f32().to_ne_bytes()).collect();
    let inputs = Streams::from([("in".to_owned(), input)]);
    let registry = mix::registry();
    let (expected, last, entries) = interpreted_deciding(&modes, &registry, &inputs);

    let engine = Engine::with_modes(modes, &registry).expect("an engine");
    let session = engine.start(options(&engine)).expect("a session");
    let starts = session.modes().follow();
    let sinks = vec!["out".to_owned(), "mode".to_owned()];
    let (outputs, outcome) = drive_with(session, &inputs, sinks, 40, || ());
    for (name, bytes) in &outputs {
        let wanted = &expected[name];
        let same = bytes.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        assert!(
            bytes == wanted,
            "seed {seed}: `{name}` differs from byte {same} of {} on, has {}; {entries:?}",
            wanted.len(),
            bytes.len()
        );
    }
    assert_eq!(outcome.state, last, "seed {seed}: {entries:?}");
    let found: Vec<ModeEntry> = starts
        .try_iter()
        .map(|start| ModeEntry {
            mode: engine.mode_names()[start.mode].clone(),
            iteration: start.iteration,
        })
        .collect();
    assert_eq!(found, entries, "seed {seed}");
    entries.len() - 1
}

fn tokens_decide_as_the_interpreter_says() {
    let mut changes = 0;
    for seed in 0..12 {
        let options = |engine: &Engine| {
            let mut options = losses::options(Isolation::Threads);
            if seed % 2 == 0 {
                options.supervised = Some(losses::supervised(engine, "Supervision()", None));
            }
            options
        };
        changes += check_decisions(seed, &options, 4000);
    }
    println!("{changes} changes");
    assert!(changes > 100, "a weak sample");
}

/// A state at a border at which tokens decide may be one of before the decision or of after it. A run that goes on from
/// either decides there once: what lies on the channel after a decision belongs to the next one.
fn a_border_is_decided_about_once() {
    const EVERY: u64 = 48;
    let modes = compiled(&deciding(48), 1, Losses::None);
    let registry = mix::registry();
    let sinks = || vec!["out".to_owned(), "mode".to_owned()];
    // It knows no modes, so it decides nothing.
    let first_mode = Verified::clone(&modes.programs()[0]);
    let undecided = Engine::new(first_mode, &registry).expect("an engine");
    let deciding = Engine::with_modes(modes.clone(), &registry).expect("an engine");

    let mut changes_at_border = 0;
    for seed in 0..8 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let input: Vec<u8> = (0..2000).flat_map(|_| rng.f32().to_ne_bytes()).collect();
        let inputs = Streams::from([("in".to_owned(), input)]);
        let (expected, _, entries) = interpreted_deciding(&modes, &registry, &inputs);
        let is_change = entries.get(1).is_some_and(|entry| entry.iteration == EVERY);
        changes_at_border += usize::from(is_change);

        for (engine, is_decided) in [(&undecided, false), (&deciding, true)] {
            let options = RunOptions {
                iterations: Some(EVERY),
                ..losses::options(Isolation::Threads)
            };
            let session = engine.start(options).expect("a session");
            let (begin, left) = drive_with(session, &inputs, sinks(), 1, || ());
            let present_mode = PresentMode {
                is_decided,
                ..left.present_mode.clone()
            };
            assert!(!is_decided || left.present_mode.is_decided, "seed {seed}");

            let taken = left.state.consumed[0].1 as usize * size_of::<f32>();
            let rest = Streams::from([("in".to_owned(), inputs["in"][taken..].to_vec())]);
            let options = RunOptions {
                state: Some(left.state),
                present_mode,
                ..losses::options(Isolation::Threads)
            };
            let session = deciding.start(options).expect("a session");
            let (end, _) = drive_with(session, &rest, sinks(), 1, || ());
            for (name, bytes) in &expected {
                let both = [&begin[name][..], &end[name][..]].concat();
                assert!(
                    both == *bytes,
                    "seed {seed}: `{name}`, {is_decided}, {entries:?}"
                );
            }
        }
    }
    assert!(changes_at_border > 2, "a weak sample");
}

/// So they do where workers are killed meanwhile, before and after each decision.
#[cfg(target_os = "linux")]
fn kills_decide_nothing() {
    const FAULTS: &str = "Inject(kinds: [kill], every: (\"10ms\", \"30ms\"), \
        wait_for_border_after: 3, seed: 9)";
    let lost = Arc::new(AtomicUsize::new(0));
    let mut changes = 0;
    for seed in 100..104 {
        let options = |engine: &Engine| {
            let counted = Arc::clone(&lost);
            let mut supervised = losses::supervised(engine, losses::HARDY, Some(FAULTS));
            supervised.listener = Some(Arc::new(move |event: &Event| {
                if matches!(event.what, What::Lost { .. }) {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            }));
            RunOptions {
                supervised: Some(supervised),
                ..losses::options(Isolation::Processes { program: None })
            }
        };
        changes += check_decisions(seed, &options, 30_000);
    }
    let losses_seen = lost.load(Ordering::Relaxed);
    println!("{changes} changes, {losses_seen} losses");
    assert!(changes > 100 && losses_seen > 20, "a weak sample");
}

/// A run of which something is done wrong; `None` where there is nothing to get wrong.
type SeededBug = for<'a> fn(&[Leg<'a>]) -> Option<(Vec<Leg<'a>>, Carry)>;

fn declared_tokens(graph: &Graph) -> Tokens {
    State::initial(graph).channels
}

fn state_is_lost<'a>(legs: &[Leg<'a>]) -> Option<(Vec<Leg<'a>>, Carry)> {
    Some((legs.to_vec(), |_, _, to| declared_tokens(to)))
}

fn state_goes_over_by_place<'a>(legs: &[Leg<'a>]) -> Option<(Vec<Leg<'a>>, Carry)> {
    Some((legs.to_vec(), |_, tokens, to| {
        let declared = declared_tokens(to).into_iter().zip(tokens);
        let carried = declared.map(|(declared, left)| match declared.len() == left.len() {
            true => left.clone(),
            false => declared,
        });
        carried.collect()
    }))
}

fn state_goes_over_a_token_off<'a>(legs: &[Leg<'a>]) -> Option<(Vec<Leg<'a>>, Carry)> {
    Some((legs.to_vec(), |from, tokens, to| {
        let mut carried = carry_by_name(from, tokens, to);
        for (tokens, channel) in carried.iter_mut().zip(&to.channels) {
            if channel.history() > 1 {
                tokens.rotate_left(channel.token.bytes() as usize);
            }
        }
        carried
    }))
}

/// The first leg after a change that lasts so long, and is not the last: that one's length is known.
fn leg_of_iterations(legs: &[Leg<'_>], iterations: u64) -> Option<usize> {
    let lasts = |index: &usize| legs[index + 1].first - legs[*index].first >= iterations;
    (1..legs.len().saturating_sub(1)).find(lasts)
}

fn change_is_an_iteration_late<'a>(legs: &[Leg<'a>]) -> Option<(Vec<Leg<'a>>, Carry)> {
    let mut late = legs.to_vec();
    late[leg_of_iterations(legs, 1)?].first += 1;
    Some((late, carry_by_name))
}

fn change_is_late_on_one_worker_of_two<'a>(legs: &[Leg<'a>]) -> Option<(Vec<Leg<'a>>, Carry)> {
    // For an iteration the first half of the actors do what they did in the mode before.
    let index = leg_of_iterations(legs, 2)?;
    let old = &legs[index - 1].graph;
    let mut mixed = legs[index].clone();
    let graph = mixed.graph.to_mut();
    let half = graph.actors.len() / 2;
    let actors = graph.actors.iter_mut().zip(&old.actors).take(half);
    for (actor, before) in actors.filter(|(actor, before)| actor.name == before.name) {
        let salt = before.params.get("salt").cloned();
        actor.params.retain(|name, _| name != "salt");
        actor
            .params
            .extend(salt.map(|salt| ("salt".to_owned(), salt)));
    }

    let mut late = legs.to_vec();
    late.insert(index, mixed);
    late[index + 1].first += 1;
    Some((late, carry_by_name))
}

/// What runs give differs from what the interpreter gives with each bug, and not without: bugs like these in the executor
/// would be seen.
fn seeded_bugs_are_caught() {
    let bugs: [(&str, SeededBug); 5] = [
        ("state is lost", state_is_lost),
        (
            "state goes over by place, not by name",
            state_goes_over_by_place,
        ),
        ("state goes over a token off", state_goes_over_a_token_off),
        ("a change is an iteration late", change_is_an_iteration_late),
        (
            "a change is an iteration late on one worker of two",
            change_is_late_on_one_worker_of_two,
        ),
    ];
    let mut counts = [(0, 0); 5];
    let registry = mix::registry();
    for seed in 200..230u64 {
        let modes = modes(seed);
        let inputs = inputs(&modes, 30, seed);
        let options = losses::options(Isolation::Threads);
        let changes = (20, Duration::from_millis(2));
        let run = run_with_changes(seed, &modes, options, (&inputs, 20), changes);
        let legs = legs(&modes, &run.entries);
        let is_as_run = |legs: &[Leg<'_>], carry| {
            let (outputs, last) = interpreted_legs(legs, &registry, &inputs, carry);
            outputs == run.outputs && last == run.outcome.state
        };
        assert!(is_as_run(&legs, carry_by_name), "seed {seed}");
        for ((_, bug), (tried, caught)) in bugs.iter().zip(&mut counts) {
            if let Some((legs, carry)) = bug(&legs) {
                *tried += 1;
                *caught += usize::from(!is_as_run(&legs, carry));
            }
        }
    }
    for ((what, _), (tried, caught)) in bugs.iter().zip(counts) {
        println!("{what}: {caught} of {tried} runs differ");
        assert!(caught > 5, "{what}: seen in {caught} of {tried} runs");
    }
}

/// Workers are processes that are killed before, while and after the mode changes.
#[cfg(target_os = "linux")]
fn killed_workers_change_nothing_of_it() {
    const FAULTS: &str = "Inject(kinds: [kill], every: (\"10ms\", \"30ms\"), \
        wait_for_border_after: 3, seed: 5)";
    let (mut changes, mut losses_seen) = (0, 0);
    for seed in 0..cases(8) {
        let modes = modes(seed);
        let inputs = inputs(&modes, 600, seed);
        let engine = Engine::with_modes(modes.clone(), &mix::registry()).expect("an engine");
        let lost = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&lost);
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
        let pause = Duration::from_millis(8);
        changes += check(seed, &modes, options, (&inputs, 300), (200, pause));
        losses_seen += lost.load(Ordering::Relaxed);
    }
    println!("{changes} changes, {losses_seen} losses");
    assert!(changes > 50 && losses_seen > 25, "a weak sample");
}

/// A trace has the epochs of all modes, and each mode's program finds its own in it; calls are counted by actor over all.
fn runs_with_changes_are_traced_and_profiled() {
    let modes = compiled(&deciding(48), 2, Losses::None);
    let registry = mix::registry();
    let mut rng = fastrand::Rng::with_seed(5);
    let input: Vec<u8> = (0..4000).flat_map(|_| rng.f32().to_ne_bytes()).collect();
    let inputs = Streams::from([("in".to_owned(), input)]);
    let (expected, _, entries) = interpreted_deciding(&modes, &registry, &inputs);

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.trace");
    let engine = Engine::with_modes(modes.clone(), &registry).expect("an engine");
    let options = RunOptions {
        trace: Some(path.clone()),
        profile: true,
        ..losses::options(Isolation::Threads)
    };
    let sinks = vec!["out".to_owned(), "mode".to_owned()];
    let session = engine.start(options).expect("a session");
    let (outputs, outcome) = drive_with(session, &inputs, sinks, 40, || ());
    assert!(outputs == expected, "{entries:?}");

    let bytes = std::fs::read(&path).expect("written");
    let mut own_epochs = 0;
    for (name, program) in modes.names().iter().zip(modes.programs()) {
        let (trace, of_others) = Trace::of_program(&bytes, program).expect("a trace of it");
        assert!(trace.is_complete);
        assert_eq!(
            (trace.epochs.len() + of_others) as u64,
            outcome.report.epochs
        );
        let times_entered = entries.iter().filter(|entry| entry.mode == *name).count();
        assert!(
            times_entered > 0 && trace.epochs.len() >= times_entered,
            "{name}"
        );
        own_epochs += trace.epochs.len() as u64;
    }
    assert_eq!(own_epochs, outcome.report.epochs);

    let calls = |actor: &str| {
        let mut profile = outcome.report.profile.iter();
        let found = profile.find(|profile| profile.actor == actor);
        found.unwrap_or_else(|| panic!("no {actor}")).calls
    };
    // In `pairs` alone and in `squared` alone, and in all.
    assert!(calls("half") > 0 && calls("square") > 0);
    assert!(calls("memory") > calls("half") + calls("square"));
}

/// What cannot be done is said, and the run goes on.
fn impossible_changes_are_refused() {
    let all = modes(0);
    let list = all.names().iter().zip(all.programs());
    let list = list.map(|(name, program)| Mode {
        name: name.clone(),
        program: Program::clone(program),
    });
    let one_way = Modes {
        list: list.collect(),
        changes: vec![(0, 1)],
        decision: None,
    };
    let verified = verify_modes(one_way).expect("valid");
    let registry = mix::registry();
    let engine = Engine::with_modes(verified.clone(), &registry).expect("an engine");
    assert_eq!(engine.mode_names(), all.names());

    let mut options = losses::options(Isolation::Threads);
    options.supervised = Some(losses::supervised(&engine, "Supervision()", None));
    let session = engine.start(options.clone()).expect("a session");
    assert_eq!(session.swap(&engine), Err(SwapError::Modes));
    let handle = session.modes();
    let unknown = handle.change("elsewhere").expect_err("no such mode");
    assert!(unknown.to_string().contains("it has m0, m1"), "{unknown}");
    let same = handle.change("m0").expect("the present one");
    assert_eq!(same.wait().expect("at once").iteration, 0);
    // Nothing was fed: it goes over at the first border of all.
    let entry = handle.change("m1").expect("allowed").wait().expect("done");
    assert_eq!((entry.mode.as_str(), entry.iteration), ("m1", 0));
    let back = handle.change("m0").expect_err("one way only");
    assert!(matches!(back, ModeError::NotAllowed { .. }), "{back}");
    session.stopper().stop();
    let ended = handle.change("m1");
    assert!(matches!(ended, Err(ModeError::Ended)), "{ended:?}");
    session.join().expect("it ends well");
    assert!(matches!(handle.change("m1"), Err(ModeError::Ended)));

    options.state = Some(State::initial(&engine.program().graph));
    let mut nowhere = options.clone();
    nowhere.present_mode.mode = 9;
    let refused = engine.start(nowhere).expect_err("no such mode");
    assert!(matches!(refused, EngineError::NoMode { .. }), "{refused}");
    for (mode, iteration) in [(9, 5), (0, 5)] {
        options.scheduled_modes = vec![ScheduledMode {
            iteration,
            mode,
            changes: Vec::new(),
        }];
        let refused = engine.start(options.clone()).expect_err("impossible");
        let is_refused = matches!(refused, EngineError::ScheduledMode { index: 0, .. });
        assert!(is_refused, "{refused}");
    }
}

fn compiled(text: &str, devices: usize, contingencies: Losses) -> VerifiedModes {
    let options = CompileOptions {
        machine: MachineChoice::Uniform(devices),
        block: Some(48),
        contingencies,
        registry: mix::registry(),
        ..CompileOptions::default()
    };
    let compiled = compile_str("model.ron", text, "", &options);
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    compiled.modes.expect("it has modes").verified
}

/// What is set in one mode holds in all others that have the parameter, also after modes that do not.
fn live_parameters_keep_their_values() {
    const TOKENS: usize = 480;
    let modes = compiled(
        r#"Model(
    params: { "gain": Live(1.0, min: 0.0, max: 9.0), "offset": Live(0.0, min: 0.0, max: 9.0) },
    sources: { "in": Stream(dtype: f32) },
    modes: {
        "plain": Mode(
            actors: { "gain": Gain($gain) },
            channels: [(from: "in", to: ["gain"]), (from: "gain", to: ["out"])],
        ),
        "shifted": Mode(
            actors: { "sum": Expr("g * x + o", inputs: { "x": f32 }, params: { "g": $gain, "o": $offset }) },
            channels: [(from: "in", to: ["sum"]), (from: "sum", to: ["out"])],
        ),
        "bare": Mode(channels: [(from: "in", to: ["out"])]),
    },
    initial_mode: "plain",
    sinks: { "out": Stream() },
)"#,
        1,
        Losses::None,
    );
    let engine = Engine::with_modes(modes, &mix::registry()).expect("an engine");
    let mut session = engine
        .start(losses::options(Isolation::Threads))
        .expect("a session");
    let mut source = session.source("in").expect("a source");
    let mut sink = session.sink("out").expect("a sink");
    let (parameters, handle) = (session.parameters(), session.modes());
    let enter = |name: &str| handle.change(name).expect("allowed").wait().expect("done");
    let mut part = vec![0f32; TOKENS];
    let mut pass = |expected: &dyn Fn(usize) -> f32, what: &str| {
        source.push(&[1f32; TOKENS]).expect("taken");
        let pulled = sink.pull(&mut part).expect("tokens");
        assert_eq!(pulled, TOKENS as u64, "{what}");
        for (index, value) in part.iter().enumerate() {
            assert_eq!(*value, expected(index), "{what}, token {index}");
        }
    };
    let set = |name: &str, value: f64| {
        let set = parameters.set(&[(name, &[value])], When::NextBlock);
        set.expect("it is set");
    };

    set("gain", 2.0);
    pass(&|_| 2.0, "set before the first token");
    // Named in one mode, and come to in the next: the 100th of the tokens that follow.
    let index = TOKENS as u64 + 100;
    let at = When::Token {
        source: "in",
        index,
    };
    parameters.set(&[("gain", &[3.0])], at).expect("ahead");
    enter("shifted");
    set("offset", 5.0);
    pass(
        &|index| if index < 100 { 7.0 } else { 8.0 },
        "a change ahead",
    );
    enter("bare");
    assert!(parameters.values().is_empty());
    let unknown = parameters.set(&[("gain", &[4.0])], When::NextBlock);
    assert!(matches!(unknown, Err(SetError::Unknown { .. })));
    pass(&|_| 1.0, "without parameters");
    enter("plain");
    pass(&|_| 3.0, "gain is as it was left");
    set("gain", 1.0);
    enter("shifted");
    let numbers: Vec<Vec<f64>> = parameters.values().into_iter().map(|v| v.numbers).collect();
    assert_eq!(numbers, [[1.0], [5.0]]);
    pass(&|_| 6.0, "both are");
    drop((source, sink));
    session.join().expect("it ends well");
}

/// A parameter that has another name in a mode is another one: its value stays behind, which the outputs show.
fn a_value_that_stays_behind_is_seen() {
    const TOKENS: usize = 48;
    let text = r#"Model(
    params: { "gain": Live(1.0, min: 0.0, max: 9.0), "other": Live(1.0, min: 0.0, max: 9.0) },
    sources: { "in": Stream(dtype: f32) },
    modes: {
        "plain": Mode(
            actors: { "gain": Gain($gain) },
            channels: [(from: "in", to: ["gain"]), (from: "gain", to: ["out"])],
        ),
        "shifted": Mode(
            actors: { "sum": Expr("g * x + 1", inputs: { "x": f32 }, params: { "g": $gain }) },
            channels: [(from: "in", to: ["sum"]), (from: "sum", to: ["out"])],
        ),
    },
    sinks: { "out": Stream() },
)"#;
    let damaged = text.replace(r#""g": $gain"#, r#""g": $other"#);
    for (text, expected) in [(text, 3.0), (damaged.as_str(), 2.0)] {
        let modes = compiled(text, 1, Losses::None);
        let engine = Engine::with_modes(modes, &mix::registry()).expect("an engine");
        let options = losses::options(Isolation::Threads);
        let mut session = engine.start(options).expect("a session");
        let mut source = session.source("in").expect("a source");
        let mut sink = session.sink("out").expect("a sink");
        let set = session
            .parameters()
            .set(&[("gain", &[2.0])], When::NextBlock);
        set.expect("it is set");
        let change = session.modes().change("shifted").expect("allowed");
        change.wait().expect("done");

        let mut part = [0f32; TOKENS];
        source.push(&[1f32; TOKENS]).expect("taken");
        sink.pull(&mut part).expect("tokens");
        assert_eq!(part, [expected; TOKENS]);
        drop((source, sink));
        session.join().expect("it ends well");
    }
}

/// Sets a parameter over and over while another thread changes the mode: its value never goes to another parameter.
fn parameters_set_while_modes_change_keep_their_names() {
    const CHANGES: usize = 200;
    const SETS: u32 = 200;
    let modes = compiled(
        r#"Model(
    params: { "gain": Live(1.0, min: 0.0, max: 1e6), "offset": Live(0.0, min: 0.0, max: 1e6) },
    sources: { "in": Stream(dtype: f32) },
    modes: {
        "both": Mode(
            actors: { "sum": Expr("g * x + o", inputs: { "x": f32 }, params: { "g": $gain, "o": $offset }) },
            channels: [(from: "in", to: ["sum"]), (from: "sum", to: ["out"])],
        ),
        "one": Mode(
            actors: { "sum": Expr("x + o", inputs: { "x": f32 }, params: { "o": $offset }) },
            channels: [(from: "in", to: ["sum"]), (from: "sum", to: ["out"])],
        ),
    },
    sinks: { "out": Stream() },
)"#,
        1,
        Losses::None,
    );
    let engine = Engine::with_modes(modes, &mix::registry()).expect("an engine");
    let options = losses::options(Isolation::Threads);
    let mut session = engine.start(options).expect("a session");
    let mut source = session.source("in").expect("a source");
    let mut sink = session.sink("out").expect("a sink");
    let (parameters, handle, stopper) = (session.parameters(), session.modes(), session.stopper());
    let is_over = AtomicBool::new(false);
    let last = AtomicU32::new(0);
    let values = std::thread::scope(|scope| {
        scope.spawn(move || while source.push(&[1f32; 48]).is_ok() {});
        let reader = scope.spawn(move || {
            let mut part = [0f32; 48];
            let mut values = Vec::new();
            while let Ok(pulled @ 1..) = sink.pull(&mut part) {
                values.extend_from_slice(&part[..pulled as usize]);
            }
            values
        });
        let setter = scope.spawn(|| {
            for offset in 1.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let value = [f64::from(offset)];
                match parameters.set(&[("offset", &value)], When::NextBlock) {
                    Ok(_) => last.store(offset, Ordering::Relaxed),
                    Err(SetError::Full | SetError::Pending { .. }) => std::thread::yield_now(),
                    Err(error) => panic!("{error}"),
                }
            }
        });
        // Where the setter has little of a core, there are more changes.
        for change in 0.. {
            if change >= CHANGES && last.load(Ordering::Relaxed) > SETS {
                break;
            }
            let name = ["one", "both"][change % 2];
            handle.change(name).expect("allowed").wait().expect("done");
        }
        is_over.store(true, Ordering::Relaxed);
        setter.join().expect("no panic");
        stopper.stop();
        reader.join().expect("no panic")
    });
    session.join().expect("it ends well");
    let last = last.into_inner();
    println!("{last} sets, {} tokens", values.len());
    let most = last as f32 + 1.0;
    assert!(values.iter().all(|value| (1.0..=most).contains(value)));
    assert!(values.is_sorted(), "values are set in order");
}

/// Of two changes the one at the later token holds, also where an iteration takes more tokens than before.
fn changes_keep_their_order_in_a_mode_of_other_rates() {
    const TOKENS: usize = 480;
    let modes = compiled(
        r#"Model(
    params: { "gain": Live(1.0, min: 0.0, max: 9.0) },
    sources: { "in": Stream(dtype: f32) },
    actors: { "gain": Gain($gain) },
    channels: [(from: "in", to: ["gain"])],
    modes: {
        "all": Mode(channels: [(from: "gain", to: ["out"])]),
        "half": Mode(
            actors: { "half": Fir([1.0], decimate: 2) },
            channels: [(from: "gain", to: ["half"]), (from: "half", to: ["out"])],
        ),
    },
    sinks: { "out": Stream() },
)"#,
        1,
        Losses::None,
    );
    let engine = Engine::with_modes(modes, &mix::registry()).expect("an engine");
    let options = losses::options(Isolation::Threads);
    let mut session = engine.start(options).expect("a session");
    let mut source = session.source("in").expect("a source");
    let mut sink = session.sink("out").expect("a sink");
    let (parameters, handle) = (session.parameters(), session.modes());
    let mut part = vec![0f32; TOKENS];
    source.push(&vec![1f32; TOKENS]).expect("taken");
    sink.pull(&mut part).expect("tokens");
    handle
        .change("half")
        .expect("allowed")
        .wait()
        .expect("done");

    let at = When::Token {
        source: "in",
        index: TOKENS as u64 + 100,
    };
    parameters.set(&[("gain", &[3.0])], at).expect("ahead");
    let set = parameters.set(&[("gain", &[2.0])], When::NextBlock);
    set.expect("it is set");
    source.push(&vec![1f32; TOKENS]).expect("taken");
    let pulled = sink.pull(&mut part[..TOKENS / 2]).expect("tokens");
    assert_eq!(pulled, TOKENS as u64 / 2);
    for (index, value) in part[..TOKENS / 2].iter().enumerate() {
        let expected = if index < 50 { 2.0 } else { 3.0 };
        assert_eq!(*value, expected, "token {index}");
    }
    drop((source, sink));
    session.join().expect("it ends well");
}

/// Each mode has plans for each loss: a worker that is lost is not waited for, and what it did comes again in its mode.
#[cfg(target_os = "linux")]
fn modes_have_plans_for_losses() {
    const FAULTS: &str = "Inject(kinds: [kill], every: (\"15ms\", \"40ms\"), \
        wait_for_border_after: 3, seed: 6)";
    let modes = compiled(
        r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "low": Fir([0.25, 0.5, 0.25]) },
    channels: [(from: "in", to: ["low"])],
    modes: {
        "slow": Mode(
            actors: {
                "half": Fir([0.5, 0.25, 0.125], decimate: 2),
                "sum": Expr("0.5 * x + s", inputs: { "x": f32, "s": f32 }),
            },
            channels: [
                (from: "low", to: ["half"]),
                (from: "half", to: ["sum.x"]),
                (from: "sum", to: ["sum.s", "out"], initial: [0.0]),
            ],
        ),
        "fast": Mode(
            actors: { "sum": Expr("x - 0.5 * s", inputs: { "x": f32, "s": f32 }) },
            channels: [
                (from: "low", to: ["sum.x"]),
                (from: "sum", to: ["sum.s", "out"], initial: [1.0]),
            ],
        ),
    },
    sinks: { "out": Stream() },
)"#,
        3,
        Losses::Single,
    );
    let has_plans = |program: &Program| !program.contingencies.list.is_empty();
    assert!(modes.programs().iter().all(|program| has_plans(program)));
    let engine = Engine::with_modes(modes.clone(), &mix::registry()).expect("an engine");
    let options = RunOptions {
        supervised: Some(losses::supervised(&engine, losses::HARDY, Some(FAULTS))),
        ..losses::options(Isolation::Processes { program: None })
    };
    let pause = Duration::from_millis(6);
    let mut rng = fastrand::Rng::with_seed(7);
    let numbers = (0..192_000).flat_map(|_| (rng.f32() - 0.5).to_ne_bytes());
    let inputs = Streams::from([("in".to_owned(), numbers.collect())]);
    let changes = check(7, &modes, options, (&inputs, 1_000), (400, pause));
    println!("{changes} changes");
    assert!(changes > 40, "a weak sample");
}

fn main() {
    #[cfg(target_os = "linux")]
    zbmd_executor::serve_if_worker(&mix::registry());
    let tests: &[Test] = &[
        (
            "impossible_changes_are_refused",
            impossible_changes_are_refused,
        ),
        (
            "live_parameters_keep_their_values",
            live_parameters_keep_their_values,
        ),
        (
            "a_value_that_stays_behind_is_seen",
            a_value_that_stays_behind_is_seen,
        ),
        (
            "parameters_set_while_modes_change_keep_their_names",
            parameters_set_while_modes_change_keep_their_names,
        ),
        (
            "changes_keep_their_order_in_a_mode_of_other_rates",
            changes_keep_their_order_in_a_mode_of_other_rates,
        ),
        (
            "a_border_is_decided_about_once",
            a_border_is_decided_about_once,
        ),
        (
            "runs_with_changes_are_traced_and_profiled",
            runs_with_changes_are_traced_and_profiled,
        ),
        ("seeded_bugs_are_caught", seeded_bugs_are_caught),
        #[cfg(target_os = "linux")]
        ("modes_have_plans_for_losses", modes_have_plans_for_losses),
        (
            "random_changes_between_random_modes_are_those_of_the_interpreter",
            random_changes_between_random_modes_are_those_of_the_interpreter,
        ),
        (
            "tokens_decide_as_the_interpreter_says",
            tokens_decide_as_the_interpreter_says,
        ),
        #[cfg(target_os = "linux")]
        ("kills_decide_nothing", kills_decide_nothing),
        (
            "modes_that_are_known_ahead_come_at_their_iterations",
            modes_that_are_known_ahead_come_at_their_iterations,
        ),
        #[cfg(target_os = "linux")]
        (
            "killed_workers_change_nothing_of_it",
            killed_workers_change_nothing_of_it,
        ),
    ];
    harness::run_apart(tests, || true);
}
