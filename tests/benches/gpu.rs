//! What a period of a GPU's calendar costs: chains of 10, 100 and 1,000 slots, beside the same kernels bare (one
//! command buffer or graph, launched again and again) and launched one by one. Prints a table; without a device it says
//! so.
//!
//! With `exchange` it shows what a hand-over costs instead: tokens go from a CPU to the GPU, through one kernel, and back;
//! brought by the host, fetched by the device, and handed over by the device alone, by turns. With `products`, what
//! products of matrices take in each variant, with the quickest of ours beside cuBLASLt's where that is here.
//!
//! `cargo bench -p zbmd-tests --bench gpu` takes Vulkan's first device, `-- cuda` CUDA's. For the latter, the same periods
//! follow with plain and with programmatic edges, by turns. `tiny` is for a device in software
//! (`ZBMD_CUDA_DRIVER=software`), whose times mean nothing.

use std::hint::black_box;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use zbmd_backends::gpu::{Calls, Device, Drivers, GpuOptions, Kept, Replay};
use zbmd_backends::kernels::KernelPlan;
use zbmd_backends::op::Registry;
use zbmd_backends::replay::{Peers, Stopped, Transport};
use zbmd_compiler::GraphBuilder;
use zbmd_ir::{Actor, DType, DeviceId, PlanId, Program, RingId, TiVec, TokenType};
use zbmd_tests::gpu::{Idle, Player, Shares, chain, chain_in, gpu_calendar, tokens};
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
    let opened = Drivers::default().open(
        &backend.into(),
        &format!("{backend}:0"),
        &GpuOptions::default(),
    );
    let device = match opened {
        Ok(device) => device,
        Err(fault) => return eprintln!("SKIPPED: {fault}"),
    };
    let registry = zbmd_backends::standard_registry();
    if std::env::args().any(|a| a == "exchange") {
        return exchange(&device, &registry, std::env::args().any(|a| a == "tiny"));
    }
    if std::env::args().any(|a| a == "products") {
        return products(&device, &registry);
    }
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
        let options = GpuOptions {
            dependent_launch: programmatic,
            ..GpuOptions::default()
        };
        drivers
            .open(&"cuda".into(), "cuda:0", &options)
            .expect("it was opened before")
    });
    if !devices[1].has_dependent_launch() {
        return println!("programmatic edges: not run: the device or its driver has none");
    }
    println!(
        "{:>6} {:>12} {:>12} {:>12}",
        "slots", "plain", "programmatic", "ratio"
    );
    for slots in [10, 100, 1_000] {
        let program = chain(slots, registry);
        let plan = &program.plans[PlanId(0)];
        let none = program.graph.channels.iter().map(|_| vec![]).collect();
        let mut player = Player::new(&program, plan, DeviceId(1), &none, false);
        let calendar = gpu_calendar(plan);
        let (exchange, kept) = (player.exchange(), &mut Kept::default());
        let mut replays = devices.each_ref().map(|device| {
            device
                .replay(registry, &program, plan, calendar, &exchange, kept)
                .expect("a replay")
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
    let calendar = gpu_calendar(plan);
    let exchange = player.exchange();
    let mut replay = device
        .replay(
            registry,
            program,
            plan,
            calendar,
            &exchange,
            &mut Kept::default(),
        )
        .expect("a replay");
    let actor = program
        .graph
        .actors
        .iter()
        .find(|a| a.op == "Gain")
        .expect("a chain");
    let kernels = registry
        .lower(actor, &program.blobs, device.caps())
        .expect("a kernel");
    let calls = |n| {
        device
            .calls(actor, &kernels, plan.block as usize, n)
            .expect("calls")
    };
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
            times
                .iter_mut()
                .zip(new)
                .for_each(|(all, new)| all.push(new));
        }
    }
    let [submit, bare_submit, whole, bare, apart] = times.map(median);
    let ratio = whole.as_secs_f64() / bare.as_secs_f64();
    println!(
        "{slots:>6} {submit:>12.2?} {bare_submit:>12.2?} {whole:>12.2?} {bare:>12.2?} {apart:>12.2?} {ratio:>12.3}"
    );
    black_box(&replay);
}

