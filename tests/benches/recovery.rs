//! What losses cost, and what being ready for them costs. Not criterion: distributions over many losses, and soaks.
//!
//! ```text
//! cargo bench -p zbmd-tests --bench recovery                       all but the soaks, some minutes
//! cargo bench -p zbmd-tests --bench recovery -- kills 1000         recovery over 1,000 kills, swap and restart
//! cargo bench -p zbmd-tests --bench recovery -- hang 200           detection of stopped workers
//! cargo bench -p zbmd-tests --bench recovery -- deaths 50 2048    when the death of a worker with 2 GiB resident is known: by the
//!                                                                  supervisor, by the end of a socket, by a process descriptor
//! cargo bench -p zbmd-tests --bench recovery -- calm 600           false alarms beside two busy loops, 10 minutes
//! cargo bench -p zbmd-tests --bench recovery -- cost               supervised against not, processes against threads
//!                                                                  (or of one model: `cost 25 fm`)
//! cargo bench -p zbmd-tests --bench recovery -- soak kill 600      a worker killed every 50 to 500 ms, 10 minutes
//!                                                                  for each model, or one: `soak stop 600 fm`
//! cargo bench -p zbmd-tests --bench recovery -- gpu 50             losses of a CUDA device: its worker killed, kernels
//!                                                                  that do wrong; swap to the CPU, and restarts
//! ```

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("not run: workers in processes of their own need Linux");
}

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use zbmd_compiler::Losses;
    use zbmd_executor::supervise::{Event, What};
    use zbmd_executor::{Engine, Isolation, RunOptions};
    use zbmd_tests::actors::registry;
    use zbmd_tests::figures::{load, quantiles};
    use zbmd_tests::losses::{Feed, HARDY, Told, engine, engine_on, live, live_with, supervised};
    use zbmd_tests::witness::{self, DeathTimes, Witness, times_text};

    const PROCESSES: Isolation = Isolation::Processes { program: None };
    /// The last one needs `ZBMD_DATA`.
    const MODELS: [&str; 5] = [
        "cd2dat/model.ron",
        "fm/model.ron",
        "agc/model.ron",
        "adsb/model.ron",
        "vad/model.ron",
    ];

    pub(super) fn main() {
        zbmd_executor::testing::on_open(gpu::misbehave_as_told);
        if std::env::var_os("ZBMD_WORKER").is_some() {
            witness::be_large_if_told();
        }
        zbmd_executor::serve_if_worker(&registry());
        let args: Vec<String> = std::env::args()
            .skip(1)
            .filter(|a| a != "--bench")
            .collect();
        let number = |at: usize, default: u64| {
            args.get(at)
                .and_then(|text| text.parse().ok())
                .unwrap_or(default)
        };
        match args.first().map(String::as_str) {
            Some("kills") => kills(number(1, 1000)),
            Some("hang") => hang(number(1, 200)),
            Some("deaths") => deaths(number(1, 50), number(2, 2048) as usize),
            Some("calm") => calm(number(1, 600)),
            Some("cost") => cost(number(1, 60), args.get(2).map_or("", String::as_str)),
            Some("gpu") => gpu::main(number(1, 50)),
            Some("soak") => {
                let kind = args.get(1).map_or("kill", String::as_str);
                soak(kind, number(2, 600), args.get(3).map_or("", String::as_str));
            }
            _ => {
                cost(20, "");
                kills(200);
                hang(50);
                calm(20);
            }
        }
    }

    /// How many iterations a second it does when nothing holds it up.
    fn pace(engine: &Engine) -> f64 {
        let mut feed = Feed {
            seed: 1,
            iterations: 1000,
            per_s: None,
        };
        loop {
            let told = live(engine, feed, RunOptions::default());
            let seconds = told.elapsed.as_secs_f64();
            if seconds > 0.3 {
                return feed.iterations as f64 / seconds;
            }
            feed.iterations *= 2;
        }
    }

    /// Times of one kind, in milliseconds.
    #[derive(Default)]
    struct Times(Vec<f64>);

    impl Times {
        fn add(&mut self, ns: u64) {
            self.0.push(ns as f64 / 1e6);
        }

        fn line(&self) -> String {
            let [p50, p99, max] = quantiles(&self.0, [0.5, 0.99, 1.0]);
            format!("{p50:8.2} {p99:8.2} {max:8.2}")
        }
    }

    #[derive(Default)]
    struct Split {
        detect: Times,
        fence: Times,
        restore: Times,
        replay: Times,
        all: Times,
        /// The last fault counted: another fence after it is not its own.
        last_ns: Option<u64>,
    }

    impl Split {
        fn take(&mut self, events: &[Event]) {
            self.take_with(events, &[]);
        }

        /// With faults that the supervisor did not bring about, and so does not tell of, in order.
        fn take_with(&mut self, events: &[Event], faults_ns: &[u64]) {
            let mut injected_ns = None;
            let mut detected_ns: Option<u64> = None;
            for event in events {
                match &event.what {
                    What::Injected { .. } if detected_ns.is_none() => {
                        injected_ns = Some(event.at_ns);
                    }
                    What::Fence { .. } => {
                        let others = faults_ns.iter().rev().find(|ns| **ns <= event.at_ns);
                        injected_ns = injected_ns.max(others.copied());
                        if injected_ns.is_some() {
                            detected_ns.get_or_insert(event.at_ns);
                        }
                    }
                    What::Recovered {
                        fence_ns,
                        restore_ns,
                        replay_ns,
                        ..
                    } => {
                        let (Some(from), Some(seen)) = (injected_ns.take(), detected_ns.take())
                        else {
                            continue;
                        };
                        if self.last_ns.replace(from) == Some(from) {
                            continue;
                        }
                        self.detect.add(seen - from);
                        self.fence.add(*fence_ns);
                        self.restore.add(*restore_ns);
                        self.replay.add(*replay_ns);
                        self.all.add(event.at_ns.saturating_sub(from));
                    }
                    _ => {}
                }
            }
        }

        fn print(&mut self, what: &str) {
            println!("{what}: {} recoveries", self.all.0.len());
            println!("  ms              p50      p99      max");
            for (name, times) in [
                ("detect ", &mut self.detect),
                ("fence  ", &mut self.fence),
                ("restore", &mut self.restore),
                ("replay ", &mut self.replay),
                ("all    ", &mut self.all),
            ] {
                println!("  {name}    {}", times.line());
            }
        }
    }

    fn disturbed(
        engine: &Engine,
        feed: Feed,
        faults: &str,
        change: impl FnOnce(&mut RunOptions),
    ) -> Told {
        let mut options = RunOptions {
            isolation: PROCESSES,
            supervised: Some(supervised(engine, HARDY, Some(faults))),
            ..RunOptions::default()
        };
        change(&mut options);
        live(engine, feed, options)
    }

    /// From the kill to the first new output, over many kills: by swapping to a contingency, and by a restart.
    fn kills(count: u64) {
        println!(
            "from SIGKILL to a worker's process to the first new output; cd2dat at half its pace, 3 devices"
        );
        for (what, losses, standby) in [
            ("swap to a contingency", Losses::Single, false),
            ("restart", Losses::None, false),
            ("restart with a process standing by", Losses::None, true),
        ] {
            let engine = engine("cd2dat/model.ron", &registry(), losses);
            let per_s = pace(&engine) / 2.0;
            let mut split = Split::default();
            let mut seed = 0;
            while (split.all.0.len() as u64) < count {
                seed += 1;
                let feed = Feed {
                    seed,
                    iterations: (per_s * 20.0) as u64,
                    per_s: Some(per_s),
                };
                let faults =
                    format!("Inject(kinds: [kill], every: (\"50ms\", \"150ms\"), seed: {seed})");
                let told = disturbed(&engine, feed, &faults, |o| o.standby = standby);
                told.outcome.expect("it goes on");
                split.take(&told.events);
            }
            split.print(what);
        }
    }

    /// From SIGSTOP to the fence.
    fn hang(count: u64) {
        let engine = engine("cd2dat/model.ron", &registry(), Losses::Single);
        let per_s = pace(&engine) / 2.0;
        let mut split = Split::default();
        let mut seed = 0;
        while (split.all.0.len() as u64) < count {
            seed += 1;
            let feed = Feed {
                seed,
                iterations: (per_s * 10.0) as u64,
                per_s: Some(per_s),
            };
            let faults =
                format!("Inject(kinds: [stop], every: (\"50ms\", \"150ms\"), seed: {seed})");
            let told = disturbed(&engine, feed, &faults, |_| ());
            told.outcome.expect("it goes on");
            split.take(&told.events);
        }
        split.print("SIGSTOP");
    }

    /// From SIGKILL to a worker with so much memory until that is known, by all means at once.
    fn deaths(count: u64, mib: usize) {
        let folder = tempfile::tempdir().expect("a folder");
        let environment = Witness::environment(folder.path(), mib);
        let witness = Witness::listen(folder.path());
        // SAFETY: no other thread is at work yet.
        #[expect(unsafe_code, reason = "tells worker processes to be large")]
        unsafe {
            std::env::set_var(witness::LARGE, environment);
        }

        let engine = engine_on(1, "agc/model.ron", &registry(), Losses::None);
        let patient = HARDY.replace("Supervision(", r#"Supervision(start: "60s", "#);
        let options = RunOptions {
            isolation: PROCESSES,
            supervised: Some(supervised(&engine, &patient, None)),
            ..RunOptions::default()
        };
        let feed = Feed {
            seed: 1,
            iterations: u64::MAX / 2,
            per_s: Some(100_000.0),
        };
        let load_before = load();
        let mut deaths = Vec::new();
        let told = live_with(&engine, feed, options, |stopper, _| {
            for number in 0..count {
                let worker = witness.next();
                // It loads its program now, and works for a while.
                std::thread::sleep(Duration::from_millis(200 + number * 37 % 100));
                deaths.push(worker.kill());
            }
            stopper.stop();
        });
        told.outcome.expect("it goes on");

        let mut losses = told.events.iter();
        let known_ns: Vec<u64> = deaths
            .iter()
            .map(|death| {
                let is_loss = |event: &&Event| {
                    matches!(event.what, What::Lost { .. }) && event.at_ns >= death.killed_ns
                };
                let loss = losses.find(is_loss).expect("each is a loss");
                loss.at_ns - death.killed_ns
            })
            .collect();
        let after_kill = |at_ns: fn(&DeathTimes) -> u64| -> Vec<u64> {
            let deaths = deaths.iter();
            deaths.map(|d| at_ns(d) - d.killed_ns).collect()
        };
        println!(
            "from SIGKILL to a worker with {mib} MiB resident, {count} times, load {load_before} to {}\n{:<36}{:>9} {:>9} {:>9}",
            load(),
            "until it is known, ms",
            "p50",
            "p99",
            "max"
        );
        for (what, times_ns) in [
            ("supervisor (lock, or its socket)", known_ns),
            ("end of another socket of it", after_kill(|d| d.eof_ns)),
            ("process descriptor", after_kill(|d| d.pidfd_ns)),
        ] {
            println!("  {what:<34}{}", times_text(&times_ns));
        }
    }

    /// False alarms on a loaded machine.
    fn calm(seconds: u64) {
        let busy = Arc::new(AtomicBool::new(true));
        let loops: Vec<_> = (0..2)
            .map(|_| {
                let busy = Arc::clone(&busy);
                std::thread::spawn(move || while busy.load(Ordering::Relaxed) {})
            })
            .collect();
        let engine = engine("cd2dat/model.ron", &registry(), Losses::Single);
        let per_s = pace(&engine) / 4.0;
        let feed = Feed {
            seed: 1,
            iterations: (per_s * seconds as f64) as u64,
            per_s: Some(per_s),
        };
        let told = disturbed(&engine, feed, "Inject()", |_| ());
        busy.store(false, Ordering::Relaxed);
        loops.into_iter().for_each(|l| l.join().expect("no panic"));
        let alarms = |what: fn(&What) -> bool| told.events.iter().filter(|e| what(&e.what)).count();
        println!(
            "{:.0} s beside two busy loops on {} cores: {} overdue, {} lost, {} slow",
            told.elapsed.as_secs_f64(),
            std::thread::available_parallelism().map_or(0, usize::from),
            alarms(|w| matches!(w, What::Overdue { .. })),
            alarms(|w| matches!(w, What::Lost { .. })),
            alarms(|w| matches!(w, What::Slow { .. })),
        );
        told.outcome.expect("it ends well");
    }

    /// The same run in four ways, in turns; medians of the ratios to the first.
    fn cost(rounds: u64, only: &str) {
        println!(
            "time against threads without supervision, {rounds} rounds in turns: median (fastest to fastest)"
        );
        println!(
            "{:<18} {:>15} {:>15} {:>15} {:>15}",
            "", "supervised", "processes", "both", "checksums"
        );
        let models = MODELS.into_iter().filter(|m| m.contains(only));
        for (model, devices) in models.flat_map(|m| [(m, 1), (m, 2)]) {
            let engine = engine_on(devices, model, &registry(), Losses::Single);
            // Short runs in many turns: the machine's own ups and downs last for seconds.
            let iterations = (pace(&engine) * 0.25) as u64;
            let run = |processes: bool, supervise: bool, checksums: bool| {
                let options = RunOptions {
                    isolation: if processes {
                        PROCESSES
                    } else {
                        Isolation::Threads
                    },
                    supervised: supervise.then(|| supervised(&engine, "Supervision()", None)),
                    checksums,
                    sample_every: 0,
                    ..RunOptions::default()
                };
                let feed = Feed {
                    seed: 1,
                    iterations,
                    per_s: None,
                };
                let told = live(&engine, feed, options);
                told.outcome.expect("well").report.elapsed_ns as f64
            };
            let ways = [
                (false, true, false),
                (true, false, false),
                (true, true, false),
                (true, true, true),
            ];
            let mut plains = Vec::new();
            let mut times = [(); 4].map(|()| Vec::new());
            for _ in 0..rounds {
                plains.push(run(false, false, false));
                for (times, (processes, supervise, checksums)) in times.iter_mut().zip(ways) {
                    times.push(run(processes, supervise, checksums));
                }
            }
            let fastest = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
            let ratios = times.map(|times| {
                let mut ratios: Vec<f64> = times.iter().zip(&plains).map(|(t, p)| t / p).collect();
                ratios.sort_by(f64::total_cmp);
                let median = ratios[ratios.len() / 2];
                format!("{median:.3} ({:.3})", fastest(&times) / fastest(&plains))
            });
            let [supervised, processes, both, checksums] = ratios;
            println!(
                "{model:<17}{devices} {supervised:>15} {processes:>15} {both:>15} {checksums:>15}"
            );
        }
    }

    /// Minutes under faults, at a quarter of the pace: the outputs are those of an undisturbed run, and memory is flat.
    fn soak(kind: &str, seconds: u64, only: &str) {
        for model in MODELS.into_iter().filter(|m| m.contains(only)) {
            let engine = engine(model, &registry(), Losses::Pairs);
            let per_s = pace(&engine) / 4.0;
            let feed = Feed {
                seed: 7,
                iterations: (per_s * seconds as f64) as u64,
                per_s: Some(per_s),
            };
            let plain = live(
                &engine,
                Feed {
                    per_s: None,
                    ..feed
                },
                RunOptions::default(),
            );
            let faults = format!("Inject(kinds: [{kind}], every: (\"50ms\", \"500ms\"), seed: 7)");
            let watched = Arc::new(AtomicBool::new(true));
            let memory = {
                let watched = Arc::clone(&watched);
                std::thread::spawn(move || {
                    let mut seen = Vec::new();
                    let mut next = Instant::now();
                    while watched.load(Ordering::Relaxed) {
                        seen.push(resident_kib());
                        next += Duration::from_secs((seconds / 10).max(1));
                        while Instant::now() < next && watched.load(Ordering::Relaxed) {
                            std::thread::sleep(Duration::from_millis(50));
                        }
                    }
                    seen
                })
            };
            let told = disturbed(&engine, feed, &faults, |o| o.checksums = kind == "corrupt");
            watched.store(false, Ordering::Relaxed);
            let memory = memory.join().expect("no panic");
            let report = told.outcome.expect("it goes on").report;
            let same = told.sinks == plain.sinks;
            let mut split = Split::default();
            split.take(&told.events);
            println!(
                "{model}: {:.0} s, {} recoveries, outputs {}, resident MiB {:?}; all ms {}",
                told.elapsed.as_secs_f64(),
                report.recoveries,
                if same { "identical" } else { "DIFFERENT" },
                memory.iter().map(|kib| kib / 1024).collect::<Vec<_>>(),
                split.all.line(),
            );
            assert!(same, "{model}: other bits");
        }
    }

    fn resident_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        line.and_then(|l| l.split_whitespace().next()?.parse().ok())
            .unwrap_or(0)
    }

    /// Losses of a CUDA device, with the CPU going on or waiting for a restart.
    mod gpu {
        use std::io::Write;
        use std::path::{Path, PathBuf};

        use zbmd_backends::cuda::{self, Misdeed};
        use zbmd_backends::gpu::Device;
        use zbmd_compiler::{CompileOptions, MachineChoice, compile_file};
        use zbmd_ir::{DeviceId, Machine, PlanId};
        use zbmd_tests::run::graph_file;

        use super::*;

        /// What the GPU of every worker is to do wrong, and the file that then has the times, as `trap:FILE`.
        const MISDEED: &str = "ZBMD_BENCH_MISDEED";
        const GPUS: Isolation = Isolation::GpuProcesses { program: None };

        const MISDEEDS: [(&str, Misdeed); 3] = [
            ("illegal address", Misdeed::IllegalAddress),
            ("trap", Misdeed::Trap),
            ("kernel that never ends", Misdeed::Endless),
        ];

        /// The clock of events.
        fn now_ns() -> u64 {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
        }

        pub(super) fn misbehave_as_told(device: &Device) {
            let Ok(told) = std::env::var(MISDEED) else {
                return;
            };
            let Some((what, file)) = told.split_once(':') else {
                return;
            };
            let misdeed = MISDEEDS
                .iter()
                .find(|(name, _)| *name == what)
                .map(|(_, m)| *m);
            let (Some(device), Some(misdeed)) = (device.downcast::<cuda::CudaDevice>(), misdeed)
            else {
                return;
            };
            let file = PathBuf::from(file);
            std::thread::spawn(move || {
                // Longer than it takes until the calendar is at work.
                std::thread::sleep(Duration::from_millis(700));
                let note = std::fs::OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(file);
                let noted = note.and_then(|mut f| writeln!(f, "{}", now_ns()));
                noted
                    .map(|()| device.misbehave(misdeed))
                    .expect("a file for the time")
            });
        }

        /// A slow CPU and the GPU, which so has all the work.
        fn machine() -> Machine {
            let mut machine = zbmd_tests::gpu::with(&["cuda"]);
            let cpu = &mut machine.devices[DeviceId(0)];
            (cpu.flops_per_s, cpu.bytes_per_s) = (10_000_000, 10_000_000);
            machine
        }

        fn is_in_software() -> bool {
            std::env::var_os("ZBMD_CUDA_DRIVER").is_some_and(|v| v == "software")
        }

        /// Iterations of a block, and a second: 10 ms at the pace of the radio; what a device in software can do.
        fn paced() -> (u64, f64) {
            if is_in_software() {
                (16, 300.0)
            } else {
                (480, 48_000.0)
            }
        }

        fn engine(losses: Losses) -> Engine {
            let options = CompileOptions {
                block: Some(paced().0),
                registry: registry(),
                machine: MachineChoice::Given(machine()),
                contingencies: losses,
                ..CompileOptions::default()
            };
            let compiled = compile_file(graph_file("fm/model.ron"), &options);
            let program = compiled.unwrap_or_else(|d| panic!("{d}")).program;
            let calendars = &program.plans[PlanId(0)].calendars;
            assert!(
                calendars.iter().any(|c| c.device == DeviceId(1)),
                "nothing is on the GPU"
            );
            assert_eq!(
                losses == Losses::None,
                program.contingencies.find(&[DeviceId(1)]).is_none()
            );
            Engine::new(program, &registry()).expect("an engine")
        }

        fn times(file: &Path) -> Vec<u64> {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            text.lines().filter_map(|line| line.parse().ok()).collect()
        }

        /// From the fault to the first new output.
        pub(super) fn main(count: u64) {
            let in_software = is_in_software();
            if let Err(why) = cuda::Instance::load() {
                println!("not run: {why}");
                return;
            }
            println!(
                "from a fault to the first new output; fm, all of it on {}",
                if in_software {
                    "a device in software: a rehearsal"
                } else {
                    "a GPU"
                }
            );
            let swap = ("swap to the CPU (goal 50 ms)", Losses::Single, false);
            let restart = ("restart (goal 400 ms)", Losses::None, false);
            let ready = (
                "restart with a process standing by (goal 100 ms)",
                Losses::None,
                true,
            );
            for (what, losses, standby) in [swap, restart, ready] {
                let kill = "Inject(kinds: [kill], every: (\"900ms\", \"1200ms\"), seed: 1)";
                let name = format!("worker killed; {what}");
                distribution(&name, count, losses, kill, None, |o| o.standby = standby);
            }
            for (name, misdeed) in MISDEEDS {
                // Nothing in software ends what never ends.
                if in_software && misdeed == Misdeed::Endless {
                    println!("{name}: not run in software");
                    continue;
                }
                for (what, losses, _) in [swap, restart] {
                    let title = format!("{name}; {what}");
                    distribution(&title, count, losses, "Inject()", Some(name), |_| ());
                }
            }
        }

        fn distribution(
            title: &str,
            count: u64,
            losses: Losses,
            faults: &str,
            misdeed: Option<&str>,
            change: impl Fn(&mut RunOptions),
        ) {
            let file = std::env::temp_dir().join(format!("zbmd-misdeeds-{}", std::process::id()));
            let engine = engine(losses);
            let mut split = Split::default();
            let mut rounds = 0;
            while (split.all.0.len() as u64) < count && rounds < count {
                rounds += 1;
                let per_s = paced().1;
                let feed = Feed {
                    seed: rounds,
                    iterations: (per_s * 10.0) as u64,
                    per_s: Some(per_s),
                };
                let _ = std::fs::remove_file(&file);
                tell(misdeed.map(|m| format!("{m}:{}", file.display())));
                let told = disturbed(&engine, feed, faults, |options| {
                    options.isolation = GPUS;
                    change(options);
                });
                tell(None);
                told.outcome.expect("it goes on");
                split.take_with(&told.events, &times(&file));
            }
            let _ = std::fs::remove_file(&file);
            split.print(title);
        }

        fn tell(misdeed: Option<String>) {
            // SAFETY: no other thread of this program is at work: sessions have ended.
            #[expect(unsafe_code, reason = "tells worker processes how to fail")]
            unsafe {
                match misdeed {
                    Some(misdeed) => std::env::set_var(MISDEED, misdeed),
                    None => std::env::remove_var(MISDEED),
                }
            }
        }
    }
}
