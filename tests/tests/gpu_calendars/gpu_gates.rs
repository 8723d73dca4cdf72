//! Gated actors on GPUs beside the interpreter, bit for bit: closed calls are not launched, and outputs are what the gate
//! declares whatever opens and closes. On Vulkan, and on CUDA in software.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use zbmd_backends::cuda::{self, CudaDevice, CudaOptions};
use zbmd_backends::gpu::{Device, Kept, Replay};
use zbmd_backends::kernels::{Caps, KernelPlan, LowerKernels};
use zbmd_backends::op::Registry;
use zbmd_backends::replay::GateCalls;
use zbmd_backends::standard_registry;
use zbmd_backends::vulkan::VulkanOptions;
use zbmd_compiler::costs::MeasuredCosts;
use zbmd_compiler::view::View;
use zbmd_compiler::why::{Question, Why};
use zbmd_compiler::{CompileOptions, Compiled, MachineChoice, compile_str};
use zbmd_ir::verify::{VerifyError, verify};
use zbmd_ir::{Actor, ActorId, BlobId, DeviceId, PlanId, Program, Role, TiSlice};
use zbmd_scheduler::{Block, ScheduleOptions};
use zbmd_tests::gates::placed;
use zbmd_tests::gpu::{Player, Shares, open, place_on, played, turn, with};
use zbmd_tests::models::placed_with_gates;
use zbmd_tests::sample::cases;
use zbmd_tests::stepper::step_with;

const GPU: DeviceId = DeviceId(1);

/// The devices of this machine that the tests run on, and the software one.
fn devices() -> Vec<Device> {
    let vulkan = open(true, &VulkanOptions::default()).map(Device::from);
    vulkan.into_iter().chain([soft().0]).collect()
}

/// A device in software.
fn soft() -> (Device, Arc<cuda::Machine>) {
    let instance = cuda::Instance::software();
    let machine = Arc::clone(instance.machine().expect("software"));
    // What a node touches is compared with the edges of its graph.
    machine.check_edges();
    let listed = instance.find("cuda:0").expect("the only one");
    let opened = CudaDevice::open(&instance, &listed, &CudaOptions::default());
    (Device::from(opened.expect("nothing is injected")), machine)
}

/// The program's calendar of the GPU beside the interpreter, within a tolerance; what has run it.
fn play(
    device: &Device,
    kernels: &dyn LowerKernels,
    program: &Program,
    blocks: u64,
    (ways, tolerance): ((bool, Shares), f64),
) -> Box<dyn Replay> {
    played(
        program,
        &standard_registry(),
        blocks,
        ways,
        tolerance,
        |plan, calendar, exchange| {
            let mut kept = Kept::default();
            let made = device.replay(kernels, program, plan, calendar, exchange, &mut kept);
            made.unwrap_or_else(|fault| panic!("{}", fault.text))
        },
    )
}

/// [`play`] to the last bit; the calls behind gates.
fn check(
    device: &Device,
    kernels: &dyn LowerKernels,
    program: &Program,
    blocks: u64,
    ways: (bool, Shares),
) -> GateCalls {
    play(device, kernels, program, blocks, (ways, 0.0)).gate_calls()
}

#[test]
fn outputs_are_held_or_zero_to_the_last_bit() {
    let _turn = turn();
    let registry = standard_registry();
    for device in devices() {
        for gate in [
            "",
            ", closed: zero",
            ", after: 3",
            ", closed: zero, after: 5",
        ] {
            let mut total = GateCalls::default();
            for (block, lazy) in [(1, false), (2, true), (3, false), (16, true)] {
                let program = placed(0.4, gate, block, device.backend());
                for shares in [Shares::Regions, Shares::Counters] {
                    let found = check(&device, &registry, &program, 24, (lazy, shares));
                    total.launched += found.launched;
                    total.skipped += found.skipped;
                }
            }
            println!("{} `{gate}`: {total:?}", device.backend());
            assert!(total.launched > 20 && total.skipped > 20, "{total:?}");
        }
    }
}

/// Random models with random gates, whose windows look back and whose channels have delays, in however many segments and
/// with whatever else is on the device.
#[test]
fn random_gates_run_as_in_the_interpreter() {
    let _turn = turn();
    let registry = standard_registry();
    for device in devices() {
        let (mut total, mut gates) = (GateCalls::default(), 0);
        for seed in 0..cases(20) {
            let other = if device.backend() == "cuda" {
                "vulkan"
            } else {
                "cuda"
            };
            let machine = with(&[device.backend(), other]);
            let Some((program, mut rng)) = placed_with_gates(seed, machine, &registry) else {
                continue;
            };
            let ways = (rng.bool(), Shares::Memory);
            let replay = play(&device, &registry, &program, rng.u64(1..12), (ways, 1e-5));
            let found = replay.gate_calls();
            total.launched += found.launched;
            total.skipped += found.skipped;
            gates += u32::from(found != GateCalls::default());
        }
        println!(
            "{}: {gates} models with gates there, {total:?}",
            device.backend()
        );
        assert!(
            gates > 6 && total.launched > 100 && total.skipped > 20,
            "a weak sample"
        );
    }
}

