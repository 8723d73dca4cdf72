//! Admission: the decision that all sources have the tokens of a block.
//!
//! Invariant: whether block p is admitted is decided once and for all by the streams (enough tokens, or closed without
//! them), the grants and the limit, none of which takes anything back. So all workers of a run agree on the number
//! of blocks, without talking to each other.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use super::arena::In;
use super::arrivals::ArrivalParkers;
use super::conduit::Conduit;
use super::model_end::{ModelPart, ModelSources};
use super::primitive::{AtomicU64, Ordering};
use super::ring::{Spin, Stop, Stopped};

/// Permission to start blocks, given out in small batches so that a stop takes effect soon.
///
/// One word: blocks granted, shifted by one, and whether no more will be. Any worker may grant; after the close
/// nobody can, so the count is final.
#[derive(Debug)]
pub(crate) struct AdmissionGrants {
    word: CachePadded<AtomicU64>,
}

impl AdmissionGrants {
    pub(crate) fn new() -> Self {
        Self {
            word: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// Nothing more is granted but the first `least` blocks, which are whatever was granted before. The first close counts.
    pub(crate) fn close_after(&self, least: u64) {
        let mut word = self.word.load(Ordering::Acquire);
        while word & 1 == 0 {
            let closed = (word >> 1).max(least) << 1 | 1;
            match self
                .word
                .compare_exchange(word, closed, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// Whether `block` is not granted, and never will be.
    fn is_closed_before(&self, block: u64) -> bool {
        let word = self.word.load(Ordering::Acquire);
        word & 1 == 1 && word >> 1 <= block
    }

    /// Blocks granted so far.
    pub(crate) fn granted(&self) -> u64 {
        self.word.load(Ordering::Acquire) >> 1
    }

    /// Blocks granted, more than `block` unless closed.
    pub(super) fn grant(&self, block: u64, batch: u64) -> u64 {
        let mut word = self.word.load(Ordering::Acquire);
        while word >> 1 <= block && word & 1 == 0 {
            let more = (block + batch) << 1;
            match self
                .word
                .compare_exchange(word, more, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return more >> 1,
                Err(now) => word = now,
            }
        }
        word >> 1
    }
}

/// What admission looks at in one source.
pub(crate) struct AdmissionSource {
    pub conduit: Arc<Conduit>,
    /// Tokens taken before this plan began.
    pub base: u64,
    pub tokens_per_block: u64,
}

/// What admission looks at in one model of a merged program.
pub(crate) struct AdmissionModel {
    /// Counted from the epoch's beginning.
    pub sources: ModelSources,
    pub iterations_per_block: u64,
}

/// Decides whether a block may start.
pub(crate) struct AdmissionGate {
    pub sources: Vec<AdmissionSource>,
    /// The models of a merged program, which goes on while one of them has tokens; empty for one model.
    pub models: Vec<AdmissionModel>,
    pub arrivals: In<ArrivalParkers>,
    pub epoch: u64,
    /// Blocks at most.
    pub limit: u64,
    /// Blocks that are granted at a time.
    pub batch: u64,
    /// Start blocks of closed sources whatever they hold: what is missing reads as zeros.
    pub pad: bool,
    /// Blocks known to be admitted.
    pub admitted: u64,
}

/// What sources have of a block and those after it.
enum FoundBlocks {
    /// Not all of the block, and no more will come.
    None,
    /// Not all of the block yet.
    Pending,
    /// The block and all others before this one.
    Until(u64),
}

impl AdmissionGate {
    /// Waits until it is known whether `block` starts.
    ///
    /// # Errors
    /// The epoch was stopped before that.
    pub(crate) fn wait(
        &mut self,
        block: u64,
        grants: &AdmissionGrants,
        spin: Spin,
        stop: &Stop,
    ) -> Result<bool, Stopped> {
        let arrivals = self.arrivals.clone();
        let mut verdict = None;
        arrivals.of_epoch(self.epoch).wait_until(spin, || {
            verdict = self.look(block, grants);
            verdict.is_some() || stop.is_set()
        });
        verdict.ok_or(Stopped)
    }

    /// Whether `block` starts, if that is known.
    pub(crate) fn look(&mut self, block: u64, grants: &AdmissionGrants) -> Option<bool> {
        if block < self.admitted {
            return Some(true);
        }
        if block >= self.limit {
            return Some(false);
        }

        let found = match self.models.is_empty() {
            true => self.find_blocks(block),
            false => self.find_model_blocks(block),
        };
        let available = match found {
            FoundBlocks::None => return Some(false),
            // Nothing is granted for tokens that may never come: whoever closes the grants waits for none.
            FoundBlocks::Pending => return grants.is_closed_before(block).then_some(false),
            FoundBlocks::Until(available) => available,
        };

        let batch = self.batch.min(available - block);
        let granted = grants.grant(block, batch).min(self.limit);
        if granted <= block {
            return Some(false);
        }
        self.admitted = granted.min(available);
        Some(true)
    }

    /// Looks at all sources, of one model: a block needs the tokens of each.
    fn find_blocks(&self, block: u64) -> FoundBlocks {
        let mut available = u64::MAX;
        let mut is_pending = false;
        for source in &self.sources {
            let (written, closed) = source.conduit.written();
            let blocks = (written - source.base) / source.tokens_per_block;
            if blocks > block {
                available = available.min(blocks);
            } else if !closed {
                is_pending = true;
            } else if self.pad {
                available = available.min(block + 1);
            } else {
                return FoundBlocks::None;
            }
        }
        match is_pending {
            true => FoundBlocks::Pending,
            false => FoundBlocks::Until(available),
        }
    }

    /// Looks at the models of a merged program: a block needs some iteration of one of them, and every model that has not
    /// ended has to have all of its own, or as many as it will ever have.
    fn find_model_blocks(&self, block: u64) -> FoundBlocks {
        let mut available = u64::MAX;
        let mut is_pending = false;
        let mut has_ended = true;
        for model in &self.models {
            if model.sources.sources.is_empty() {
                continue;
            }
            let first = block * model.iterations_per_block;
            let last = first + model.iterations_per_block;
            let part = model.sources.part_of(first, last);
            has_ended &= part == ModelPart::None;
            match part {
                ModelPart::None => {}
                ModelPart::Pending => is_pending = true,
                ModelPart::Some => available = available.min(block + 1),
                ModelPart::All(iterations) => {
                    available = available.min(iterations / model.iterations_per_block);
                }
            }
        }

        let has_sources = !self.sources.is_empty();
        if has_sources && has_ended {
            FoundBlocks::None
        } else if is_pending {
            FoundBlocks::Pending
        } else {
            FoundBlocks::Until(available)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::arena::Arena;

    /// What each source holds (tokens, closed), the limit, whether to pad; then the verdict on block 2 of 10 tokens.
    fn verdict(sources: &[(u64, bool)], limit: u64, pad: bool) -> Option<bool> {
        let arena = Arc::new(Arena::new(size_of::<ArrivalParkers>() as u64, false).expect("small"));
        let arrivals = In::create(&arena, 0, 1, ArrivalParkers::new).one(0);
        let mut admission_sources = Vec::new();
        for &(tokens, closed) in sources {
            let (mut producer, _consumer) =
                Conduit::pair(64, 1, Some(arrivals.clone())).expect("small");
            producer.write(&vec![0; tokens as usize]).expect("open");
            if closed {
                producer.shared().close();
            }
            let conduit = Arc::clone(producer.shared());
            admission_sources.push(AdmissionSource {
                conduit,
                base: 0,
                tokens_per_block: 10,
            });
        }
        let mut gate = AdmissionGate {
            sources: admission_sources,
            models: Vec::new(),
            arrivals,
            epoch: 0,
            limit,
            batch: 8,
            pad,
            admitted: 0,
        };
        gate.look(2, &AdmissionGrants::new())
    }

    #[test]
    fn admission_waits_for_every_source_and_ends_with_the_first_closed_one() {
        for (sources, limit, pad, expect, why) in [
            (
                &[][..],
                9,
                false,
                Some(true),
                "without sources nothing is missing",
            ),
            (
                &[][..],
                2,
                false,
                Some(false),
                "blocks 0 and 1 are the limit",
            ),
            (
                &[(30, false)],
                9,
                false,
                Some(true),
                "three blocks are there",
            ),
            (&[(29, false)], 9, false, None, "one token may still come"),
            (
                &[(29, true)],
                9,
                false,
                Some(false),
                "one token will never come",
            ),
            (
                &[(29, true)],
                9,
                true,
                Some(true),
                "the missing token is padded",
            ),
            (
                &[(29, false)],
                9,
                true,
                None,
                "padding waits for the end of the source",
            ),
            (
                &[(30, true)],
                9,
                false,
                Some(true),
                "the last block is whole",
            ),
            (
                &[(0, false), (29, true)],
                9,
                false,
                Some(false),
                "one short source ends the run",
            ),
            (
                &[(29, true), (0, false)],
                9,
                false,
                Some(false),
                "in any order",
            ),
            (
                &[(50, true), (29, false)],
                9,
                false,
                None,
                "one late source holds it up",
            ),
        ] {
            assert_eq!(verdict(sources, limit, pad), expect, "{why}");
        }
    }

    #[test]
    fn closed_grants_are_final() {
        let grants = AdmissionGrants::new();
        assert_eq!(grants.grant(0, 4), 4);
        assert_eq!(grants.grant(3, 4), 4);
        assert_eq!(grants.grant(4, 4), 8);
        grants.close_after(0);
        assert_eq!(grants.grant(8, 4), 8);
        grants.close_after(20);
        assert_eq!(grants.grant(8, 4), 8, "the first close counts");
    }

    #[test]
    fn blocks_that_were_given_out_before_are_granted_at_the_close() {
        let grants = AdmissionGrants::new();
        grants.close_after(5);
        assert!(!grants.is_closed_before(4) && grants.is_closed_before(5));
        assert_eq!((grants.grant(4, 1), grants.grant(5, 8)), (5, 5));
    }
}
