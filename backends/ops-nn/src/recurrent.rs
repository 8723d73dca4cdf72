//! Recurrent layers over whole sequences: RNN, GRU, LSTM. Matrices are packed when they are constants.
//!
//! The products of the input with its matrix wait for nothing: those of some steps are made at once, for all sequences. What is
//! left of a step is one product of all hidden states, and the gates.

mod gates;
mod matrices;
mod spec;

use super::aligned::AlignedFloats;
use super::cx::{Body, Cx, Plan, Planned, Tensors, constant_f32, index_at, token};
use super::gemm::{MatrixLayout, Tile, pack, packed_len};
use super::integer::{DynamicMatrix, DynamicWeights, Range};
use gates::{ResetHidden, StepGates};
use matrices::{GateMatrix, GateRows, GateWeights};
use zbmd_ir::TokenType;

pub(super) use spec::{Cell, Direction, Gate, RecurrentSpec};

/// Operands of `DynamicQuantizeLSTM`: a matrix, its scales and its zero points.
const INPUT_MATRIX: [usize; 3] = [1, 8, 9];
const STATE_MATRIX: [usize; 3] = [2, 10, 11];

/// A recurrent layer of any cell.
pub(super) fn recurrent(cx: &Cx<'_>, spec: &RecurrentSpec) -> Planned {
    let own_spec = spec.clone();
    let wanted = cx.wanted.clone();
    let input_weights = cx.operand(1)?.clone();
    let state_weights = cx.operand(2)?.clone();
    let make_body = move |tile: Tile| {
        let mut body = Recurrent {
            spec: own_spec,
            wanted,
            matrices: Matrices::Operands,
            tile,
        };
        let constants = (constant_f32(&input_weights), constant_f32(&state_weights));
        if let (Some(input_matrix), Some(state_matrix)) = constants {
            let mut packed = AlignedFloats::zeroed(body.packed_len());
            body.pack(&input_matrix, &state_matrix, &mut packed);
            body.matrices = Matrices::Packed(packed);
        }
        Ok(Box::new(body) as Box<dyn Body>)
    };
    let plan = Plan::in_variants(outputs(cx, spec), &Tile::ALL, make_body);
    Ok(plan.flops(flops(spec)))
}

/// `DynamicQuantizeLSTM` of the domain `com.microsoft`: the matrices are bytes, and what meets them is quantised as it
/// comes, the input by the range of the whole sequence, hidden states by that of their step.
pub(super) fn quantised_lstm(cx: &Cx<'_>) -> Planned {
    let spec = RecurrentSpec::of_quantised_lstm(cx)?;
    let outs = outputs(cx, &spec);
    // Four products of bytes take the time of one of floats.
    let plan_flops = flops(&spec) / 4.0;
    let wanted = cx.wanted.clone();
    let input_weights = DynamicWeights::of(cx, INPUT_MATRIX)?;
    let state_weights = DynamicWeights::of(cx, STATE_MATRIX)?;
    let make_body = move || {
        let tail_steps = spec.steps % spec.block_steps();
        let input_rows = [spec.block_steps(), tail_steps].map(|steps| steps * spec.batch);
        let body = Recurrent {
            spec: spec.clone(),
            wanted: wanted.clone(),
            matrices: Matrices::Bytes {
                input: input_weights.matrices(&input_rows)?,
                state: state_weights.matrices(&[spec.batch])?,
            },
            tile: Tile::default(),
        };
        Ok(Box::new(body) as Box<dyn Body>)
    };
    Ok(Plan::lazy(outs, make_body).flops(plan_flops))
}

/// Types of the outputs that are wanted.
fn outputs(cx: &Cx<'_>, spec: &RecurrentSpec) -> Vec<TokenType> {
    let wanted = cx.wanted.iter();
    wanted
        .map(|&output| {
            let dims = if output == 0 {
                spec.sequence_dims()
            } else {
                spec.state_dims()
            };
            token(spec.dtype, &dims)
        })
        .collect()
}

/// One multiply-add for each weight of both matrices, in each step of each sequence.
fn flops(spec: &RecurrentSpec) -> f64 {
    let gate_rows = spec.steps * spec.batch * spec.ways * spec.gate_width();
    2.0 * (gate_rows * (spec.input + spec.hidden)) as f64
}

struct Recurrent {
    spec: RecurrentSpec,
    wanted: Vec<usize>,
    matrices: Matrices,
    /// Of products of floats.
    tile: Tile,
}

