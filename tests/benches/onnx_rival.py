"""Times an ONNX model by ONNX Runtime: onnx_rival.py MODEL THREADS FOLDER.

The outputs of one call go to FOLDER as 0.npy, 1.npy, ... Then each line of the standard input is a number of calls;
the answer is the seconds of one of them. In the end, the KiB that the peak of the resident memory
lies above what it was before the model was loaded.
"""
import os
import sys
import time

import numpy as np
import onnxruntime as ort

path, threads, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
options = ort.SessionOptions()
options.log_severity_level = 3
options.intra_op_num_threads = threads
options.inter_op_num_threads = 1


def kib(field):
    with open("/proc/self/status") as f:
        return int(next(line for line in f if line.startswith(field)).split()[1])


# The interpreter, its packages and the library are not the model's memory.
before = kib("VmRSS")
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
print("ready", flush=True)
for line in sys.stdin:
    calls = int(line)
    start = time.perf_counter()
    for _ in range(calls):
        session.run(None, feed)
    print((time.perf_counter() - start) / calls, flush=True)
print(kib("VmHWM") - before)
