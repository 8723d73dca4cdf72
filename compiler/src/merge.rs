//! Several models in one program: their nets side by side, and how many iterations of each make one of the program.
//!
//! Nothing leads from one model to another, so each keeps its own balance of rates. What joins them is the iteration of
//! the program: so many iterations of each model that all keep to their sample rates. A source that fires once in it, with
//! all tokens of these iterations, says so to the analysis of rates; a model without sources has such a sink.

use std::collections::BTreeMap;

use zbmd_ir::math::{gcd, lcm};
use zbmd_ir::{ActorId, Graph, MODEL, MODEL_ITERATIONS, TiVec, Value, limits};

use crate::build::BuiltGraph;
use crate::codes::Code;
use crate::diag::{Diagnostic, Sink, suggest};
use crate::net::Net;
use crate::options::CompileOptions;
use crate::sample_rates::{connected_parts, tokens_per_iteration};
use crate::source::Span;

/// Iterations of a model in one of the program, at most.
const MAX_ITERATIONS: u128 = 1 << 24;

/// Between the name of a model and that of an actor or a live parameter.
const SEPARATOR: char = '/';

/// E0220, for models that cannot be merged.
pub(crate) fn refuse(why: impl Into<String>, help: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Code::E0220, why)
        .primary(Span::NONE, "")
        .help(help)
}

/// Reports names that two models have, or that none can have here.
pub(crate) fn check_names(names: &[String], sink: &mut Sink) {
    for (place, name) in names.iter().enumerate() {
        let help = "give the model a name of its own: `name: \"…\"` in its text, or of an ONNX model the name of its file";
        if name.is_empty() || name.contains([SEPARATOR, '.', '=']) {
            let message = format!(
                "a model is called `{name}`: names of actors and options begin with it, so it has a character and no `/`, `.` or `=`"
            );
            sink.push(refuse(message, help));
        }
        if names[..place].contains(name) {
            let message = format!("two of the models are called `{name}`");
            sink.push(refuse(message, help));
        }
    }
}

/// The options for one of the models: those for it alone, `NAME.option`, without that name, and those for all.
pub(crate) fn options_for(options: &CompileOptions, names: &[String], own: &str) -> CompileOptions {
    let mut of_model = options.clone();
    of_model.params = entries_for(&options.params, names, own);
    of_model.onnx.dims = entries_for(&options.onnx.dims, names, own);
    of_model.onnx.set = entries_for(&options.onnx.set, names, own);
    of_model.onnx.state = entries_for(&options.onnx.state, names, own);
    of_model.mode = options
        .mode
        .as_deref()
        .and_then(|mode| match addressee(mode, names) {
            Some((name, mode)) => (name == own).then(|| mode.to_owned()),
            None => Some(mode.to_owned()),
        });
    of_model
}

fn entries_for<T: Clone>(
    entries: &BTreeMap<String, T>,
    names: &[String],
    own: &str,
) -> BTreeMap<String, T> {
    let entries = entries.iter().filter_map(|(key, value)| {
        let key = match addressee(key, names) {
            Some((name, key)) if name == own => key,
            Some(_) => return None,
            None => key,
        };
        Some((key.to_owned(), value.clone()))
    });
    entries.collect()
}

/// The model that an option names, and the rest of it.
fn addressee<'a>(option: &'a str, names: &[String]) -> Option<(&'a str, &'a str)> {
    let (name, rest) = option.split_once('.')?;
    names
        .iter()
        .any(|known| known == name)
        .then_some((name, rest))
}

/// Reports parameters that are given to all models and that none has.
pub(crate) fn check_params(
    options: &CompileOptions,
    known: &[Vec<String>],
    names: &[String],
    sink: &mut Sink,
) {
    for name in options.params.keys() {
        let is_known = known.iter().flatten().any(|parameter| parameter == name);
        if addressee(name, names).is_none() && !is_known {
            let message = format!("none of the models has a parameter `{name}`");
            let parameters = known.iter().flatten().map(String::as_str);
            sink.push(Diagnostic::new(Code::E0213, message).help(suggest(name, parameters)));
        }
    }
}

