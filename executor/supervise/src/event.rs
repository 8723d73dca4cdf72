//! What the supervisor decided and why: typed, timestamped, one JSON line each.

use serde::{Deserialize, Serialize};
use zbmd_ir::DeviceId;

use super::message::{Cause, End, Epoch, Generation, Quiet, Verdict};

/// One decision or observation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, in nanoseconds of the clock that inputs are stamped with.
    pub at_ns: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

impl Event {
    /// One line of JSON, without its end.
    pub fn line(&self) -> String {
        // Only maps with keys that are no strings cannot be written, and there is none.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// What happened. `device` is the position in the list of [`What::Opened`]. In JSON a worker's `generation` has
/// the key `incarnation`, as in every version so far: programs read these lines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[expect(
    missing_docs,
    reason = "fields are named as everywhere: device, generation, epoch"
)]
pub enum What {
    /// Supervision begins, over these devices.
    Opened {
        devices: Vec<String>,
        first_epoch: Epoch,
    },
    /// A worker is being started.
    Spawning {
        device: DeviceId,
        #[serde(rename = "incarnation")]
        generation: Generation,
    },
    /// A worker can be given a role.
    Ready {
        device: DeviceId,
        #[serde(rename = "incarnation")]
        generation: Generation,
        after_ns: u64,
    },
    /// A message of a worker that has been replaced, or of an epoch that is over, was passed over.
    Stale {
        device: DeviceId,
        #[serde(rename = "incarnation")]
        generation: Generation,
        message: String,
    },
    /// A worker is lost.
    Lost {
        device: DeviceId,
        #[serde(rename = "incarnation")]
        generation: Generation,
        epoch: Option<Epoch>,
        cause: Cause,
    },
    /// A worker that was asked to go is gone.
    Gone {
        device: DeviceId,
        #[serde(rename = "incarnation")]
        generation: Generation,
    },
    /// A worker is being killed.
    Killing {
        device: DeviceId,
        #[serde(rename = "incarnation")]
        generation: Generation,
        why: String,
    },
    /// A worker does not die. It is left behind: its epochs are fenced, so it can do no harm.
    Abandoned {
        device: DeviceId,
        #[serde(rename = "incarnation")]
        generation: Generation,
        after_ns: u64,
    },
    /// A lost worker will be started again.
    RestartIn {
        device: DeviceId,
        wait_ns: u64,
        restarts: u32,
    },
    /// A lost worker will not be started again.
    NotRestarted { device: DeviceId, why: String },
    /// A supervisor restarts more than the worker that was lost.
    RestartTogether {
        supervisor: String,
        devices: Vec<DeviceId>,
    },
    /// A supervisor saw more losses in its period than its intensity allows, and hands the failure up.
    GaveUp {
        supervisor: String,
        losses: u32,
        intensity: u32,
        period_ns: u64,
    },
    /// A device is kept out.
    BreakerOpened { device: DeviceId, until_ns: u64 },
    /// A device that was kept out is being probed.
    BreakerHalfOpen { device: DeviceId, needed: bool },
    /// A probe passed.
    ProbePassed { device: DeviceId, passed: u32 },
    /// A device may take part again.
    BreakerClosed { device: DeviceId },
    /// A fault that the worker survived: the same is tried again.
    Retry {
        device: DeviceId,
        end: End,
        attempt: u32,
        of: u32,
    },
    /// A worker makes no progress where its plan says that it should.
    Overdue {
        device: DeviceId,
        epoch: Epoch,
        why: String,
        after_ns: u64,
        bound_ns: u64,
    },
    /// A worker is slower than it was: how many times, and how sure that is (phi, Hayashibara et al. 2004).
    Slow {
        device: DeviceId,
        times: f64,
        phi: f64,
        advice: Advice,
    },
    /// A slow worker has its pace again.
    Pace { device: DeviceId },
    /// A slow device has no role until then: others do its work faster.
    SetAside {
        device: DeviceId,
        times: f64,
        until_ns: u64,
    },
    /// A device that was set aside may have a role again, to see whether it has its pace.
    TakenBack { device: DeviceId },
    /// An epoch begins without these devices.
    Begin { epoch: Epoch, lost: Vec<DeviceId> },
    /// The driver could not begin an epoch.
    Refused {
        epoch: Epoch,
        why: String,
        wait_ns: u64,
    },
    /// An epoch is being ended at once.
    Fence { epoch: Epoch },
    /// Nothing of an epoch can count any more; so many of its blocks are committed.
    Fenced {
        epoch: Epoch,
        committed_blocks: u64,
        took_ns: u64,
    },
    /// An epoch ends at its next border.
    Quiesce { epoch: Epoch, why: Quiet },
    /// All workers of an epoch finished the same number of blocks.
    Complete { epoch: Epoch, blocks: u64 },
    /// A loss has been made good: the first token came that had not been given out before.
    Recovered {
        epoch: Epoch,
        fence_ns: u64,
        restore_ns: u64,
        replay_ns: u64,
    },
    /// A fault was brought about on purpose.
    Injected {
        kind: String,
        devices: Vec<DeviceId>,
    },
    /// There is no plan without these devices: waiting for one of them.
    Waiting { lost: Vec<DeviceId> },
    /// The listener was too slow: so many events before this one were dropped.
    EventsDropped { count: u64 },
    /// The supervising thread has made no progress for so long, while it was doing this. It should never wait: this is a
    /// bug, or a system that does not answer. After a minute the run is given up.
    SupervisorLate { activity: String, after_ns: u64 },
    /// The run is over.
    Stopped { verdict: Verdict, last_word: String },
}

impl What {
    /// Its name, as in [`Event::line`].
    pub fn name(&self) -> String {
        let value = serde_json::to_value(self).unwrap_or_default();
        value
            .get("event")
            .and_then(|name| name.as_str())
            .unwrap_or_default()
            .to_owned()
    }
}

/// What to do about a slow device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// Take its measured pace as its plan.
    Retime,
    /// Give its work to others.
    Replace,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_and_comes_back() {
        let dev = DeviceId(1);
        let events = [
            What::Opened {
                devices: vec!["cpu:0".into(), "cpu:1".into()],
                first_epoch: Epoch(0),
            },
            What::Lost {
                device: dev,
                generation: Generation(2),
                epoch: Some(Epoch(7)),
                cause: Cause::Killed { signal: 9 },
            },
            What::Quiesce {
                epoch: Epoch(7),
                why: Quiet::Return { devices: vec![dev] },
            },
            What::Slow {
                device: dev,
                times: 2.5,
                phi: 9.0,
                advice: Advice::Retime,
            },
        ];
        let lines: Vec<String> = events
            .into_iter()
            .map(|what| {
                let event = Event { at_ns: 5, what };
                let line = event.line();
                assert_eq!(
                    serde_json::from_str::<Event>(&line).expect("our own"),
                    event
                );
                line
            })
            .collect();
        insta::assert_snapshot!(lines.join("\n"));
    }
}
