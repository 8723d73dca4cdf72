//! Replays of hand-built plans against the reference interpreter, bit for bit, and the ends that a run can have.

mod common;

use std::sync::Arc;
use std::time::Duration;

use std::sync::atomic::{AtomicU32, Ordering};

use common::{
    Streams, TestOp, drive, inputs, interpreter, registry, run, source_firings, three_to_two,
    verified, with_tail,
};
use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_executor::{Engine, EngineError, RunError, RunOptions, StreamError};
use zbmd_ir::testing::programs;
use zbmd_ir::{Program, State};

fn engine(program: Program) -> Engine {
    Engine::new(verified(program), &registry()).expect("all ops are known")
}

#[test]
fn whole_blocks_give_what_the_interpreter_gives() {
    for program in programs::all() {
        let name = program.graph.name.clone();
        let block = program.plans[zbmd_ir::PlanId(0)].block;
        let engine = engine(program);
        let blocks: &[u64] = if cfg!(miri) {
            &[3]
        } else {
            &[0, 1, 2, 3, 7, 100]
        };
        let rests: &[u64] = if cfg!(miri) {
            &[block - 1]
        } else {
            &[0, 1 % block, block - 1]
        };
        for &blocks in blocks {
            for &rest in rests {
                let firings = source_firings(engine.program());
                let given = inputs(engine.program(), (blocks * block + rest) * firings);
                let (outputs, outcome) = run(&engine, RunOptions::default(), &given);
                let outcome = outcome.expect("runs");
                let mut oracle = interpreter(engine.program());
                let expect = oracle.run(&given, Some(blocks * block)).expect("runs");
                assert_eq!(
                    outputs, expect.outputs,
                    "{name}, {blocks} blocks and {rest}"
                );
                assert_eq!(
                    outcome.state, expect.state,
                    "{name}, {blocks} blocks and {rest}"
                );
                let left = &outcome.report.sources[0];
                assert_eq!(left.leftover, expect.leftover[&left.name], "{name}");
            }
        }
    }
}

#[test]
fn the_tail_plan_runs_what_is_less_than_a_block() {
    for program in programs::all() {
        let name = program.graph.name.clone();
        let engine = engine(with_tail(program));
        for tokens in 0..20 {
            let given = inputs(engine.program(), tokens);
            let (outputs, outcome) = run(&engine, RunOptions::default(), &given);
            let expect = interpreter(engine.program())
                .run(&given, None)
                .expect("runs");
            assert_eq!(outputs, expect.outputs, "{name}, {tokens} tokens");
            assert_eq!(
                outcome.expect("runs").state,
                expect.state,
                "{name}, {tokens} tokens"
            );
        }
    }
}

#[test]
fn a_run_cut_in_two_is_the_run_in_one() {
    // Miri takes minutes for all: it has one with threads that wait for each other.
    let programs = if cfg!(miri) {
        vec![programs::two_devices()]
    } else {
        programs::all()
    };
    for program in programs {
        let name = program.graph.name.clone();
        let engine = engine(with_tail(program));
        let firings = source_firings(engine.program());
        let given = inputs(engine.program(), 23 * firings);
        let (whole, outcome) = run(&engine, RunOptions::default(), &given);
        let whole_state = outcome.expect("runs").state;
        let cuts: &[u64] = if cfg!(miri) { &[9] } else { &[0, 1, 4, 9, 23] };
        for &cut in cuts {
            let (_, source) = engine.program().graph.sources().next().expect("a source");
            let at = (cut * firings * 4 * source.outputs[0].rate) as usize;
            let half = |range: fn(&[u8], usize) -> &[u8]| -> Streams {
                given
                    .iter()
                    .map(|(n, b)| (n.clone(), range(b, at).to_vec()))
                    .collect()
            };
            let (first, outcome) = run(&engine, RunOptions::default(), &half(|b, at| &b[..at]));
            let bytes = zbmd_ir::state::encode(
                &outcome.expect("runs").state,
                &engine.program().graph,
                None,
            );
            let saved = zbmd_ir::state::decode(&bytes, &engine.program().graph).expect("ours");
            let options = RunOptions {
                state: Some(saved.state),
                ..RunOptions::default()
            };
            let (second, outcome) = run(&engine, options, &half(|b, at| &b[at..]));
            let outcome = outcome.expect("runs");
            assert_eq!(outcome.state, whole_state, "{name}, cut at {cut}");
            assert_eq!(outcome.report.iterations_total, whole_state.iterations);
            for (sink, bytes) in &whole {
                let joined = [first[sink].as_slice(), &second[sink]].concat();
                assert_eq!(&joined, bytes, "{name}, cut at {cut}");
            }
        }
    }
}

