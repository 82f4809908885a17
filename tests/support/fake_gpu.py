"""A GPU without one: memory is the host's, the clock is a number, engines compute with numpy or are ONNX models.

``Device`` is a GPU to the real ``tensorrt.latency`` and to Polygraphy's real runner, ``Engine`` an engine on it. As on
a device, what is put on the stream is done when the stream is synchronized and not before.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx

from onnxfix.runtime import backends
from onnxfix.tensorrt import engine as trt_run
from onnxfix.tensorrt.cudart import CudaError
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.lift.records import ONNX_TYPES, numpy_type
from support.real_tensorrt import sandboxed

Work = Callable[[], object]


class Device:
    """In the place of ``cudart.Cuda``, and of ``polygraphy.cuda``'s wrapper.

    ``now`` is seconds; ``fails`` are functions that fail, with CUDA's words. Each call of the former's is in ``log``.
    """

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
        block = (ctypes.c_ubyte * max(1, size))(*[0xEE] * size)
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

    # -- Polygraphy's names

    malloc, stream_synchronize, create_stream = allocate, synchronize, stream

    def free(self, pointer: int) -> None:
        """Nothing is freed: a late copy must not crash the test."""

    def memcpy(self, dst: int, src: int, nbytes: int, kind: Any, stream_ptr: int | None = None) -> None:
        self.put(lambda: ctypes.memmove(dst, src, nbytes))
        if stream_ptr is None:
            self.synchronize(0)

    def destroy_stream(self, pointer: int) -> None:
        assert pointer in self.held


def _add_one(x: Any) -> dict[str, Any]:
    return {"y": x + np.float32(1)}


TRT = SimpleNamespace()
"""The module of the full TensorRT, as far as timing looks at it."""
RTX = SimpleNamespace(
    CudaGraphStrategy=SimpleNamespace(WHOLE_GRAPH_CAPTURE=1),
    DynamicShapesKernelSpecializationStrategy=SimpleNamespace(EAGER=2),
)


@dataclass
class Engine:
    """An engine that adds 1 to ``x`` and takes ``ms``; the first run of each execution context takes ``jit`` ms more,
    and one as a graph a tenth. ``tensors``: name -> INPUT or OUTPUT, TensorRT's type, shape.

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
    compute: Callable[..., Mapping[str, Any]] = _add_one
    tensors: dict[str, tuple[str, str, tuple[int, ...]]] = field(
        default_factory=lambda: {"x": ("INPUT", "FLOAT", (-1,)), "y": ("OUTPUT", "FLOAT", (-1,))}
    )
    contexts: list[Context] = field(default_factory=list)

    @property
    def num_io_tensors(self) -> int:
        return len(self.tensors)

    def _value(self, enumeration: str, name: str) -> Any:
        """A value of one of TensorRT's enumerations."""
        return SimpleNamespace(name=name, itemsize=4)

    def get_tensor_name(self, number: int) -> str:
        return list(self.tensors)[number]

    def get_tensor_mode(self, name: str) -> Any:
        return self._value("TensorIOMode", self.tensors[name][0])

    def get_tensor_dtype(self, name: str) -> Any:
        return self._value("DataType", self.tensors[name][1])

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name][2]

    def get_tensor_format(self, *_: Any) -> Any:
        return self._value("TensorFormat", "LINEAR")

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


class RuntimeConfig:
    """TensorRT-RTX's: how graphs are captured, and where kernels come from that were compiled before."""

    def __init__(self) -> None:
        self.cuda_graph_strategy = self.dynamic_shapes_kernel_specialization_strategy = 0

    def create_runtime_cache(self) -> Any:
        return SimpleNamespace(serialize=lambda: b"kernels", deserialize=lambda kernels: None)

    def set_runtime_cache(self, cache: Any) -> None:
        """Kernels are not compiled."""


class RtxEngine(Engine):
    """One of TensorRT-RTX, whose context captures graphs itself if its configuration says so."""

    def create_runtime_config(self) -> Any:
        return RuntimeConfig()


