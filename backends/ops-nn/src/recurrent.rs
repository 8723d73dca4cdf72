//! Recurrent layers over whole sequences: RNN, GRU, LSTM. Matrices are packed when they are constants.

mod spec;

use super::cx::{Body, Cx, Plan, Planned, Tensors, constant_f32, index_at, token};
use super::gemm::{Extra, Left, MatrixLayout, ProductSize, gemm, pack, packed_len};
use super::num::Float;

pub(super) use spec::{Cell, Direction, Gate, RecurrentSpec};

fn apply_gate(gate: Gate, sum: f32) -> f32 {
    match gate {
        Gate::Sigmoid => sum.sigmoid(),
        Gate::Tanh => sum.tanh(),
        Gate::Relu => sum.max(0.0),
        Gate::HardSigmoid => (0.2 * sum + 0.5).clamp(0.0, 1.0),
        Gate::Softsign => sum / (1.0 + sum.abs()),
    }
}

/// A recurrent layer of any cell.
pub(super) fn recurrent(cx: &Cx<'_>, spec: &RecurrentSpec) -> Planned {
    let wanted = cx.wanted.iter();
    let outs = wanted
        .map(|&output| {
            let dims = if output == 0 {
                spec.sequence_dims()
            } else {
                spec.state_dims()
            };
            token(spec.dtype, &dims)
        })
        .collect();

    // One multiply-add for each weight of both matrices, in each step of each sequence.
    let gate_rows = spec.steps * spec.batch * spec.ways * spec.cell.gates() * spec.hidden;
    let flops = 2.0 * (gate_rows * (spec.input + spec.hidden)) as f64;

    let mut body = Recurrent {
        spec: spec.clone(),
        wanted: cx.wanted.clone(),
        packed: None,
    };
    let input_weights = cx.operand(1)?.clone();
    let state_weights = cx.operand(2)?.clone();
    let make_body = move || {
        let constants = (constant_f32(&input_weights), constant_f32(&state_weights));
        if let (Some(input_matrix), Some(state_matrix)) = constants {
            let mut packed = vec![0.0; body.packed_len()];
            body.pack(&input_matrix, &state_matrix, &mut packed);
            body.packed = Some(packed);
        }
        Ok(Box::new(body) as Box<dyn Body>)
    };
    Ok(Plan::lazy(outs, make_body).flops(flops))
}

#[derive(Clone)]
struct Recurrent {
    spec: RecurrentSpec,
    wanted: Vec<usize>,
    /// The matrices of all ways, where they are constants.
    packed: Option<Vec<f32>>,
}

/// The operands that a sequence is computed from, beside the matrices.
struct Operands<'a> {
    sequence: &'a [f32],
    biases: &'a [f32],
    /// Integers of the type that the spec names; empty where all sequences have all steps.
    lengths: &'a [u8],
    first_hidden: &'a [f32],
    first_cell: &'a [f32],
    peepholes: &'a [f32],
}

/// The outputs; those that are not wanted are empty.
struct Outputs<'a> {
    hidden_states: &'a mut [f32],
    last_hidden: &'a mut [f32],
    last_cell: &'a mut [f32],
}

/// What a sequence keeps from step to step, and memory for one step.
struct State<'a> {
    hidden: &'a mut [f32],
    cell: &'a mut [f32],
    /// Sums of all gates from the input, and from the hidden state.
    from_input: &'a mut [f32],
    from_hidden: &'a mut [f32],
    /// GRU whose reset gate acts first: the hidden state behind the gate, and its product.
    reset_hidden: &'a mut [f32],
    from_reset: &'a mut [f32],
}

/// The weights of one way through the sequence.
struct Way<'a> {
    number: usize,
    input_matrix: &'a [f32],
    state_matrix: &'a [f32],
    input_bias: Option<&'a [f32]>,
    state_bias: Option<&'a [f32]>,
    peepholes: &'a [f32],
    activations: &'a [Gate],
    is_reversed: bool,
}

/// What meets in a step of one batch.
struct StepGates<'a> {
    /// Sums of all gates from the input, and from the hidden state.
    from_input: &'a [f32],
    from_hidden: &'a [f32],
    peepholes: &'a [f32],
    activations: &'a [Gate],
    /// The new gate from the hidden state behind the reset gate, where that acts first.
    from_reset: Option<&'a [f32]>,
}

impl Recurrent {
    /// Gates of a step, in elements.
    fn gate_width(&self) -> usize {
        self.spec.cell.gates() * self.spec.hidden
    }

