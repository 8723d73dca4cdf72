"""Seconds of one call of an ONNX model by ONNX Runtime: onnx_rival.py MODEL THREADS FOLDER.

The outputs of one call go to FOLDER as 0.npy, 1.npy, ...
"""
import os
import sys
import time

import numpy as np
import onnxruntime as ort

path, threads, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
options = ort.SessionOptions()
options.intra_op_num_threads = threads
options.inter_op_num_threads = 1
session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
stem = path[: -len(".onnx")]
types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
feed = {}
for i, value in enumerate(session.get_inputs()):
    known = f"{stem}.in{i}.npy"
    if os.path.exists(known):
        feed[value.name] = np.load(known)
        continue
    shape = [{"batch": 1, "sequence": 576}.get(d, d) for d in value.shape]
    if value.name == "sr":
        feed[value.name] = np.array(16000, dtype=np.int64)
    else:
        n = int(np.prod(shape))
        feed[value.name] = (np.arange(n, dtype=types[value.type]) / np.float32(n)).reshape(shape)
for i, out in enumerate(session.run(None, feed)):
    np.save(os.path.join(folder, f"{i}.npy"), np.ascontiguousarray(out))
for _ in range(3):
    session.run(None, feed)
calls, start = 0, time.perf_counter()
while time.perf_counter() - start < 2.0 or calls < 10:
    session.run(None, feed)
    calls += 1
print((time.perf_counter() - start) / calls)
