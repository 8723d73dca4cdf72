//! Compile time against graph size: analyse, schedule, verify, for random graphs of 10^2 to 10^5 firings an
//! iteration, and for a graph of the shape on which aegir's scheduler took 57 s (120 actors, 240 messages, 8 nodes).

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use zbmd_ir::verify::verify;
use zbmd_ir::{ActorId, Graph, Machine, Program, TiVec};
use zbmd_scheduler::{Block, ScheduleOptions, repetition, schedule};
use zbmd_tests::random::{self, Shape};

/// A random graph with about that many firings in an iteration.
fn graph_of(firings: usize) -> (Graph, u64) {
    // Rates up to 12 make an actor fire 6.5 times in the mean.
    let actors = (firings * 2 / 13).max(2);
    let graph = random::graph(
        7,
        Shape {
            min_actors: actors,
            actors,
            ..Shape::default()
        },
    );
    let q: TiVec<ActorId, u64> = repetition(&graph).expect("random graphs are consistent");
    let sum = q.iter().sum();
    (graph, sum)
}

fn compile(graph: &Graph, machine: &Machine) -> usize {
    let costs = random::costs(graph, machine, 1);
    let options = ScheduleOptions {
        block: Block::Fixed(1),
        ..ScheduleOptions::default()
    };
    let plans = schedule(graph, machine, &costs, &options).expect("random graphs have schedules");
    let program = Program {
        graph: graph.clone(),
        machine: machine.clone(),
        plans: plans.into(),
        ..Program::default()
    };
    verify(program).expect("schedules verify").plans.len()
}

fn sizes(c: &mut Criterion) {
    let mut group = c.benchmark_group("compile");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(5));
    for firings in [100, 1_000, 10_000, 100_000] {
        let (graph, sum) = graph_of(firings);
        let machine = random::machine(4);
        group.throughput(Throughput::Elements(sum));
        group.bench_with_input(
            BenchmarkId::new("random, 4 devices, firings", sum),
            &graph,
            |b, graph| {
                b.iter(|| compile(graph, &machine));
            },
        );
    }
    group.finish();
}

fn aegir_shape(c: &mut Criterion) {
    let mut graph = random::graph(
        3,
        Shape {
            min_actors: 120,
            actors: 120,
            max_rate: 1,
            max_overlap: 0,
            cycles: false,
        },
    );
    // Top up with further readers until there are 240 messages an iteration.
    random::densify(&mut graph, 240, 3);
    let messages: usize = graph.channels.iter().map(|ch| ch.readers.len()).sum();
    let machine = random::machine(8);
    c.bench_function(
        &format!("compile/120 actors, {messages} messages, 8 devices"),
        |b| {
            b.iter(|| compile(&graph, &machine));
        },
    );
}

criterion_group!(benches, sizes, aegir_shape);
criterion_main!(benches);
