//! What a period of a GPU's calendar costs the host: chains of 10, 100 and 1,000 slots, beside the same kernels
//! submitted one by one. Prints a table; without a device it says so.

use std::hint::black_box;
use std::time::{Duration, Instant};

use zbmd_backends::op::Registry;
use zbmd_backends::vulkan::{Device, GpuCall, Options, Replay};
use zbmd_ir::{DeviceId, PlanId};
use zbmd_tests::gpu::{Idle, Player, chain, open, tokens};
use zbmd_tests::run::random_inputs;

/// The median of some measurements of `f`, which returns a time.
fn median(times: usize, mut f: impl FnMut() -> Duration) -> Duration {
    let mut all: Vec<Duration> = (0..times).map(|_| f()).collect();
    all.sort_unstable();
    all[all.len() / 2]
}

fn main() {
    let Some(device) = open(false, &Options::default()) else { return };
    let registry = Registry::standard();
    println!("{}, {}", device.listed().title, device.listed().driver);
    println!(
        "{:>6} {:>9} {:>14} {:>14} {:>14} {:>14}",
        "slots", "barriers", "submit", "a slot", "period", "one by one"
    );
    for slots in [10, 100, 1_000] {
        let program = chain(slots, &registry);
        let plan = &program.plans[PlanId(0)];
        let inputs = random_inputs(&program, plan.block, 1);
        let (tokens, _) = tokens(&program, &registry, &inputs, plan.block);
        let mut player = Player::new(&program, plan, DeviceId(1), &tokens, false);
        let calendar = plan.calendars.iter().find(|c| c.device == DeviceId(1)).expect("a calendar");
        let regions = player.host_regions();
        let mut replay =
            Replay::new(&device, &registry, &program, plan, calendar, &regions).expect("a replay");
        let mut idle = Idle;
        let mut period = 0;
        let mut step = |ends: bool| {
            let start = Instant::now();
            replay.step(period, None, &mut idle).expect("a period");
            let submitted = start.elapsed();
            period += 1;
            if ends {
                replay.drain(&mut idle).expect("its end");
            }
            (submitted, start.elapsed())
        };
        for _ in 0..10 {
            step(true);
        }
        // Nothing is in flight before each of them, so that only the host's own work is counted.
        let submit = median(200, || step(true).0);
        let whole = median(100, || step(true).1);
        let apart = one_by_one(&device, &registry, &program, slots);
        let barriers = replay.summary().barriers;
        println!(
            "{slots:>6} {barriers:>9} {submit:>14.2?} {:>14.2?} {whole:>14.2?} {apart:>14.2?}",
            submit / slots
        );
        black_box(&replay);
    }
}

/// The chain's kernels, each submitted and waited for.
fn one_by_one(
    device: &std::sync::Arc<Device>,
    registry: &Registry,
    program: &zbmd_ir::Program,
    slots: u32,
) -> Duration {
    let actor = program.graph.actors.iter().find(|a| a.op == "Gain").expect("a chain");
    let plan = registry.lower(actor, &program.blobs, device.caps()).expect("a kernel");
    let firings = program.plans[PlanId(0)].block as usize;
    let mut call = GpuCall::new(device, actor, &plan, firings, 1).expect("a call");
    median(20, || {
        let start = Instant::now();
        (0..slots).for_each(|_| call.run().expect("a run"));
        start.elapsed()
    })
}
