//! What a GPU worker does before its first period, model by model, in milliseconds: lowering every actor to kernels,
//! printing the kernels' PTX (the key under which an assembled kernel is found in the bundle), and the whole of
//! opening the device and making the kernels ready.
//!
//! `cargo bench -p zbmd-tests --bench worker_start [FILTER] [vulkan|cuda]`. Lowered plans are not stored in bundles:
//! this is what storing them could save. Medians of [`TURNS`]; models come from the shared data folder.

use std::collections::BTreeSet;
use std::time::Instant;

use zbmd_backends::gpu::{Drivers, GpuOptions};
use zbmd_backends::kernels::emit::ptx;
use zbmd_backends::kernels::{Caps, KernelPlan, LowerKernels};
use zbmd_compiler::{CompileOptions, MachineChoice, compile_file};
use zbmd_ir::{ActorId, DeviceId, Program};
use zbmd_tests::{data, gpu};

const MODELS: [&str; 6] = [
    "mnist",
    "bert_tiny",
    "light_squeezenet",
    "mobilenet_v2",
    "light_resnet50",
    "llama_block_decode",
];
const TURNS: usize = 9;

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let backend = if arguments.iter().any(|a| a == "cuda") {
        "cuda"
    } else {
        "vulkan"
    };
    let filter = arguments.iter().find(|a| *a != "cuda" && *a != "vulkan");

    println!(
        "{:<20} {:>7} {:>8} {:>9} {:>9} {:>9} {:>22}",
        "model", "actors", "kernels", "lower ms", "print ms", "start ms", "lower + print / start"
    );
    for name in MODELS {
        if filter.is_none_or(|filter| name.contains(filter.as_str())) {
            measure(name, backend);
        }
    }
}

fn measure(name: &str, backend: &str) {
    let Some(path) = data::file(&format!("models/{name}.onnx")) else {
        return println!("{name:<20} SKIPPED: the model is not in the shared data folder");
    };
    let program = program_on_gpu(&path, backend);
    let actors: Vec<ActorId> = program
        .graph
        .actors
        .iter_enumerated()
        .map(|(id, _)| id)
        .collect();
    let caps = if backend == "cuda" {
        &Caps::CUDA
    } else {
        &Caps::COMMON
    };

    let mut plans: Vec<KernelPlan> = Vec::new();
    let lower_ms = median_ms(|| {
        // A worker resolves its ops once, so does each turn.
        let registry = zbmd_backends::standard_registry().resolving_once();
        plans = actors
            .iter()
            .filter_map(|&id| {
                let actor = &program.graph.actors[id];
                registry
                    .lower_kernels(actor, &program.blobs, caps, None)
                    .ok()
            })
            .collect();
    });

    let mut kernels = BTreeSet::new();
    let print_ms = median_ms(|| {
        kernels.clear();
        for kernel in plans.iter().flat_map(KernelPlan::kernels) {
            // As the device does: each different kernel once.
            if kernels.insert((kernel.digest("ptx"), kernel.specs.clone())) {
                std::hint::black_box(ptx::print(kernel, false));
            }
        }
    });

    let start_ms = start(&program, backend);
    let share = start_ms.map_or("not run".to_owned(), |start_ms| {
        format!("{:.1} %", 100.0 * (lower_ms + print_ms) / start_ms)
    });
    println!(
        "{name:<20} {:>7} {:>8} {lower_ms:>9.2} {print_ms:>9.2} {:>9.1} {share:>22}",
        actors.len(),
        kernels.len(),
        start_ms.unwrap_or(f64::NAN),
    );
}

/// The model with every actor on the GPU, for which drivers make its kernels ready.
fn program_on_gpu(path: &std::path::Path, backend: &str) -> Program {
    let options = CompileOptions {
        machine: MachineChoice::Given(gpu::with(&[backend])),
        block: Some(1),
        ..CompileOptions::default()
    };
    let compiled = compile_file(path, &options).expect("a shared model compiles");
    let mut program = compiled.program.into_inner();
    for plan in &mut program.plans {
        plan.placement.iter_mut().for_each(|device| *device = GPU);
    }
    program
}

/// The GPU of the machine: the CPU is the first device.
const GPU: DeviceId = DeviceId(1);

/// Opening the device and making the kernels ready, as a worker does; the driver's own caches are warm after the first
/// turn. `None`, with the reason on stderr, without a device.
fn start(program: &Program, backend: &str) -> Option<f64> {
    let open = || {
        Drivers::default().open(
            &backend.into(),
            &format!("{backend}:0"),
            &GpuOptions::default(),
        )
    };
    if let Err(fault) = open() {
        eprintln!("SKIPPED: {fault}");
        return None;
    }

    Some(median_ms(|| {
        let device = open().expect("it was opened before");
        let registry = zbmd_backends::standard_registry().resolving_once();
        device
            .warm(&registry, program)
            .expect("kernels of a shared model");
    }))
}

fn median_ms(mut turn: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..TURNS)
        .map(|_| {
            let start = Instant::now();
            turn();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[TURNS / 2]
}
