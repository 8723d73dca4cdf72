//! A period below which no plan can go.
//!
//! Every placement divides the actors among nodes. Channels between nodes cost link time and latency, and below some
//! period a channel cannot bear that ([`Crossing`]): its two actors must be on one node then. So for a given period
//! actors come in groups that no plan can divide, and if some group has more work than the period has ticks, or the
//! groups do not fit on the nodes, there is no plan. Longer periods have smaller groups, which makes the search by halves
//! right.

use petgraph::unionfind::UnionFind;
use zbmd_ir::{ActorId, ChannelId, TiVec};
use zbmd_scheduler::throughput::{TimedReader, TimedSdf, analyse};

use crate::TickScheduleError;
use crate::place::circles;
use crate::problem::Problem;

/// Most channels of a circle for which it is computed what it costs to divide it there.
const MAX_CIRCLE_CHANNELS: usize = 256;

/// A writer and a reader that are on one node, or else the period is not below some number of ticks.
#[derive(Clone, Copy, Debug)]
struct Crossing {
    writer: ActorId,
    reader: ActorId,
    least_period: u64,
}

/// The largest of these bounds, in ticks: the cycles of the graph with all communication free, the work of one actor, and
/// the work of groups that are not worth dividing, on as many nodes as there are.
pub(crate) fn period_bound(problem: &Problem<'_>) -> Result<u64, TickScheduleError> {
    let sdf = TimedSdf::of(problem.graph, &problem.durations, Some(1));
    let by_cycles = whole_period(&sdf)?;
    let works = problem.graph.actors.keys().map(|actor| problem.work(actor));
    let by_actor = works.clone().max().unwrap_or(0);
    let least = by_cycles.max(by_actor).max(1);

    let mut crossings = link_crossings(problem);
    crossings.extend(circle_crossings(problem, least)?);
    // With all on one node there is nothing to send.
    let mut enough = works.fold(0, u64::saturating_add).max(least);
    let mut failed = least - 1;
    while enough - failed > 1 {
        let middle = failed + (enough - failed) / 2;
        if is_possible(problem, &crossings, middle) {
            enough = middle;
        } else {
            failed = middle;
        }
    }
    Ok(enough)
}

/// The period of a graph's slowest cycle, in whole ticks.
fn whole_period(sdf: &TimedSdf) -> Result<u64, TickScheduleError> {
    let period = analyse(sdf)?.period;
    Ok(period.num().div_ceil(period.den()) as u64)
}

/// What each channel asks of links: all frames of a message go over one link, and those of all messages of an iteration
/// over the links of the writer's node.
fn link_crossings(problem: &Problem<'_>) -> Vec<Crossing> {
    let degrees = problem
        .nodes
        .iter()
        .map(|&node| problem.network.outgoing(node).len() as u64);
    let degree = degrees.max().unwrap_or(0);
    let crossings = problem.streams.iter().flat_map(|stream| {
        let all_frames = stream.frames.saturating_mul(problem.firings[stream.writer]);
        let least_period = match degree {
            0 => u64::MAX,
            _ => stream.frames.max(all_frames.div_ceil(degree)),
        };
        stream.readers.iter().map(move |&reader| Crossing {
            writer: stream.writer,
            reader,
            least_period,
        })
    });
    crossings.collect()
}

/// What channels of circles ask: whoever divides a circle between two nodes has the latency of a link in it twice, on
/// the way there and on the way back.
fn circle_crossings(problem: &Problem<'_>, least: u64) -> Result<Vec<Crossing>, TickScheduleError> {
    let mut crossings = Vec::new();
    for circle in circles(problem) {
        let works = circle.iter().map(|&actor| problem.work(actor));
        let work = works.fold(0, u64::saturating_add);
        if circle.len() < 2 || work <= least {
            continue;
        }
        let mut index_of: TiVec<ActorId, Option<usize>> =
            vec![None; problem.graph.actors.len()].into();
        for (index, &actor) in circle.iter().enumerate() {
            index_of[actor] = Some(index);
        }
        let inner = InnerGraph::new(problem, &circle, &index_of);
        if inner.channels.len() > MAX_CIRCLE_CHANNELS {
            continue;
        }
        for crossing in &inner.channels {
            let least_period = inner.divided_period(problem, *crossing)?;
            crossings.push(Crossing {
                writer: crossing.writer,
                reader: crossing.reader,
                least_period,
            });
        }
    }
    Ok(crossings)
}

