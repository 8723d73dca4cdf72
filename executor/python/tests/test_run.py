"""Whole arrays through bundles: values, dtypes, shapes, memory, and mistakes."""

import gc
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import zbmd
from conftest import COUNT, QUIET, TWICE, passing

DTYPES = {
    "f32": "float32",
    "f64": "float64",
    "f16": "float16",
    "bf16": "uint16",
    "i8": "int8",
    "u8": "uint8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "bool": "bool",
    "c32": "complex64",
}


def test_a_model_file_runs_as_numpy_computes(graphs: pathlib.Path) -> None:
    bundle = zbmd.compile(graphs / "agc" / "model.ron", devices=2)
    assert bundle.name == "agc" and bundle.warnings == ""
    rng = np.random.default_rng(7)
    iq = (rng.normal(size=500) + 1j * rng.normal(size=500)).astype(np.complex64)
    outputs = bundle.run({"iq": iq}, **QUIET)
    gain, expected = np.float32(1.0), []
    for sample in iq:
        scaled = sample * gain
        expected.append(scaled)
        gain = np.float32(gain + np.float32(0.01) * (np.float32(1.0) - np.abs(scaled)))
    np.testing.assert_allclose(outputs["out"], expected, rtol=1e-4, atol=1e-5)
    assert outputs["gain"].dtype == np.float32 and outputs["gain"].shape == (500,)


def test_streams_tell_what_they_carry(graphs: pathlib.Path) -> None:
    streams = zbmd.compile(str(graphs / "cd2dat" / "model.ron"), devices=1).streams
    cd, dat = streams["cd"], streams["dat"]
    assert (cd.name, cd.is_source, cd.dtype, cd.shape) == ("cd", True, "float32", ())
    assert (cd.tokens_per_iteration, dat.tokens_per_iteration) == (147, 160)
    assert (cd.sample_rate, dat.sample_rate) == (44100.0, 48000.0)
    assert not dat.is_source


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_passes_unchanged(dtype: str) -> None:
    bundle = zbmd.compile(passing(dtype, "[2, 3]"), devices=1)
    stream = bundle.streams["y"]
    assert (stream.dtype, stream.shape) == (DTYPES[dtype], (2, 3))
    x = np.random.default_rng(3).integers(0, 2, (5, 2, 3)).astype(stream.dtype)
    y = bundle.run({"x": x}, **QUIET)["y"]
    assert y.dtype == x.dtype and np.array_equal(x, y)