/// Puts nets side by side; names of actors and live parameters begin with that of their model.
pub(crate) fn merge_nets(nets: Vec<(String, Net)>) -> Net {
    let names: Vec<&str> = nets.iter().map(|(name, _)| name.as_str()).collect();
    let mut merged = Net {
        name: names.join("+"),
        ..Net::default()
    };
    for (name, mut net) in nets {
        let first_actor = merged.actors.len();
        rename(&mut net, &name);
        for link in &mut net.links {
            link.from.actor += first_actor;
            link.to.actor += first_actor;
        }
        for end in &mut net.dropped {
            end.actor += first_actor;
        }
        for pin in &mut net.pins {
            pin.actor += first_actor;
        }
        for gate in &mut net.gates {
            gate.actors
                .iter_mut()
                .for_each(|actor| *actor += first_actor);
            if let Some(from) = &mut gate.from {
                from.actor += first_actor;
            }
        }

        merged.actors.append(&mut net.actors);
        merged.links.append(&mut net.links);
        merged.dropped.append(&mut net.dropped);
        merged.pins.append(&mut net.pins);
        merged.gates.append(&mut net.gates);
        merged.lost |= net.lost;
    }
    merged
}

fn rename(net: &mut Net, model: &str) {
    for actor in &mut net.actors {
        actor.name = format!("{model}{SEPARATOR}{}", actor.name);
        actor
            .params
            .values_mut()
            .for_each(|value| rename_live(value, model));
    }
    for gate in &mut net.gates {
        gate.name = format!("{model}{SEPARATOR}{}", gate.name);
    }
}

fn rename_live(value: &mut Value, model: &str) {
    match value {
        Value::Live(live) => live.name = format!("{model}{SEPARATOR}{}", live.name),
        Value::List(items) => items.iter_mut().for_each(|item| rename_live(item, model)),
        Value::Map(members) => members
            .values_mut()
            .for_each(|member| rename_live(member, model)),
        _ => {}
    }
}

/// A number of iterations a second, as a fraction.
#[derive(Clone, Copy)]
struct Fraction {
    numerator: u128,
    denominator: u128,
}

impl Fraction {
    /// `rate` / `tokens`. A rate of up to six decimals is exact.
    fn of(rate: f64, tokens: u64) -> Self {
        let mut scale: u128 = 1;
        while scale < 1_000_000 {
            let scaled = rate * scale as f64;
            if (scaled - scaled.round()).abs() <= 1e-9 * scaled {
                break;
            }
            scale *= 10;
        }
        let numerator = ((rate * scale as f64).round() as u128).max(1);
        let denominator = scale * u128::from(tokens.max(1));
        let common = gcd(numerator, denominator);
        Self {
            numerator: numerator / common,
            denominator: denominator / common,
        }
    }
}

/// The models of one program.
pub(crate) struct MergedModels<'a> {
    /// Their names, which names of actors begin with.
    pub(crate) names: &'a [String],
    /// Iterations a second of those without sample rates.
    pub(crate) rates: &'a BTreeMap<String, f64>,
    /// Whether states are carried from iteration to iteration: those of a model are then those of the program.
    pub(crate) carries_states: bool,
}

