"""The automatic gain control of the README from Python: compiled, run over whole arrays, then fed block by block."""

import sys

import numpy as np
import zbmd

bundle = zbmd.compile(sys.argv[1] if len(sys.argv) > 1 else "graphs/agc/model.ron")
for stream in bundle.streams.values():
    print(stream)

# Whole arrays in, whole arrays out.
rng = np.random.default_rng(1)
iq = (rng.normal(size=48_000) + 1j * rng.normal(size=48_000)).astype(np.complex64)
outputs = bundle.run({"iq": 10 * iq})
print("level", np.abs(outputs["out"][-1000:]).mean().round(1))

# A stream: one thread pushes and pulls in turn, and waits for neither while the other may be needed.
with bundle.start() as session:
    session.close("gain")  # Nobody pulls from it: without this, its full queue would stop the run.
    blocks = []
    for start in range(0, len(iq), 1000):
        session.push("iq", 10 * iq[start : start + 1000])
        blocks.append(session.pull("out", 1000, timeout=0.001))
    session.close("iq")
    blocks.append(session.pull("out", len(iq)))
    report = session.join()
assert np.array_equal(np.concatenate(blocks), outputs["out"])
print("iterations", report["iterations"])
