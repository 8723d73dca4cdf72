//! Replicas of an actor on several devices: the same bits as one actor, and near its k-th part of the period.

use zbmd_compiler::{
    CompileOptions, Compiled, MachineChoice, Replicate, ReplicateError, compile_str, replicate,
};
use zbmd_ir::verify::{Verified, verify};
use zbmd_ir::{Graph, PlanId, Program, TiSlice};
use zbmd_scheduler::replicate::{Factors, obstacles};
use zbmd_scheduler::{Block, Inputs, Losses, ScheduleOptions, schedule, schedule_contingencies};
use zbmd_tests::random::{self, Shape};
use zbmd_tests::run::{interpret_program, random_inputs, replay, replay_program};
use zbmd_tests::sample::cases;
use zbmd_tests::{mix, stepper};

/// A random graph, and the same with some replicas of some actors; how many of its iterations one is then.
fn graphs(seed: u64) -> Option<(Graph, Graph, u64)> {
    let shape = Shape {
        actors: 14,
        cycles: seed.is_multiple_of(2),
        ..Shape::default()
    };
    let graph = random::graph(seed, shape);
    let mut rng = fastrand::Rng::with_seed(seed);
    let q = zbmd_scheduler::repetition(&graph).expect("random graphs are consistent");
    let factors: Factors = obstacles(&graph)
        .into_iter_enumerated()
        .filter(|(_, obstacle)| obstacle.is_none())
        .filter_map(|(actor, _)| {
            let even = (2..=4)
                .filter(|&k| q[actor].is_multiple_of(u64::from(k)))
                .max();
            let any = Some(rng.u32(2..=4)).filter(|_| rng.u8(..) < 40);
            Some((actor, even.or(any)?))
        })
        .collect();
    if factors.is_empty() {
        return None;
    }
    let blobs = TiSlice::from_ref(&[]);
    match replicate(&graph, &factors, &mix::registry(), blobs) {
        Ok(made) => Some((graph, made.graph, made.iterations)),
        // Some random graphs are two.
        Err(ReplicateError::Step) => None,
        Err(error) => panic!("seed {seed}: {error}"),
    }
}

