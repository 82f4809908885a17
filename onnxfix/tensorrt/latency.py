"""Time engines on a GPU: inputs and outputs stay on the device, and all engines are launched in the same way.

Call it in the sandbox, after the engines have run once there: libraries are loaded by then, so that no engine pays for
them. Engines are loaded anew, each with an execution context of its own and without compiled kernels from a cache: what
TensorRT-RTX compiled for the first engine would be a gift to the second.

CUDA graphs are captured by TensorRT-RTX itself where it does that, else through the CUDA runtime; where one engine
cannot be captured, all are launched kernel by kernel.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from onnxfix.errors import OnnxfixError
from onnxfix.runtime.backends import Unsupported
from onnxfix.runtime.sandbox import one_line
from onnxfix.tensorrt.cudart import Cuda, CudaError
from onnxfix.tensorrt.timing import Capturer, Latency, Limits, compared, interleave, timing

Arrays = dict[str, Any]
Launcher = Callable[[], None]

_MARK = 0xEE
_LOOKED_AT = 1 << 16  # bytes of an output


class NotRun(OnnxfixError):
    """TensorRT refuses to make a context or to run; its log contains the reason."""


@dataclass(frozen=True)
class Tools:
    """What engines are timed with: the CUDA runtime and TensorRT's module; ``load`` deserializes an engine file,
    ``inputs`` are the inputs in an engine's types, and ``heard`` returns TensorRT's errors since the last call."""

    cuda: Cuda
    trt: Any
    load: Callable[[str], Any]
    inputs: Callable[[Any], Arrays]
    heard: Callable[[], str] = str


class Placed:
    """An engine and its execution context, with every input and output at an address that stays the same."""

    def __init__(self, engine: Any, tools: Tools, stream: int) -> None:
        self._engine, self._tools, self._stream = engine, tools, stream
        self._cuda = tools.cuda
        self._context: Any = None
        self._config: Any = None  # the context uses it and does not hold it
        self._addresses: dict[str, int] = {}
        self._host: list[Any] = []  # what lies in the host's memory
        self._outputs: dict[str, int] = {}  # outputs of their own on the device -> bytes
        self._inputs: Arrays = {}
        self._own = False
        self.owns = hasattr(tools.trt, "CudaGraphStrategy") and hasattr(engine, "create_runtime_config")

    @property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The inputs' shapes by name."""
        return tuple((name, tuple(value.shape)) for name, value in self._inputs.items())

    def close(self) -> None:
        """Drop the context, and then what it uses."""
        self._context = None
        self._config = self._engine = None  # never before the context

    # -- the execution context

    def open(self, own: bool) -> None:
        """Make a new execution context, one that captures its ``own`` CUDA graphs where TensorRT does that."""
        self._context, trt = None, self._tools.trt
        given: tuple[Any, ...] = ()
        if hasattr(self._engine, "create_runtime_config"):
            self._config = config = self._engine.create_runtime_config()
            if own and hasattr(trt, "CudaGraphStrategy"):
                config.cuda_graph_strategy = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
            if hasattr(trt, "DynamicShapesKernelSpecializationStrategy"):
                # Kernels for the shapes that are run are compiled before the first run ends: by default TensorRT-RTX
                # swaps them in later, in the midst of what is timed.
                eager = trt.DynamicShapesKernelSpecializationStrategy.EAGER
                config.dynamic_shapes_kernel_specialization_strategy = eager
            given = (config,)
        self._context = self._engine.create_execution_context(*given)
        if self._context is None:
            raise NotRun("TensorRT makes no execution context")
        self._own = own and self.owns

    # -- inputs and outputs

    def place(self) -> None:
        """Tell the context all shapes and addresses. Memory is allocated, and inputs copied, the first time only.

        Raises:
            Unsupported: inputs do not fit the engine, or the size of an output is not known before a run.
            CudaError: the device has no memory left.
        """
        self._inputs = self._inputs or self._tools.inputs(self._engine)
        for name, value in self._inputs.items():
            known = tuple(self._context.get_tensor_shape(name)) == value.shape
            if not known and not self._context.set_input_shape(name, value.shape):
                raise Unsupported(f"input {name} of shape {list(value.shape)} does not fit the engine")
            if name not in self._addresses:
                self._addresses[name] = self._upload(name, value)
            self._point(name)
        lacking = self._context.infer_shapes()
        if lacking:
            raise Unsupported(f"the shapes of {', '.join(map(str, lacking))} are not known before a run")
        for number in range(self._engine.num_io_tensors):
            name = self._engine.get_tensor_name(number)
            if name in self._inputs:
                continue
            if name not in self._addresses:
                self._addresses[name] = self._reserve(name)
            self._point(name)

    def _point(self, name: str) -> None:
        if not self._context.set_tensor_address(name, self._addresses[name]):
            raise Unsupported(f"TensorRT rejects the address of {name}")

    def _on_host(self, name: str) -> bool:
        """Whether TensorRT needs a tensor in the host's memory, such as an input whose values are shapes."""
        return bool(self._engine.get_tensor_location(name).name == "HOST")

    def _upload(self, name: str, value: Any) -> int:
        if self._on_host(name) or self._engine.is_shape_inference_io(name):
            return self._keep(value)
        address = self._cuda.allocate(value.nbytes)
        self._cuda.upload(address, value.ctypes.data, value.nbytes, self._stream)
        self.wait()  # the copy reads the host's memory until then
        return address

    def _keep(self, value: Any) -> int:
        self._host.append(value)
        return int(value.ctypes.data)

    def _reserve(self, name: str) -> int:
        """Where an output is written to: as many bytes as it has at most for these inputs."""
        aliased = getattr(self._engine, "get_aliased_input_tensor", lambda name: None)(name)
        if aliased in self._addresses:
            return self._addresses[aliased]
        size = int(self._context.get_max_output_size(name))
        if size < 0:
            shape = tuple(self._context.get_tensor_shape(name))
            if -1 in shape:
                raise Unsupported(f"the size of output {name} is not known before a run")
            size = math.prod(shape) * int(self._engine.get_tensor_dtype(name).itemsize)
        if self._on_host(name):
            return self._keep(np.zeros(max(1, size), np.uint8))
        self._outputs[name] = size
        return self._cuda.allocate(size)

    # -- runs

    def enqueue(self) -> None:
        """Put a run on the stream.

        Raises:
            NotRun: TensorRT refuses.
        """
        if not self._context.execute_async_v3(self._stream):
            raise NotRun("TensorRT does not run the engine")

    def wait(self) -> None:
        """Wait until the stream is idle."""
        self._cuda.synchronize(self._stream)

    def _ready(self, own: bool, *, anew: bool = False) -> None:
        """A context of this kind that has run once."""
        if anew or own != self._own:
            self.open(own)
            self.place()
        self.enqueue()
        self.wait()

    def launcher(self, capturer: Capturer) -> Launcher:
        """What puts a run on the stream, as a CUDA graph by ``capturer``, or kernel by kernel where that is "".

        Raises:
            Unsupported, CudaError, NotRun: there is no such graph of this engine.
        """
        if capturer == "":
            self._ready(False, anew=True)  # a capture that failed may have left anything behind
            return self.enqueue
        if capturer == "tensorrt" and not self.owns:
            raise Unsupported("this TensorRT cannot capture one itself")
        self._ready(capturer == "tensorrt")
        launch: Launcher = self.enqueue
        if capturer == "cuda":
            launch = self._capture()
        elif not getattr(self._context, "is_stream_capturable", lambda stream: True)(self._stream):
            # A context that captures graphs itself falls back in silence where it cannot.
            raise Unsupported("TensorRT says that the engine cannot be captured")
        if not self._writes(launch):
            raise Unsupported("the captured graph computes nothing")
        return launch

    def _capture(self) -> Launcher:
        """Capture what the engine puts on the stream."""
        self._cuda.begin_capture(self._stream)
        try:
            self.enqueue()
        finally:
            graph = self._cuda.end_capture(self._stream)
        if not self._cuda.nodes(graph):
            raise Unsupported("the captured graph is empty")
        return partial(self._cuda.launch, self._cuda.instantiate(graph), self._stream)

    def _writes(self, launch: Launcher) -> bool:
        """Whether a launch writes any output: all are marked before."""
        sizes = {name: min(size, _LOOKED_AT) for name, size in self._outputs.items() if size}
        for name, size in sizes.items():
            self._cuda.fill(self._addresses[name], _MARK, size, self._stream)
        launch()
        found = {name: np.zeros(size, np.uint8) for name, size in sizes.items()}
        for name, value in found.items():
            self._cuda.download(value.ctypes.data, self._addresses[name], value.nbytes, self._stream)
        self.wait()
        return not found or any((value != _MARK).any() for value in found.values())


