//! Topological orders by priority, shared by everything that orders work along dependencies.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Kahn's algorithm with a priority queue: of what is ready the greatest priority first, then the lower index, so that
/// equal input gives equal order. What lies on a cycle or behind one is left out. O((V + E) log V).
pub(crate) fn order_by_priority<P: Ord>(
    successors_of: &[Vec<usize>],
    priority: impl Fn(usize) -> P,
) -> Vec<usize> {
    let count = successors_of.len();
    let mut waiting_for = vec![0usize; count];
    for &successor in successors_of.iter().flatten() {
        waiting_for[successor] += 1;
    }

    let mut ready: BinaryHeap<(P, Reverse<usize>)> = (0..count)
        .filter(|&index| waiting_for[index] == 0)
        .map(|index| (priority(index), Reverse(index)))
        .collect();
    let mut order = Vec::with_capacity(count);

    while let Some((_, Reverse(index))) = ready.pop() {
        order.push(index);
        for &successor in &successors_of[index] {
            waiting_for[successor] -= 1;
            if waiting_for[successor] == 0 {
                ready.push((priority(successor), Reverse(successor)));
            }
        }
    }
    order
}

/// Longest path from the start of each to the end of all, given any topological order ("upward rank"; saturating).
///
/// Source: Topcuoglu, Hariri & Wu 2002, IEEE TPDS 13(3).
pub(crate) fn upward_ranks(
    successors_of: &[Vec<usize>],
    any_order: &[usize],
    work: Vec<u64>,
) -> Vec<u64> {
    let mut rank = work;

    for &index in any_order.iter().rev() {
        let longest_after = successors_of[index]
            .iter()
            .map(|&successor| rank[successor])
            .max()
            .unwrap_or(0);
        rank[index] = rank[index].saturating_add(longest_after);
    }
    rank
}
