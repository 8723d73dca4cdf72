//! Ways through the network: short ones first, then around busy links.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use zbmd_ir::TiVec;
use zbmd_ticks::{LinkId, Network, NodeId};

use crate::reservation::Reservation;

/// Hops from one node to every other. O(nodes + links).
pub(crate) fn hops_from(network: &Network, from: NodeId) -> TiVec<NodeId, u16> {
    let mut hops: TiVec<NodeId, u16> = vec![u16::MAX; network.node_count()].into();
    hops[from] = 0;
    let mut reached = vec![from];
    let mut next = 0;
    while let Some(&node) = reached.get(next) {
        next += 1;
        for &link in network.outgoing(node) {
            let to = network.links()[link].to;
            if hops[to] == u16::MAX {
                hops[to] = hops[node].saturating_add(1);
                reached.push(to);
            }
        }
    }
    hops
}

/// The way of least cost, where a link costs one hop, and the more the busier it is: `detour` hops if it has no free
/// tick. Ties go to the lower link. Links in order.
pub(crate) fn way(
    network: &Network,
    links: &TiVec<LinkId, Reservation>,
    ends: (NodeId, NodeId),
    period: u64,
    detour: u64,
) -> Vec<LinkId> {
    const HOP: u64 = 1 << 16;
    let (from, to) = ends;
    let mut reached_by: TiVec<NodeId, Option<LinkId>> = vec![None; network.node_count()].into();
    let mut costs: TiVec<NodeId, u64> = vec![u64::MAX; network.node_count()].into();
    costs[from] = 0;
    let mut queue = BinaryHeap::from([Reverse((0_u64, from))]);
    while let Some(Reverse((cost, node))) = queue.pop() {
        if node == to {
            break;
        }
        if cost > costs[node] {
            continue;
        }
        for &link in network.outgoing(node) {
            let next = network.links()[link].to;
            let busy = u128::from(links[link].count()) * u128::from(HOP) / u128::from(period);
            // Even without detours, of ways of equal length the one that is less busy is better.
            let by_load = (busy as u64).saturating_mul(detour) + busy as u64 / 64;
            let next_cost = cost + HOP + by_load;
            if next_cost < costs[next] {
                costs[next] = next_cost;
                reached_by[next] = Some(link);
                queue.push(Reverse((next_cost, next)));
            }
        }
    }

    let mut way = Vec::new();
    let mut node = to;
    while let Some(link) = reached_by[node].filter(|_| node != from) {
        way.push(link);
        node = network.links()[link].from;
    }
    way.reverse();
    way
}

#[cfg(test)]
mod tests {
    use zbmd_ticks::Topology;

    use super::*;

    #[test]
    fn busy_links_are_gone_round_as_far_as_a_detour_may_be() {
        let network = Topology::Ring { nodes: 5 }
            .network()
            .expect("a legal shape");
        let link = |from, to| {
            let link = network.link_between(NodeId(from), NodeId(to));
            link.expect("neighbours")
        };
        let mut links: TiVec<LinkId, Reservation> =
            vec![Reservation::default(); network.links().len()].into();
        let short = vec![link(0, 1), link(1, 2)];
        let long = vec![link(0, 4), link(4, 3), link(3, 2)];
        let found = |links: &TiVec<LinkId, Reservation>, detour| {
            way(&network, links, (NodeId(0), NodeId(2)), 100, detour)
        };
        assert_eq!(found(&links, 8), short);

        links[link(1, 2)].take(10, 90, 100);
        assert_eq!(found(&links, 0), short);
        assert_eq!(found(&links, 8), long);
        assert_eq!(way(&network, &links, (NodeId(2), NodeId(2)), 100, 0), []);
    }

    #[test]
    fn of_equally_short_ways_the_less_busy_one_is_taken() {
        let network = Topology::Mesh {
            rows: 2,
            columns: 2,
        }
        .network()
        .expect("a legal shape");
        let mut links: TiVec<LinkId, Reservation> =
            vec![Reservation::default(); network.links().len()].into();
        let first = way(&network, &links, (NodeId(0), NodeId(3)), 100, 0);
        links[first[0]].take(0, 10, 100);
        let second = way(&network, &links, (NodeId(0), NodeId(3)), 100, 0);
        assert_ne!(first, second);
        assert_eq!(second.len(), 2);
    }
}
