//! Operators of older opsets as those of today, and operators that are not tensor ops: constants, shapes, copies.

use bytes::Bytes;
use half::{bf16, f16};
use zbmd_backends::TensorOp;
use zbmd_ir::{DType, TokenType};

use super::error::OnnxError;
use super::graph::{Origin, ValueId};
use super::import::{Attributes, Import, Work};
use super::proto::{self, External};

/// Attributes that change nothing here: hints to a runtime, defaults of training, and what the operands say anyway.
pub(super) const IGNORED: [&str; 14] = [
    "doc_string",
    "seed",
    "stash_type",
    "saturate",
    "hidden_size",
    "spatial",
    "consumed_inputs",
    "is_test",
    "broadcast",
    "momentum",
    "round_mode",
    "sorted",
    "output_datatype",
    "keep_dims",
];

/// Numbers as little-endian elements.
pub(super) fn encode(dtype: DType, numbers: &[f64]) -> Vec<u8> {
    macro_rules! each {
        ($f:expr) => {
            numbers.iter().flat_map(|&v| $f(v).to_le_bytes()).collect()
        };
    }

    match dtype {
        DType::F64 => each!(|v: f64| v),
        DType::F16 => each!(|v| f16::from_f64(v).to_bits()),
        DType::Bf16 => each!(|v| bf16::from_f64(v).to_bits()),
        DType::I8 => each!(|v: f64| v as i8),
        DType::U8 => each!(|v: f64| v as u8),
        DType::Bool => each!(|v: f64| u8::from(v != 0.0)),
        DType::I16 => each!(|v: f64| v as i16),
        DType::I32 => each!(|v: f64| v as i32),
        DType::I64 => each!(|v: f64| v as i64),
        DType::F32 | DType::C32 => each!(|v: f64| v as f32),
    }
}

fn ints_of(data: &[u8], dtype: DType) -> Vec<i64> {
    match dtype {
        DType::I32 => data
            .chunks_exact(4)
            .map(|c| i64::from(i32::from_le_bytes(c.try_into().unwrap_or_default())))
            .collect(),
        _ => data
            .chunks_exact(8)
            .map(|c| i64::from_le_bytes(c.try_into().unwrap_or_default()))
            .collect(),
    }
}

type Values = Vec<Option<ValueId>>;

impl Import<'_> {
    fn ints(&mut self, name: &str, values: &[i64]) -> ValueId {
        let element_bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.graph.constant(
            name,
            TokenType::new(DType::I64, [values.len() as u32]),
            Bytes::from(element_bytes),
        )
    }

    /// Moves an attribute into the operand at `position`.
    fn move_attribute(&mut self, work: &mut Work, attribute: &str, position: usize) {
        let Some(a) = work.attributes.remove(attribute) else {
            return;
        };

        // A float stood for a number of the first operand's type: bounds of `Clip`, the value of `Pad`.
        let dtype = work
            .inputs
            .first()
            .copied()
            .flatten()
            .map_or(DType::F32, |i| self.graph.values[i].ty.dtype);
        let id = match (a.i, a.f) {
            (None, Some(f)) => {
                let element_bytes = encode(dtype, &[f64::from(f)]);
                self.graph.constant(
                    attribute,
                    TokenType::scalar(dtype),
                    Bytes::from(element_bytes),
                )
            }
            (Some(i), _) if a.ints.is_empty() => self.ints(attribute, &[i]),
            _ => self.ints(attribute, &a.ints),
        };

        // An operand that is there goes before the attribute of older opsets.
        if work.inputs.len() <= position {
            work.inputs.resize(position + 1, None);
        }
        work.inputs[position].get_or_insert(id);
    }

    fn required_input(&self, work: &Work, position: usize) -> Result<ValueId, OnnxError> {
        work.inputs.get(position).copied().flatten().ok_or_else(|| {
            OnnxError::Malformed(format!(
                "node `{}` ({}) lacks input {position}",
                work.name, work.operator
            ))
        })
    }

    /// The same elements under the shape that the op gives them.
    fn lower_view(&mut self, work: &mut Work) -> Result<Values, OnnxError> {
        let source_id = self.required_input(work, 0)?;
        let nodes_before = self.graph.nodes.len();
        let lowered = self.lower(work)?;
        let Some(id) = lowered.first().copied().flatten() else {
            return Ok(lowered);
        };
        if self.graph.nodes.len() > nodes_before {
            // The op was only resolved to learn the shape: its node goes, and no bytes are copied at run time.
            self.graph.nodes.pop();
            self.graph.values[id].origin = Origin::View(source_id);
        }
        Ok(lowered)
    }
}

