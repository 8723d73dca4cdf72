"""Triton's own gRPC client against a server of the model `simple`: every call, one after the other and at once, as a stream and with
asyncio. Ends with an error at the first thing that is not as it should be."""

import asyncio
import queue
import sys

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as aio
from tritonclient.utils import InferenceServerException

url = sys.argv[1]
first = np.arange(16, dtype=np.int32).reshape(1, 16)
second = np.full((1, 16), -3, dtype=np.int32)


def inputs(module=grpc):
    made = []
    for name, value in [("INPUT0", first), ("INPUT1", second)]:
        tensor = module.InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(value)
        made.append(tensor)
    return made


def check(result):
    assert (result.as_numpy("OUTPUT0") == first + second).all()
    assert (result.as_numpy("OUTPUT1") == first - second).all()


def refused(call):
    try:
        call()
    except InferenceServerException as error:
        return error
    raise AssertionError("it was not refused")


with grpc.InferenceServerClient(url) as client:
    # Health and metadata.
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("simple") and client.is_model_ready("simple", "1")
    assert not client.is_model_ready("other")
    assert "binary_tensor_data" in client.get_server_metadata().extensions
    metadata = client.get_model_metadata("simple")
    assert [tensor.name for tensor in metadata.inputs] == ["INPUT0", "INPUT1"]
    assert metadata.outputs[0].datatype == "INT32"
    config = client.get_model_config("simple", as_json=True)["config"]
    assert config["input"][0]["data_type"] == "TYPE_INT32"
    assert config["parameters"]["block_iterations"]["string_value"] == "1"
    assert client.get_model_repository_index().models[0].state == "READY"

    # Sync: all outputs, or those that are asked for.
    result = client.infer("simple", inputs(), request_id="7", headers={"x-unknown": "1"})
    check(result)
    assert result.get_response().id == "7"
    check(client.infer("simple", inputs(), model_version="1", timeout=10_000_000, priority=1))
    only = client.infer("simple", inputs(), outputs=[grpc.InferRequestedOutput("OUTPUT0")])
    assert only.as_numpy("OUTPUT1") is None

    # Async: all at once.
    answers = queue.Queue()
    for _ in range(64):
        client.async_infer("simple", inputs(), lambda result, error: answers.put((result, error)))
    for _ in range(64):
        result, error = answers.get(timeout=60)
        assert error is None, error
        check(result)

    # A stream: in order, and a refusal is one answer of it.
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(64):
        model = "other" if number == 32 else "simple"
        client.async_stream_infer(model, inputs(), request_id=str(number))
    for number in range(64):
        result, error = answers.get(timeout=60)
        if number == 32:
            assert "unknown model" in error.message(), error
            continue
        assert error is None, error
        check(result)
        assert result.get_response().id == str(number)
    client.stop_stream()

    # Mistakes are told.
    wrong = grpc.InferInput("INPUT0", [16], "INT32")
    wrong.set_data_from_numpy(first.reshape(16))
    error = refused(lambda: client.infer("simple", [wrong, inputs()[1]]))
    assert "shape" in error.message() and "INVALID_ARGUMENT" in error.status()
    texts = grpc.InferInput("INPUT0", [1, 16], "BYTES")
    texts.set_data_from_numpy(np.full((1, 16), "1", dtype=np.object_))
    error = refused(lambda: client.infer("simple", [texts, inputs()[1]]))
    assert "no strings" in error.message()
    assert "missing" in refused(lambda: client.infer("simple", inputs()[:1])).message()
    error = refused(lambda: client.infer("other", inputs()))
    assert "unknown model" in error.message() and "NOT_FOUND" in error.status()
    error = refused(lambda: client.infer("simple", inputs(), sequence_id=5))
    assert "sequence_id" in error.message()
    error = refused(lambda: client.infer("simple", inputs(), compression_algorithm="gzip"))
    assert "UNIMPLEMENTED" in error.status()
    statistics = client.get_inference_statistics("simple").model_stats[0]
    assert statistics.inference_stats.success.count == 130


async def check_aio():
    async with aio.InferenceServerClient(url) as client:
        assert await client.is_server_ready()
        for result in await asyncio.gather(
            *[client.infer("simple", inputs(aio)) for _ in range(16)]
        ):
            check(result)


asyncio.run(check_aio())
print("all is well")
