"""Callers: a bundle runs on the thread that calls it."""

import numpy as np
import pytest
import zbmd
from conftest import COUNT, QUIET, TWICE


def test_a_call_gives_what_a_run_gives(twice: zbmd.Bundle) -> None:
    call = zbmd.compile(TWICE, devices=1, block=16).caller()
    assert call.tokens == {"x": 16, "y": 16}
    for start in range(0, 160, 16):
        x = np.arange(start, start + 16, dtype=np.float32)
        assert np.array_equal(call({"x": x})["y"], twice.run({"x": x}, **QUIET)["y"])


def test_states_go_on_from_call_to_call() -> None:
    call = zbmd.compile(COUNT, devices=1, block=3).caller()
    assert [call()["out"].tolist() for _ in range(2)] == [[1, 2, 3], [4, 5, 6]]


LIVE = """Model(
    name: "live",
    params: { "gain": Live(1.0, min: 0.0, max: 10.0) },
    sources: { "x": Stream(dtype: f32) },
    actors: { "gain": Gain($gain) },
    channels: [(from: "x", to: ["gain"]), (from: "gain", to: ["y"])],
    sinks: { "y": Stream() },
)"""


def test_live_parameters_are_set_between_calls() -> None:
    call = zbmd.compile(LIVE, devices=1, block=2).caller()
    x = np.ones(2, np.float32)
    call.set({"gain": 3})
    assert call({"x": x})["y"].tolist() == [3, 3]
    with pytest.raises(zbmd.RefusedError, match="gain"):
        call.set({"gain": 11})
    with pytest.raises(zbmd.UsageError, match="pain"):
        call.set({"pain": 1})
    assert call({"x": x})["y"].tolist() == [3, 3]


def test_what_does_not_fit_is_refused() -> None:
    call = zbmd.compile(TWICE, devices=1, block=16).caller()
    with pytest.raises(zbmd.UsageError, match="given 60 bytes, a call takes 64"):
        call({"x": np.zeros(15, np.float32)})
    with pytest.raises(zbmd.UsageError, match="`x` has no input"):
        call()
    with pytest.raises(zbmd.UsageError, match="no source `z`"):
        call({"x": np.zeros(16, np.float32), "z": np.zeros(1, np.float32)})
    assert call({"x": np.ones(16, np.float32)})["y"].tolist() == [2] * 16
