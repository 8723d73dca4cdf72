"""Makes the models and outputs beside it: make.py. Needs the packages onnx and onnxruntime.

A small random network in the forms that ONNX Runtime's quantiser writes, each with its input and with the output of ONNX
Runtime's integer kernels.
"""
import os

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

here = os.path.dirname(os.path.abspath(__file__))
random = np.random.default_rng(7)
initializers = []


def weights(name, *shape):
    fan_in = np.prod(shape[1:]) if len(shape) > 1 else 4
    numbers = random.normal(0, np.sqrt(2 / fan_in), shape).astype(np.float32)
    initializers.append(numpy_helper.from_array(numbers, name))
    return name


def image_network():
    def node(op, inputs, output, **attributes):
        return helper.make_node(op, inputs, [output], **attributes)

    pads = {"pads": [1, 1, 1, 1]}
    initializers.append(numpy_helper.from_array(np.float32(0), "low"))
    initializers.append(numpy_helper.from_array(np.float32(6), "high"))
    return [
        node("Conv", ["x", weights("w1", 16, 3, 3, 3), weights("b1", 16)], "c1", **pads),
        node("Relu", ["c1"], "r1"),
        node("Conv", ["r1", weights("w2", 16, 1, 3, 3), weights("b2", 16)], "c2", group=16, **pads),
        node("Clip", ["c2", "low", "high"], "r2"),
        node("Conv", ["r2", weights("w3", 16, 16, 1, 1), weights("b3", 16)], "c3"),
        node("Add", ["c3", "r1"], "a"),
        node("MaxPool", ["a"], "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Sigmoid", ["p"], "s"),
        node("Mul", ["p", "s"], "m"),
        node("Concat", ["m", "p"], "j", axis=1),
        node("Conv", ["j", weights("w4", 24, 32, 3, 3), weights("b4", 24)], "c4", strides=[2, 2], **pads),
        node("LeakyRelu", ["c4"], "r4", alpha=0.1),
        node("AveragePool", ["r4"], "v", kernel_shape=[3, 3], strides=[1, 1], **pads),
        node("GlobalAveragePool", ["v"], "g"),
        node("Flatten", ["g"], "f"),
        node("Gemm", ["f", weights("w5", 10, 24), weights("b5", 10)], "y", transB=1),
    ]


def attention_network():
    def node(op, inputs, output, **attributes):
        return helper.make_node(op, inputs, [output], **attributes)

    shape = numpy_helper.from_array(np.array([1, 12, 2, 16], np.int64), "split")
    back = numpy_helper.from_array(np.array([1, 12, 32], np.int64), "joined")
    initializers.extend([shape, back])
    nodes = []
    for name, perm in [("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])]:
        nodes += [
            node("MatMul", ["x", weights(f"w{name}", 32, 32)], f"{name}m"),
            node("Add", [f"{name}m", weights(f"b{name}", 32)], f"{name}a"),
            node("Reshape", [f"{name}a", "split"], f"{name}r"),
            node("Transpose", [f"{name}r"], name, perm=perm),
        ]
    return nodes + [
        node("MatMul", ["q", "k"], "scores"),
        node("Softmax", ["scores"], "shares", axis=-1),
        node("MatMul", ["shares", "v"], "mixed"),
        node("Transpose", ["mixed"], "turned", perm=[0, 2, 1, 3]),
        node("Reshape", ["turned", "joined"], "flat"),
        node("MatMul", ["flat", weights("wo", 32, 32)], "out"),
        node("Add", ["out", "x"], "y"),
    ]


def recurrent_network():
    gates = 4 * 12
    nodes = [
        helper.make_node(
            "LSTM",
            ["x", weights("w1", 2, gates, 10), weights("r1", 2, gates, 12), weights("b1", 2, 2 * gates)],
            ["h1"],
            hidden_size=12,
            direction="bidirectional",
        ),
        helper.make_node("Transpose", ["h1"], ["t1"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["t1", "joined"], ["j1"]),
        helper.make_node(
            "LSTM",
            ["j1", weights("w2", 1, gates, 24), weights("r2", 1, gates, 12), weights("b2", 1, 2 * gates)],
            ["h2"],
            hidden_size=12,
        ),
        helper.make_node("Squeeze", ["h2", "way"], ["y"]),
    ]
    initializers.append(numpy_helper.from_array(np.array([70, 2, 24], np.int64), "joined"))
    initializers.append(numpy_helper.from_array(np.array([1], np.int64), "way"))
    return nodes


def build(nodes, shape, out_shape):
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out_shape)],
        list(initializers),
    )
    initializers.clear()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return onnx.shape_inference.infer_shapes(model)


class Samples(CalibrationDataReader):
    def __init__(self, shape):
        self.feeds = iter([{"x": random.normal(0, 1, shape).astype(np.float32)} for _ in range(8)])

    def get_next(self):
        return next(self.feeds, None)


def make(name, nodes, shape, out_shape, is_static=True):
    plain = os.path.join(here, "plain.onnx")
    onnx.save(build(nodes, shape, out_shape), plain)
    forms = {
        "qdq_u8": (QuantFormat.QDQ, QuantType.QUInt8, QuantType.QInt8, True),
        "qdq_i8": (QuantFormat.QDQ, QuantType.QInt8, QuantType.QInt8, False),
        "qdq_u8u8": (QuantFormat.QDQ, QuantType.QUInt8, QuantType.QUInt8, False),
        "qop_u8": (QuantFormat.QOperator, QuantType.QUInt8, QuantType.QInt8, True),
        "qop_i8": (QuantFormat.QOperator, QuantType.QInt8, QuantType.QInt8, False),
    }
    # LSTMs are quantised dynamically only.
    forms = forms if is_static else {}
    for form, (layout, activations, kind, per_channel) in forms.items():
        quantize_static(
            plain,
            os.path.join(here, f"{name}.{form}.onnx"),
            Samples(shape),
            quant_format=layout,
            activation_type=activations,
            weight_type=kind,
            per_channel=per_channel,
        )
    quantize_dynamic(plain, os.path.join(here, f"{name}.dynamic.onnx"))
    os.remove(plain)

    x = random.normal(0, 1, shape).astype(np.float32)
    np.save(os.path.join(here, f"{name}.in.npy"), x)
    for form in [*forms, "dynamic"]:
        path = os.path.join(here, f"{name}.{form}.onnx")
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        np.save(path.replace(".onnx", ".out.npy"), session.run(None, {"x": x})[0])


make("image", image_network(), [1, 3, 16, 16], [1, 10])
make("attention", attention_network(), [1, 12, 32], [1, 12, 32])
make("recurrent", recurrent_network(), [70, 2, 10], [70, 2, 12], is_static=False)
