//! Supervision: what is done when a worker is lost, hangs, is slow or comes back. Pure: time, devices and processes enter
//! as [`Input`]s, decisions leave as [`Action`]s, so that the executor and the simulation run the same code.

mod backoff;
mod breaker;
mod core;
pub mod declare;
mod detect;
mod event;
mod member;
mod message;
mod tree;

pub use self::core::{Plans, Settings, Supervisor};
pub use backoff::{Backoff, BackoffPolicy};
pub use breaker::{Breaker, BreakerPolicy, BreakerState};
pub use declare::{DeclareError, OnLoss, Resolved, Supervision};
pub use detect::{DetectPolicy, Detector, Finding, Os, Sample, Thread};
pub use event::{Advice, Event, What};
pub use message::{Action, Cause, End, Epoch, Incarnation, Input, Quiet, Request, Verdict};
pub use tree::{
    Consequence, DeviceSpec, GaveUp, GroupSpec, Intensity, Restart, Strategy, Tree, TreeSpec,
};