    /// The input matrix of one way, which ONNX stores with a row for each gate: transposed for a product from the left.
    fn input_layout(&self) -> MatrixLayout {
        MatrixLayout::column_major(self.spec.input, self.gate_width())
    }

    /// The recurrent matrix of one way, transposed likewise.
    fn state_layout(&self) -> MatrixLayout {
        MatrixLayout::column_major(self.spec.hidden, self.gate_width())
    }

    /// Floats of the packed matrices of all ways.
    fn packed_len(&self) -> usize {
        let way_length = self.input_layout().packed_len() + self.state_layout().packed_len();
        self.spec.ways * way_length
    }

    /// Packs the matrices: for each way that of the input, then the recurrent one.
    fn pack(&self, input_matrix: &[f32], state_matrix: &[f32], packed: &mut [f32]) {
        let input_layout = self.input_layout();
        let state_layout = self.state_layout();
        let input_length = input_layout.packed_len();
        let way_length = input_length + state_layout.packed_len();

        for (way, packed_way) in packed.chunks_exact_mut(way_length).enumerate() {
            let (packed_input, packed_state) = packed_way.split_at_mut(input_length);
            // W is [ways, gates · hidden, input], R [ways, gates · hidden, hidden].
            let first_row = way * self.gate_width();
            let way_input = &input_matrix[first_row * self.spec.input..];
            let way_state = &state_matrix[first_row * self.spec.hidden..];
            pack(way_input, input_layout, packed_input);
            pack(way_state, state_layout, packed_state);
        }
    }

