//! Looking into a run: `cargo bench -p zbmd-tests --bench probes [-- seconds]`.
//!
//! The FM receiver in real time, in blocks of a twentieth of a second, while nobody looks, while somebody comes for each block
//! and goes, and while somebody looks at every block: by turns, so many seconds each (10), the CPU time in parts of a core, and
//! whether what comes out has the same bits. Then as fast as it can: blocks a second.

use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;
use zbmd_compiler::{CompileOptions, MachineChoice, compile_file};
use zbmd_executor::{Engine, ProbeHandle, RunOptions};
use zbmd_tests::cpu_time;
use zbmd_tests::figures::load;
use zbmd_tests::run::graph_file;

/// Blocks a second in real time.
const BLOCKS_PER_S: u64 = 20;
const TURNS: usize = 2;
/// Periods of a run that is not held back.
const FREE_BLOCKS: u64 = 400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looking {
    Nobody,
    ComingAndGoing,
    Always,
}

const ALL: [Looking; 3] = [Looking::Nobody, Looking::ComingAndGoing, Looking::Always];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let seconds = words
        .iter()
        .find_map(|word| word.parse().ok())
        .unwrap_or(10);
    let options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        ..CompileOptions::default()
    };
    let compiled = compile_file(graph_file("fm/model.ron"), &options);
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    let engine = Engine::new(compiled.program, &options.registry).expect("an engine");
    let plan = &engine.program().plans[zbmd_ir::PlanId(0)];
    println!(
        "blocks of {} iterations, planned {} us",
        plan.block,
        plan.period_ns / 1000
    );

    println!("load {}", load());
    let mut outputs = Vec::new();
    for turn in 0..TURNS {
        for looking in ALL {
            let run = Run::new(&engine, looking, BLOCKS_PER_S * seconds, Some(BLOCKS_PER_S));
            let share = 100.0 * run.cpu.as_secs_f64() / run.elapsed.as_secs_f64();
            println!(
                "in real time, turn {turn}, {looking:?}: {share:.2} % of a core, {} looks, {} blocks seen",
                run.looks, run.seen
            );
            outputs.push(run.output);
        }
        for looking in ALL {
            let run = Run::new(&engine, looking, FREE_BLOCKS, None);
            let rate = FREE_BLOCKS as f64 / run.elapsed.as_secs_f64();
            println!(
                "as fast as it can, turn {turn}, {looking:?}: {rate:.1} blocks a second, {} looks, {} blocks seen",
                run.looks, run.seen
            );
        }
    }
    outputs.dedup();
    println!(
        "{}",
        if outputs.len() == 1 {
            "the same bits"
        } else {
            "OTHER BITS"
        }
    );
}

/// What a run did.
struct Run {
    cpu: Duration,
    elapsed: Duration,
    /// How often somebody came.
    looks: u64,
    seen: u64,
    output: u64,
}

impl Run {
    fn new(engine: &Engine, looking: Looking, blocks: u64, per_s: Option<u64>) -> Self {
        let mut session = engine
            .start(RunOptions {
                pin: false,
                ..RunOptions::default()
            })
            .expect("a session");
        let program = engine.program();
        let block = program.plans[zbmd_ir::PlanId(0)].block;
        let (id, source) = program.graph.sources().next().expect("a source");
        let block_bytes = block * engine.tokens_per_iteration(id) * source.outputs[0].token.bytes();
        let mut samples = fastrand::Rng::with_seed(3);
        let piece: Vec<u8> = (0..block_bytes / 4)
            .flat_map(|_| (samples.f32() - 0.5).to_le_bytes())
            .collect();
        let mut feed = session.source(&source.name).expect("a source");
        let (_, sink) = program.graph.sinks().next().expect("a sink");
        let mut drain = session.sink(&sink.name).expect("a sink");
        let probes = session.probes();

        let (begun, cpu) = (Instant::now(), cpu_time::of_process());
        let (looks, seen, output) = std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 1..=blocks {
                    feed.push_bytes(&piece).expect("taken");
                    if let Some(per_s) = per_s {
                        let due = Duration::from_secs(1) * number as u32 / per_s as u32;
                        std::thread::sleep(due.saturating_sub(begun.elapsed()));
                    }
                }
            });
            let drained = scope.spawn(move || {
                let token_bytes = drain.token().bytes() as usize;
                let mut part = vec![0; token_bytes << 12];
                let mut hash = 0_u64;
                loop {
                    let tokens = drain.pull_bytes(&mut part).expect("tokens") as usize;
                    hash ^=
                        xxh3_64(&part[..tokens * token_bytes]).rotate_left(7) ^ hash.rotate_left(1);
                    if tokens < 1 << 12 {
                        return hash;
                    }
                }
            });
            let (looks, seen) = look(&probes, looking);
            (looks, seen, drained.join().expect("a thread"))
        });
        let cpu = cpu_time::of_process() - cpu;
        let elapsed = begun.elapsed();
        session.join().expect("it ends well");
        Self {
            cpu,
            elapsed,
            looks,
            seen,
            output,
        }
    }
}

/// Looks at the channels in turn until the run is over; how often somebody came, and the blocks seen.
fn look(probes: &ProbeHandle, looking: Looking) -> (u64, u64) {
    let wait = Duration::from_secs(1);
    let (mut looks, mut seen) = (0, 0_u64);
    if looking == Looking::Nobody {
        return (0, 0);
    }
    let channels = probes.channels();
    for channel in channels.iter().cycle() {
        let Ok(mut probe) = probes.attach(&channel.name) else {
            break;
        };
        looks += 1;
        while let Ok(found) = probe.next(wait) {
            seen += u64::from(found.is_some());
            if looking == Looking::ComingAndGoing {
                break;
            }
        }
    }
    (looks, seen)
}
