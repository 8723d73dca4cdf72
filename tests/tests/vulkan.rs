//! Calendars of Vulkan devices beside the interpreter: whole graphs, with the other devices played by hand. The
//! validation layers, synchronization included, must have nothing to say.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbmd_backends::op::Registry;
use zbmd_backends::vulkan::{
    Device, Fault, Halt, Injected, Injection, Instance, Options, Replay, ReplayError, Site,
};
use zbmd_ir::{BufferId, DeviceId, Plan, PlanId, Program, RingId, State};
use zbmd_scheduler::Block;
use zbmd_tests::actors;
use zbmd_tests::gpu::{
    Idle, Player, chain, distance, open, place_model, tame_inputs, tokens, turn,
};
use zbmd_tests::run::Streams;

const GPU: DeviceId = DeviceId(1);

/// The first device, with the layers on.
fn device(options: &Options) -> Option<Arc<Device>> {
    open(true, options)
}

struct Case<'a> {
    program: &'a Program,
    plan: &'a Plan,
    registry: &'a Registry,
}

impl Case<'_> {
    fn replay(&self, device: &Arc<Device>, player: &mut Player<'_>) -> Replay {
        let calendar = self.plan.calendars.iter().find(|c| c.device == GPU).expect("a calendar");
        let exchange = player.exchange();
        Replay::new(device, self.registry, self.program, self.plan, calendar, &exchange)
            .unwrap_or_else(|e| panic!("{e}"))
    }

    /// What every ring has carried, and the state that is left on the GPU, beside the interpreter's.
    fn check(
        &self,
        device: &Arc<Device>,
        inputs: &Streams,
        blocks: u64,
        lazy: bool,
        tolerance: f64,
    ) {
        let iterations = blocks * self.plan.block;
        let (tokens, want) = tokens(self.program, self.registry, inputs, iterations);
        let mut player = Player::new(self.program, self.plan, GPU, &tokens, lazy);
        let mut replay = self.replay(device, &mut player);
        let mut state = State::initial(&self.program.graph);
        replay.load_state(&state).expect("a state");
        let heads = self.plan.buffers.iter_enumerated();
        let heads = heads.filter(|(_, b)| b.device == GPU && b.head_tokens > 0);
        let heads: Vec<BufferId> = heads.map(|(id, _)| id).collect();
        let every = u64::from(self.plan.stages);
        replay.save_borders(every, &heads).expect("room for borders");
        player.run(&mut replay, blocks).expect("a run");
        assert_eq!(player.ended, blocks + every - 1);
        let sent: &BTreeMap<RingId, Vec<u8>> = &player.sent;
        assert!(!sent.is_empty() || self.plan.rings.iter().all(|r| r.from != GPU));
        for (ring, bytes) in sent {
            let channel = self.plan.rings[*ring].channel;
            let dtype = self.program.graph.channels[channel].token.dtype;
            let off = distance(dtype, bytes, &tokens[channel]);
            assert!(off <= tolerance, "{ring} ({channel}): off by {off:e}");
        }
        replay.save_state(blocks, &mut state).expect("a state");
        for buffer in self.plan.buffers.iter().filter(|b| b.device == GPU && b.head_tokens > 0) {
            let dtype = self.program.graph.channels[buffer.channel].token.dtype;
            let len =
                buffer.head_tokens * self.program.graph.channels[buffer.channel].token.bytes();
            let last = |s: &State| {
                let tokens = &s.channels[buffer.channel];
                tokens[tokens.len() - len as usize..].to_vec()
            };
            let off = distance(dtype, &last(&state), &last(&want));
            assert!(off <= tolerance, "state of {}: off by {off:e}", buffer.channel);
        }
        let borders: Vec<u64> = (1..=blocks).filter(|b| b.is_multiple_of(every)).collect();
        assert_eq!(player.saved.len(), borders.len() * heads.len());
        for border in borders {
            let iterations = border * self.plan.block;
            let (_, want) = self::tokens(self.program, self.registry, inputs, iterations);
            for buffer in heads.iter().map(|id| &self.plan.buffers[*id]) {
                let dtype = self.program.graph.channels[buffer.channel].token.dtype;
                let saved = &player.saved[&(border, buffer.channel)];
                let tokens = &want.channels[buffer.channel];
                let off = distance(dtype, saved, &tokens[tokens.len() - saved.len()..]);
                assert!(off <= tolerance, "border {border} of {}: off by {off:e}", buffer.channel);
            }
        }
        let messages = device.instance().messages();
        assert!(messages.is_empty(), "{} messages, the first: {}", messages.len(), messages[0]);
    }
}

