//! How long after its release a block's output is there, at most, if slots take no longer than planned.
//!
//! Sources with a sample rate are *released* by the clock: block k has all its tokens at `R + k * P`, where P is the
//! tokens of a block by the sample rate. Lanes replay their slots in order, each as soon as its tokens are there and its
//! places are free. So no slot starts later than in a strictly periodic replay that keeps the plan's starts within periods
//! of P (starts are monotone in what they wait for: Baccelli et al., *Synchronization and Linearity*, 1992). Such a replay
//! is possible wherever P is not below the plan's own period: the starts satisfy all waits at that period, and a longer one
//! only moves apart what waits for an earlier period.
//!
//! In it, a slot of stage s that starts at t does so for block k at `B + (k + s) * P + t`, where period 0 begins at B. With
//! `B = R` no source's slot comes before its release, and nothing begins before a run whose first block is released as it
//! starts. (From an earlier B on the same slots might come earlier, but the first blocks would not keep to that.) The sink's
//! last slot, of stage s and with its end at e, has put out block k at `R + (k + s) * P + e`: `s * P + e` after its release.
//! Sources are taken to be released together, whether the sink depends on them or not, as lanes wait for all of theirs.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{Action, ActorId, Graph, Plan, Role, Slot, Value, walk};

/// Parameter of a sink: nanoseconds after its release within which a block's output has to be there.
pub const DEADLINE: &str = "deadline_ns";

/// Parameter of a sink: what becomes of a block that is late, as [`LatePolicy`] is written.
pub const ON_MISS: &str = "on_miss";

/// Parameter of a sink: the mode that a run is asked to go over to when a block is late, where [`ON_MISS`] is
/// [`LatePolicy::Mode`].
pub const ON_MISS_MODE: &str = "on_miss_mode";

/// Parameter of sources and sinks: tokens per second.
pub const SAMPLE_RATE: &str = "sample_rate";

/// What a sink is given in the place of a block whose last token comes after its deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LatePolicy {
    /// The block, as late as it is.
    #[default]
    Wait,
    /// Nothing.
    Drop,
    /// The last block that was in time again; zeros before the first one.
    Hold,
    /// The block, as late as it is, and the run is asked to go over to the mode of [`ON_MISS_MODE`].
    Mode,
}

impl LatePolicy {
    /// All policies.
    pub const ALL: [Self; 4] = [Self::Wait, Self::Drop, Self::Hold, Self::Mode];

    /// As models and command lines write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Drop => "drop",
            Self::Hold => "hold",
            Self::Mode => "mode",
        }
    }

    /// The policy of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// The response of a sink, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseBound {
    /// Time from the release of a block to that of the next, rounded down.
    pub release_ns: u64,
    /// Longest time from a block's release to its output; `None` where the plan's period is longer than that of the
    /// releases, so that each block waits longer than the one before.
    pub response_ns: Option<u64>,
}

/// The longest response of a sink in a plan; `None` where it has no sample rate, or no source leads to it. O(slots +
/// channels).
pub fn response_bound(graph: &Graph, plan: &Plan, sink: ActorId) -> Option<ResponseBound> {
    let sample_rate = graph.actors.get(sink)?.sample_rate()?;
    let release_ns = 1e9 * block_tokens(graph, plan, sink)? as f64 / sample_rate;

    let is_source = |actor: &ActorId| graph.actors[*actor].role == Role::Source;
    if !graph.upstream_of(sink).iter().any(is_source) {
        return None;
    }
    // A stage later is a whole release later: rounded up, it is never too early.
    let stage_ns = release_ns.ceil() as u64;
    let mut response_ns: u64 = 0;
    let lanes = plan.calendars.iter().flat_map(|calendar| &calendar.lanes);
    for lane in lanes {
        walk::visit_slots(&lane.entries, |visit| {
            if fired_actor(visit.slot) == Some(sink) {
                let stage_start_ns = u64::from(visit.slot.stage).saturating_mul(stage_ns);
                response_ns = response_ns.max(stage_start_ns.saturating_add(visit.last_end_ns));
            }
        });
    }

    let release_ns = release_ns.floor() as u64;
    Some(ResponseBound {
        release_ns,
        response_ns: (plan.period_ns <= release_ns).then_some(response_ns),
    })
}

/// Time from one block of a plan to the next, in nanoseconds: the shortest that the sample rate of a source or sink says; `None` if
/// none has one. O(actors · channels).
pub fn block_release_ns(graph: &Graph, plan: &Plan) -> Option<f64> {
    let streams = graph.sources().chain(graph.sinks());
    let releases = streams.filter_map(|(id, actor)| {
        let tokens = block_tokens(graph, plan, id)?;
        Some(1e9 * tokens as f64 / actor.sample_rate()?)
    });
    releases.min_by(f64::total_cmp)
}

/// Nanoseconds within which a sink's output has to be there after its release, if it has a deadline.
pub fn deadline_ns(graph: &Graph, sink: ActorId) -> Option<u64> {
    match graph.actors.get(sink)?.params.get(DEADLINE)? {
        Value::Int(limit_ns) => u64::try_from(*limit_ns).ok(),
        _ => None,
    }
}

/// What a sink is given in the place of late blocks, by the model.
///
/// # Errors
/// Its parameter, if that is not the name of a policy.
pub fn late_policy(graph: &Graph, sink: ActorId) -> Result<LatePolicy, String> {
    let actor = graph.actors.get(sink);
    let Some(value) = actor.and_then(|actor| actor.params.get(ON_MISS)) else {
        return Ok(LatePolicy::default());
    };
    let name = value.as_str();
    name.and_then(LatePolicy::from_name)
        .ok_or_else(|| name.unwrap_or("not a word").to_owned())
}