/// Where the matrices of all ways are.
enum Matrices {
    /// They come by ports, and are packed in each firing.
    Operands,
    /// For each way that of the input, then the recurrent one.
    Packed(AlignedFloats),
    Bytes {
        input: Vec<DynamicMatrix>,
        state: Vec<DynamicMatrix>,
    },
}

/// The operands that sequences are computed from, beside the matrices.
struct Operands<'a> {
    sequence: &'a [f32],
    biases: &'a [f32],
    /// Integers of the type that the spec names; empty where all sequences have all steps.
    lengths: &'a [u8],
    first_hidden: &'a [f32],
    first_cell: &'a [f32],
    peepholes: &'a [f32],
    /// Where the input is quantised: its range.
    range: Option<Range>,
}

/// The outputs; those that are not wanted are empty.
struct Outputs<'a> {
    hidden_states: &'a mut [f32],
    last_hidden: &'a mut [f32],
    last_cell: &'a mut [f32],
}

/// What the sequences keep from step to step, one after the other, and memory for some steps.
struct State<'a> {
    hidden: &'a mut [f32],
    cell: &'a mut [f32],
    /// Sums of all gates from the input, of some steps, and from the hidden states.
    from_input: &'a mut [f32],
    from_hidden: &'a mut [f32],
    /// GRU whose reset gate acts first: the hidden states behind the gate, and their products.
    reset_hidden: &'a mut [f32],
    from_reset: &'a mut [f32],
    /// What products need.
    scratch: &'a mut [u8],
}

/// The weights of one way through the sequences.
struct Way<'a> {
    number: usize,
    input_matrix: GateMatrix<'a>,
    state_matrix: GateMatrix<'a>,
    peepholes: &'a [f32],
    activations: &'a [Gate],
    is_reversed: bool,
}

impl Recurrent {
    /// The input matrix of one way, which ONNX stores with a row for each gate: transposed for a product from the left.
    fn input_layout(&self) -> MatrixLayout {
        MatrixLayout::column_major(self.spec.input, self.spec.gate_width())
    }

