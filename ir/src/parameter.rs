//! Live parameters: numbers of ops that may change while a run goes on, and the changes themselves.
//!
//! A change is an input of a run, as the tokens of its sources are: where it takes effect is decided once, and a run that
//! is repeated, on whatever devices and after whatever losses, sees it at the same firings. It moves no slot: only what
//! fixes no rate, shape or memory may be live, so a calendar holds for all values (the quiescent points of
//! parameterized dataflow: Bhattacharya & Bhattacharyya 2001).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Actor, ActorId, Graph, Params, Value};

/// A parameter that may change, as it stands in the parameters of an actor that reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LiveParameter {
    /// Its name. All actors whose parameters have one of this name read the same value.
    pub name: String,
    /// Its value before the first change: one number, or those of a list.
    pub initial: Vec<f64>,
    /// Whether it is a list, whose length never changes.
    pub is_list: bool,
    /// Smallest value, of a list of each number.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

impl LiveParameter {
    /// These numbers as an ordinary value.
    pub fn value_of(&self, numbers: &[f64]) -> Value {
        match numbers {
            [number] if !self.is_list => Value::Float(*number),
            _ => Value::List(numbers.iter().copied().map(Value::Float).collect()),
        }
    }

    /// Whether the parameter may have this value.
    ///
    /// # Errors
    /// See [`ValueError`].
    pub fn check(&self, numbers: &[f64]) -> Result<(), ValueError> {
        if numbers.len() != self.initial.len() {
            return Err(ValueError::Length {
                name: self.name.clone(),
                found: numbers.len(),
                needed: self.initial.len(),
            });
        }
        // Not a number is in no range.
        let outside = |number: &&f64| !(self.min..=self.max).contains(*number);
        match numbers.iter().find(outside) {
            None => Ok(()),
            Some(&found) => Err(ValueError::Range {
                name: self.name.clone(),
                found,
                min: self.min,
                max: self.max,
            }),
        }
    }
}

/// Why a live parameter cannot have a value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum ValueError {
    /// It has another length.
    #[error("`{name}` takes {needed} number{}, not {found}: its length cannot change", if *needed == 1 { "" } else { "s" })]
    Length {
        name: String,
        found: usize,
        needed: usize,
    },
    /// It is out of range, or not a number.
    #[error("`{name}` cannot be {found}: the model allows {min} to {max}")]
    Range {
        name: String,
        found: f64,
        min: f64,
        max: f64,
    },
}

/// Where a change takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangePosition {
    /// At all firings from this iteration of the run on.
    Iteration(u64),
    /// At all firings from the first one on that needs this token of a source, or a later one (the latencies of
    /// StreamIt's teleport messages: Thies et al., PPoPP 2005). An actor that needs no tokens of the source changes with
    /// the token's iteration. Tokens are counted from the start of the run.
    Token {
        /// The source.
        source: ActorId,
        /// The token.
        index: u64,
    },
}

/// How positions of changes are compared: by iterations and parts of them, counted from a border of the run. Before the
/// border iterations may have been others, of another mode.
#[derive(Clone, Copy, Debug)]
pub struct PositionOrder<'a, T> {
    /// Iterations before the border.
    pub iterations: u64,
    /// Tokens that each source has given before it.
    pub consumed: &'a [(ActorId, u64)],
    /// Tokens that a source gives in an iteration.
    pub tokens_per_iteration: T,
}

impl<T: Fn(ActorId) -> u64> PositionOrder<'_, T> {
    /// Whether a position lies after another.
    fn is_after(&self, position: ChangePosition, other: ChangePosition) -> bool {
        let (count, per_iteration) = self.since_border(position);
        let (other_count, other_per_iteration) = self.since_border(other);
        count * other_per_iteration > other_count * per_iteration
    }

    /// How many of what is counted lie between the border and a position, and how many there are of it in an iteration.
    fn since_border(&self, position: ChangePosition) -> (i128, i128) {
        match position {
            ChangePosition::Iteration(iteration) => {
                (i128::from(iteration) - i128::from(self.iterations), 1)
            }
            ChangePosition::Token { source, index } => {
                let mut counts = self.consumed.iter();
                let before = counts.find(|(id, _)| *id == source).map_or(0, |(_, n)| *n);
                let tokens = (self.tokens_per_iteration)(source).max(1);
                (i128::from(index) - i128::from(before), i128::from(tokens))
            }
        }
    }
}

