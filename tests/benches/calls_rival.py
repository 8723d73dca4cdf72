"""Times calls of an ONNX model, one at a time, on one thread: calls_rival.py ENGINE MODEL, with ENGINE ort or openvino.

Says "ready" once the model is loaded; then each line of the standard input is a number of calls, and the answer the
seconds of one of them. Inputs and outputs stay where the engine wants them, so that as little as can be is Python's.
"""
import os
import sys
import time

import numpy as np

engine, path = sys.argv[1], sys.argv[2]
stem = path[: -len(".onnx")]
sizes = {"batch": 1, "sequence": 576}


def feed_of(i, name, shape):
    known = f"{stem}.in{i}.npy"
    if os.path.exists(known):
        return np.load(known)
    if name == "sr":
        return np.array(16000, dtype=np.int64)
    shape = [sizes.get(d, d) if isinstance(d, str) else d for d in shape]
    n = int(np.prod(shape))
    return (np.arange(n, dtype=np.float32) / np.float32(n)).reshape(shape)


if engine == "ort":
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for i, value in enumerate(session.get_inputs()):
        binding.bind_ortvalue_input(value.name, ort.OrtValue.ortvalue_from_numpy(feed_of(i, value.name, value.shape)))
    for value in session.get_outputs():
        binding.bind_output(value.name)
    # The first run says how large the outputs are; later ones write over them.
    session.run_with_iobinding(binding)
    for value, output in zip(session.get_outputs(), binding.get_outputs()):
        binding.bind_ortvalue_output(value.name, output)

    def call():
        session.run_with_iobinding(binding)
else:
    import openvino as ov

    core = ov.Core()
    model = core.read_model(path)
    feeds = []
    for i, port in enumerate(model.inputs):
        shape = [d.get_length() if d.is_static else 0 for d in port.partial_shape]
        if 0 in shape:
            shape = [1, 576] if len(shape) == 2 else [d or 1 for d in shape]
            if len(shape) == 3:
                shape[1] = 1
        feeds.append(feed_of(i, port.any_name, shape))
    model.reshape({port: list(feed.shape) for port, feed in zip(model.inputs, feeds)})
    compiled = core.compile_model(
        model,
        "CPU",
        {
            "INFERENCE_NUM_THREADS": 1,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            # Some processors would make it bf16.
            "INFERENCE_PRECISION_HINT": "f32",
        },
    )
    request = compiled.create_infer_request()
    for i, feed in enumerate(feeds):
        request.set_input_tensor(i, ov.Tensor(np.ascontiguousarray(feed)))

    def call():
        request.infer()


call()
print("ready", flush=True)
for line in sys.stdin:
    calls = int(line)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    print((time.perf_counter() - start) / calls, flush=True)
