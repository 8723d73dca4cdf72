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


def test_what_does_not_fit_is_refused() -> None:
    call = zbmd.compile(TWICE, devices=1, block=16).caller()
    with pytest.raises(zbmd.UsageError, match="given 60 bytes, a call takes 64"):
        call({"x": np.zeros(15, np.float32)})
    with pytest.raises(zbmd.UsageError, match="`x` has no input"):
        call()
    with pytest.raises(zbmd.UsageError, match="no source `z`"):
        call({"x": np.zeros(16, np.float32), "z": np.zeros(1, np.float32)})
    assert call({"x": np.ones(16, np.float32)})["y"].tolist() == [2] * 16