fn program(graph: Graph, seed: u64) -> Verified<Program> {
    let machine = random::machine(1 + (seed % 4) as usize);
    let costs = random::costs(&graph, &machine, seed);
    let block = [Block::Auto, Block::Fixed(1), Block::Fixed(3)][(seed / 4 % 3) as usize];
    let options = ScheduleOptions {
        block,
        ..ScheduleOptions::default()
    };
    let inputs = Inputs {
        graph: &graph,
        machine: &machine,
        costs: &costs,
        options: &options,
    };
    let plans =
        schedule(&graph, &machine, &costs, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    let made = schedule_contingencies(inputs, plans, Losses::Single).expect("few losses");
    let (plans, contingencies) = (made.plans.into(), made.contingencies);
    verify(Program {
        graph,
        machine,
        plans,
        contingencies,
        ..Program::default()
    })
    .unwrap_or_else(|errors| panic!("seed {seed}: {}", errors[0]))
}

#[test]
fn random_graphs_with_replicas_give_the_same_bits() {
    let registry = mix::registry();
    let (mut compared, mut longer, mut delayed, mut spread) = (0, 0, 0, 0);
    for seed in 0..cases(100) {
        let Some((plain, graph, iterations)) = graphs(seed) else {
            continue;
        };
        let channels = plain.channels.len();
        let program = program(graph, seed);
        let main = &program.plans[PlanId(0)];
        let count = (main.block * (u64::from(main.stages) + 2) + 1).min(30);
        let inputs = random_inputs(&program, count, seed);
        let (outputs, outcome) = replay_program(program.clone(), &registry, &inputs, None, None);
        let by_interpreter = interpret_program(&program, &registry, &inputs, None);
        assert!(
            outputs == by_interpreter.0,
            "seed {seed}: the interpreter has other outputs"
        );

        // The graph without replicas, on inputs for as many iterations.
        let machine = program.machine.clone();
        let plain = Program {
            graph: plain,
            machine,
            ..Program::default()
        };
        let bound = (iterations > 1).then_some(outcome.state.iterations * iterations);
        let (expected, state) = interpret_program(&plain, &registry, &inputs, bound);
        assert!(
            outputs == expected,
            "seed {seed}: other outputs than without replicas"
        );
        assert_eq!(
            state.iterations,
            outcome.state.iterations * iterations,
            "seed {seed}"
        );
        assert_eq!(state.consumed, outcome.state.consumed, "seed {seed}");
        let (old, new) = outcome.state.channels.raw.split_at(channels);
        assert_eq!(
            old, state.channels.raw,
            "seed {seed}: other tokens are left"
        );
        assert!(
            new.iter().all(Vec::is_empty),
            "seed {seed}: replicas keep tokens"
        );

        compared += outputs.values().map(Vec::len).sum::<usize>();
        longer += u32::from(iterations > 1);
        delayed += u32::from(state.channels.iter().any(|tokens| !tokens.is_empty()));
        let replicas = program
            .graph
            .actors
            .iter_enumerated()
            .filter(|(_, a)| a.name.contains('#'));
        let mut devices: Vec<_> = replicas.map(|(id, _)| main.placement[id]).collect();
        devices.sort_unstable();
        devices.dedup();
        spread += u32::from(devices.len() > 1);
    }
    assert!(
        compared > 16_000 && longer > 5 && delayed > 16 && spread > 16,
        "{compared} {longer} {delayed} {spread}: a weak sample"
    );
}

#[test]
fn the_slow_checker_accepts_plans_with_replicas() {
    let mut checked = 0;
    for seed in 0..cases(66) {
        let Some((_, graph, _)) = graphs(seed) else {
            continue;
        };
        let program = program(graph, seed);
        for plan in program.plans.iter().filter(|p| p.block < 20) {
            let blocks = u64::from(plan.stages) * 2 + 1;
            if let Err(violation) = stepper::step(&program.graph, plan, blocks, seed) {
                panic!("seed {seed}, plan {}: {}", plan.name, violation.0);
            }
            checked += 1;
        }
    }
    assert!(checked > 66, "{checked}: a weak sample");
}

/// Frames of 256 samples, 12 an iteration, through one actor that outweighs the rest.
const HEAVY: &str = r#"Model(
    name: "heavy",
    sources: { "x": Stream(dtype: f32, shape: [256], rate: 12) },
    actors: {
        "pre": Gain(0.5),
        "heavy": Expr("sin(cos(sin(cos(sin(cos(sin(cos(sin(cos(sin(cos(sin(cos(sin(cos(sin(cos(sin(cos(sin(cos(sin(cos(sin(cos(sin(cos(sin(cos(sin(cos(x))))))))))))))))))))))))))))))))"),
        "post": Gain(2.0),
    },
    channels: [
        (from: "x", to: ["pre"]), (from: "pre", to: ["heavy"]), (from: "heavy", to: ["post"]),
        (from: "post", to: ["y"]),
    ],
    sinks: { "y": Stream() },
)"#;

fn compile(text: &str, devices: usize, replicate: Replicate) -> Compiled {
    let machine = MachineChoice::Uniform(devices);
    let options = CompileOptions {
        machine,
        replicate,
        ..CompileOptions::default()
    };
    compile_str("heavy.ron", text, "", &options).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Predicted nanoseconds of 12 frames.
fn period(compiled: &Compiled) -> f64 {
    let main = &compiled.program.plans[PlanId(0)];
    main.period_ns as f64 / main.block as f64
}

#[test]
fn a_heavy_actor_takes_its_kth_part_of_the_period_on_k_devices() {
    let one = period(&compile(HEAVY, 1, Replicate::Auto));
    for devices in [2, 3, 4] {
        let ratio = one / period(&compile(HEAVY, devices, Replicate::Auto));
        assert!(
            ratio > 0.85 * devices as f64,
            "{ratio:.2} on {devices} devices"
        );
        let without = one / period(&compile(HEAVY, devices, Replicate::Off));
        assert!(
            without < 1.2,
            "{without:.2} without replicas: the model is not what it is to be"
        );
    }
}

#[test]
fn a_compiled_model_gives_the_same_bits_with_replicas() {
    let registry = zbmd_backends::standard_registry();
    let plain = compile(HEAVY, 1, Replicate::Off);
    let mut rng = fastrand::Rng::with_seed(3);
    // Ends in the middle of an iteration, and of a block.
    let samples = (0..12 * 256 * 21 + 256 * 7).flat_map(|_| rng.f32().to_le_bytes());
    let inputs = zbmd_tests::run::streams([("x", samples.collect())]);
    let (expected, _) = interpret_program(&plain.program, &registry, &inputs, None);
    for devices in [2, 3, 4] {
        let compiled = compile(HEAVY, devices, Replicate::Auto);
        assert!(compiled.program.graph.find("heavy#1").is_some());
        let (outputs, _) = replay(compiled, &registry, &inputs, None, None);
        assert!(outputs == expected, "other outputs on {devices} devices");
    }
}
