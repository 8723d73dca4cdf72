//! What a recurrent layer is asked to do: parsed once, for CPUs and GPUs.

use zbmd_ir::{DType, Value};

use super::super::attributes;
use super::super::cx::{Cx, FLOATS, computed, volume};
use zbmd_op::OpError;

/// Rows of the input whose products are made at once, if there are as many.
const BLOCK_ROWS: usize = 64;

/// What a layer consists of.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in super::super) enum Cell {
    Rnn,
    Gru,
    Lstm,
}

impl Cell {
    /// Rows of the matrices, in multiples of the hidden size.
    pub(in super::super) fn gates(self) -> usize {
        match self {
            Cell::Rnn => 1,
            Cell::Gru => 3,
            Cell::Lstm => 4,
        }
    }

    /// The activations of a direction, where none are given.
    fn default_activations(self) -> &'static [Gate] {
        match self {
            Cell::Rnn => &[Gate::Tanh],
            Cell::Gru => &[Gate::Sigmoid, Gate::Tanh],
            Cell::Lstm => &[Gate::Sigmoid, Gate::Tanh, Gate::Tanh],
        }
    }
}

/// An activation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) enum Gate {
    Sigmoid,
    Tanh,
    Relu,
    HardSigmoid,
    Softsign,
}

impl Gate {
    fn parse(cx: &Cx<'_>, name: &str) -> Result<Self, OpError> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "sigmoid" => Gate::Sigmoid,
            "tanh" => Gate::Tanh,
            "relu" => Gate::Relu,
            "hardsigmoid" => Gate::HardSigmoid,
            "softsign" => Gate::Softsign,
            other => {
                let known = ["Sigmoid", "Tanh", "Relu", "HardSigmoid", "Softsign"];
                return Err(cx.args.unknown_word("activations", other, &known));
            }
        })
    }
}

/// Which of the last two dimensions of the matrices is that of the gates.
#[derive(Clone, Copy)]
enum MatrixOrder {
    GatesFirst,
    GatesLast,
}

impl MatrixOrder {
    /// Dimensions of a matrix, those of the gates first.
    fn gates_first(self, mut dims: Vec<usize>) -> Vec<usize> {
        if let (MatrixOrder::GatesLast, [_, depth, gates]) = (self, dims.as_mut_slice()) {
            std::mem::swap(depth, gates);
        }
        dims
    }
}

/// In which order a layer goes through the steps of a sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) enum Direction {
    Forward,
    Reverse,
    /// Forward in the first way, reverse in the second.
    Bidirectional,
}

impl Direction {
    /// Whether a way goes from the last step to the first.
    pub(super) fn turns(self, way: usize) -> bool {
        match self {
            Direction::Forward => false,
            Direction::Reverse => true,
            Direction::Bidirectional => way == 1,
        }
    }
}

/// A recurrent layer. Operands: X, W, R, B, lengths, first hidden state, first cell state, peepholes.
#[derive(Clone, Debug)]
pub(in super::super) struct RecurrentSpec {
    pub(in super::super) cell: Cell,
    pub(in super::super) dtype: DType,
    pub(in super::super) steps: usize,
    pub(in super::super) batch: usize,
    pub(in super::super) input: usize,
    pub(in super::super) hidden: usize,
    /// Directions in which the sequence is gone through: 1 or 2.
    pub(in super::super) ways: usize,
    /// Whether batches come before steps in the sequence, and before ways in states.
    pub(in super::super) batchwise: bool,
    pub(in super::super) direction: Direction,
    /// Those of the first way, then those of the second.
    pub(in super::super) activations: Vec<Gate>,
    /// GRU: whether the reset gate acts after the product of the new gate.
    pub(in super::super) reset_after: bool,
    /// LSTM: whether what the input gate lets in is what the forget gate drops.
    pub(in super::super) couple: bool,
    /// 0 where sums are not bounded.
    pub(in super::super) clip: f32,
    /// Type of the lengths of the sequences, where they are given.
    pub(in super::super) lengths: Option<DType>,
}

impl RecurrentSpec {
    /// Dimensions of the hidden states of all steps.
    pub(super) fn sequence_dims(&self) -> Vec<usize> {
        match self.batchwise {
            true => vec![self.batch, self.steps, self.ways, self.hidden],
            false => vec![self.steps, self.ways, self.batch, self.hidden],
        }
    }

    /// Dimensions of a state.
    pub(super) fn state_dims(&self) -> Vec<usize> {
        match self.batchwise {
            true => vec![self.batch, self.ways, self.hidden],
            false => vec![self.ways, self.batch, self.hidden],
        }
    }

    /// Columns of the matrices: all gates of all units.
    pub(super) fn gate_width(&self) -> usize {
        self.cell.gates() * self.hidden
    }

    /// Steps whose products with the input matrix are made at once.
    pub(super) fn block_steps(&self) -> usize {
        BLOCK_ROWS.div_ceil(self.batch).min(self.steps)
    }

