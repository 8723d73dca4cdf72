//! Calendars of CUDA devices beside the interpreter: whole graphs, with the other devices played by hand. On a device
//! in software everywhere, with the printed code read instruction by instruction and every edge of the graphs compared
//! with what nodes touch; on a GPU where there is one.

use std::sync::Arc;

use zbmd_backends::cuda::{
    Code, Device, Fault, Halt, Injection, Instance, Machine, OpenError, Options, Replay,
    ReplayError, Site, Verdict,
};
use zbmd_backends::op::Registry;
use zbmd_ir::{DeviceId, Plan, PlanId, Program, State};
use zbmd_scheduler::Block;
use zbmd_tests::gpu::{Idle, Player, chain, distance, place_model, required, tame_inputs, tokens};

const GPU: DeviceId = DeviceId(1);

/// With kernels that wait for others themselves.
const PROGRAMMATIC: Options = Options { bank_bytes: None, programmatic: true };

/// A device in software, which can do what the options ask for.
fn soft(options: &Options) -> (Arc<Device>, Arc<Machine>) {
    let instance = Instance::software();
    let mut listed = instance.find("cuda:0").expect("the only one");
    if options.programmatic {
        listed.arch = (9, 0);
    }
    let machine = Arc::clone(instance.machine().expect("software"));
    (Device::open(&instance, &listed, options).expect("nothing is injected"), machine)
}

/// The first device of this machine. `None`, loudly, without one, unless `ZBMD_REQUIRE` names `cuda`.
fn real(options: &Options) -> Option<Arc<Device>> {
    let required = required("cuda");
    let opened = Instance::load().map_err(OpenError::from).and_then(|instance| {
        let listed = instance.find("cuda:0")?;
        Device::open(&instance, &listed, options)
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
    device: &Arc<Device>,
    registry: &Registry,
    program: &Program,
    plan: &Plan,
    player: &mut Player<'_>,
) -> Result<Replay, ReplayError> {
    let calendar = plan.calendars.iter().find(|c| c.device == GPU).expect("a calendar");
    Replay::new(device, registry, program, plan, calendar, &player.host_regions())
}

/// What every ring has carried, and the state that is left on the GPU, beside the interpreter's.
fn check(
    device: &Arc<Device>,
    registry: &Registry,
    program: &Program,
    blocks: u64,
    lazy: bool,
    tolerance: f64,
) {
    let plan = &program.plans[PlanId(0)];
    let iterations = blocks * plan.block;
    let (tokens, want) = tokens(program, registry, &tame_inputs(program, iterations), iterations);
    let mut player = Player::new(program, plan, GPU, &tokens, lazy);
    let mut replay = replay(device, registry, program, plan, &mut player).expect("a replay");
    assert_eq!(replay.summary().segments, 1);
    let mut state = State::initial(&program.graph);
    replay.load_state(&state).expect("a state");
    for period in 0..blocks + u64::from(plan.stages) - 1 {
        let known = (period >= blocks).then_some(blocks);
        replay.step(period, known, &mut player).expect("a period");
    }
    replay.drain(&mut player).expect("the end");
    assert!(!player.sent.is_empty() || plan.rings.iter().all(|r| r.from != GPU));
    for (ring, bytes) in &player.sent {
        let channel = plan.rings[*ring].channel;
        let dtype = program.graph.channels[channel].token.dtype;
        let off = distance(dtype, bytes, &tokens[channel]);
        assert!(off <= tolerance, "{ring} ({channel}): off by {off:e}");
    }
    replay.save_state(blocks, &mut state).expect("a state");
    for buffer in plan.buffers.iter().filter(|b| b.device == GPU && b.head_tokens > 0) {
        let token = &program.graph.channels[buffer.channel].token;
        let len = (buffer.head_tokens * token.bytes()) as usize;
        let last = |s: &State| {
            let tokens = &s.channels[buffer.channel];
            tokens[tokens.len() - len..].to_vec()
        };
        let off = distance(token.dtype, &last(&state), &last(&want));
        assert!(off <= tolerance, "state of {}: off by {off:e}", buffer.channel);
    }
}

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
    let registry = Registry::standard();
    let mut programmatic = 0;
    for &(model, block, on_gpu, blocks, tolerance) in SMALL {
        let program = place_model(model, &registry, block, on_gpu);
        for options in [Options::default(), PROGRAMMATIC] {
            let (device, machine) = soft(&options);
            machine.check();
            for lazy in [false, true] {
                check(&device, &registry, &program, blocks, lazy, tolerance);
            }
            let counts = machine.counts();
            println!("{model}: {counts:?}");
            assert_eq!(machine.conflicts(), Vec::<String>::new(), "{model}: edges are missing");
            let kept = [counts.allocations, counts.events, counts.graphs, counts.ready];
            assert_eq!(kept, [0; 4], "{model}: not given back");
            assert!(counts.nodes[0] > 0 && counts.edges > 0, "{model}: {counts:?}");
            assert!(options.programmatic || counts.programmatic == 0, "{model}: {counts:?}");
            programmatic += counts.programmatic;
        }
    }
    assert!(programmatic > 0, "no kernel waits itself");
}

/// The comparison of edges with what nodes touch notices that they are missing.
#[test]
fn graphs_without_edges_are_noticed() {
    let registry = Registry::standard();
    let program = chain(3, &registry);
    let plan = &program.plans[PlanId(0)];
    let no_tokens = program.graph.channels.iter().map(|_| vec![]).collect();
    let mut player = Player::new(&program, plan, GPU, &no_tokens, false);
    let (device, machine) = soft(&Options::default());
    machine.check();
    machine.cut();
    let mut replay = replay(&device, &registry, &program, plan, &mut player).expect("a replay");
    replay.load_state(&State::initial(&program.graph)).expect("a state");
    // The chain is at work once all stages are.
    for period in 0..u64::from(plan.stages) {
        replay.step(period, None, &mut Idle).expect("a period");
    }
    replay.drain(&mut Idle).expect("the end");
    // Between each of the three and the next one, at least.
    assert!(machine.conflicts().len() >= 2, "{:?}", machine.conflicts());
}

#[test]
fn models_run_on_a_gpu_as_in_the_interpreter() {
    let Some(device) = real(&Options::default()) else { return };
    on_a_gpu(&device);
}

#[test]
fn kernels_that_wait_themselves_run_on_a_gpu_as_in_the_interpreter() {
    let Some(device) = real(&PROGRAMMATIC) else { return };
    match device.is_programmatic() {
        true => on_a_gpu(&device),
        false => eprintln!("SKIPPED: the device or its driver has no programmatic edges"),
    }
}

fn on_a_gpu(device: &Arc<Device>) {
    let registry = Registry::standard();
    for &(model, block, on_gpu, blocks, tolerance) in LARGE {
        let program = place_model(model, &registry, block, on_gpu);
        for lazy in [false, true] {
            check(device, &registry, &program, blocks, lazy, tolerance);
        }
    }
}

#[test]
fn arenas_are_one_allocation_unless_told_otherwise() {
    let registry = Registry::standard();
    let program = place_model("cd2dat/model.ron", &registry, Block::Fixed(1), EVERY);
    let plan = &program.plans[PlanId(0)];
    let no_tokens = Default::default();
    let mut player = Player::new(&program, plan, GPU, &no_tokens, false);
    let made = |options: &Options, player: &mut Player<'_>| {
        let (device, machine) = soft(options);
        let replay = replay(&device, &registry, &program, plan, player)?;
        Ok((machine.counts().allocations, replay.summary().bytes))
    };
    let (whole, bytes) = made(&Options::default(), &mut player).expect("fits");
    let plan_bytes: u64 =
        plan.calendars.iter().filter(|c| c.device == GPU).map(|c| c.arena_bytes).sum();
    // Room for the largest buffer, and not for all.
    let part = Options { bank_bytes: Some(plan_bytes * 3 / 4), ..Options::default() };
    let (cut, _) = made(&part, &mut player).expect("fits");
    // The arena, the exchange region, memory for carries, inbox, outbox, constants.
    assert_eq!(whole, 6);
    assert!(cut > whole, "{cut}");
    assert!(bytes >= plan_bytes, "{bytes} of {plan_bytes}");
    let small = Options { bank_bytes: Some(256), ..Options::default() };
    let refused = made(&small, &mut player);
    assert!(matches!(refused, Err(ReplayError::TooLarge { limit: 256, .. })));
}

