//! A state of one graph as another graph has it, and the changes of mode that follow: for a recording that is run on a model
//! that was changed.

use std::collections::BTreeSet;

use zbmd_executor::ScheduledMode;
use zbmd_ir::verify::VerifiedModes;
use zbmd_ir::verify::graph::repetition;
use zbmd_ir::{
    ActorId, ChangePosition, Channel, Graph, LiveParameter, ParameterChange, PositionOrder,
    PresentMode, State, insert_change, live_parameters,
};

use crate::flight::ReplayStart;

/// A state that was carried over.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Carried {
    pub(super) state: State,
    /// Writers of channels whose initial tokens are at least in part as declared, not as they were.
    pub(super) declared: Vec<String>,
    /// Live parameters whose changes the other graph cannot take.
    pub(super) lost_parameters: BTreeSet<String>,
}

/// Tokens of a source that an iteration takes.
pub(super) fn tokens_per_iteration(graph: &Graph, source: ActorId) -> u64 {
    // A verified graph is consistent.
    let repetition = repetition(graph).expect("a verified graph is consistent");
    repetition[source] * graph.actors[source].outputs[0].rate
}

/// Carries a state over by the names of actors and ports. What the other graph does not have of it begins as declared; so
/// does all of it if the state is that before the first iteration.
///
/// # Errors
/// Why the other graph cannot begin there: its iterations do not begin at these tokens.
pub(super) fn carried(state: &State, from: &Graph, to: &Graph) -> Result<Carried, String> {
    let mut carried = Carried {
        state: State::initial(to),
        declared: Vec::new(),
        lost_parameters: BTreeSet::new(),
    };
    if state.iterations > 0 {
        carried.state.iterations = carry_position(state, from, to, &mut carried.state.consumed)?;
    }
    let changes = Changes {
        from,
        to,
        origin: Origin::of(state, carried.state.iterations),
    };
    let order = PositionOrder {
        iterations: carried.state.iterations,
        consumed: &carried.state.consumed,
        tokens_per_iteration: |source| tokens_per_iteration(to, source),
    };
    for change in &state.changes {
        let change = changes.change(change, &mut carried.lost_parameters);
        insert_change(&mut carried.state.changes, change, &order);
    }
    if state.iterations == 0 {
        return Ok(carried);
    }

    let is_same = zbmd_ir::state::fingerprint(from) == zbmd_ir::state::fingerprint(to);
    for (id, channel) in to.channels.iter_enumerated() {
        let known = match is_same {
            true => Some(id),
            false => same_channel(to, channel, from),
        };
        let old_tokens = known.map_or(&[][..], |known| &state.channels[known]);
        let tokens = &mut carried.state.channels[id];
        // The youngest tokens of both lie at the end.
        let common_bytes = old_tokens.len().min(tokens.len());
        let begin = tokens.len() - common_bytes;
        tokens[begin..].copy_from_slice(&old_tokens[old_tokens.len() - common_bytes..]);
        if begin > 0 {
            carried.declared.push(writer_of(to, channel));
        }
    }
    Ok(carried)
}

/// What a replay begins with, as another model has it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CarriedStart {
    pub(super) start: ReplayStart,
    /// As in [`Carried`].
    pub(super) declared: Vec<String>,
    /// As in [`Carried`], also of changes in later modes.
    pub(super) lost_parameters: BTreeSet<String>,
}