/// Operators that are not simply a tensor op: `Some` with their outputs, or `None` once they are one.
pub(super) fn lower_special(
    im: &mut Import<'_>,
    work: &mut Work,
) -> Result<Option<Values>, OnnxError> {
    match work.operator.as_str() {
        "Constant" => return lower_constant(im, work).map(Some),
        "ConstantOfShape" => return constant_of_shape(im, work).map(Some),
        "Identity" => return Ok(Some(vec![Some(im.required_input(work, 0)?)])),
        "Dropout" => return lower_dropout(im, work).map(Some),
        "Shape" | "Size" => return lower_shape(im, work).map(Some),
        "Squeeze" | "Unsqueeze" => {
            im.move_attribute(work, "axes", 1);
            return im.lower_view(work).map(Some);
        }
        "Reshape" => {
            im.move_attribute(work, "shape", 1);
            im.reshape_batch(work);
            return im.lower_view(work).map(Some);
        }
        "Flatten" => return im.lower_view(work).map(Some),
        "Cast" | "CastLike" => return lower_cast(im, work),
        "EyeLike" => {
            // Only the operand's type counts: a constant in its place lets the result be folded.
            let input_id = im.required_input(work, 0)?;
            let token_type = im.graph.values[input_id].ty.clone();
            let zero_bytes = Bytes::from(vec![0; token_type.bytes() as usize]);
            work.inputs[0] = Some(im.graph.constant("", token_type, zero_bytes));
        }
        "Softmax" | "LogSoftmax" | "Hardmax" if im.opset < 13 => {
            return old_softmax(im, work).map(Some);
        }
        _ => newest_form(im, work),
    }

    lower_older(im, work);
    Ok(None)
}

/// Brings the form of older opsets to the newest one, which alone has an op: attributes that became inputs move
/// there, operators that were renamed get their new name.
fn newest_form(im: &mut Import<'_>, work: &mut Work) {
    match work.operator.as_str() {
        "Scatter" => "ScatterElements".clone_into(&mut work.operator),
        "Upsample" => {
            "Resize".clone_into(&mut work.operator);
            im.move_floats(work, "scales");
            resize_by_scales(work);
        }
        "Resize" if im.opset < 11 => resize_by_scales(work),
        "Slice" => {
            for (i, name) in ["starts", "ends", "axes"].into_iter().enumerate() {
                im.move_attribute(work, name, i + 1);
            }
        }
        "Pad" => {
            im.move_attribute(work, "pads", 1);
            im.move_attribute(work, "value", 2);
        }
        "Clip" => {
            im.move_attribute(work, "min", 1);
            im.move_attribute(work, "max", 2);
        }
        "Split" => {
            im.move_attribute(work, "split", 1);

            // Without sizes the parts are equal; before opset 18 the outputs alone said how many.
            if work.inputs.get(1).copied().flatten().is_none()
                && !work.attributes.contains_key("num_outputs")
            {
                let output_count = work.outputs.len() as i64;
                work.attributes
                    .insert("num_outputs".into(), int("num_outputs", output_count));
            }
        }
        "TopK" => im.move_attribute(work, "k", 1),
        "DFT" => im.move_attribute(work, "axis", 2),
        op if op.starts_with("Reduce") => im.move_attribute(work, "axes", 1),
        _ => {}
    }
}

/// Before opset 11 the scales were the second input, and pixels were placed at their corners and rounded down.
fn resize_by_scales(work: &mut Work) {
    let scales = work.inputs.get(1).copied().flatten();
    work.inputs.truncate(1);
    work.inputs.extend([None, scales]);
    text(work, "coordinate_transformation_mode", "asymmetric");
    text(work, "nearest_mode", "floor");
}

