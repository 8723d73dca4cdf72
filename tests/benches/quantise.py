"""Quantises an ONNX model: quantise.py MODEL FOLDER.

Into FOLDER go NAME.f32.onnx, the model with its batch dimension fixed and, if its name begins with `light_`, with random
weights; NAME.qdq.onnx and NAME.qop.onnx, quantised statically by ONNX Runtime with u8 activations and i8 weights, one scale
for each filter, in both forms; and for each of them its inputs as NAME.*.in0.npy. Calibrated on random inputs, of which
one more is the input. A model with an LSTM, which it quantises dynamically only, goes into NAME.dynamic.onnx instead.
"""
import os
import sys

import numpy as np
import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from random_weights import randomised

path, folder = sys.argv[1], sys.argv[2]
name = os.path.basename(path)[: -len(".onnx")]
random = np.random.default_rng(1)
types = {1: np.float32, 6: np.int32, 7: np.int64}


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
    randomised(model, random)
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
has_lstm = any(node.op_type == "LSTM" for node in model.graph.node)
forms = ["dynamic"] if has_lstm else ["qdq", "qop"]
for form in forms:
    if form == "dynamic":
        quantize_dynamic(ready, os.path.join(folder, f"{name}.dynamic.onnx"), per_channel=True, weight_type=QuantType.QInt8)
        continue
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
    for form in ["f32", *forms]:
        np.save(os.path.join(folder, f"{name}.{form}.in{i}.npy"), array)
