//! Functions of single bytes, by table: whatever stands between a dequantising and a quantising node, computed by its own
//! kernels for all 256 bytes.

use zbmd_backends::TensorOp;
use zbmd_ir::{Params, TokenType};

use super::super::catalogue::{compute, resolve};
use super::super::graph::{Node, Origin, ValueId};
use super::super::passes::f32_scalar;
use super::{ByteTensor, Pass, Quantisation, Requantised, byte_constant, float_constant};

/// Operators of one tensor that treat all elements alike; other operands are constants.
const ALIKE: [&str; 20] = [
    "Abs",
    "Celu",
    "Clip",
    "Elu",
    "Erf",
    "Exp",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Mish",
    "Neg",
    "Relu",
    "Selu",
    "Sigmoid",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Swish",
    "Tanh",
];

/// Operators of two tensors of which one may be a single number.
const OF_TWO: [&str; 7] = ["Add", "Div", "Max", "Min", "Mul", "Pow", "Sub"];

/// A step of a function of single elements.
struct Step {
    node: Node,
    /// The operand that the elements are; the others are constants.
    operand: usize,
    /// The other operand, where it is a number that was dequantised.
    number: Option<f32>,
}

impl Pass<'_> {
    /// Bytes that stand for the same numbers, rounded, in another quantisation.
    pub(super) fn converted(&mut self, tensor: ByteTensor, to: Quantisation) -> Option<ValueId> {
        if tensor.quantisation == to {
            return Some(tensor.id);
        }
        let bytes: Vec<u8> = (0..=u8::MAX)
            .map(|byte| to.quantised(tensor.quantisation.number(byte)) as u8)
            .collect();
        let table = byte_constant(self.graph, to.dtype, &[256], bytes);
        let value = &self.graph.values[tensor.id];
        let name = format!("{}.scaled", value.name);
        let token = TokenType::new(to.dtype, value.ty.shape.clone());
        let result = self.graph.value(&name, token, Origin::View(tensor.id));
        self.make_lookup(&name, tensor.id, table, result)?;
        Some(result)
    }

    /// The bytes of a function of single elements, or of the elements themselves, by table.
    pub(super) fn look_up(&mut self, floats: ValueId, requantised: &Requantised) -> Option<()> {
        let result = requantised.node.outputs[0].1;
        let mut steps = Vec::new();
        let mut read = floats;
        while let Some(step) = self.step(read) {
            read = step.node.inputs[step.operand]?;
            steps.push(step);
        }
        let tensor = self.bytes_of(read)?;
        if self.is_constant(tensor.id) {
            return None;
        }

        let Some(last) = steps.first() else {
            let converted = self.converted(tensor, requantised.quantisation)?;
            self.graph.values[result].origin = Origin::View(converted);
            return Some(());
        };
        let name = last.node.name.clone();
        let table = self.table(&steps, tensor.quantisation, requantised)?;
        self.make_lookup(&name, tensor.id, table, result)
    }

    /// The node that makes a value, if it is a function of single elements of one operand.
    fn step(&self, id: ValueId) -> Option<Step> {
        let node = self.producer(id)?;
        if ALIKE.contains(&node.op.operator) {
            let mut others = node.inputs.iter().skip(1).flatten();
            return others.all(|&id| self.is_constant(id)).then_some(Step {
                node,
                operand: 0,
                number: None,
            });
        }

        let &[Some(left), Some(right)] = &node.inputs[..] else {
            return None;
        };
        if !OF_TWO.contains(&node.op.operator) {
            return None;
        }
        let (operand, number) = match (self.single_number(left), self.single_number(right)) {
            (None, Some(number)) => (0, number),
            (Some(number), None) => (1, number),
            _ => return None,
        };
        let elements = [left, right][operand];
        // A number of more dimensions than the elements would give them more.
        let is_alike = self.graph.values[elements].ty.shape == self.graph.values[id].ty.shape;
        is_alike.then_some(Step {
            node,
            operand,
            number: Some(number),
        })
    }

    /// A constant of one element, also a dequantised one.
    fn single_number(&self, id: ValueId) -> Option<f32> {
        if let Some(number) = f32_scalar(self.graph, id) {
            return Some(number);
        }
        let node = self
            .producer(id)
            .filter(|n| n.op.operator == "DequantizeLinear")?;
        let source = node.inputs.first().copied().flatten()?;
        let quantisation = self.quantisation(&node, self.graph.values[source].ty.dtype)?;
        match self.graph.data(source)?[..] {
            [byte] => Some(quantisation.number(byte)),
            _ => None,
        }
    }

    /// The byte that each byte becomes, by the kernels that would compute the floats; the last step comes first.
    fn table(&mut self, steps: &[Step], from: Quantisation, to: &Requantised) -> Option<ValueId> {
        let numbers: Vec<f32> = (0..=u8::MAX).map(|byte| from.number(byte)).collect();
        let mut results = float_constant(self.graph, &[256], &numbers);
        for step in steps.iter().rev() {
            let mut inputs = step.node.inputs.clone();
            if let Some(number) = step.number {
                inputs[1 - step.operand] = Some(float_constant(self.graph, &[], &[number]));
            }
            inputs[step.operand] = Some(results);
            results = self.evaluated(step.node.op, &step.node.params, &inputs)?;
        }

        let quantising = &to.node;
        let mut inputs = quantising.inputs.clone();
        inputs[0] = Some(results);
        self.evaluated(quantising.op, &quantising.params, &inputs)
    }

    /// Looks the bytes of a value up in a table. Where these come from a table themselves, one does for both.
    fn make_lookup(
        &mut self,
        name: &str,
        bytes: ValueId,
        table: ValueId,
        result: ValueId,
    ) -> Option<()> {
        let mut inputs = vec![Some(bytes), Some(table)];
        let first = self
            .producer(bytes)
            .filter(|n| n.op.operator == "ByteLookup" && self.uses.of(bytes) == 1);
        if let Some(first) = first {
            let first_table = self
                .graph
                .data(first.inputs.get(1).copied().flatten()?)?
                .clone();
            let second_table = self.graph.data(table)?.clone();
            let both = first_table
                .iter()
                .map(|&byte| second_table[usize::from(byte)]);
            let both = both.collect();
            let dtype = self.graph.values[table].ty.dtype;
            inputs = vec![
                first.inputs[0],
                Some(byte_constant(self.graph, dtype, &[256], both)),
            ];
        }
        self.make(name, "ByteLookup", Params::new(), inputs, result)
    }

    /// The first output of an op of constants.
    fn evaluated(
        &mut self,
        op: &'static TensorOp,
        params: &Params,
        inputs: &[Option<ValueId>],
    ) -> Option<ValueId> {
        let signature = resolve(self.graph, self.registry, op, params, inputs).ok()?;
        let token = signature.outputs.first()?.token.clone();
        let outputs = compute(self.graph, self.registry, op, params, inputs, signature).ok()?;
        Some(self.graph.constant("", token, outputs.into_iter().next()?))
    }
}
