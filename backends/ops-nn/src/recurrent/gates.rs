//! What the gates of a recurrent layer make of their sums: whole vectors at a time.

use super::super::num::Float;
use super::spec::{Cell, Gate, RecurrentSpec};
use zbmd_op::simd::{self, Isa, Loop};

/// What meets in a step of one sequence. Sums are those of all gates, one gate after the other, and are used up.
pub(super) struct StepGates<'a> {
    pub(super) from_input: &'a mut [f32],
    pub(super) from_hidden: &'a mut [f32],
    /// Sums from the hidden state behind the reset gate, where that acts first.
    pub(super) from_reset: Option<&'a [f32]>,
    /// Weights from the cell state to the gates: input, output, forget; or none.
    pub(super) peepholes: &'a [f32],
    pub(super) activations: &'a [Gate],
    /// The states, which become those of the step.
    pub(super) hidden: &'a mut [f32],
    pub(super) cell: &'a mut [f32],
}

impl StepGates<'_> {
    /// The states of the step. The formulas are those of the ONNX operators; biases are in both parts.
    pub(super) fn join(self, spec: &RecurrentSpec) {
        simd::dispatch(Join { spec, gates: self });
    }
}

/// GRU whose reset gate acts before its product: the hidden state behind that gate.
pub(super) struct ResetHidden<'a> {
    /// Sums of the reset gate.
    pub(super) from_input: &'a [f32],
    pub(super) from_hidden: &'a [f32],
    pub(super) activation: Gate,
    pub(super) hidden: &'a [f32],
    pub(super) reset_hidden: &'a mut [f32],
}

impl ResetHidden<'_> {
    pub(super) fn make(self, spec: &RecurrentSpec) {
        simd::dispatch(Reset { spec, gate: self });
    }
}

struct Join<'a> {
    spec: &'a RecurrentSpec,
    gates: StepGates<'a>,
}

struct Reset<'a> {
    spec: &'a RecurrentSpec,
    gate: ResetHidden<'a>,
}

impl Loop for Join<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        match self.spec.cell {
            Cell::Rnn => self.join_rnn::<FMA>(),
            Cell::Gru => self.join_gru::<FMA>(),
            Cell::Lstm => self.join_lstm::<FMA>(),
        }
    }
}

impl Loop for Reset<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        let gate = self.gate;
        let to = gate.reset_hidden;
        to.copy_from_slice(gate.from_hidden);
        add(to, gate.from_input);
        activate::<FMA>(self.spec, gate.activation, to);
        multiply(to, gate.hidden);
    }
}

impl Join<'_> {
    #[inline(always)]
    fn join_rnn<const FMA: bool>(self) {
        let gates = self.gates;
        gates.hidden.copy_from_slice(gates.from_hidden);
        add(gates.hidden, gates.from_input);
        activate::<FMA>(self.spec, gates.activations[0], gates.hidden);
    }

    #[inline(always)]
    fn join_gru<const FMA: bool>(self) {
        let size = self.spec.hidden;
        let gates = self.gates;
        // Gates are in the order update, reset, new.
        let (update, rest) = gates.from_input.split_at_mut(size);
        let (reset, new) = rest.split_at_mut(size);
        add(update, &gates.from_hidden[..size]);
        activate::<FMA>(self.spec, gates.activations[0], update);

        // g(x·W + (r ⊙ h)·R) where the reset gate acts first, g(x·W + r ⊙ (h·R)) otherwise.
        match gates.from_reset {
            Some(from_reset) => add(new, &from_reset[2 * size..]),
            None => {
                add(reset, &gates.from_hidden[size..2 * size]);
                activate::<FMA>(self.spec, gates.activations[0], reset);
                multiply(reset, &gates.from_hidden[2 * size..]);
                add(new, reset);
            }
        }
        activate::<FMA>(self.spec, gates.activations[1], new);

        for ((hidden, &update), &new) in gates.hidden.iter_mut().zip(&*update).zip(&*new) {
            *hidden = (1.0 - update) * new + update * *hidden;
        }
    }

    #[inline(always)]
    fn join_lstm<const FMA: bool>(self) {
        let spec = self.spec;
        let size = spec.hidden;
        let gates = self.gates;
        let [gate_act, candidate_act, cell_act] = [0, 1, 2].map(|i| gates.activations[i]);
        add(gates.from_input, gates.from_hidden);

        // Gates are in the order input, output, forget, cell; peepholes in that of the first three.
        let (input, rest) = gates.from_input.split_at_mut(size);
        let (output, rest) = rest.split_at_mut(size);
        let (forget, candidate) = rest.split_at_mut(size);
        let has_peepholes = !gates.peepholes.is_empty();
        if has_peepholes {
            add_products(input, &gates.peepholes[..size], gates.cell);
            add_products(forget, &gates.peepholes[2 * size..], gates.cell);
        }
        activate::<FMA>(spec, gate_act, input);
        // `input_forget` couples the gates: what comes in takes the place of what is forgotten.
        match spec.couple {
            true => forget
                .iter_mut()
                .zip(&*input)
                .for_each(|(forget, input)| *forget = 1.0 - input),
            false => activate::<FMA>(spec, gate_act, forget),
        }
        activate::<FMA>(spec, candidate_act, candidate);
        multiply(candidate, input);
        multiply(gates.cell, forget);
        add(gates.cell, candidate);

        // The output gate looks at the new cell state already.
        if has_peepholes {
            add_products(output, &gates.peepholes[size..2 * size], gates.cell);
        }
        activate::<FMA>(spec, gate_act, output);
        gates.hidden.copy_from_slice(gates.cell);
        activate_unbounded::<FMA>(cell_act, gates.hidden);
        multiply(gates.hidden, output);
    }
}

/// An activation of sums, which are bounded first where the layer says so.
#[inline(always)]
fn activate<const FMA: bool>(spec: &RecurrentSpec, gate: Gate, sums: &mut [f32]) {
    if spec.clip > 0.0 {
        let bound = spec.clip;
        sums.iter_mut()
            .for_each(|sum| *sum = sum.clamp(-bound, bound));
    }
    activate_unbounded::<FMA>(gate, sums);
}

/// A loop for each activation: one that asked in each element would not be vectors.
#[inline(always)]
fn activate_unbounded<const FMA: bool>(gate: Gate, sums: &mut [f32]) {
    match gate {
        Gate::Sigmoid => each(sums, |sum| 1.0 / (1.0 + (-sum).exp_fast::<FMA>())),
        Gate::Tanh => each(sums, |sum| sum.tanh_fast::<FMA>()),
        Gate::Relu => each(sums, |sum| sum.max(0.0)),
        Gate::HardSigmoid => each(sums, |sum| (0.2 * sum + 0.5).clamp(0.0, 1.0)),
        Gate::Softsign => each(sums, |sum| sum / (1.0 + sum.abs())),
    }
}

#[inline(always)]
fn each(values: &mut [f32], function: impl Fn(f32) -> f32) {
    for value in values {
        *value = function(*value);
    }
}

#[inline(always)]
fn add(to: &mut [f32], values: &[f32]) {
    for (sum, value) in to.iter_mut().zip(values) {
        *sum += value;
    }
}

#[inline(always)]
fn multiply(to: &mut [f32], values: &[f32]) {
    for (product, value) in to.iter_mut().zip(values) {
        *product *= value;
    }
}

#[inline(always)]
fn add_products(to: &mut [f32], weights: &[f32], values: &[f32]) {
    for ((sum, weight), value) in to.iter_mut().zip(weights).zip(values) {
        *sum += weight * value;
    }
}
