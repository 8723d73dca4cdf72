//! A disk with checkpoints on it. Must not know what they are of.

use super::bugs::Bug;
use super::model::State;

/// What a run leaves for another process to go on from.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    pub state: State,
    /// Output tokens that were on disk before this border.
    pub outputs: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    /// Whole ones, oldest first.
    kept: Vec<Checkpoint>,
    /// Being written.
    pub writing: Option<Checkpoint>,
    pub full: bool,
    /// Written over in place and not whole.
    torn: Option<Checkpoint>,
}

const KEPT: usize = 3;

impl Disk {
    pub(crate) fn begin(&mut self, checkpoint: Checkpoint) {
        self.writing = Some(checkpoint);
    }

    /// The file is whole and takes its name, unless the disk was full.
    pub(crate) fn end(&mut self) {
        let Some(checkpoint) = self.writing.take() else {
            return;
        };
        if self.full {
            return;
        }
        self.kept.push(checkpoint);
        if self.kept.len() > KEPT {
            self.kept.remove(0);
        }
    }

    /// The writing process died.
    pub(crate) fn crash(&mut self, bug: Option<Bug>) {
        let torn = self.writing.take();
        if bug == Some(Bug::CheckpointInPlace)
            && let (Some(new), Some(old)) = (torn, self.kept.last())
        {
            // The first half is the new one's.
            let mut mixed = new.clone();
            let half = mixed.state.actors.len() / 2;
            mixed.state.actors[half..].copy_from_slice(&old.state.actors[half..]);
            self.torn = Some(mixed);
        }
    }

    /// What to go on from.
    pub(crate) fn newest(&mut self) -> Option<Checkpoint> {
        self.torn.take().or_else(|| self.kept.last().cloned())
    }

    pub(crate) fn kept(&self) -> usize {
        self.kept.len()
    }
}