/// Defaults that newer opsets have changed.
fn lower_older(im: &Import<'_>, work: &mut Work) {
    match work.operator.as_str() {
        // Before 20 the axis was an attribute with the default 1.
        "DFT" if im.opset < 20 && work.inputs.get(2).copied().flatten().is_none() => {
            work.attributes
                .entry("axis".into())
                .or_insert_with(|| int("axis", 1));
        }
        // The others were statistics of training, which later opsets name differently.
        "BatchNormalization" if im.opset < 14 => {
            work.outputs.truncate(1);
        }
        // These name the result's type otherwise than all other operators.
        "MelWeightMatrix" | "HannWindow" | "HammingWindow" | "BlackmanWindow" => {
            if let Some(mut a) = work.attributes.remove("output_datatype") {
                a.name = Some("dtype".into());
                work.attributes.insert("dtype".into(), a);
            }
        }
        _ => {}
    }

    if work.operator != "BatchNormalization" {
        work.attributes.remove("momentum");
    }
}

impl Import<'_> {
    fn move_floats(&mut self, work: &mut Work, attribute: &str) {
        let Some(a) = work.attributes.remove(attribute) else {
            return;
        };
        let wide_floats: Vec<f64> = a.floats.iter().map(|&f| f64::from(f)).collect();
        let token_type = TokenType::new(DType::F32, [wide_floats.len() as u32]);
        let id = self.graph.constant(
            attribute,
            token_type,
            Bytes::from(encode(DType::F32, &wide_floats)),
        );
        work.inputs.truncate(1);
        work.inputs.push(Some(id));
    }
}

fn attribute(name: &str) -> rten_onnx::onnx::AttributeProto {
    rten_onnx::onnx::AttributeProto {
        name: Some(name.to_owned()),
        ..Default::default()
    }
}

/// An attribute that is a truth value; false where it is missing.
pub(super) fn flag_of(attributes: &Attributes, name: &str) -> bool {
    let attribute = attributes.get(name);
    attribute.and_then(|a| a.i).unwrap_or(0) != 0
}

/// An attribute that is a float.
pub(super) fn float_of(attributes: &Attributes, name: &str) -> Option<f32> {
    attributes.get(name).and_then(|a| a.f)
}

pub(super) fn int(name: &str, value: i64) -> rten_onnx::onnx::AttributeProto {
    rten_onnx::onnx::AttributeProto {
        i: Some(value),
        ..attribute(name)
    }
}

fn text(work: &mut Work, name: &str, value: &str) {
    let a = rten_onnx::onnx::AttributeProto {
        s: Some(value.to_owned()),
        ..attribute(name)
    };
    work.attributes.insert(name.to_owned(), a);
}

fn lower_constant(im: &mut Import<'_>, work: &mut Work) -> Result<Values, OnnxError> {
    let output_name = work.outputs.first().cloned().unwrap_or_default();

    // Exactly one of these attributes holds the value.
    let attribute_of = |k: &str| work.attributes.get(k);
    let (ty, element_bytes) = if let Some(t) = attribute_of("value").and_then(|a| a.t.as_ref()) {
        proto::tensor(&output_name, t, &mut External::new(None))?
    } else if let Some(f) = attribute_of("value_float").and_then(|a| a.f) {
        (
            TokenType::scalar(DType::F32),
            Bytes::from(f.to_le_bytes().to_vec()),
        )
    } else if let Some(i) = attribute_of("value_int").and_then(|a| a.i) {
        (
            TokenType::scalar(DType::I64),
            Bytes::from(i.to_le_bytes().to_vec()),
        )
    } else if let Some(a) = attribute_of("value_floats") {
        let element_bytes: Vec<u8> = a.floats.iter().flat_map(|f| f.to_le_bytes()).collect();
        (
            TokenType::new(DType::F32, [a.floats.len() as u32]),
            Bytes::from(element_bytes),
        )
    } else if let Some(a) = attribute_of("value_ints") {
        let element_bytes: Vec<u8> = a.ints.iter().flat_map(|i| i.to_le_bytes()).collect();
        (
            TokenType::new(DType::I64, [a.ints.len() as u32]),
            Bytes::from(element_bytes),
        )
    } else {
        return Err(OnnxError::Operator {
            node: work.name.clone(),
            operator: work.operator.clone(),
            why: "its value is a string or a sparse tensor".to_owned(),
            help: "export it as a dense tensor of numbers".to_owned(),
        });
    };

    Ok(vec![Some(im.graph.constant(
        &output_name,
        ty,
        element_bytes,
    ))])
}