    /// The weights of one way. Biases, peepholes and activations of all ways are one after the other.
    fn way<'a>(&'a self, number: usize, packed: &'a [f32], operands: &Operands<'a>) -> Way<'a> {
        let input_length = packed_len(self.spec.input, self.gate_width());
        let way_length = input_length + packed_len(self.spec.hidden, self.gate_width());
        let matrices = &packed[number * way_length..][..way_length];
        let (input_matrix, state_matrix) = matrices.split_at(input_length);

        // B has the biases of W and then those of R for each way; each goes with its own product.
        let bias_length = 2 * self.gate_width();
        let biases = part_of(operands.biases, number, bias_length);
        let (input_bias, state_bias) = biases.split_at(biases.len() / 2);

        let activation_count = self.spec.activations.len() / self.spec.ways;
        Way {
            number,
            input_matrix,
            state_matrix,
            input_bias: Some(input_bias).filter(|bias| !bias.is_empty()),
            state_bias: Some(state_bias).filter(|bias| !bias.is_empty()),
            peepholes: part_of(operands.peepholes, number, 3 * self.spec.hidden),
            activations: &self.spec.activations[number * activation_count..],
            is_reversed: self.spec.direction.turns(number),
        }
    }

    /// Element at which the state of a way and a batch begins.
    fn state_start(&self, way: usize, batch: usize) -> usize {
        let number = if self.spec.batchwise {
            batch * self.spec.ways + way
        } else {
            way * self.spec.batch + batch
        };
        number * self.spec.hidden
    }

    /// Element of the hidden states of all steps at which that of a way, a step and a batch begins.
    fn output_start(&self, way: usize, step: usize, batch: usize) -> usize {
        let number = if self.spec.batchwise {
            (batch * self.spec.steps + step) * self.spec.ways + way
        } else {
            (step * self.spec.ways + way) * self.spec.batch + batch
        };
        number * self.spec.hidden
    }

    /// Element at which the input of a step of a batch begins.
    fn input_start(&self, step: usize, batch: usize) -> usize {
        let number = if self.spec.batchwise {
            batch * self.spec.steps + step
        } else {
            step * self.spec.batch + batch
        };
        number * self.spec.input
    }

    /// Steps of the sequence of a batch.
    fn sequence_length(&self, lengths: &[u8], batch: usize) -> usize {
        let steps = self.spec.steps;
        self.spec.lengths.map_or(steps, |dtype| {
            index_at(lengths, dtype, batch).clamp(0, steps as i64) as usize
        })
    }

    /// One sequence in one direction.
    fn run_sequence(
        &self,
        way: &Way<'_>,
        batch: usize,
        operands: &Operands<'_>,
        state: &mut State<'_>,
        outputs: &mut Outputs<'_>,
    ) {
        let hidden_size = self.spec.hidden;
        let state_start = self.state_start(way.number, batch);
        copy_state(operands.first_hidden, state_start, state.hidden);
        copy_state(operands.first_cell, state_start, state.cell);

        let length = self.sequence_length(operands.lengths, batch);
        for k in 0..self.spec.steps {
            // A reversed way begins with the last step that the sequence has; what is behind it stays in order.
            let is_turned = way.is_reversed && k < length;
            let step = if is_turned { length - 1 - k } else { k };
            let output_start = self.output_start(way.number, step, batch);
            let output = outputs
                .hidden_states
                .get_mut(output_start..output_start + hidden_size);

            // ONNX has zeros behind the end of a shorter sequence; the state stays that of its last real step.
            if k >= length {
                if let Some(output) = output {
                    output.fill(0.0);
                }
                continue;
            }
            let step_input = &operands.sequence[self.input_start(step, batch)..];
            self.step(way, step_input, state);
            if let Some(output) = output {
                output.copy_from_slice(state.hidden);
            }
        }

        let state_range = state_start..state_start + hidden_size;
        if let Some(last) = outputs.last_hidden.get_mut(state_range.clone()) {
            last.copy_from_slice(state.hidden);
        }
        if let Some(last) = outputs.last_cell.get_mut(state_range) {
            last.copy_from_slice(state.cell);
        }
    }

    /// One step: the products with both matrices, then the gates.
    fn step(&self, way: &Way<'_>, step_input: &[f32], state: &mut State<'_>) {
        let hidden_size = self.spec.hidden;
        self.gate_sums(
            Left::dense(step_input, self.spec.input),
            way.input_matrix,
            way.input_bias,
            state.from_input,
        );
        // The recurrent product takes the state of the step before, which no gate has changed yet.
        let hidden_row = Left::dense(state.hidden, hidden_size);
        self.gate_sums(
            hidden_row,
            way.state_matrix,
            way.state_bias,
            state.from_hidden,
        );

        let mut from_reset = None;
        if self.spec.cell == Cell::Gru && !self.spec.reset_after {
            // The reset gate acts before the product: that of its gate alone is done again.
            for i in 0..hidden_size {
                let sum = state.from_input[hidden_size + i] + state.from_hidden[hidden_size + i];
                let reset = apply_gate(way.activations[0], self.bounded(sum));
                state.reset_hidden[i] = reset * state.hidden[i];
            }
            let reset_row = Left::dense(state.reset_hidden, hidden_size);
            self.gate_sums(
                reset_row,
                way.state_matrix,
                way.state_bias,
                state.from_reset,
            );
            // Gates are in the order update, reset, new.
            from_reset = Some(&state.from_reset[2 * hidden_size..3 * hidden_size]);
        }

        let gates = StepGates {
            from_input: state.from_input,
            from_hidden: state.from_hidden,
            peepholes: way.peepholes,
            activations: way.activations,
            from_reset,
        };
        self.join_gates(&gates, state.hidden, state.cell);
    }

    /// The sums of all gates: one row times a packed matrix.
    fn gate_sums(&self, row: Left<'_>, matrix: &[f32], bias: Option<&[f32]>, sums: &mut [f32]) {
        let size = ProductSize {
            rows: 1,
            depth: row.row_step,
            columns: self.gate_width(),
        };
        let extra = Extra {
            column_bias: bias,
            ..Extra::default()
        };
        gemm(size, row, matrix, sums, size.columns, extra);
    }

    fn bounded(&self, sum: f32) -> f32 {
        if self.spec.clip > 0.0 {
            sum.clamp(-self.spec.clip, self.spec.clip)
        } else {
            sum
        }
    }

    /// Joins the gates of one batch; biases are in both parts. The formulas are those of the ONNX operators.
    fn join_gates(&self, gates: &StepGates<'_>, hidden: &mut [f32], cell: &mut [f32]) {
        let StepGates {
            from_input,
            from_hidden,
            peepholes,
            activations,
            from_reset,
        } = *gates;
        let hidden_size = self.spec.hidden;
        let peephole = |gate: usize, i: usize| {
            let weight = peepholes.get(gate * hidden_size + i);
            weight.copied().unwrap_or(0.0)
        };

        for i in 0..hidden_size {
            let sum = |gate: usize| {
                from_input[gate * hidden_size + i] + from_hidden[gate * hidden_size + i]
            };
            match self.spec.cell {
                Cell::Rnn => hidden[i] = apply_gate(activations[0], self.bounded(sum(0))),

                Cell::Gru => {
                    let update = apply_gate(activations[0], self.bounded(sum(0)));
                    // g(x·W + (r ⊙ h)·R) where the reset gate acts first, g(x·W + r ⊙ (h·R)) otherwise.
                    let input_part = from_input[2 * hidden_size + i];
                    let new_sum = match from_reset {
                        Some(from_reset) => input_part + from_reset[i],
                        None => {
                            let reset = apply_gate(activations[0], self.bounded(sum(1)));
                            input_part + reset * from_hidden[2 * hidden_size + i]
                        }
                    };
                    let new_hidden = apply_gate(activations[1], self.bounded(new_sum));
                    hidden[i] = (1.0 - update) * new_hidden + update * hidden[i];
                }

                // Gates are in the order input, output, forget, cell; peepholes in that of the first three.
                Cell::Lstm => {
                    let input_sum = sum(0) + peephole(0, i) * cell[i];
                    let input_gate = apply_gate(activations[0], self.bounded(input_sum));
                    // `input_forget` couples the gates: what comes in takes the place of what is forgotten.
                    let forget_gate = if self.spec.couple {
                        1.0 - input_gate
                    } else {
                        let forget_sum = sum(2) + peephole(2, i) * cell[i];
                        apply_gate(activations[0], self.bounded(forget_sum))
                    };
                    let candidate = apply_gate(activations[1], self.bounded(sum(3)));
                    let next_cell = forget_gate * cell[i] + input_gate * candidate;

                    // The output gate looks at the new cell state already.
                    let output_sum = sum(1) + peephole(1, i) * next_cell;
                    let output_gate = apply_gate(activations[0], self.bounded(output_sum));
                    cell[i] = next_cell;
                    hidden[i] = output_gate * apply_gate(activations[2], next_cell);
                }
            }
        }
    }
}