def measure(
    paths: Mapping[str, str],
    tools: Tools,
    *,
    clock: Callable[[], float] = time.perf_counter,
    limits: Limits | None = None,
) -> Latency:
    """Load and time the engine files of ``paths``: "fixed", and "original" where there is one.

    Raises:
        Exception: whatever TensorRT's bindings raise.
    """
    engines: dict[str, Placed] = {}
    loading: dict[str, float] = {}
    first: dict[str, float] = {}
    try:
        with contextlib.closing(tools.cuda) as cuda, ExitStack() as stack:
            stream = cuda.stream()
            for name, path in paths.items():
                began = clock()
                one = stack.enter_context(contextlib.closing(Placed(tools.load(path), tools, stream)))
                engines[name] = one
                one.open(True)
                loading[name] = clock() - began
                one.place()
                began = clock()
                one.enqueue()
                one.wait()
                first[name] = clock() - began
            capturer, launchers, fallback = _launchers([*engines.values()], tools)
            runs = dict(zip(engines, (make_timer(cuda, stream, launch) for launch in launchers), strict=True))
            blocks = interleave(runs, clock=clock, limits=limits)
            shapes = engines["fixed"].shapes
    except (CudaError, Unsupported) as error:
        return Latency(reason=_words(error))
    timings = {
        name: timing(blocks[name], load_seconds=loading[name], first_seconds=first[name]) for name in engines
    }
    return replace(
        compared(timings.get("original"), timings["fixed"]),
        launch="cuda-graph" if capturer else "stream",
        captured_by=capturer,
        shapes=shapes,
        fallback=fallback,
    )


