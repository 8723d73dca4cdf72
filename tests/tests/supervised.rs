//! Runs whose workers are killed, stopped and lied to: their outputs are those of an undisturbed run, bit for bit.
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
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
    use std::time::Duration;

    use zbmd_backends::kernel::{Io, Kernel, KernelFault};
    use zbmd_backends::op::{CustomActor, Registry, Signature};
    use zbmd_compiler::Losses;
    use zbmd_executor::supervise::What;
    use zbmd_executor::{Engine, Isolation, RunError, RunOptions};
    use zbmd_ir::testing::programs;
    use zbmd_ir::verify::verify;
    use zbmd_ir::{DType, InPlace, InPort, OutPort, PlanId, Role, TokenType};
    use zbmd_tests::actors;
    use zbmd_tests::harness::{self, Test};
    use zbmd_tests::losses::{Feed, HARDY, Told, engine, live, live_seen, options, supervised};
    use zbmd_tests::mix::Mix;

    /// Adds 1, and fails its 101st call of all, once: a worker of its own then, or a retry, does better.
    struct Faulty {
        panics: bool,
        in_place: bool,
    }

    static CALLS: AtomicU32 = AtomicU32::new(0);

    impl Kernel for Faulty {
        fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
            match io.over(0) {
                Some(_) => io.output::<f32>(0).iter_mut().for_each(|y| *y += 1.0),
                None => {
                    let from = io.input::<f32>(0);
                    io.output::<f32>(0)
                        .iter_mut()
                        .zip(from)
                        .for_each(|(y, x)| *y = x + 1.0);
                }
            }
            match (CALLS.fetch_add(1, Ordering::Relaxed) == 100, self.panics) {
                (true, true) => panic!("a kernel's bug"),
                (true, false) => Err(KernelFault("a passing fault")),
                _ => Ok(()),
            }
        }
    }

    impl CustomActor for Faulty {
        fn ports(&self) -> Signature {
            let (token, name) = (TokenType::scalar(DType::F32), "x".to_owned());
            let inputs = vec![InPort {
                name,
                token: token.clone(),
                rate: 1,
                window: 1,
            }];
            let outputs = vec![OutPort {
                name: "y".to_owned(),
                token,
                rate: 1,
            }];
            Signature {
                inputs,
                outputs,
                states: Vec::new(),
            }
        }

        fn in_place(&self) -> Vec<InPlace> {
            self.in_place
                .then_some(InPlace::whole(0, 0))
                .into_iter()
                .collect()
        }
    }

    /// Passes tokens on, and never comes back from one call: of the first process that gets there. The file that the
    /// environment names says whether one was.
    struct Spinning;

    const SPUN: &str = "ZBMD_TEST_SPUN";
    /// Lets a thread go that was given up: it would keep a core from the tests that follow.
    static SPUN_ENOUGH: AtomicBool = AtomicBool::new(false);

    impl Kernel for Spinning {
        fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
            io.output::<f32>(0).copy_from_slice(io.input::<f32>(0));
            if CALLS.fetch_add(1, Ordering::Relaxed) == 20
                && let Some(path) = std::env::var_os(SPUN)
                && std::fs::File::create_new(path).is_ok()
            {
                while !SPUN_ENOUGH.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
            Ok(())
        }
    }

    impl CustomActor for Spinning {
        fn ports(&self) -> Signature {
            Faulty {
                panics: false,
                in_place: false,
            }
            .ports()
        }
    }

    /// Copies, and takes [`SLOW_CALL`] for each call, however little was planned.
    struct Slow;

    const SLOW_CALL: Duration = Duration::from_millis(2);

    impl Kernel for Slow {
        fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
            io.output::<f32>(0).copy_from_slice(io.input::<f32>(0));
            std::thread::sleep(SLOW_CALL);
            Ok(())
        }
    }

    impl CustomActor for Slow {
        fn ports(&self) -> Signature {
            Spinning.ports()
        }
    }

    fn registry() -> Registry {
        let mut registry = actors::registry();
        registry.add(Mix);
        registry.register("faulty", |_| {
            Ok(Faulty {
                panics: false,
                in_place: false,
            })
        });
        registry.register("faulty_over", |_| {
            Ok(Faulty {
                panics: false,
                in_place: true,
            })
        });
        registry.register("panicky", |_| {
            Ok(Faulty {
                panics: true,
                in_place: false,
            })
        });
        registry.register("slow", |_| Ok(Slow));
        registry.register("spinning", |_| Ok(Spinning));
        registry
    }

    /// Models with windows, rates, several states, and feedback over several actors.
    const MODELS: [(&str, u64); 5] = [
        ("cd2dat/model.ron", 30_000),
        ("fm/model.ron", 20_000),
        ("agc/model.ron", 1_000_000),
        ("adsb/model.ron", 1_000),
        ("sgd/model.ron", 2_000),
    ];

    const PROCESSES: Isolation = Isolation::Processes { program: None };

    fn undisturbed(engine: &Engine, feed: Feed) -> Told {
        let told = live(engine, feed, options(Isolation::Threads));
        told.outcome.as_ref().expect("an undisturbed run ends well");
        told
    }

    /// What is done to a run, and when.
    #[derive(Clone, Copy)]
    enum Faults<'a> {
        /// These kinds, again and again, with about the time between them that a first border takes.
        Repeated(&'a str),
        /// As declared.
        Declared(&'a str),
    }

    impl Faults<'_> {
        /// The declaration for a run of this program that takes so long undisturbed.
        fn declaration(self, engine: &Engine, undisturbed: Duration, iterations: u64) -> String {
            let kinds = match self {
                Self::Repeated(kinds) => kinds,
                Self::Declared(declaration) => return declaration.to_owned(),
            };

            // Workers start within about 10 ms; a border is saved every so many blocks as there are stages, and the
            // last stage does the first of them that much later.
            let plan = &engine.program().plans[PlanId(0)];
            let first_border = 2 * u64::from(plan.stages) * plan.block;
            let first_border = undisturbed.mul_f64(first_border as f64 / iterations as f64);
            let shortest = 10 + first_border.as_millis();
            let longest = 4 * shortest;
            format!(
                "Inject(kinds: [{kinds}], every: (\"{shortest}ms\", \"{longest}ms\"), \
                wait_for_border_after: 3, seed: 5)"
            )
        }
    }

    /// Runs a model with faults until at least `least` of them hit; checks that nobody can tell.
    fn disturbed(
        model: &str,
        feed: Feed,
        faults: Faults<'_>,
        least: u64,
        change: impl Fn(&mut RunOptions),
    ) {
        let engine = engine(model, &registry(), Losses::Pairs);
        disturbed_engine((model, &engine), feed, faults, least, change);
    }

    /// [`disturbed`] for a program that is loaded.
    fn disturbed_engine(
        (model, engine): (&str, &Engine),
        feed: Feed,
        faults: Faults<'_>,
        least: u64,
        change: impl Fn(&mut RunOptions),
    ) {
        let mut feed = feed;
        let mut plain = undisturbed(engine, feed);
        // Long enough for some faults, however fast the machine.
        while plain.elapsed < Duration::from_millis(250) {
            feed.iterations *= 2;
            plain = undisturbed(engine, feed);
        }

        let faults = faults.declaration(engine, plain.elapsed, feed.iterations);
        let mut recoveries = 0;
        for _ in 0..40 {
            let mut options = options(PROCESSES);
            options.supervised = Some(supervised(engine, HARDY, Some(&faults)));
            change(&mut options);
            let told = live(engine, feed, options);
            let outcome = told.outcome.expect("a supervised run ends well");
            assert_eq!(
                told.sinks, plain.sinks,
                "{model}: other bits after {faults}"
            );
            assert_eq!(
                outcome.state,
                plain.outcome.as_ref().expect("checked").state,
                "{model}"
            );
            recoveries += outcome.report.recoveries;
            if recoveries >= least {
                return;
            }
        }
        panic!("{model}: only {recoveries} recoveries; the runs are too short for {faults}");
    }

    fn killed() {
        const KINDS: &str = "kill, kill_two, kill_twice, no_memory";
        for (model, iterations) in MODELS {
            let faults = Faults::Repeated(KINDS);
            disturbed(model, killed_feed(iterations), faults, 5, |_| ());
        }

        // The detector's weights are shared data: without them it is skipped, and data says so.
        if zbmd_tests::data::file("models/silero_vad.onnx").is_some() {
            let faults = Faults::Repeated(KINDS);
            disturbed("vad/model.ron", killed_feed(500), faults, 5, |_| ());
        }
    }

    /// Borders have what buffers of chunks hold of a channel's history, wherever the next worker goes on from.
    fn chunks_of_lost_workers() {
        for mut program in programs::all_chunked() {
            for actor in &mut program.graph.actors {
                if actor.role == Role::Compute {
                    actor.op = "Mix".into();
                }
            }

            let name = program.graph.name.clone();
            let program = verify(program).expect("hand-built programs are valid");
            let engine = Engine::new(program, &registry()).expect("an engine");
            let faults = "Inject(at: [(\"30ms\", kill), (\"90ms\", kill), (\"150ms\", kill)])";
            let faults = Faults::Declared(faults);
            disturbed_engine((&name, &engine), killed_feed(100_000), faults, 2, |_| ());
        }
    }

    fn killed_feed(iterations: u64) -> Feed {
        Feed {
            seed: 1,
            iterations,
            per_s: None,
        }
    }

    fn stopped_or_late() {
        for (model, iterations) in &MODELS[..3] {
            let feed = Feed {
                seed: 2,
                iterations: *iterations,
                per_s: None,
            };
            disturbed(model, feed, Faults::Repeated("stop, delay"), 3, |_| ());
        }
    }

    fn corrupted() {
        for (model, iterations) in &MODELS[..2] {
            let feed = Feed {
                seed: 3,
                iterations: *iterations,
                per_s: None,
            };
            let faults = Faults::Repeated("corrupt");
            disturbed(model, feed, faults, 3, |options| options.checksums = true);
        }
    }

    /// Without calendars for a loss, the lost worker is started again.
    fn restarted() {
        let engine = engine("cd2dat/model.ron", &registry(), Losses::None);
        let feed = Feed {
            seed: 4,
            iterations: 30_000,
            per_s: None,
        };
        let plain = undisturbed(&engine, feed);
        let faults = "Inject(at: [(\"30ms\", kill), (\"60ms\", stop), (\"90ms\", kill)])";
        let mut options = options(PROCESSES);
        options.supervised = Some(supervised(&engine, HARDY, Some(faults)));
        let told = live(&engine, feed, options);
        let outcome = told.outcome.expect("it goes on");
        assert_eq!(
            (told.sinks, outcome.report.recoveries > 0),
            (plain.sinks, true)
        );
    }

    /// As [`restarted`], with processes that stand by: they are there, and take the places of those that were killed.
    fn standing_by() {
        let engine = engine("cd2dat/model.ron", &registry(), Losses::None);
        let feed = Feed {
            seed: 4,
            iterations: 30_000,
            per_s: Some(100_000.0),
        };
        let plain = undisturbed(&engine, feed);
        let faults = "Inject(at: [(\"60ms\", kill), (\"120ms\", stop), (\"180ms\", kill)])";
        let mut options = options(PROCESSES);
        options.standby = true;
        options.supervised = Some(supervised(&engine, HARDY, Some(faults)));
        let most = AtomicUsize::new(0);
        let seen = |_: &str, _: &[u8]| {
            most.fetch_max(children(), Ordering::Relaxed);
        };
        let told = live_seen(&engine, feed, options, &seen);
        let outcome = told.outcome.expect("it goes on");
        assert_eq!(
            (told.sinks, outcome.report.recoveries > 0),
            (plain.sinks, true)
        );
        let workers = engine.program().plans[PlanId(0)].calendars.len();
        let most = most.into_inner();
        assert!(most > workers, "{most} processes for {workers} workers");
    }

    /// Processes that threads of this one have started and that were not waited for.
    fn children() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task")
            .expect("on Linux")
            .flatten();
        let of = |task: std::fs::DirEntry| {
            let list = std::fs::read_to_string(task.path().join("children"));
            list.unwrap_or_default().split_whitespace().count()
        };
        tasks.map(of).sum()
    }

    /// Processes and threads run the same code: the same bits, supervised or not, with checksums or without.
    fn anywhere() {
        let engine = engine("fm/model.ron", &registry(), Losses::Single);
        let feed = Feed {
            seed: 5,
            iterations: 1000,
            per_s: None,
        };
        let plain = undisturbed(&engine, feed);
        for isolation in [Isolation::Threads, PROCESSES] {
            for (checksums, supervise) in [(false, true), (true, true), (true, false)] {
                let mut options = options(isolation.clone());
                options.checksums = checksums;
                options.supervised = supervise.then(|| supervised(&engine, "Supervision()", None));
                let told = live(&engine, feed, options);
                assert_eq!(
                    told.sinks, plain.sinks,
                    "{isolation:?}, checksums {checksums}"
                );
                assert_eq!(
                    told.outcome.expect("well").state,
                    plain.outcome.as_ref().expect("well").state
                );
            }
        }
    }

    /// More losses than the declaration bears: a clean stop, and what was given out is a beginning of the whole.
    fn storm() {
        let engine = engine("cd2dat/model.ron", &registry(), Losses::Pairs);
        let feed = Feed {
            seed: 6,
            iterations: 400_000,
            per_s: None,
        };
        let mut options = options(PROCESSES);
        let declaration = "Supervision(intensity: 3, period: \"60s\", backoff: (base: \"1ms\", longest: \"5ms\"))";
        let faults = "Inject(kinds: [kill], every: (\"10ms\", \"20ms\"), seed: 8)";
        options.supervised = Some(supervised(&engine, declaration, Some(faults)));
        let told = live(&engine, feed, options);
        let Err(RunError::GaveUp {
            verdict,
            iterations,
            ..
        }) = &told.outcome
        else {
            panic!("a storm should end the run: {:?}", told.outcome)
        };
        assert!(
            verdict.contains("4 losses within 60 s, it tolerates 3"),
            "{verdict}"
        );
        let (tokens, hash) = told.sinks["dat"];
        assert!(
            tokens >= iterations * 160,
            "{tokens} tokens after {iterations} iterations"
        );
        let shorter = Feed {
            iterations: tokens / 160,
            ..feed
        };
        let plain = undisturbed(&engine, shorter);
        assert_eq!(
            plain.sinks["dat"],
            (tokens / 160 * 160, plain.sinks["dat"].1)
        );
        if tokens % 160 == 0 {
            assert_eq!(
                plain.sinks["dat"].1, hash,
                "what was given out is the beginning of the whole"
            );
        }
    }

    /// A model with one of the actors above.
    fn with_actor(op: &str) -> Engine {
        with_actor_in_blocks(op, None)
    }

    fn with_actor_in_blocks(op: &str, block: Option<u64>) -> Engine {
        let model = format!(
                "Model(name: \"faulty\", sources: {{ \"in\": Stream(dtype: f32) }}, sinks: {{ \"out\": Stream() }},
                 actors: {{ \"f\": Custom(\"{op}\", inputs: {{ \"x\": f32 }}, outputs: {{ \"y\": f32 }}),
                            \"sum\": Expr(\"x + s\", inputs: {{ \"x\": f32, \"s\": f32 }}) }},
                 channels: [ (from: \"in\", to: [\"f\"]), (from: \"f\", to: [\"sum.x\"]),
                             (from: \"sum\", to: [\"sum.s\", \"out\"], initial: [0.0]) ])"
            );
        let registry = registry();
        let compile = zbmd_compiler::CompileOptions {
            registry: registry.clone(),
            machine: zbmd_compiler::MachineChoice::Uniform(1),
            block,
            ..zbmd_compiler::CompileOptions::default()
        };
        let compiled = zbmd_compiler::compile_str("actor.ron", &model, ".", &compile)
            .unwrap_or_else(|d| panic!("{d}"));
        Engine::new(compiled.program, &registry).expect("an engine")
    }

    /// A kernel that never ends is found by its own CPU time, and its process replaced, or its thread given up.
    fn spinning() {
        for isolation in [PROCESSES, Isolation::Threads] {
            spinning_in(isolation);
        }
    }

    fn spinning_in(isolation: Isolation) {
        let engine = with_actor("spinning");
        let feed = Feed {
            seed: 10,
            iterations: 2_000_000,
            per_s: None,
        };
        let plain = undisturbed(&engine, feed);
        let folder = std::env::temp_dir().join(format!("zbmd-spun-{}", std::process::id()));
        // SAFETY: no other thread of this program is at work: sessions have ended.
        #[expect(unsafe_code, reason = "tells worker processes where to leave a note")]
        unsafe {
            std::env::set_var(SPUN, &folder);
        }
        let mut options = options(isolation);
        options.supervised = Some(supervised(&engine, HARDY, None));
        CALLS.store(0, Ordering::Relaxed);
        SPUN_ENOUGH.store(false, Ordering::Relaxed);
        let told = live(&engine, feed, options);
        SPUN_ENOUGH.store(true, Ordering::Relaxed);
        // SAFETY: as above.
        #[expect(unsafe_code, reason = "as above")]
        unsafe {
            std::env::remove_var(SPUN);
        }
        let spun = std::fs::remove_file(&folder);
        told.outcome.expect("it goes on");
        spun.expect("a kernel span");
        assert_eq!(told.sinks, plain.sinks);
        let overdue = told.events.iter().find_map(|event| match &event.what {
            What::Overdue {
                why,
                after_ns,
                bound_ns,
                ..
            } => Some((why, *after_ns, *bound_ns)),
            _ => None,
        });
        let (why, after_ns, bound_ns) = overdue.expect("found to hang");
        println!(
            "     {why}: after {} us, bound {} us",
            after_ns / 1000,
            bound_ns / 1000
        );
        assert!(
            after_ns < 5_000_000 + 2 * bound_ns,
            "{why} after {after_ns} ns, bound {bound_ns}"
        );
    }

    /// A fault that a worker survives: the slot is done again, or the epoch, as where the slot's input is overwritten.
    fn faulty() {
        for (op, recoveries) in [("faulty", 0), ("panicky", 1), ("faulty_over", 1)] {
            let engine = with_actor(op);
            let program = engine.program();
            let over = program
                .plans
                .iter()
                .any(|p| !p.over(&program.graph).is_empty());
            assert_eq!(over, op == "faulty_over", "{op}");
            let feed = Feed {
                seed: 7,
                iterations: 3_000_000,
                per_s: None,
            };
            CALLS.store(1000, Ordering::Relaxed);
            let plain = undisturbed(&engine, feed);
            CALLS.store(0, Ordering::Relaxed);
            let mut options = options(Isolation::Threads);
            // Nothing hangs here, however much CPU time a busy computer charges a slot with.
            let patient = "Supervision(detect: (floor: \"1s\"))";
            options.supervised = Some(supervised(&engine, patient, None));
            let told = live(&engine, feed, options);
            let outcome = told.outcome.expect("it goes on");
            assert!(
                CALLS.load(Ordering::Relaxed) > 100,
                "the fault was never met"
            );
            let found = (told.sinks, outcome.report.recoveries);
            assert_eq!(found, (plain.sinks, recoveries), "{op}: {:#?}", told.events);
        }
    }

    /// Borders are chosen by planned times. Where blocks take hundreds of times as long, and losses come before the first
    /// border that was chosen, later epochs have borders that are closer, and the run gets on.
    fn slower_than_planned() {
        let engine = with_actor_in_blocks("slow", Some(16));
        let plan = &engine.program().plans[PlanId(0)];
        let blocks_to_border = 500_000 / plan.period_ns;
        let longest_ms = 90;
        assert!(
            blocks_to_border * SLOW_CALL.as_millis() as u64 > 2 * longest_ms,
            "the first border is no later than the losses: {} ns a block",
            plan.period_ns
        );

        let feed = Feed {
            seed: 11,
            iterations: 200 * plan.block,
            per_s: None,
        };
        let plain = undisturbed(&engine, feed);
        let declaration =
            "Supervision(detect: (floor: \"1s\"), intensity: 1000, breaker: (failures: 1000),
            backoff: (base: \"1ms\", longest: \"5ms\"))";
        let faults =
            format!("Inject(kinds: [kill], every: (\"60ms\", \"{longest_ms}ms\"), seed: 11)");
        let mut options = options(PROCESSES);
        options.supervised = Some(supervised(&engine, declaration, Some(&faults)));
        let told = live(&engine, feed, options);
        let outcome = told.outcome.expect("it gets on");
        assert_eq!(told.sinks, plain.sinks);
        assert!(
            outcome.report.recoveries > 2,
            "{}",
            outcome.report.recoveries
        );
    }

    fn text_engine(gain: u32) -> Engine {
        let model = format!(
            "Model(name: \"sum\", sources: {{ \"in\": Stream(dtype: f64) }}, sinks: {{ \"out\": Stream() }},
             actors: {{ \"scale\": Expr(\"{gain} * x\", inputs: {{ \"x\": f64 }}),
                        \"sum\": Expr(\"x + s\", inputs: {{ \"x\": f64, \"s\": f64 }}) }},
             channels: [ (from: \"in\", to: [\"scale\"]), (from: \"scale\", to: [\"sum.x\"]),
                         (from: \"sum\", to: [\"sum.s\", \"out\"], initial: [0.0]) ])"
        );
        let options = zbmd_compiler::CompileOptions {
            machine: zbmd_compiler::MachineChoice::Uniform(2),
            ..zbmd_compiler::CompileOptions::default()
        };
        let compiled = zbmd_compiler::compile_str("sum.ron", &model, ".", &options)
            .unwrap_or_else(|d| panic!("{d}"));
        Engine::new(compiled.program, &registry()).expect("an engine")
    }

    /// Another bundle takes over while tokens flow: no token is lost, and the state goes on.
    fn swapped() {
        let (old, new) = (text_engine(2), text_engine(3));
        for isolation in [Isolation::Threads, PROCESSES] {
            let mut options = options(isolation);
            options.supervised = Some(supervised(&old, "Supervision()", None));
            let mut session = old.start(options).expect("a session");
            let mut source = session.source("in").expect("a source");
            let mut sink = session.sink("out").expect("a sink");
            let total = 3_000_000usize;
            let (mut got, mut part) = (Vec::with_capacity(total), vec![0f64; 4096]);
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let ones = vec![1f64; 1000];
                    for at in 0..total / 1000 {
                        source.push(&ones).expect("taken");
                        if at % 100 == 0 {
                            std::thread::sleep(Duration::from_millis(2));
                        }
                    }
                });
                while got.len() < total {
                    let tokens = sink.pull(&mut part).expect("tokens") as usize;
                    if tokens == 0 {
                        break;
                    }
                    let before = got.len();
                    got.extend_from_slice(&part[..tokens]);
                    if before < total / 10 && got.len() >= total / 10 {
                        session.swap(&new).expect("the same streams");
                    }
                }
            });
            drop(sink);
            let outcome = session.join().expect("well");
            assert_eq!(outcome.report.sinks[0].tokens, got.len() as u64);
            assert_eq!(got.len(), total);
            let steps: Vec<u64> = got.windows(2).map(|w| (w[1] - w[0]) as u64).collect();
            let change = steps
                .iter()
                .position(|s| *s == 3)
                .expect("the new one took over");
            assert!(change > total / 20, "only once it was asked to");
            assert!(
                steps[..change].iter().all(|s| *s == 2) && steps[change..].iter().all(|s| *s == 3)
            );
        }
        // Other streams are refused, in words.
        let other = engine("cd2dat/model.ron", &registry(), Losses::None);
        let mut options = options(Isolation::Threads);
        let unsupervised = old.start(options.clone()).expect("a session");
        let said = unsupervised
            .swap(&new)
            .expect_err("nobody could")
            .to_string();
        assert!(said.contains("not supervised"), "{said}");
        options.supervised = Some(supervised(&old, "Supervision()", None));
        let session = old.start(options).expect("a session");
        let said = session.swap(&other).expect_err("other streams").to_string();
        assert!(said.contains("sink `dat` of f32"), "{said}");
    }

    /// A program that was asked for behind a loss takes over behind all that the old one gave out, although the run goes
    /// back to a border before that: no token is lost or comes twice.
    fn swapped_behind_a_loss() {
        let (old, new) = (text_engine(2), text_engine(3));
        // On a busy machine it may take a while until something is given out.
        let given_out = [300, 1_000, 4_000]
            .into_iter()
            .map(|loss_ms| swap_after_loss(&old, &new, loss_ms))
            .find(|given_out| *given_out > 0);
        assert!(given_out.is_some(), "nothing was given out before a loss");
    }

    /// Loses a worker after so long, and swaps while it is away. How much had been given out.
    fn swap_after_loss(old: &Engine, new: &Engine, loss_ms: u64) -> usize {
        let (lost, losses) = std::sync::mpsc::channel();
        let declaration = r#"Supervision(backoff: (base: "200ms", longest: "400ms"))"#;
        let faults = format!("Inject(at: [(\"{loss_ms}ms\", kill)])");
        let mut options = options(PROCESSES);
        let mut supervised = supervised(old, declaration, Some(&faults));
        // No border is committed before the loss.
        supervised.save_every = Some(2_000);
        supervised.listener = Some(std::sync::Arc::new(move |event| {
            if matches!(event.what, What::Fence { .. }) {
                let _ = lost.send(());
            }
        }));
        options.supervised = Some(supervised);

        let block = old.program().plans[PlanId(0)].block as usize;
        let total = 400 * block;
        let mut session = old.start(options).expect("a session");
        let mut source = session.source("in").expect("a source");
        let mut sink = session.sink("out").expect("a sink");
        let mut got: Vec<f64> = Vec::with_capacity(total);
        source.push(&vec![1f64; total / 2]).expect("there is room");
        let pulled = AtomicUsize::new(0);
        let given_out = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut part = vec![0; 8 * 4096];
                while let Ok(tokens @ 1..) = sink.pull_some_bytes(&mut part) {
                    let tokens = part[..8 * tokens as usize].chunks_exact(8);
                    let tokens = tokens.map(|t| f64::from_ne_bytes(t.try_into().expect("8")));
                    got.extend(tokens);
                    pulled.store(got.len(), Ordering::Relaxed);
                }
            });
            losses.recv().expect("a loss");
            let given_out = pulled.load(Ordering::Relaxed);
            session.swap(new).expect("the same streams");
            source.push(&vec![1f64; total / 2]).expect("there is room");
            drop(source);
            reader.join().expect("no panic");
            given_out
        });
        let outcome = session.join().expect("well");
        assert_eq!(outcome.report.sinks[0].tokens, total as u64);
        assert_eq!(got.len(), total);
        let steps: Vec<u64> = got.windows(2).map(|w| (w[1] - w[0]) as u64).collect();
        let change = steps.iter().position(|step| *step == 3);
        let change = change.expect("the new one took over");
        assert!(steps[..change].iter().all(|step| *step == 2));
        assert!(steps[change..].iter().all(|step| *step == 3));
        given_out
    }

    /// After runs with kills: no process, no open file, no mapping more than before. The first of the
    /// tests, since in those after it a thread that was given up may end, and close its files, late.
    fn nothing_left() {
        let open = || {
            std::fs::read_dir("/proc/self/fd")
                .expect("on Linux")
                .count()
        };
        let mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").expect("on Linux");
            maps.lines().filter(|l| l.contains("memfd:zbmd")).count()
        };
        let engine = engine("cd2dat/model.ron", &registry(), Losses::Pairs);
        let feed = Feed {
            seed: 8,
            iterations: 20_000,
            per_s: None,
        };
        let before = (open(), mapped());
        for standby in [false, true, false] {
            let mut options = options(PROCESSES);
            options.standby = standby;
            let faults = "Inject(kinds: [kill], every: (\"40ms\", \"120ms\"), seed: 9)";
            options.supervised = Some(supervised(&engine, HARDY, Some(faults)));
            live(&engine, feed, options).outcome.expect("well");
        }
        assert_eq!((open(), mapped()), before, "files open and memory mapped");
        assert_eq!(children(), 0, "children");
    }

    /// Every injected fault is seen for what it is, and recovered from within the epoch that follows.
    fn events_tell_the_story() {
        let engine = engine("cd2dat/model.ron", &registry(), Losses::Single);
        let feed = Feed {
            seed: 9,
            iterations: 60_000,
            per_s: None,
        };
        let mut options = options(PROCESSES);
        let faults = "Inject(at: [(\"40ms\", kill)])";
        options.supervised = Some(supervised(&engine, HARDY, Some(faults)));
        let told = live(&engine, feed, options);
        told.outcome.expect("well");
        let names: Vec<&str> = told
            .events
            .iter()
            .filter_map(|event| match event.what {
                What::Injected { .. } => Some("injected"),
                What::Lost { .. } => Some("lost"),
                What::Fence { .. } => Some("fence"),
                What::Recovered { .. } => Some("recovered"),
                What::Quiesce { .. } => Some("quiesce"),
                What::Stopped { .. } => Some("stopped"),
                _ => None,
            })
            .collect();
        // A loaded machine may lose a worker of its own accord before.
        let from_injection = names.iter().copied().skip_while(|name| *name != "injected");
        let first: Vec<&str> = from_injection.take(3).collect();
        assert_eq!(first, ["injected", "lost", "fence"], "{names:?}");
        let set: BTreeSet<&str> = names.iter().copied().collect();
        assert!(
            set.contains("recovered") && set.contains("quiesce"),
            "{names:?}"
        );
        assert!(
            told.events
                .windows(2)
                .all(|w| w[0].at_ns <= w[1].at_ns + 50_000_000)
        );
    }

    pub(super) fn main() {
        zbmd_executor::serve_if_worker(&registry());
        let tests: [Test; 15] = [
            ("nothing_left", nothing_left),
            ("spinning", spinning),
            ("swapped", swapped),
            ("swapped_behind_a_loss", swapped_behind_a_loss),
            ("anywhere", anywhere),
            ("killed", killed),
            ("chunks_of_lost_workers", chunks_of_lost_workers),
            ("stopped_or_late", stopped_or_late),
            ("corrupted", corrupted),
            ("restarted", restarted),
            ("standing_by", standing_by),
            ("storm", storm),
            ("faulty", faulty),
            ("slower_than_planned", slower_than_planned),
            ("events_tell_the_story", events_tell_the_story),
        ];
        harness::run_apart(&tests, || true);
    }
}
