//! Which commands must wait for which: what was read and written since the last barrier.

use crate::replay::Range;

/// Kinds of work that barriers tell apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stages {
    pub(super) compute: bool,
    pub(super) transfer: bool,
}

impl Stages {
    pub(super) const ALL: Stages = Stages {
        compute: true,
        transfer: true,
    };

    fn and(self, other: Stages) -> Stages {
        Stages {
            compute: self.compute || other.compute,
            transfer: self.transfer || other.transfer,
        }
    }
}

/// What has been touched since the last barrier.
#[derive(Debug, Default)]
pub(super) struct Hazards {
    written: Vec<Range>,
    read: Vec<Range>,
    stages: Stages,
}

impl Hazards {
    /// Notes a command; if it must wait for one before it, the stages that a barrier in front of it must wait for,
    /// after which nothing else is pending.
    ///
    /// Two commands conflict where one writes what the other touches.
    pub(super) fn note(
        &mut self,
        reads: impl Iterator<Item = Range> + Clone,
        writes: impl Iterator<Item = Range> + Clone,
        stages: Stages,
    ) -> Option<Stages> {
        let touches = |pending: &[Range], range: Range| pending.iter().any(|p| p.overlaps(range));
        let must_wait = reads.clone().any(|r| touches(&self.written, r))
            || writes
                .clone()
                .any(|w| touches(&self.written, w) || touches(&self.read, w));
        let barrier = must_wait.then_some(self.stages);
        if must_wait {
            self.clear();
        }
        self.written.extend(writes);
        self.read.extend(reads);
        self.stages = self.stages.and(stages);
        barrier
    }

    /// After a barrier.
    pub(super) fn clear(&mut self) {
        self.written.clear();
        self.read.clear();
        self.stages = Stages::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(bank: u32, start: u64, end: u64) -> Range {
        Range { bank, start, end }
    }

    /// Reads, writes, whether a barrier must come before; one command a line.
    fn check(commands: &[(&[Range], &[Range], bool)]) {
        let mut hazards = Hazards::default();
        let compute = Stages {
            compute: true,
            transfer: false,
        };
        for (i, (reads, writes, waits)) in commands.iter().enumerate() {
            let found = hazards.note(reads.iter().copied(), writes.iter().copied(), compute);
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
        let mut hazards = Hazards::default();
        let (a, none) = (range(0, 0, 8), [].into_iter());
        let transfer = Stages {
            compute: false,
            transfer: true,
        };
        let compute = Stages {
            compute: true,
            transfer: false,
        };
        assert_eq!(hazards.note(none.clone(), [a].into_iter(), transfer), None);
        assert_eq!(
            hazards.note([a].into_iter(), none.clone(), compute),
            Some(transfer)
        );
        assert_eq!(hazards.note(none, [a].into_iter(), transfer), Some(compute));
    }
}