/// The mode that a sink's late blocks ask for, by the model.
pub fn late_mode(graph: &Graph, sink: ActorId) -> Option<&str> {
    graph.actors.get(sink)?.params.get(ON_MISS_MODE)?.as_str()
}

fn fired_actor(slot: &Slot) -> Option<ActorId> {
    match slot.action {
        Action::Fire { actor, .. } => Some(actor),
        _ => None,
    }
}

/// Tokens that a source gives or a sink takes in a block.
fn block_tokens(graph: &Graph, plan: &Plan, end: ActorId) -> Option<u64> {
    let reads = |channel: &crate::Channel| {
        let mut readers = channel.readers.iter();
        channel.from.actor == end || readers.any(|reader| reader.to.actor == end)
    };
    let (channel, _) = graph
        .channels
        .iter_enumerated()
        .find(|(_, channel)| reads(channel))?;
    let buffer = plan
        .buffers
        .iter()
        .find(|buffer| buffer.channel == channel)?;
    Some(buffer.block_tokens)
}

impl Graph {
    /// The actors that an actor's tokens come from, over any number of channels. O(actors + readers).
    pub fn upstream_of(&self, actor: ActorId) -> BTreeSet<ActorId> {
        let mut writers_of = vec![Vec::new(); self.actors.len()];
        for channel in &self.channels {
            for reader in &channel.readers {
                writers_of[reader.to.actor.index()].push(channel.from.actor);
            }
        }

        let mut found = BTreeSet::new();
        let mut waiting = vec![actor];
        while let Some(actor) = waiting.pop() {
            for &writer in &writers_of[actor.index()] {
                if found.insert(writer) {
                    waiting.push(writer);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlanId;
    use crate::testing::programs;

    /// A program whose sink has a sample rate, so that a block is released every `release_ns`.
    fn timed(mut program: crate::Program, release_ns: u64) -> (crate::Program, ActorId) {
        let (sink, _) = program.graph.sinks().next().expect("a sink");
        let tokens = block_tokens(&program.graph, &program.plans[PlanId(0)], sink).expect("tokens");
        let sample_rate = tokens as f64 * 1e9 / release_ns as f64;
        let params = &mut program.graph.actors[sink].params;
        params.insert(SAMPLE_RATE.to_owned(), Value::Float(sample_rate));
        (program, sink)
    }

    #[test]
    fn blocks_come_as_the_shortest_sample_rate_says() {
        let (mut program, sink) = timed(programs::pipeline(), 5000);
        let release_ns =
            |program: &crate::Program| block_release_ns(&program.graph, &program.plans[PlanId(0)]);
        let found = release_ns(&program).expect("a rate");
        assert!((found - 5000.0).abs() < 1e-6, "{found}");

        let (source, _) = program.graph.sources().next().expect("a source");
        let tokens = block_tokens(&program.graph, &program.plans[PlanId(0)], source);
        let rate = tokens.expect("tokens") as f64 * 1e9 / 4000.0;
        let params = &mut program.graph.actors[source].params;
        params.insert(SAMPLE_RATE.to_owned(), Value::Float(rate));
        let found = release_ns(&program).expect("a rate");
        assert!((found - 4000.0).abs() < 1e-6, "{found}");

        for end in [source, sink] {
            program.graph.actors[end].params.remove(SAMPLE_RATE);
        }
        assert_eq!(release_ns(&program), None);
    }

    #[test]
    fn stages_are_as_long_as_the_releases_are_apart() {
        let bound = |release_ns: u64| {
            let (program, sink) = timed(programs::pipeline(), release_ns);
            let plan = &program.plans[PlanId(0)];
            let bound = response_bound(&program.graph, plan, sink).expect("a rate");
            (plan.period_ns, plan.stages, bound)
        };
        let (period_ns, stages, at_period) = bound(programs::pipeline().plans[PlanId(0)].period_ns);
        assert!(stages > 1, "a pipeline");
        let at_period_ns = at_period.response_ns.expect("fast enough");
        let twice = bound(2 * period_ns).2.response_ns.expect("fast enough");
        assert_eq!(twice - at_period_ns, u64::from(stages - 1) * period_ns);
    }

    #[test]
    fn a_plan_slower_than_its_releases_has_no_bound() {
        let period_ns = programs::pipeline().plans[PlanId(0)].period_ns;
        let (program, sink) = timed(programs::pipeline(), period_ns - 1);
        let bound = response_bound(&program.graph, &program.plans[PlanId(0)], sink);
        let expected = ResponseBound {
            release_ns: period_ns - 1,
            response_ns: None,
        };
        assert_eq!(bound, Some(expected));
    }

    #[test]
    fn without_a_sample_rate_nothing_is_released() {
        let program = programs::pipeline();
        let (sink, _) = program.graph.sinks().next().expect("a sink");
        assert_eq!(
            response_bound(&program.graph, &program.plans[PlanId(0)], sink),
            None
        );
    }

    #[test]
    fn policies_are_read_as_they_are_written_and_nothing_else_is_one() {
        let mut program = programs::pipeline();
        let (sink, _) = program.graph.sinks().next().expect("a sink");
        assert_eq!(late_policy(&program.graph, sink), Ok(LatePolicy::Wait));

        let mut read = |value: Value| {
            let params = &mut program.graph.actors[sink].params;
            params.insert(ON_MISS.to_owned(), value);
            late_policy(&program.graph, sink)
        };
        for policy in LatePolicy::ALL {
            assert_eq!(read(Value::Str(policy.name().to_owned())), Ok(policy));
        }
        let unknown = Value::Str("skip".to_owned());
        assert_eq!(read(unknown), Err("skip".to_owned()));
        assert_eq!(read(Value::Int(1)), Err("not a word".to_owned()));
    }
}
