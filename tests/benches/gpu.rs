//! What a period of a GPU's calendar costs: chains of 10, 100 and 1,000 slots, beside the same kernels bare (one
//! command buffer or graph, launched again and again) and launched one by one. Prints a table; without a device it says
//! so.
//!
//! `cargo bench -p zbmd-tests --bench gpu` takes Vulkan's first device, `-- cuda` CUDA's. `-- products` prints what
//! products of matrices take in each variant, with the quickest of ours beside cuBLASLt's where that is here.

use std::hint::black_box;
use std::time::{Duration, Instant};

use zbmd_backends::gpu::{Calls, Device, Drivers, Options, Replay};
use zbmd_backends::kernels::KernelPlan;
use zbmd_backends::op::Registry;
use zbmd_compiler::GraphBuilder;
use zbmd_ir::{Actor, DType, DeviceId, PlanId, Program, TiVec, TokenType};
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

/// Rows, columns, depth: a matrix and a vector, a layer, and what keeps a large GPU busy.
const PRODUCTS: [[u32; 3]; 4] =
    [[1, 1024, 1024], [128, 768, 768], [1024, 1024, 1024], [8192, 8192, 8192]];
/// What products of 8192 take on an H100 in f32, measured: operations a second.
const FLOOR: f64 = 51e12;

/// A product of two inputs.
fn product([rows, columns, depth]: [u32; 3]) -> Actor {
    let mut graph = GraphBuilder::new("product");
    let token = |dims: [u32; 2]| TokenType::new(DType::F32, dims);
    let (x, y) =
        (graph.source("x", token([rows, depth])), graph.source("y", token([depth, columns])));
    let product = graph.actor("product", "NnMatMul", Vec::<(String, zbmd_ir::Value)>::new());
    let z = graph.sink("z");
    graph.connect(x, product.port("x")).connect(y, product.port("y")).connect(product, z);
    let (graph, _) = graph.finish(&Registry::standard()).unwrap_or_else(|d| panic!("{d}"));
    let actor = graph.actors.iter().find(|a| a.name == "product").expect("just added");
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
            let Ok(kernels) = lower(Some(name)) else { continue };
            match device.refuses(&kernels).expect("no fault") {
                Some(why) => println!("not run, {name}: {why}"),
                None if name == "cublaslt" => its = Some(seconds(device, &actor, &kernels, more)),
                None => ours.push((seconds(device, &actor, &kernels, more), name)),
            }
        }
        let of = |seconds: f64| {
            format!("{:.1} us, {:.1} TFLOP/s", seconds * 1e6, flops / seconds / 1e12)
        };
        let title = sizes.map(|s| s.to_string()).join(" x ");
        for (seconds, name) in &ours {
            println!("{title:>20} {name:>14} {}", of(*seconds));
        }
        let best = ours.iter().map(|(s, _)| *s).min_by(f64::total_cmp).expect("one at least");
        if let Some(its) = its {
            println!("{title:>20} {:>14} {}; ours / its: {:.2}", "cublaslt", of(its), best / its);
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
