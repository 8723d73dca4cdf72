//! Calendars of CUDA devices beside the interpreter: whole graphs, with the other devices played by hand. On a device
//! in software everywhere, with the printed code read instruction by instruction and every edge of the graphs compared
//! with what nodes touch; on a GPU where there is one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use zbmd_backends::cuda::{
    Code, CudaDevice, CudaOptions, Fault, Halt, Injection, Instance, Kept, Lacking, Machine,
    OpenError, Peers, Replay, ReplayError, ReplayRequest, Site, Stopped, Summary, Transport,
    Verdict,
};
use zbmd_backends::kernels::emit::cubins;
use zbmd_backends::op::Registry;
use zbmd_compiler::{CompileOptions, compile_str};
use zbmd_ir::verify::{Verified, verify};
use zbmd_ir::{DeviceId, KernelCode, Plan, PlanId, Program, RingId, State};
use zbmd_scheduler::Block;
use zbmd_tests::gpu::{
    Idle, Player, Shares, beside, chain, gpu_calendar, place, place_model, required, to_and_fro,
    with,
};
use zbmd_tests::models;
use zbmd_tests::sample::cases;

const GPU: DeviceId = DeviceId(1);

/// With kernels that wait for others themselves.
const PROGRAMMATIC: CudaOptions = CudaOptions {
    bank_bytes: None,
    dependent_launch: true,
};

/// A device in software, which can do what the options ask for.
fn soft(options: &CudaOptions) -> (Arc<CudaDevice>, Arc<Machine>) {
    let instance = Instance::software();
    let machine = Arc::clone(instance.machine().expect("software"));
    if options.dependent_launch {
        machine.set_arch((9, 0));
    }
    let listed = instance.find("cuda:0").expect("the only one");
    (
        CudaDevice::open(&instance, &listed, options).expect("nothing is injected"),
        machine,
    )
}

/// The first device of this machine. `None`, loudly, without one, unless `ZBMD_REQUIRE` names `cuda`.
fn real(options: &CudaOptions) -> Option<Arc<CudaDevice>> {
    let required = required("cuda");
    let opened = Instance::load()
        .map_err(OpenError::from)
        .and_then(|instance| {
            let listed = instance.find("cuda:0")?;
            CudaDevice::open(&instance, &listed, options)
        });
    match opened {
        Ok(device) => Some(device),
        Err(error) if required => panic!("ZBMD_REQUIRE names cuda, but {error}"),
        Err(error) => {
            eprintln!("SKIPPED, not run on a GPU: {error}");
            None
        }
    }
}

fn replay(
    device: &Arc<CudaDevice>,
    registry: &Registry,
    program: &Program,
    plan: &Plan,
    player: &mut Player<'_>,
) -> Result<Replay, ReplayError> {
    keeping(
        device,
        registry,
        program,
        plan,
        player,
        &mut Kept::default(),
    )
}

fn keeping(
    device: &Arc<CudaDevice>,
    registry: &Registry,
    program: &Program,
    plan: &Plan,
    player: &mut Player<'_>,
    kept: &mut Kept,
) -> Result<Replay, ReplayError> {
    let calendar = gpu_calendar(plan);
    let request = ReplayRequest {
        kernels: registry,
        program,
        plan,
        calendar,
        exchange: &player.exchange(),
    };
    Replay::prepare(device, &request, kept)
}

/// [`beside`] on a device.
fn check(
    device: &Arc<CudaDevice>,
    registry: &Registry,
    program: &Program,
    blocks: u64,
    ways: (bool, Shares),
    tolerance: f64,
    kept: &mut Kept,
) -> Summary {
    beside(
        program,
        registry,
        blocks,
        ways,
        tolerance,
        |plan, calendar, exchange| {
            let request = ReplayRequest {
                kernels: registry,
                program,
                plan,
                calendar,
                exchange,
            };
            let made = Replay::prepare(device, &request, kept);
            Box::new(made.expect("a replay"))
        },
    )
}

