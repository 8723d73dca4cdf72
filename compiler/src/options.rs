//! The options of a compilation.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use zbmd_backends::kernels::Math;
use zbmd_backends::op::{GpuCapabilities, Registry};
use zbmd_ir::Machine;
use zbmd_scheduler::assign::Objective;
use zbmd_scheduler::buffers::Mode;
use zbmd_scheduler::search::Progress;
use zbmd_scheduler::{Level, Losses};

use crate::assemble::Cubins;
use crate::costs::MeasuredCosts;
use crate::onnx::ImportOptions;

/// What a program is compiled for.
#[derive(Clone, Debug, Default)]
pub enum MachineChoice {
    /// This computer: [`crate::machine::detect`].
    #[default]
    Detect,
    /// A number of equal CPU devices: [`crate::machine::uniform`].
    Uniform(usize),
    /// A number of equal hosts with equal CPU devices: [`crate::machine::uniform_hosts`].
    UniformHosts {
        /// How many.
        hosts: usize,
        /// Of each.
        devices: usize,
    },
    /// A `machine.ron`.
    File(PathBuf),
    /// A machine made in Rust.
    Given(Machine),
    /// A machine made in Rust, and what was measured on it.
    Measured(Machine, MeasuredCosts),
}

/// Whether actors may run on several devices at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replicate {
    /// Where it shortens the period by enough and iterations stay those of the model.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Where it shortens the period by enough, with at most this many replicas of an actor. An iteration of the program
    /// may then be several of the model's.
    UpTo(u32),
}

/// How a plan is searched for.
#[derive(Clone, Debug, Default)]
pub struct SearchOptions {
    /// How much work the search does. Each level is a fixed amount: the same input gives the same bundle.
    pub level: Level,
    /// What makes a placement good.
    pub objective: Option<Objective>,
    /// Take the best plan found after this time; the bundle then depends on the computer's speed.
    pub time_limit: Option<Duration>,
    /// Take the best plan found as soon as this is set, for an interrupt.
    pub stop: Option<Arc<AtomicBool>>,
    /// Called with the state of the search.
    pub progress: Option<fn(Progress)>,
}

/// The options of a compilation.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// Ops and custom actors that models may use.
    pub registry: Registry,
    /// What to compile for.
    pub machine: MachineChoice,
    /// What GPUs of the machine can do, as far as it is known.
    pub gpu_capabilities: GpuCapabilities,
    /// Whether the drivers of this computer are asked what the GPUs of the machine can do, if it has any. Without their
    /// answer kernels use what all GPUs of a kind support. [`CompileOptions::set_target`] sets this for machine files.
    pub ask_drivers: bool,
    /// Graph iterations in a block; chosen by the scheduler if `None`.
    pub block: Option<u64>,
    /// Bound on the predicted latency of a block.
    pub max_latency_ns: Option<u64>,
    /// Bound on the arena and exchange bytes of each device.
    pub max_memory_bytes: Option<u64>,
    /// Bound on the size of all buffers together; what throughput gains from if `None`.
    pub buffers: Option<Mode>,
    /// How a plan is searched for.
    pub search: SearchOptions,
    /// Losses of devices that plans are made for.
    pub contingencies: Losses,
    /// Whether actors may run on several devices at once.
    pub replicate: Replicate,
    /// What CUDA devices may round the factors of products to, where actors do not state it themselves.
    pub math: Math,
    /// Whether kernels of CUDA devices are assembled, and for which architectures; otherwise the driver compiles them.
    pub cubins: Option<Cubins>,
    /// How an ONNX model is imported.
    pub onnx: ImportOptions,
    /// Sizes of batches that an ONNX model is compiled for, a mode for each, of which a run begins with the first. A token
    /// of a stream is one sample in all of them: see [`ImportOptions::batch`]. Empty for a model of one program.
    pub buckets: Vec<u32>,
    /// Passes to leave out, by name: passes over ONNX models ([`crate::onnx::passes`]), whether a model is compiled
    /// itself or contained in another, `in-place`, which lets outputs be written over inputs, `collectives`, which divides
    /// `AllReduce` and `Broadcast` among devices, and `pack-weights`, which stores weights in the order of the CPU's
    /// kernels.
    pub skipped_passes: Vec<String>,
    /// Values for parameters of the model, as its text would write them, by name.
    pub params: BTreeMap<String, String>,
    /// Of a model with modes, compile this one alone.
    pub mode: Option<String>,
    /// Of several models in one program, the iterations a second of those whose streams state no sample rate, by name.
    pub rates: BTreeMap<String, f64>,
    /// Tokens that the model keeps between iterations become streams: an iteration takes them from sources and gives those of
    /// the next one to sinks ([`zbmd_ir::carried_states`]). The program then keeps nothing, and whoever runs it can carry
    /// the states of many sequences.
    pub sequences: bool,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self {
            registry: zbmd_backends::standard_registry(),
            machine: MachineChoice::Detect,
            gpu_capabilities: GpuCapabilities::default(),
            ask_drivers: false,
            block: None,
            max_latency_ns: None,
            max_memory_bytes: None,
            buffers: None,
            search: SearchOptions {
                level: Level::Fast,
                ..SearchOptions::default()
            },
            contingencies: Losses::None,
            replicate: Replicate::Auto,
            math: Math::F32,
            cubins: None,
            onnx: ImportOptions::default(),
            buckets: Vec::new(),
            skipped_passes: Vec::new(),
            params: BTreeMap::new(),
            mode: None,
            rates: BTreeMap::new(),
            sequences: false,
        }
    }
}
