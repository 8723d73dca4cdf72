//! Operators of the domain `com.microsoft` that ONNX Runtime's quantiser writes, as operators of ONNX.
//!
//! Those between tensors of bytes become what the quantiser's other form has in their place: dequantised operands, the
//! operator on floats, the result quantised. The pass over quantised models makes integers of that again.

use super::error::OnnxError;
use super::graph::ValueId;
use super::import::{Attributes, Import, Work};
use super::normalise::{flag_of, float_of, int};
use super::passes::{f32_constant, f32_elements};

/// The domain.
pub(super) const DOMAIN: &str = "com.microsoft";

/// The operators that are known.
pub(super) const OPERATORS: [&str; 14] = [
    "DequantizeLinear",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeMatMul",
    "MatMulIntegerToFloat",
    "QGemm",
    "QLinearAdd",
    "QLinearAveragePool",
    "QLinearConcat",
    "QLinearGlobalAveragePool",
    "QLinearLeakyRelu",
    "QLinearMul",
    "QLinearSigmoid",
    "QLinearSoftmax",
    "QuantizeLinear",
];

type Values = Vec<Option<ValueId>>;
type Operand = Option<ValueId>;

/// The outputs of a node with one of [`OPERATORS`].
pub(super) fn lower(im: &mut Import<'_>, work: &mut Work) -> Result<Values, OnnxError> {
    let is_last = flag_of(&work.attributes, "channels_last");
    if is_last {
        return Err(OnnxError::Operator {
            node: work.name.clone(),
            operator: format!("{DOMAIN}:{}", work.operator),
            why: "its images have their channels last".to_owned(),
            help: "export the model without the optimisation for layouts".to_owned(),
        });
    }
    work.attributes.remove("channels_last");

    let mut steps = Steps { im, work, count: 0 };
    let result = match steps.work.operator.as_str() {
        "QLinearAdd" => steps.pairwise("Add"),
        "QLinearMul" => steps.pairwise("Mul"),
        "QLinearSigmoid" => steps.single("Sigmoid"),
        "QLinearLeakyRelu" => steps.single("LeakyRelu"),
        "QLinearSoftmax" => steps.softmax(),
        "QLinearAveragePool" => steps.single("AveragePool"),
        "QLinearGlobalAveragePool" => steps.single("GlobalAveragePool"),
        "QLinearConcat" => steps.concat(),
        "QGemm" => steps.gemm(),
        "DynamicQuantizeMatMul" => steps.dynamic_product(),
        "MatMulIntegerToFloat" => steps.product_of_bytes(),
        // The rest are ops of the catalogue, most of them with the names and the meaning of ONNX's own.
        _ => return steps.im.lower(steps.work),
    };
    result.map(|id| vec![Some(id)])
}

/// Nodes in the place of one.
struct Steps<'s, 'i> {
    im: &'s mut Import<'i>,
    work: &'s mut Work,
    /// Nodes so far.
    count: usize,
}

impl Steps<'_, '_> {
    /// Input `position` of the node, if it is there.
    fn optional(&self, position: usize) -> Operand {
        self.work.inputs.get(position).copied().flatten()
    }

    fn required(&self, position: usize) -> Result<ValueId, OnnxError> {
        self.optional(position).ok_or_else(|| {
            OnnxError::Malformed(format!(
                "node `{}` ({}) lacks input {position}",
                self.work.name, self.work.operator
            ))
        })
    }

    /// One more node, with one output.
    fn step(
        &mut self,
        operator: &str,
        inputs: Vec<Operand>,
        attributes: Attributes,
    ) -> Result<ValueId, OnnxError> {
        self.step_of_many(operator, inputs, attributes, 1)
            .map(|ids| ids[0])
    }

    /// One more node, with so many outputs.
    fn step_of_many(
        &mut self,
        operator: &str,
        inputs: Vec<Operand>,
        attributes: Attributes,
        outputs: usize,
    ) -> Result<Vec<ValueId>, OnnxError> {
        self.count += 1;
        let name = format!("{}.{}", self.work.name, self.count);
        let mut step = Work {
            operator: operator.to_owned(),
            inputs,
            attributes,
            outputs: (0..outputs)
                .map(|output| format!("{name}.{output}"))
                .collect(),
            name,
        };
        let made = self.im.lower(&mut step)?;
        made.into_iter()
            .map(|id| {
                id.ok_or_else(|| {
                    OnnxError::Malformed(format!("`{operator}` of `{}` is empty", self.work.name))
                })
            })
            .collect()
    }

