//! Recurrent layers: a group of threads goes through all steps of one sequence, the state in shared memory.

use super::super::recurrent::{Cell, Direction, Gate, RecurrentSpec};
use super::{Gpu, Lowered};
use zbmd_gpu_ir::lang::{Builder, Shared, Ty, Val};
use zbmd_gpu_ir::math::tanh;
use zbmd_gpu_ir::tensor::function::{greatest, least, sigmoid};
use zbmd_gpu_ir::tensor::{Tensor, TensorKernelBuilder, Why, computed};
use zbmd_gpu_ir::{Amount, Grid, KernelPlan};

/// Threads of a group.
const LOCAL: u32 = 128;
/// Max hidden units: two states of them, and one in the making, are in shared memory.
const MAX_HIDDEN: usize = 1024;

/// Numbers of the gates, in the order of the rows of the weights.
mod lstm {
    pub(super) const INPUT: u32 = 0;
    pub(super) const OUTPUT: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const CELL: u32 = 3;
}

/// The same of GRUs.
mod gru {
    pub(super) const UPDATE: u32 = 0;
    pub(super) const RESET: u32 = 1;
    pub(super) const HIDDEN: u32 = 2;
}

/// An activation of a gate.
fn apply<'k>(gate: Gate, value: Val<'k>) -> Val<'k> {
    let k = value.builder();
    let zero = k.f32(0.0);
    let one = k.f32(1.0);
    match gate {
        Gate::Sigmoid => sigmoid(value),
        Gate::Tanh => tanh(value),
        Gate::Relu => greatest(value, zero),
        Gate::HardSigmoid => {
            let line = k.f32(0.2) * value + k.f32(0.5);
            greatest(least(line, one), zero)
        }
        Gate::Softsign => value / (one + value.abs()),
    }
}

/// What every direction and step has: operands and sizes bound to a kernel, and the states of the group's sequence.
struct Layer<'k> {
    k: &'k Builder,
    cell: Cell,
    /// Weights of the input and of the state.
    input_weights: Tensor<'k>,
    state_weights: Tensor<'k>,
    bias: Option<Tensor<'k>>,
    sequence: Tensor<'k>,
    /// Elements of a step's input.
    input: Val<'k>,
    hidden: Val<'k>,
    gates: u32,
    /// Bounds on what activations are given; none where it is not positive.
    clip: f32,
    activations: Vec<Gate>,
    /// Weights from the cell state to the gates of an LSTM.
    peepholes: Option<Tensor<'k>>,
    /// Whether an LSTM forgets as much as it takes in.
    is_coupled: bool,
    /// Whether the reset gate of a GRU comes after the product with the state.
    resets_after: bool,
    state: Shared<'k>,
    /// The cell state of an LSTM; of a GRU, what its reset gate leaves of the state.
    cell_state: Shared<'k>,
    /// The state in the making, because all units read the one before.
    next_state: Shared<'k>,
    steps: Val<'k>,
    batch: Val<'k>,
    ways: Val<'k>,
    is_batchwise: bool,
    direction: Direction,
    lengths: Option<Tensor<'k>>,
    outputs: LayerOutputs<'k>,
}

/// The outputs that are wanted: the states of all steps, and the last ones.
struct LayerOutputs<'k> {
    states: Option<Tensor<'k>>,
    last_state: Option<Tensor<'k>>,
    last_cell: Option<Tensor<'k>>,
}

/// The sequence that a group goes through.
struct Sequence<'k> {
    firing: Val<'k>,
    batch: Val<'k>,
    /// Direction: 0, or 1 for the second one of two.
    way: Val<'k>,
    /// First element of its states in the tensors of first and last states.
    state_start: Val<'k>,
    /// Steps that it has.
    len: Val<'k>,
}

/// Where a step of a sequence is.
struct Step<'k> {
    firing: Val<'k>,
    way: Val<'k>,
    /// First element of its input.
    input_start: Val<'k>,
}

