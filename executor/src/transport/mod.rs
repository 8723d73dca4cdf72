//! What threads and processes of a run share: memory, rings, queues, and the protocols by which they hand tokens over.
//! Must not know kernels, workers or supervision.

pub(crate) mod admission;
pub(crate) mod admission_times;
pub(crate) mod arena;
pub(crate) mod arrivals;
pub(crate) mod change_queue;
pub(crate) mod checksum;
pub(crate) mod clock;
pub(crate) mod conduit;
pub(crate) mod epoch;
pub(crate) mod epoch_spec;
pub(crate) mod epoch_state;
pub(crate) mod idle_arenas;
mod layout;
pub mod ledger;
#[cfg(target_os = "linux")]
pub(crate) mod life_lock;
pub(crate) mod model_end;
pub(crate) mod primitive;
pub(crate) mod probe_ring;
pub(crate) mod release_gate;
pub mod ring;
pub(crate) mod session_memory;
pub(crate) mod stream;
#[cfg(hosts)]
pub(crate) mod switchboard;
pub(crate) mod trace_ring;
pub(crate) mod watchdog;
