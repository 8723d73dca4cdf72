//! Whole runs on a CPU and a GPU at once: sessions with sources, sinks, supervision, workers as threads and as
//! processes. With Vulkan on the driver at hand, where the validation layers look on, and what they find would end the
//! run; with CUDA on a device in software, or on a GPU where `ZBMD_REQUIRE` names `cuda`.
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
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex, PoisonError};
    use std::time::{Duration, Instant};

    use zbmd_backends::gpu::Device;
    use zbmd_backends::{cuda, vulkan};
    use zbmd_compiler::{CompileOptions, Losses, MachineChoice, compile_file, compile_str};
    use zbmd_executor::supervise::What;
    use zbmd_executor::{Engine, EngineError, Isolation, RunError, RunOptions};
    use zbmd_ir::verify::{Verified, verify};
    use zbmd_ir::{DType, DeviceId, Machine, PlanId, Program, Tier};
    use zbmd_scheduler::{Block, ScheduleOptions};
    use zbmd_tests::actors::registry;
    use zbmd_tests::data;
    use zbmd_tests::gpu::{distance, open, place_on, required, tame_inputs, to_and_fro, with};
    use zbmd_tests::harness::{self, Test};
    use zbmd_tests::losses::{self, Feed, HARDY, Told, live, live_seen, options, supervised};
    use zbmd_tests::run::{Streams, compile, drive, graph_file, interpret_program};
    use zbmd_tests::tiers::{Layers, TIER_BYTES_PER_S};

    const GPU: DeviceId = DeviceId(1);
    const PROCESSES: Isolation = Isolation::Processes { program: None };
    const GPUS: Isolation = Isolation::GpuProcesses { program: None };
    /// How the first GPU that is opened while this names a file that is not there is to fail; see [`fail_as_told`].
    const FAIL: &str = "ZBMD_TEST_FAIL";
    /// Which driver CUDA's devices have.
    const DRIVER: &str = "ZBMD_CUDA_DRIVER";

    /// Whether the GPU is one of CUDA's now, and not of Vulkan's.
    static CUDA: AtomicBool = AtomicBool::new(false);

    /// The device in software that this process has opened last.
    static SOFT: Mutex<Option<Arc<cuda::Machine>>> = Mutex::new(None);

    /// Words that the queue of that device has waited for or stored.
    fn signals() -> usize {
        let soft = SOFT.lock().unwrap_or_else(PoisonError::into_inner);
        soft.as_ref().map_or(0, |machine| machine.counts().signals)
    }

    fn is_cuda() -> bool {
        CUDA.load(Ordering::Relaxed)
    }

    fn backend() -> &'static str {
        if is_cuda() { "cuda" } else { "vulkan" }
    }

    /// A CPU and the GPU.
    fn machine() -> Machine {
        with(&[backend()])
    }

    /// A device in software takes its time.
    fn share(n: u64) -> u64 {
        if is_cuda() { n.div_ceil(10) } else { n }
    }

    /// Every sink and the state at the end, beside the interpreter's.
    fn check(
        program: &Program,
        engine: &Engine,
        model: &str,
        isolation: Isolation,
        inputs: &Streams,
        tolerance: f64,
    ) {
        let plan = &program.plans[PlanId(0)];
        let (want, state) = interpret_program(program, &registry(), inputs, None);
        let names: Vec<String> = program.graph.sinks().map(|(_, a)| a.name.clone()).collect();
        let session = engine.start(options(isolation)).expect("a session");
        let (got, outcome) = drive(session, inputs, names);
        let whole = |iterations: u64| match program.plan("tail") {
            Some(_) => iterations,
            None => iterations / plan.block * plan.block,
        };
        assert_eq!(outcome.state.iterations, whole(state.iterations), "{model}");
        for (_, sink) in program.graph.sinks() {
            let (got, want) = (&got[&sink.name], &want[&sink.name]);
            let dtype = sink.inputs[0].token.dtype;
            let off = distance(dtype, got, &want[..got.len()]);
            assert!(
                off <= tolerance,
                "{model}, sink {}: off by {off:e}",
                sink.name
            );
        }
        if outcome.state.iterations == state.iterations {
            for (id, channel) in program.graph.channels.iter_enumerated() {
                let (got, want) = (&outcome.state.channels[id], &state.channels[id]);
                let off = distance(channel.token.dtype, got, want);
                assert!(off <= tolerance, "{model}, state of {id}: off by {off:e}");
            }
        }
    }

    fn models() {
        let every: fn(usize) -> bool = |_| true;
        let some: fn(usize) -> bool = |i| i % 2 == 0;
        for (model, block, on_gpu, tolerance) in [
            ("cd2dat/model.ron", 2, every, 1e-5),
            ("cd2dat/model.ron", 1, some, 1e-5),
            ("fm/model.ron", 40, every, 1e-5),
            ("fm/model.ron", 7, some, 1e-5),
            ("adsb/model.ron", 2, every, 1e-5),
            ("agc/model.ron", 16, every, 1e-5),
            ("pll/model.ron", 8, every, 1e-4),
        ] {
            let home = |i| if on_gpu(i) { GPU } else { DeviceId(0) };
            on_machine(&machine(), model, share(block), &home, tolerance);
        }
    }

    /// Actors of one model in turns on a CPU, on a GPU by way of Vulkan, and on one by way of CUDA.
    fn three() {
        for (model, block, tolerance) in [
            ("cd2dat/model.ron", 1, 1e-5),
            ("fm/model.ron", 2, 1e-5),
            ("adsb/model.ron", 1, 1e-5),
        ] {
            let home = |i| DeviceId(i as u32 % 3);
            on_machine(&with(&["vulkan", "cuda"]), model, block, &home, tolerance);
        }
    }

    fn fixed(block: u64) -> ScheduleOptions {
        ScheduleOptions {
            block: Block::Fixed(block),
            ..ScheduleOptions::default()
        }
    }

    /// More exchanges in a period than the host has marks for what is in flight.
    fn exchanges() {
        let placed = || to_and_fro(40, &registry(), machine());
        let (program, engine) = (
            placed(),
            Engine::new(placed(), &registry()).expect("an engine"),
        );
        let inputs = tame_inputs(&program, 8 * 30);
        for isolation in [Isolation::Threads, GPUS] {
            check(&program, &engine, "to and fro", isolation, &inputs, 1e-5);
        }
    }

    /// Kernels that are launched early, as the machine of the bundle says.
    fn early() {
        let mut early = machine();
        early.devices[GPU].programmatic = true;
        on_machine(&early, "cd2dat/model.ron", 1, &|_| GPU, 1e-5);
        let soft = SOFT.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = soft.as_ref().map(|machine| machine.counts());
        assert!(
            counts.is_none_or(|counts| counts.dependent_launches > 0),
            "{counts:?}"
        );
    }

    /// A model beside the interpreter, with workers as threads and in processes. Every device has something to do.
    fn on_machine(
        machine: &Machine,
        model: &str,
        block: u64,
        home: &dyn Fn(usize) -> DeviceId,
        tolerance: f64,
    ) {
        let compiled = compile(model, 1, &registry());
        let placed = || {
            let (graph, blobs) = (&compiled.program.graph, &compiled.program.blobs);
            place_on(
                machine.clone(),
                graph,
                blobs,
                &registry(),
                fixed(block),
                home,
            )
        };
        let program = placed();
        let plan = &program.plans[PlanId(0)];
        let works = |device| plan.calendars.iter().any(|c| c.device == device);
        assert!(machine.devices.keys().all(works), "{model}");
        let engine = Engine::new(placed(), &registry()).expect("an engine");
        // Not a whole number of blocks: the tail plan has something to do where there is one.
        let inputs = tame_inputs(&program, 6 * plan.block + plan.block / 2);
        for isolation in [Isolation::Threads, GPUS] {
            check(&program, &engine, model, isolation, &inputs, tolerance);
        }
    }

    /// Models of tensor ops: all that can on the GPU, and every other actor.
    fn tensors() {
        let Some(models) = data::file("models") else {
            return;
        };
        let models = std::path::absolute(models).expect("a path");
        let file = |name: &str| models.join(name);
        let detector = (
            "detector".to_owned(),
            format!("{:?}", file("silero_vad.onnx").display().to_string()),
        );
        let vad = [detector].into_iter().collect();
        for (model, params, iterations, tolerance) in [
            (graph_file("vad/model.ron"), vad, 6, 1e-3),
            (file("mnist.onnx"), BTreeMap::new(), 3, 1e-4),
            (file("bert_tiny.onnx"), BTreeMap::new(), 2, 1e-4),
        ] {
            let name = model.display().to_string();
            // The machine has a GPU: images keep their channels in ONNX's order.
            let options = CompileOptions {
                registry: registry(),
                machine: MachineChoice::Given(machine()),
                params,
                ..CompileOptions::default()
            };
            let compiled = compile_file(&model, &options).unwrap_or_else(|d| panic!("{d}"));
            let (graph, blobs) = (&compiled.program.graph, &compiled.program.blobs);
            for on_gpu in [|_| true, |i| i % 2 == 0] as [fn(usize) -> bool; 2] {
                let home = |i| if on_gpu(i) { GPU } else { DeviceId(0) };
                let placed = || place_on(machine(), graph, blobs, &registry(), fixed(1), &home);
                let program = placed();
                let mut inputs = tame_inputs(&program, iterations);
                for (_, source) in program.graph.sources() {
                    // Numbers of words and of sentences: 0 is one.
                    if source.outputs[0].token.dtype == DType::I64 {
                        inputs.get_mut(&source.name).expect("its bytes").fill(0);
                    }
                }
                assert!(
                    program.plans[PlanId(0)]
                        .calendars
                        .iter()
                        .any(|c| c.device == GPU),
                    "{name}"
                );
                let engine = Engine::new(placed(), &registry()).expect("an engine");
                check(&program, &engine, &name, GPUS, &inputs, tolerance);
            }
        }
    }

    /// Sums and products of single numbers, which every device computes to the same bits; history and state on the GPU.
    /// Partly on the GPU, by pins; where it may be lost, all of it by a slow CPU, for what is pinned can go nowhere
    /// else.
    fn exact(machine: &Machine, losses: Losses) -> Engine {
        Engine::new(scaled("3.0 * x", machine, losses), &registry()).expect("an engine")
    }

    /// As [`exact`], with an expression of one's own in the middle.
    fn scaled(scale: &str, machine: &Machine, losses: Losses) -> Verified<Program> {
        let mut machine = machine.clone();
        let pin = |actor: &str| {
            machine
                .devices
                .get(GPU)
                .map(|d| format!("{actor:?}: {:?}", d.name))
        };
        let pins = ["scale", "sum", "late"].into_iter().filter_map(pin);
        let pins: Vec<String> = pins.filter(|_| losses == Losses::None).collect();
        if losses != Losses::None {
            let cpu = &mut machine.devices[DeviceId(0)];
            (cpu.flops_per_s, cpu.bytes_per_s) = (10_000_000, 10_000_000);
        }
        let model = format!(
            "Model(name: \"exact\", sources: {{ \"in\": Stream(dtype: f32) }}, sinks: {{ \"out\": Stream() }},
             actors: {{ \"pre\": Expr(\"x + 0.5\", inputs: {{ \"x\": f32 }}),
                        \"scale\": Expr(\"{scale}\", inputs: {{ \"x\": f32 }}),
                        \"sum\": Expr(\"0.5 * s + x\", inputs: {{ \"x\": f32, \"s\": f32 }}),
                        \"late\": Expr(\"x - y\", inputs: {{ \"x\": f32, \"y\": f32 }}),
                        \"post\": Expr(\"x * 2.0\", inputs: {{ \"x\": f32 }}) }},
             channels: [ (from: \"in\", to: [\"pre\"]), (from: \"pre\", to: [\"scale\"]),
                         (from: \"scale\", to: [\"sum.x\", \"late.x\"]),
                         (from: \"sum\", to: [\"sum.s\", \"late.y\"], initial: [0.0]),
                         (from: \"late\", to: [\"post\"]), (from: \"post\", to: [\"out\"]) ],
             pins: {{ {} }})",
            pins.join(", ")
        );
        let options = CompileOptions {
            machine: MachineChoice::Given(machine),
            contingencies: losses,
            block: Some(512),
            ..CompileOptions::default()
        };
        let compiled = compile_str("exact.ron", &model, ".", &options);
        let compiled = compiled.unwrap_or_else(|d| panic!("{d}"));
        assert!(losses == Losses::None || compiled.program.contingencies.find(&[GPU]).is_some());
        let mut homes = compiled.program.plans[PlanId(0)].placement.iter();
        assert_eq!(
            homes.any(|d| *d == GPU),
            compiled.program.machine.devices.len() > 1
        );
        compiled.program
    }

    /// Longer than some faults take to come about and to be mended.
    fn live_feed() -> Feed {
        Feed {
            seed: 11,
            iterations: 100_000,
            per_s: Some(50_000.0),
        }
    }

    /// What the CPU alone makes of the feed.
    fn plain(feed: Feed) -> Told {
        let mut cpu = machine();
        cpu.devices.truncate(1);
        cpu.links.clear();
        let feed = Feed {
            per_s: None,
            ..feed
        };
        let told = live(
            &exact(&cpu, Losses::None),
            feed,
            options(Isolation::Threads),
        );
        told.outcome.as_ref().expect("an undisturbed run ends well");
        told
    }

    /// Exact ops have the same bits wherever workers run, with checksums or without, supervised or not.
    fn anywhere() {
        let feed = Feed {
            iterations: 40_000,
            per_s: None,
            ..live_feed()
        };
        let plain = plain(feed);
        let engine = exact(&machine(), Losses::None);
        for isolation in [Isolation::Threads, PROCESSES, GPUS] {
            for (checksums, supervise) in [(false, false), (true, true)] {
                let mut options = options(isolation.clone());
                options.checksums = checksums;
                options.supervised = supervise.then(|| supervised(&engine, "Supervision()", None));
                *SOFT.lock().unwrap_or_else(PoisonError::into_inner) = None;
                let told = live(&engine, feed, options);
                let outcome = told
                    .outcome
                    .unwrap_or_else(|e| panic!("{isolation:?}: {e}"));
                if is_cuda() && isolation == Isolation::Threads && !required("cuda") {
                    let by_device = !checksums && driver() == "software";
                    assert_eq!(signals() > 0, by_device, "checksums {checksums}");
                }
                assert_eq!(
                    told.sinks, plain.sinks,
                    "{isolation:?}, checksums {checksums}"
                );
                assert_eq!(outcome.state, plain.outcome.as_ref().expect("well").state);
                let workers = &outcome.report.plans[0].workers;
                let name = format!("{}:0", backend());
                let gpu = workers.iter().find(|w| w.device == name).expect("a GPU");
                assert!(gpu.slots[0].samples > 0, "periods are measured");
            }
        }
    }

    /// A run with faults, beside what the CPU alone makes of the same feed: the same bits.
    fn disturbed(losses: Losses, isolation: &Isolation, faults: Option<&str>, least: u64) -> Told {
        disturbed_under(HARDY, losses, isolation, faults, least)
    }

    /// The same under a declaration.
    fn disturbed_under(
        declaration: &str,
        losses: Losses,
        isolation: &Isolation,
        faults: Option<&str>,
        least: u64,
    ) -> Told {
        let engine = exact(&machine(), losses);
        let mut recoveries = 0;
        let mut feed = live_feed();
        for _ in 0..5 {
            let mut options = options(isolation.clone());
            options.checksums = faults.is_some_and(|f| f.contains("corrupt"));
            options.supervised = Some(supervised(&engine, declaration, faults));
            let told = live(&engine, feed, options);
            let outcome = told
                .outcome
                .as_ref()
                .unwrap_or_else(|e| panic!("{faults:?}: {e}"));
            let plain = plain(feed);
            assert_eq!(
                told.sinks, plain.sinks,
                "{isolation:?}: other bits after {faults:?}"
            );
            assert_eq!(
                outcome.state,
                plain.outcome.expect("checked").state,
                "{faults:?}"
            );
            recoveries += outcome.report.recoveries;
            if recoveries >= least {
                println!("     {recoveries} recoveries from {faults:?}, {isolation:?}");
                return told;
            }
            feed.iterations *= 2;
        }
        panic!("only {recoveries} recoveries after {faults:?}");
    }

    /// Fewer kills than starts in a row that may fail: some come before the worker is ready.
    fn killed() {
        let faults =
            Some("Inject(kinds: [kill], every: (\"400ms\", \"800ms\"), count: 4, seed: 5)");
        disturbed(Losses::Single, &GPUS, faults, 2);
        disturbed(Losses::None, &GPUS, faults, 1);
        disturbed(Losses::Single, &PROCESSES, faults, 2);
    }

    /// A function that devices compute each in their own way: nothing is lost or doubled, and what comes after a loss
    /// is as near as what comes before it.
    fn approximate() {
        let mut feed = live_feed();
        let mut cpu = machine();
        cpu.devices.truncate(1);
        cpu.links.clear();
        for _ in 0..5 {
            let run = |machine: &Machine, losses, feed: Feed, options: RunOptions| {
                let program = scaled("sin(x) + 0.5", machine, losses);
                let engine = Engine::new(program, &registry()).expect("an engine");
                let got = Mutex::new(Vec::new());
                let seen =
                    |_: &str, bytes: &[u8]| got.lock().expect("whole").extend_from_slice(bytes);
                let told = live_seen(&engine, feed, options, &seen);
                let recoveries = told.outcome.expect("it goes on").report.recoveries;
                (got.into_inner().expect("whole"), recoveries)
            };
            let faults = "Inject(at: [(\"700ms\", kill)])";
            let engine = exact(&machine(), Losses::Single);
            let mut options = options(GPUS);
            options.supervised = Some(supervised(&engine, HARDY, Some(faults)));
            let (got, recoveries) = run(&machine(), Losses::Single, feed, options);
            let threads = losses::options(Isolation::Threads);
            let plain = Feed {
                per_s: None,
                ..feed
            };
            let (want, _) = run(&cpu, Losses::None, plain, threads);
            assert_eq!(got.len(), want.len(), "bytes of the sink");
            let off = distance(DType::F32, &got, &want);
            assert!(off <= 1e-5, "off by {off:e}");
            if recoveries > 0 {
                return;
            }
            feed.iterations *= 2;
        }
        panic!("the GPU was never lost");
    }

    /// Kernels come from the bundle, where it has them in one piece; where not, they are printed.
    fn kept() {
        let program = scaled("3.0 * x", &machine(), Losses::None);
        let other = scaled("4.0 * x", &machine(), Losses::None);
        let keys = |p: &Program| p.kernels.iter().map(|k| k.key).collect::<BTreeSet<_>>();
        let changed: Vec<u128> = keys(&program).difference(&keys(&other)).copied().collect();
        let foreign: Vec<u128> = keys(&other).difference(&keys(&program)).copied().collect();
        assert_eq!(
            (changed.len(), foreign.len()),
            (2, 2),
            "one kernel, with and without zeros' signs"
        );
        let code = |p: &Program, key| {
            let kernel = p.kernels.iter().find(|k| k.key == key).expect("listed");
            (kernel.blob, p.blobs[kernel.blob].clone())
        };
        let feed = Feed {
            iterations: 3000,
            per_s: None,
            ..live_feed()
        };
        let run = |program: Program| {
            let program = verify(program).expect("codes are no matter of the verifier");
            let engine = Engine::new(program, &registry()).expect("an engine");
            let told = live(&engine, feed, options(GPUS));
            told.outcome.expect("well");
            told.sinks
        };
        let want = plain(feed).sinks;
        assert_eq!(run(program.clone().into_inner()), want);
        let mut forged = program.clone().into_inner();
        let mut cut = forged.clone();
        for key in &changed {
            let (blob, own) = code(&program, *key);
            // The one for the same device: the other constant is all that is new.
            let differs = |k: &u128| {
                code(&other, *k)
                    .1
                    .iter()
                    .zip(&own)
                    .filter(|(a, b)| a != b)
                    .count()
            };
            let twin = foreign.iter().min_by_key(|k| differs(k)).expect("two");
            forged.blobs[blob] = code(&other, *twin).1;
            cut.blobs[blob] = own.slice(..own.len() - 1);
        }
        assert_eq!(run(cut), want, "a damaged kernel is printed anew");
        assert_ne!(run(forged), want, "the bundle's kernels are not looked at");
    }

    fn stopped() {
        let faults =
            Some("Inject(kinds: [stop], every: (\"400ms\", \"800ms\"), count: 4, seed: 6)");
        disturbed(Losses::Single, &GPUS, faults, 1);
        // Here it may be the CPU's worker, too: the GPU waits for it until it is let go.
        disturbed(Losses::Single, &PROCESSES, faults, 1);
    }

    fn corrupted() {
        // Not faster than an epoch with a GPU begins.
        let faults =
            Some("Inject(kinds: [corrupt], every: (\"400ms\", \"800ms\"), count: 4, seed: 7)");
        disturbed(Losses::None, &GPUS, faults, 2);
    }

    /// Runs something while the next GPU to be opened is told to fail as `how`; whether one was opened.
    fn failing<T>(how: &str, run: impl FnOnce() -> T) -> T {
        let note = std::env::temp_dir().join(format!("zbmd-fail-{}-{how}", std::process::id()));
        let _ = std::fs::remove_file(&note);
        set(FAIL, Some(note.display().to_string()));
        let done = run();
        set(FAIL, None);
        std::fs::remove_file(&note).expect("a device was told to fail");
        done
    }

    fn set(name: &str, value: Option<String>) {
        // SAFETY: no other thread of this program is at work: sessions have ended.
        #[expect(unsafe_code, reason = "tells worker processes how to fail")]
        unsafe {
            match value {
                Some(value) => std::env::set_var(name, value),
                None => std::env::remove_var(name),
            }
        }
    }

    /// Makes the first device that is opened fail, as the end of the note's name says.
    fn fail_as_told(device: &Device) {
        let cuda_device = device.downcast::<cuda::CudaDevice>();
        if let Some(device) = &cuda_device {
            let machine = device.instance().machine().cloned();
            *SOFT.lock().unwrap_or_else(PoisonError::into_inner) = machine;
        }
        let Some(note) = std::env::var_os(FAIL).map(PathBuf::from) else {
            return;
        };
        if std::fs::File::create_new(&note).is_err() {
            return;
        }
        let name = note.display().to_string();
        let how = name.rsplit('-').next().unwrap_or_default();
        match (device.downcast::<vulkan::VulkanDevice>(), cuda_device) {
            (Some(device), _) => {
                use vulkan::{Injected, Injection, Site};
                let (site, after, error) = match how {
                    "submit" => (Site::Submit, 200, Injected::Lost),
                    "wait" => (Site::Wait, 100, Injected::Lost),
                    "hang" => (Site::Wait, 100, Injected::Hang),
                    "memory" => (Site::AllocateMemory, 2, Injected::DeviceMemory),
                    other => panic!("no failure is called {other}"),
                };
                device.inject(Injection { site, after, error });
            }
            (None, Some(device)) => {
                use cuda::{Code, Injection, Misdeed, Site};
                let misdeed = match how {
                    "illegal" => Some(Misdeed::IllegalAddress),
                    "trap" => Some(Misdeed::Trap),
                    "endless" => Some(Misdeed::Endless),
                    _ => None,
                };
                if let Some(misdeed) = misdeed {
                    let device = Arc::clone(&device);
                    std::thread::spawn(move || {
                        // Until its calendar is at work.
                        std::thread::sleep(Duration::from_millis(500));
                        device.misbehave(misdeed)
                    });
                    return;
                }
                let (site, after, code) = match how {
                    "submit" => (Site::Launch, 20, Some(Code(700))),
                    "wait" => (Site::Query, 10, Some(Code(719))),
                    "broken" => (Site::Query, 10, Some(Code(214))),
                    "hang" => (Site::Query, 10, None),
                    "memory" => (Site::Alloc, 2, Some(Code(2))),
                    other => panic!("no failure is called {other}"),
                };
                let machine = device.instance().machine().expect("a device in software");
                machine.inject(Some(Injection { site, after, code }));
            }
            (None, None) => panic!("no failure of {}", device.backend()),
        }
    }

    /// A lost or hung device takes its worker along, and nothing else.
    fn lost() {
        let injected = [
            ("submit", Losses::Single, GPUS),
            ("submit", Losses::None, GPUS),
            ("wait", Losses::Single, PROCESSES),
            ("hang", Losses::Single, GPUS),
            ("memory", Losses::Single, GPUS),
            ("submit", Losses::None, Isolation::Threads),
            ("broken", Losses::Single, GPUS),
        ];
        let misdeeds = [
            ("illegal", Losses::Single, GPUS),
            ("trap", Losses::None, GPUS),
            ("endless", Losses::Single, GPUS),
        ];
        // Vulkan has no way to tell that a device is broken; nothing in software can end what does not end.
        let (injected, misdeeds) = match (is_cuda(), required("cuda")) {
            (false, _) => (&injected[..6], &misdeeds[..0]),
            (true, false) => (&injected[..], &misdeeds[..2]),
            (true, true) => (&injected[..0], &misdeeds[..]),
        };
        for (how, losses, isolation) in injected.iter().chain(misdeeds).cloned() {
            let begun = Instant::now();
            // A busy machine is taken for a hang now and then, which is not what the others are about.
            let patient = HARDY.replace("futile", "detect: (floor: \"1s\"), futile");
            let hangs = matches!(how, "hang" | "endless");
            let declaration = if hangs { HARDY } else { &patient };
            let told = failing(how, || {
                disturbed_under(declaration, losses, &isolation, None, 1)
            });
            println!(
                "     {how}, {losses:?}, {isolation:?}: {:.1} s",
                begun.elapsed().as_secs_f64()
            );
            let causes: Vec<String> = told
                .events
                .iter()
                .filter_map(|event| match &event.what {
                    What::Lost { cause, .. } => Some(cause.to_string()),
                    What::Retry { end, .. } => Some(format!("{end:?}")),
                    _ => None,
                })
                .collect();
            let said = match (how, is_cuda()) {
                ("submit", false) => "the device is lost, vkQueueSubmit reports it",
                ("submit", true) => "the device is lost, cuGraphLaunch reports CUDA_ERROR_ILLEGAL",
                ("wait", false) => "the device is lost, vkWaitSemaphores reports it",
                ("wait", true) => {
                    "the device is lost, cuEventQuery reports CUDA_ERROR_LAUNCH_FAILED"
                }
                ("broken", _) => "its device is broken: device cuda:0: the device is lost",
                ("hang", false) => "the queue hangs",
                // The worker waits for it; whoever looks on says so before the worker gives up.
                ("hang" | "endless", true) => "hung: ",
                ("illegal", _) => "CUDA_ERROR_ILLEGAL_ADDRESS",
                ("trap", _) => "CUDA_ERROR_LAUNCH_FAILED",
                _ => "out of memory",
            };
            assert!(
                causes.iter().any(|c| c.contains(said)),
                "{how}, {isolation:?}: {causes:?}"
            );
            let mut given_up = told
                .events
                .iter()
                .filter(|e| matches!(e.what, What::NotRestarted { .. }));
            assert_eq!(
                given_up.next().is_some(),
                how == "broken",
                "{:?}",
                told.events
            );
        }
    }

    /// Without supervision a loss ends the run, in a sentence that names the device.
    fn unsupervised() {
        let engine = exact(&machine(), Losses::None);
        for isolation in [Isolation::Threads, GPUS] {
            let told = failing("submit", || {
                live(&engine, live_feed(), options(isolation.clone()))
            });
            let Err(error) = told.outcome else {
                panic!("a loss ends the run")
            };
            assert!(matches!(error, RunError::Device { .. }), "{error:?}");
            let said = error.to_string();
            let call = if is_cuda() {
                "cuGraphLaunch"
            } else {
                "vkQueueSubmit"
            };
            assert!(
                said.starts_with(&format!("device {}:0, block ", backend())),
                "{said}"
            );
            assert!(
                said.contains(&format!("the device is lost, {call} reports")),
                "{said}"
            );
        }
    }

    /// A device that is not here: a sentence; supervised, the run goes on without it if it can.
    fn missing() {
        let mut elsewhere = machine();
        let absent = format!("{}:7", backend());
        elsewhere.devices[GPU].name = absent.clone();
        let engine = exact(&elsewhere, Losses::Single);
        let refused = engine.start(options(Isolation::Threads)).map(drop);
        let Err(EngineError::Device { device, why }) = refused else {
            panic!("a device that is not here was used: {refused:?}")
        };
        assert_eq!(device, absent);
        let api = if is_cuda() { "CUDA" } else { "Vulkan" };
        let said = format!("there is no {api} device `{absent}` here: {}:0", backend());
        assert!(why.contains(&said), "{why}");
        assert!(
            why.contains("`zbmdc devices` lists what this machine has"),
            "{why}"
        );

        let feed = Feed {
            iterations: 20_000,
            per_s: None,
            ..live_feed()
        };
        let told = live(&engine, feed, options(GPUS));
        let Err(RunError::Start(EngineError::Device { device, .. })) = told.outcome else {
            panic!("{:?}", told.outcome)
        };
        assert_eq!(device, absent);

        let mut options = options(GPUS);
        options.supervised = Some(supervised(&engine, HARDY, None));
        let told = live(&engine, feed, options);
        told.outcome.expect("it goes on with the CPU");
        assert_eq!(told.sinks, plain(feed).sinks);
    }

    /// Layers on some devices by turns. Their memory has room for all weights of the model, or for a part of those that are
    /// there: with a `factor` of 2, a half.
    fn layered(layers: &Layers, homes: &[DeviceId], factor: Option<u64>) -> Verified<Program> {
        let mut machine = machine();
        let weight_bytes = layers.weight_bytes() / homes.len() as u64;
        for home in homes {
            let Some(factor) = factor else { break };
            machine.devices[*home].memory_bytes = weight_bytes / factor;
            let tier = Tier {
                memory_bytes: 1 << 30,
                bytes_per_s: TIER_BYTES_PER_S,
            };
            machine.tiers.insert(*home, tier);
        }

        let folder = tempfile::tempdir().expect("a folder");
        let pins = (0..layers.count).map(|layer| {
            let home = &machine.devices[homes[layer % homes.len()]];
            format!("\"l{layer}\": \"{}\"", home.name)
        });
        let pins: Vec<String> = pins.collect();
        let pinned = format!("pins: {{ {} }}, sinks:", pins.join(", "));
        let model = layers.write(folder.path()).replacen("sinks:", &pinned, 1);
        let compiled =
            zbmd_tests::tiers::compile(&model, folder.path(), machine, Losses::None, &registry());
        let compiled = compiled.unwrap_or_else(|d| panic!("{layers:?}, {factor:?}: {d}"));
        let expected = if factor.is_some() { homes.len() } else { 0 };
        assert_eq!(compiled.fetched.len(), expected, "{:?}", compiled.fetched);
        for fetched in &compiled.fetched {
            assert_eq!(fetched.weight_bytes, weight_bytes, "{fetched}");
            let kept_bytes = weight_bytes / factor.unwrap_or(1);
            assert!(
                fetched.fetched_bytes >= weight_bytes - kept_bytes,
                "{fetched}"
            );
            assert!(fetched.period_ns >= fetched.transfer_ns, "{fetched}");
        }
        compiled.program
    }

    /// Weights that do not fit the GPU are copied there in every period, also beside a CPU that reads its own from a file,
    /// with the bits of devices that hold them all. Constants have banks of their own or share one.
    fn fetched() {
        let both = [DeviceId(0), GPU];
        for (rows, width, homes) in [(1, 128, &[GPU][..]), (2, 64, &[GPU]), (1, 128, &both)] {
            let layers = Layers {
                rows,
                width,
                count: 16,
                quantised: false,
            };
            let feed = Feed {
                seed: 3,
                iterations: share(100),
                per_s: None,
            };
            let whole = layered(&layers, homes, None);
            let engine = Engine::new(whole, &registry()).expect("an engine");
            let whole = live(&engine, feed, options(Isolation::Threads));
            whole.outcome.expect("an undisturbed run ends well");

            for factor in [2, 3] {
                let program = layered(&layers, homes, Some(factor));
                let engine = Engine::new(program, &registry()).expect("an engine");
                for isolation in [Isolation::Threads, GPUS] {
                    let told = live(&engine, feed, options(isolation.clone()));
                    let outcome = told.outcome.expect("an undisturbed run ends well");
                    let workers = &outcome.report.plans[0].workers;
                    assert!(workers.iter().all(|w| w.notes.is_empty()), "{workers:?}");
                    assert_eq!(told.sinks, whole.sinks, "{layers:?}, {isolation:?}");
                }
            }
        }
    }

    /// The GPU's process is killed again and again while it fetches.
    fn fetched_and_killed() {
        let layers = Layers {
            rows: 1,
            width: 128,
            count: 6,
            quantised: false,
        };
        let faults = "Inject(kinds: [kill], every: (\"300ms\", \"600ms\"), count: 3, seed: 9)";
        let mut feed = Feed {
            seed: 4,
            iterations: share(1_000),
            per_s: Some(share(500) as f64),
        };
        for _ in 0..4 {
            let engine =
                Engine::new(layered(&layers, &[GPU], None), &registry()).expect("an engine");
            let unpaced = Feed {
                per_s: None,
                ..feed
            };
            let whole = live(&engine, unpaced, options(Isolation::Threads));
            whole.outcome.expect("an undisturbed run ends well");

            let program = layered(&layers, &[GPU], Some(2));
            let engine = Engine::new(program, &registry()).expect("an engine");
            let mut options = options(GPUS);
            options.supervised = Some(supervised(&engine, HARDY, Some(faults)));
            let told = live(&engine, feed, options);
            let outcome = told.outcome.expect("it goes on");
            assert_eq!(told.sinks, whole.sinks, "other bits after {faults}");
            if outcome.report.recoveries > 0 {
                return;
            }
            feed.iterations *= 2;
        }
        panic!("the GPU was never lost");
    }

    /// Runs a test with a GPU of CUDA's.
    fn with_cuda(test: fn()) {
        CUDA.store(true, Ordering::Relaxed);
        test();
        CUDA.store(false, Ordering::Relaxed);
    }

    /// What the variable says.
    fn driver() -> String {
        std::env::var(DRIVER).unwrap_or_default()
    }

    /// Runs a test where the device lacks something, so that the host does more.
    fn lacking(what: &str, test: fn()) {
        let whole = driver();
        set(DRIVER, Some(format!("{whole},{what}")));
        with_cuda(test);
        set(DRIVER, Some(whole));
    }

    pub(super) fn main() {
        zbmd_executor::testing::on_open(fail_as_told);
        zbmd_executor::serve_if_worker(&registry());
        set("ZBMD_VULKAN_VALIDATE", Some("1".to_owned()));
        // On a GPU, a fault that only software brings about does not come about: see also `lost`.
        let on_gpu = required("cuda");
        if !on_gpu {
            set(DRIVER, Some("software".to_owned()));
        }
        let cuda: [Test; 16] = [
            ("cuda models", || with_cuda(models)),
            ("cuda exchanges", || with_cuda(exchanges)),
            ("cuda anywhere", || with_cuda(anywhere)),
            ("cuda killed", || with_cuda(killed)),
            ("cuda fetched", || with_cuda(fetched)),
            ("cuda fetched and killed", || with_cuda(fetched_and_killed)),
            ("cuda approximate", || with_cuda(approximate)),
            ("cuda stopped", || with_cuda(stopped)),
            ("cuda corrupted", || with_cuda(corrupted)),
            ("cuda missing", || with_cuda(missing)),
            ("cuda lost", || with_cuda(lost)),
            ("cuda early", || lacking("sm_90", early)),
            ("cuda unsupervised", || with_cuda(unsupervised)),
            ("cuda models without signals", || lacking("signals", models)),
            ("cuda anywhere without signals", || {
                lacking("signals", anywhere)
            }),
            ("cuda anywhere without registration", || {
                lacking("registration", anywhere)
            }),
        ];
        harness::run_apart(&cuda[..if on_gpu { 12 } else { 16 }], || true);
        let tests: [Test; 15] = [
            ("vulkan models", models),
            ("vulkan exchanges", exchanges),
            ("vulkan tensors", tensors),
            ("three", three),
            ("vulkan anywhere", anywhere),
            ("vulkan kept", kept),
            ("vulkan killed", killed),
            ("vulkan fetched", fetched),
            ("vulkan fetched and killed", fetched_and_killed),
            ("vulkan approximate", approximate),
            ("vulkan stopped", stopped),
            ("vulkan corrupted", corrupted),
            ("vulkan lost", lost),
            ("vulkan unsupervised", unsupervised),
            ("vulkan missing", missing),
        ];
        harness::run_apart(&tests, || {
            open(true, &vulkan::VulkanOptions::default()).is_some()
        });
    }
}
