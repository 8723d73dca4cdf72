//! Where the models of a merged program end: each with its own sources, while the others go on.
//!
//! Invariant: a model's part of a block is known once its open sources have the tokens of all iterations that its closed
//! ones have tokens for, up to the end of the block. Tokens only come and closed counts are final, so later looks
//! say the same: all workers cut the model's sinks at the same iteration.

use std::sync::Arc;

use super::conduit::Conduit;

/// One source of a model.
#[derive(Clone, Debug)]
pub(crate) struct ModelSource {
    pub conduit: Arc<Conduit>,
    /// Tokens of the queue before the counting of iterations begins.
    pub base: u64,
    /// Tokens of an iteration of the model.
    pub iteration_tokens: u64,
}

/// The sources of one model, from some border on.
#[derive(Clone, Debug)]
pub(crate) struct ModelSources {
    pub sources: Vec<ModelSource>,
    /// Whether an incomplete last iteration counts, with zeros for what is missing.
    pub pads: bool,
}

/// What a model has of some iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelPart {
    /// Tokens may still come.
    Pending,
    /// It has ended before.
    None,
    /// Some of them, and no more.
    Some,
    /// All, and so many from the border on.
    All(u64),
}

impl ModelSource {
    /// Iterations that it has tokens for, and whether that is final.
    fn iterations(&self, pads: bool) -> (u64, bool) {
        let (written, is_closed) = self.conduit.written();
        let tokens = written.saturating_sub(self.base);
        let iterations = match pads && is_closed {
            true => tokens.div_ceil(self.iteration_tokens),
            false => tokens / self.iteration_tokens,
        };
        (iterations, is_closed)
    }
}

impl ModelSources {
    /// Iterations after which the model has ended, as far as that is known: `u64::MAX` while all sources are open.
    pub(crate) fn end(&self) -> u64 {
        let counts = self
            .sources
            .iter()
            .map(|source| source.iterations(self.pads));
        let closed = counts.filter(|(_, is_closed)| *is_closed);
        closed
            .map(|(iterations, _)| iterations)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// What it has of the iterations from `first` on, up to the one before `last`.
    pub(crate) fn part_of(&self, first: u64, last: u64) -> ModelPart {
        // Before the counts: whatever closes in between has at least as much.
        let end = self.end();
        let needed = end.min(last);
        if needed <= first {
            return ModelPart::None;
        }

        let counts = self
            .sources
            .iter()
            .map(|source| source.iterations(self.pads).0);
        let available = counts.min().unwrap_or(u64::MAX);
        if available >= last {
            ModelPart::All(available)
        } else if available >= needed {
            ModelPart::Some
        } else {
            ModelPart::Pending
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sources with so many tokens, of which 10 are an iteration, closed or not.
    fn sources(counts: &[(u64, bool)], pads: bool) -> ModelSources {
        let source = |&(tokens, is_closed): &(u64, bool)| {
            let (mut producer, _consumer) = Conduit::pair(100, 1, None).expect("small");
            producer.write(&vec![0; tokens as usize]).expect("open");
            if is_closed {
                producer.shared().close();
            }
            ModelSource {
                conduit: Arc::clone(producer.shared()),
                base: 0,
                iteration_tokens: 10,
            }
        };
        ModelSources {
            sources: counts.iter().map(source).collect(),
            pads,
        }
    }

    #[test]
    fn a_model_has_what_its_shortest_source_has() {
        use ModelPart::{All, None, Pending, Some};
        for (counts, pads, expect, why) in [
            (
                &[][..],
                false,
                All(u64::MAX),
                "without sources nothing ends",
            ),
            (&[(40, false)], false, All(4), "all are there"),
            (&[(39, false)], false, Pending, "a token may come"),
            (&[(39, true)], false, Some, "the last one is incomplete"),
            (&[(39, true)], true, All(4), "the last one is padded"),
            (&[(20, true)], false, None, "it ended evenly before"),
            (&[(21, true)], true, Some, "one iteration of two is padded"),
            (
                &[(30, true), (20, false)],
                false,
                Pending,
                "one more may come",
            ),
            (&[(30, true), (30, false)], false, Some, "no more can come"),
            (
                &[(20, true), (0, false)],
                false,
                None,
                "whatever the other has",
            ),
            (&[(30, true), (0, true)], false, None, "the other has none"),
        ] {
            assert_eq!(sources(counts, pads).part_of(2, 4), expect, "{why}");
        }
    }
}
