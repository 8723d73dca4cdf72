"""Random weights for models whose files have none: weights that are all alike prove nothing about what engines compute."""
import numpy as np
from onnx import numpy_helper


def randomised(model, random):
    """Gives a model random weights in place of those that it makes by `ConstantOfShape`."""
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