/// New values of live parameters, all from one position on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParameterChange {
    /// From where on.
    pub position: ChangePosition,
    /// Parameters, by their index in [`live_parameters`], and their numbers.
    pub values: Vec<(u32, Vec<f64>)>,
}

/// Puts a change among others in the order in which they hold: of two that are in effect the later in the list. That is
/// the one with the later position, or of equal ones the one that was made later.
pub fn insert_change(
    changes: &mut Vec<ParameterChange>,
    change: ParameterChange,
    order: &PositionOrder<'_, impl Fn(ActorId) -> u64>,
) {
    let is_later = |known: &ParameterChange| order.is_after(known.position, change.position);
    // They are in order, and a new one is most often the last.
    let last_before = changes.iter().rposition(|known| !is_later(known));
    let place = last_before.map_or(0, |last| last + 1);
    changes.insert(place, change);
}

/// Makes one change of those at the start of a list that no change to come is put among, and that are in effect at all
/// firings to come. `iterations` is a border: whatever is set from now on has its position there or later.
///
/// Being in effect is not enough: a firing that begins with the border may need a token in the middle of the iteration
/// after it, and a change that is set for the border still goes before one for that token.
pub fn fold_changes(
    changes: &mut Vec<ParameterChange>,
    iterations: u64,
    order: &PositionOrder<'_, impl Fn(ActorId) -> u64>,
    is_in_effect: impl Fn(&ParameterChange) -> bool,
) {
    let border = ChangePosition::Iteration(iterations);
    let is_settled = |change: &&ParameterChange| {
        !order.is_after(change.position, border) && is_in_effect(change)
    };
    let settled = changes.iter().take_while(is_settled).count();
    if settled < 2 {
        return;
    }
    let mut values = BTreeMap::new();
    for change in changes.drain(..settled) {
        values.extend(change.values);
    }
    let folded = ParameterChange {
        position: ChangePosition::Iteration(0),
        values: values.into_iter().collect(),
    };
    changes.insert(0, folded);
}

/// The live parameters of a graph, by name. Of two that differ under one name, which no verifier accepts, it has one.
pub fn live_parameters(graph: &Graph) -> Vec<LiveParameter> {
    let mut by_name = BTreeMap::new();
    for actor in &graph.actors {
        visit_live(&actor.params, &mut |parameter| {
            by_name
                .entry(parameter.name.clone())
                .or_insert_with(|| parameter.clone());
        });
    }
    by_name.into_values().collect()
}

/// Calls `visit` with every live parameter in an op's parameters, however deep it lies.
pub fn visit_live<'p>(params: &'p Params, visit: &mut impl FnMut(&'p LiveParameter)) {
    // A stack instead of recursion: values that are not verified may be nested as deeply as a file is long.
    let mut unvisited: Vec<&Value> = params.values().collect();
    while let Some(value) = unvisited.pop() {
        match value {
            Value::Live(parameter) => visit(parameter),
            Value::List(items) => unvisited.extend(items),
            Value::Map(items) => unvisited.extend(items.values()),
            Value::Bool(_)
            | Value::Int(_)
            | Value::Float(_)
            | Value::Str(_)
            | Value::Tensor(..)
            | Value::Gate(_) => {}
        }
    }
}

/// Whether an actor has live parameters.
pub fn has_live(actor: &Actor) -> bool {
    let mut is_live = false;
    visit_live(&actor.params, &mut |_| is_live = true);
    is_live
}

/// An op's parameters with ordinary values in place of live ones: what `numbers` says, or else the initial ones.
pub fn plain_params(
    params: &Params,
    numbers: &impl Fn(&LiveParameter) -> Option<Vec<f64>>,
) -> Params {
    let entries = params.iter();
    entries
        .map(|(name, value)| (name.clone(), plain_value(value, numbers)))
        .collect()
}