fn constant_of_shape(im: &mut Import<'_>, work: &mut Work) -> Result<Values, OnnxError> {
    let output_name = work.outputs.first().cloned().unwrap_or_default();
    let shape_id = im.required_input(work, 0)?;
    let Some(element_bytes) = im.graph.data(shape_id) else {
        return Err(im.not_constant(work, shape_id));
    };
    let dim_sizes = ints_of(element_bytes, DType::I64);

    // Without the attribute it is filled with 0.0 of f32, as the standard says.
    let (dtype, element) = match work.attributes.get("value").and_then(|a| a.t.as_ref()) {
        Some(t) => {
            let (token_type, element_bytes) =
                proto::tensor(&output_name, t, &mut External::new(None))?;
            (token_type.dtype, element_bytes)
        }
        None => (DType::F32, Bytes::from_static(&[0; 4])),
    };

    // The size is checked before it is allocated: the shape is a few bytes of an untrusted file.
    let token_type = proto::token(&output_name, dtype, &dim_sizes)?;
    if element.len() as u64 != dtype.size_bytes()
        || token_type.bytes() > zbmd_ir::limits::MAX_INITIAL_BYTES
    {
        return Err(OnnxError::Data {
            tensor: output_name,
            why: format!("would be {token_type}, filled with {} bytes", element.len()),
        });
    }

    let element_bytes = element.repeat(token_type.elements() as usize);
    Ok(vec![Some(im.graph.constant(
        &output_name,
        token_type,
        Bytes::from(element_bytes),
    ))])
}

fn lower_dropout(im: &mut Import<'_>, work: &mut Work) -> Result<Values, OnnxError> {
    let input_id = im.required_input(work, 0)?;
    let training_id = work.inputs.get(2).copied().flatten();
    let is_training = match training_id {
        None => false,
        Some(id) => match im.graph.data(id) {
            Some(mask_bytes) => mask_bytes.iter().any(|&b| b != 0),
            None => return Err(im.not_constant(work, id)),
        },
    };

    // A ratio of zero drops nothing, so even in training it is a copy.
    let ratio_data = work
        .inputs
        .get(1)
        .copied()
        .flatten()
        .and_then(|id| im.graph.data(id));
    if is_training && !ratio_data.is_some_and(|r| r.iter().all(|&b| b == 0)) {
        return Err(OnnxError::Operator {
            node: work.name.clone(),
            operator: work.operator.clone(),
            why: "in training it draws random numbers, which actors cannot".to_owned(),
            help: "export the model for inference".to_owned(),
        });
    }

    // In inference the mask keeps everything.
    let mut output_values = vec![Some(input_id)];
    if work.outputs.get(1).is_some_and(|o| !o.is_empty()) {
        let mut mask_type = im.graph.values[input_id].ty.clone();
        mask_type.dtype = DType::Bool;
        let mask_bytes = Bytes::from(vec![1; mask_type.elements() as usize]);
        output_values.push(Some(im.graph.constant(
            &work.outputs[1],
            mask_type,
            mask_bytes,
        )));
    }
    Ok(output_values)
}

fn lower_shape(im: &mut Import<'_>, work: &mut Work) -> Result<Values, OnnxError> {
    let input_id = im.required_input(work, 0)?;
    let token_type = im.graph.values[input_id].ty.clone();
    let output_name = work.outputs.first().cloned().unwrap_or_default();
    if work.operator == "Size" {
        let element_bytes = (token_type.elements() as i64).to_le_bytes().to_vec();
        return Ok(vec![Some(im.graph.constant(
            &output_name,
            TokenType::scalar(DType::I64),
            Bytes::from(element_bytes),
        ))]);
    }

    let rank = token_type.shape.len() as i64;
    let start = shape_bound(work, "start", 0, rank);
    let end = shape_bound(work, "end", rank, rank);

    // Empty where the end is before the start.
    let dim_sizes: Vec<i64> = token_type
        .shape
        .get(start..end)
        .unwrap_or_default()
        .iter()
        .map(|&d| i64::from(d))
        .collect();
    Ok(vec![Some(im.ints(&output_name, &dim_sizes))])
}

