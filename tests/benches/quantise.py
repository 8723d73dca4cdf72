"""Quantises an ONNX model: quantise.py MODEL FOLDER.

Into FOLDER go NAME.f32.onnx, the model with its batch dimension fixed and, if its name begins with `light_`, with random
weights; NAME.qdq.onnx and NAME.qop.onnx, quantised statically by ONNX Runtime with u8 activations and i8 weights, one scale
for each filter, in both forms; and for each of them its inputs as NAME.*.in0.npy. Calibrated on random inputs, of which
one more is the input.
"""
import os
import sys

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

path, folder = sys.argv[1], sys.argv[2]
name = os.path.basename(path)[: -len(".onnx")]
random = np.random.default_rng(1)
types = {1: np.float32, 6: np.int32, 7: np.int64}


def randomised(model):
    """Random weights: those that are all alike, as these files make them by `ConstantOfShape`, prove nothing."""
    graph = model.graph
    shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    made = [node for node in graph.node if node.op_type == "ConstantOfShape" and node.input[0] in shapes]
    for node in made:
        shape = tuple(shapes[node.input[0]])
        if len(shape) > 1:
            numbers = random.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)
        else:
            # Biases, and what normalises: variances must not be negative.
            numbers = random.uniform(0.5, 1.0, shape)
        graph.initializer.append(numpy_helper.from_array(numbers.astype(np.float32), node.output[0]))
        graph.node.remove(node)
    used = {name for node in graph.node for name in node.input}
    for values in [graph.input, graph.initializer]:
        for value in [value for value in values if value.name not in used]:
            values.remove(value)


def inputs(model):
    weights = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in weights:
            continue
        kind = value.type.tensor_type
        shape = [dim.dim_value or 1 for dim in kind.shape.dim]
        yield value, shape, types[kind.elem_type]


def sample(shape, dtype):
    if dtype == np.float32:
        return random.normal(0, 1, shape).astype(dtype)
    return random.integers(0, 2, shape).astype(dtype)


class Samples(CalibrationDataReader):
    def __init__(self, model, count):
        self.feeds = iter(
            [{v.name: sample(s, t) for v, s, t in inputs(model)} for _ in range(count)]
        )

    def get_next(self):
        return next(self.feeds, None)


model = onnx.load(path)
for value, shape, _ in inputs(model):
    for dim, size in zip(value.type.tensor_type.shape.dim, shape):
        dim.dim_value = size
if name.startswith("light_"):
    randomised(model)
# Since version 4 weights need not be inputs.
model.ir_version = max(model.ir_version, 8)
if model.opset_import[0].version < 13:
    model = onnx.version_converter.convert_version(model, 13)
weights = {tensor.name for tensor in model.graph.initializer}
for value in [value for value in model.graph.input if value.name in weights]:
    model.graph.input.remove(value)
plain = os.path.join(folder, f"{name}.f32.onnx")
onnx.save(model, plain)
ready = os.path.join(folder, f"{name}.ready.onnx")
quant_pre_process(plain, ready, skip_symbolic_shape=True)
for form in ["qdq", "qop"]:
    quantize_static(
        ready,
        os.path.join(folder, f"{name}.{form}.onnx"),
        Samples(model, 4),
        quant_format=QuantFormat.QDQ if form == "qdq" else QuantFormat.QOperator,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
for i, (value, shape, dtype) in enumerate(inputs(model)):
    array = sample(shape, dtype)
    for form in ["f32", "qdq", "qop"]:
        np.save(os.path.join(folder, f"{name}.{form}.in{i}.npy"), array)
