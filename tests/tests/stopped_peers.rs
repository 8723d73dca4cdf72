//! Every peer that the supervising thread deals with, stopped: the run goes on or ends as it should, within a time. The
//! table of what the supervising thread calls is in `executor/src/run/supervised.rs`. What only a unit test can bring about is
//! beside the code: a child that is stopped before it runs its program (`launch.rs`), a socket that is full
//! (`process.rs`, `wire.rs`), and a supervising thread that stands still (`self_watch.rs`).
//!
//! No test harness: this program is its own worker process.

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: workers in processes of their own need Linux");
}

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(target_os = "linux")]
mod linux {
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Condvar, Mutex};
    use std::time::{Duration, Instant};

    use zbmd_compiler::{CompileOptions, Losses, MachineChoice, compile_str};
    use zbmd_executor::supervise::Event;
    use zbmd_executor::{
        BorderState, Engine, Isolation, Outcome, RunError, RunOptions, StateSubscription,
    };
    use zbmd_tests::actors;
    use zbmd_tests::harness::{self, Test};
    use zbmd_tests::losses::{HARDY, options, supervised};

    /// Much longer than what is waited for: a run that is kept waiting would take for ever.
    const LIMIT: Duration = Duration::from_secs(60);
    const PROCESSES: Isolation = Isolation::Processes { program: None };
    const TOKENS: usize = 100_000;

    fn engine() -> Engine {
        let model = r#"Model(name: "sum", sources: { "in": Stream(dtype: i64) }, sinks: { "out": Stream() },
            actors: { "first": Expr("x + 0", inputs: { "x": i64 }),
                      "sum": Expr("s + x", inputs: { "s": i64, "x": i64 }) },
            channels: [ (from: "in", to: ["first"]), (from: "first", to: ["sum.x"]),
                        (from: "sum", to: ["sum.s"], initial: [0]), (from: "sum", to: ["out"]) ])"#;
        let options = CompileOptions {
            machine: MachineChoice::Uniform(2),
            contingencies: Losses::Single,
            ..CompileOptions::default()
        };
        let compiled =
            compile_str("sum.ron", model, ".", &options).unwrap_or_else(|d| panic!("{d}"));
        Engine::new(compiled.program, &actors::registry()).expect("an engine")
    }

    /// Runs it on so many ones; the last token of the output, and how the run ended. Fails if it takes too long.
    fn run(engine: &Engine, options: RunOptions) -> (i64, Result<Outcome, RunError>) {
        let begun = Instant::now();
        let mut session = engine.start(options).expect("a session");
        let mut source = session.source("in").expect("a source");
        let mut sink = session.sink("out").expect("a sink");
        let feeder = std::thread::spawn(move || {
            for _ in 0..TOKENS / 1000 {
                if source.push(&[1i64; 1000]).is_err() {
                    return;
                }
                // Slow enough for faults to come in between.
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let reader = std::thread::spawn(move || {
            let mut last = 0;
            let mut piece = [0i64; 1000];
            while let Ok(tokens @ 1..) = sink.pull(&mut piece) {
                last = piece[tokens as usize - 1];
            }
            last
        });
        let outcome = session.join();
        let last = reader.join().expect("no panic");
        feeder.join().expect("no panic");
        assert!(begun.elapsed() < LIMIT, "took {:?}", begun.elapsed());
        (last, outcome)
    }

    /// A program that is started as a worker and behaves as a script says.
    fn peer(folder: &Path, script: &str) -> Isolation {
        let path = folder.join("worker");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&path, mode).expect("its owner may");
        Isolation::Processes {
            program: Some(path),
        }
    }

    /// Workers that never become ready, each in its own way: they are killed and tried again, and at last the run is
    /// given up.
    fn workers_that_do_not_answer() {
        let engine = engine();
        let folder = tempfile::tempdir().expect("a folder");
        for script in [
            // Reads nothing and says nothing.
            "exec sleep 1000",
            // Stops half-way through a message.
            r"printf '\100\0\0' >&0; exec sleep 1000",
            // The same within the body.
            r"printf '\100\0\0\0\0\0\0\0abc' >&0; exec sleep 1000",
            // Says nonsense, and lives on.
            r"printf '\377\377\377\377\377\377\377\377' >&0; exec sleep 1000",
            // Closes its end, and lives on.
            "exec 0<&-; exec sleep 1000",
            // Is stopped before it is ready.
            "kill -STOP $$; exec sleep 1000",
        ] {
            let mut options = options(peer(folder.path(), script));
            let declared =
                r#"Supervision(start: "200ms", starts: 2, backoff: (base: "1ms", longest: "5ms"))"#;
            options.supervised = Some(supervised(&engine, declared, None));
            let (last, outcome) = run(&engine, options);
            let Err(RunError::GaveUp { verdict, .. }) = outcome else {
                panic!("{script}: {outcome:?}");
            };
            assert!(verdict.contains("did not start"), "{script}: {verdict}");
            assert_eq!(last, 0, "{script}");
        }
    }

    /// Something that a listener waits for, until the test lets it go.
    #[derive(Default)]
    struct Gate {
        is_open: Mutex<bool>,
        opened: Condvar,
    }

    impl Gate {
        fn pass(&self) {
            let mut is_open = self.is_open.lock().expect("no panic");
            while !*is_open {
                is_open = self.opened.wait(is_open).expect("no panic");
            }
        }

        fn open(&self) {
            *self.is_open.lock().expect("no panic") = true;
            self.opened.notify_all();
        }
    }

    /// A listener that does not come back from its first event: the run recovers from kills meanwhile, ends, and says
    /// how many events were not delivered.
    fn listeners_that_stall() {
        let engine = engine();
        let gate = Arc::<Gate>::default();
        let mut options = options(PROCESSES);
        let faults = "Inject(kinds: [kill, stop], every: (\"10ms\", \"30ms\"), \
            wait_for_border_after: 3, seed: 3)";
        let mut how = supervised(&engine, HARDY, Some(faults));
        let its = Arc::clone(&gate);
        how.listener = Some(Arc::new(move |_: &Event| its.pass()));
        options.supervised = Some(how);
        let (last, outcome) = run(&engine, options);
        let report = outcome.expect("it goes on").report;
        gate.open();
        assert_eq!(last, TOKENS as i64);
        assert!(report.recoveries > 0 && report.events_dropped > 0);
        let noted = report.notes.iter().any(|n| n.contains("not delivered"));
        assert!(noted, "{:?}", report.notes);
    }

    /// The same for whoever is given states.
    fn keepers_of_states_that_stall() {
        let engine = engine();
        let gate = Arc::<Gate>::default();
        let was_called = Arc::<AtomicBool>::default();
        let mut options = options(PROCESSES);
        let mut how = supervised(&engine, HARDY, None);
        let its = Arc::clone(&gate);
        let called = Arc::clone(&was_called);
        let keep = move |_: BorderState| {
            called.store(true, Ordering::Relaxed);
            its.pass();
        };
        how.states = Some(StateSubscription {
            every_ns: 1_000_000,
            is_wanted: Arc::new(|| true),
            listener: Arc::new(keep),
        });
        options.supervised = Some(how);
        let (last, outcome) = run(&engine, options);
        outcome.expect("it goes on");
        gate.open();
        assert_eq!(last, TOKENS as i64);
        assert!(was_called.load(Ordering::Relaxed));
    }

    fn named_pipe(folder: &Path) -> PathBuf {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let path = folder.join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a pipe");
        path
    }

    /// A trace that goes to a pipe that nobody reads, from the beginning or after a while.
    fn traces_that_nobody_reads() {
        let engine = engine();
        let folder = tempfile::tempdir().expect("a folder");
        let path = named_pipe(folder.path());
        for has_reader in [false, true] {
            // Open, and never read.
            let reader = has_reader.then(|| {
                let mut open = std::fs::File::options();
                open.read(true).write(true).open(&path).expect("a pipe")
            });
            let mut options = options(PROCESSES);
            options.trace = Some(path.clone());
            let faults = "Inject(kinds: [kill], every: (\"10ms\", \"30ms\"), \
                wait_for_border_after: 3, seed: 4)";
            options.supervised = Some(supervised(&engine, HARDY, Some(faults)));
            let (last, outcome) = run(&engine, options);
            let trace = outcome.expect("it goes on").report.trace.expect("a trace");
            assert_eq!(last, TOKENS as i64);
            let error = trace.error.expect("it is cut off");
            assert!(error.contains("took nothing"), "{error}");
            drop(reader);
        }
    }

    /// A run without supervision whose worker is stopped: it cannot go on, but it can be given up.
    fn unsupervised_workers_that_are_stopped() {
        let engine = engine();
        let folder = tempfile::tempdir().expect("a folder");
        let begun = Instant::now();
        let session = engine
            .start(options(peer(
                folder.path(),
                "kill -STOP $$; exec sleep 1000",
            )))
            .expect("a session");
        drop(session);
        assert!(begun.elapsed() < LIMIT, "took {:?}", begun.elapsed());
    }

    /// An input that neither goes on nor ends, at a padded end: a stop of the run ends the wait.
    fn inputs_that_stall() {
        let engine = engine();
        let begun = Instant::now();
        let mut options = options(PROCESSES);
        options.pad = true;
        options.supervised = Some(supervised(&engine, HARDY, None));
        let mut session = engine.start(options).expect("a session");
        let mut source = session.source("in").expect("a source");
        let mut sink = session.sink("out").expect("a sink");
        source.push(&[1i64; 100]).expect("taken");
        let stopper = session.stopper();
        // Fewer tokens than a block of the plan: the run waits for more when it is told to end.
        stopper.stop();
        let reader = std::thread::spawn(move || {
            let mut all = vec![0i64; 100];
            sink.pull(&mut all)
        });
        session.join().expect("it ends");
        reader.join().expect("no panic").expect("its tokens");
        drop(source);
        assert!(begun.elapsed() < LIMIT, "took {:?}", begun.elapsed());
    }

    pub(super) fn main() {
        zbmd_executor::serve_if_worker(&actors::registry());
        let tests: [Test; 6] = [
            ("workers_that_do_not_answer", workers_that_do_not_answer),
            ("listeners_that_stall", listeners_that_stall),
            ("keepers_of_states_that_stall", keepers_of_states_that_stall),
            ("traces_that_nobody_reads", traces_that_nobody_reads),
            (
                "unsupervised_workers_that_are_stopped",
                unsupervised_workers_that_are_stopped,
            ),
            ("inputs_that_stall", inputs_that_stall),
        ];
        harness::run(&tests, || true);
    }
}