def test_a_bundle_is_saved_and_loaded(twice: zbmd.Bundle, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "twice.zbmd"
    twice.save(path)
    assert path.read_bytes() == twice.to_bytes()
    for bundle in [zbmd.load(path), zbmd.load(str(path)), zbmd.load(path.read_bytes())]:
        x = np.arange(1000, dtype=np.float32)
        assert np.array_equal(bundle.run({"x": x}, **QUIET)["y"], 2 * x)


def test_outputs_own_their_memory_and_can_be_written(twice: zbmd.Bundle) -> None:
    y = twice.run({"x": np.ones(100, np.float32)}, **QUIET)["y"]
    gc.collect()
    assert y.flags.owndata and y.flags.writeable
    y += 1
    assert (y == 3).all()
    # Nothing holds a buffer of it any more, or this would raise.
    y.resize(10)


def test_inputs_are_borrowed_for_the_call(twice: zbmd.Bundle) -> None:
    x = np.ones(100, np.float32)
    before = sys.getrefcount(x)
    twice.run({"x": x}, **QUIET)
    assert sys.getrefcount(x) == before
    x.resize(10)


def test_arrays_that_do_not_lie_in_one_piece_are_taken_too(twice: zbmd.Bundle) -> None:
    x = np.arange(200, dtype=np.float32)
    assert np.array_equal(twice.run({"x": x[::2]}, **QUIET)["y"], 2 * x[::2])
    assert np.array_equal(twice.run({"x": x[::-1]}, **QUIET)["y"], 2 * x[::-1])
    x.flags.writeable = False
    assert np.array_equal(twice.run({"x": x}, **QUIET)["y"], 2 * x)
    assert np.array_equal(twice.run({"x": [1, 2, 3]}, **QUIET)["y"], [2, 4, 6])
    assert twice.run({"x": np.empty(0, np.float32)}, **QUIET)["y"].shape == (0,)


class Tensor:
    """Something of another library: it has DLPack, and nothing else."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.asked = array, 0

    def __dlpack__(self, **how):
        self.asked += 1
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack_goes_in_and_out(twice: zbmd.Bundle) -> None:
    tensor = Tensor(np.arange(100, dtype=np.float32))
    y = twice.run({"x": tensor}, **QUIET)["y"]
    assert tensor.asked == 1
    again = np.from_dlpack(Tensor(y))
    assert np.array_equal(again, 2 * tensor.array)
    assert np.shares_memory(again, y)


def test_generators_run_for_a_number_of_iterations() -> None:
    bundle = zbmd.compile(COUNT, devices=1)
    out = bundle.run(iterations=5, **QUIET)["out"]
    assert np.array_equal(out, [1, 2, 3, 4, 5])
    with pytest.raises(zbmd.UsageError, match="never ends"):
        bundle.run()


def test_what_is_less_than_an_iteration_is_left_or_padded(graphs: pathlib.Path) -> None:
    bundle = zbmd.compile(graphs / "cd2dat" / "model.ron", devices=1)
    x = np.ones(147 * 3 + 5, np.float32)
    assert bundle.run({"cd": x}, **QUIET)["dat"].shape == (480,)
    assert bundle.run({"cd": x}, pad=True, **QUIET)["dat"].shape == (640,)
    assert bundle.run({"cd": x[: 147 * 3]}, pad=True, **QUIET)["dat"].shape == (480,)
    assert bundle.run({"cd": x}, iterations=2, **QUIET)["dat"].shape == (320,)


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (np.zeros(4), "`x` carries f32: use an array of float32, not of float64"),
        (np.zeros((4, 1), np.float32), "the first dimension of an array counts tokens"),
        (np.float32(3), "the first dimension of an array counts tokens"),
        (np.zeros(4, ">f4"), "use an array of float32, not of >f4"),
    ],
)
def test_wrong_arrays_are_refused(twice: zbmd.Bundle, x: np.ndarray, text: str) -> None:
    with pytest.raises(zbmd.UsageError, match=text):
        twice.run({"x": x}, **QUIET)


def test_wrong_calls_are_refused(twice: zbmd.Bundle, tmp_path: pathlib.Path) -> None:
    x = np.zeros(4, np.float32)
    with pytest.raises(zbmd.UsageError, match="source `x` has no input"):
        twice.run({})
    with pytest.raises(zbmd.UsageError, match="there is no source `z`, only `x`"):
        twice.run({"x": x, "z": x})
    with pytest.raises(zbmd.UsageError, match="there is no option `speed`"):
        twice.run({"x": x}, speed=9)
    with pytest.raises(zbmd.UsageError, match="isolation is `moon`"):
        twice.run({"x": x}, isolation="moon")
    with pytest.raises(zbmd.FileError, match="no/such.zbmd"):
        zbmd.load("no/such.zbmd")
    with pytest.raises(zbmd.RefusedError, match="not a bundle"):
        zbmd.load(b"ZBMX and something else")
    with pytest.raises(zbmd.FileError, match="no/such.ron"):
        zbmd.compile("no/such.ron")
    with pytest.raises(zbmd.FileError):
        twice.run({"x": x}, supervision="Supervision(intensity: true)")
    with pytest.raises(zbmd.FileError, match="nowhere"):
        twice.save(tmp_path / "nowhere" / "twice.zbmd")
    assert issubclass(zbmd.CompileError, zbmd.Error)


def test_errors_of_models_are_drawn_on_their_text() -> None:
    with pytest.raises(zbmd.CompileError) as error:
        zbmd.compile(TWICE.replace("Gain", "Gian"), devices=1)
    text = str(error.value)
    assert "error[E" in text and "<text>:4" in text and "did you mean `Gain`?" in text


@pytest.mark.skipif(sys.platform != "linux", reason="workers in processes are for Linux")
def test_workers_run_in_processes() -> None:
    bundle = zbmd.compile(COUNT, devices=1)
    how = {"isolation": "processes", "supervision": "", "standby": True}
    out = bundle.run(iterations=1000, **how, **QUIET)["out"]
    assert np.array_equal(out, np.arange(1, 1001))


def test_the_module_needs_no_numpy_before_it_is_used() -> None:
    code = "import sys, zbmd; assert 'numpy' not in sys.modules; print(zbmd.__version__)"
    path = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"]
    done = subprocess.run(path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == zbmd.__version__