/// An attribute that bounds the dimensions of a `Shape`: negative ones count from the end, all are clamped (opset 15).
fn shape_bound(work: &Work, key: &str, default: i64, rank: i64) -> usize {
    let attribute = work.attributes.get(key).and_then(|a| a.i);
    let bound = attribute.unwrap_or(default);
    let from_start = if bound < 0 {
        bound.saturating_add(rank)
    } else {
        bound
    };
    from_start.clamp(0, rank) as usize
}

fn lower_cast(im: &mut Import<'_>, work: &mut Work) -> Result<Option<Values>, OnnxError> {
    let input_id = im.required_input(work, 0)?;
    let input_dtype = im.graph.values[input_id].ty.dtype;
    let output_dtype = if work.operator == "CastLike" {
        let like_id = im.required_input(work, 1)?;
        im.graph.values[like_id].ty.dtype
    } else {
        let code = work.attributes.get("to").and_then(|a| a.i).unwrap_or(0);
        proto::dtype_of(&work.name, Some(rten_onnx::onnx::DataType(code as i32)))?
    };
    if output_dtype == input_dtype {
        return Ok(Some(vec![Some(input_id)]));
    }

    // Written as a `Cast` with ONNX's own code of the type, whichever of the two it was.
    "Cast".clone_into(&mut work.operator);
    work.inputs.truncate(1);
    work.attributes.clear();
    let code = (1..=16)
        .find(|&c| proto::dtype(c) == Some(output_dtype))
        .unwrap_or(1);
    work.attributes
        .insert("to".into(), int("to", i64::from(code)));
    Ok(None)
}

/// Before opset 13 these brought their operand to a matrix first.
fn old_softmax(im: &mut Import<'_>, work: &mut Work) -> Result<Values, OnnxError> {
    let input_id = im.required_input(work, 0)?;
    let token_type = im.graph.values[input_id].ty.clone();
    let rank = token_type.shape.len() as i64;
    let axis = shape_bound(work, "axis", 1, rank);

    // Dimensions before the axis are rows, all others one long row to be normalised; the result gets its shape back.
    let product = |dims: &[u32]| dims.iter().fold(1_u32, |n, &d| n.saturating_mul(d));
    let flat_type = TokenType::new(
        token_type.dtype,
        [
            product(&token_type.shape[..axis]),
            product(&token_type.shape[axis..]),
        ],
    );
    work.inputs[0] = Some(im.graph.value("", flat_type, Origin::View(input_id)));
    work.attributes.insert("axis".into(), int("axis", -1));
    let lowered = im.lower(work)?;
    let Some(id) = lowered.first().copied().flatten() else {
        return Ok(lowered);
    };
    Ok(vec![Some(im.graph.value(
        &work.outputs[0],
        token_type,
        Origin::View(id),
    ))])
}

/// Why an operator is not taken.
pub(super) fn unknown(work: &Work) -> OnnxError {
    let (explanation, help) = match work.operator.as_str() {
        "Loop" | "Scan" => (
            "the number of its turns is not known when a model is compiled",
            "export the model with the loop unrolled, or close the state over frames with `state`",
        ),
        "NonZero" | "Unique" | "Compress" | "NonMaxSuppression" | "StringSplit" => (
            "the shape of its result depends on data",
            "cut the model before this node and do the rest behind it",
        ),
        op if op.starts_with("Random") || op == "Bernoulli" || op == "Multinomial" => (
            "it draws random numbers, which actors cannot",
            "make the noise an input, from the op `Noise`",
        ),
        op if op.contains("Sequence") || op.starts_with("Optional") => (
            "sequences and optional values are not tokens",
            "export the model with tensors",
        ),
        op if op.starts_with("String")
            || op == "RegexFullMatch"
            || op == "TfIdfVectorizer"
            || op == "LabelEncoder" =>
        {
            ("strings are not tokens", "do this before the model")
        }
        _ => (
            "there is no op for it",
            "`zbmdc ops` lists the ops; those that begin with `Nn` are ONNX operators",
        ),
    };

    // Names are looked up exactly; most likely only the case is wrong then.
    let is_misspelt = TensorOp::all().any(|o| o.operator.eq_ignore_ascii_case(&work.operator));
    let explanation = if is_misspelt {
        "operators are written with the case of the standard"
    } else {
        explanation
    };
    OnnxError::Operator {
        node: work.name.clone(),
        operator: work.operator.clone(),
        why: explanation.to_owned(),
        help: help.to_owned(),
    }
}