#[test]
fn models_run_on_the_gpu_as_in_the_interpreter() {
    let _turn = turn();
    let Some(device) = device(&Options::default()) else { return };
    let registry = actors::registry();
    let every: fn(usize) -> bool = |_| true;
    let some: fn(usize) -> bool = |i| i % 2 == 0;
    for (model, block, on_gpu, blocks, tolerance) in [
        ("cd2dat/model.ron", Block::Fixed(2), every, 5, 1e-5),
        ("cd2dat/model.ron", Block::Fixed(1), some, 7, 1e-5),
        ("fm/model.ron", Block::Fixed(40), every, 5, 1e-5),
        ("fm/model.ron", Block::Fixed(7), some, 9, 1e-5),
        // The decoder is a custom actor, which runs on the CPU.
        ("adsb/model.ron", Block::Fixed(2), every, 4, 1e-5),
        ("agc/model.ron", Block::Fixed(16), every, 4, 1e-5),
        ("pll/model.ron", Block::Fixed(8), every, 6, 1e-4),
    ] {
        let program = place_model(model, &registry, block, on_gpu);
        let plan = &program.plans[PlanId(0)];
        let case = Case { program: &program, plan, registry: &registry };
        let inputs = tame_inputs(&program, blocks * plan.block);
        let no_tokens = Default::default();
        let mut player = Player::new(&program, plan, GPU, &no_tokens, false);
        let summary = case.replay(&device, &mut player).summary();
        println!("{model}: {} stages, {} rings, {summary:?}", plan.stages, plan.rings.len());
        // Stages keep the devices from waiting for each other within a period.
        assert_eq!(summary.segments, 1, "{model}");
        for lazy in [false, true] {
            case.check(&device, &inputs, blocks, lazy, tolerance);
        }
    }
}

#[test]
fn arenas_are_cut_where_buffers_are_small() {
    let _turn = turn();
    // The largest buffer of this plan has some 4 KiB.
    let options = Options { bank_bytes: Some(8 << 10), ..Options::default() };
    let Some(device) = device(&options) else { return };
    let registry = Registry::standard();
    let program = place_model("cd2dat/model.ron", &registry, Block::Fixed(2), |_| true);
    let plan = &program.plans[PlanId(0)];
    let case = Case { program: &program, plan, registry: &registry };
    case.check(&device, &tame_inputs(&program, 4 * plan.block), 4, false, 1e-5);

    let options = Options { bank_bytes: Some(256), ..Options::default() };
    let Some(small) = self::device(&options) else { return };
    let (tokens, _) = tokens(&program, &registry, &tame_inputs(&program, plan.block), plan.block);
    let mut player = Player::new(&program, plan, GPU, &tokens, false);
    let calendar = plan.calendars.iter().find(|c| c.device == GPU).expect("a calendar");
    let refused = Replay::new(&small, &registry, &program, plan, calendar, &player.exchange());
    let Err(ReplayError::TooLarge { limit: 256, bytes, .. }) = refused else {
        panic!("a buffer that no bank holds was accepted")
    };
    assert!(bytes > 256);
}

/// A replay of a chain on a device that fails as told, from its making to its end.
fn fails(instance: &Arc<Instance>, program: &Program, injection: Injection) -> Option<Fault> {
    let registry = Registry::standard();
    let listed = instance.find("vulkan:0").expect("found before");
    let device = Device::open(instance, &listed, &Options::default()).expect("opened before");
    device.inject(injection);
    let plan = &program.plans[PlanId(0)];
    let tokens = program.graph.channels.iter().map(|_| vec![]).collect();
    let mut player = Player::new(program, plan, GPU, &tokens, false);
    let calendar = plan.calendars.iter().find(|c| c.device == GPU).expect("a calendar");
    let exchange = player.exchange();
    let replay = Replay::new(&device, &registry, program, plan, calendar, &exchange);
    let run = replay.and_then(|mut replay| {
        replay.load_state(&State::initial(&program.graph))?;
        for period in 0..8 {
            match replay.step(period, None, &mut Idle) {
                Ok(()) => {}
                Err(Halt::Fault(fault)) => return Err(fault.into()),
                Err(Halt::Stopped) => panic!("nobody stops it"),
            }
        }
        match replay.drain(&mut Idle) {
            Ok(()) => Ok(()),
            Err(Halt::Fault(fault)) => Err(fault.into()),
            Err(Halt::Stopped) => panic!("nobody stops it"),
        }
    });
    // A lost device is left to the end of the process, and keeps its instance.
    std::mem::forget(device);
    match run {
        Ok(()) => None,
        Err(ReplayError::Fault(fault)) => Some(fault),
        Err(other) => panic!("{injection:?}: {other}"),
    }
}

#[test]
fn losses_during_a_run_are_reported_at_the_call_that_saw_them() {
    let _turn = turn();
    let Some(first) = device(&Options::default()) else { return };
    let program = chain(3, &Registry::standard());
    let mut reported = 0;
    for &site in Site::ALL {
        for after in [0, 1, 2, 5] {
            for error in [Injected::Lost, Injected::DeviceMemory, Injected::Hang] {
                if error == Injected::Hang && site != Site::Wait {
                    continue;
                }
                let injection = Injection { site, after, error };
                let Some(fault) = fails(first.instance(), &program, injection) else { continue };
                reported += 1;
                let said = match (&fault, error) {
                    (Fault::Lost { site, .. }, Injected::Lost)
                    | (Fault::OutOfMemory { site, .. }, Injected::DeviceMemory) => *site,
                    (Fault::Hung { .. }, Injected::Hang) => Site::Wait,
                    _ => panic!("{injection:?}: {fault}"),
                };
                assert_eq!(said, site, "{fault}");
            }
        }
    }
    assert!(reported > 80, "only {reported} faults");
}
