"""Writes further ONNX models for the benches: more_models.py FOLDER.

Into FOLDER go alexnet, densenet121, inception_v2 and vgg19, which the package `onnx` has without weights, and three that are
made here: mobilenet_v3, its bottlenecks with squeeze-and-excitation and hard swish (Howard et al. 2019, arXiv 1905.02244, the small
one), encoder, four layers of a transformer of 256 features in 4 heads over 128 places, and lstm, two layers of 256 units over 50
steps of 128 features. All weights are random.
"""
import os
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from random_weights import randomised

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
random = np.random.default_rng(1)
LIGHT = os.path.join(os.path.dirname(onnx.__file__), "backend/test/data/light")


class Maker:
    """Nodes and constants of a model that is being made; each method returns the name of its result."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def node(self, operator, *inputs, **attributes):
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def constant(self, array):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weights(self, *shape):
        scale = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0.1
        return self.constant(random.normal(0, scale, shape).astype(np.float32))

    def shape(self, *dims):
        return self.constant(np.array(dims, np.int64))

    def conv(self, x, channels, filters, size=1, stride=1, groups=1):
        weights = self.weights(filters, channels // groups, size, size)
        pads = [size // 2] * 4
        return self.node("Conv", x, weights, self.weights(filters), strides=[stride] * 2, pads=pads, group=groups)

    def linear(self, x, inputs, outputs):
        weights = random.normal(0, np.sqrt(1 / inputs), (inputs, outputs)).astype(np.float32)
        return self.node("Add", self.node("MatMul", x, self.constant(weights)), self.weights(outputs))

    def save(self, name, shape, result):
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
        outputs = [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, name, inputs, outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        model = onnx.shape_inference.infer_shapes(model)
        onnx.checker.check_model(model)
        save(model, name)


def save(model, name):
    onnx.save(model, os.path.join(folder, f"{name}.onnx"))


def mobilenet_v3():
    net = Maker()
    x, channels = net.node("HardSwish", net.conv("x", 3, 16, 3, 2)), 16
    # Size of the kernel, expanded and resulting channels, squeeze and excitation, activation, stride: table 2 of the paper.
    rows = [
        (3, 16, 16, True, "Relu", 2),
        (3, 72, 24, False, "Relu", 2),
        (3, 88, 24, False, "Relu", 1),
        (5, 96, 40, True, "HardSwish", 2),
        (5, 240, 40, True, "HardSwish", 1),
        (5, 240, 40, True, "HardSwish", 1),
        (5, 120, 48, True, "HardSwish", 1),
        (5, 144, 48, True, "HardSwish", 1),
        (5, 288, 96, True, "HardSwish", 2),
        (5, 576, 96, True, "HardSwish", 1),
        (5, 576, 96, True, "HardSwish", 1),
    ]
    for size, expanded, filters, is_excited, act, stride in rows:
        y = x
        if expanded != channels:
            y = net.node(act, net.conv(y, channels, expanded))
        y = net.node(act, net.conv(y, expanded, expanded, size, stride, expanded))
        if is_excited:
            squeezed = net.conv(net.node("GlobalAveragePool", y), expanded, max(8, expanded // 4 // 8 * 8))
            excited = net.conv(net.node("Relu", squeezed), max(8, expanded // 4 // 8 * 8), expanded)
            y = net.node("Mul", y, net.node("HardSigmoid", excited, alpha=1 / 6, beta=0.5))
        y = net.conv(y, expanded, filters)
        x = net.node("Add", y, x) if stride == 1 and filters == channels else y
        channels = filters
    x = net.node("HardSwish", net.conv(x, channels, 576))
    x = net.node("Flatten", net.node("GlobalAveragePool", x))
    x = net.linear(net.node("HardSwish", net.linear(x, 576, 1024)), 1024, 1000)
    net.save("mobilenet_v3", [1, 3, 224, 224], x)


def encoder(layers=4, places=128, features=256, heads=4):
    net = Maker()

    def norm(x):
        scale = net.constant(np.ones(features, np.float32))
        return net.node("LayerNormalization", x, scale, net.weights(features), axis=-1)

    def split(x, perm):
        size = features // heads
        return net.node("Transpose", net.node("Reshape", x, net.shape(1, places, heads, size)), perm=perm)

    x = "x"
    for _ in range(layers):
        queries, keys, values = [net.linear(x, features, features) for _ in range(3)]
        scores = net.node("MatMul", split(queries, [0, 2, 1, 3]), split(keys, [0, 2, 3, 1]))
        root = net.constant(np.array(np.sqrt(features / heads), np.float32))
        weights = net.node("Softmax", net.node("Div", scores, root), axis=-1)
        mixed = net.node("Transpose", net.node("MatMul", weights, split(values, [0, 2, 1, 3])), perm=[0, 2, 1, 3])
        mixed = net.node("Reshape", mixed, net.shape(1, places, features))
        x = norm(net.node("Add", x, net.linear(mixed, features, features)))
        hidden = net.node("Relu", net.linear(x, features, 4 * features))
        x = norm(net.node("Add", x, net.linear(hidden, 4 * features, features)))
    net.save("encoder", [1, places, features], x)


def lstm(layers=2, steps=50, features=128, units=256):
    net = Maker()
    x = "x"
    for _ in range(layers):
        input_matrix = net.constant(random.normal(0, np.sqrt(1 / features), (1, 4 * units, features)).astype(np.float32))
        state_matrix = net.constant(random.normal(0, np.sqrt(1 / units), (1, 4 * units, units)).astype(np.float32))
        biases = net.weights(1, 8 * units)
        y = net.node("LSTM", x, input_matrix, state_matrix, biases, hidden_size=units)
        x = net.node("Squeeze", y, net.shape(1))
        features = units
    net.save("lstm", [steps, 1, 128], x)


mobilenet_v3()
encoder()
lstm()
for name in ["bvlc_alexnet", "densenet121", "inception_v2", "vgg19"]:
    model = onnx.load(os.path.join(LIGHT, f"light_{name}.onnx"))
    randomised(model, random)
    save(model, name.removeprefix("bvlc_"))