/// Others that are always ready, and note when they are told of tokens.
struct Receiver(Option<Instant>);

impl Peers for Receiver {
    fn published(&mut self, _: RingId, _: u64, _: bool) -> Result<bool, Stopped> {
        Ok(true)
    }
    fn wait_released(&mut self, _: RingId, _: u64) -> Result<(), Stopped> {
        Ok(())
    }
    fn publish(&mut self, _: RingId, _: u64) {
        self.0 = Some(Instant::now());
    }
    fn release(&mut self, _: RingId, _: u64) {}
}

/// Round trips of 4 KiB and 1 MiB, from the publication of tokens to that of what came of them.
fn exchange(device: &Device, registry: &Registry, tiny: bool) {
    let (sizes, rounds) = if tiny {
        ([64, 1024], 3)
    } else {
        ([1 << 10, 1 << 18], ROUNDS)
    };
    println!(
        "{}, round trips CPU -> GPU -> CPU, medians of {rounds}",
        device.kind()
    );
    println!(
        "{:>10} {:>26} {:>26} {:>26}",
        "bytes", "by the host", "fetched", "by the device"
    );
    for tokens in sizes {
        let program = chain_in(tokens, 1, registry);
        let times = round_trips(device, registry, &program, rounds);
        let shown = times.map(|(transport, time)| format!("{time:.2?} ({transport:?})"));
        let [host, fetched, device] = shown;
        println!("{:>10} {host:>26} {fetched:>26} {device:>26}", 4 * tokens);
    }
}

fn round_trips(
    device: &Device,
    registry: &Registry,
    program: &Program,
    rounds: usize,
) -> [(Transport, Duration); 3] {
    let plan = &program.plans[PlanId(0)];
    let calendar = gpu_calendar(plan);
    let no_tokens = program.graph.channels.iter().map(|_| vec![]).collect();
    let ring = |ends: fn(&zbmd_ir::Ring) -> bool| {
        let mut rings = plan.rings.iter_enumerated().filter(|(_, ring)| ends(ring));
        rings.next().expect("a ring either way").0
    };
    let (there, back) = (
        ring(|r| r.to == DeviceId(1)),
        ring(|r| r.from == DeviceId(1)),
    );
    let mut ways = [Shares::Regions, Shares::Memory, Shares::Counters].map(|shares| {
        let mut player = Player::new(program, plan, DeviceId(1), &no_tokens, false).sharing(shares);
        let exchange = player.exchange();
        let kept = &mut Kept::default();
        let replay = device.replay(registry, program, plan, calendar, &exchange, kept);
        // All places are free for what comes back.
        player.counter(back, 1).store(1 << 40, Ordering::Release);
        (replay.expect("a replay"), player, Vec::new())
    });
    let (stages, warm) = (u64::from(plan.stages), 10);
    for period in 0..stages + (rounds + warm) as u64 {
        for (replay, player, times) in &mut ways {
            let by_device = replay.summary().transport == Transport::Device;
            let sent = |ring, which| player.counter(ring, which).load(Ordering::Acquire);
            let (before, mut receiver) = (sent(back, 0), Receiver(None));
            let mut start = Instant::now();
            replay.step(period, None, &mut receiver).expect("a period");
            if by_device && period > 0 {
                // It waits for tokens already.
                start = Instant::now();
                player
                    .counter(there, 0)
                    .fetch_add(plan.block, Ordering::Release);
                while sent(back, 0) == before {
                    std::hint::spin_loop();
                }
                receiver.publish(back, 0);
            }
            replay.drain(&mut receiver).expect("its end");
            if let Some(end) = receiver.0.filter(|_| period >= stages + warm as u64) {
                times.push(end - start);
            }
        }
    }
    ways.map(|(replay, _player, times)| (replay.summary().transport, median(times)))
}