impl<'k> Layer<'k> {
    fn clipped(&self, value: Val<'k>) -> Val<'k> {
        if self.clip <= 0.0 {
            return value;
        }
        let low = self.k.f32(-self.clip);
        let high = self.k.f32(self.clip);
        greatest(least(value, high), low)
    }

    /// Activation number `i` of a clipped value.
    fn activate(&self, i: usize, value: Val<'k>) -> Val<'k> {
        apply(self.activations[i], self.clipped(value))
    }

    /// The row of the weights of a gate of a unit.
    fn weight_row(&self, step: &Step<'k>, gate: u32, unit: Val<'k>) -> Val<'k> {
        step.way * (self.hidden * self.gates) + self.hidden * gate + unit
    }

    /// A gate of a unit from the step's input, with its bias.
    fn input_sum(&self, step: &Step<'k>, gate: u32, unit: Val<'k>) -> Val<'k> {
        let row = self.weight_row(step, gate, unit);
        let sum = self.k.var(self.bias_of(step, gate, unit));
        let row_start = row * self.input;
        self.k.times(self.input, |i| {
            let value = self.sequence.get(step.firing, step.input_start + i);
            let weight = self.input_weights.get(step.firing, row_start + i);
            sum.set(self.k.fma(value, weight, sum.get()));
        });
        sum.get()
    }

