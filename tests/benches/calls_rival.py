"""Times calls of an ONNX model, one at a time: calls_rival.py ENGINE MODEL THREADS RESULT, with ENGINE ort, openvino, mnn or
ncnn, on so many threads. Into the file RESULT goes the first output, as floats. The last two convert the model by `mnnconvert` and `pnnx`, which lie beside the Python.

Says "ready" once the model is loaded; then each line of the standard input is a number of calls, and the answer the
seconds of one of them. The line "make" asks for the seconds of making the engine's session from the file anew and of its first
call. Inputs and outputs stay where the engine wants them, so that as little as can be is Python's.
"""
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

engine, path, threads, result_path = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
stem = path[: -len(".onnx")]
# What converters write; it goes with this process.
converted_folder = tempfile.TemporaryDirectory()
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


def ort_call():
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
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

    return lambda: session.run_with_iobinding(binding), lambda: binding.copy_outputs_to_cpu()[0]


def openvino_call():
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
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            # Some processors would make it bf16.
            "INFERENCE_PRECISION_HINT": "f32",
        },
    )
    request = compiled.create_infer_request()
    for i, feed in enumerate(feeds):
        request.set_input_tensor(i, ov.Tensor(np.ascontiguousarray(feed)))

    return request.infer, lambda: request.get_output_tensor(0).data


def static_inputs():
    """Name, shape and token of each input of the file; weights that it lists among them are none."""
    import onnx

    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    feeds = []
    for i, value in enumerate(inputs):
        dims = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        feeds.append((value.name, np.ascontiguousarray(feed_of(i, value.name, dims))))
    return model, feeds


def converted(command, folder):
    """Runs a converter in a folder, where it may leave what it likes; its output is of no interest unless it fails."""
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]}: {done.stdout[-400:]}")


def saved_inputs(folder):
    """The model with weights that are no inputs, in a file that the converters take; its inputs, and its first output's name."""
    import onnx

    model, feeds = static_inputs()
    plain = os.path.join(folder, "model.onnx")
    onnx.save(model, plain)
    return plain, feeds, model.graph.output[0].name


def mnn_call():
    import MNN

    folder = converted_folder.name
    plain, feeds, output_name = saved_inputs(folder)
    there = os.path.join(folder, "model.mnn")
    tool = os.path.join(os.path.dirname(sys.executable), "mnnconvert")
    converted([tool, "-f", "ONNX", "--modelFile", plain, "--MNNModel", there, "--bizCode", "x"], folder)
    net = MNN.Interpreter(there)
    session = net.createSession({"numThread": threads, "precision": "high", "backend": "CPU"})
    kinds = {np.dtype(np.float32): MNN.Halide_Type_Float, np.dtype(np.int32): MNN.Halide_Type_Int}
    for name, feed in feeds:
        net.resizeTensor(net.getSessionInput(session, name), feed.shape)
    net.resizeSession(session)

    def fill():
        for name, feed in feeds:
            # It knows no 64-bit integers.
            feed = feed.astype(np.int32) if feed.dtype == np.int64 else feed
            token = MNN.Tensor(feed.shape, kinds[feed.dtype], feed, MNN.Tensor_DimensionType_Caffe)
            net.getSessionInput(session, name).copyFrom(token)

    fill()
    code = net.runSession(session)
    if code != 0:
        sys.exit(f"MNN fails with {code}")

    def result():
        # A run may have written over its inputs.
        fill()
        net.runSession(session)
        output = net.getSessionOutput(session, output_name)
        shape = output.getShape()
        copy = MNN.Tensor(shape, MNN.Halide_Type_Float, np.zeros(shape, np.float32), MNN.Tensor_DimensionType_Caffe)
        output.copyToHostTensor(copy)
        # The array shows the tensor's memory, which goes with it.
        return np.array(copy.getNumpyData())

    return lambda: net.runSession(session), result


def ncnn_call():
    import ncnn

    folder = converted_folder.name
    plain, feeds, _ = saved_inputs(folder)
    tool = os.path.join(os.path.dirname(sys.executable), "pnnx")
    types = {np.dtype(np.float32): "f32", np.dtype(np.int64): "i64"}
    shapes = ",".join(f"{list(feed.shape)}{types[feed.dtype]}".replace(" ", "") for _, feed in feeds)
    # Unless told, it rounds weights to half floats.
    converted([tool, plain, f"inputshape={shapes}", "fp16=0"], folder)
    net = ncnn.Net()
    net.opt.num_threads = threads
    net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = net.opt.use_bf16_storage = False
    stem = plain[: -len(".onnx")]
    if net.load_param(stem + ".ncnn.param") != 0 or net.load_model(stem + ".ncnn.bin") != 0:
        sys.exit("ncnn does not load what pnnx has made")
    # A batch of one is no dimension there.
    tokens = [ncnn.Mat(np.squeeze(feed, 0) if feed.ndim > 1 else feed).clone() for _, feed in feeds]

    last = []

    def call():
        extractor = net.create_extractor()
        for i, token in enumerate(tokens):
            extractor.input(f"in{i}", token)
        code, output = extractor.extract("out0")
        if code != 0:
            sys.exit(f"ncnn fails with {code}")
        last[:] = [output]

    return call, lambda: np.array(last[0])


# What the converters and libraries print is no answer.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
make = {"ort": ort_call, "openvino": openvino_call, "mnn": mnn_call, "ncnn": ncnn_call}[engine]
call, result = make()
call()
np.ascontiguousarray(result(), np.float32).tofile(result_path)
print("ready", file=answers, flush=True)
for line in sys.stdin:
    if line == "make\n":
        # The one before goes first, so that two never share the memory.
        call = result = None
        start = time.perf_counter()
        call, result = make()
        call()
        print(time.perf_counter() - start, file=answers, flush=True)
        continue
    calls = int(line)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    print((time.perf_counter() - start) / calls, file=answers, flush=True)