impl MergedModels<'_> {
    /// Makes an iteration of so many of each model that all keep their rates, and notes at all sources and sinks which
    /// model they belong to; reports where that cannot be.
    pub(crate) fn join(
        &self,
        model: &mut BuiltGraph,
        repetitions: &TiVec<ActorId, u64>,
        sink: &mut Sink,
    ) -> Option<()> {
        let iterations = self.iterations(&model.graph, repetitions, sink)?;
        for (name, &count) in self.names.iter().zip(&iterations) {
            if count > 1 && self.carries_states {
                let message = format!(
                    "an iteration of the program has {count} of model `{name}`, and with sequences a state is carried from one to the next"
                );
                sink.push(refuse(
                    message,
                    "compile the models by themselves, or leave out `--sequences`",
                ));
                return None;
            }
            if count > 1 {
                self.lengthen(model, repetitions, (name, count), sink)?;
            }
        }

        for actor in &mut model.graph.actors {
            let is_stream = actor.role != zbmd_ir::Role::Compute;
            let place = model_place(self.names, &actor.name).filter(|_| is_stream);
            if let Some(place) = place {
                let name = Value::Str(self.names[place].clone());
                actor.params.insert(MODEL.to_owned(), name);
                let count = Value::Int(iterations[place] as i64);
                actor.params.insert(MODEL_ITERATIONS.to_owned(), count);
            }
        }
        Some(())
    }

    /// For each model, its iterations in one of the program: the fewest with which all keep their rates, and 1 where
    /// nothing says a rate.
    fn iterations(
        &self,
        graph: &Graph,
        repetitions: &TiVec<ActorId, u64>,
        sink: &mut Sink,
    ) -> Option<Vec<u64>> {
        self.check_rates(graph, sink)?;
        let rates = self.names.iter();
        let rates = rates.map(|name| self.rate_of(name, graph, repetitions));
        let rates: Vec<Option<Fraction>> = rates.collect();
        let counts = whole_ratios(&rates).filter(|counts| {
            let limit = MAX_ITERATIONS;
            counts.iter().all(|&count| count <= limit)
        });
        let Some(counts) = counts else {
            let of_model = self.names.iter().zip(&rates).filter_map(|(name, rate)| {
                let Fraction {
                    numerator,
                    denominator,
                } = (*rate)?;
                let per_second = numerator as f64 / denominator as f64;
                Some(format!("`{name}` makes {per_second} iterations a second"))
            });
            let of_model: Vec<String> = of_model.collect();
            let message = format!(
                "{}: in an iteration in which all keep to that, some model has more than {MAX_ITERATIONS} of its own",
                of_model.join(", ")
            );
            let help = "choose sample rates in a simpler ratio, or compile the models by themselves: `zbmdc admit` says whether they run beside each other";
            sink.push(refuse(message, help));
            return None;
        };
        Some(counts.into_iter().map(|count| count as u64).collect())
    }

    /// Reports rates that are given for no model, or for one whose streams say theirs.
    fn check_rates(&self, graph: &Graph, sink: &mut Sink) -> Option<()> {
        for name in self.rates.keys() {
            if !self.names.contains(name) {
                let known = self.names.iter().map(String::as_str);
                let message = format!("a rate is given for `{name}`, which is none of the models");
                sink.push(refuse(message, suggest(name, known)));
                return None;
            }
            let mut streams = graph.sources().chain(graph.sinks());
            let stated = streams
                .find(|(_, actor)| is_of(&actor.name, name) && actor.sample_rate().is_some());
            if let Some((_, stream)) = stated {
                let message = format!(
                    "a rate is given for model `{name}`, and `{}` has a sample rate, which says it",
                    stream.name
                );
                sink.push(refuse(message, format!("leave out `--rate {name}=…`")));
                return None;
            }
        }
        Some(())
    }

    /// Iterations a second of a model, by its fastest stream or as given.
    fn rate_of(
        &self,
        name: &str,
        graph: &Graph,
        repetitions: &TiVec<ActorId, u64>,
    ) -> Option<Fraction> {
        if let Some(rate) = self.rates.get(name) {
            return Some(Fraction::of(*rate, 1));
        }
        let streams = graph.sources().chain(graph.sinks());
        let own_streams = streams.filter(|(_, actor)| is_of(&actor.name, name));
        let rates = own_streams.filter_map(|(id, actor)| {
            let tokens = tokens_per_iteration(graph, id, repetitions) as u64;
            Some((actor.sample_rate()?, tokens))
        });
        let per_second = |(rate, tokens): &(f64, u64)| rate / *tokens as f64;
        let fastest = rates.max_by(|a, b| per_second(a).total_cmp(&per_second(b)));
        fastest.map(|(rate, tokens)| Fraction::of(rate, tokens))
    }

    /// Makes an iteration of each connected part of a model so many times longer.
    fn lengthen(
        &self,
        model: &mut BuiltGraph,
        repetitions: &TiVec<ActorId, u64>,
        (name, count): (&str, u64),
        sink: &mut Sink,
    ) -> Option<()> {
        let parts = connected_parts(&model.graph);
        let graph = &model.graph;
        let own_actors = graph.actors.iter_enumerated();
        let own_actors = own_actors.filter(|(_, actor)| is_of(&actor.name, name));
        let mut part_names: Vec<usize> = own_actors.map(|(id, _)| parts[id]).collect();
        part_names.sort_unstable();
        part_names.dedup();

        for part in part_names {
            let streams = model.graph.sources().chain(model.graph.sinks());
            let mut in_part = streams.filter(|(id, _)| parts[*id] == part);
            let Some(stream) = in_part.next().map(|(id, _)| id) else {
                let first = &model.graph.actors[ActorId::from(part)].name;
                let message = format!(
                    "model `{name}` makes {count} iterations in one of the program, and what `{first}` belongs to has no source or sink to say so"
                );
                sink.push(refuse(
                    message,
                    "give it a sink, or compile the models by themselves",
                ));
                return None;
            };
            drop(in_part);

            let firings = repetitions[stream];
            let actor = &mut model.graph.actors[stream];
            let output_rates = actor.outputs.iter_mut().map(|port| &mut port.rate);
            let input_rates = actor
                .inputs
                .iter_mut()
                .flat_map(|port| [&mut port.rate, &mut port.window]);
            for rate in output_rates.chain(input_rates) {
                let tokens = u128::from(*rate) * u128::from(firings) * u128::from(count);
                if tokens > u128::from(limits::MAX_RATE) {
                    let message = format!(
                        "`{}` has {tokens} tokens in an iteration of the program, which has {count} of model `{name}`; the limit is {}",
                        actor.name,
                        limits::MAX_RATE
                    );
                    sink.push(refuse(message, "choose sample rates in a simpler ratio"));
                    return None;
                }
                *rate = tokens as u64;
            }
        }
        Some(())
    }
}

