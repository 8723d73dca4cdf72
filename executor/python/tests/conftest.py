"""Models and folders that tests share."""

import os
import pathlib

import pytest
import zbmd

TWICE = """Model(
    name: "twice",
    sources: { "x": Stream(dtype: f32) },
    actors: { "twice": Gain(2.0) },
    channels: [(from: "x", to: ["twice"]), (from: "twice", to: ["y"])],
    sinks: { "y": Stream() },
)"""

COUNT = """Model(
    name: "count",
    actors: { "count": Expr("n + 1.0", inputs: { "n": f32 }) },
    channels: [
        (from: "count", to: ["count"], initial: [0.0]),
        (from: "count", to: ["out"]),
    ],
    sinks: { "out": Stream() },
)"""


def passing(dtype: str, shape: str) -> str:
    """A model that hands tokens of a type on as they are."""
    return f"""Model(
    name: "pass",
    sources: {{ "x": Stream(dtype: {dtype}, shape: {shape}) }},
    channels: [(from: "x", to: ["y"])],
    sinks: {{ "y": Stream() }},
)"""


@pytest.fixture(scope="session")
def graphs() -> pathlib.Path:
    return pathlib.Path(os.environ.get("ZBMD_GRAPHS", pathlib.Path(__file__).parents[3] / "graphs"))


@pytest.fixture(scope="session")
def twice() -> zbmd.Bundle:
    return zbmd.compile(TWICE, devices=1)


# Tests share the computer with other tests: pinning and locking would only make them quarrel.
QUIET = {"pin": False, "lock_memory": False}
