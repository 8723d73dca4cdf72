//! Programs of several models: each has sources and sinks of its own, and ends with its own sources.
//!
//! One graph may hold several models with nothing between them, so that one calendar runs them all. An iteration of the
//! graph then is some iterations of each model, so many that all of them keep to their sample rates. Which model a stream
//! belongs to, and how many of its iterations an iteration of the graph has, are parameters of sources and sinks,
//! [`MODEL`] and [`MODEL_ITERATIONS`]. A model whose sources have ended goes on with zeros until all models have ended, and
//! its sinks are given what its own tokens lead to.

use std::collections::BTreeMap;

use crate::{Actor, ActorId, Graph, Role, TiSlice, Value};

/// Parameter of sources and sinks: the name of the model that they belong to. All of a graph have one, or none.
pub const MODEL: &str = "model";

/// Parameter of sources and sinks: iterations of their model in an iteration of the graph.
pub const MODEL_ITERATIONS: &str = "model_iterations";

/// One of the models that a graph was merged from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedModel {
    /// Its name, which names of its actors begin with.
    pub name: String,
    /// Its iterations in an iteration of the graph.
    pub iterations: u64,
    /// Its sources, by their places among the graph's.
    pub sources: Vec<usize>,
    /// Its sinks, by their places among the graph's.
    pub sinks: Vec<usize>,
}

/// What is wrong with a stream of a merged graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MergedFault {
    pub(crate) actor: ActorId,
    /// As a clause.
    pub(crate) why: String,
}

/// The models that a verified graph was merged from, by name; empty for a graph of one model. O(actors · log models).
pub fn merged_models(graph: &Graph) -> Vec<MergedModel> {
    let mut models: BTreeMap<&str, MergedModel> = BTreeMap::new();
    let sources = graph.sources().map(|(_, actor)| actor).enumerate();
    for (place, actor) in sources {
        if let Some(model) = model_of(&mut models, actor) {
            model.sources.push(place);
        }
    }
    let sinks = graph.sinks().map(|(_, actor)| actor).enumerate();
    for (place, actor) in sinks {
        if let Some(model) = model_of(&mut models, actor) {
            model.sinks.push(place);
        }
    }
    models.into_values().collect()
}

/// The entry of the model that a stream belongs to.
fn model_of<'m, 'g>(
    models: &'m mut BTreeMap<&'g str, MergedModel>,
    stream: &'g Actor,
) -> Option<&'m mut MergedModel> {
    let (name, iterations) = membership(stream)?;
    let model = models.entry(name).or_insert_with(|| MergedModel {
        name: name.to_owned(),
        iterations,
        sources: Vec::new(),
        sinks: Vec::new(),
    });
    Some(model)
}

/// The model that a stream belongs to, and its iterations in one of the graph.
fn membership(actor: &Actor) -> Option<(&str, u64)> {
    match (
        actor.params.get(MODEL)?,
        actor.params.get(MODEL_ITERATIONS)?,
    ) {
        (Value::Str(name), Value::Int(iterations)) => {
            Some((name, u64::try_from(*iterations).ok().filter(|n| *n > 0)?))
        }
        _ => None,
    }
}

/// What is wrong with the models of a merged graph whose ports exist, by the firings of an iteration.
pub(crate) fn merged_fault(
    graph: &Graph,
    repetitions: &TiSlice<ActorId, u64>,
) -> Option<MergedFault> {
    let is_marked = |actor: &Actor| {
        actor.params.contains_key(MODEL) || actor.params.contains_key(MODEL_ITERATIONS)
    };
    if !graph.actors.iter().any(is_marked) {
        return None;
    }

    let mut iterations_of: BTreeMap<&str, u64> = BTreeMap::new();
    for (id, actor) in graph.actors.iter_enumerated() {
        let rate = match actor.role {
            Role::Compute if is_marked(actor) => {
                let why = format!("has `{MODEL}`, which belongs to sources and sinks");
                return Some(MergedFault { actor: id, why });
            }
            Role::Compute => continue,
            Role::Source => actor.outputs[0].rate,
            Role::Sink => actor.inputs[0].rate,
        };

        let tokens = u128::from(repetitions[id]) * u128::from(rate);
        let why = match membership(actor) {
            None => Some(format!(
                "must have `{MODEL}`, a name, and `{MODEL_ITERATIONS}`, a number from 1, as other streams have"
            )),
            Some((name, iterations)) => {
                let first = *iterations_of.entry(name).or_insert(iterations);
                membership_fault(name, iterations, first, tokens)
            }
        };
        if let Some(why) = why {
            return Some(MergedFault { actor: id, why });
        }
    }
    None
}

/// The streams of a model agree on its iterations, and each has whole tokens in each of them.
fn membership_fault(name: &str, iterations: u64, first: u64, tokens: u128) -> Option<String> {
    if iterations != first {
        return Some(format!(
            "says {iterations} iterations of model `{name}`, another stream says {first}"
        ));
    }
    let is_whole = tokens.is_multiple_of(u128::from(iterations));
    (!is_whole).then(|| {
        format!("has {tokens} tokens in {iterations} iterations of model `{name}`, which is not a whole number each")
    })
}
