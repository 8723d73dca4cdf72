//! Whole runs with gated actors on a GPU: closed calls are not launched, as the report says, and lost devices and killed
//! workers change no bit of what gates hold. On Vulkan with the driver at hand, and on CUDA in software.
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
    use std::ffi::OsStr;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, Ordering};

    use zbmd_backends::gpu::Device;
    use zbmd_backends::{cuda, standard_registry, vulkan};
    use zbmd_compiler::{CompileOptions, Losses, MachineChoice, compile_str};
    use zbmd_executor::{Engine, Isolation, Outcome, RunOptions};
    use zbmd_ir::{DeviceId, Machine, PlanId};
    use zbmd_tests::gpu::{open, required, with};
    use zbmd_tests::harness::{self, Test};
    use zbmd_tests::losses::{Feed, HARDY, Told, live, options, supervised};

    const GPU: DeviceId = DeviceId(1);
    const GPUS: Isolation = Isolation::GpuProcesses { program: None };
    /// The first GPU that is opened while this names a file that is not there is lost after a while.
    const FAIL: &str = "ZBMD_TEST_FAIL";
    /// What gates declare.
    const GATES: [&str; 3] = ["", ", closed: zero", ", after: 40"];

    /// Whether the GPU is one of CUDA's now, and not of Vulkan's.
    static CUDA: AtomicBool = AtomicBool::new(false);

    fn backend() -> &'static str {
        match CUDA.load(Ordering::Relaxed) {
            true => "cuda",
            false => "vulkan",
        }
    }

    /// Two actors behind a gate with a token for 64 firings, between others, all of them with the same bits everywhere;
    /// what opens the gate is on the CPU.
    fn exact(gate: &str, machine: &Machine, losses: Losses) -> Engine {
        let mut machine = machine.clone();
        if losses != Losses::None {
            // What is pinned can go nowhere else, so a slow CPU keeps the rest on the GPU.
            let cpu = &mut machine.devices[DeviceId(0)];
            (cpu.flops_per_s, cpu.bytes_per_s) = (10_000_000, 10_000_000);
        }
        let has_gpu = machine.devices.len() > 1;
        let pins = match (has_gpu, losses) {
            (true, Losses::None) => {
                let gpu = &machine.devices[GPU].name;
                format!("\"scale\": {gpu:?}, \"late\": {gpu:?}, \"sum\": {gpu:?}")
            }
            _ => String::new(),
        };
        let model = format!(
            r#"Model(
    name: "gated",
    sources: {{ "in": Stream(dtype: f32) }},
    actors: {{
        "peek": Decimate(64),
        "open": Threshold(0.4),
        "scale": Expr("3.0 * x", gate: Gate("open"{gate})),
        "late": Expr("x - y", inputs: {{ "x": f32, "y": f32 }}, gate: Gate("open"{gate})),
        "sum": Expr("0.5 * s + x", inputs: {{ "x": f32, "s": f32 }}),
    }},
    channels: [
        (from: "in", to: ["peek", "scale", "late.y"]),
        (from: "peek", to: ["open"]),
        (from: "scale", to: ["late.x"]),
        (from: "late", to: ["sum.x"]),
        (from: "sum", to: ["sum.s", "out"], initial: [0.0]),
    ],
    sinks: {{ "out": Stream() }},
    pins: {{ {pins} }},
)"#
        );
        let options = CompileOptions {
            machine: MachineChoice::Given(machine),
            contingencies: losses,
            block: Some(4),
            ..CompileOptions::default()
        };
        let compiled = compile_str("gated.ron", &model, ".", &options);
        let program = compiled.unwrap_or_else(|d| panic!("{d}\n{model}")).program;
        let placement = &program.plans[PlanId(0)].placement;
        let gated = program.graph.actors.iter_enumerated();
        let mut gated = gated.filter(|(_, actor)| actor.gate().is_some());
        let is_there = gated.all(|(id, _)| placement[id] == GPU);
        assert!(is_there || !has_gpu, "the gated actors are on the GPU");
        assert!(losses == Losses::None || program.contingencies.find(&[GPU]).is_some());
        Engine::new(program, &standard_registry()).expect("an engine")
    }

    fn feed(iterations: u64, per_s: Option<f64>) -> Feed {
        Feed {
            seed: 11,
            iterations,
            per_s,
        }
    }

    /// What the CPU alone makes of the feed.
    fn plain(gate: &str, feed: Feed) -> Told {
        let mut cpu = with(&[]);
        cpu.links.clear();
        let engine = exact(gate, &cpu, Losses::None);
        let feed = Feed {
            per_s: None,
            ..feed
        };
        live(&engine, feed, options(Isolation::Threads))
    }

    /// Calls behind gates that the GPU launched, and those that it did not.
    fn gate_calls(outcome: &Outcome) -> (u64, u64) {
        let plans = outcome.report.plans.iter();
        let workers = plans.flat_map(|plan| &plan.workers);
        let gates = workers.filter_map(|worker| worker.gates);
        gates.fold((0, 0), |(launched, skipped), gates| {
            (launched + gates.launched, skipped + gates.skipped)
        })
    }

    /// Undisturbed runs: the same bits, and closed calls are not launched.
    fn anywhere() {
        for gate in GATES {
            let feed = feed(401, None);
            let plain = plain(gate, feed);
            let engine = exact(gate, &with(&[backend()]), Losses::None);
            for (isolation, checksums) in [
                (Isolation::Threads, false),
                (Isolation::Threads, true),
                (GPUS, false),
            ] {
                let options = RunOptions {
                    checksums,
                    ..options(isolation)
                };
                let told = live(&engine, feed, options);
                let outcome = told.outcome.expect("nothing disturbs it");
                assert_eq!(told.sinks, plain.sinks, "`{gate}`");
                let state = &plain.outcome.as_ref().expect("well").state;
                assert_eq!(outcome.state, *state, "`{gate}`");

                // Two actors in each of 100 blocks and in that of the tail, of which a fourth or so is closed from the first to the last firing.
                let (launched, skipped) = gate_calls(&outcome);
                println!(
                    "     {} `{gate}`: {launched} launched, {skipped} not",
                    backend()
                );
                assert_eq!(launched + skipped, 202);
                assert!(skipped > 10 && launched > 100, "{launched} {skipped}");
                let said = outcome.report.to_string();
                assert!(said.contains("of 200 calls behind gates"), "{said}");
            }
        }
    }

    /// A run with losses beside what the CPU alone makes of the same feed: the same bits.
    fn disturbed(gate: &str, losses: Losses, faults: Option<&str>) {
        let engine = exact(gate, &with(&[backend()]), losses);
        // Longer until there was a loss: some come before the worker is ready, and some not at all.
        for seconds in [2, 4, 8, 16] {
            let feed = feed(seconds * 2000, Some(2000.0));
            let mut options = options(GPUS);
            options.supervised = Some(supervised(&engine, HARDY, faults));
            let told = live(&engine, feed, options);
            let outcome = told.outcome.expect("it goes on");
            let plain = plain(gate, feed);
            assert_eq!(told.sinks, plain.sinks, "`{gate}`, {losses:?}");
            assert_eq!(outcome.state, plain.outcome.expect("well").state);
            if outcome.report.recoveries > 0 {
                println!(
                    "     `{gate}`, {losses:?}: {} recoveries",
                    outcome.report.recoveries
                );
                return;
            }
        }
        panic!("`{gate}`: nothing was lost");
    }

    fn killed() {
        let faults = "Inject(kinds: [kill], every: (\"300ms\", \"600ms\"), count: 4, seed: 5)";
        disturbed(GATES[2], Losses::Single, Some(faults));
        disturbed(GATES[0], Losses::None, Some(faults));
    }

    /// The device is lost in the middle of a run: the CPU goes on with what the gates held, and gives it back.
    fn lost() {
        for gate in GATES {
            let note = std::env::temp_dir().join(format!("zbmd-gate-{}", std::process::id()));
            let _ = std::fs::remove_file(&note);
            set(FAIL, Some(note.as_os_str()));
            disturbed(gate, Losses::Single, None);
            set(FAIL, None);
            std::fs::remove_file(&note).expect("a device was told to fail");
        }
    }

    fn set(name: &str, value: Option<&OsStr>) {
        // SAFETY: no other thread of this program is at work: sessions have ended.
        #[expect(unsafe_code, reason = "tells worker processes what to do")]
        unsafe {
            match value {
                Some(value) => std::env::set_var(name, value),
                None => std::env::remove_var(name),
            }
        }
    }

    /// The first device that is opened is lost after some hundred submissions.
    fn fail_as_told(device: &Device) {
        let Some(note) = std::env::var_os(FAIL).map(PathBuf::from) else {
            return;
        };
        if std::fs::File::create_new(&note).is_err() {
            return;
        }
        if let Some(device) = device.downcast::<vulkan::VulkanDevice>() {
            device.inject(vulkan::Injection {
                site: vulkan::Site::Submit,
                after: 300,
                error: vulkan::Injected::Lost,
            });
        }
        if let Some(device) = device.downcast::<cuda::CudaDevice>() {
            let machine = device.instance().machine().expect("a device in software");
            machine.inject(Some(cuda::Injection {
                site: cuda::Site::Launch,
                after: 300,
                code: Some(cuda::Code(700)),
            }));
        }
    }

    fn with_cuda(test: fn()) {
        CUDA.store(true, Ordering::Relaxed);
        test();
        CUDA.store(false, Ordering::Relaxed);
    }

    pub(super) fn main() {
        set("ZBMD_VULKAN_VALIDATE", Some("1".as_ref()));
        // A loss that only software brings about is a part of this.
        set("ZBMD_CUDA_DRIVER", Some("software".as_ref()));
        zbmd_executor::testing::on_open(fail_as_told);
        zbmd_executor::serve_if_worker(&standard_registry());
        let cuda: [Test; 3] = [
            ("cuda anywhere", || with_cuda(anywhere)),
            ("cuda killed", || with_cuda(killed)),
            ("cuda lost", || with_cuda(lost)),
        ];
        harness::run_apart(&cuda, || true);
        let vulkan: [Test; 3] = [("anywhere", anywhere), ("killed", killed), ("lost", lost)];
        harness::run_apart(&vulkan, || {
            open(true, &vulkan::VulkanOptions::default()).is_some() || required("vulkan")
        });
    }
}