#[test]
fn iterations_are_a_limit_and_the_rest_is_counted() {
    let engine = engine(with_tail(programs::window()));
    let given = inputs(engine.program(), 50);
    for limit in [0, 1, 4, 6, 50, 99] {
        let options = RunOptions {
            iterations: Some(limit),
            ..RunOptions::default()
        };
        let (outputs, outcome) = run(&engine, options, &given);
        let expect = interpreter(engine.program())
            .run(&given, Some(limit))
            .expect("runs");
        assert_eq!(outputs, expect.outputs, "limit {limit}");
        assert_eq!(outcome.expect("runs").report.iterations, limit.min(50));
    }
}

#[test]
fn padding_completes_the_last_iteration_with_zeros() {
    let engine = engine(three_to_two());
    for (tokens, padded, iterations) in [
        (0, 0, 0),
        (1, 2, 1),
        (3, 0, 1),
        (12, 0, 4),
        (14, 1, 5),
        (16, 2, 6),
    ] {
        let given = inputs(engine.program(), tokens);
        let options = RunOptions {
            pad: true,
            ..RunOptions::default()
        };
        let (outputs, outcome) = run(&engine, options, &given);
        let outcome = outcome.expect("runs");
        let source = &outcome.report.sources[0];
        assert_eq!(
            (source.padded, outcome.report.iterations),
            (padded, iterations),
            "{tokens} tokens"
        );
        assert_eq!(
            (source.tokens, source.leftover),
            (tokens, 0),
            "{tokens} tokens"
        );
        assert_eq!(outcome.state.consumed[0].1, tokens, "zeros are not input");
        let mut full = given;
        full.get_mut("in")
            .expect("a source")
            .extend(vec![0; padded as usize * 4]);
        let expect = interpreter(engine.program())
            .run(&full, None)
            .expect("runs");
        assert_eq!(outputs, expect.outputs, "{tokens} tokens");
    }

    // Without the request the rest is counted.
    let (_, outcome) = run(
        &engine,
        RunOptions::default(),
        &inputs(engine.program(), 14),
    );
    assert_eq!(outcome.expect("runs").report.sources[0].leftover, 2);
}

#[test]
fn a_sink_that_is_not_pulled_stops_the_run_and_loses_nothing() {
    let engine = engine(with_tail(programs::pipeline()));
    let given = inputs(engine.program(), 100_000);
    let options = RunOptions {
        queue_bytes: 4_096,
        ..RunOptions::default()
    };
    let mut session = engine.start(options).expect("starts");
    let mut source = session.source("in").expect("a source");
    let mut sink = session.sink("out").expect("a sink");
    let bytes = &given["in"];
    // Both queues and the pipeline fill up; then nothing more is taken, however often it is offered.
    let (mut pushed, mut refusals) = (0, 0);
    while refusals < 100_000 && pushed < bytes.len() {
        match source.try_push_bytes(&bytes[pushed..]).expect("open") {
            0 => refusals += 1,
            tokens => pushed += tokens as usize * 4,
        }
    }
    assert!(
        pushed < bytes.len(),
        "everything was taken although nobody pulls"
    );
    let (outputs, outcome) = std::thread::scope(|scope| {
        scope.spawn(move || source.push_bytes(&bytes[pushed..]).expect("open"));
        let all = scope.spawn(move || {
            let mut all = vec![0; bytes.len()];
            assert_eq!(sink.pull_bytes(&mut all), Ok(100_000));
            assert_eq!(sink.pull_bytes(&mut [0; 4]), Ok(0));
            all
        });
        let outcome = session.join();
        (all.join().expect("no panic"), outcome)
    });
    outcome.expect("runs");
    let expect = interpreter(engine.program())
        .run(&given, None)
        .expect("runs");
    assert!(outputs == expect.outputs["out"]);
}

/// Calls after which [`Broken`] breaks.
const CALLS: u32 = if cfg!(miri) { 20 } else { 500 };

/// Faults or panics after [`CALLS`] calls.
struct Broken {
    panics: bool,
    calls: AtomicU32,
}

impl Kernel for Broken {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        io.output::<f32>(0).fill(1.0);
        if self.calls.fetch_add(1, Ordering::Relaxed) < CALLS {
            return Ok(());
        }
        assert!(!self.panics, "enough calls");
        Err(KernelFault("enough calls"))
    }
}