/// Rows, columns, depth: a matrix and a vector, a layer, and what keeps a large GPU busy.
const PRODUCTS: [[u32; 3]; 4] = [
    [1, 1024, 1024],
    [128, 768, 768],
    [1024, 1024, 1024],
    [8192, 8192, 8192],
];
/// What products of 8192 take on an H100 in f32, measured: operations a second.
const FLOOR: f64 = 51e12;

/// A product of two inputs.
fn product([rows, columns, depth]: [u32; 3]) -> Actor {
    let mut graph = GraphBuilder::new("product");
    let token = |dims: [u32; 2]| TokenType::new(DType::F32, dims);
    let (x, y) = (
        graph.source("x", token([rows, depth])),
        graph.source("y", token([depth, columns])),
    );
    let product = graph.actor(
        "product",
        "NnMatMul",
        Vec::<(String, zbmd_ir::Value)>::new(),
    );
    let z = graph.sink("z");
    graph
        .connect(x, product.port("x"))
        .connect(y, product.port("y"))
        .connect(product, z);
    let (graph, _) = graph
        .finish(&zbmd_backends::standard_registry())
        .unwrap_or_else(|d| panic!("{d}"));
    let actor = graph
        .actors
        .iter()
        .find(|a| a.name == "product")
        .expect("just added");
    actor.clone()
}

/// Seconds of one call: what several take more than one, in the median.
fn seconds(device: &Device, actor: &Actor, kernels: &KernelPlan, more: usize) -> f64 {
    let calls = |n| device.calls(actor, kernels, 1, n).expect("calls");
    let (mut one, mut many) = (calls(1), calls(1 + more));
    let run = |calls: &mut dyn Calls| {
        let start = Instant::now();
        calls.submit().expect("a submission");
        calls.wait().expect("its end");
        start.elapsed()
    };
    // The first one warms everything up.
    let rounds = (0..11).map(|_| (run(&mut *one), run(&mut *many)));
    let times = rounds.skip(1).map(|(one, many)| many.saturating_sub(one));
    median(times.collect()).as_secs_f64() / more as f64
}

fn products(device: &Device, registry: &Registry) {
    println!("{}, products of matrices in f32", device.kind());
    for sizes in PRODUCTS {
        let (actor, blobs) = (product(sizes), TiVec::new());
        let flops = 2.0 * sizes.map(f64::from).iter().product::<f64>();
        let more = if flops < 1e10 { 64 } else { 4 };
        let lower = |name| registry.lower_in(&actor, &blobs, device.caps(), name);
        let names = lower(None).expect("kernels").variants().to_vec();
        let (mut ours, mut its): (Vec<(f64, &str)>, _) = (Vec::new(), None);
        for name in names {
            let Ok(kernels) = lower(Some(name)) else {
                continue;
            };
            match device.unsupported_reason(&kernels).expect("no fault") {
                Some(why) => println!("not run, {name}: {why}"),
                None if name == "cublaslt" => its = Some(seconds(device, &actor, &kernels, more)),
                None => ours.push((seconds(device, &actor, &kernels, more), name)),
            }
        }
        let of = |seconds: f64| {
            format!(
                "{:.1} us, {:.1} TFLOP/s",
                seconds * 1e6,
                flops / seconds / 1e12
            )
        };
        let title = sizes.map(|s| s.to_string()).join(" x ");
        for (seconds, name) in &ours {
            println!("{title:>20} {name:>14} {}", of(*seconds));
        }
        let best = ours
            .iter()
            .map(|(s, _)| *s)
            .min_by(f64::total_cmp)
            .expect("one at least");
        if let Some(its) = its {
            println!(
                "{title:>20} {:>14} {}; ours / its: {:.2}",
                "cublaslt",
                of(its),
                best / its
            );
        }
        if sizes == [8192; 3] {
            let share = |seconds: f64| format!("{:.0} %", 100.0 * flops / seconds / FLOOR);
            let its = its.map_or_else(|| "not run".to_owned(), share);
            println!(
                "{title:>20} of the floor of 51 TFLOP/s: ours {}, cublaslt {its}",
                share(best)
            );
        }
    }
}