/// A reader of a circle, and its writer there.
#[derive(Clone, Copy, Debug)]
struct InnerChannel {
    channel: ChannelId,
    writer: ActorId,
    reader: ActorId,
    /// In the circle's own graph.
    from: ActorId,
    produce: u64,
    ends: TimedReader,
}

/// The actors of a circle and the channels among them.
struct InnerGraph {
    sdf: TimedSdf,
    channels: Vec<InnerChannel>,
}

impl InnerGraph {
    fn new(
        problem: &Problem<'_>,
        circle: &[ActorId],
        index_of: &TiVec<ActorId, Option<usize>>,
    ) -> Self {
        let whole = TimedSdf::of(problem.graph, &problem.durations, Some(1));
        let mut sdf = TimedSdf::default();
        for &actor in circle {
            sdf.actors.push(whole.actors[actor].clone());
        }

        let mut channels = Vec::new();
        for (channel, timed) in whole.channels.iter_enumerated() {
            let Some(from) = index_of[timed.from] else {
                continue;
            };
            let mut timed = timed.clone();
            let writer = timed.from;
            timed.from = ActorId::from(from);
            timed.readers.retain(|reader| index_of[reader.to].is_some());
            for ends in &mut timed.readers {
                let reader = ends.to;
                ends.to = ActorId::from(index_of[reader].unwrap_or(0));
                if reader != writer {
                    channels.push(InnerChannel {
                        channel,
                        writer,
                        reader,
                        from: timed.from,
                        produce: timed.produce,
                        ends: *ends,
                    });
                }
            }
            if !timed.readers.is_empty() {
                sdf.channels.push(timed);
            }
        }
        Self { sdf, channels }
    }

    /// The period of the circle if the writer and the reader of a channel are on two nodes. Tokens of a firing take a
    /// tick for each of their frames and the latency of a link; those of the channel on which the cycle comes back, one
    /// frame and one latency at least.
    fn divided_period(
        &self,
        problem: &Problem<'_>,
        crossing: InnerChannel,
    ) -> Result<u64, TickScheduleError> {
        let latency = problem.machine.latency_ticks;
        let there = problem.streams[crossing.channel].frames + latency;
        let back = 1 + latency;
        let mut divided = self.sdf.clone();
        let link = divided.add_actor("link", there + back);
        divided.add_channel(crossing.from, crossing.produce, link, crossing.produce, 0);
        let arrived = divided.add_channel(
            link,
            crossing.produce,
            crossing.ends.to,
            crossing.ends.consume,
            0,
        );
        divided.channels[arrived].readers = vec![crossing.ends];
        whole_period(&divided)
    }
}

/// Whether the groups that cannot be divided at a period have their place on the nodes.
fn is_possible(problem: &Problem<'_>, crossings: &[Crossing], period: u64) -> bool {
    let mut groups = UnionFind::<usize>::new(problem.graph.actors.len());
    for crossing in crossings {
        if crossing.least_period > period {
            groups.union(crossing.writer.index(), crossing.reader.index());
        }
    }
    let mut works = vec![0_u64; problem.graph.actors.len()];
    for actor in problem.graph.actors.keys() {
        let group = groups.find(actor.index());
        works[group] = works[group].saturating_add(problem.work(actor));
    }

    works.sort_unstable_by(|a, b| b.cmp(a));
    let node_count = problem.nodes.len();
    let total = works.iter().copied().fold(0, u64::saturating_add);
    let fits_alone = works.first().is_none_or(|&largest| largest <= period);
    // Of the largest groups, one more than there are nodes, two are on one node.
    let fits_in_pairs = match works.get(node_count) {
        Some(&next) => works[node_count - 1].saturating_add(next) <= period,
        None => true,
    };
    fits_alone && fits_in_pairs && total.div_ceil(node_count as u64) <= period
}
