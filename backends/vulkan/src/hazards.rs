//! Which commands must wait for which: what was read and written since the last barrier.

use zbmd_hal::BankRange;

/// Kinds of work that barriers distinguish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PipelineStages {
    pub(super) compute: bool,
    pub(super) transfer: bool,
}

impl PipelineStages {
    pub(super) const ALL: PipelineStages = PipelineStages {
        compute: true,
        transfer: true,
    };
    pub(super) const COMPUTE: PipelineStages = PipelineStages {
        compute: true,
        transfer: false,
    };
    pub(super) const TRANSFER: PipelineStages = PipelineStages {
        compute: false,
        transfer: true,
    };

    fn union(self, other: PipelineStages) -> PipelineStages {
        PipelineStages {
            compute: self.compute || other.compute,
            transfer: self.transfer || other.transfer,
        }
    }
}

/// What has been accessed since the last barrier.
#[derive(Debug, Default)]
pub(super) struct HazardTracker {
    written: Vec<BankRange>,
    read: Vec<BankRange>,
    stages: PipelineStages,
}

fn overlaps_any(pending: &[BankRange], range: BankRange) -> bool {
    pending.iter().any(|other| other.overlaps(range))
}

impl HazardTracker {
    /// Notes a command; if it must wait for an earlier one, the stages that a barrier in front of it must wait for,
    /// after which nothing else is pending.
    ///
    /// Two commands conflict where one writes what the other accesses.
    pub(super) fn note_command(
        &mut self,
        reads: impl Iterator<Item = BankRange> + Clone,
        writes: impl Iterator<Item = BankRange> + Clone,
        stages: PipelineStages,
    ) -> Option<PipelineStages> {
        let reads_written = reads
            .clone()
            .any(|range| overlaps_any(&self.written, range));
        let must_wait = reads_written
            || writes
                .clone()
                .any(|range| overlaps_any(&self.written, range) || overlaps_any(&self.read, range));
        let barrier = must_wait.then_some(self.stages);
        if must_wait {
            self.clear();
        }

        self.written.extend(writes);
        self.read.extend(reads);
        self.stages = self.stages.union(stages);
        barrier
    }

    /// After a barrier.
    pub(super) fn clear(&mut self) {
        self.written.clear();
        self.read.clear();
        self.stages = PipelineStages::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(bank: u32, start: u64, end: u64) -> BankRange {
        BankRange { bank, start, end }
    }

    /// Reads, writes, whether a barrier must come before; one command a line.
    fn check(commands: &[(&[BankRange], &[BankRange], bool)]) {
        let mut hazards = HazardTracker::default();
        let compute = PipelineStages::COMPUTE;
        for (i, (reads, writes, waits)) in commands.iter().enumerate() {
            let found =
                hazards.note_command(reads.iter().copied(), writes.iter().copied(), compute);
            assert_eq!(found.is_some(), *waits, "command {i}");
        }
    }

    #[test]
    fn only_conflicts_wait() {
        let (a, b, c) = (range(0, 0, 64), range(0, 64, 128), range(0, 32, 96));
        let elsewhere = range(1, 0, 128);
        check(&[
            (&[a], &[b], false),
            (&[a], &[elsewhere], false),
            (&[b], &[], true), // read after write
            (&[b], &[a], false),
        ]);
        check(&[(&[], &[a], false), (&[], &[b], false), (&[], &[c], true)]); // write after write
        check(&[(&[c], &[elsewhere], false), (&[], &[a], true)]); // write after read
        check(&[(&[a, b, c], &[], false), (&[a, b, c], &[], false)]); // reads share
        // A barrier settles everything before it.
        check(&[
            (&[], &[a], false),
            (&[a], &[b], true),
            (&[a], &[], false),
            (&[b], &[], true),
        ]);
    }

    #[test]
    fn barriers_wait_for_what_was_pending() {
        let mut hazards = HazardTracker::default();
        let (a, none) = (range(0, 0, 8), [].into_iter());
        let transfer = PipelineStages::TRANSFER;
        let compute = PipelineStages::COMPUTE;
        assert_eq!(
            hazards.note_command(none.clone(), [a].into_iter(), transfer),
            None
        );
        assert_eq!(
            hazards.note_command([a].into_iter(), none.clone(), compute),
            Some(transfer)
        );
        assert_eq!(
            hazards.note_command(none, [a].into_iter(), transfer),
            Some(compute)
        );
    }
}