/// Whether an actor is one of a model's.
fn is_of(actor: &str, model: &str) -> bool {
    actor
        .split_once(SEPARATOR)
        .is_some_and(|(name, _)| name == model)
}

fn model_place(names: &[String], actor: &str) -> Option<usize> {
    names.iter().position(|name| is_of(actor, name))
}

/// The smallest whole numbers in the ratio of these; 1 where there is none. `None` beyond the range of numbers.
fn whole_ratios(rates: &[Option<Fraction>]) -> Option<Vec<u128>> {
    let mut denominator = 1;
    for rate in rates.iter().flatten() {
        denominator = lcm(denominator, rate.denominator)?;
    }
    let mut numerators = Vec::new();
    let mut common = 0;
    for rate in rates {
        let numerator = match rate {
            Some(rate) => Some(rate.numerator.checked_mul(denominator / rate.denominator)?),
            None => None,
        };
        common = gcd(common, numerator.unwrap_or(0));
        numerators.push(numerator);
    }
    let counts = numerators
        .iter()
        .map(|numerator| numerator.map_or(1, |n| n / common.max(1)));
    Some(counts.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_are_in_the_ratio_of_the_rates() {
        let rate = |rate: f64, tokens: u64| Some(Fraction::of(rate, tokens));
        for (rates, expect) in [
            (vec![None, None], vec![1, 1]),
            (vec![rate(48_000.0, 1), rate(16_000.0, 512)], vec![1536, 1]),
            (
                vec![rate(44_100.0, 1), rate(48_000.0, 1), None],
                vec![147, 160, 1],
            ),
            (vec![rate(44_100.0, 1), rate(16_000.0, 512)], vec![7056, 5]),
            (vec![rate(0.5, 1), rate(1.25, 1)], vec![2, 5]),
        ] {
            assert_eq!(whole_ratios(&rates), Some(expect));
        }
    }

    #[test]
    fn an_option_goes_to_the_model_that_it_names_or_to_all() {
        let names = ["agc".to_owned(), "fm".to_owned()];
        let mut options = CompileOptions::default();
        for (name, value) in [("agc.mu", "1"), ("fm.mu", "2"), ("gain", "3"), ("x.y", "4")] {
            options.params.insert(name.to_owned(), value.to_owned());
        }
        let params = options_for(&options, &names, "agc").params;
        let params: Vec<(&str, &str)> = params.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert_eq!(params, [("gain", "3"), ("mu", "1"), ("x.y", "4")]);
    }
}
