//! Which nodes of a graph must wait for which: exactly those whose memory asks for it, without the pairs that follow
//! from others.

use zbmd_hal::BankRange;

/// Nodes up to which edges that follow from others are left out: beyond, finding them takes more memory than they do.
const MAX_REDUCED: usize = 1 << 13;

/// Memory that a node accesses, and that no later node has overwritten completely.
#[derive(Clone, Copy, Debug)]
struct NodeAccess {
    node: u32,
    range: BankRange,
    writes: bool,
}

impl NodeAccess {
    /// Whether the order of the two matters: one writes what the other accesses.
    fn conflicts_with(&self, other: &NodeAccess) -> bool {
        (self.writes || other.writes) && self.range.overlaps(other.range)
    }
}

/// Finds the edges of a graph, node by node in the calendar's order.
#[derive(Debug, Default)]
pub(super) struct EdgeBuilder {
    live: Vec<NodeAccess>,
    /// For each node, the set of those that end before it, as bits.
    ended_before: Vec<Box<[u64]>>,
    node_count: u32,
}

impl EdgeBuilder {
    /// Adds a node that comes after all earlier ones in the calendar; those that it must wait for, in order.
    pub(super) fn note_node(
        &mut self,
        reads: impl IntoIterator<Item = BankRange>,
        writes: impl IntoIterator<Item = BankRange>,
    ) -> Vec<u32> {
        let node = self.node_count;
        self.node_count += 1;

        let mut accesses: Vec<NodeAccess> = Vec::new();
        accesses.extend(reads.into_iter().map(|range| NodeAccess {
            node,
            range,
            writes: false,
        }));
        accesses.extend(writes.into_iter().map(|range| NodeAccess {
            node,
            range,
            writes: true,
        }));
        accesses.retain(|access| access.range.len() > 0);

        let conflicting = self
            .live
            .iter()
            .filter(|old| accesses.iter().any(|new| new.conflicts_with(old)));
        let mut after: Vec<u32> = conflicting.map(|old| old.node).collect();
        after.sort_unstable();
        after.dedup();

        // A later node that conflicts with what is overwritten completely conflicts with the overwriting node too.
        self.live.retain(|old| {
            let overwrites = |new: &NodeAccess| new.writes && new.range.contains(old.range);
            !accesses.iter().any(overwrites)
        });
        self.live.extend(accesses);
        self.reduce_edges(after)
    }

    /// Leaves out those that end before another one of them.
    fn reduce_edges(&mut self, after: Vec<u32>) -> Vec<u32> {
        if self.ended_before.len() >= MAX_REDUCED {
            return after;
        }

        let mut ended = vec![0_u64; self.ended_before.len().div_ceil(64)];
        let mut kept = Vec::new();
        // From the latest on: a node can end only before later ones.
        for &node in after.iter().rev() {
            let word = node as usize / 64;
            let bit = 1_u64 << (node % 64);
            if ended[word] & bit == 0 {
                kept.push(node);
            }
            ended[word] |= bit;
            for (all, own) in ended.iter_mut().zip(&self.ended_before[node as usize]) {
                *all |= own;
            }
        }
        self.ended_before.push(ended.into());
        kept.reverse();
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> BankRange {
        BankRange {
            bank: 0,
            start,
            end,
        }
    }

    /// Reads, writes, nodes waited for; one node a line.
    fn check(nodes: &[(&[BankRange], &[BankRange], &[u32])]) {
        let mut edges = EdgeBuilder::default();
        for (i, (reads, writes, after)) in nodes.iter().enumerate() {
            let found = edges.note_node(reads.iter().copied(), writes.iter().copied());
            assert_eq!(found, *after, "node {i}");
        }
    }

    #[test]
    fn edges_follow_the_data_and_nothing_else() {
        let (a, b, c) = (range(0, 64), range(64, 128), range(32, 96));
        let elsewhere = BankRange { bank: 1, ..a };
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
        let mut edges = EdgeBuilder::default();
        for i in 0..2 * MAX_REDUCED as u64 {
            let (from, to) = (range(64 * (i % 2), 64 * (i % 2) + 64), 64 * ((i + 1) % 2));
            let after = edges.note_node([from], [range(to, to + 64)]);
            assert_eq!(after.last().copied(), i.checked_sub(1).map(|n| n as u32));
            assert!(after.len() <= 2, "{after:?}");
        }
    }
}