    pub(in super::super) fn of(cx: &Cx<'_>, cell: Cell) -> Result<Self, OpError> {
        let dtype = cx.expect(0, &FLOATS)?;
        if dtype == DType::F64 {
            let help = "recurrent layers are computed in f32: cast it";
            return Err(cx.refuse(0, "is f64", help));
        }
        Self::of_matrices(cx, cell, dtype, MatrixOrder::GatesFirst)
    }

    /// An LSTM whose matrices are bytes.
    pub(super) fn of_quantised_lstm(cx: &Cx<'_>) -> Result<Self, OpError> {
        let dtype = cx.expect(0, &[DType::F32])?;
        Self::of_matrices(cx, Cell::Lstm, dtype, MatrixOrder::GatesLast)
    }

    fn of_matrices(
        cx: &Cx<'_>,
        cell: Cell,
        dtype: DType,
        order: MatrixOrder,
    ) -> Result<Self, OpError> {
        let batchwise = cx.args.int_or("layout", 0)? != 0;
        let sequence_dims = cx.dims(0)?;
        let input_dims = order.gates_first(cx.dims(1)?);
        let state_dims = order.gates_first(cx.dims(2)?);
        let (&[d0, d1, input], &[ways, rows, weight_columns], &[_, _, hidden]) = (
            sequence_dims.as_slice(),
            input_dims.as_slice(),
            state_dims.as_slice(),
        ) else {
            let message = format!("is {}", cx.operand(1)?.ty);
            return Err(cx.refuse(1, message, "input and matrices have three dimensions"));
        };

        let direction = match attributes::direction(cx)? {
            Some("bidirectional") => Direction::Bidirectional,
            Some("reverse") => Direction::Reverse,
            _ => Direction::Forward,
        };
        // W stacks the gates' rows, so that one product gives the sums of all of them.
        let gates = cell.gates();
        let fits = rows == gates * hidden
            && weight_columns == input
            && ways == 1 + usize::from(direction == Direction::Bidirectional)
            && state_dims == [ways, gates * hidden, hidden]
            && volume(&sequence_dims) > 0
            && hidden > 0;
        if !fits {
            let message = format!("is {}, the input {}", cx.operand(1)?.ty, cx.operand(0)?.ty);
            let help = match order {
                MatrixOrder::GatesFirst => format!("[directions, {gates} · hidden, {input}]"),
                MatrixOrder::GatesLast => format!("[directions, {input}, {gates} · hidden]"),
            };
            return Err(cx.refuse(1, message, help));
        }

        let mut spec = Self {
            cell,
            dtype,
            // X is [steps, batch, input], or [batch, steps, input] under `layout` 1.
            steps: if batchwise { d1 } else { d0 },
            batch: if batchwise { d0 } else { d1 },
            input,
            hidden,
            ways,
            batchwise,
            direction,
            activations: Vec::new(),
            reset_after: false,
            couple: false,
            clip: 0.0,
            lengths: cx.opt(4).map(|lengths| computed(lengths.ty.dtype)),
        };
        spec.check_optional_operands(cx)?;
        spec.activations = activations(cx, cell, ways)?;
        spec.reset_after = cx.args.int_or("linear_before_reset", 0)? != 0;
        spec.couple = cx.args.int_or("input_forget", 0)? != 0;
        spec.clip = cx.args.float_or("clip", 0.0)? as f32;
        Ok(spec)
    }

    fn check_optional_operands(&self, cx: &Cx<'_>) -> Result<(), OpError> {
        let expected = [
            (3, vec![self.ways, 2 * self.cell.gates() * self.hidden]),
            (4, vec![self.batch]),
            (5, self.state_dims()),
            (6, self.state_dims()),
            (7, vec![self.ways, 3 * self.hidden]),
        ];
        for (position, dims) in expected {
            if let Some(operand) = cx.opt(position)
                && operand.dims() != dims
            {
                let message = format!("is {}", operand.ty);
                return Err(cx.refuse(position, message, format!("{dims:?}")));
            }
        }
        Ok(())
    }
}

/// The activations of all ways. Those of one way stand for both.
fn activations(cx: &Cx<'_>, cell: Cell, ways: usize) -> Result<Vec<Gate>, OpError> {
    let default = cell.default_activations();
    let given = cx.args.get("activations").and_then(Value::as_list);
    let names = given.into_iter().flatten().filter_map(Value::as_str);
    let gates: Result<Vec<Gate>, OpError> = names.map(|name| Gate::parse(cx, name)).collect();
    let mut gates = gates?;
    if gates.is_empty() {
        gates = default.to_vec();
    }

    // Each new one repeats the one a direction before, so that both directions get the same list.
    let given_count = gates.len();
    while gates.len() < default.len() * ways {
        gates.push(gates[gates.len() - given_count.min(default.len())]);
    }
    Ok(gates)
}
