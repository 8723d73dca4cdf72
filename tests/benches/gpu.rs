//! What a period of a GPU's calendar costs: chains of 10, 100 and 1,000 slots, beside the same kernels bare (one
//! command buffer or graph, launched again and again) and launched one by one. Prints a table; without a device it says
//! so.
//!
//! `cargo bench -p zbmd-tests --bench gpu` takes Vulkan's first device, `-- cuda` CUDA's. For the latter, the same
//! periods follow with plain and with programmatic edges, by turns.

use std::hint::black_box;
use std::time::{Duration, Instant};

use zbmd_backends::gpu::{Calls, Device, Drivers, Options, Replay};
use zbmd_backends::op::Registry;
use zbmd_ir::{DeviceId, PlanId, Program};
use zbmd_tests::gpu::{Idle, Player, chain, tokens};
use zbmd_tests::run::random_inputs;

/// Rounds, in each of which everything is measured once.
const ROUNDS: usize = 100;

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

fn main() {
    let is_cuda = std::env::args().any(|a| a == "cuda");
    let backend = if is_cuda { "cuda" } else { "vulkan" };
    let opened = Drivers::default().open(backend, &format!("{backend}:0"), &Options::default());
    let device = match opened {
        Ok(device) => device,
        Err(fault) => return eprintln!("SKIPPED: {fault}"),
    };
    let registry = Registry::standard();
    println!("{}, medians of {ROUNDS}", device.kind());
    println!(
        "{:>6} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12}",
        "slots", "submit", "bare", "period", "bare", "one by one", "period/bare"
    );
    for slots in [10, 100, 1_000] {
        let program = chain(slots, &registry);
        measure(&device, &registry, &program, slots);
    }
    if is_cuda {
        programmatic(&registry);
    }
}

/// Periods with plain edges beside the same with programmatic ones.
fn programmatic(registry: &Registry) {
    let mut drivers = Drivers::default();
    let devices = [false, true].map(|programmatic| {
        let options = Options { programmatic, ..Options::default() };
        drivers.open("cuda", "cuda:0", &options).expect("it was opened before")
    });
    if !matches!(&devices[1], Device::Cuda(device) if device.is_programmatic()) {
        return println!("programmatic edges: not run: the device or its driver has none");
    }
    println!("{:>6} {:>12} {:>12} {:>12}", "slots", "plain", "programmatic", "ratio");
    for slots in [10, 100, 1_000] {
        let program = chain(slots, registry);
        let plan = &program.plans[PlanId(0)];
        let none = program.graph.channels.iter().map(|_| vec![]).collect();
        let mut player = Player::new(&program, plan, DeviceId(1), &none, false);
        let calendar = plan.calendars.iter().find(|c| c.device == DeviceId(1)).expect("a calendar");
        let regions = player.host_regions();
        let mut replays = devices.each_ref().map(|device| {
            device.replay(registry, &program, plan, calendar, &regions).expect("a replay")
        });
        let mut times = [const { Vec::new() }; 2];
        for round in 0..ROUNDS as u64 + 10 {
            for (replay, times) in replays.iter_mut().zip(&mut times) {
                let start = Instant::now();
                replay.step(round, None, &mut Idle).expect("a period");
                replay.drain(&mut Idle).expect("its end");
                if round >= 10 {
                    times.push(start.elapsed());
                }
            }
        }
        let [plain, waits] = times.map(median);
        let ratio = waits.as_secs_f64() / plain.as_secs_f64();
        println!("{slots:>6} {plain:>12.2?} {waits:>12.2?} {ratio:>12.3}");
    }
}

fn measure(device: &Device, registry: &Registry, program: &Program, slots: u32) {
    let plan = &program.plans[PlanId(0)];
    let inputs = random_inputs(program, plan.block, 1);
    let (tokens, _) = tokens(program, registry, &inputs, plan.block);
    let mut player = Player::new(program, plan, DeviceId(1), &tokens, false);
    let calendar = plan.calendars.iter().find(|c| c.device == DeviceId(1)).expect("a calendar");
    let regions = player.host_regions();
    let mut replay = device.replay(registry, program, plan, calendar, &regions).expect("a replay");
    let actor = program.graph.actors.iter().find(|a| a.op == "Gain").expect("a chain");
    let kernels = registry.lower(actor, &program.blobs, device.caps()).expect("a kernel");
    let calls = |n| device.calls(actor, &kernels, plan.block as usize, n).expect("calls");
    let (mut bare, mut single) = (calls(slots as usize), calls(1));
    let mut period = 0;
    let mut step = |replay: &mut dyn Replay| {
        let start = Instant::now();
        replay.step(period, None, &mut Idle).expect("a period");
        let submitted = start.elapsed();
        period += 1;
        // Nothing is in flight before the next one, so that only the host's own work is counted.
        replay.drain(&mut Idle).expect("its end");
        (submitted, start.elapsed())
    };
    let run = |calls: &mut dyn Calls| {
        let start = Instant::now();
        calls.submit().expect("a submission");
        let submitted = start.elapsed();
        calls.wait().expect("its end");
        (submitted, start.elapsed())
    };
    let mut times = [const { Vec::new() }; 5];
    for round in 0..ROUNDS + 10 {
        let (ours, its) = (step(&mut *replay), run(&mut *bare));
        let start = Instant::now();
        for _ in 0..slots {
            run(&mut *single);
        }
        let apart = start.elapsed();
        // The first rounds warm everything up.
        if round >= 10 {
            let new = [ours.0, its.0, ours.1, its.1, apart];
            times.iter_mut().zip(new).for_each(|(all, new)| all.push(new));
        }
    }
    let [submit, bare_submit, whole, bare, apart] = times.map(median);
    let ratio = whole.as_secs_f64() / bare.as_secs_f64();
    println!(
        "{slots:>6} {submit:>12.2?} {bare_submit:>12.2?} {whole:>12.2?} {bare:>12.2?} {apart:>12.2?} {ratio:>12.3}"
    );
    black_box(&replay);
}