/// What a device learns, whether others are late, and how tokens come and go then where the device can do it all.
const WAYS: [(Shares, bool, Transport); 5] = [
    (Shares::Regions, false, Transport::Staged),
    (Shares::Regions, true, Transport::Staged),
    (Shares::Memory, false, Transport::Fetched),
    (Shares::Memory, true, Transport::Fetched),
    (Shares::Counters, false, Transport::Device),
];

type Model = (&'static str, Block, fn(usize) -> bool, u64, f64);

const EVERY: fn(usize) -> bool = |_| true;
const SOME: fn(usize) -> bool = |i| i % 2 == 0;

/// With blocks for a device that reads its code word by word.
const SMALL: &[Model] = &[
    ("cd2dat/model.ron", Block::Fixed(1), EVERY, 4, 1e-5),
    ("cd2dat/model.ron", Block::Fixed(1), SOME, 5, 1e-5),
    ("fm/model.ron", Block::Fixed(2), EVERY, 5, 1e-5),
    ("fm/model.ron", Block::Fixed(1), SOME, 6, 1e-5),
    ("agc/model.ron", Block::Fixed(16), EVERY, 4, 1e-5),
    ("pll/model.ron", Block::Fixed(8), EVERY, 6, 1e-4),
];

const LARGE: &[Model] = &[
    ("cd2dat/model.ron", Block::Fixed(2), EVERY, 5, 1e-5),
    ("fm/model.ron", Block::Fixed(40), EVERY, 5, 1e-5),
    ("fm/model.ron", Block::Fixed(7), SOME, 9, 1e-5),
    ("agc/model.ron", Block::Fixed(16), EVERY, 4, 1e-5),
    ("pll/model.ron", Block::Fixed(8), EVERY, 6, 1e-4),
];

#[test]
fn models_run_on_a_device_in_software_as_in_the_interpreter() {
    let registry = zbmd_backends::standard_registry();
    let mut programmatic = 0;
    for &(model, block, on_gpu, blocks, tolerance) in SMALL {
        let program = place_model(model, &registry, block, on_gpu);
        for options in [CudaOptions::default(), PROGRAMMATIC] {
            let (device, machine) = soft(&options);
            machine.check_edges();
            let mut kept = Kept::default();
            let filters = model.starts_with("fm") || model.starts_with("cd2dat");
            for (i, (shares, lazy, want)) in WAYS.into_iter().enumerate() {
                let ways = (lazy, shares);
                let made = check(
                    &device, &registry, &program, blocks, ways, tolerance, &mut kept,
                );
                assert_eq!((made.transport, made.segments), (want, 1), "{model}");
                assert_eq!(
                    made.uploaded > 0,
                    filters && i == 0,
                    "{model}: constants stay"
                );
            }
            let kept_banks = machine.counts().allocations;
            assert_eq!(
                kept_banks,
                usize::from(filters),
                "{model}: and nothing else"
            );
            drop(kept);
            let counts = machine.counts();
            println!("{model}: {counts:?}");
            assert_eq!(
                machine.conflicts(),
                Vec::<String>::new(),
                "{model}: edges are missing"
            );
            let kept = [
                counts.allocations,
                counts.registered,
                counts.events,
                counts.graphs,
                counts.ready,
            ];
            assert_eq!(kept, [0; 5], "{model}: not given back");
            assert!(
                counts.nodes[0] > 0 && counts.edges > 0,
                "{model}: {counts:?}"
            );
            assert!(
                options.dependent_launch || counts.dependent_launches == 0,
                "{model}: {counts:?}"
            );
            programmatic += counts.dependent_launches;
        }
    }
    assert!(programmatic > 0, "no kernel waits itself");
}

/// More segments in a period than marks in the queue: each is waited for by its own, because a later one may wait for
/// what others do only after the host has told them of the first.
#[test]
fn calendars_of_many_segments_run_as_in_the_interpreter() {
    let registry = zbmd_backends::standard_registry();
    let program = to_and_fro(40, &registry, with(&["cuda"]));
    for (shares, lazy, want) in WAYS {
        let (device, _) = soft(&CudaOptions::default());
        let (ways, kept) = ((lazy, shares), &mut Kept::default());
        let made = check(&device, &registry, &program, 30, ways, 1e-5, kept);
        assert_eq!((made.transport, made.segments), (want, 20));
    }
}

/// Random models, placed anywhere, pipelined or not: what the device exchanges with two others, in as many segments as it
/// takes, with feedback over devices.
#[test]
fn random_models_run_as_in_the_interpreter() {
    let registry = zbmd_backends::standard_registry();
    let (mut segments, mut transports) = (BTreeMap::new(), BTreeMap::new());
    for seed in 0..cases(40) {
        let machine = with(&["cuda", "vulkan"]);
        let Some((program, mut rng)) = models::placed(seed, machine, &registry) else {
            continue;
        };
        let (shares, lazy, want) = WAYS[rng.usize(..WAYS.len())];
        let (device, machine) = soft(&CudaOptions::default());
        machine.check_edges();
        let (ways, kept) = ((lazy, shares), &mut Kept::default());
        let made = check(
            &device,
            &registry,
            &program,
            rng.u64(1..12),
            ways,
            1e-5,
            kept,
        );
        assert_eq!(
            machine.conflicts(),
            Vec::<String>::new(),
            "{seed}: edges are missing"
        );
        assert_eq!(made.transport, want, "{seed}");
        *segments.entry(made.segments).or_insert(0) += 1;
        *transports.entry(format!("{want:?}")).or_insert(0) += 1;
    }
    println!("segments {segments:?}, transports {transports:?}");
    assert!(
        segments.len() > 3 && transports.len() == 3,
        "{segments:?} {transports:?}"
    );
}

/// The comparison of edges with what nodes touch notices that they are missing.
#[test]
fn graphs_without_edges_are_noticed() {
    let registry = zbmd_backends::standard_registry();
    let program = chain(3, &registry);
    let plan = &program.plans[PlanId(0)];
    let no_tokens = program.graph.channels.iter().map(|_| vec![]).collect();
    let mut player = Player::new(&program, plan, GPU, &no_tokens, false);
    let (device, machine) = soft(&CudaOptions::default());
    machine.check_edges();
    machine.drop_edges();
    let mut replay = replay(&device, &registry, &program, plan, &mut player).expect("a replay");
    replay
        .load_state(&State::initial(&program.graph))
        .expect("a state");
    // The chain is at work once all stages are.
    for period in 0..u64::from(plan.stages) {
        replay.step(period, None, &mut Idle).expect("a period");
    }
    replay.drain(&mut Idle).expect("the end");
    // Between each of the three and the next one, at least.
    assert!(machine.conflicts().len() >= 2, "{:?}", machine.conflicts());
}

/// Kernels that a bundle has assembled are taken from it; what the driver does not take of them is compiled.
#[test]
fn objects_of_kernels_are_taken_from_the_bundle() {
    let registry = zbmd_backends::standard_registry();
    let plain = place_model("fm/model.ron", &registry, Block::Fixed(1), EVERY).into_inner();
    let mut texts = BTreeMap::new();
    let (device, _) = soft(&CudaOptions::default());
    for actor in &plain.graph.actors {
        let plan = registry.lower(actor, &plain.blobs, device.caps());
        plan.iter()
            .for_each(|plan| cubins::texts(plan, false, &mut texts));
    }
    for (arch, takes) in [("sm_80", true), ("sm_80", false), ("sm_90", true)] {
        let mut program = plain.clone();
        for (&key, text) in &texts {
            let object = cubins::software_object(if takes { text } else { "for another driver" });
            let blob = program.blobs.push_and_get_key(object.into());
            program.kernels.push(KernelCode {
                format: cubins::format(arch),
                key,
                blob,
            });
        }
        let program = verify(program).expect("objects are no matter of the verifier");
        let (device, machine) = soft(&CudaOptions::default());
        let ways = (false, Shares::Regions);
        check(
            &device,
            &registry,
            &program,
            3,
            ways,
            1e-5,
            &mut Kept::default(),
        );
        let counts = machine.counts();
        let offered = if arch == "sm_80" { texts.len() } else { 0 };
        assert_eq!(
            (counts.cubins, counts.modules),
            (offered, texts.len()),
            "{arch}, {takes}"
        );
    }
}

#[test]
fn models_run_on_a_gpu_as_in_the_interpreter() {
    let Some(device) = real(&CudaOptions::default()) else {
        return;
    };
    on_a_gpu(&device);
}

#[test]
fn kernels_that_wait_themselves_run_on_a_gpu_as_in_the_interpreter() {
    let Some(device) = real(&PROGRAMMATIC) else {
        return;
    };
    match device.has_dependent_launch() {
        true => on_a_gpu(&device),
        false => eprintln!("SKIPPED: the device or its driver has no programmatic edges"),
    }
}

fn on_a_gpu(device: &Arc<CudaDevice>) {
    let registry = zbmd_backends::standard_registry();
    let program = to_and_fro(40, &registry, with(&["cuda"]));
    for (shares, lazy, _) in WAYS {
        check(
            device,
            &registry,
            &program,
            30,
            (lazy, shares),
            1e-5,
            &mut Kept::default(),
        );
    }
    for &(model, block, on_gpu, blocks, tolerance) in LARGE {
        let program = place_model(model, &registry, block, on_gpu);
        let mut kept = Kept::default();
        for (shares, lazy, _) in WAYS {
            let ways = (lazy, shares);
            let made = check(
                device, &registry, &program, blocks, ways, tolerance, &mut kept,
            );
            println!("{model}, {shares:?}: {:?}", made.transport);
        }
    }
}

/// Another calendar of the same device finds large constants, and what it does not need makes room.
#[test]
fn constants_are_uploaded_once() {
    let registry = zbmd_backends::standard_registry();
    let (device, machine) = soft(&CudaOptions::default());
    machine.skip_launches();
    let mut kept = Kept::default();
    let mut uploaded = |cutoffs: &[f64]| {
        let program = filters(cutoffs, &registry);
        let plan = &program.plans[PlanId(0)];
        let none = program.graph.channels.iter().map(|_| vec![]).collect();
        let mut player = Player::new(&program, plan, GPU, &none, false);
        let made = keeping(&device, &registry, &program, plan, &mut player, &mut kept);
        let bytes = made.expect("a replay").summary().uploaded;
        (bytes / TAPS_BYTES, bytes > 0, machine.counts().allocations)
    };
    // Small constants of all filters share one bank.
    assert_eq!(uploaded(&[0.1]), (1, true, 2));
    assert_eq!(uploaded(&[0.1]), (0, false, 2));
    assert_eq!(uploaded(&[0.1, 0.2]), (1, true, 3));
    assert_eq!(uploaded(&[0.2]), (0, true, 2));
    drop(kept);
    assert_eq!(machine.counts().allocations, 0);
}

const TAPS_BYTES: u64 = 80_000;

/// A row of filters, each with many taps, on the GPU.
fn filters(cutoffs: &[f64], registry: &Registry) -> Verified<Program> {
    let names: Vec<String> = (0..cutoffs.len()).map(|i| format!("f{i}")).collect();
    let fir = |(name, cutoff): (&String, &f64)| {
        let taps = TAPS_BYTES / 4;
        format!(
            "\"{name}\": Fir(design: {{ \"kind\": \"lowpass\", \"cutoff\": {cutoff}, \"rate\": 1, \"taps\": {taps} }})"
        )
    };
    let actors: Vec<String> = names.iter().zip(cutoffs).map(fir).collect();
    let ends = || {
        ["in"]
            .into_iter()
            .chain(names.iter().map(String::as_str))
            .chain(["out"])
    };
    let channels: Vec<String> = ends()
        .zip(ends().skip(1))
        .map(|(from, to)| format!("(from: \"{from}\", to: [\"{to}\"])"))
        .collect();
    let model = format!(
        "Model(name: \"filters\", sources: {{ \"in\": Stream(dtype: f32) }}, sinks: {{ \"out\": Stream() }},
             actors: {{ {} }}, channels: [ {} ])",
        actors.join(", "),
        channels.join(", ")
    );
    let options = CompileOptions {
        registry: registry.clone(),
        ..CompileOptions::default()
    };
    let compiled = compile_str("filters.ron", &model, ".", &options);
    let Program { graph, blobs, .. } = compiled
        .unwrap_or_else(|d| panic!("{d}"))
        .program
        .into_inner();
    place(&graph, &blobs, registry, Block::Fixed(1), EVERY)
}