    /// The recurrent matrix of one way, transposed likewise.
    fn state_layout(&self) -> MatrixLayout {
        MatrixLayout::column_major(self.spec.hidden, self.spec.gate_width())
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
            let first_row = way * self.spec.gate_width();
            let way_input = &input_matrix[first_row * self.spec.input..];
            let way_state = &state_matrix[first_row * self.spec.hidden..];
            pack(way_input, input_layout, packed_input);
            pack(way_state, state_layout, packed_state);
        }
    }

    /// The weights of one way: those of the input, and the recurrent ones. `packed` are those of floats.
    fn way_weights<'a>(&'a self, number: usize, packed: &'a [f32]) -> [GateWeights<'a>; 2] {
        if let Matrices::Bytes { input, state } = &self.matrices {
            return [&input[number], &state[number]].map(GateWeights::Bytes);
        }
        let input_length = packed_len(self.spec.input, self.spec.gate_width());
        let way_length = input_length + packed_len(self.spec.hidden, self.spec.gate_width());
        let way_packed = &packed[number * way_length..][..way_length];
        let (input, state) = way_packed.split_at(input_length);
        [input, state].map(GateWeights::Floats)
    }

    /// The weights of one way. Biases, peepholes and activations of all ways are one after the other.
    fn way<'a>(&'a self, number: usize, packed: &'a [f32], operands: &Operands<'a>) -> Way<'a> {
        let [input_weights, state_weights] = self.way_weights(number, packed);
        // B has the biases of W and then those of R for each way; each goes with its own product.
        let bias_length = 2 * self.spec.gate_width();
        let biases = part_of(operands.biases, number, bias_length);
        let (input_bias, state_bias) = biases.split_at(biases.len() / 2);

        let matrix = |weights, bias: &'a [f32]| GateMatrix {
            weights,
            columns: self.spec.gate_width(),
            tile: self.tile,
            bias: Some(bias).filter(|bias| !bias.is_empty()),
        };

        let activation_count = self.spec.activations.len() / self.spec.ways;
        Way {
            number,
            input_matrix: matrix(input_weights, input_bias),
            state_matrix: matrix(state_weights, state_bias),
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

    /// Steps of the sequence of a batch.
    fn sequence_length(&self, lengths: &[u8], batch: usize) -> usize {
        let steps = self.spec.steps;
        self.spec.lengths.map_or(steps, |dtype| {
            index_at(lengths, dtype, batch).clamp(0, steps as i64) as usize
        })
    }

    /// All sequences in one direction.
    fn run_way(
        &self,
        way: &Way<'_>,
        operands: &Operands<'_>,
        state: &mut State<'_>,
        outputs: &mut Outputs<'_>,
    ) {
        let spec = &self.spec;
        for batch in 0..spec.batch {
            let start = self.state_start(way.number, batch);
            copy_state(
                operands.first_hidden,
                start,
                row_of(state.hidden, batch, spec.hidden),
            );
            copy_state(
                operands.first_cell,
                start,
                row_of(state.cell, batch, spec.hidden),
            );
        }

        let mut first_step = 0;
        for k in 0..spec.steps {
            let step = if way.is_reversed {
                spec.steps - 1 - k
            } else {
                k
            };
            if k.is_multiple_of(spec.block_steps()) {
                let count = spec.block_steps().min(spec.steps - k);
                first_step = if way.is_reversed {
                    step + 1 - count
                } else {
                    step
                };
                self.put_input_sums(way, first_step, count, operands, state);
            }
            self.run_step(way, step, step - first_step, operands, state, outputs);
        }

        for batch in 0..spec.batch {
            let start = self.state_start(way.number, batch);
            let state_range = start..start + spec.hidden;
            if let Some(last) = outputs.last_hidden.get_mut(state_range.clone()) {
                last.copy_from_slice(row_of(state.hidden, batch, spec.hidden));
            }
            if let Some(last) = outputs.last_cell.get_mut(state_range) {
                last.copy_from_slice(row_of(state.cell, batch, spec.hidden));
            }
        }
    }

    /// The products of some steps of all sequences with the input matrix.
    fn put_input_sums(
        &self,
        way: &Way<'_>,
        first_step: usize,
        count: usize,
        operands: &Operands<'_>,
        state: &mut State<'_>,
    ) {
        let spec = &self.spec;
        let width = spec.gate_width();
        // Steps side by side for each batch, or batches side by side for each step: then all rows are one stretch.
        let (products, rows, row_step) = match spec.batchwise {
            true => (spec.batch, count, spec.batch),
            false => (1, count * spec.batch, 1),
        };
        for product in 0..products {
            let first_row = match spec.batchwise {
                true => product * spec.steps + first_step,
                false => first_step * spec.batch,
            };
            let rows = GateRows {
                count: rows,
                elements: &operands.sequence[first_row * spec.input..],
                depth: spec.input,
                range: operands.range,
            };
            let sums = &mut state.from_input[product * width..];
            let stride = row_step * width;
            way.input_matrix.multiply(rows, sums, stride, state.scratch);
        }
    }

    /// One step of all sequences: the products of their hidden states, then the gates. `row` is the number of the step among
    /// those whose products with the input are there.
    fn run_step(
        &self,
        way: &Way<'_>,
        step: usize,
        row: usize,
        operands: &Operands<'_>,
        state: &mut State<'_>,
        outputs: &mut Outputs<'_>,
    ) {
        let spec = &self.spec;
        let width = spec.gate_width();
        // The recurrent product takes the states of the step before, which no gate has changed yet.
        let rows = self.state_rows(state.hidden);
        way.state_matrix
            .multiply(rows, state.from_hidden, width, state.scratch);

        let from_input = &mut state.from_input[row * spec.batch * width..][..spec.batch * width];
        let resets_first = spec.cell == Cell::Gru && !spec.reset_after;
        if resets_first {
            // The reset gate acts before the product: that of its gate alone is done again.
            for batch in 0..spec.batch {
                let sums = batch * width + spec.hidden..batch * width + 2 * spec.hidden;
                let gate = ResetHidden {
                    from_input: &from_input[sums.clone()],
                    from_hidden: &state.from_hidden[sums],
                    activation: way.activations[0],
                    hidden: row_of(state.hidden, batch, spec.hidden),
                    reset_hidden: row_of(state.reset_hidden, batch, spec.hidden),
                };
                gate.make(spec);
            }
            let rows = self.state_rows(state.reset_hidden);
            way.state_matrix
                .multiply(rows, state.from_reset, width, state.scratch);
        }

        for batch in 0..spec.batch {
            let output_start = self.output_start(way.number, step, batch);
            let output = outputs
                .hidden_states
                .get_mut(output_start..output_start + spec.hidden);
            // ONNX has zeros behind the end of a shorter sequence; the state stays that of its last real step, and a
            // reversed way begins there.
            if step >= self.sequence_length(operands.lengths, batch) {
                if let Some(output) = output {
                    output.fill(0.0);
                }
                continue;
            }

            let hidden = row_of(state.hidden, batch, spec.hidden);
            let gates = StepGates {
                from_input: row_of(from_input, batch, width),
                from_hidden: row_of(state.from_hidden, batch, width),
                from_reset: resets_first.then_some(&state.from_reset[batch * width..][..width]),
                peepholes: way.peepholes,
                activations: way.activations,
                hidden,
                cell: row_of(state.cell, batch, spec.hidden),
            };
            gates.join(spec);
            if let Some(output) = output {
                output.copy_from_slice(row_of(state.hidden, batch, spec.hidden));
            }
        }
    }

    /// The hidden states of all sequences, as rows of a product.
    fn state_rows<'a>(&self, hidden: &'a [f32]) -> GateRows<'a> {
        GateRows {
            count: self.spec.batch,
            elements: hidden,
            depth: self.spec.hidden,
            range: None,
        }
    }

    /// The range by which a quantised input is: that of the steps which some sequence has.
    fn input_range(&self, sequence: &[f32], lengths: &[u8]) -> Option<Range> {
        let Matrices::Bytes { .. } = self.matrices else {
            return None;
        };
        let longest = (0..self.spec.batch).map(|batch| self.sequence_length(lengths, batch));
        let steps = longest.max().unwrap_or(0);
        Some(Range::of(
            &sequence[..steps * self.spec.batch * self.spec.input],
        ))
    }

    /// Bytes of scratch memory for products.
    fn product_scratch_bytes(&self) -> usize {
        let Matrices::Bytes { input, state } = &self.matrices else {
            return 0;
        };
        let spec = &self.spec;
        let input_bytes = input[0].scratch_bytes(spec.block_steps() * spec.batch);
        input_bytes.max(state[0].scratch_bytes(spec.batch))
    }

    /// Floats of packed matrices in the scratch memory: none where they are constants.
    fn own_packed_len(&self) -> usize {
        match self.matrices {
            Matrices::Operands => self.packed_len(),
            _ => 0,
        }
    }

    /// Floats of the parts of [`State`], in the order of its fields.
    fn state_lengths(&self) -> [usize; 6] {
        let spec = &self.spec;
        let states = spec.batch * spec.hidden;
        let sums = spec.batch * spec.gate_width();
        [
            states,
            states,
            spec.block_steps() * sums,
            sums,
            states,
            sums,
        ]
    }
}

