//! The phase of a clock over time: piecewise linear, of which only the recent pieces are kept.

use std::collections::VecDeque;

/// From a time on, a constant frequency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Piece {
    pub(crate) start: f64,
    pub(crate) phase: f64,
    pub(crate) frequency: f64,
}

/// Ticks since a clock's start as a function of time. The first piece that is kept extends into the past, the last into
/// the future.
#[derive(Clone, Debug, Default)]
pub(crate) struct Phase {
    pieces: VecDeque<Piece>,
}

impl Phase {
    /// A clock that has run for ever at this frequency.
    pub(crate) fn new(start: f64, phase: f64, frequency: f64) -> Self {
        let first = Piece {
            start,
            phase,
            frequency,
        };
        Self {
            pieces: VecDeque::from([first]),
        }
    }

    /// Changes the frequency at a time at or after all changes so far, and forgets pieces that end before `horizon`.
    pub(crate) fn push(&mut self, piece: Piece, horizon: f64) {
        self.pieces.push_back(piece);
        while self.pieces.get(1).is_some_and(|next| next.start < horizon) {
            self.pieces.pop_front();
        }
    }

    /// The present piece.
    pub(crate) fn last(&self) -> Piece {
        self.pieces[self.pieces.len() - 1]
    }

    /// Phase at a time.
    pub(crate) fn at(&self, time: f64) -> f64 {
        let after = self.pieces.partition_point(|piece| piece.start <= time);
        let piece = self.pieces[after.saturating_sub(1)];
        piece.phase + (time - piece.start) * piece.frequency
    }

    /// When the phase of the present piece, or the one before, has a value.
    pub(crate) fn time_of(&self, phase: f64) -> f64 {
        let after = self.pieces.partition_point(|piece| piece.phase <= phase);
        let piece = self.pieces[after.saturating_sub(1)];
        piece.start + (phase - piece.phase) / piece.frequency
    }

    /// Times at which the frequency changed, after `from` and up to `until`, ascending.
    pub(crate) fn changes(&self, from: f64, until: f64) -> impl Iterator<Item = f64> + '_ {
        let first = self.pieces.partition_point(|piece| piece.start <= from);
        let later = self.pieces.range(first..).map(|piece| piece.start);
        later.take_while(move |&start| start <= until)
    }

    /// Pieces that are kept.
    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_continue_and_the_past_is_forgotten() {
        let mut phase = Phase::new(0.0, 0.5, 1.0);
        phase.push(
            Piece {
                start: 10.0,
                phase: 10.5,
                frequency: 2.0,
            },
            -1.0,
        );
        assert_eq!(
            [-1.0, 0.0, 9.5, 10.0, 12.0].map(|t| phase.at(t)),
            [-0.5, 0.5, 10.0, 10.5, 14.5]
        );
        assert_eq!(
            [0.5, 10.5, 14.5].map(|p| phase.time_of(p)),
            [0.0, 10.0, 12.0]
        );
        assert_eq!(phase.changes(0.0, 10.0).collect::<Vec<_>>(), [10.0]);
        assert_eq!(phase.changes(10.0, 20.0).count(), 0);

        phase.push(
            Piece {
                start: 20.0,
                phase: 30.5,
                frequency: 1.0,
            },
            15.0,
        );
        assert_eq!(phase.len(), 2);
        assert_eq!(phase.at(15.0), 20.5);
    }
}