#[test]
fn a_fault_or_panic_stops_all_and_names_the_actor() {
    for panics in [false, true] {
        let programs = [
            (programs::window(), "fir"),
            (programs::two_devices(), "fir"),
            (programs::round_trip(), "gain"),
        ];
        for (program, actor) in programs {
            let mut registry = registry();
            for op in ["Fir", "Gain"] {
                registry.add(TestOp(
                    op,
                    Box::new(move |_| {
                        Arc::new(Broken {
                            panics,
                            calls: AtomicU32::new(0),
                        })
                    }),
                ));
            }
            let engine = Engine::new(verified(program), &registry).expect("known");
            let given = inputs(engine.program(), 20 * u64::from(CALLS));
            let (_, outcome) = run(&engine, RunOptions::default(), &given);
            let error = outcome.expect_err("there are more calls");
            let text = error.to_string();
            assert!(
                text.contains(actor) && text.contains("enough calls"),
                "{text}"
            );
            assert_eq!(matches!(error, RunError::Panic { .. }), panics);
        }
    }
}

#[test]
fn a_dropped_session_gives_up_without_waiting_for_input() {
    for program in programs::all() {
        let engine = engine(program);
        let mut session = engine.start(RunOptions::default()).expect("starts");
        let mut source = session.source("in").expect("a source");
        let mut sink = session.sink("out").expect("a sink");
        source.push(&[1.0f32; 100]).expect("open");
        drop(session);
        let refused = source.push(&[1.0f32]);
        assert!(matches!(
            refused,
            Err(StreamError::Stopped { .. } | StreamError::Closed { .. })
        ));
        // Tokens that were made can still be pulled; then the end shows.
        while let Ok(1..) = sink.pull(&mut [0.0f32; 8]) {}
    }
}

#[test]
fn a_stop_ends_at_a_border_and_the_state_goes_on() {
    let engine = engine(with_tail(programs::two_devices()));
    let given = inputs(engine.program(), 4000);
    let mut session = engine.start(RunOptions::default()).expect("starts");
    let mut source = session.source("in").expect("a source");
    let mut sink = session.sink("out").expect("a sink");
    source.push_bytes(&given["in"]).expect("there is room");
    let mut first = vec![0; 400];
    sink.pull_bytes(&mut first).expect("runs");
    session.stopper().stop();
    let rest = std::thread::spawn(move || {
        let mut all = Vec::new();
        let mut piece = [0; 64];
        while let Ok(tokens @ 1..) = sink.pull_some_bytes(&mut piece) {
            all.extend_from_slice(&piece[..tokens as usize * 4]);
        }
        all
    });
    let outcome = session.join().expect("runs");
    let first = [first, rest.join().expect("no panic")].concat();
    let taken = outcome.state.consumed[0].1 as usize;
    assert_eq!(outcome.report.sources[0].leftover as usize, 4000 - taken);

    let options = RunOptions {
        state: Some(outcome.state),
        ..RunOptions::default()
    };
    let later: Streams = [("in".to_owned(), given["in"][taken * 4..].to_vec())].into();
    let (second, _) = run(&engine, options, &later);
    let expect = interpreter(engine.program())
        .run(&given, None)
        .expect("runs");
    assert!([first, second["out"].clone()].concat() == expect.outputs["out"]);
}

#[test]
fn a_batch_waits_for_half_of_what_fits_or_the_end() {
    let engine = engine(with_tail(programs::two_devices()));
    let given = inputs(engine.program(), 4000);
    let expect = interpreter(engine.program())
        .run(&given, None)
        .expect("runs");
    let mut session = engine.start(RunOptions::default()).expect("starts");
    let mut source = session.source("in").expect("a source");
    let mut sink = session.sink("out").expect("a sink");

    // Each block has fewer tokens than half of what fits; no batch but the last has.
    let outputs = std::thread::scope(|scope| {
        scope.spawn(move || {
            source.push_bytes(&given["in"]).expect("open");
            drop(source);
        });
        let batches = scope.spawn(move || {
            let linger = Duration::from_secs(60);
            let mut all: Vec<u8> = Vec::new();
            let mut sizes = Vec::new();
            let mut batch = [0; 4 * 64];
            while let Ok(tokens @ 1..) = sink.pull_batch_bytes(&mut batch, linger) {
                all.extend_from_slice(&batch[..tokens as usize * 4]);
                sizes.push(tokens);
            }
            let (_, earlier) = sizes.split_last().expect("at least one batch");
            assert!(earlier.iter().all(|&tokens| tokens >= 32), "{sizes:?}");
            all
        });
        batches.join().expect("no panic")
    });
    session.join().expect("runs");
    assert!(outputs == expect.outputs["out"]);
}

