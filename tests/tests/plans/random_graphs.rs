//! Random consistent graphs on random machines: schedule, verify, replay, and equal the interpreter.

use zbmd_compiler::{CompileOptions, MachineChoice, compile_graph};
use zbmd_ir::verify::{Verified, verify};
use zbmd_ir::{
    Actor, ActorId, Buffer, Channel, ChannelId, DType, Endpoint, Graph, InPort, OutPort, Over,
    Params, Plan, PlanId, Program, Reader, Role, TiVec, TokenType,
};
use zbmd_scheduler::buffers::{Mode, Unit};
use zbmd_scheduler::{Block, ScheduleOptions, check_deadlock, repetition, schedule};
use zbmd_tests::random::{self, Shape};
use zbmd_tests::run::{interpret_program, random_inputs, replay_program};
use zbmd_tests::sample::cases;
use zbmd_tests::{mix, stepper};

/// Graphs whose plans have small buffers.
const SMALL_BUFFER_SEEDS: u64 = 100;

/// The plans of the seed's graph on the seed's machine.
fn plans(seed: u64, shape: Shape) -> (Graph, Vec<Plan>) {
    let graph = random::graph(seed, shape);
    let machine = random::machine(1 + (seed % 4) as usize);
    let costs = random::costs(&graph, &machine, seed);
    let block = [Block::Auto, Block::Fixed(1), Block::Fixed(7)][(seed / 4 % 3) as usize];
    let options = ScheduleOptions {
        block,
        ..ScheduleOptions::default()
    };
    let plans =
        schedule(&graph, &machine, &costs, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    (graph, plans)
}

/// The seed's program, verified.
fn program(seed: u64, shape: Shape) -> Verified<Program> {
    let (graph, plans) = plans(seed, shape);
    verified(seed, graph, plans)
}

fn verified(seed: u64, graph: Graph, plans: Vec<Plan>) -> Verified<Program> {
    let machine = random::machine(1 + (seed % 4) as usize);
    let program = Program {
        graph,
        machine,
        plans: plans.into(),
        ..Program::default()
    };
    verify(program).unwrap_or_else(|errors| {
        let text: Vec<String> = errors.iter().map(|e| format!("{} {e}", e.code())).collect();
        panic!("seed {seed}: {}", text.join("; "));
    })
}

#[test]
fn random_graphs_replay_like_the_interpreter() {
    let registry = mix::registry();
    let (mut multi, mut looped, mut over, mut compared, mut parts) = (0, 0, 0, 0, 0);
    let seeds = cases(160);
    for seed in 0..seeds {
        let program = program(seed, Shape::default());
        let main = &program.plans[PlanId(0)];
        let found: Vec<Over> = program
            .plans
            .iter()
            .flat_map(|p| p.over(&program.graph))
            .collect();
        over += found.len();
        parts += u32::from(found.iter().any(|o| o.fit.is_ne()));
        multi += u32::from(main.calendars.len() > 1);
        looped += u32::from(
            main.calendars
                .iter()
                .any(|c| format!("{:?}", c.lanes).contains("Loop")),
        );
        // Two blocks more than the pipeline is deep, and a tail.
        let iterations = (main.block * (u64::from(main.stages) + 2) + 1).min(40);
        let inputs = random_inputs(&program, iterations, seed);
        let (outputs, outcome) = replay_program(program.clone(), &registry, &inputs, None, None);
        let (expected, state) = interpret_program(&program, &registry, &inputs, None);
        assert_eq!(outcome.state, state, "seed {seed}: the final states differ");
        assert!(outputs == expected, "seed {seed}: the outputs differ");
        compared += outputs.values().map(Vec::len).sum::<usize>();
    }
    println!("{over} outputs over inputs; {parts} graphs with parts in wholes");
    let seeds = seeds as usize;
    assert!(
        2 * multi > seeds as u32
            && looped > 0
            && over > seeds / 4
            && compared > 50 * seeds
            && 8 * parts > seeds as u32,
        "{multi} {looped} {over} {compared} {parts}: a weak sample"
    );
}

/// Tokens that the buffers of a plan hold.
fn buffer_tokens(plan: &Plan) -> u64 {
    let buffers = plan.buffers.iter();
    buffers
        .map(|buffer| (buffer.head_tokens + buffer.chunk_tokens) * u64::from(buffer.blocks))
        .sum()
}

/// The plans of the seed's graph with bounds on its buffers, by turns: the fewest tokens, half of what there is to save,
/// and two thirds of the memory that the default plan takes.
fn plans_of_small_buffers(seed: u64, shape: Shape) -> Option<(Graph, Vec<Plan>)> {
    let (graph, default_plans) = plans(seed, shape);
    let machine = random::machine(1 + (seed % 4) as usize);
    let costs = random::costs(&graph, &machine, seed);
    let least = ScheduleOptions {
        buffers: Mode::Min(Unit::Tokens),
        ..ScheduleOptions::default()
    };
    let options = match seed / 12 % 3 {
        0 => least,
        1 => {
            let least_plans = schedule(&graph, &machine, &costs, &least).ok()?;
            let most = buffer_tokens(&default_plans[0]);
            let limit = (buffer_tokens(&least_plans[0]) + most) / 2;
            ScheduleOptions {
                buffers: Mode::Within(limit, Unit::Tokens),
                ..least
            }
        }
        _ => {
            let arenas = default_plans[0].calendars.iter().map(|c| c.arena_bytes);
            ScheduleOptions {
                max_memory_bytes: Some(arenas.max()? * 2 / 3),
                block: Block::Fixed(default_plans[0].block),
                ..ScheduleOptions::default()
            }
        }
    };
    let plans = schedule(&graph, &machine, &costs, &options).ok()?;
    Some((graph, plans))
}

#[test]
fn small_buffers_replay_like_the_interpreter() {
    let registry = mix::registry();
    let mut chunked = 0;
    let mut carried = 0;
    let mut compared = 0;
    for seed in 0..cases(SMALL_BUFFER_SEEDS) {
        let Some((graph, plans)) = plans_of_small_buffers(seed, Shape::default()) else {
            continue;
        };
        let program = verified(seed, graph, plans);
        let main = &program.plans[PlanId(0)];
        let smaller: Vec<&Buffer> = main.buffers.iter().filter(|b| b.is_chunked()).collect();
        chunked += u32::from(!smaller.is_empty());
        carried += u32::from(smaller.iter().any(|buffer| buffer.head_tokens > 0));

        let iterations = (main.block * (u64::from(main.stages) + 2) + 1).min(40);
        let inputs = random_inputs(&program, iterations, seed);
        let (outputs, outcome) = replay_program(program.clone(), &registry, &inputs, None, None);
        let (expected, state) = interpret_program(&program, &registry, &inputs, None);
        assert_eq!(outcome.state, state, "seed {seed}: the final states differ");
        assert!(outputs == expected, "seed {seed}: the outputs differ");
        compared += outputs.values().map(Vec::len).sum::<usize>();
    }
    println!("{chunked} graphs with chunks, {carried} of them with a head; {compared} bytes");
    let seeds = cases(SMALL_BUFFER_SEEDS) as u32;
    assert!(
        chunked > seeds / 4 && carried > seeds / 10 && compared > 0,
        "{chunked} {carried} {compared}: a weak sample"
    );
}

/// A chain of actors with these rates, `(written, read)` of each channel.
fn chain(rates: &[(u64, u64)]) -> Graph {
    let token = TokenType::scalar(DType::I64);
    let mut graph = Graph {
        name: "chain".into(),
        ..Graph::default()
    };
    for index in 0..=rates.len() {
        let read = index.checked_sub(1).map(|before| rates[before].1);
        let written = rates.get(index).map(|&(written, _)| written);
        let (role, op) = match (read, written) {
            (None, _) => (Role::Source, "Source"),
            (_, None) => (Role::Sink, "Sink"),
            _ => (Role::Compute, "Mix"),
        };
        let input = |rate| InPort {
            name: "x".into(),
            token: token.clone(),
            rate,
            window: rate,
        };
        let output = |rate| OutPort {
            name: "y".into(),
            token: token.clone(),
            rate,
        };
        graph.actors.push(Actor {
            name: format!("n{index}"),
            role,
            op: op.into(),
            params: Params::new(),
            inputs: read.map(input).into_iter().collect(),
            outputs: written.map(output).into_iter().collect(),
            state: vec![],
            in_place: vec![],
        });
    }
    for writer in 0..rates.len() as u32 {
        let end = |actor| Endpoint {
            actor: ActorId(actor),
            port: 0,
        };
        graph.channels.push(Channel {
            from: end(writer),
            readers: vec![Reader {
                to: end(writer + 1),
                delay: 0,
            }],
            token: token.clone(),
            initial: vec![],
        });
    }
    graph
}

/// The CD-to-DAT chain of the literature with the tokens that its three orders take there.
#[test]
fn cd_to_dat_runs_with_32_264_and_1021_tokens() {
    let registry = mix::registry();
    let graph = chain(&[(1, 1), (2, 3), (2, 7), (8, 7), (5, 1)]);
    let machine = random::machine(1);
    let costs = random::costs(&graph, &machine, 1);
    for tokens in [32, 264, 1021] {
        let options = ScheduleOptions {
            buffers: Mode::Within(tokens, Unit::Tokens),
            ..ScheduleOptions::default()
        };
        let plans = schedule(&graph, &machine, &costs, &options).expect("a plan");
        let program = verified(0, graph.clone(), plans);
        assert_eq!(buffer_tokens(&program.plans[PlanId(0)]), tokens);

        let inputs = random_inputs(&program, 5, 7);
        let (outputs, outcome) = replay_program(program.clone(), &registry, &inputs, None, None);
        let (expected, state) = interpret_program(&program, &registry, &inputs, None);
        assert_eq!(outcome.state, state, "{tokens} tokens");
        assert!(outputs == expected, "{tokens} tokens: the outputs differ");
    }
}

#[test]
fn the_slow_checker_accepts_small_buffers() {
    let mut chunked = 0;
    for seed in 0..cases(SMALL_BUFFER_SEEDS) {
        let shape = Shape {
            actors: 10,
            ..Shape::default()
        };
        let Some((graph, plans)) = plans_of_small_buffers(seed, shape) else {
            continue;
        };
        for plan in plans.iter().filter(|plan| plan.block < 20) {
            chunked += u32::from(plan.buffers.iter().any(Buffer::is_chunked));
            let blocks = u64::from(plan.stages) * 2 + 1;
            if let Err(violation) = stepper::step(&graph, plan, blocks, seed) {
                panic!("seed {seed}, plan {}: {}", plan.name, violation.0);
            }
        }
    }
    assert!(chunked > 16, "{chunked}: a weak sample");
}

/// Codes that compiling the graph is refused with; empty if it is accepted.
fn refused_with(graph: &Graph) -> Vec<String> {
    let options = CompileOptions {
        registry: mix::registry(),
        // One device: what is asked here needs no search for a placement.
        machine: MachineChoice::Given(random::machine(1)),
        ..CompileOptions::default()
    };
    match compile_graph(graph.clone(), TiVec::new(), &options) {
        Ok(_) => vec![],
        Err(diagnostics) => diagnostics
            .list
            .iter()
            .map(|d| d.code.to_string())
            .collect(),
    }
}

#[test]
fn inconsistent_and_deadlocked_graphs_are_refused_by_their_codes() {
    let (mut inconsistent, mut deadlocked) = (0, 0);
    for seed in 0..cases(100) {
        let graph = random::graph(seed, Shape::default());
        assert_eq!(refused_with(&graph), Vec::<String>::new(), "seed {seed}");
        // Another rate at one reader whose writer is tied to it in another way too, or that reads what others read.
        let mut wrong = graph.clone();
        wrong.actors.iter_mut().for_each(|a| a.in_place.clear());
        let readers = wrong
            .actors
            .iter_mut()
            .filter(|a| a.inputs.len() > 1 && a.state.is_empty());
        if let Some(port) = readers.flat_map(|a| a.inputs.iter_mut()).next() {
            (port.rate, port.window) = (port.rate * 13, port.window + port.rate * 12);
            if repetition(&wrong).is_err() {
                assert_eq!(refused_with(&wrong), ["E0401"], "seed {seed}");
                inconsistent += 1;
            }
        }
        // No initial tokens on a channel that leads back, but for what windows keep.
        let mut stuck = graph.clone();
        for channel in 0..stuck.channels.len() {
            let id = ChannelId::from(channel);
            let (from, reader) = (
                stuck.channels[id].from,
                stuck.channels[id].readers.first().copied(),
            );
            let back = reader.is_some_and(|r| r.to.actor <= from.actor) && !stuck.is_state(id);
            if let (true, Some(reader)) = (back, reader) {
                let port = &stuck.actors[reader.to.actor].inputs[reader.to.port as usize];
                let kept = port.window - port.rate;
                let ch = &mut stuck.channels[id];
                ch.readers[0].delay = kept;
                ch.initial.truncate((kept * ch.token.bytes()) as usize);
            }
        }
        if stuck != graph {
            let codes = refused_with(&stuck);
            let q = repetition(&stuck).expect("delays do not change rates");
            if check_deadlock(&stuck, &q).is_err() {
                assert_eq!(codes, ["E0402"], "seed {seed}");
                deadlocked += 1;
            }
        }
    }
    assert!(
        inconsistent > 33 && deadlocked > 33,
        "{inconsistent} {deadlocked}: a weak sample"
    );
}

#[test]
fn the_slow_checker_accepts_what_the_scheduler_makes() {
    for seed in 0..cases(100) {
        let (graph, plans) = plans(
            seed,
            Shape {
                actors: 10,
                ..Shape::default()
            },
        );
        for plan in plans.iter().filter(|p| p.block < 20) {
            let blocks = u64::from(plan.stages) * 2 + 1;
            if let Err(violation) = stepper::step(&graph, plan, blocks, seed) {
                panic!("seed {seed}, plan {}: {}", plan.name, violation.0);
            }
        }
    }
}

#[test]
fn the_slow_checker_misses_no_slot() {
    let mut dropped = 0;
    for seed in 0..cases(50) {
        let (graph, plans) = plans(
            seed,
            Shape {
                actors: 10,
                ..Shape::default()
            },
        );
        let plan = &plans[plans.len() - 1];
        let blocks = u64::from(plan.stages) * 2 + 1;
        for calendar in 0..plan.calendars.len() {
            for entry in 0..plan.calendars[calendar].lanes[0].entries.len() {
                let mut broken = plan.clone();
                let slot = broken.calendars[calendar].lanes[0].entries.remove(entry);
                let found = stepper::step(&graph, &broken, blocks, seed);
                assert!(found.is_err(), "seed {seed}: nobody misses {slot:?}");
                dropped += 1;
            }
        }
    }
    assert!(dropped > 333, "only {dropped} slots dropped");
}
