"""Times an ONNX model by another engine: quantised_rival.py ENGINE MODEL FOLDER, with one thread.

ENGINE is `ort` or `openvino`. The outputs of one call go to FOLDER as 0.npy, 1.npy, ... Then each line of the standard
input is a number of calls; the answer is the seconds of processor time of one of them.
"""
import os
import sys
import time

engine, path, folder = sys.argv[1], sys.argv[2], sys.argv[3]
import numpy as np

stem = path[: -len(".onnx")]


def known(i):
    return np.load(f"{stem}.in{i}.npy")


if engine == "ort":
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {value.name: known(i) for i, value in enumerate(session.get_inputs())}
    outputs = session.run(None, feed)

    def call():
        session.run(None, feed)

else:
    import openvino as ov

    core = ov.Core()
    settings = {
        "INFERENCE_NUM_THREADS": 1,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = core.compile_model(core.read_model(path), "CPU", settings).create_infer_request()
    for i in range(len(request.model_inputs)):
        request.set_input_tensor(i, ov.Tensor(known(i)))
    request.infer()
    outputs = [np.array(request.get_output_tensor(i).data) for i in range(len(request.model_outputs))]

    def call():
        request.infer()


for i, out in enumerate(outputs):
    np.save(os.path.join(folder, f"{i}.npy"), np.ascontiguousarray(out))
print("ready", flush=True)
for line in sys.stdin:
    calls = int(line)
    start = time.process_time()
    for _ in range(calls):
        call()
    print((time.process_time() - start) / calls, flush=True)
