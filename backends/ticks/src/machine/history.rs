//! What iterations leave to later ones: the checkpoints that a run goes back to.

use std::collections::VecDeque;

/// The last bytes of a channel's stream: those that the first iteration which is not complete can ask for, and all that
/// were written since.
#[derive(Clone, Debug)]
pub(crate) struct History {
    /// Stream position of the first byte.
    start: i128,
    bytes: VecDeque<u8>,
    /// Bytes before the border of an iteration that it can ask for.
    depth: usize,
}

impl History {
    /// The initial tokens of a channel, which end at position 0.
    pub(crate) fn new(initial: &[u8]) -> Self {
        Self {
            start: -(initial.len() as i128),
            bytes: initial.iter().copied().collect(),
            depth: initial.len(),
        }
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    fn index(&self, position: i128) -> usize {
        (position - self.start).max(0) as usize
    }

    /// The last bytes before a position, not more than the depth.
    pub(crate) fn before(&self, border: i128, count: usize) -> Vec<u8> {
        assert!(
            border - count as i128 >= self.start,
            "what a border needs has been dropped"
        );
        let end = self.index(border);
        let range = end.saturating_sub(count)..end;
        self.bytes.range(range).copied().collect()
    }

    /// Drops what no iteration from a border on can ask for.
    pub(crate) fn forget_before(&mut self, border: i128) {
        let first = border - self.depth as i128;
        let dropped = self.index(first);
        self.bytes.drain(..dropped);
        self.start += dropped as i128;
    }

    /// Drops what was written from a border on.
    pub(crate) fn truncate(&mut self, border: i128) {
        let kept = self.index(border);
        self.bytes.truncate(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_goes_back_to_the_last_border() {
        let mut history = History::new(&[1, 2, 3]);
        history.append(&[4, 5]);
        history.append(&[6, 7]);
        assert_eq!(history.before(0, 3), [1, 2, 3]);
        history.forget_before(2);
        assert_eq!(history.before(2, 3), [3, 4, 5]);
        assert_eq!(history.before(2, 1), [5]);

        // What was written after the border is written again.
        history.truncate(2);
        history.append(&[6, 7]);
        history.forget_before(4);
        assert_eq!(history.before(4, 3), [5, 6, 7]);
    }
}
