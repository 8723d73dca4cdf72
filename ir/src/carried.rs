//! State that whoever runs a program carries from one iteration to another, as tokens of a sink and of a source.
//!
//! A model that keeps tokens on channels between iterations can be compiled so that an iteration takes these tokens from
//! sources and gives those of the next iteration to sinks. Nothing stays in the program then, and the iterations of several
//! sequences can follow each other in any order. Which sink goes with which source is a parameter of the source,
//! [`CARRIED`]. To whoever does not look at it both are streams like all others.

use std::collections::BTreeSet;

use crate::{ActorId, BlobId, Graph, Params, Role, TiSlice, TokenType, Value};

/// Parameter of a source: the sink whose tokens it takes in the next iteration of a sequence, and the tokens of the first.
pub const CARRIED: &str = "carried";

/// Members of the parameter.
const SINK: &str = "sink";
const INITIAL: &str = "initial";

/// A state that is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CarriedState {
    /// Takes the state at the start of an iteration.
    pub source: ActorId,
    /// Gives the state at its end.
    pub sink: ActorId,
    /// What the source takes in the first iteration of a sequence.
    pub initial: BlobId,
}

/// Why a state cannot be carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CarriedFault {
    pub(crate) actor: ActorId,
    /// As a clause.
    pub(crate) why: String,
}

/// The parameter of a source whose state is what `sink` gives, and `initial` at first: a list of elements.
pub fn carried_param(sink: &str, initial: BlobId, tokens: TokenType) -> Value {
    let members = [
        (SINK.to_owned(), Value::Str(sink.to_owned())),
        (INITIAL.to_owned(), Value::Tensor(initial, tokens)),
    ];
    Value::Map(Params::from(members))
}

/// The carried states of a verified graph, in the order of their sources. O(actors).
pub fn carried_states(graph: &Graph) -> Vec<CarriedState> {
    let sources = graph.sources();
    sources
        .filter_map(|(source, _)| state_of(graph, source)?.ok())
        .collect()
}

/// The carried state of a source. `None` if it is a stream like all others.
fn state_of(graph: &Graph, source: ActorId) -> Option<Result<CarriedState, String>> {
    let value = graph.actors[source].params.get(CARRIED)?;
    let Value::Map(members) = value else {
        return Some(Err("has no members".to_owned()));
    };
    let found = match (members.get(SINK), members.get(INITIAL)) {
        (Some(Value::Str(name)), Some(Value::Tensor(initial, _))) => {
            let sink = graph.find(name);
            let sink = sink.filter(|id| graph.actors[*id].role == Role::Sink);
            let state = sink.map(|sink| CarriedState {
                source,
                sink,
                initial: *initial,
            });
            state.ok_or_else(|| format!("names `{name}`, which is not a sink"))
        }
        _ => Err(format!(
            "must have `{SINK}`, a name, and `{INITIAL}`, a tensor"
        )),
    };
    Some(found)
}

/// What is wrong with the carried states of a graph whose ports exist, by the firings of an iteration.
pub(crate) fn carried_fault(
    graph: &Graph,
    repetitions: &TiSlice<ActorId, u64>,
) -> Option<CarriedFault> {
    let mut taken_sinks = BTreeSet::new();
    for (actor, data) in graph.actors.iter_enumerated() {
        if !data.params.contains_key(CARRIED) {
            continue;
        }
        let why = match data.role {
            Role::Source => match state_of(graph, actor)? {
                Ok(state) if !taken_sinks.insert(state.sink) => {
                    Some(format!("names {}, as another source does", state.sink))
                }
                Ok(state) => mismatch(graph, repetitions, state),
                Err(why) => Some(why),
            },
            Role::Sink | Role::Compute => {
                Some("stands at an actor that is not a source".to_owned())
            }
        };
        if let Some(why) = why {
            return Some(CarriedFault { actor, why });
        }
    }
    None
}

/// An iteration gives as many tokens of the same type as the next one takes, and the first one finds as many.
fn mismatch(
    graph: &Graph,
    repetitions: &TiSlice<ActorId, u64>,
    state: CarriedState,
) -> Option<String> {
    let written = &graph.actors[state.source].outputs[0];
    let read = &graph.actors[state.sink].inputs[0];
    let taken = u128::from(repetitions[state.source]) * u128::from(written.rate);
    let given = u128::from(repetitions[state.sink]) * u128::from(read.rate);
    if (&written.token, taken) != (&read.token, given) {
        return Some(format!(
            "takes {taken} tokens of {} in an iteration, and {} gives {given} of {}",
            written.token, state.sink, read.token
        ));
    }

    let Some(Value::Map(members)) = graph.actors[state.source].params.get(CARRIED) else {
        return None;
    };
    let Some(Value::Tensor(_, initial)) = members.get(INITIAL) else {
        return None;
    };
    let needed_bytes = taken * u128::from(written.token.bytes());
    let initial_bytes = u128::from(initial.bytes());
    (needed_bytes != initial_bytes).then(|| {
        format!("takes {needed_bytes} bytes in an iteration, and its initial tokens have {initial_bytes}")
    })
}
