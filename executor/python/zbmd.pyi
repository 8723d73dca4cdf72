"""Statically scheduled dataflow: compiles streaming signal-processing and ML models into calendars, and runs them.

Arrays of NumPy go in and come out without copies. The first dimension of an array counts tokens, the others are the
token's: a stream of ``f32[3, 224, 224]`` takes arrays of ``float32`` and the shape ``(n, 3, 224, 224)``, a stream of
scalars those of the shape ``(n,)``. NumPy has no bfloat16: streams of ``bf16`` carry ``uint16``, its bits.

What has ``__dlpack__`` and lies in a CPU's memory, such as a tensor of PyTorch or JAX, is taken as it is too; for the
other way, arrays of NumPy have it: ``torch.from_dlpack(outputs["y"])``.

Whatever waits or computes gives up the interpreter's lock. An array that is pushed must not be written by other threads
before the call returns.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Protocol, TypedDict, Unpack, final

import numpy as np
import numpy.typing as npt

__all__ = [
    "__version__",
    "Bundle",
    "Caller",
    "Probe",
    "Stream",
    "load",
    "compile",
    "CompileError",
    "Error",
    "FaultError",
    "FileError",
    "GaveUpError",
    "RefusedError",
    "UsageError",
    "Session",
    "_serve_if_worker",
]

__version__: str

class _DLPack(Protocol):
    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...

_Tokens = npt.ArrayLike | _DLPack
_Path = str | PathLike[str]

class _Options(TypedDict, total=False):
    iterations: int | None
    """Iterations of the model at most."""
    pad: bool
    """At the end, fill up what is less than an iteration with zeros and run it too."""
    isolation: Literal["threads", "processes", "gpus"]
    """Where workers run: in threads, in processes, or GPUs in processes and CPU devices in threads."""
    worker: _Path | None
    """What a worker's process is, such as ``zbmd-run`` of this very build; this interpreter if left out."""
    standby: bool
    """Of each worker that is a process, keep a second one ready to take its place."""
    supervision: str | None
    """Go on when workers are lost, as this text in RON declares; an empty one leaves all by default."""
    checksums: bool
    """Check that what arrives over rings is what was sent."""
    pin: bool
    """Tie each worker to its device's cores; so if left out."""
    lock_memory: bool
    """Ask the system to keep the run's memory from being paged out; so if left out."""
    realtime: bool
    """Real-time priorities for the run's threads, and all memory locked; refused where the system does not allow it."""
    queue_bytes: int
    """Bytes that each stream's queue holds at least."""

class Error(Exception):
    """What zbmd refuses or fails at."""

class UsageError(Error):
    """The call makes no sense."""

class CompileError(Error):
    """The model or the machine is wrong; the text draws the errors on the model."""

class FileError(Error):
    """A file cannot be read or written, or a declaration is wrong."""

class RefusedError(Error):
    """The bundle is refused, or a device that it was made for is not here."""

class FaultError(Error):
    """A kernel or a device failed during the run, or there is too little memory."""

class GaveUpError(Error):
    """The supervisor gave up in good order."""

