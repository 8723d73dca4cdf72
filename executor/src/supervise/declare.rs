//! Supervision as people declare it, in RON; sensible where nothing is said.

use serde::{Deserialize, Serialize};

/// What to do first when a worker with a role is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLoss {
    /// Go on at once without it if there is a plan for that, and take it in again when it is back.
    #[default]
    Swap,
    /// Wait until it has been restarted; go on without it only if it stays out.
    Restart,
}
