//! What theory says about clock control, for tests and for people who choose gains.
//!
//! With all frequencies equal to w, a fill is `latency - w * propagation + offset_j - offset_i` up to the fraction of a
//! frame, where the offsets are those of the phases. Each node's frequency is its free one plus its correction. So the
//! offsets solve a linear system in the Laplacian of the network, which has a solution for one w only, because its rows
//! add up to 0. (Lall & Spalink, "Modeling Buffer Occupancy in bittide Systems", arXiv 2410.05432, have the general
//! case; here all nodes have the same law.)

use zbmd_ir::TiVec;
use zbmd_ticks::{ControlLaw, LinkId, Network, NodeId};

/// What a steady state follows from.
#[derive(Clone, Debug)]
pub struct SteadyInput<'a> {
    /// The network, all of whose links are up.
    pub network: &'a Network,
    /// The law of all nodes.
    pub law: ControlLaw,
    /// Frequency of each node without control.
    pub free_frequencies: &'a [f64],
    /// Propagation of each link in nominal ticks.
    pub propagation: &'a [f64],
    /// Logical latency of each link in ticks.
    pub latencies: &'a [i64],
    /// Frames that control aims for in each buffer.
    pub initial_fill: u64,
}

/// Where controlled clocks end.
#[derive(Clone, Debug, PartialEq)]
pub struct SteadyState {
    /// The frequency of all nodes, where 1 is nominal.
    pub frequency: f64,
    /// Fill of each link's buffer, in frames with a fraction.
    pub fills: TiVec<LinkId, f64>,
}

/// The state in which controlled clocks end, up to what comes from whole frames and control periods: about half a frame
/// for each link, times the gain. `None` without control. O(nodes cubed).
///
/// With an integral this is where clocks are after the integral has worked between them, `proportional / integral` ticks.
/// From then on the integral of what is the same everywhere, half a frame for each link, moves all frequencies together:
/// by less than the integral gain times links and ticks.
pub fn steady_state(input: &SteadyInput<'_>) -> Option<SteadyState> {
    let links = input.network.links();
    let node_count = input.network.node_count() as f64;
    let initial_fill = input.initial_fill as f64;
    // Fill above the initial one, had all phases the same offset and the frequency 0.
    let surplus = |link: LinkId| input.latencies[link.index()] as f64 - initial_fill;
    let total_free: f64 = input.free_frequencies.iter().sum();

    let (frequency, gain) = match input.law {
        ControlLaw::Free => return None,
        ControlLaw::Proportional { gain } => {
            let total_surplus: f64 = links.keys().map(surplus).sum();
            let total_propagation: f64 = input.propagation.iter().sum();
            let frequency =
                (total_free + gain * total_surplus) / (node_count + gain * total_propagation);
            (frequency, Some(gain))
        }
        ControlLaw::ProportionalIntegral { .. } => (total_free / node_count, None),
    };

    let needed = input.network.nodes().map(|node| {
        let incoming = input.network.incoming(node).iter();
        let without_offsets: f64 = incoming
            .map(|&link| surplus(link) - frequency * input.propagation[link.index()])
            .sum();
        let correction = frequency - input.free_frequencies[node.index()];
        gain.map_or(0.0, |gain| correction / gain) - without_offsets
    });
    let mut needed: Vec<f64> = needed.collect();
    let mean = needed.iter().sum::<f64>() / node_count;
    needed.iter_mut().for_each(|value| *value -= mean);

    let offsets = solve_laplacian(input.network, &needed)?;
    let fills = links.iter_enumerated().map(|(link, ends)| {
        let rest = initial_fill + surplus(link) - frequency * input.propagation[link.index()];
        rest + offsets[ends.from.index()] - offsets[ends.to.index()]
    });
    Some(SteadyState {
        frequency,
        fills: fills.collect(),
    })
}

/// Resistance between two nodes if every two-way link is a resistor of 1. The integral over time of the squared
/// distances of all frequencies from their mean is `ppm^2 * resistance / (2 * gain)` where one of the two nodes starts
/// so much too fast, the other as much too slow, and the rest right. (Lall, Cascaval, Izzard & Spalink, "Resistance
/// Distance and Control Performance for bittide Synchronization", ECC 2022.) O(nodes cubed).
pub fn resistance(network: &Network, first: NodeId, second: NodeId) -> f64 {
    let mut currents = vec![0.0; network.node_count()];
    currents[first.index()] -= 1.0;
    currents[second.index()] += 1.0;
    let potentials = solve_laplacian(network, &currents);
    potentials.map_or(f64::NAN, |p| p[first.index()] - p[second.index()])
}

/// Numbers x with `sum over incoming links of (x_from - x_to) = needed_to` for every node, and 0 for the first. The
/// needed ones add up to 0. Gaussian elimination; the matrix is positive definite once the first
/// row and column are left out, so that no pivoting is needed.
fn solve_laplacian(network: &Network, needed: &[f64]) -> Option<Vec<f64>> {
    let size = network.node_count() - 1;
    let mut rows = vec![vec![0.0; size + 1]; size];
    for (index, row) in rows.iter_mut().enumerate() {
        let node = NodeId::from(index + 1);
        for &link in network.incoming(node) {
            row[index] += 1.0;
            let from = network.links()[link].from.index();
            if from > 0 {
                row[from - 1] -= 1.0;
            }
        }
        row[size] = -needed[index + 1];
    }

    for pivot in 0..size {
        let pivot_row = rows[pivot].clone();
        if pivot_row[pivot] <= 0.0 {
            return None;
        }
        for row in rows.iter_mut().skip(pivot + 1) {
            let factor = row[pivot] / pivot_row[pivot];
            for (value, above) in row.iter_mut().zip(&pivot_row).skip(pivot) {
                *value -= factor * above;
            }
        }
    }
    let mut solution = vec![0.0; size + 1];
    for index in (0..size).rev() {
        let known: f64 = (index + 1..size)
            .map(|c| rows[index][c] * solution[c + 1])
            .sum();
        solution[index + 1] = (rows[index][size] - known) / rows[index][index];
    }
    Some(solution)
}

#[cfg(test)]
mod tests {
    use zbmd_ticks::Topology;

    use super::*;

    #[test]
    fn resistances_are_those_of_resistors() {
        let cases = [
            (Topology::Line { nodes: 5 }, 0, 4, 4.0),
            (Topology::Complete { nodes: 3 }, 0, 1, 2.0 / 3.0),
            (Topology::Complete { nodes: 8 }, 3, 7, 2.0 / 8.0),
            // Two ways of four resistors each.
            (Topology::Ring { nodes: 8 }, 0, 4, 2.0),
            // The cube's space diagonal: five sixths.
            (Topology::Hypercube { dimensions: 3 }, 0, 7, 5.0 / 6.0),
        ];
        for (topology, first, second, expected) in cases {
            let network = topology.network().expect("a legal shape");
            let found = resistance(&network, NodeId(first), NodeId(second));
            assert!((found - expected).abs() < 1e-12, "{topology:?}: {found}");
        }
    }
}