class Context:
    """An execution context of ``Engine``."""

    # Of the class, so that TensorRT's properties of these names are not those of a subclass of both.
    engine: Any = None
    active_optimization_profile = 0

    def __init__(self, engine: Engine, config: Any) -> None:
        self.engine, self.config, self.device = engine, config, engine.device
        self.shapes = {name: shape for name, (_, _, shape) in engine.tensors.items()}
        self.addresses: dict[str, int] = {}
        self.allocators: dict[str, Any] = {}
        self.runs = 0
        if config is not None:
            self.is_stream_capturable = lambda stream: engine.capturable

    def set_all_tensors_debug_state(self, state: bool) -> bool:
        return True

    def set_debug_listener(self, listener: Any) -> bool:
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        """Also the shape of outputs that are declared like the input."""
        declared = self.engine.tensors[name][2]
        alike = [each for each, (_, _, dims) in self.engine.tensors.items() if dims == declared]
        self.shapes |= dict.fromkeys(alike, tuple(shape))
        return len(shape) == len(declared)

    def get_tensor_address(self, name: str) -> int:
        return self.addresses.get(name, 0)

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        self.allocators[name] = allocator
        return True

    def infer_shapes(self) -> list[str]:
        return [name for name, shape in self.shapes.items() if -1 in shape]

    def get_max_output_size(self, name: str) -> int:
        return int(4 * np.prod(self.shapes[name])) if self.engine.sizes is None else self.engine.sizes

    def execute_async_v3(self, stream: int) -> bool:
        device, engine = self.device, self.engine
        device.log.append(f"enqueue {engine.name}".strip())
        captured = device.capturing is not None
        if engine.refuses or (captured and engine.breaks):
            return False
        graphed = captured or (self.config is not None and self.config.cuda_graph_strategy == 1)
        extra = 0.0 if self.runs or captured else engine.jit
        self.runs += 1
        allocated = self._allocate(stream) if self.allocators else None

        def work() -> None:
            device.now += (engine.ms * (0.1 if graphed and not extra else 1.0) + extra) / 1000
            if captured and engine.hollow:
                return
            outputs = allocated or [(value, self.addresses[name]) for name, value in self._compute()]
            for value, address in outputs:
                ctypes.memmove(address, value.ctypes.data, value.nbytes)

        device.put(work)
        return True

    def _compute(self) -> list[tuple[str, Any]]:
        """The outputs of what lies in the inputs' memory."""
        inputs = {}
        for name, (mode, kind, _) in self.engine.tensors.items():
            if mode == "INPUT":
                dtype = np.dtype(numpy_type(kind))
                size = int(np.prod(self.shapes[name])) * dtype.itemsize
                raw = ctypes.string_at(self.addresses[name], size)
                inputs[name] = np.frombuffer(raw, dtype).reshape(self.shapes[name])
        return [(name, np.ascontiguousarray(value)) for name, value in self.engine.compute(**inputs).items()]

    def _allocate(self, stream: int) -> list[tuple[Any, int]]:
        """The outputs, and the memory that is asked for them when a run is enqueued, and not later."""
        self.device.synchronize(stream)
        outputs = []
        for name, value in self._compute():
            address = self.allocators[name].reallocate_output_async(name, 0, value.nbytes, 256, stream)
            self.shapes[name] = self.shapes[name] if -1 not in self.shapes[name] else value.shape
            self.allocators[name].notify_shape(name, self.shapes[name])
            outputs.append((value, int(address)))
        return outputs


# -- in the sandbox, with the real packages


def through_the_real_runner(path: str, feeds: list[dict[str, Any]]) -> tuple[str, list[Ran], list[str]]:
    """``tensorrt.engine`` on Polygraphy's own ``TrtRunner``, whose engine is an ONNX model: what loading said, the
    runs, and the engines that are held in the end."""
    trt = sandboxed()
    import polygraphy.backend.trt  # lazy: only in the sandbox
    from polygraphy.cuda import cuda  # lazy: only in the sandbox

    class RealContext(Context, trt.IExecutionContext):  # type: ignore[misc,name-defined]
        """Of both classes, as Polygraphy's runner asks for one."""

    class RealEngine(RtxEngine, trt.ICudaEngine):  # type: ignore[misc,name-defined]
        """Made without a TensorRT engine behind it."""

        def _value(self, enumeration: str, name: str) -> Any:
            return getattr(getattr(trt, enumeration), name)

        def create_execution_context(self, config: Any = None) -> Context:
            context = RealContext.__new__(RealContext)  # the constructor is TensorRT's alone
            Context.__init__(context, self, config)
            return context

    graph, session = onnx.load(path).graph, backends.load("reference", path)
    kinds = {elem: kind for kind, elem in ONNX_TYPES.items()}
    tensors = {}
    for mode, infos in (("INPUT", graph.input), ("OUTPUT", graph.output)):
        for info in infos:
            dims = tuple(dim.dim_value or -1 for dim in info.type.tensor_type.shape.dim)
            tensors[info.name] = mode, kinds[info.type.tensor_type.elem_type], dims

    def compute(**feed: Any) -> dict[str, Any]:
        return dict(zip([info.name for info in graph.output], session.run(feed), strict=True))

    device = cuda.G_CUDA = Device()
    engine = RealEngine.__new__(RealEngine)
    RealEngine.__init__(engine, device, tensors=tensors, compute=compute)
    polygraphy.backend.trt.EngineFromBytes = lambda raw: lambda: engine
    said = trt_run.load("one", path, package="tensorrt-rtx")
    ran = [trt_run.run("one", feed, package="tensorrt-rtx") for feed in feeds]
    trt_run.drop()
    return said, ran, list(trt_run._RUNNERS)


def lacking() -> list[str]:
    """What the fakes have of a context, an engine and a module, and the real package has not."""
    trt = sandboxed()
    pairs = (
        (RTX, trt),
        (RtxEngine, trt.ICudaEngine),
        (Context, trt.IExecutionContext),
        (RuntimeConfig(), trt.IRuntimeConfig),
    )
    ours = {(real, name) for fake, real in pairs for name in vars(fake) if not name.startswith("_")}
    ours |= {(trt.ICudaEngine, name) for name in vars(Engine) if name.startswith(("get_", "is_", "create_"))}
    return [f"{real.__name__}.{name}" for real, name in ours if not hasattr(real, name)]