fn plain_value(value: &Value, numbers: &impl Fn(&LiveParameter) -> Option<Vec<f64>>) -> Value {
    match value {
        Value::Live(parameter) => match numbers(parameter) {
            Some(found) => parameter.value_of(&found),
            None => parameter.value_of(&parameter.initial),
        },
        Value::List(items) => Value::List(
            items
                .iter()
                .map(|item| plain_value(item, numbers))
                .collect(),
        ),
        Value::Map(items) => Value::Map(plain_params(items, numbers)),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter() -> LiveParameter {
        LiveParameter {
            name: "taps".to_owned(),
            initial: vec![0.5, 0.25],
            is_list: true,
            min: -1.0,
            max: 1.0,
        }
    }

    #[test]
    fn values_keep_their_length_and_range() {
        let taps = parameter();
        assert_eq!(taps.check(&[1.0, -1.0]), Ok(()));
        for numbers in [&[][..], &[0.0], &[0.0, 0.0, 0.0]] {
            assert!(matches!(
                taps.check(numbers),
                Err(ValueError::Length { .. })
            ));
        }
        for number in [1.5, -1.001, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let found = taps.check(&[0.0, number]);
            assert!(matches!(found, Err(ValueError::Range { .. })), "{number}");
        }
    }

    #[test]
    fn a_change_that_goes_before_another_does_so_though_that_is_in_effect_already() {
        let change = |position, number| ParameterChange {
            position,
            values: vec![(0, vec![number])],
        };
        let token = |index| ChangePosition::Token {
            source: ActorId(0),
            index,
        };
        let order = PositionOrder {
            iterations: 0,
            consumed: &[],
            tokens_per_iteration: |_| 10,
        };
        // The first firing of iteration 8 needs token 85: both changes are in effect from there on.
        let at_token = change(token(85), 3.0);
        let mut changes = vec![
            change(ChangePosition::Iteration(4), 1.0),
            change(token(80), 2.0),
            at_token.clone(),
        ];
        fold_changes(&mut changes, 8, &order, |_| true);
        let folded = change(ChangePosition::Iteration(0), 2.0);
        assert_eq!(changes, [folded.clone(), at_token.clone()]);

        let at_border = change(ChangePosition::Iteration(8), 4.0);
        insert_change(&mut changes, at_border.clone(), &order);
        assert_eq!(changes, [folded, at_border, at_token]);
    }

    /// 8 iterations took 800 tokens in another mode; from there on each takes 10.
    #[test]
    fn positions_are_compared_by_iterations_since_the_border() {
        let order = PositionOrder {
            iterations: 8,
            consumed: &[(ActorId(0), 800)],
            tokens_per_iteration: |_| 10,
        };
        let token = |index| ChangePosition::Token {
            source: ActorId(0),
            index,
        };
        let in_order = [
            ChangePosition::Iteration(0),
            token(799),
            ChangePosition::Iteration(8),
            token(801),
            token(819),
            ChangePosition::Iteration(10),
            token(821),
        ];
        for (place, position) in in_order.iter().enumerate() {
            for (other_place, other) in in_order.iter().enumerate() {
                assert_eq!(order.is_after(*position, *other), place > other_place);
            }
        }
        assert!(!order.is_after(token(820), ChangePosition::Iteration(10)));
        assert!(!order.is_after(ChangePosition::Iteration(10), token(820)));
    }

    #[test]
    fn live_parameters_are_found_and_replaced_however_deep_they_lie() {
        let list = Value::List(vec![
            Value::Int(1),
            Value::Live(Box::new(LiveParameter {
                name: "gain".to_owned(),
                initial: vec![2.0],
                is_list: false,
                min: 0.0,
                max: 9.0,
            })),
        ]);
        let params = Params::from([
            ("a".to_owned(), Value::Map([("b".to_owned(), list)].into())),
            ("c".to_owned(), Value::Live(Box::new(parameter()))),
        ]);
        let mut names = Vec::new();
        visit_live(&params, &mut |found| names.push(found.name.clone()));
        names.sort();
        assert_eq!(names, ["gain", "taps"]);

        let plain = plain_params(&params, &|found| (found.name == "gain").then(|| vec![3.0]));
        let gain = Value::List(vec![Value::Int(1), Value::Float(3.0)]);
        let taps = Value::List(vec![Value::Float(0.5), Value::Float(0.25)]);
        let expected = Params::from([
            ("a".to_owned(), Value::Map([("b".to_owned(), gain)].into())),
            ("c".to_owned(), taps),
        ]);
        assert_eq!(plain, expected);
    }
}
