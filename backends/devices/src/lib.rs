//! The devices of this machine, and GPUs behind one interface, whichever driver they have. Knows no op.

mod detect;
pub mod gpu;

pub use self::detect::{
    CORE_BYTES_PER_S, CORE_FLOPS, GPU_LINK_BYTES_PER_S, GPU_LINK_LATENCY_NS, Gpu, LINK_BYTES_PER_S,
    LINK_LATENCY_NS, detect, detect_in_teams, gpus, memory_bytes, uniform, with_gpus,
};