def _launchers(engines: Sequence[Placed], tools: Tools) -> tuple[Capturer, list[Launcher], str]:
    """The same kind of launch for all engines: who captures the graphs, the launches, and why there are no graphs."""
    reasons: list[str] = []
    by: tuple[Capturer, ...] = ("tensorrt", "cuda") if all(one.owns for one in engines) else ("cuda",)
    for capturer in by:
        try:
            return capturer, [one.launcher(capturer) for one in engines], ""
        except (CudaError, NotRun, Unsupported, RuntimeError) as error:
            reasons.append("; ".join(filter(None, [_words(error), tools.heard()])))
    return "", [one.launcher("") for one in engines], "; ".join(dict.fromkeys(reasons))


def make_timer(cuda: Cuda, stream: int, launch: Launcher) -> Callable[[], float]:
    """What times a run between two events on the stream, in milliseconds."""
    first, last = cuda.event(), cuda.event()

    def run() -> float:
        cuda.record(first, stream)
        launch()
        cuda.record(last, stream)
        cuda.synchronize(stream)
        return cuda.elapsed(first, last)

    return run


def _words(error: Exception) -> str:
    """The text of an error of ours, and the kind with it of one that TensorRT's bindings raised."""
    return str(error) if isinstance(error, (OnnxfixError, Unsupported)) else one_line(error)
