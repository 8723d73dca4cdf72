//! Deadlines: what is accepted holds on a simulated clock, and what is refused says why.

use zbmd_compiler::costs::{CostKey, MeasuredCost, MeasuredCosts};
use zbmd_compiler::{CompileOptions, Compiled, Diagnostics, Losses, MachineChoice, compile_graph};
use zbmd_ir::response::{DEADLINE, SAMPLE_RATE, deadline_ns, response_bound};
use zbmd_ir::{Graph, PlanId, Slot, TiSlice, TiVec, Value};
use zbmd_scheduler::repetition;
use zbmd_tests::random::{self, Shape};
use zbmd_tests::{mix, timed};

/// Random models of which each has a deadline; `ZBMD_DEADLINE_MODELS` asks for another number.
const MODELS: u64 = 200;

/// Blocks of each run.
const BLOCKS: u64 = 12;

/// Nanoseconds of the work of an iteration, by what each firing costs.
fn iteration_ns(graph: &Graph, costs: &zbmd_ir::Costs) -> f64 {
    let firings = repetition(graph).expect("consistent");
    let actors = firings.iter_enumerated();
    let work = actors.map(|(actor, &count)| {
        let cost = costs.table[actor].raw[0].expect("a cost");
        (cost.call_ps + count * cost.firing_ps) as f64 / 1000.0
    });
    work.sum()
}

/// Gives every sink a sample rate, so that an iteration is released every `release_ns`, and a deadline.
fn time_sinks(graph: &mut Graph, release_ns: f64, limit_ns: f64) {
    let firings = repetition(graph).expect("consistent");
    let sinks: Vec<_> = graph.sinks().map(|(sink, _)| sink).collect();
    for sink in sinks {
        let actor = &mut graph.actors[sink];
        let tokens = (firings[sink] * actor.inputs[0].rate) as f64;
        let sample_rate = Value::Float(tokens * 1e9 / release_ns);
        actor.params.insert(SAMPLE_RATE.to_owned(), sample_rate);
        actor
            .params
            .insert(DEADLINE.to_owned(), Value::Int(limit_ns as i64));
    }
}

/// The seed's graph with deadlines, compiled for random costs.
fn compile(seed: u64) -> Result<Compiled, Diagnostics> {
    let shape = Shape {
        actors: 16,
        ..Shape::default()
    };
    let mut graph = random::graph(seed, shape);
    let machine = random::machine(1 + (seed % 3) as usize);
    let costs = random::costs(&graph, &machine, seed);
    let mut random = fastrand::Rng::with_seed(seed ^ 0xdead);
    let work_ns = iteration_ns(&graph, &costs);
    let release_ns = work_ns * (0.2 + 2.0 * random.f64());
    let limit_ns = work_ns * 0.25 * 200f64.powf(random.f64());
    time_sinks(&mut graph, release_ns, limit_ns);

    let mut measured = MeasuredCosts::default();
    for (id, actor) in graph.actors.iter_enumerated() {
        let cost = costs.table[id].raw[0].expect("a cost");
        for device in &machine.devices {
            let key = CostKey::of(actor, TiSlice::from_ref(&[]));
            let cost = MeasuredCost {
                op: actor.op.clone(),
                ports: String::new(),
                call_ps: cost.call_ps,
                firing_ps: cost.firing_ps,
                spread_percent: 0.0,
                samples: 1,
                variant: None,
            };
            measured.insert(&device.name, key, cost);
        }
    }
    let losses = [Losses::None, Losses::Single];
    let options = CompileOptions {
        registry: mix::registry(),
        machine: MachineChoice::Measured(machine, measured),
        contingencies: losses[(seed / 3 % 2) as usize],
        ..CompileOptions::default()
    };
    compile_graph(graph, TiVec::new(), &options)
}

/// Replays the plans that keep the deadlines; how many did.
fn check_accepted(seed: u64, compiled: &Compiled) -> u32 {
    let program = &compiled.program;
    let losses = program.contingencies.list.iter().map(|entry| entry.main);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut checked = 0;
    for plan_id in std::iter::once(PlanId(0)).chain(losses) {
        let plan = &program.plans[plan_id];
        for (sink, actor) in program.graph.sinks() {
            let bound = response_bound(&program.graph, plan, sink).expect("a rate and a source");
            let limit_ns = deadline_ns(&program.graph, sink).expect("a deadline");
            let bound_ns = bound.response_ns.expect("an accepted plan keeps up");
            assert!(
                bound_ns <= limit_ns,
                "seed {seed}: {bound_ns} of {limit_ns}"
            );

            let tokens = timed::tokens_per_block(&program.graph, plan, sink);
            let sample_rate = actor.params[SAMPLE_RATE].as_float().expect("a number");
            let release_ns = tokens as f64 * 1e9 / sample_rate;
            let mut as_planned = |slot: &Slot| slot.duration_ns;
            let mut at_random = |slot: &Slot| random.u64(0..=slot.duration_ns);
            let all_durations: [timed::Durations<'_>; 2] = [&mut as_planned, &mut at_random];
            for durations in all_durations {
                let responses = timed::longest_responses(
                    &program.graph,
                    &program.machine,
                    plan,
                    BLOCKS,
                    release_ns,
                    durations,
                );
                let response_ns = responses[&sink];
                // Releases are rounded to whole nanoseconds.
                assert!(
                    response_ns <= bound_ns + 1,
                    "seed {seed}, {}: `{}` comes after {response_ns} ns, at most {bound_ns} were promised",
                    plan.name,
                    actor.name
                );
            }
            checked += 1;
        }
    }
    checked
}

#[test]
fn what_is_accepted_is_never_late_and_what_is_refused_names_an_actor() {
    let models = std::env::var("ZBMD_DEADLINE_MODELS").ok();
    let models = models.and_then(|text| text.parse().ok()).unwrap_or(MODELS);
    let mut accepted = 0u64;
    let mut checked = 0;
    for seed in 0..models {
        match compile(seed) {
            Ok(compiled) => {
                accepted += 1;
                checked += check_accepted(seed, &compiled);
            }
            Err(refusal) => {
                let codes: Vec<String> = refusal.list.iter().map(|d| d.code.to_string()).collect();
                assert_eq!(codes, ["E0508"], "seed {seed}: {refusal:?}");
                let help = refusal.list[0].help.clone().unwrap_or_default();
                assert!(
                    help.contains("keep cpu:") && help.contains('`'),
                    "seed {seed}: {help}"
                );
            }
        }
    }
    println!("{accepted} of {models} accepted, {checked} responses");
    let share = accepted as f64 / models as f64;
    assert!((0.2..0.9).contains(&share), "{share}: a weak sample");
}