/// What a device cannot do, the host does.
#[test]
fn without_registration_or_operations_on_words_the_host_goes_on() {
    let registry = zbmd_backends::standard_registry();
    let program = place_model("cd2dat/model.ron", &registry, Block::Fixed(1), SOME);
    for (lacking, want) in [
        (Lacking::Nothing, Transport::Device),
        (Lacking::Signals, Transport::Fetched),
        (Lacking::Registration, Transport::Staged),
    ] {
        let instance = Instance::software();
        let machine = Arc::clone(instance.machine().expect("software"));
        machine.set_lacking(lacking);
        let listed = instance.find("cuda:0").expect("the only one");
        let device =
            CudaDevice::open(&instance, &listed, &CudaOptions::default()).expect("a device");
        let ways = (false, Shares::Counters);
        let made = check(
            &device,
            &registry,
            &program,
            4,
            ways,
            1e-5,
            &mut Kept::default(),
        );
        assert_eq!(made.transport, want, "{lacking:?}");
        assert_eq!(machine.counts().signals > 0, want == Transport::Device);
    }
}

/// A peer that does not release, or not even publish, in a run that is given up after a while.
struct Silent {
    publishes: bool,
}

impl Peers for Silent {
    fn published(&mut self, _: RingId, _: u64, _: bool) -> Result<bool, Stopped> {
        if self.publishes {
            Ok(true)
        } else {
            Err(Stopped)
        }
    }
    fn wait_released(&mut self, _: RingId, blocks: u64) -> Result<(), Stopped> {
        if blocks == 0 { Ok(()) } else { Err(Stopped) }
    }
    fn publish(&mut self, _: RingId, _: u64) {}
    fn release(&mut self, _: RingId, _: u64) {}
}

