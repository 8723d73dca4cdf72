//! Modes: several programs over the same streams, one of which runs at a time. Knows no run.
//!
//! A mode is a scenario with calendars of its own, as in scenario-aware dataflow (Theelen et al., MEMOCODE 2006; FSM-SADF:
//! Stuijk et al., DSD 2011). All modes are for one machine and have the same sources and sinks, in the same order; each
//! has its own graph, rates, plans and contingencies. A run goes over from one to another at an iteration border, where
//! [`carried_channels`] says which tokens on channels go with it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Channel, ChannelId, DType, Graph, Program, TiVec, TokenType};

/// Several programs of which a run may go over from one to another. Trust them only as
/// [`crate::verify::VerifiedModes`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Modes {
    /// The modes; a run begins with the first.
    pub list: Vec<Mode>,
    /// From which mode to which other a run may go, by index.
    pub changes: Vec<(u32, u32)>,
    /// How tokens of the graphs decide about the mode, if they do.
    pub decision: Option<ModeDecision>,
}

/// How tokens decide about the mode: by what lies on a channel at some borders, which is the same on all devices and after
/// all losses, as a state is. A change that is not allowed, or to a number that stands for no mode, is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeDecision {
    /// The actor that decides, by name. In a mode without it nothing is decided.
    pub actor: String,
    /// Its output. The last token that it wrote is a number: u8, i32 or i64.
    pub port: u32,
    /// The mode that each number stands for, by index.
    pub modes: Vec<u32>,
    /// Tokens decide where so many iterations of the run were done, or a multiple of that.
    pub every: u64,
}

impl ModeDecision {
    /// The channel with the token that decides in a graph, if it has one.
    pub fn channel_in(&self, graph: &Graph) -> Option<ChannelId> {
        let mut channels = graph.channels.iter_enumerated();
        let is_wanted = |channel: &Channel| {
            let writer = &graph.actors[channel.from.actor];
            writer.name == self.actor && channel.from.port == self.port
        };
        let found = channels.find(|(_, channel)| is_wanted(channel));
        found.map(|(id, _)| id)
    }

    /// The mode that a state asks for, by the bytes of the tokens on its channel.
    pub fn wanted_mode(&self, graph: &Graph, tokens: &TiVec<ChannelId, Vec<u8>>) -> Option<u32> {
        let channel = self.channel_in(graph)?;
        let number = match graph.channels[channel].token.dtype {
            DType::U8 => i64::from(*tokens[channel].last()?),
            DType::I32 => i64::from(i32::from_ne_bytes(*tokens[channel].last_chunk()?)),
            DType::I64 => i64::from_ne_bytes(*tokens[channel].last_chunk()?),
            _ => return None,
        };
        self.modes.get(usize::try_from(number).ok()?).copied()
    }
}

/// One mode.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mode {
    /// What it is called.
    pub name: String,
    /// What is computed in it, and how. Blobs may be the same memory as those of other modes.
    pub program: Program,
}

/// The name of the mode of a model that computes so many samples in an iteration.
pub fn batch_mode_name(samples: u32) -> String {
    format!("batch-{samples}")
}

/// Samples of an iteration in a mode with a name of [`batch_mode_name`]; `None` for any other.
pub fn batch_mode_samples(name: &str) -> Option<u32> {
    let samples = name.strip_prefix("batch-")?.parse().ok()?;
    // Not `batch-08`, nor `batch-0`.
    (samples > 0 && batch_mode_name(samples) == name).then_some(samples)
}

/// The mode that a [`crate::State`] is of, and what of other modes goes along with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PresentMode {
    /// Its place among [`Modes::list`]; 0 where there are no modes.
    pub mode: u32,
    /// Values that were set of live parameters which this mode does not have, by name: they hold again in a mode that does.
    pub waiting: BTreeMap<String, Vec<f64>>,
    /// Whether tokens have decided about the mode at the state's border. What lies on the channel after a decision belongs to
    /// the next one, so a border must not be decided about twice, and none may be left out.
    pub is_decided: bool,
}

/// What names a channel's tokens in all graphs: its writer, the writer's output, and how many of which type there are.
type StateName<'g> = (&'g str, u32, u64, &'g TokenType);

fn state_name(graph: &Graph, channel: ChannelId) -> Option<StateName<'_>> {
    let declared = &graph.channels[channel];
    let writer = graph.actors[declared.from.actor].name.as_str();
    let history = declared.history();
    (history > 0).then_some((writer, declared.from.port, history, &declared.token))
}

/// For each channel of `to`, the channel of `from` whose tokens it begins with when a run goes over; `None` where it begins
/// with its initial tokens. Both graphs are verified. O(n log n) in channels.
///
/// Two channels are one state if their writers have the same name, they leave it at the same output, and the same number of
/// tokens of the same type lies on them.
pub fn carried_channels(from: &Graph, to: &Graph) -> TiVec<ChannelId, Option<ChannelId>> {
    let mut by_writer: BTreeMap<(&str, u32), (StateName<'_>, ChannelId)> = BTreeMap::new();
    for id in from.channels.keys() {
        if let Some(name) = state_name(from, id) {
            by_writer.insert((name.0, name.1), (name, id));
        }
    }
    let carried = to.channels.keys().map(|id| {
        let wanted = state_name(to, id)?;
        let (found, channel) = by_writer.get(&(wanted.0, wanted.1))?;
        (*found == wanted).then_some(*channel)
    });
    carried.collect()
}

/// A state of `to` that goes on from one of `from` where [`carried_channels`] says so.
pub fn carried_tokens(
    from: &Graph,
    tokens: &TiVec<ChannelId, Vec<u8>>,
    to: &Graph,
) -> TiVec<ChannelId, Vec<u8>> {
    let carried = carried_channels(from, to);
    let declared = to.channels.iter().zip(&carried);
    declared
        .map(|(channel, found)| match found {
            Some(found) => tokens[*found].clone(),
            None => channel.initial.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::programs;
    use crate::{ActorId, State};

    #[test]
    fn tokens_go_over_to_channels_of_the_same_name_type_and_number() {
        let from = programs::window().graph;
        let mut tokens = State::initial(&from).channels;
        for channel in &mut tokens {
            channel.iter_mut().for_each(|byte| *byte ^= 0x5a);
        }
        let with_tokens: Vec<ChannelId> = from
            .channels
            .iter_enumerated()
            .filter(|(_, channel)| channel.history() > 0)
            .map(|(id, _)| id)
            .collect();
        assert!(!with_tokens.is_empty());
        assert_eq!(carried_tokens(&from, &tokens, &from), tokens);

        for &id in &with_tokens {
            let initial = from.channels[id].initial.clone();
            let mut renamed = from.clone();
            let writer: ActorId = renamed.channels[id].from.actor;
            renamed.actors[writer].name = "other".to_owned();
            let mut longer = from.clone();
            longer.channels[id].readers[0].delay += 1;
            for to in [renamed, longer] {
                let carried = carried_tokens(&from, &tokens, &to);
                assert_eq!(carried[id], initial, "what is new begins as declared");
            }
        }
    }
}