@final
class Stream:
    """A source or a sink of a bundle."""

    @property
    def name(self) -> str: ...
    @property
    def is_source(self) -> bool:
        """Whether tokens go in; they come out otherwise."""
    @property
    def dtype(self) -> str:
        """The name of the NumPy dtype of its arrays, or of the items of bursts."""
    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions of one token; ``()`` is a scalar. Of bursts the first is the largest number of items."""
    @property
    def is_burst(self) -> bool:
        """Whether tokens are bursts: arrays of records of ``first``, the index of the first item's sample, ``length``,
        the number of items there are, and ``items``, room for all there may be, with zeros behind those there are."""
    @property
    def tokens_per_iteration(self) -> int:
        """Tokens of one iteration of the model: less than that is not processed."""
    @property
    def sample_rate(self) -> float | None:
        """Tokens of one second, if the model says so."""

@final
class Bundle:
    """A program that is ready to run, any number of times."""

    @property
    def name(self) -> str:
        """The model's name."""
    @property
    def streams(self) -> dict[str, Stream]:
        """Its sources and sinks, by name."""
    @property
    def warnings(self) -> str:
        """What the compiler warned of; empty if nothing, or if the bundle was loaded."""
    def save(self, path: _Path) -> None:
        """Writes the bundle; the file appears whole or not at all."""
    def to_bytes(self) -> bytes:
        """The bundle's file as bytes."""
    def run(
        self, inputs: Mapping[str, _Tokens] | None = None, **options: Unpack[_Options]
    ) -> dict[str, npt.NDArray[Any]]:
        """Runs whole inputs through the model, from its initial state; what each sink gave.

        The run ends with the shortest input: what is less than an iteration is left over, unless ``pad`` is true.
        """
    def start(self, **options: Unpack[_Options]) -> Session:
        """Starts a run that tokens are pushed into and pulled from while it goes on."""

    def caller(self) -> Caller:
        """Makes the bundle ready to be called. Raises ``RefusedError`` unless it has one mode and is for one CPU device."""

