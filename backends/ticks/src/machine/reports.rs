//! What nodes tell each other of frames that did not come.

use std::collections::{BTreeMap, BTreeSet};

use zbmd_ticks::{LinkId, WATCHED_FRAMES};

/// The receiver's tick in which the first frame of a gap was due, and the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GapStart {
    pub(super) tick: u64,
    pub(super) link: LinkId,
}

/// The first [`WATCHED_FRAMES`] frames of one link in a row that were missing or wrong. What comes after these changes
/// nothing, so that a report is the same everywhere when it has gone through the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Gap {
    /// How many.
    pub(super) frames: u64,
    /// Whether the plan has tokens on one of them.
    pub(super) has_tokens: bool,
}

/// All gaps that a node knows of since the start. It learns of them from its own links, and from what its neighbours know,
/// which is in the head of each frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reports(BTreeMap<GapStart, Gap>);

impl Reports {
    /// Adds what is known of a gap. Whether anything of it is new.
    pub(super) fn add(&mut self, start: GapStart, gap: Gap) -> bool {
        let known = self.0.entry(start).or_default();
        let before = *known;
        known.frames = known.frames.max(gap.frames);
        known.has_tokens |= gap.has_tokens;
        *known != before
    }

    /// Adds all that another node knows.
    pub(super) fn merge(&mut self, other: &Self) {
        for (&start, &gap) in &other.0 {
            self.add(start, gap);
        }
    }

    /// Whether all that is in others is in these.
    pub(super) fn include(&self, others: &Self) -> bool {
        others.0.iter().all(|(start, gap)| {
            let known = self.0.get(start);
            known.is_some_and(|known| {
                known.frames >= gap.frames && known.has_tokens >= gap.has_tokens
            })
        })
    }

    /// The gaps that are not in those that have been dealt with.
    pub(super) fn open<'a>(
        &'a self,
        settled: &'a Self,
    ) -> impl Iterator<Item = (GapStart, Gap)> + 'a {
        let gaps = self.0.iter().map(|(&start, &gap)| (start, gap));
        gaps.filter(|(start, gap)| settled.0.get(start) != Some(gap))
    }

    /// The links on which nothing comes any more.
    pub(super) fn silent_links(&self) -> BTreeSet<LinkId> {
        let long = self
            .0
            .iter()
            .filter(|(_, gap)| gap.frames >= WATCHED_FRAMES);
        long.map(|(start, _)| start.link).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(tick: u64, link: u32) -> GapStart {
        let link = LinkId(link);
        GapStart { tick, link }
    }

    #[test]
    fn nodes_that_hear_of_each_other_know_the_same() {
        let short = Gap {
            frames: 1,
            has_tokens: true,
        };
        let long = Gap {
            frames: WATCHED_FRAMES,
            has_tokens: false,
        };
        let (mut one, mut other) = (Reports::default(), Reports::default());
        assert!(one.add(start(5, 1), short));
        assert!(!one.add(start(5, 1), short));
        assert!(other.add(start(5, 1), long));
        assert!(other.add(start(7, 2), short));
        assert!(!one.include(&other) && !other.include(&one));

        let before = one.clone();
        one.merge(&other);
        other.merge(&before);
        assert_eq!(one, other);
        assert_eq!(one.silent_links(), BTreeSet::from([LinkId(1)]));
        // What grew since it was dealt with is open again.
        let open: Vec<GapStart> = one.open(&before).map(|(start, _)| start).collect();
        assert_eq!(open, [start(5, 1), start(7, 2)]);
        assert_eq!(one.open(&other).count(), 0);
    }
}