/// Part `number` of an operand that has one for each way; empty where the operand is missing.
fn part_of(operand: &[f32], number: usize, length: usize) -> &[f32] {
    let part = operand.get(number * length..(number + 1) * length);
    part.unwrap_or_default()
}

/// The state that a sequence begins with: zeros where it is not given.
fn copy_state(first_states: &[f32], start: usize, state: &mut [f32]) {
    match first_states.get(start..start + state.len()) {
        Some(first) => state.copy_from_slice(first),
        None => state.fill(0.0),
    }
}

impl Body for Recurrent {
    fn run(&self, t: &mut Tensors<'_>) {
        let operands = Operands {
            sequence: t.get(0),
            biases: t.get(3),
            lengths: t.bytes(4),
            first_hidden: t.get(5),
            first_cell: t.get(6),
            peepholes: t.get(7),
        };
        let mut output_slices: [&mut [f32]; 3] = Default::default();
        for (i, &output) in self.wanted.iter().enumerate() {
            output_slices[output] = t.out::<f32>(i);
        }
        let [hidden_states, last_hidden, last_cell] = output_slices;
        let mut outputs = Outputs {
            hidden_states,
            last_hidden,
            last_cell,
        };

        // Matrices that come by ports are packed in each firing.
        let scratch = t.scratch::<f32>();
        let (own_packed, rest) = scratch.split_at_mut(self.own_packed_len());
        if self.packed.is_none() {
            self.pack(t.get(1), t.get(2), own_packed);
        }
        let packed = self.packed.as_deref().unwrap_or(own_packed);

        // The rest of the scratch memory is the state of one sequence, used again by each.
        let (from_input, rest) = rest.split_at_mut(self.gate_width());
        let (from_hidden, rest) = rest.split_at_mut(self.gate_width());
        let (hidden, rest) = rest.split_at_mut(self.spec.hidden);
        let (cell, rest) = rest.split_at_mut(self.spec.hidden);
        let (reset_hidden, from_reset) = rest.split_at_mut(self.spec.hidden);
        let mut state = State {
            hidden,
            cell,
            from_input,
            from_hidden,
            reset_hidden,
            from_reset,
        };

        for number in 0..self.spec.ways {
            let way = self.way(number, packed, &operands);
            for batch in 0..self.spec.batch {
                self.run_sequence(&way, batch, &operands, &mut state, &mut outputs);
            }
        }
    }

    fn scratch_bytes(&self) -> usize {
        let state_length = 3 * self.gate_width() + 3 * self.spec.hidden;
        4 * (self.own_packed_len() + state_length)
    }
}

impl Recurrent {
    /// Floats of packed matrices in the scratch memory: none where they are constants.
    fn own_packed_len(&self) -> usize {
        match self.packed {
            Some(_) => 0,
            None => self.packed_len(),
        }
    }
}
