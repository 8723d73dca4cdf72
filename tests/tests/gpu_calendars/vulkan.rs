//! Calendars of Vulkan devices beside the interpreter: whole graphs, with the other devices played by hand. The
//! validation layers, synchronization included, must have nothing to say.

use std::collections::BTreeSet;
use std::sync::Arc;

use zbmd_backends::op::Registry;
use zbmd_backends::vulkan::testing::assert_valid;
use zbmd_backends::vulkan::{
    Fault, Halt, Injected, Injection, Instance, Replay, ReplayError, Site, Summary, VulkanDevice,
    VulkanOptions,
};
use zbmd_ir::{DeviceId, PlanId, Program, State};
use zbmd_scheduler::Block;
use zbmd_tests::actors;
use zbmd_tests::gpu::{
    Idle, Player, Shares, beside, chain, gpu_calendar, open, place_model, tame_inputs, tokens,
    turn, with,
};
use zbmd_tests::models;

const GPU: DeviceId = DeviceId(1);

/// The first device, with the layers on.
fn device(options: &VulkanOptions) -> Option<Arc<VulkanDevice>> {
    open(true, options)
}

/// [`beside`] on a device, of which the layers have nothing to say.
fn check(
    device: &Arc<VulkanDevice>,
    registry: &Registry,
    program: &Program,
    blocks: u64,
    lazy: bool,
    tolerance: f64,
) -> Summary {
    let ways = (lazy, Shares::Regions);
    let made = beside(
        program,
        registry,
        blocks,
        ways,
        tolerance,
        |plan, calendar, exchange| {
            let made = Replay::new(device, registry, program, plan, calendar, exchange);
            Box::new(made.unwrap_or_else(|e| panic!("{e}")))
        },
    );
    assert_valid(device);
    made
}

#[test]
fn models_run_on_the_gpu_as_in_the_interpreter() {
    let _turn = turn();
    let Some(device) = device(&VulkanOptions::default()) else {
        return;
    };
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
        for lazy in [false, true] {
            let made = check(&device, &registry, &program, blocks, lazy, tolerance);
            // Stages keep the devices from waiting for each other within a period.
            assert_eq!(made.segments, 1, "{model}");
        }
    }
}

/// In as many segments as it takes, with feedback over devices.
#[test]
fn random_models_run_as_in_the_interpreter() {
    let _turn = turn();
    let Some(device) = device(&VulkanOptions::default()) else {
        return;
    };
    let registry = zbmd_backends::standard_registry();
    let mut segments = BTreeSet::new();
    for seed in 0..25 {
        let machine = with(&["vulkan", "cuda"]);
        let Some((program, mut rng)) = models::placed(seed, machine, &registry) else {
            continue;
        };
        let made = check(
            &device,
            &registry,
            &program,
            rng.u64(1..12),
            rng.bool(),
            1e-5,
        );
        segments.insert(made.segments);
    }
    assert!(segments.len() > 2, "{segments:?}");
}

#[test]
fn arenas_are_cut_where_buffers_are_small() {
    let _turn = turn();
    // The largest buffer of this plan has some 4 KiB.
    let options = VulkanOptions {
        bank_bytes: Some(8 << 10),
        ..VulkanOptions::default()
    };
    let Some(device) = device(&options) else {
        return;
    };
    let registry = zbmd_backends::standard_registry();
    let program = place_model("cd2dat/model.ron", &registry, Block::Fixed(2), |_| true);
    let plan = &program.plans[PlanId(0)];
    check(&device, &registry, &program, 4, false, 1e-5);

    let options = VulkanOptions {
        bank_bytes: Some(256),
        ..VulkanOptions::default()
    };
    let Some(small) = self::device(&options) else {
        return;
    };
    let (tokens, _) = tokens(
        &program,
        &registry,
        &tame_inputs(&program, plan.block),
        plan.block,
    );
    let mut player = Player::new(&program, plan, GPU, &tokens, false);
    let calendar = gpu_calendar(plan);
    let refused = Replay::new(
        &small,
        &registry,
        &program,
        plan,
        calendar,
        &player.exchange(),
    );
    let Err(ReplayError::TooLarge {
        limit: 256, bytes, ..
    }) = refused
    else {
        panic!("a buffer that no bank holds was accepted")
    };
    assert!(bytes > 256);
}

/// A replay of a chain on a device that fails as told, from its making to its end.
fn fails(instance: &Arc<Instance>, program: &Program, injection: Injection) -> Option<Fault> {
    let registry = zbmd_backends::standard_registry();
    let listed = instance.find("vulkan:0").expect("found before");
    let device =
        VulkanDevice::open(instance, &listed, &VulkanOptions::default()).expect("opened before");
    device.inject(injection);
    let plan = &program.plans[PlanId(0)];
    let tokens = program.graph.channels.iter().map(|_| vec![]).collect();
    let mut player = Player::new(program, plan, GPU, &tokens, false);
    let calendar = gpu_calendar(plan);
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
    let Some(first) = device(&VulkanOptions::default()) else {
        return;
    };
    let program = chain(3, &zbmd_backends::standard_registry());
    let mut reported = 0;
    for &site in Site::ALL {
        for after in [0, 1, 2, 5] {
            for error in [Injected::Lost, Injected::DeviceMemory, Injected::Hang] {
                if error == Injected::Hang && site != Site::Wait {
                    continue;
                }
                let injection = Injection { site, after, error };
                let Some(fault) = fails(first.instance(), &program, injection) else {
                    continue;
                };
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