    /// Each way has the biases of the gates from the input, then those from the state.
    fn bias_of(&self, step: &Step<'k>, row: u32, unit: Val<'k>) -> Val<'k> {
        match self.bias {
            Some(bias) => {
                let biases_per_way = self.hidden * (2 * self.gates);
                let place = step.way * biases_per_way + self.hidden * row + unit;
                bias.get(step.firing, place)
            }
            None => self.k.f32(0.0),
        }
    }

    /// A gate of a unit from a state in shared memory, with its bias.
    fn state_sum(&self, step: &Step<'k>, gate: u32, unit: Val<'k>, state: Shared<'k>) -> Val<'k> {
        let row = self.weight_row(step, gate, unit);
        let sum = self.k.var(self.bias_of(step, self.gates + gate, unit));
        let row_start = row * self.hidden;
        self.k.times(self.hidden, |i| {
            let value = state.get(i);
            let weight = self.state_weights.get(step.firing, row_start + i);
            sum.set(self.k.fma(value, weight, sum.get()));
        });
        sum.get()
    }

    /// A gate of a unit from the step's input and the state before, without its activation.
    fn gate_sum(&self, step: &Step<'k>, gate: u32, unit: Val<'k>) -> Val<'k> {
        self.input_sum(step, gate, unit) + self.state_sum(step, gate, unit, self.state)
    }

    /// All statements of sequence `n` of all firings.
    fn run_sequence(&self, n: Val<'k>, first_states: [Option<Tensor<'k>>; 2]) {
        let k = self.k;
        let batch = n % self.batch;
        let way_number = n / self.batch;
        let way = way_number % self.ways;
        let firing = way_number / self.ways;
        let state_row = match self.is_batchwise {
            true => batch * self.ways + way,
            false => way * self.batch + batch,
        };
        let state_start = state_row * self.hidden;

        k.each_local(self.hidden, |unit| {
            let [first_state, first_cell] = first_states;
            let place = |tensor| value_or_zero(tensor, firing, state_start + unit);
            self.state.set(unit, place(first_state));
            self.cell_state.set(unit, place(first_cell));
        });
        k.barrier();

        let len = match self.lengths {
            Some(lengths) => {
                let given = lengths.index(firing, batch);
                given.max(k.i32(0)).cast(Ty::U32).min(self.steps)
            }
            None => self.steps,
        };
        let sequence = Sequence {
            firing,
            batch,
            way,
            state_start,
            len,
        };
        // Steps behind the end of a sequence are taken too, because they show zeros.
        k.times(self.steps, |s| self.run_step(&sequence, s));

        self.store_last(&sequence);
        // The next sequence's states are written over these.
        k.barrier();
    }

    /// Where step `s` of a sequence is in the tensors: backwards, from the last step that it has.
    fn step_place(&self, sequence: &Sequence<'k>, s: Val<'k>) -> Val<'k> {
        let k = self.k;
        let turned = sequence.len - 1 - s;
        match self.direction {
            Direction::Reverse => k.select(s.lt(sequence.len), turned, s),
            Direction::Bidirectional => {
                let is_turned = sequence.way.ne(k.u32(0)) & s.lt(sequence.len);
                k.select(is_turned, turned, s)
            }
            Direction::Forward => s,
        }
    }

    /// All statements of step `s`. Steps behind the end of a sequence leave its state as it is, and show 0.
    fn run_step(&self, sequence: &Sequence<'k>, s: Val<'k>) {
        let k = self.k;
        let Sequence {
            firing, batch, way, ..
        } = *sequence;
        let place = self.step_place(sequence, s);
        let shown_row = match self.is_batchwise {
            true => (batch * self.steps + place) * self.ways + way,
            false => (place * self.ways + way) * self.batch + batch,
        };
        let input_row = match self.is_batchwise {
            true => batch * self.steps + place,
            false => place * self.batch + batch,
        };
        let step = Step {
            firing,
            way,
            input_start: input_row * self.input,
        };
        let is_within = s.lt(sequence.len);

        if self.cell == Cell::Gru && !self.resets_after {
            // What the reset gate leaves of the state, before the product of the new gate.
            k.each_local(self.hidden, |unit| {
                let reset = self.activate(0, self.gate_sum(&step, gru::RESET, unit));
                self.cell_state.set(unit, reset * self.state.get(unit));
            });
            k.barrier();
        }
        // Every unit reads the whole state, so that the next one is made beside it.
        k.each_local(self.hidden, |unit| {
            self.next_state.set(unit, self.next_of_unit(&step, unit));
        });
        k.barrier();

        k.each_local(self.hidden, |unit| {
            let value = k.select(is_within, self.next_state.get(unit), self.state.get(unit));
            self.state.set(unit, value);
            if let Some(states) = self.outputs.states {
                states.put(
                    firing,
                    shown_row * self.hidden + unit,
                    k.select(is_within, value, k.f32(0.0)),
                );
            }
        });
        k.barrier();
    }

    fn store_last(&self, sequence: &Sequence<'k>) {
        self.k.each_local(self.hidden, |unit| {
            if let Some(last) = self.outputs.last_state {
                let place = sequence.state_start + unit;
                last.put(sequence.firing, place, self.state.get(unit));
            }
            if let Some(last) = self.outputs.last_cell {
                let place = sequence.state_start + unit;
                last.put(sequence.firing, place, self.cell_state.get(unit));
            }
        });
    }

    /// The next hidden state of a unit; the cell state of an LSTM is set.
    fn next_of_unit(&self, step: &Step<'k>, unit: Val<'k>) -> Val<'k> {
        let one = self.k.f32(1.0);
        match self.cell {
            Cell::Rnn => self.activate(0, self.gate_sum(step, 0, unit)),
            Cell::Gru => self.next_of_gru(step, unit, one),
            Cell::Lstm => self.next_of_lstm(step, unit, one),
        }
    }

    /// h' = (1 − z) · n + z · h.
    fn next_of_gru(&self, step: &Step<'k>, unit: Val<'k>, one: Val<'k>) -> Val<'k> {
        let update = self.activate(0, self.gate_sum(step, gru::UPDATE, unit));
        let new_sum = match self.resets_after {
            true => {
                let reset = self.activate(0, self.gate_sum(step, gru::RESET, unit));
                self.input_sum(step, gru::HIDDEN, unit)
                    + reset * self.state_sum(step, gru::HIDDEN, unit, self.state)
            }
            false => {
                self.input_sum(step, gru::HIDDEN, unit)
                    + self.state_sum(step, gru::HIDDEN, unit, self.cell_state)
            }
        };
        (one - update) * self.activate(1, new_sum) + update * self.state.get(unit)
    }

    /// c' = f · c + i · g, h' = o · act(c').
    fn next_of_lstm(&self, step: &Step<'k>, unit: Val<'k>, one: Val<'k>) -> Val<'k> {
        let old_cell = self.cell_state.get(unit);
        let input = self.lstm_gate(step, lstm::INPUT, unit, old_cell);
        let forget = match self.is_coupled {
            true => one - input,
            false => self.lstm_gate(step, lstm::FORGET, unit, old_cell),
        };
        let kept = forget * old_cell;
        let candidate = self.activate(1, self.gate_sum(step, lstm::CELL, unit));
        let new_cell = kept + input * candidate;
        let output = self.lstm_gate(step, lstm::OUTPUT, unit, new_cell);
        self.cell_state.set(unit, new_cell);
        output * apply(self.activations[2], new_cell)
    }

    /// A gate that may see the cell state.
    fn lstm_gate(&self, step: &Step<'k>, gate: u32, unit: Val<'k>, cell: Val<'k>) -> Val<'k> {
        let sum = self.gate_sum(step, gate, unit);
        let seen_sum = match self.peepholes {
            Some(peepholes) => {
                let place = step.way * (self.hidden * 3) + self.hidden * gate + unit;
                sum + peepholes.get(step.firing, place) * cell
            }
            None => sum,
        };
        self.activate(0, seen_sum)
    }
}

/// A first state: 0 where none is given.
fn value_or_zero<'k>(tensor: Option<Tensor<'k>>, firing: Val<'k>, place: Val<'k>) -> Val<'k> {
    match tensor {
        Some(tensor) => tensor.get(firing, place),
        None => place.builder().f32(0.0),
    }
}