/// All that a device receives is there, and nobody takes what it sends.
fn publish_all(player: &Player<'_>, plan: &Plan) {
    for (ring, _) in plan
        .rings
        .iter_enumerated()
        .filter(|(_, ring)| ring.to == GPU)
    {
        player.counter(ring, 0).store(1 << 40, Ordering::Release);
    }
}

/// Whatever a device waits for: tokens that never come, or places that are never given back.
#[test]
fn a_device_that_waits_for_a_silent_peer_is_let_go() {
    let program = chain(3, &zbmd_backends::standard_registry());
    let plan = &program.plans[PlanId(0)];
    let no_tokens = program.graph.channels.iter().map(|_| vec![]).collect();
    for publishes in [false, true] {
        let mut player = Player::new(&program, plan, GPU, &no_tokens, false);
        player = player.sharing(Shares::Counters);
        let (device, machine) = soft(&CudaOptions::default());
        let registry = zbmd_backends::standard_registry();
        let mut replay = replay(&device, &registry, &program, plan, &mut player).expect("a replay");
        if publishes {
            publish_all(&player, plan);
        }
        let mut steps = (0..20).map(|period| replay.step(period, None, &mut Silent { publishes }));
        assert_eq!(steps.find_map(Result::err), Some(Halt::Stopped));
        assert!(machine.is_waiting());
        replay.release_waits().expect("it goes on at once");
        assert!(!machine.is_waiting() && device.is_alive());
        drop(replay);
        assert_eq!(
            (machine.counts().registered, machine.counts().allocations),
            (0, 0)
        );
    }
}

