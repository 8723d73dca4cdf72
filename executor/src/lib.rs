//! Replays verified calendars: workers, rings, streams, reports.
//!
//! The folders import only from those above them in this list:
//!
//! | folder | what it holds |
//! |---|---|
//! | `transport` | what threads and processes share: arenas, rings, queues, the memory of sessions and epochs |
//! | `observe` | measurements, traces, reports, the page that `zbmd-run top` reads |
//! | `worker` | one worker's part of an epoch: admission, the period loop, CPU and GPU replay |
//! | `run` | a whole run: sessions, epochs, the worker pool, supervision |

pub mod embed;
mod error;
pub mod exit;
mod fault;
pub mod inject;
mod kernels;
mod live_program;
mod named_pipe;
mod observe;
mod options;
mod plan_facts;
mod program;
#[cfg(target_os = "linux")]
pub mod realtime;
mod run;
#[cfg(target_os = "linux")]
mod share;
#[cfg(feature = "testing")]
pub mod testing;
mod transport;
mod unsupported;
mod worker;

pub use zbmd_supervise as supervise;

pub use error::{CallError, EngineError, ModeError, ProbeError, RunError, SetError};
pub use named_pipe::is_named_pipe;
pub use observe::report::{Outcome, Report};
pub use observe::{exposition, live, report};
pub use options::{
    BorderState, InputListener, Isolation, Listener, RunOptions, ScheduledMode, StateListener,
    StateSubscription, Supervised,
};
#[cfg(hosts)]
pub use options::{CouncilSeat, Gather, Hosts, Join};
pub use program::Engine;
pub use run::caller::Caller;
pub use run::control::Stopper;
#[cfg(hosts)]
pub use run::hosts::agent::{AgentError, AgentEvent, AgentSeat, serve_as_agent};
#[cfg(hosts)]
pub use run::hosts::standby::Takeover;
pub use run::lanes::{PlannedLane, PlannedLanes, PlannedSlot};
pub use run::modes::{ModeChange, ModeEntry, ModeHandle, ModeStart};
pub use run::parameters::{ParameterHandle, ParameterValue, When};
pub use run::probe::{Probe, ProbeChannel, ProbeHandle, ProbedBlock, SlotTime};
pub use run::pump_role::PumpRole;
pub use run::session::{Session, SwapError};
#[cfg(target_os = "linux")]
pub use run::worker_process::serve_if_worker;
#[cfg(target_os = "linux")]
pub use share::{WorkerShare, check_stream_priority};
pub use transport::arena::{OutOfMemory, Scarce};
pub use transport::stream::{SinkHandle, SourceHandle, StreamError};
/// Parts that the workspace's simulation and benches drive by themselves.
#[doc(hidden)]
pub use transport::{ledger, ring};
pub use unsupported::Unsupported;
#[cfg(hosts)]
pub use zbmd_wire::connection::{Credentials, Protection};
#[cfg(hosts)]
pub use zbmd_wire::find_ucx;
#[cfg(hosts)]
pub use zbmd_wire::tls::{Tls, TlsError, TlsFiles};
#[cfg(hosts)]
pub use zbmd_wire::token::{Token, TokenError};
