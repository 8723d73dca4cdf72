//! A run as it is now, for people who watch it: [`Stopper::progress`](crate::Stopper::progress), and the page that
//! `zbmd-run` keeps for `zbmd-run top`.
//!
//! Whoever looks reads counters that workers keep anyway, so that watching costs them nothing but the cache lines that
//! a look fetches, a few times a second.

#[cfg(unix)]
mod folder;
#[cfg(not(unix))]
#[path = "folder_elsewhere.rs"]
mod folder;
pub(crate) mod page;

use serde::{Deserialize, Serialize};

pub use self::folder::{control_path_of, runtime_folder};
pub use self::page::{Live, Page, PageError, read, running};

/// A run as it is now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Name of the model.
    pub model: String,
    /// Iterations finished so far; it may lag by some blocks.
    pub iterations: u64,
    /// The epoch at work, counted from 0.
    pub epoch: u64,
    /// Epochs that ended at once because something was lost.
    pub recoveries: u64,
    /// The plan at work.
    pub plan: String,
    /// Iterations of one of its blocks.
    pub block: u64,
    /// Its planned period.
    pub period_planned_ns: u64,
    /// Periods that every worker has done in this epoch.
    pub periods: u64,
    /// Hosts of a run over several, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostProgress>,
    /// The council, of a run that is conducted in the name of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub council: Option<CouncilProgress>,
    /// Devices of the bundle's plans, in order.
    pub devices: Vec<DeviceProgress>,
    /// Rings between devices.
    pub rings: Vec<Fill>,
    /// Queues of the sources, then of the sinks.
    pub queues: Vec<Fill>,
    /// Sources that are released by the clock. Empty unless whoever feeds them adds them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub releases: Vec<ReleaseProgress>,
    /// Sinks with deadlines. Empty unless whoever measures their responses adds them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deadlines: Vec<DeadlineProgress>,
    /// Live parameters. Empty unless whoever can set them adds them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<ParameterProgress>,
    /// The mode, of a run that has several. None unless whoever can change it adds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModeProgress>,
}

/// The mode that a run is in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeProgress {
    /// Its name.
    pub mode: String,
    /// The run's first iteration in it.
    pub since: u64,
}

/// A live parameter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ParameterProgress {
    /// Its name.
    pub parameter: String,
    /// The value that was set last: one number, or those of a list.
    pub numbers: Vec<f64>,
}

/// A source that is released by the clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseProgress {
    /// The source.
    pub source: String,
    /// How late its tokens were handed over, counted from when they were due.
    pub lateness: TimesProgress,
}

/// A sink with a deadline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlineProgress {
    /// The sink.
    pub sink: String,
    /// What a block's response may take.
    pub limit_ns: u64,
    /// What the sink is given in the place of a late block: `wait`, `drop` or `hold`.
    pub on_miss: String,
    /// Blocks that were late.
    pub missed: u64,
    /// From the release of a block to its output.
    pub response: TimesProgress,
}

/// Quantiles of times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimesProgress {
    /// How many.
    pub count: u64,
    /// The median.
    pub p50_ns: u64,
    /// One in a hundred is longer.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// The council that a run is conducted in the name of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CouncilProgress {
    /// How many vote.
    pub voters: u64,
    /// The number of the voter that conducts the run.
    pub conductor: u64,
    /// The numbers of those that stand by, and hold the last border: each could go on with the run.
    pub standing_by: Vec<u64>,
}

impl std::fmt::Display for CouncilProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "council of {} voters   voter {} conducts   ",
            self.voters, self.conductor
        )?;
        let numbers: Vec<String> = self.standing_by.iter().map(u64::to_string).collect();
        match numbers.len() {
            0 => f.write_str("nobody stands by"),
            1 => write!(f, "voter {} stands by", numbers[0]),
            _ => write!(f, "voters {} stand by", numbers.join(", ")),
        }
    }
}

/// One host of a run over several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostProgress {
    /// Its name.
    pub host: String,
    /// Whether it is there.
    pub state: HostState,
}

/// Whether a host takes part in the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostState {
    /// The run is on it.
    Conductor,
    /// Its agent is connected, and has been heard within the lease.
    Present,
    /// It is gone, or has not been heard for a lease: none of its devices takes part.
    #[default]
    Lost,
}

impl HostState {
    /// Each of them once.
    pub const ALL: [Self; 3] = [Self::Conductor, Self::Present, Self::Lost];
}

impl std::fmt::Display for HostState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Conductor => "conductor",
            Self::Present => "present",
            Self::Lost => "lost",
        })
    }
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceProgress {
    /// Its name.
    pub device: String,
    /// Its host, in a run over several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// What it does.
    pub state: DeviceState,
    /// Periods that it has done in this epoch.
    pub periods: u64,
}

/// What a device does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceState {
    /// It has no role in the plan at work.
    #[default]
    Idle,
    /// Its worker makes itself ready.
    Starting,
    /// Its worker is in the middle of a period.
    Working,
    /// Its worker waits for tokens or room to begin a period.
    Waiting,
    /// It is lost: the plan at work does without it, or is about to be replaced by one that does.
    Lost,
}

impl DeviceState {
    /// Each of them once.
    pub const ALL: [Self; 5] = [
        Self::Idle,
        Self::Starting,
        Self::Working,
        Self::Waiting,
        Self::Lost,
    ];
}

impl std::fmt::Display for DeviceState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Starting => "starting",
            Self::Working => "working",
            Self::Waiting => "waiting",
            Self::Lost => "lost",
        })
    }
}

/// How full something is, in tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fill {
    /// The source or sink, or the ring: `ch3 cpu:0 -> cpu:1`.
    pub name: String,
    /// Tokens that went in since the beginning: of the run for sources, of the epoch for others.
    pub tokens: u64,
    /// Tokens in it.
    pub filled: u64,
    /// Tokens that fit.
    pub capacity: u64,
}
