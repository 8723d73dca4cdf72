"""Triton's own HTTP client against a server of the model `simple`: every call, tensors as bytes and as JSON, one after the other and
at once. Ends with an error at the first thing that is not as it should be."""

import sys

import numpy as np
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

url = sys.argv[1]
first = np.arange(16, dtype=np.int32).reshape(1, 16)
second = np.full((1, 16), -3, dtype=np.int32)


def inputs(is_binary):
    made = []
    for name, value, binary in [("INPUT0", first, is_binary), ("INPUT1", second, True)]:
        tensor = http.InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(value, binary_data=binary)
        made.append(tensor)
    return made


def check(result):
    assert (result.as_numpy("OUTPUT0") == first + second).all()
    assert (result.as_numpy("OUTPUT1") == first - second).all()


def refused(call):
    try:
        call()
    except InferenceServerException as error:
        return error.message()
    raise AssertionError("it was not refused")


with http.InferenceServerClient(url, concurrency=8) as client:
    # Health and metadata.
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("simple") and client.is_model_ready("simple", "1")
    assert not client.is_model_ready("other")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    metadata = client.get_model_metadata("simple")
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["INPUT0", "INPUT1"]
    assert metadata["outputs"][0]["datatype"] == "INT32"
    assert client.get_model_config("simple")["max_batch_size"] == 0
    assert client.get_model_repository_index()[0]["state"] == "READY"

    # Sync: bytes and lists both ways, mixed in one request and one answer.
    for is_binary in [True, False]:
        for wants_binary in [True, False]:
            outputs = [
                http.InferRequestedOutput("OUTPUT1", binary_data=wants_binary),
                http.InferRequestedOutput("OUTPUT0", binary_data=not wants_binary),
            ]
            result = client.infer(
                "simple",
                inputs(is_binary),
                outputs=outputs,
                request_id="7",
                query_params={"unknown": 1},
                headers={"x-unknown": "1"},
            )
            check(result)
            assert result.get_response()["id"] == "7"
    check(client.infer("simple", inputs(True), model_version="1", timeout=10_000_000, priority=1))
    only = client.infer("simple", inputs(True), outputs=[http.InferRequestedOutput("OUTPUT0")])
    assert only.as_numpy("OUTPUT1") is None

    # Async: all at once.
    waiting = [client.async_infer("simple", inputs(number % 2 == 0)) for number in range(64)]
    for request in waiting:
        check(request.get_result())

    # Mistakes are told.
    wrong = http.InferInput("INPUT0", [16], "INT32")
    wrong.set_data_from_numpy(first.reshape(16))
    assert "shape" in refused(lambda: client.infer("simple", [wrong, inputs(True)[1]]))
    texts = http.InferInput("INPUT0", [1, 16], "BYTES")
    texts.set_data_from_numpy(np.full((1, 16), "1", dtype=np.object_))
    assert "no strings" in refused(lambda: client.infer("simple", [texts, inputs(True)[1]]))
    assert "missing" in refused(lambda: client.infer("simple", inputs(True)[:1]))
    assert "unknown model" in refused(lambda: client.infer("other", inputs(True)))
    assert "sequence_id" in refused(lambda: client.infer("simple", inputs(True), sequence_id=5))
    statistics = client.get_inference_statistics("simple")["model_stats"][0]
    assert statistics["inference_stats"]["success"]["count"] == 70


async def check_aio():
    import tritonclient.http.aio as aio

    async with aio.InferenceServerClient(url) as client:
        assert await client.is_server_ready()
        asked = []
        for is_binary in [True, False]:
            tensors = []
            for name, value in [("INPUT0", first), ("INPUT1", second)]:
                tensor = aio.InferInput(name, [1, 16], "INT32")
                tensor.set_data_from_numpy(value, binary_data=is_binary)
                tensors.append(tensor)
            asked.append(client.infer("simple", tensors))
        for result in await asyncio.gather(*asked):
            check(result)


import asyncio

asyncio.run(check_aio())
print("all is well")
