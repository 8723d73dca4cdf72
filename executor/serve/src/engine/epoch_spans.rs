//! Spans of epochs, made of the supervisor's decisions. Times are those at which its listener learned of them.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use zbmd_executor::supervise::{Event, What};
use zbmd_ir::DeviceId;

use super::readiness::cause_name;
use crate::otlp::{EpochRecord, LossRecord, ModelTracer};

/// Follows one run.
pub(super) struct EpochSpans {
    tracer: ModelTracer,
    state: Mutex<FollowedRun>,
}

#[derive(Default)]
struct FollowedRun {
    /// Names of the devices.
    devices: Vec<String>,
    /// The epoch at work.
    open: Option<EpochRecord>,
}

impl FollowedRun {
    fn name(&self, device: DeviceId) -> String {
        let name = self.devices.get(device.0 as usize);
        name.cloned().unwrap_or_default()
    }

    /// Takes a decision of the supervisor; the epoch that it ended.
    fn follow(&mut self, what: &What, now: Instant) -> Option<EpochRecord> {
        match what {
            What::Opened { devices, .. } => self.devices.clone_from(devices),
            What::Begin { epoch, lost } => {
                let without = lost.iter().map(|device| self.name(*device)).collect();
                let begun = EpochRecord {
                    number: epoch.0,
                    begin: now,
                    end: now,
                    without,
                    losses: Vec::new(),
                    blocks: None,
                    is_fenced: false,
                };
                return self.open.replace(begun);
            }
            What::Lost { device, cause, .. } => {
                let loss = LossRecord {
                    at: now,
                    device: self.name(*device),
                    cause: cause_name(cause),
                };
                if let Some(open) = &mut self.open {
                    open.losses.push(loss);
                }
            }
            What::Fenced {
                committed_blocks, ..
            } => return self.end(now, Some(*committed_blocks), true),
            What::Complete { blocks, .. } => return self.end(now, Some(*blocks), false),
            What::Stopped { .. } => return self.end(now, None, false),
            _ => {}
        }
        None
    }

    fn end(&mut self, now: Instant, blocks: Option<u64>, is_fenced: bool) -> Option<EpochRecord> {
        let open = self.open.take()?;
        // A run that is given up in good order is fenced too.
        let is_fenced = is_fenced && !open.losses.is_empty();
        Some(EpochRecord {
            end: now,
            blocks,
            is_fenced,
            ..open
        })
    }
}

impl EpochSpans {
    pub(super) fn new(tracer: ModelTracer) -> Self {
        Self {
            tracer,
            state: Mutex::default(),
        }
    }

    /// Takes a decision of the supervisor.
    pub(super) fn follow(&self, event: &Event) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let ended = state.follow(&event.what, now);
        drop(state);
        if let Some(mut ended) = ended {
            ended.end = now;
            self.tracer.epoch(ended);
        }
    }

    /// The run is over, and all of its decisions have been taken. One that is given up may have none about the end of its last epoch.
    pub(super) fn finish(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = state.end(Instant::now(), None, false);
        drop(state);
        if let Some(ended) = ended {
            self.tracer.epoch(ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use zbmd_executor::supervise::{Cause, Epoch, Generation};

    use super::*;

    #[test]
    fn an_epoch_has_its_losses_and_its_end() {
        let mut run = FollowedRun::default();
        let now = Instant::now();
        let opened = What::Opened {
            devices: vec!["cpu:0".to_owned(), "cpu:1".to_owned()],
            first_epoch: Epoch(0),
        };
        let begin = |epoch, lost| What::Begin {
            epoch: Epoch(epoch),
            lost,
        };
        let lost = What::Lost {
            device: DeviceId(1),
            generation: Generation(1),
            epoch: Some(Epoch(0)),
            cause: Cause::Killed { signal: 9 },
        };
        assert!(run.follow(&opened, now).is_none());
        assert!(run.follow(&begin(0, Vec::new()), now).is_none());
        assert!(run.follow(&lost, now).is_none());
        let fenced = What::Fenced {
            epoch: Epoch(0),
            committed_blocks: 7,
            took_ns: 1,
        };
        let first = run.follow(&fenced, now).expect("it has ended");
        assert_eq!((first.number, first.blocks), (0, Some(7)));
        assert!(first.is_fenced);
        assert_eq!(
            (first.losses[0].device.as_str(), first.losses[0].cause),
            ("cpu:1", "killed")
        );

        assert!(run.follow(&begin(1, vec![DeviceId(1)]), now).is_none());
        let second = run.follow(&begin(2, Vec::new()), now).expect("superseded");
        assert_eq!(
            (second.number, second.without),
            (1, vec!["cpu:1".to_owned()])
        );
        let complete = What::Complete {
            epoch: Epoch(2),
            blocks: 3,
        };
        let third = run.follow(&complete, now).expect("it has ended");
        assert_eq!((third.blocks, third.is_fenced), (Some(3), false));
        assert!(run.follow(&complete, now).is_none());
    }
}