/// A replay of a chain on a device that fails as told, from its making to its end.
fn fails(program: &Program, injection: Injection) -> Option<Fault> {
    let registry = Registry::standard();
    let (device, machine) = soft(&Options::default());
    machine.inject(Some(injection));
    let plan = &program.plans[PlanId(0)];
    let tokens = program.graph.channels.iter().map(|_| vec![]).collect();
    let mut player = Player::new(program, plan, GPU, &tokens, false);
    let halted = |halt| match halt {
        Halt::Fault(fault) => ReplayError::Fault(fault),
        Halt::Stopped => panic!("nobody stops it"),
    };
    let run = replay(&device, &registry, program, plan, &mut player).and_then(|mut replay| {
        replay.set_patience(1_000_000);
        replay.load_state(&State::initial(&program.graph))?;
        (0..8).try_for_each(|p| replay.step(p, None, &mut Idle)).map_err(halted)?;
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
    let program = chain(3, &Registry::standard());
    let mut reported = 0;
    for &site in Site::ALL {
        for after in [0, 1, 2, 5] {
            for (code, verdict) in [
                (Some(700), Verdict::RestartWorker),
                (Some(214), Verdict::DropDevice),
                (Some(2), Verdict::Refuse),
                (None, Verdict::RestartWorker),
            ] {
                if code.is_none() && site != Site::Query {
                    continue;
                }
                let injection = Injection { site, after, code: code.map(Code) };
                let Some(fault) = fails(&program, injection) else { continue };
                reported += 1;
                assert_eq!(fault.verdict(), verdict, "{injection:?}: {fault}");
                let hung = matches!(fault, Fault::Hung { .. });
                assert!(hung == code.is_none(), "{injection:?}: {fault}");
                assert!(hung || fault.to_string().contains(site.name()), "{fault}");
            }
        }
    }
    assert!(reported > 80, "only {reported} faults");
}