/// What is launched is counted by the device: all kernels but those of closed calls, whose outputs are written anyhow.
#[test]
fn closed_calls_are_not_launched() {
    for (block, blocks) in [(1, 20), (4, 7)] {
        // Noise is never above 1, and always above -1.
        let [closed, open] = [1.0, -1.0].map(|level| {
            let program = placed(level, ", closed: zero", block, "cuda");
            let (device, machine) = soft();
            let ways = (false, Shares::Regions);
            let calls = check(&device, &standard_registry(), &program, blocks, ways);
            (calls, machine.counts().kernels as u64)
        });
        let calls = 2 * blocks;
        let only = |launched, skipped| GateCalls { launched, skipped };
        assert_eq!((open.0, closed.0), (only(calls, 0), only(0, calls)));
        assert_eq!(open.1 - closed.1, calls, "each op has one kernel");
    }
}

/// Two gated actors, of which one has states, compiled for a machine with a GPU; or what is wrong about it.
fn compiled(pinned: &str) -> Result<Compiled, String> {
    let text = format!(
        r#"Model(
    sources: {{ "x": Stream(dtype: f32) }},
    actors: {{
        "open": Threshold(0.2),
        "scale": Expr("3.0 * x", gate: "open"),
        "smooth": Biquad([[0.2, 0.4, 0.2, -0.5, 0.3]], gate: "open"),
    }},
    channels: [
        (from: "x", to: ["open", "scale"]),
        (from: "scale", to: ["smooth"]),
        (from: "smooth", to: ["y"]),
    ],
    sinks: {{ "y": Stream() }},
    pins: {{ {pinned:?}: "vulkan:0" }},
)"#
    );
    let options = CompileOptions {
        machine: MachineChoice::Given(with(&["vulkan"])),
        ..CompileOptions::default()
    };
    compile_str("gated.ron", &text, "", &options).map_err(|diagnostics| diagnostics.to_string())
}

#[test]
fn people_are_told_where_gates_are() {
    let compiled = compiled("scale").unwrap_or_else(|refusal| panic!("{refusal}"));
    let program = &compiled.program;
    let view = View::of(program, &BTreeMap::new());
    let placement = &program.plans[PlanId(0)].placement;
    let why = |name: &str| {
        let actor = program.graph.find(name).expect("an actor");
        let question = Question {
            actor,
            not: None,
            registry: &standard_registry(),
            measured: &MeasuredCosts::default(),
        };
        let why = Why::of(program, &view, question);
        (placement[actor], why.reasons.join("\n"))
    };

    let (device, reasons) = why("scale");
    assert_eq!(device, DeviceId(1));
    assert!(
        reasons.contains("a call whose firings are all closed is not launched"),
        "{reasons}"
    );
    let (device, reasons) = why("open");
    assert_eq!(device, DeviceId(0));
    assert!(
        reasons.contains("not on vulkan:0: it opens a gate"),
        "{reasons}"
    );
    let (device, reasons) = why("smooth");
    assert_eq!(device, DeviceId(0));
    assert!(
        reasons.contains("has no kernel for Biquad behind a gate: it has states"),
        "{reasons}"
    );

    let shown = zbmd_compiler::view::text::plan(&view, &view.plans[0], 300);
    assert!(shown.contains("not launched on vulkan:0: "), "{shown}");
    let cpu_only = compiled
        .cpu_only
        .expect("actors that only CPUs have")
        .to_string();
    assert!(
        cpu_only.contains("open (Threshold, opens a gate)"),
        "{cpu_only}"
    );
    assert!(cpu_only.contains("smooth (Biquad, gated)"), "{cpu_only}");

    let refusal = self::compiled("open")
        .map(drop)
        .expect_err("it opens a gate");
    assert!(
        refusal.contains("it opens a gate, which is read on a CPU"),
        "{refusal}"
    );
}

