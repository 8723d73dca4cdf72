"""Sessions: tokens in and out while a run goes on, from several threads, and Python stays alive meanwhile."""

import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import zbmd
from conftest import COUNT, QUIET


def test_tokens_stream_through(twice: zbmd.Bundle) -> None:
    with twice.start(**QUIET) as session:
        for start in range(0, 10_000, 1000):
            x = np.arange(start, start + 1000, dtype=np.float32)
            assert session.push("x", x) == 1000
        session.close("x")
        y = session.pull("y", 9_000)
        assert np.array_equal(y, 2 * np.arange(9_000))
        assert not session.is_finished("y")
        # Fewer than asked for at the end: a part of the array that was made for them.
        rest = session.pull("y", 5_000)
        assert np.array_equal(rest, 2 * np.arange(9_000, 10_000))
        assert session.is_finished("y")
        report = session.join()
    assert report["iterations"] == 10_000 == session.iterations
    assert report["sinks"][0]["name"] == "y"


def test_timeouts_give_what_there_is(twice: zbmd.Bundle) -> None:
    with twice.start(**QUIET) as session:
        assert session.pull("y", 4, timeout=0).shape == (0,)
        assert session.pull("y", 4, timeout=0.01).shape == (0,)
        # Nobody pulls: the queues fill up, and the rest is not taken.
        x = np.zeros(8_000_000, np.float32)
        taken = session.push("x", x, timeout=0.2)
        assert 0 < taken < len(x)
        with pytest.raises(zbmd.UsageError, match="the timeout"):
            session.pull("y", 4, timeout=float("nan"))


def test_two_threads_serve_the_two_ends(twice: zbmd.Bundle) -> None:
    x = np.random.default_rng(5).normal(size=3_000_000).astype(np.float32)
    with twice.start(**QUIET) as session:
        pushing = threading.Thread(target=lambda: (session.push("x", x), session.close("x")))
        pushing.start()
        y = session.pull("y", len(x))
        pushing.join()
        session.join()
    assert np.array_equal(y, 2 * x)