#[test]
fn streams_refuse_what_does_not_fit() {
    let engine = engine(programs::chain());
    let mut session = engine.start(RunOptions::default()).expect("starts");
    let unknown = session.source("iq").expect_err("there is none");
    assert_eq!(unknown.to_string(), "no source `iq`; there are: in");
    let mut source = session.source("in").expect("a source");
    assert!(matches!(
        session.source("in"),
        Err(StreamError::Taken { .. })
    ));
    let error = source.push(&[1i16, 2]).expect_err("f32 tokens");
    assert_eq!(
        error.to_string(),
        "`in` carries f32; i16 was used: use elements of f32"
    );
    let error = source.push_bytes(&[0; 6]).expect_err("half a token");
    assert_eq!(
        error.to_string(),
        "`in` has tokens of 4 bytes; 6 bytes are not a whole number of them"
    );
}

#[test]
fn sinks_without_a_reader_are_dropped_and_counted() {
    let engine = engine(programs::chain());
    let given = inputs(engine.program(), 100_000);
    let session = engine.start(RunOptions::default()).expect("starts");
    let (_, outcome) = drive(session, &given, &[]);
    let report = outcome.expect("runs").report;
    assert_eq!(
        (report.sinks[0].tokens, report.sinks[0].discarded > 0),
        (200_000, true)
    );
    assert!(report.to_string().contains("nobody pulled them"));
}

#[test]
fn a_state_of_another_model_is_refused() {
    let engine = engine(programs::window());
    let other = State::initial(&programs::feedback().graph);
    let options = RunOptions {
        state: Some(other),
        ..RunOptions::default()
    };
    let error = engine.start(options).expect_err("another number of tokens");
    assert!(
        matches!(
            error,
            EngineError::State {
                found: 0,
                needed: 8,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn unknown_ops_are_refused_by_name() {
    let error = Engine::new(
        verified(programs::window()),
        &zbmd_backends::op::Registry::empty(),
    )
    .expect_err("no ops at all");
    assert!(
        error
            .to_string()
            .starts_with("actor `fir`: unknown op `Fir`"),
        "{error}"
    );
}

#[test]
fn reports_measure_slots_and_latencies() {
    let engine = engine(programs::two_devices());
    let given = inputs(engine.program(), 4000);
    let options = RunOptions {
        sample_every: 10,
        ..RunOptions::default()
    };
    let (_, outcome) = run(&engine, options, &given);
    let report = outcome.expect("runs").report;
    let plan = &report.plans[0];
    assert_eq!(
        (plan.blocks, plan.workers.len(), plan.latencies.len()),
        (1000, 2, 1)
    );
    assert!(
        plan.workers
            .iter()
            .all(|w| w.slots.iter().all(|s| s.samples == 100))
    );
    let latency = &plan.latencies[0];
    assert!(
        latency.blocks > 900
            && latency.min_ns <= latency.p50_ns
            && latency.p50_ns <= latency.max_ns
    );
    assert!(report.to_json().contains("\"slot\": \"fir[0..2]\""));
}

/// What the verifier accepts of damaged chunks and loops around them computes the same.
#[test]
fn mutants_of_chunks_give_what_the_interpreter_gives() {
    let count = if cfg!(miri) { 20 } else { 1500 };
    let mut accepted = 0;
    for program in programs::all_chunked() {
        for mutant in zbmd_ir::testing::mutate::mutants(&program, 9, count) {
            let Ok(program) = zbmd_ir::verify::verify(mutant.program) else {
                continue;
            };
            let what = format!("{}: {}", program.graph.name, mutant.what);
            accepted += 1;
            let block = program.plans[zbmd_ir::PlanId(0)].block;
            let engine = Engine::new(program, &registry()).expect("all ops are known");
            let given = inputs(
                engine.program(),
                5 * block * source_firings(engine.program()),
            );
            let (outputs, outcome) = run(&engine, RunOptions::default(), &given);
            let expect = interpreter(engine.program())
                .run(&given, Some(5 * block))
                .expect("runs");
            assert_eq!(outputs, expect.outputs, "{what}");
            assert_eq!(outcome.expect("runs").state, expect.state, "{what}");
        }
    }
    assert!(cfg!(miri) || accepted > 200, "{accepted}: a weak sample");
}
