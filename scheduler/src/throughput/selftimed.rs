//! For tests: random graphs, and an oracle that runs a bounded graph firing by firing until a state comes back.

use std::collections::BTreeMap;

use zbmd_ir::ActorId;
use zbmd_ir::math::gcd_u64;

use super::{Period, TimedSdf};

/// What a link holds, firing by firing: `(from, produce, to, consume, tokens)`.
type LinkState = (usize, u64, usize, u64, i64);

fn flows(sdf: &TimedSdf, capacities: &[u64]) -> Vec<LinkState> {
    let mut flows = Vec::new();
    for (a, actor) in sdf.actors.iter_enumerated() {
        if let Some(k) = actor.at_once {
            flows.push((a.index(), 1, a.index(), 1, k as i64));
        }
    }
    for (id, ch) in sdf.channels.iter_enumerated() {
        for r in &ch.readers {
            let (from, to) = (ch.from.index(), r.to.index());
            flows.push((from, ch.produce, to, r.consume, r.free as i64));
            if from != to {
                let space = capacities[id.index()] as i64 - (r.free + r.overlap) as i64;
                flows.push((to, r.consume, from, ch.produce, space));
            }
        }
    }
    flows
}

/// The period of the self-timed run, by simulation; `None` for a deadlock.
///
/// All times must be positive, every actor bounded, the graph connected.
pub(crate) fn period(sdf: &TimedSdf, capacities: &[u64]) -> Option<Period> {
    let q = sdf.repetition().expect("consistent");
    let mut flows = flows(sdf, capacities);
    let mut running: Vec<(u64, usize)> = Vec::new();
    type State = (Vec<i64>, Vec<(u64, usize)>);
    let mut seen: BTreeMap<State, (u64, u64)> = BTreeMap::new();
    let (mut now, mut fired) = (0u64, 0u64);
    loop {
        for a in 0..q.len() {
            while flows.iter().all(|f| f.2 != a || f.4 >= f.3 as i64) {
                flows
                    .iter_mut()
                    .filter(|f| f.2 == a)
                    .for_each(|f| f.4 -= f.3 as i64);
                running.push((now + sdf.actors.raw[a].time, a));
                fired += u64::from(a == 0);
            }
        }
        running.sort_unstable();
        let left: Vec<(u64, usize)> = running.iter().map(|&(t, a)| (t - now, a)).collect();
        let state = (flows.iter().map(|f| f.4).collect(), left);
        if let Some(&(then, before)) = seen.get(&state) {
            let time = u128::from(now - then) * u128::from(q.raw[0]);
            return Period::new(time, u128::from(fired - before));
        }
        seen.insert(state, (now, fired));
        now = running.first()?.0;
        while let Some(&(_, a)) = running.first().filter(|r| r.0 == now) {
            running.remove(0);
            flows
                .iter_mut()
                .filter(|f| f.0 == a)
                .for_each(|f| f.4 += f.1 as i64);
        }
    }
}

struct TestRandom(u64);

impl TestRandom {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A connected graph with positive times, and capacities that are often just enough.
pub(crate) fn random(seed: u64) -> (TimedSdf, Vec<u64>) {
    let mut random = TestRandom(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let actors = 2 + random.below(4) as u32;
    let mut graph = TimedSdf::default();
    let mut firings = Vec::new();
    for i in 0..actors {
        let id = graph.add_actor(&format!("n{i}"), 1 + random.below(9));
        graph.actors[id].at_once = [None, Some(1), Some(1), Some(2)][random.below(4) as usize];
        firings.push([1, 2, 3, 4, 6][random.below(5) as usize]);
    }
    for i in 1..actors + random.below(3) as u32 {
        let (to, from) = if i < actors {
            (i, random.below(i.into()) as u32)
        } else {
            (
                random.below(actors.into()) as u32,
                random.below(actors.into()) as u32,
            )
        };
        let g = gcd_u64(firings[from as usize], firings[to as usize]);
        let (produce, consume) = (firings[to as usize] / g, firings[from as usize] / g);
        let k = 1 + random.below(2);
        let initial = if i < actors {
            random.below(3)
        } else {
            random.below(9)
        };
        let ch = graph.add_channel(
            ActorId(from),
            produce * k,
            ActorId(to),
            consume * k,
            initial,
        );
        graph.channels[ch].readers[0].overlap = random.below(4) / 3;
    }
    let room = graph
        .channels
        .keys()
        .map(|c| graph.min_capacity(c) + random.below(4));
    let room = room.collect();
    (graph, room)
}
