//! Supervision: what is done when a worker is lost, hangs, is slow or comes back. Pure: time, devices and processes
//! enter as [`Input`]s, decisions leave as [`Action`]s, so that the executor and the simulation run the same code.
//!
//! # Epochs
//!
//! ```text
//!            Begin                         all Finished
//!   Between ------> Running [--Quiesce-->] ------------> Completing --Completed--> Between, or over
//!      ^               |        loss, fault
//!      |               +----------------------> Fencing
//!      +------------------- Fenced ----------------+
//! ```
//!
//! *Between* epochs, one begins as soon as there is a plan for the devices that are ready. *Fencing* ends an epoch at
//! once, at its last committed border; it is how every loss begins its recovery. A *quiesce* ends it where all workers
//! have finished the same blocks, with nothing to be done again: for a stop, a new bundle, a restart on request, and
//! the return of a device. Both lead to the same next step, so recovery, restart, swap and return are one mechanism.
//! What happens to whom at which moment may come in any order: messages of an epoch that is over or of a worker that
//! has been replaced change nothing ([`What::Stale`]).
//!
//! # Workers
//!
//! ```text
//!   Waiting --time--> Starting --Ready--> Ready
//!      ^                 |                  |        lost: counted in the tree, back-off, breaker
//!      +------ Gone -----+-----> Dying <----+        hung, not ready in time, restarted with others: killed first
//!                                  +--> Out          never again, or until its breaker lets it be probed
//! ```
//!
//! # When a run ends
//!
//! [`Verdict`] says how. A run that is given up is fenced first, so all that is committed stays. It is given up when the
//! tree's intensity is exceeded, a device that cannot be missed does not start, there is no plan without those that
//! will not come back, epochs end one after another without a border committed, or the driver cannot begin one.
//!
//! Invariants: an epoch is begun only with workers that are ready, and only if there is a plan; at most one epoch is at
//! work; a device has one worker, unless an older one does not die and was left behind with epochs that are fenced.

mod backoff;
mod breaker;
pub mod declare;
mod detect;
mod event;
mod member;
mod message;
mod settings;
mod supervisor;
mod tree;

pub use backoff::{Backoff, BackoffPolicy};
pub use breaker::BreakerPolicy;
pub use declare::{DeclareError, OnLoss, Resolved, Supervision};
pub use detect::{DetectPolicy, Os, Sample, Thread};
pub use event::{Advice, Event, What};
pub use message::{
    Action, Cause, End, Epoch, Generation, GoneWorker, Input, Quiet, Request, Verdict,
};
pub use settings::Settings;
pub use supervisor::{Plans, Supervisor};
pub use tree::{DeviceSpec, GroupSpec, Intensity, Restart, Strategy, TreeSpec};