/// Where all is there that it waits for, as far as the host sees, a device that does not end hangs.
#[test]
fn a_device_that_hangs_is_told_from_one_that_waits() {
    let program = chain(3, &zbmd_backends::standard_registry());
    let plan = &program.plans[PlanId(0)];
    let no_tokens = program.graph.channels.iter().map(|_| vec![]).collect();
    let (device, machine) = soft(&CudaOptions::default());
    let registry = zbmd_backends::standard_registry();
    let mut player = Player::new(&program, plan, GPU, &no_tokens, false);
    player = player.sharing(Shares::Counters);
    let mut replay = replay(&device, &registry, &program, plan, &mut player).expect("a replay");
    publish_all(&player, plan);
    replay.set_patience(50_000_000);
    let halt = (0..20).find_map(|period| replay.step(period, None, &mut Idle).err());
    assert!(
        matches!(halt, Some(Halt::Fault(Fault::Hung { .. }))),
        "{halt:?}"
    );
    assert!(machine.is_waiting() && !device.is_alive());
    // Nobody may take the memory from a device that is left to itself.
    std::mem::forget(player);
}

/// After a loss the driver is not asked for anything any more, and the words that it may still look at stay as they are.
#[test]
fn a_dead_device_is_not_let_go() {
    let program = chain(3, &zbmd_backends::standard_registry());
    let plan = &program.plans[PlanId(0)];
    let no_tokens = program.graph.channels.iter().map(|_| vec![]).collect();
    let (device, machine) = soft(&CudaOptions::default());
    let registry = zbmd_backends::standard_registry();
    let mut player = Player::new(&program, plan, GPU, &no_tokens, false);
    player = player.sharing(Shares::Counters);
    let mut replay = replay(&device, &registry, &program, plan, &mut player).expect("a replay");
    machine.inject(Some(Injection {
        site: Site::Signal,
        after: 0,
        code: Some(Code(700)),
    }));
    let lost = (0..4).find_map(|period| {
        replay
            .step(period, None, &mut Silent { publishes: false })
            .err()
    });
    let lost = lost.expect("it waits for words in every period");
    assert!(
        matches!(
            lost,
            Halt::Fault(Fault::Lost {
                site: Site::Signal,
                ..
            })
        ),
        "{lost}"
    );
    machine.inject(None);
    let before = machine.counts();
    replay.release_waits().expect("nothing is done");
    drop(replay);
    assert_eq!(machine.counts(), before);
    assert_eq!(before.registered, 1);
    for ring in plan.rings.keys() {
        let counters = [0, 1].map(|which| player.counter(ring, which));
        let counters = counters.map(|c| c.load(Ordering::Relaxed));
        assert_eq!(counters, [0, 0]);
    }
}