def test_a_session_can_be_stopped_from_another_thread() -> None:
    bundle = zbmd.compile(COUNT, devices=1)
    with bundle.start(**QUIET) as session:
        pulled = []
        pulling = threading.Thread(target=lambda: pulled.append(session.pull("out", 10**8)))
        pulling.start()
        while session.iterations == 0:
            time.sleep(0.001)
        session.stop()
        pulling.join()
        report = session.join()
    count = len(pulled[0])
    assert report["iterations"] == count > 0
    assert np.array_equal(pulled[0][-1:], [count])


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Python's own handler. Without it interrupts are lost where the tests were started by a shell in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_is_seen_while_waiting(twice: zbmd.Bundle) -> None:
    with twice.start(**QUIET) as session:
        threading.Timer(0.1, lambda: signal.raise_signal(signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            session.pull("y", 1)
    endless = zbmd.compile(COUNT, devices=1)
    with endless.start(**QUIET) as session:
        session.pull("out", 1)
        threading.Timer(0.1, lambda: signal.raise_signal(signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            session.join()


def test_mistakes_are_told(twice: zbmd.Bundle) -> None:
    x = np.zeros(4, np.float32)
    with twice.start(iterations=2, **QUIET) as session:
        with pytest.raises(zbmd.UsageError, match="there is no source `y`"):
            session.push("y", x)
        with pytest.raises(zbmd.UsageError, match="there is no sink `x`"):
            session.pull("x", 4)
        with pytest.raises(zbmd.UsageError, match="there is no stream `z`"):
            session.close("z")
        with pytest.raises(zbmd.UsageError, match="takes no more tokens"):
            while True:
                session.push("x", x)
        session.close("x")
        with pytest.raises(zbmd.UsageError, match="`x` was closed"):
            session.push("x", x)
        session.join()
        with pytest.raises(zbmd.UsageError, match="joined or closed"):
            session.join()
    with twice.start(**QUIET) as session:
        session.push("x", x)
    with pytest.raises(zbmd.FaultError, match="given up"):
        session.push("x", x)


def test_bursts_are_records() -> None:
    bundle = zbmd.compile(
        """Model(
    sources: { "in": Stream(dtype: f32, shape: Burst(max: 3, of: [2])) },
    actors: { "index": BurstIndex(hop: 1000) },
    channels: [(from: "in", to: ["index"]), (from: "index", to: ["out"])],
    sinks: { "out": Stream() },
)""",
        devices=1,
    )
    stream = bundle.streams["in"]
    assert (stream.is_burst, stream.dtype, stream.shape) == (True, "float32", (3, 2))
    layout = {
        "names": ["first", "length", "items"],
        "formats": ["int64", "uint32", ("float32", (3, 2))],
        "offsets": [0, 8, 16],
        "itemsize": 40,
    }
    bursts = np.zeros(4, layout)
    bursts["length"] = [2, 0, 3, 1]
    bursts["first"] = [5, 0, 6, 7]
    # What is not used is anything, and comes out as zeros.
    bursts["items"] = np.arange(24).reshape(4, 3, 2) + 1
    with bundle.start(**QUIET) as session:
        assert session.push("in", bursts) == 4
        session.close("in")
        out = session.pull("out", 4)
        session.join()
    assert out.dtype == bursts.dtype
    assert list(out["length"]) == [2, 0, 3, 1]
    assert list(out["first"]) == [5, 0, 2006, 3007]
    for index, length in enumerate(out["length"]):
        assert np.array_equal(out["items"][index, :length], bursts["items"][index, :length])
        assert not out["items"][index, length:].any()

    with bundle.start(**QUIET) as session:
        bursts["length"][1] = 4
        with pytest.raises(zbmd.UsageError, match="token 1 pushed to `in` is a burst of 4 items"):
            session.push("in", bursts)
        with pytest.raises(zbmd.UsageError, match="use an array of"):
            session.push("in", np.zeros((4, 3, 2), np.float32))


LIVE = """Model(
    name: "live",
    params: { "gain": Live(1.0, min: 0.0, max: 10.0), "taps": Live([1.0, 0.0], min: -1.0, max: 1.0) },
    sources: { "x": Stream(dtype: f32) },
    actors: { "gain": Gain($gain), "filter": Fir($taps) },
    channels: [
        (from: "x", to: ["gain"]),
        (from: "gain", to: ["filter"]),
        (from: "filter", to: ["y"]),
    ],
    sinks: { "y": Stream() },
)
"""


MODES = """Model(
    name: "volume",
    sources: { "x": Stream(dtype: f32) },
    modes: {
        "same": Mode(channels: [(from: "x", to: ["y"])]),
        "loud": Mode(
            actors: { "gain": Gain(2.0) },
            channels: [(from: "x", to: ["gain"]), (from: "gain", to: ["y"])],
        ),
    },
    changes: [("same", "loud")],
    sinks: { "y": Stream() },
)
"""


@pytest.mark.parametrize("is_loaded", [False, True])
def test_modes_change_between_tokens(is_loaded: bool) -> None:
    bundle = zbmd.compile(MODES, devices=1, block=1)
    if is_loaded:
        bundle = zbmd.load(bundle.to_bytes())
    with bundle.start(**QUIET) as session:
        assert (session.mode, session.modes) == ("same", ["same", "loud"])
        with pytest.raises(zbmd.UsageError, match="there is no mode `lout`: it has same, loud"):
            session.change_mode("lout")
        x = np.arange(300, dtype=np.float32)
        session.push("x", x)
        assert np.array_equal(session.pull("y", 300), x)
        assert session.change_mode("loud") == 300
        assert session.mode == "loud"
        with pytest.raises(zbmd.RefusedError, match="no change from mode `loud` to `same`"):
            session.change_mode("same")
        session.push("x", x)
        session.close("x")
        assert np.array_equal(session.pull("y", 300), 2 * x)
        session.join()
        with pytest.raises(zbmd.UsageError, match="has ended"):
            session.change_mode("same")


def test_live_parameters_are_set_together_or_not_at_all() -> None:
    with zbmd.compile(LIVE, devices=1).start(**QUIET) as session:
        assert session.parameters == {"gain": 1.0, "taps": [1.0, 0.0]}
        assert session.set({"gain": 2, "taps": (0.5, 0.25)}, at=("x", 100)) == 100
        for values, error, text in [
            ({"gain": 3.0, "taps": [0.5]}, zbmd.RefusedError, "`taps` takes 2 numbers, not 1"),
            ({"gain": 11}, zbmd.RefusedError, "the model allows 0 to 10"),
            ({"gain": float("nan")}, zbmd.RefusedError, "cannot be NaN"),
            ({"pain": 1}, zbmd.UsageError, "it has gain, taps"),
        ]:
            with pytest.raises(error, match=text):
                session.set(values)
        with pytest.raises(zbmd.UsageError, match="no source `z`"):
            session.set({"gain": 1}, at=("z", 0))
        assert session.parameters == {"gain": 2.0, "taps": [0.5, 0.25]}

        x = np.arange(300, dtype=np.float32)
        session.push("x", x)
        session.close("x")
        y = session.pull("y", 300)
        session.join()
        with pytest.raises(zbmd.UsageError, match="has ended"):
            session.set({"gain": 1})
    assert np.array_equal(y[:100], x[:100])
    # The filter has its new taps when the first doubled token is in its window.
    doubled = np.where(x < 100, x, 2 * x)
    assert np.array_equal(y[100:], (0.5 * doubled[1:] + 0.25 * doubled[:-1])[99:])


def test_a_channel_is_looked_at_while_tokens_pass(twice: zbmd.Bundle) -> None:
    with twice.start(**QUIET) as session:
        assert {"x", "twice"} <= set(session.channels)
        assert session.channels["twice"]["dtype"] == np.float32
        with pytest.raises(zbmd.UsageError, match="no channel `thrice` to look at: it has x, twice"):
            session.probe("thrice")
        with session.probe("twice") as probe:
            with pytest.raises(zbmd.RefusedError, match="somebody looks at `twice`"):
                session.probe("x")
            assert probe.next(timeout=0) is None
            # The block at work when the probe comes is not copied: tokens pass until one is there.
            block = None
            for start in range(0, 4_000_000, 4_000):
                session.push("x", np.arange(start, start + 4_000, dtype=np.float32))
                session.pull("y", 4_000, timeout=0.001)
                block = probe.next(timeout=0)
                if block is not None:
                    break
            assert block is not None
            iteration, tokens = block
            assert len(tokens) == session.channels["twice"]["block_tokens"]
            expected = 2 * (iteration + np.arange(len(tokens)))
            assert np.array_equal(tokens, expected.astype(np.float32))
        with pytest.raises(zbmd.UsageError, match="was closed"):
            probe.next(timeout=0)
        with session.probe("x") as other:
            session.close("x")
            session.close("y")
            session.join()
            while other.next() is not None:
                pass
        with pytest.raises(zbmd.UsageError, match="has ended"):
            session.probe("x")


def test_states_of_sequences_are_streams() -> None:
    bundle = zbmd.compile(COUNT, devices=1, sequences=True)
    sources = [name for name, stream in bundle.streams.items() if stream.is_source]
    assert sources == ["count.state"]
    # Where the first one left off, the next one goes on.
    first = bundle.run({"count.state": np.zeros(1, np.float32)})
    second = bundle.run({"count.state": first["count.next"]})
    assert (first["out"].tolist(), second["out"].tolist()) == ([1.0], [2.0])