impl Gpu<'_> {
    pub(in super::super) fn recurrent(&self, spec: &RecurrentSpec) -> Lowered {
        if spec.hidden > MAX_HIDDEN {
            return Err(format!(
                "{} hidden units are more than shared memory holds",
                spec.hidden
            ));
        }
        let activations = common_activations(spec)?;
        if computed(self.dtype(0)?)? != Ty::F32 {
            return Err("recurrent layers are computed in f32".to_owned());
        }

        // Operands in the operator's order, which is that of the CPU kernel too.
        let bench = TensorKernelBuilder::new("recurrent layer", LOCAL);
        let k = &bench.k;
        let sequence = bench.reads(self.slot(0)?)?;
        let input_weights = bench.reads(self.slot(1)?)?;
        let state_weights = bench.reads(self.slot(2)?)?;
        let bias = self.bind_optional(&bench, 3)?;
        let lengths = self.bind_index(&bench, 4)?;
        let first_state = self.bind_optional(&bench, 5)?;
        let first_cell = self.bind_optional(&bench, 6)?;
        let peepholes = self.bind_optional(&bench, 7)?;
        let bind_output = |position: usize| {
            self.wanted(position)
                .map(|slot| bench.writes(slot))
                .transpose()
        };
        let outputs = LayerOutputs {
            states: bind_output(0)?,
            last_state: bind_output(1)?,
            last_cell: bind_output(2)?,
        };

        let units = spec.hidden as u32;
        let layer = Layer {
            k,
            cell: spec.cell,
            input_weights,
            state_weights,
            bias,
            sequence,
            gates: spec.cell.gates() as u32,
            clip: spec.clip,
            activations,
            peepholes,
            is_coupled: spec.couple,
            resets_after: spec.reset_after,
            state: k.shared(Ty::F32, units),
            cell_state: k.shared(Ty::F32, units),
            next_state: k.shared(Ty::F32, units),
            hidden: bench.size(spec.hidden)?,
            input: bench.size(spec.input)?,
            steps: bench.size(spec.steps)?,
            batch: bench.size(spec.batch)?,
            ways: bench.size(spec.ways)?,
            is_batchwise: spec.batchwise,
            direction: spec.direction,
            lengths,
            outputs,
        };
        // A group for each sequence and direction: steps follow on each other and share the state, in the
        // group's own memory.
        k.each_group(k.firings() * layer.ways * layer.batch, |n| {
            layer.run_sequence(n, [first_state, first_cell]);
        });

        if lengths.is_some() && spec.cell == Cell::Lstm {
            return Err("no GPU kernel for LSTM sequences of different lengths".to_owned());
        }
        let grid = Grid::Groups(Amount::each((spec.ways * spec.batch) as u64));
        Ok(bench.finish(KernelPlan::default(), grid))
    }
}

/// The activations of the first way; the second must have the same.
fn common_activations(spec: &RecurrentSpec) -> Result<Vec<Gate>, Why> {
    let activations_per_way = spec.activations.len() / spec.ways;
    let mut ways = spec.activations.chunks(activations_per_way);
    let first_way = ways.next().unwrap_or_default();
    if ways.any(|way| way != first_way) {
        return Err("no GPU kernel for directions with different activations".to_owned());
    }
    Ok(first_way.to_vec())
}