/// Part `number` of an operand that has one for each way; empty where the operand is missing.
fn part_of(operand: &[f32], number: usize, length: usize) -> &[f32] {
    let part = operand.get(number * length..(number + 1) * length);
    part.unwrap_or_default()
}

/// Row `number` of rows that are so long.
fn row_of(rows: &mut [f32], number: usize, length: usize) -> &mut [f32] {
    &mut rows[number * length..][..length]
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
        let sequence = t.get(0);
        let lengths = t.bytes(4);
        let operands = Operands {
            sequence,
            biases: t.get(3),
            lengths,
            first_hidden: t.get(5),
            first_cell: t.get(6),
            peepholes: t.get(7),
            range: self.input_range(sequence, lengths),
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
        let (packed_bytes, rest) = t.scratch::<u8>().split_at_mut(4 * self.own_packed_len());
        let own_packed = bytemuck::cast_slice_mut::<u8, f32>(packed_bytes);
        let packed = match &self.matrices {
            Matrices::Packed(packed) => packed,
            Matrices::Operands => {
                self.pack(t.get(1), t.get(2), own_packed);
                &*own_packed
            }
            Matrices::Bytes { .. } => &[],
        };

        let lengths = self.state_lengths();
        let (state_bytes, scratch) = rest.split_at_mut(4 * lengths.iter().sum::<usize>());
        let mut floats = bytemuck::cast_slice_mut::<u8, f32>(state_bytes);
        let [
            hidden,
            cell,
            from_input,
            from_hidden,
            reset_hidden,
            from_reset,
        ] = lengths.map(|length| floats.split_off_mut(..length).unwrap_or_default());
        let mut state = State {
            hidden,
            cell,
            from_input,
            from_hidden,
            reset_hidden,
            from_reset,
            scratch,
        };
        for number in 0..self.spec.ways {
            let way = self.way(number, packed, &operands);
            self.run_way(&way, &operands, &mut state, &mut outputs);
        }
    }

    fn scratch_bytes(&self) -> usize {
        let floats = self.own_packed_len() + self.state_lengths().iter().sum::<usize>();
        4 * floats + self.product_scratch_bytes()
    }
}