/// Carries over where a replay begins, and the changes of mode that follow: modes by their names, unless both models have
/// only one.
///
/// # Errors
/// As [`carried`], a mode that the other model does not have, or one that its iterations do not begin with.
pub(super) fn carried_start(
    start: &ReplayStart,
    from: &VerifiedModes,
    to: &VerifiedModes,
) -> Result<CarriedStart, String> {
    let mut mode = start.present_mode.mode;
    let mut other_mode = same_mode(mode, from, to)?;
    let (mut graph, mut other) = (graph_of(from, mode), graph_of(to, other_mode));
    let Carried {
        state,
        declared,
        mut lost_parameters,
    } = carried(&start.state, graph, other)?;

    let mut origin = Origin::of(&start.state, state.iterations);
    let mut scheduled_modes = Vec::new();
    for change in &start.scheduled_modes {
        let iterations = change.iteration - origin.iteration;
        let Some(other_iterations) = whole_iterations(graph, other, iterations) else {
            return Err(format!(
                "no iteration of it begins where the recorded run went over to another mode, at iteration {}",
                change.iteration
            ));
        };
        origin.advance(graph, iterations, other_iterations);
        mode = change.mode;
        other_mode = same_mode(mode, from, to)?;
        (graph, other) = (graph_of(from, mode), graph_of(to, other_mode));
        let changes = Changes {
            from: graph,
            to: other,
            origin,
        };
        let made = change.changes.iter();
        let made = made.map(|change| changes.change(change, &mut lost_parameters));
        scheduled_modes.push(ScheduledMode {
            iteration: origin.other_iteration,
            mode: other_mode,
            changes: made.collect(),
        });
    }

    Ok(CarriedStart {
        start: ReplayStart {
            state,
            present_mode: PresentMode {
                mode: same_mode(start.present_mode.mode, from, to)?,
                ..start.present_mode.clone()
            },
            scheduled_modes,
        },
        declared,
        lost_parameters,
    })
}

/// The place of the mode of the same name.
fn same_mode(mode: u32, from: &VerifiedModes, to: &VerifiedModes) -> Result<u32, String> {
    if from.names().len() == 1 && to.names().len() == 1 {
        return Ok(0);
    }
    let name = &from.names()[mode as usize];
    let place = to.names().iter().position(|known| known == name);
    place
        .map(|place| place as u32)
        .ok_or_else(|| format!("has no mode `{name}`, which was recorded"))
}

fn graph_of(modes: &VerifiedModes, mode: u32) -> &Graph {
    &modes.programs()[mode as usize].graph
}

/// Iterations of the other graph that take the very tokens of so many.
fn whole_iterations(from: &Graph, to: &Graph, iterations: u64) -> Option<u64> {
    let mut whole = None;
    for (id, source) in to.sources() {
        let known = from.find(&source.name)?;
        let tokens = iterations.checked_mul(tokens_per_iteration(from, known))?;
        let per_iteration = tokens_per_iteration(to, id);
        let count = tokens / per_iteration;
        if tokens % per_iteration != 0 || whole.is_some_and(|known| known != count) {
            return None;
        }
        whole = Some(count);
    }
    Some(whole.unwrap_or(iterations))
}

/// A place that is known in both models, from which others are counted.
#[derive(Clone, Copy, Debug)]
struct Origin {
    iteration: u64,
    other_iteration: u64,
    /// Tokens that the first source has given before it.
    consumed: u64,
}

impl Origin {
    fn of(state: &State, other_iteration: u64) -> Self {
        Self {
            iteration: state.iterations,
            other_iteration,
            consumed: state.consumed.first().map_or(0, |(_, tokens)| *tokens),
        }
    }

    /// Moves it on by so many iterations of either model.
    fn advance(&mut self, graph: &Graph, iterations: u64, other_iterations: u64) {
        self.iteration += iterations;
        self.other_iteration += other_iterations;
        if let Some((source, _)) = graph.sources().next() {
            self.consumed += iterations * tokens_per_iteration(graph, source);
        }
    }
}

/// `value + (to - from)`, or 0 where that is less.
fn shifted(value: u64, from: u64, to: u64) -> u64 {
    value.saturating_add(to).saturating_sub(from)
}