    /// Floats of inputs `first` (bytes), `first + 1` (scale) and `first + 2` (zero point).
    fn dequantised(&mut self, first: usize) -> Result<ValueId, OnnxError> {
        let inputs = vec![
            Some(self.required(first)?),
            Some(self.required(first + 1)?),
            self.optional(first + 2),
        ];
        self.step("DequantizeLinear", inputs, Attributes::new())
    }

    /// Bytes of floats, by inputs `first` (scale) and `first + 1` (zero point).
    fn quantised(&mut self, floats: ValueId, first: usize) -> Result<ValueId, OnnxError> {
        let scale = self.required(first)?;
        let inputs = vec![Some(floats), Some(scale), self.optional(first + 1)];
        self.step("QuantizeLinear", inputs, Attributes::new())
    }

    fn pairwise(&mut self, operator: &str) -> Result<ValueId, OnnxError> {
        let left = self.dequantised(0)?;
        let right = self.dequantised(3)?;
        let floats = self.step(operator, vec![Some(left), Some(right)], Attributes::new())?;
        self.quantised(floats, 6)
    }

    /// An operator of one tensor, with the attributes of the node.
    fn single(&mut self, operator: &str) -> Result<ValueId, OnnxError> {
        let attributes = std::mem::take(&mut self.work.attributes);
        let input = self.dequantised(0)?;
        let floats = self.step(operator, vec![Some(input)], attributes)?;
        self.quantised(floats, 3)
    }

    /// Its attribute `opset` says which `Softmax` is meant: before 13 all dimensions from the axis on were one.
    fn softmax(&mut self) -> Result<ValueId, OnnxError> {
        let opset = self.work.attributes.remove("opset").and_then(|a| a.i);
        let input = self.required(0)?;
        let rank = self.im.graph.values[input].ty.shape.len() as i64;
        let is_old = opset.is_some_and(|opset| opset < 13);
        let default_axis = if is_old { 1 } else { -1 };
        let axis = self.work.attributes.get("axis").and_then(|a| a.i);
        let axis = axis.unwrap_or(default_axis);
        if is_old && axis != -1 && axis != rank - 1 {
            return Err(OnnxError::Operator {
                node: self.work.name.clone(),
                operator: format!("{DOMAIN}:{}", self.work.operator),
                why: "it is over several dimensions, as before opset 13".to_owned(),
                help: "convert the model to opset 13 before it is quantised".to_owned(),
            });
        }
        self.work.attributes = [("axis".to_owned(), int("axis", axis))].into();
        self.single("Softmax")
    }

    /// Inputs: scale and zero point of the result, then three for each part.
    fn concat(&mut self) -> Result<ValueId, OnnxError> {
        let attributes = std::mem::take(&mut self.work.attributes);
        let mut parts = Vec::new();
        for first in (2..self.work.inputs.len()).step_by(3) {
            parts.push(Some(self.dequantised(first)?));
        }
        let floats = self.step("Concat", parts, attributes)?;
        self.quantised(floats, 0)
    }