#[test]
fn arenas_are_one_allocation_unless_told_otherwise() {
    let registry = zbmd_backends::standard_registry();
    let program = place_model("cd2dat/model.ron", &registry, Block::Fixed(1), EVERY);
    let plan = &program.plans[PlanId(0)];
    let no_tokens = Default::default();
    let mut player = Player::new(&program, plan, GPU, &no_tokens, false);
    let made = |options: &CudaOptions, player: &mut Player<'_>| {
        let (device, machine) = soft(options);
        let replay = replay(&device, &registry, &program, plan, player)?;
        Ok((machine.counts().allocations, replay.summary().bytes))
    };
    let (whole, bytes) = made(&CudaOptions::default(), &mut player).expect("fits");
    let plan_bytes: u64 = plan
        .calendars
        .iter()
        .filter(|c| c.device == GPU)
        .map(|c| c.arena_bytes)
        .sum();
    // Room for the largest buffer, and not for all.
    let part = CudaOptions {
        bank_bytes: Some(plan_bytes * 3 / 4),
        ..CudaOptions::default()
    };
    let (cut, _) = made(&part, &mut player).expect("fits");
    // The arena, the exchange region, memory for carries, inbox, outbox, constants.
    assert_eq!(whole, 6);
    assert!(cut > whole, "{cut}");
    assert!(bytes >= plan_bytes, "{bytes} of {plan_bytes}");
    let small = CudaOptions {
        bank_bytes: Some(256),
        ..CudaOptions::default()
    };
    let refused = made(&small, &mut player);
    assert!(matches!(
        refused,
        Err(ReplayError::TooLarge { limit: 256, .. })
    ));
}