/// Where the opener is on the GPU too, nobody could read the gate in time: verifier, slow checker and device refuse that.
#[test]
fn a_device_does_not_open_its_own_gates() {
    for block in [1, 4] {
        // Planned for CPUs, where kernels read gates.
        let good = placed(0.4, "", block, "cuda");
        let mut machine = with(&["cuda"]);
        machine.devices[GPU].backend = "cpu".into();
        let options = ScheduleOptions {
            block: Block::Fixed(block),
            ..ScheduleOptions::default()
        };
        let (graph, blobs) = (&good.graph, &good.blobs);
        let role = |index: usize| graph.actors[ActorId::from(index)].role;
        let home = |index| DeviceId(u32::from(role(index) == Role::Compute));
        let registry = standard_registry();
        let moved = place_on(machine, graph, blobs, &registry, options, &home);
        let mut moved = moved.into_inner();
        moved.machine.devices[GPU].backend = "cuda".into();

        let gpus = BTreeSet::from([GPU]);
        for (program, is_good) in [(&*good, true), (&moved, false)] {
            let plan = &program.plans[PlanId(0)];
            let stepped = step_with(&program.graph, plan, &gpus, 4, 1);
            assert_eq!(stepped.is_ok(), is_good, "{stepped:?}");
            assert!(step_with(&program.graph, plan, &BTreeSet::new(), 4, 1).is_ok());
        }
        let errors = verify(moved.clone()).map(drop).expect_err("two gates");
        let mut codes = errors.iter().map(VerifyError::code);
        assert!(codes.all(|code| code == "V0326"), "{errors:?}");

        let plan = &moved.plans[PlanId(0)];
        let calendar = plan
            .calendars
            .iter()
            .find(|calendar| calendar.device == GPU);
        let calendar = calendar.expect("a calendar");
        let tokens = graph.channels.iter().map(|_| Vec::new()).collect();
        let mut player = Player::new(&moved, plan, GPU, &tokens, false);
        let exchange = player.exchange();
        let mut kept = Kept::default();
        let made = soft()
            .0
            .replay(&registry, &moved, plan, calendar, &exchange, &mut kept);
        let fault = made.map(drop).expect_err("the host cannot read it");
        assert!(fault.text.contains("the gate of actor `"), "{}", fault.text);
    }
}

/// Changes the kernels of gated actors.
struct Damaged {
    registry: Registry,
    damage: fn(&mut KernelPlan),
}

impl LowerKernels for Damaged {
    fn lower_kernels(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
        caps: &Caps,
        variant: Option<&str>,
    ) -> Result<KernelPlan, String> {
        let mut plan = self.registry.lower_kernels(actor, blobs, caps, variant)?;
        if actor.gate().is_some() {
            (self.damage)(&mut plan);
        }
        Ok(plan)
    }
}

/// Something wrong about the kernels of gated actors, and the gate that shows it.
type SeededBug = (&'static str, &'static str, fn(&mut KernelPlan));

/// The steps of the plan that are left where all firings are closed.
fn closed_steps(plan: &KernelPlan) -> std::ops::Range<usize> {
    plan.closed_steps.clone().expect("a gated actor")
}

#[test]
fn seeded_bugs_are_caught() {
    let bugs: [SeededBug; 6] = [
        ("closed calls write nothing", "", |plan| {
            let end = closed_steps(plan).end;
            plan.closed_steps = Some(end..end);
        }),
        ("closed calls write no zeros", ", closed: zero", |plan| {
            let end = closed_steps(plan).end;
            plan.closed_steps = Some(end..end);
        }),
        (
            "closed firings of open calls give what the op gives",
            "",
            |plan| {
                let steps = closed_steps(plan);
                // The launch is left, and its threads find every firing open.
                plan.steps.drain(steps.clone());
                plan.closed_steps = Some(steps.start..steps.start);
            },
        ),
        ("what an open call gives is not held", "", |plan| {
            plan.steps.truncate(closed_steps(plan).end);
        }),
        ("what is held is that of an earlier call", "", |plan| {
            // Before the op has run.
            let last = plan.steps.pop().expect("the step that holds");
            plan.steps.insert(0, last);
            let steps = closed_steps(plan);
            plan.closed_steps = Some(steps.start + 1..steps.end + 1);
        }),
        ("ops are launched for closed calls alone", "", |plan| {
            let steps = closed_steps(plan);
            plan.closed_steps = Some(0..steps.end);
            plan.steps.swap(0, steps.start);
        }),
    ];
    for (what, gate, damage) in bugs {
        let kernels = Damaged {
            registry: standard_registry(),
            damage,
        };
        let mut caught = 0;
        for block in [1, 3] {
            let program = placed(0.3, gate, block, "cuda");
            let run = || check(&soft().0, &kernels, &program, 12, (false, Shares::Regions));
            caught += usize::from(catch_unwind(AssertUnwindSafe(run)).is_err());
        }
        println!("{what}: {caught} of 2 runs differ");
        assert!(caught > 0, "{what}: never seen");
    }
}