    /// Inputs: both matrices with scale and zero point, a bias in steps of the sums, scale and zero point of the result,
    /// without which the result is floats.
    fn gemm(&mut self) -> Result<ValueId, OnnxError> {
        let alpha = float_of(&self.work.attributes, "alpha").unwrap_or(1.0);
        let is_turned = flag_of(&self.work.attributes, "transB");
        let left_scale = self.floats(1)?;
        let right_scales = self.floats(4)?;
        let [left_scale] = left_scale[..] else {
            return Err(self.not_one_scale());
        };

        // The factor belongs to sums and bias alike, so it may be one of the right matrix's scale.
        let scaled: Vec<f32> = right_scales.iter().map(|scale| scale * alpha).collect();
        let steps: Vec<f32> = scaled.iter().map(|scale| left_scale * scale).collect();
        let right_scale = self.constant(&scaled);
        let along_columns = int("axis", if is_turned { 0 } else { 1 });
        let attributes: Attributes = [("axis".to_owned(), along_columns)].into();
        let right_inputs = vec![Some(self.required(3)?), Some(right_scale), self.optional(5)];
        let right = self.step("DequantizeLinear", right_inputs, attributes)?;
        let left = self.dequantised(0)?;

        let mut operands = vec![Some(left), Some(right)];
        if let Some(bias) = self.optional(6) {
            let step = self.constant(&steps);
            let attributes: Attributes = [("axis".to_owned(), int("axis", -1))].into();
            let bias_inputs = vec![Some(bias), Some(step)];
            operands.push(Some(self.step(
                "DequantizeLinear",
                bias_inputs,
                attributes,
            )?));
        }
        let mut attributes = std::mem::take(&mut self.work.attributes);
        attributes.remove("alpha");
        let floats = self.step("Gemm", operands, attributes)?;
        match self.optional(7) {
            Some(_) => self.quantised(floats, 7),
            None => Ok(floats),
        }
    }

    fn not_one_scale(&self) -> OnnxError {
        OnnxError::Operator {
            node: self.work.name.clone(),
            operator: format!("{DOMAIN}:{}", self.work.operator),
            why: "its left matrix has several scales".to_owned(),
            help: "quantise activations by one scale for each tensor".to_owned(),
        }
    }

    /// The constant floats of an input.
    fn floats(&self, position: usize) -> Result<Vec<f32>, OnnxError> {
        let id = self.required(position)?;
        f32_elements(&self.im.graph, id).ok_or_else(|| self.im.not_constant(self.work, id))
    }

    /// A constant of floats: a scalar where it is one.
    fn constant(&mut self, numbers: &[f32]) -> ValueId {
        let count = [numbers.len() as u32];
        let shape = if numbers.len() == 1 { &[][..] } else { &count };
        f32_constant(&mut self.im.graph, "", shape, numbers)
    }

    /// Floats times a matrix of bytes. Inputs: both, scale and zero point of the matrix, a bias.
    fn dynamic_product(&mut self) -> Result<ValueId, OnnxError> {
        let floats = vec![Some(self.required(0)?)];
        let parts = self.step_of_many("DynamicQuantizeLinear", floats, Attributes::new(), 3)?;
        let product = Product {
            left: parts[0],
            right: self.required(1)?,
            left_scale: parts[1],
            right_scale: self.required(2)?,
            left_zero: Some(parts[2]),
            right_zero: self.optional(3),
            bias: self.optional(4),
        };
        self.scaled_product(product)
    }

    /// Inputs: both matrices, their scales, their zero points, a bias.
    fn product_of_bytes(&mut self) -> Result<ValueId, OnnxError> {
        let product = Product {
            left: self.required(0)?,
            right: self.required(1)?,
            left_scale: self.required(2)?,
            right_scale: self.required(3)?,
            left_zero: self.optional(4),
            right_zero: self.optional(5),
            bias: self.optional(6),
        };
        self.scaled_product(product)
    }

    fn scaled_product(&mut self, product: Product) -> Result<ValueId, OnnxError> {
        let none = Attributes::new;
        let operands = vec![
            Some(product.left),
            Some(product.right),
            product.left_zero,
            product.right_zero,
        ];
        let ints = self.step("MatMulInteger", operands, none())?;
        let to_float: Attributes = [("to".to_owned(), int("to", 1))].into();
        let sums = self.step("Cast", vec![Some(ints)], to_float)?;
        let scales = vec![Some(product.left_scale), Some(product.right_scale)];
        let scale = self.step("Mul", scales, none())?;
        let floats = self.step("Mul", vec![Some(sums), Some(scale)], none())?;
        match product.bias {
            Some(bias) => self.step("Add", vec![Some(floats), Some(bias)], none()),
            None => Ok(floats),
        }
    }
}

/// A product of matrices of bytes that becomes floats.
struct Product {
    left: ValueId,
    right: ValueId,
    left_scale: ValueId,
    right_scale: ValueId,
    left_zero: Operand,
    right_zero: Operand,
    bias: Operand,
}