/// A replay of a chain on a device that fails as told, from its making to its end.
fn fails(program: &Program, shares: Shares, injection: Injection) -> Option<Fault> {
    let registry = zbmd_backends::standard_registry();
    let (device, machine) = soft(&CudaOptions::default());
    machine.inject(Some(injection));
    let plan = &program.plans[PlanId(0)];
    let tokens = program.graph.channels.iter().map(|_| vec![]).collect();
    let mut player = Player::new(program, plan, GPU, &tokens, false).sharing(shares);
    player.be_idle();
    let halted = |halt| match halt {
        Halt::Fault(fault) => ReplayError::Fault(fault),
        Halt::Stopped => panic!("nobody stops it"),
    };
    let made = replay(&device, &registry, program, plan, &mut player);
    let run = made.and_then(|mut replay| {
        replay.set_patience(1_000_000);
        replay.load_state(&State::initial(&program.graph))?;
        (0..8)
            .try_for_each(|p| replay.step(p, None, &mut Idle))
            .map_err(halted)?;
        replay.drain(&mut Idle).map_err(halted)
    });
    match run {
        Ok(()) => None,
        Err(ReplayError::Fault(fault)) => {
            assert_eq!(device.is_alive(), !fault.is_fatal(), "{fault}");
            Some(fault)
        }
        Err(other) => panic!("{injection:?}: {other}"),
    }
}

#[test]
fn losses_during_a_run_are_reported_at_the_call_that_saw_them() {
    let program = chain(3, &zbmd_backends::standard_registry());
    // A device that hangs is waited for, so they wait side by side.
    let reported: usize = std::thread::scope(|scope| {
        let ways = [0, 1, 2, 5]
            .into_iter()
            .flat_map(|after| [Shares::Regions, Shares::Counters].map(|shares| (after, shares)));
        let program = &program;
        let counts = ways.map(|(after, shares)| {
            scope.spawn(move || count_reported_faults(program, shares, after))
        });
        let counts: Vec<_> = counts.collect();
        let counts = counts.into_iter().map(|count| count.join());
        counts.map(|count| count.expect("no panic")).sum()
    });
    assert!(reported > 200, "only {reported} faults");
}

/// Has every call fail in every way after so many that go well; how often that was a fault.
fn count_reported_faults(program: &Program, shares: Shares, after: u32) -> usize {
    let mut reported = 0;
    for &site in Site::ALL {
        for (code, verdict) in [
            (Some(700), Verdict::RestartWorker),
            (Some(214), Verdict::DropDevice),
            (Some(2), Verdict::Refuse),
            (None, Verdict::RestartWorker),
        ] {
            if code.is_none() && site != Site::Query {
                continue;
            }
            let injection = Injection {
                site,
                after,
                code: code.map(Code),
            };
            let Some(fault) = fails(program, shares, injection) else {
                continue;
            };
            reported += 1;
            assert_eq!(fault.verdict(), verdict, "{injection:?}: {fault}");
            let hung = matches!(fault, Fault::Hung { .. });
            assert!(hung == code.is_none(), "{injection:?}: {fault}");
            assert!(hung || fault.to_string().contains(site.name()), "{fault}");
        }
    }
    reported
}