/// Sets what each source has consumed; the iterations of the other graph that makes.
fn carry_position(
    state: &State,
    from: &Graph,
    to: &Graph,
    consumed: &mut [(ActorId, u64)],
) -> Result<u64, String> {
    let mut iterations = None;
    for (id, tokens) in consumed {
        let name = &to.actors[*id].name;
        let mut known = state.consumed.iter();
        let Some((_, taken)) = known.find(|(known, _)| from.actors[*known].name == *name) else {
            return Err(format!("source `{name}` is not in the recording"));
        };
        *tokens = *taken;
        let per_iteration = tokens_per_iteration(to, *id);
        let whole = taken / per_iteration;
        let is_border = taken % per_iteration == 0 && iterations.is_none_or(|known| known == whole);
        if !is_border {
            return Err(format!(
                "its iterations take {per_iteration} tokens of `{name}`: none of them begins at token {taken}, where the recording does"
            ));
        }
        iterations = Some(whole);
    }
    Ok(iterations.unwrap_or(state.iterations))
}

/// The channel of another graph that the port of the same name of the actor of the same name writes, of the same type.
pub(super) fn same_channel(
    graph: &Graph,
    channel: &Channel,
    other: &Graph,
) -> Option<zbmd_ir::ChannelId> {
    let writer = &graph.actors[channel.from.actor];
    let port = &writer.outputs[channel.from.port as usize];
    let other_writer = other.find(&writer.name)?;
    let mut ports = other.actors[other_writer].outputs.iter();
    let other_port = ports.position(|known| known.name == port.name)?;
    let mut channels = other.channels.iter_enumerated();
    let is_same = |known: &Channel| {
        known.from.actor == other_writer
            && known.from.port as usize == other_port
            && known.token == channel.token
    };
    channels.find(|(_, known)| is_same(known)).map(|(id, _)| id)
}

fn writer_of(graph: &Graph, channel: &Channel) -> String {
    graph.actors[channel.from.actor].name.clone()
}

/// Has changes of one graph's live parameters as another graph knows them.
struct Changes<'g> {
    from: &'g Graph,
    to: &'g Graph,
    origin: Origin,
}

impl Changes<'_> {
    /// What the other graph can take of a change. The names of parameters that it cannot take are added to `lost`.
    fn change(&self, change: &ParameterChange, lost: &mut BTreeSet<String>) -> ParameterChange {
        let known: Vec<LiveParameter> = live_parameters(self.from);
        let others: Vec<LiveParameter> = live_parameters(self.to);
        let mut values = Vec::new();
        for (index, numbers) in &change.values {
            let Some(parameter) = known.get(*index as usize) else {
                continue;
            };
            let other = others.iter().position(|o| o.name == parameter.name);
            match other.filter(|other| others[*other].check(numbers).is_ok()) {
                Some(other) => values.push((other as u32, numbers.clone())),
                None => {
                    lost.insert(parameter.name.clone());
                }
            }
        }
        ParameterChange {
            position: self.position(change.position),
            values,
        }
    }

    /// The same place. Where an iteration has other tokens, a border is that of the first source's token.
    fn position(&self, position: ChangePosition) -> ChangePosition {
        match position {
            ChangePosition::Iteration(iteration) => {
                let Origin {
                    iteration: begin,
                    other_iteration,
                    consumed,
                } = self.origin;
                let same = ChangePosition::Iteration(shifted(iteration, begin, other_iteration));
                let Some((source, actor)) = self.from.sources().next() else {
                    return same;
                };
                let tokens = tokens_per_iteration(self.from, source);
                match self.to.find(&actor.name) {
                    Some(other) if tokens_per_iteration(self.to, other) != tokens => {
                        let index = iteration.saturating_mul(tokens);
                        ChangePosition::Token {
                            source: other,
                            index: shifted(index, begin.saturating_mul(tokens), consumed),
                        }
                    }
                    _ => same,
                }
            }
            ChangePosition::Token { source, index } => {
                match self.to.find(&self.from.actors[source].name) {
                    Some(source) => ChangePosition::Token { source, index },
                    None => {
                        let tokens = tokens_per_iteration(self.from, source);
                        let iterations = index.saturating_sub(self.origin.consumed) / tokens;
                        ChangePosition::Iteration(self.origin.other_iteration + iterations)
                    }
                }
            }
        }
    }
}