@final
class Caller:
    """A bundle for one CPU device that runs on the thread that calls it, a block at a time.

    No other thread is started or waited for, which suits small networks. The first call begins with the model's initial
    states, each later one with those that the one before left. Compile with ``devices=1, block=1`` for calls of one
    iteration. Several threads may call; they take turns.
    """

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of a call, by the names of sources and sinks."""
    def set(self, values: Mapping[str, float | Sequence[float]]) -> None:
        """Sets live parameters, all of them together or none, from the next call on.

        Raises ``UsageError`` for names that the model does not have, and after a call that failed; ``RefusedError`` for values out of
        their range.
        """
    def __call__(self, inputs: Mapping[str, _Tokens] | None = None) -> dict[str, npt.NDArray[Any]]:
        """Runs one block; what each sink gave.

        Raises ``UsageError`` for other numbers of tokens, and then nothing has run; ``FaultError`` where a kernel fails,
        after which no call runs any more.
        """

@final
class Session:
    """A run of a bundle. Any thread may use it, and several may at once.

    As a context manager it gives the run up at the end of the block, unless it was joined.
    """

    def push(self, name: str, tokens: _Tokens, timeout: float | None = None) -> int:
        """Gives tokens to a source; how many were taken: fewer than given only when the timeout (s) is over.

        Waits for room, so a thread that also pulls should bound it. Raises ``UsageError`` when the run takes no more.
        """
    def pull(self, name: str, tokens: int, timeout: float | None = None) -> npt.NDArray[Any]:
        """So many tokens of a sink; fewer only when the timeout (s) is over, or the run has ended."""
    def is_finished(self, name: str) -> bool:
        """Whether the run has ended and every token of the sink has been pulled."""
    def close(self, name: str) -> None:
        """Ends a source; or drops what still comes to a sink."""
    def connect(self, name: str, url: str | None = None) -> None:
        """Feeds a source from a URL, or sends a sink to one: ``udp://0.0.0.0:5000?header=seq&rate=48000``.

        Without one it is the URL that the model names. ``zbmd-run --help`` lists the schemes and keys. A stream has one
        URL, and then no ``push`` or ``pull``. Raises ``UsageError`` for a wrong URL, ``FileError`` where a socket or a
        device cannot be opened; then the session is as it was before.
        """
    def live_report(self) -> list[dict[str, Any]]:
        """What connected streams have done so far, in the order in which they were connected; final after ``join``.

        As ``zbmd-run --report json`` has it under ``live``: ``received``, ``filled`` by cause, ``gap_count``, ``gaps``,
        ``sent``, ``dropped``, and more.
        """
    def set(
        self, values: Mapping[str, float | Sequence[float]], at: tuple[str, int] | None = None
    ) -> int:
        """Sets live parameters, all of them together or none.

        They take effect with the next block that no worker can have begun, whose iteration is returned; or exactly at a
        token of a source, ``at=("in", 48000)``, counted from the start of the run. Raises ``UsageError`` for names that
        the model does not have, and after the end of the run; ``RefusedError`` for values out of their range and for a
        token that is at work already. Then none is set.
        """
    @property
    def parameters(self) -> dict[str, float | list[float]]:
        """The live parameters and the values that they were given last."""
    def change_mode(self, mode: str, timeout: float | None = None) -> int | None:
        """Goes over to another mode of the model at the next border; its first iteration of the run.

        ``None`` if the timeout (s) is over before; it will go over all the same. Another thread must push and pull if
        that is needed for the blocks at work. Raises ``UsageError`` for a mode that the model does not have, and after
        the end of the run; ``RefusedError`` for a change that the model does not allow, while another one is not done,
        and where the mode has no plan without the devices that are lost.
        """
    @property
    def mode(self) -> str | None:
        """The mode that the run is in; ``None`` if the model has no modes."""
    @property
    def modes(self) -> list[str]:
        """The modes of the model; the run began in the first."""
    @property
    def channels(self) -> dict[str, dict[str, Any]]:
        """The channels that can be looked at now, by name: the actor that writes it, or ``actor.port``.

        Each with ``dtype``, ``shape``, ``block_tokens`` and ``block_iterations`` of the present plan, ``device``, and
        ``sample_rate`` or ``None``.
        """
    def probe(self, channel: str) -> Probe:
        """Begins to look at a channel; the run is not stopped or waited for.

        One channel of a run can be looked at at a time. Raises ``UsageError`` for a channel that the run does not have
        or that only a GPU has, and after the end of the run; ``RefusedError`` while somebody else looks, for blocks that
        are longer than what is copied, and for runs over several hosts.
        """
    def stop(self) -> None:
        """Ends the run in good order: it takes no more tokens, and finishes what it works on."""
    @property
    def iterations(self) -> int:
        """Iterations that are done, for a display of progress: it may lag a little."""
    def join(self) -> dict[str, Any]:
        """Ends all sources, waits for the end of the run, and gives its report.

        Sinks that were never pulled from are dropped; others must be pulled to their end, or closed. Sources that are
        connected to URLs are not ended: ``stop`` the run, or start it with ``iterations``.
        """
    def __enter__(self) -> Session: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@final
class Probe:
    """Looks at a channel of a run: copies of what it carries, block by block."""

    def next(self, timeout: float | None = None) -> tuple[int, npt.NDArray[Any]] | None:
        """The next block: the run's first iteration of it, and its tokens.

        ``None`` if the timeout (s) is over before, and when the run has ended and all that was copied was given. Blocks
        come in order; one that was copied while two others had not been taken is left out.
        """
    def close(self) -> None:
        """Ends looking."""
    def __enter__(self) -> Probe: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

def load(source: _Path | bytes) -> Bundle:
    """Opens a bundle: its file, or its bytes.

    The file is mapped: it may be replaced, but not changed in place while the bundle is in use.
    """

def compile(
    model: _Path,
    *,
    folder: _Path | None = None,
    machine: _Path | None = None,
    devices: int | None = None,
    gpus: bool = False,
    block: int | None = None,
    solve: Literal["fast", "balanced", "exact"] = "fast",
    contingencies: Literal["none", "single", "hosts", "pairs"] = "none",
    params: Mapping[str, str] | None = None,
    dims: Mapping[str, int] | None = None,
    set: Mapping[str, float | Sequence[float]] | None = None,
    state: Mapping[str, str] | None = None,
    buckets: Sequence[int] | None = None,
    sequences: bool = False,
) -> Bundle:
    """Compiles a model: a file (``.ron`` or ``.onnx``), or the text of one in RON.

    A string with a line break, or that begins with ``Model(``, is a text; files that it names are looked for in
    ``folder``. It is compiled for a machine file, or for so many like CPU devices (those of this computer if left out)
    and its GPUs if asked. ``params`` are values for the model's parameters, as its text would write them; ``dims``,
    ``set``, ``state`` and ``buckets`` are for ONNX models, as the options of ``zbmdc`` of these names. With
    ``sequences``, what the model keeps between iterations comes from sources and goes to sinks.
    """

def _serve_if_worker() -> None: ...
