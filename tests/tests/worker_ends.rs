//! However a worker's process ends, that is seen by the lock that it holds, also if its socket stays open: the cause is right, it is
//! one loss, and nobody can tell from the output.
//!
//! No test harness: this program is its own worker process, so `main` first asks whether it is one.

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
    use std::path::{Path, PathBuf};
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use rustix::process::{Pid, Signal, getpid, kill_process};
    use zbmd_backends::kernel::{Io, Kernel, KernelFault};
    use zbmd_backends::op::{CustomActor, Registry, Signature};
    use zbmd_compiler::{CompileOptions, Losses, MachineChoice, compile_str};
    use zbmd_executor::supervise::{Cause, What};
    use zbmd_executor::{Engine, Isolation, RunOptions};
    use zbmd_ir::{DType, InPort, OutPort, TokenType};
    use zbmd_tests::actors;
    use zbmd_tests::harness::{self, Test};
    use zbmd_tests::losses::{Feed, HARDY, Told, live, live_with, options, supervised};
    use zbmd_tests::other_processes::{children_of, hold_sockets_of};

    const PROCESSES: Isolation = Isolation::Processes { program: None };
    const FEED: Feed = Feed {
        seed: 3,
        iterations: 400_000,
        per_s: Some(400_000.0),
    };
    /// The exit code of a worker that ends itself.
    const EXIT_CODE: i32 = 3;
    /// Names a file in the environment. The worker that finds it there removes it, and ends.
    const ORDER: &str = "ZBMD_TEST_END";
    /// A worker looks for the file once in so many calls.
    const CALLS_PER_LOOK: u32 = 64;

    /// Passes tokens on, and ends its process if it is told to.
    struct Ending;

    static CALLS: AtomicU32 = AtomicU32::new(0);

    impl Kernel for Ending {
        fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
            static ORDER_FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
            io.output::<f32>(0).copy_from_slice(io.input::<f32>(0));
            let order_file = ORDER_FILE.get_or_init(|| std::env::var_os(ORDER).map(PathBuf::from));
            let looks = CALLS
                .fetch_add(1, Ordering::Relaxed)
                .is_multiple_of(CALLS_PER_LOOK);
            if let Some(path) = order_file
                && looks
                && std::fs::remove_file(path).is_ok()
            {
                std::process::exit(EXIT_CODE);
            }
            Ok(())
        }
    }

    impl CustomActor for Ending {
        fn ports(&self) -> Signature {
            let token = TokenType::scalar(DType::F32);
            let input = InPort {
                name: "x".to_owned(),
                token: token.clone(),
                rate: 1,
                window: 1,
            };
            let output = OutPort {
                name: "y".to_owned(),
                token,
                rate: 1,
            };
            Signature {
                inputs: vec![input],
                outputs: vec![output],
                states: Vec::new(),
            }
        }
    }

    fn registry() -> Registry {
        let mut registry = actors::registry();
        registry.register("ending", |_| Ok(Ending));
        registry
    }

    fn engine() -> Engine {
        let model = r#"Model(name: "ends", sources: { "in": Stream(dtype: f32) }, sinks: { "out": Stream() },
            actors: { "pass": Custom("ending", inputs: { "x": f32 }, outputs: { "y": f32 }),
                      "sum": Expr("x + s", inputs: { "x": f32, "s": f32 }) },
            channels: [ (from: "in", to: ["pass"]), (from: "pass", to: ["sum.x"]),
                        (from: "sum", to: ["sum.s", "out"], initial: [0.0]) ])"#;
        let registry = registry();
        let options = CompileOptions {
            registry: registry.clone(),
            machine: MachineChoice::Uniform(1),
            contingencies: Losses::None,
            ..CompileOptions::default()
        };
        let compiled = compile_str("ends.ron", model, ".", &options);
        let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
        Engine::new(compiled.program, &registry).expect("an engine")
    }

    /// Nothing but the end of a process is taken for a loss here, however long a busy computer stands still.
    fn patient_options(engine: &Engine) -> RunOptions {
        let patient = HARDY.replace(
            "Supervision(",
            r#"Supervision(detect: (floor: "100s"), start: "100s", join: "100s", kill: "100s", "#,
        );
        let mut options = options(PROCESSES);
        options.supervised = Some(supervised(engine, &patient, None));
        options
    }

    fn losses(told: &Told) -> Vec<Cause> {
        let events = told.events.iter();
        events
            .filter_map(|event| match &event.what {
                What::Lost { cause, .. } => Some(cause.clone()),
                _ => None,
            })
            .collect()
    }

    /// How a worker comes to its end.
    #[derive(Clone, Copy, Debug)]
    enum End {
        Signal(Signal),
        Exit,
    }

    impl End {
        fn bring_about(self, worker: Pid, order_file: &Path) {
            match self {
                Self::Signal(signal) => kill_process(worker, signal).expect("it is there"),
                Self::Exit => drop(std::fs::File::create(order_file).expect("a file")),
            }
        }

        fn cause(self) -> Cause {
            match self {
                Self::Signal(signal) => Cause::Killed {
                    signal: signal.as_raw(),
                },
                Self::Exit => Cause::Exited { code: EXIT_CODE },
            }
        }
    }

    /// Somebody else has the sockets of a worker open when it ends: they never come to their end. Without the lock the run
    /// would wait for ever.
    fn sockets_that_stay_open() {
        let engine = engine();
        let plain = live(&engine, FEED, options(Isolation::Threads));
        plain
            .outcome
            .as_ref()
            .expect("an undisturbed run ends well");
        let folder = tempfile::tempdir().expect("a folder");
        let order_file = folder.path().join("end");
        // SAFETY: no other thread of this program is at work: sessions have ended.
        #[expect(unsafe_code, reason = "tells workers how they are told to end")]
        unsafe {
            std::env::set_var(ORDER, &order_file);
        }

        for end in [
            End::Signal(Signal::KILL),
            End::Signal(Signal::ABORT),
            End::Exit,
        ] {
            let mut held = None;
            let told = live_with(
                &engine,
                FEED,
                patient_options(&engine),
                |stopper, is_over| {
                    // From when it is given work on, it holds its lock.
                    while stopper.iterations() == 0 && !is_over.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    let worker = *children_of(getpid()).first().expect("the run lasts longer");
                    held = hold_sockets_of(worker);
                    end.bring_about(worker, &order_file);
                },
            );
            let Some(held) = held else {
                return println!("SKIPPED: sockets of other processes cannot be held open here");
            };
            assert!(!held.is_empty(), "the worker has a socket");
            told.outcome.as_ref().expect("it goes on");
            assert_eq!(losses(&told), [end.cause()], "{end:?}");
            assert_eq!(told.sinks, plain.sinks, "{end:?}");
        }
    }

    /// Workers that end because the run is over are no losses, nor are those that stand by.
    fn ends_in_good_order() {
        let engine = engine();
        let feed = Feed {
            iterations: 100_000,
            ..FEED
        };
        let plain = live(&engine, feed, options(Isolation::Threads));
        for standby in [false, true] {
            let mut options = patient_options(&engine);
            options.standby = standby;
            let told = live(&engine, feed, options);
            assert_eq!(losses(&told), [], "{:?}", told.events);
            assert_eq!(told.outcome.expect("well").report.recoveries, 0);
            assert_eq!(told.sinks, plain.sinks);
            assert_eq!(children_of(getpid()), [], "none is left");
        }
    }

    pub(super) fn main() {
        zbmd_executor::serve_if_worker(&registry());
        let tests: [Test; 2] = [
            ("sockets_that_stay_open", sockets_that_stay_open),
            ("ends_in_good_order", ends_in_good_order),
        ];
        harness::run(&tests, || true);
    }
}
