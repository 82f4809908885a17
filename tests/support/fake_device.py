"""A GPU whose memory is the host's and whose clock is a number: what ``tensorrt.latency`` is timed on.

As on a device, what is put on the stream is done when the stream is synchronized and not before. Each call is in
``log``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from onnxfix.tensorrt.cudart import CudaError

Work = Callable[[], object]


class Device:
    """In the place of ``cudart.Cuda``. ``now`` is seconds; ``fails`` are functions that fail, with CUDA's words."""

    def __init__(self, **fails: str) -> None:
        self.fails = fails
        self.now = 0.0
        self.log: list[str] = []
        self.queue: list[Work] = []
        self.memory: dict[int, Any] = {}
        self.held: list[int] = []  # handles and memory that were not given back
        self.graphs: dict[int, list[Work]] = {}
        self.capturing: list[Work] | None = None
        self.times: dict[int, float] = {}
        self._handles: Iterator[int] = iter(range(1, 1 << 20))

    def _called(self, name: str) -> None:
        self.log.append(name)
        if name in self.fails:
            raise CudaError(f"{name}: {self.fails[name]}")

    def _handle(self, name: str) -> int:
        self._called(name)
        self.held.append(next(self._handles))
        return self.held[-1]

    def close(self) -> None:
        self.log.append("close")
        self.held.clear()

    def put(self, work: Work) -> None:
        (self.queue if self.capturing is None else self.capturing).append(work)

    def clock(self) -> float:
        return self.now

    def allocate(self, size: int) -> int:
        self._called("allocate")
        block = (ctypes.c_ubyte * max(1, size))()
        address = ctypes.addressof(block)
        self.memory[address] = block
        self.held.append(address)
        return address

    def upload(self, address: int, host: int, size: int, stream: int) -> None:
        self._called("upload")
        self.put(lambda: ctypes.memmove(address, host, size))

    def download(self, host: int, address: int, size: int, stream: int) -> None:
        self._called("download")
        self.put(lambda: ctypes.memmove(host, address, size))

    def fill(self, address: int, byte: int, size: int, stream: int) -> None:
        self._called("fill")
        self.put(lambda: ctypes.memset(address, byte, size))

    def stream(self) -> int:
        return self._handle("stream")

    def synchronize(self, stream: int) -> None:
        self._called("synchronize")
        while self.queue:
            self.queue.pop(0)()

    def event(self) -> int:
        return self._handle("event")

    def record(self, event: int, stream: int) -> None:
        self._called("record")
        self.put(lambda: self.times.__setitem__(event, self.now))

    def elapsed(self, first: int, last: int) -> float:
        self._called("elapsed")
        assert not self.queue, "read before the stream was idle"
        return 1000 * (self.times[last] - self.times[first])

    def begin_capture(self, stream: int) -> None:
        self._called("begin_capture")
        assert not self.queue, "the capture begins on a busy stream"
        self.capturing = []

    def end_capture(self, stream: int) -> int:
        assert self.capturing is not None
        recorded, self.capturing = self.capturing, None
        graph = self._handle("end_capture")
        self.graphs[graph] = recorded
        return graph

    def nodes(self, graph: int) -> int:
        self._called("nodes")
        return len(self.graphs[graph])

    def instantiate(self, graph: int) -> int:
        executable = self._handle("instantiate")
        self.graphs[executable] = self.graphs[graph]
        return executable

    def launch(self, executable: int, stream: int) -> None:
        self._called("launch")
        self.queue.extend(self.graphs[executable])


@dataclass
class Engine:
    """An engine that adds 1 to ``x`` and takes ``ms``; the first run of each execution context takes ``jit`` ms more,
    and one as a graph a tenth.

    ``breaks``: enqueuing on a stream that is captured fails. ``hollow``: what is captured computes nothing.
    ``capturable`` is what TensorRT-RTX says. ``sizes``: bytes of the output as TensorRT tells them. ``aliased``: the
    output is written over the input. ``refuses``: it never runs.
    """

    device: Device
    name: str = ""
    ms: float = 2.0
    jit: float = 500.0
    breaks: bool = False
    hollow: bool = False
    capturable: bool = True
    sizes: int | None = None
    aliased: bool = False
    refuses: bool = False
    contexts: list[Context] = field(default_factory=list)
    num_io_tensors: int = 2

    def get_tensor_name(self, number: int) -> str:
        return "xy"[number]

    def get_tensor_mode(self, name: str) -> Any:
        return SimpleNamespace(name={"x": "INPUT", "y": "OUTPUT"}[name])

    def get_tensor_dtype(self, name: str) -> Any:
        return SimpleNamespace(name="FLOAT", itemsize=4)

    def get_tensor_location(self, name: str) -> Any:
        return SimpleNamespace(name="DEVICE")

    def is_shape_inference_io(self, name: str) -> bool:
        return False

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return "x" if self.aliased and name == "y" else None

    def create_execution_context(self, config: Any = None) -> Context:
        self.device.now += 0.25
        self.contexts.append(Context(self, config))
        return self.contexts[-1]


class RtxEngine(Engine):
    """One of TensorRT-RTX, whose context captures graphs itself if its configuration says so."""

    def create_runtime_config(self) -> Any:
        return SimpleNamespace(cuda_graph_strategy=0, dynamic_shapes_kernel_specialization_strategy=0)


class Context:
    """An execution context of ``Engine``."""

    def __init__(self, engine: Engine, config: Any) -> None:
        self.engine, self.config, self.device = engine, config, engine.device
        self.shape: tuple[int, ...] = (-1,)
        self.addresses: dict[str, int] = {}
        self.runs = 0
        if config is not None:
            self.is_stream_capturable = lambda stream: engine.capturable

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.shape

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shape = tuple(shape)
        return len(shape) == 1

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def infer_shapes(self) -> list[str]:
        return [] if self.shape != (-1,) else ["x"]

    def get_max_output_size(self, name: str) -> int:
        return int(4 * np.prod(self.shape)) if self.engine.sizes is None else self.engine.sizes

    def execute_async_v3(self, stream: int) -> bool:
        device, engine = self.device, self.engine
        device.log.append(f"enqueue {engine.name}".strip())
        captured = device.capturing is not None
        if engine.refuses or (captured and engine.breaks):
            return False
        graphed = captured or (self.config is not None and self.config.cuda_graph_strategy == 1)
        extra = 0.0 if self.runs or captured else engine.jit
        self.runs += 1

        def work() -> None:
            device.now += (engine.ms * (0.1 if graphed and not extra else 1.0) + extra) / 1000
            if not (captured and engine.hollow):
                size = int(np.prod(self.shape))
                source = (ctypes.c_float * size).from_address(self.addresses["x"])
                ctypes.memmove(
                    self.addresses["y"], (ctypes.c_float * size)(*[v + 1 for v in source]), 4 * size
                )

        device.put(work)
        return True


TRT = SimpleNamespace()
"""The module of the full TensorRT, as far as timing looks at it."""
RTX = SimpleNamespace(
    CudaGraphStrategy=SimpleNamespace(WHOLE_GRAPH_CAPTURE=1),
    DynamicShapesKernelSpecializationStrategy=SimpleNamespace(EAGER=2),
)
