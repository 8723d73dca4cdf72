//! Oracle for tests: runs a bounded graph firing by firing until a state comes back.

use std::collections::BTreeMap;

use super::{Period, TimedSdf};

/// What a link holds, firing by firing: `(from, produce, to, consume, tokens)`.
type Flow = (usize, u64, usize, u64, i64);

fn flows(sdf: &TimedSdf, capacities: &[u64]) -> Vec<Flow> {
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
    let mut seen: BTreeMap<(Vec<i64>, Vec<(u64, usize)>), (u64, u64)> = BTreeMap::new();
    let (mut now, mut fired) = (0u64, 0u64);
    loop {
        for a in 0..q.len() {
            while flows.iter().all(|f| f.2 != a || f.4 >= f.3 as i64) {
                flows.iter_mut().filter(|f| f.2 == a).for_each(|f| f.4 -= f.3 as i64);
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
            flows.iter_mut().filter(|f| f.0 == a).for_each(|f| f.4 += f.1 as i64);
        }
    }
}
