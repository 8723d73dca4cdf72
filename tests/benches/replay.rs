//! What replay itself costs: a chain of 1,000 empty actors beside a loop of calls and beside the token-driven
//! interpreter; the saxpy chain as a share of its ceiling.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use zbmd_backends::interpret::Interpreter;
use zbmd_executor::{Engine, RunOptions};
use zbmd_ir::Program;
use zbmd_ir::verify::Verified;
use zbmd_tests::chain::{self, Start};
use zbmd_tests::run::Streams;

const ACTORS: u32 = 1_000;

/// Time that `blocks` blocks of a chain take from the first to the last; feeding included, if it is fed.
fn replay_time(program: &Verified<Program>, blocks: u64) -> Duration {
    let block = program.plans[zbmd_ir::PlanId(0)].block;
    let engine = Engine::new(program.clone(), &chain::registry()).expect("known ops");
    let iterations = Some(blocks * block);
    let options = RunOptions {
        sample_every: 0,
        iterations,
        ..RunOptions::default()
    };
    let mut session = engine.start(options).expect("memory and threads");
    std::thread::scope(|scope| {
        if program.graph.sources().next().is_some() {
            let mut source = session.source("n0").expect("the source");
            scope.spawn(move || {
                let chunk = vec![1.0f32; 1 << 16];
                // Until the run has its iterations.
                while source.push(&chunk).is_ok() {}
            });
        }
        // The sink's handle is not taken: its tokens are dropped in the queue.
        let outcome = session.join().expect("the run ends well");
        Duration::from_nanos(outcome.report.elapsed_ns)
    })
}

#[inline(never)]
fn nothing(x: &mut u64) {
    *x = black_box(*x);
}

fn empty_chain(c: &mut Criterion) {
    let mut group = c.benchmark_group("1,000 empty actors");
    group
        .throughput(Throughput::Elements(u64::from(ACTORS)))
        .sample_size(20);
    let calls: Vec<fn(&mut u64)> = vec![nothing; ACTORS as usize];
    group.bench_function("loop of function pointers", |b| {
        let mut x = 0;
        b.iter(|| {
            for call in black_box(&calls) {
                call(&mut x);
            }
        });
    });
    let program = chain::program(Start::Pushed, "Empty", ACTORS, 1, 1);
    group.bench_function("calendar", |b| {
        // One block more, so that start-up is spread over at least some blocks.
        b.iter_custom(|n| replay_time(&program, n + 1_000).mul_f64(n as f64 / (n + 1_000) as f64));
    });
    group.bench_function("token-driven interpreter", |b| {
        let registry = chain::registry();
        let mut interpreter =
            Interpreter::new(&program.graph, &program.blobs, &registry).expect("known ops");
        b.iter_custom(|n| {
            let inputs: Streams = [("n0".to_owned(), vec![0; 4 * n as usize])].into();
            let start = Instant::now();
            black_box(interpreter.run(&inputs, None).expect("it runs"));
            start.elapsed()
        });
    });
    group.finish();
}

/// The pipeline benchmark of software-radio frameworks: source -> M saxpy -> sink on N cores; the ceiling is the rate
/// of one kernel over a cached block, times N / M.
fn saxpy_chain(c: &mut Criterion) {
    const M: u32 = 200;
    const BLOCK: u64 = 2_048;
    let cores = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(2);
    let mut group = c.benchmark_group(format!("{M} saxpy on {cores} cores"));
    group
        .throughput(Throughput::Elements(BLOCK))
        .sample_size(20)
        .measurement_time(Duration::from_secs(8));
    group.bench_function("ceiling: M / N kernels on one block in cache", |b| {
        let mut buffers = vec![vec![1.0f32; BLOCK as usize]; 2];
        b.iter(|| {
            for i in 0..M as usize / cores {
                let (from, to) = buffers.split_at_mut(1);
                let (x, y) = if i % 2 == 0 {
                    (&from[0], &mut to[0])
                } else {
                    (&to[0], &mut from[0])
                };
                for (y, x) in y.iter_mut().zip(black_box(x)) {
                    *y = *x * 1.0001 + 0.5;
                }
                black_box(y);
            }
        });
    });
    for (start, name) in [
        (Start::Made, "calendar"),
        (Start::Pushed, "calendar, fed by another thread"),
    ] {
        let program = chain::program(start, "Saxpy", M, cores, BLOCK);
        group.bench_function(name, |b| {
            b.iter_custom(|n| replay_time(&program, n + 100).mul_f64(n as f64 / (n + 100) as f64));
        });
    }
    group.finish();
}

criterion_group!(benches, empty_chain, saxpy_chain);
criterion_main!(benches);
