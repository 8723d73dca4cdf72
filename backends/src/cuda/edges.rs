//! Which nodes of a graph must wait for which: exactly those whose memory asks for it, and no pair that follows from
//! others.

use crate::replay::Range;

/// Nodes up to which edges that follow from others are left out: beyond, finding them takes more memory than they do.
const MAX_REDUCED: usize = 1 << 13;

/// Memory that a node touches, and nobody after it has written as a whole.
#[derive(Clone, Copy, Debug)]
struct Touch {
    node: u32,
    range: Range,
    writes: bool,
}

/// The order of nodes as they come.
#[derive(Debug, Default)]
pub(super) struct Edges {
    live: Vec<Touch>,
    /// For each node, the set of those that end before it, as bits.
    before: Vec<Box<[u64]>>,
    nodes: u32,
}

impl Edges {
    /// Notes a node that comes after all before it in the calendar; those that it must wait for, in order.
    ///
    /// Two nodes conflict where one writes what the other touches.
    pub(super) fn note(
        &mut self,
        reads: impl Iterator<Item = Range>,
        writes: impl Iterator<Item = Range>,
    ) -> Vec<u32> {
        let node = self.nodes;
        self.nodes += 1;
        let mut touches: Vec<Touch> = reads
            .map(|range| Touch {
                node,
                range,
                writes: false,
            })
            .collect();
        touches.extend(writes.map(|range| Touch {
            node,
            range,
            writes: true,
        }));
        touches.retain(|t| t.range.len() > 0);
        let conflict = |old: &Touch| {
            touches
                .iter()
                .any(|t| (t.writes || old.writes) && t.range.overlaps(old.range))
        };
        let mut after: Vec<u32> = self
            .live
            .iter()
            .filter(|t| conflict(t))
            .map(|t| t.node)
            .collect();
        after.sort_unstable();
        after.dedup();
        // Whoever conflicts with what is overwritten as a whole conflicts with the overwriting too.
        let hidden = |old: &Touch| {
            touches
                .iter()
                .any(|t| t.writes && t.range.contains(old.range))
        };
        self.live.retain(|old| !hidden(old));
        self.live.extend(touches);
        self.reduce(after)
    }

    /// Leaves out those that end before another one of them.
    fn reduce(&mut self, after: Vec<u32>) -> Vec<u32> {
        if self.before.len() >= MAX_REDUCED {
            return after;
        }
        let mut before = vec![0_u64; self.before.len().div_ceil(64)];
        let mut kept = Vec::new();
        for &node in after.iter().rev() {
            let (word, bit) = (node as usize / 64, 1_u64 << (node % 64));
            if before[word] & bit == 0 {
                kept.push(node);
            }
            before[word] |= bit;
            for (all, theirs) in before.iter_mut().zip(&self.before[node as usize]) {
                *all |= theirs;
            }
        }
        self.before.push(before.into());
        kept.reverse();
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Range {
        Range {
            bank: 0,
            start,
            end,
        }
    }

    /// Reads, writes, nodes waited for; one node a line.
    fn check(nodes: &[(&[Range], &[Range], &[u32])]) {
        let mut edges = Edges::default();
        for (i, (reads, writes, after)) in nodes.iter().enumerate() {
            let found = edges.note(reads.iter().copied(), writes.iter().copied());
            assert_eq!(found, *after, "node {i}");
        }
    }

    #[test]
    fn edges_follow_the_data_and_nothing_else() {
        let (a, b, c) = (range(0, 64), range(64, 128), range(32, 96));
        let elsewhere = Range { bank: 1, ..a };
        check(&[
            (&[], &[a], &[]),
            (&[], &[b], &[]),
            (&[a], &[elsewhere], &[0]), // read after write
            (&[c], &[], &[0, 1]),       // of both
            (&[], &[c], &[2, 3]),       // write after read; 0 and 1 follow from these
            (&[a], &[], &[4]), // a was written in part by 4, whose writer before ended before it
        ]);
        // Readers share; the next writer waits for all of them, the one after only for the writer.
        check(&[
            (&[a], &[], &[]),
            (&[a], &[], &[]),
            (&[], &[a], &[0, 1]),
            (&[], &[a], &[2]),
            (&[a], &[a], &[3]),
        ]);
        // Nothing is waited for that is empty.
        check(&[(&[], &[range(0, 0)], &[]), (&[range(0, 0)], &[], &[])]);
    }

    #[test]
    fn many_nodes_in_a_chain_wait_for_one_each() {
        let mut edges = Edges::default();
        for i in 0..2 * MAX_REDUCED as u64 {
            let (from, to) = (range(64 * (i % 2), 64 * (i % 2) + 64), 64 * ((i + 1) % 2));
            let after = edges.note([from].into_iter(), [range(to, to + 64)].into_iter());
            assert_eq!(after.last().copied(), i.checked_sub(1).map(|n| n as u32));
            assert!(after.len() <= 2, "{after:?}");
        }
    }
}
