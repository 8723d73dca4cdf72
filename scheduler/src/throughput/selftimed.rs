//! For tests: random graphs, and an oracle that runs a bounded graph firing by firing until a state comes back.

use std::collections::BTreeMap;

use zbmd_ir::ActorId;
use zbmd_ir::math::gcd_u64;

use super::phases::TokenSums;
use super::{Period, TimedSdf};

/// What a link holds, firing by firing.
struct LinkState {
    from: usize,
    produce: TokenSums,
    to: usize,
    consume: TokenSums,
    tokens: i64,
}

fn links(sdf: &TimedSdf, capacities: &[u64]) -> Vec<LinkState> {
    let mut links = Vec::new();
    for (a, actor) in sdf.actors.iter_enumerated() {
        if let Some(at_once) = actor.at_once {
            links.push(LinkState {
                from: a.index(),
                produce: TokenSums::constant(1),
                to: a.index(),
                consume: TokenSums::constant(1),
                tokens: at_once as i64,
            });
        }
    }
    for (id, ch) in sdf.channels.iter_enumerated() {
        for (index, r) in ch.readers.iter().enumerate() {
            let (from, to) = (ch.from.index(), r.to.index());
            let produce = sdf.phases.written_sums(sdf, id);
            let consume = sdf.phases.read_sums(sdf, id, index);
            if from != to {
                links.push(LinkState {
                    from: to,
                    produce: consume.clone(),
                    to: from,
                    consume: produce.clone(),
                    tokens: capacities[id.index()] as i64 - (r.free + r.overlap) as i64,
                });
            }
            links.push(LinkState {
                from,
                produce,
                to,
                consume,
                tokens: r.free as i64,
            });
        }
    }
    links
}

/// A firing under way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Firing {
    end: u64,
    actor: usize,
    number: i64,
}

/// What comes back once a run repeats itself: tokens, phases, and firings under way by the time they have left.
type State = (Vec<i64>, Vec<i64>, Vec<(u64, usize)>);

/// The period of the self-timed run, by simulation; `None` for a deadlock.
///
/// All times must be positive, every actor bounded, the graph connected.
pub(crate) fn period(sdf: &TimedSdf, capacities: &[u64]) -> Option<Period> {
    let q = sdf.repetition().expect("consistent");
    let ids = sdf.actors.keys();
    let times: Vec<Vec<u64>> = ids.map(|id| sdf.phases.times_of(sdf, id)).collect();
    let mut links = links(sdf, capacities);
    let mut running: Vec<Firing> = Vec::new();
    let mut fired = vec![0i64; times.len()];
    let mut seen: BTreeMap<State, (u64, i64)> = BTreeMap::new();
    let mut now = 0u64;
    loop {
        for a in 0..q.len() {
            let is_ready = |link: &LinkState, number| link.tokens >= link.consume.of(number);
            while links.iter().all(|l| l.to != a || is_ready(l, fired[a])) {
                for link in links.iter_mut().filter(|link| link.to == a) {
                    link.tokens -= link.consume.of(fired[a]);
                }
                let phase = fired[a] as usize % times[a].len();
                running.push(Firing {
                    end: now + times[a][phase],
                    actor: a,
                    number: fired[a],
                });
                fired[a] += 1;
            }
        }
        running.sort_unstable();
        let phases = fired.iter().zip(&times);
        let state = (
            links.iter().map(|link| link.tokens).collect(),
            phases.map(|(n, times)| n % times.len() as i64).collect(),
            running.iter().map(|f| (f.end - now, f.actor)).collect(),
        );
        if let Some(&(then, before)) = seen.get(&state) {
            let firings = u128::from(q.raw[0]) * times[0].len() as u128;
            let time = u128::from(now - then) * firings;
            return Period::new(time, (fired[0] - before) as u128);
        }
        seen.insert(state, (now, fired[0]));
        now = running.first()?.end;
        while let Some(ended) = running.first().filter(|f| f.end == now).cloned() {
            running.remove(0);
            for link in links.iter_mut().filter(|link| link.from == ended.actor) {
                link.tokens += link.produce.of(ended.number);
            }
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

/// A random graph with phases: the rates of a plain one, split up at random.
pub(crate) fn random_with_phases(seed: u64) -> (TimedSdf, Vec<u64>) {
    let (mut graph, room) = random(seed);
    let mut random = TestRandom(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xc5df);
    let phases: Vec<usize> = graph
        .actors
        .keys()
        .map(|_| 1 + random.below(3) as usize)
        .collect();
    for (id, &phases) in graph.actors.keys().collect::<Vec<_>>().iter().zip(&phases) {
        graph.set_phase_times(*id, (0..phases).map(|_| 1 + random.below(9)).collect());
    }
    let mut split = |tokens: u64, phases: usize| {
        let mut rates = vec![0; phases];
        (0..tokens).for_each(|_| rates[random.below(phases as u64) as usize] += 1);
        rates
    };
    for id in graph.channels.keys().collect::<Vec<_>>() {
        let channel = graph.channels[id].clone();
        let rates = split(channel.produce, phases[channel.from.index()]);
        graph.set_written_phases(id, rates).expect("a split");
        let reader = channel.readers[0];
        let rates = split(reader.consume, phases[reader.to.index()]);
        graph.set_read_phases(id, 0, rates).expect("a split");
    }
    (graph, room)
}
