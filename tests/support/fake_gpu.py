"""A GPU without one: memory is the host's, and engines are ONNX models.

``Device`` is a GPU to Polygraphy's real runner, ``Engine`` an engine on it. As on a device, what is put on the stream
is done when the stream is synchronized and not before.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx

from onnxfix.runtime import backends
from onnxfix.tensorrt import engine as trt_run
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.lift.records import ONNX_TYPES, numpy_type
from support.real_tensorrt import sandboxed

Work = Callable[[], object]


class Device:
    """In the place of ``polygraphy.cuda``'s wrapper."""

    def __init__(self) -> None:
        self.queue: list[Work] = []
        self.memory: dict[int, Any] = {}
        self.streams: list[int] = []

    def put(self, work: Work) -> None:
        self.queue.append(work)

    def malloc(self, size: int) -> int:
        block = (ctypes.c_ubyte * max(1, size))(*[0xEE] * size)
        address = ctypes.addressof(block)
        self.memory[address] = block
        return address

    def create_stream(self) -> int:
        self.streams.append(len(self.streams) + 1)
        return self.streams[-1]

    def stream_synchronize(self, stream: int) -> None:
        while self.queue:
            self.queue.pop(0)()

    def free(self, pointer: int) -> None:
        """Nothing is freed: a late copy must not crash the test."""

    def memcpy(self, dst: int, src: int, nbytes: int, kind: Any, stream_ptr: int | None = None) -> None:
        self.put(lambda: ctypes.memmove(dst, src, nbytes))
        if stream_ptr is None:
            self.stream_synchronize(0)

    def destroy_stream(self, pointer: int) -> None:
        assert pointer in self.streams


RTX = SimpleNamespace(
    CudaGraphStrategy=SimpleNamespace(WHOLE_GRAPH_CAPTURE=1),
    DynamicShapesKernelSpecializationStrategy=SimpleNamespace(EAGER=2),
)


@dataclass
class Engine:
    """One of TensorRT-RTX. ``tensors``: name -> INPUT or OUTPUT, TensorRT's type, shape."""

    device: Device
    compute: Callable[..., Mapping[str, Any]]
    tensors: dict[str, tuple[str, str, tuple[int, ...]]]

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
        return None

    def create_runtime_config(self) -> Any:
        return RuntimeConfig()


class RuntimeConfig:
    """TensorRT-RTX's: how graphs are captured, and where kernels come from that were compiled before."""

    def __init__(self) -> None:
        self.cuda_graph_strategy = self.dynamic_shapes_kernel_specialization_strategy = 0

    def create_runtime_cache(self) -> Any:
        return SimpleNamespace(serialize=lambda: b"kernels", deserialize=lambda kernels: None)

    def set_runtime_cache(self, cache: Any) -> None:
        """Kernels are not compiled."""


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
        return int(4 * np.prod(self.shapes[name]))

    def execute_async_v3(self, stream: int) -> bool:
        allocated = self._allocate(stream) if self.allocators else None

        def work() -> None:
            outputs = allocated or [(value, self.addresses[name]) for name, value in self._compute()]
            for value, address in outputs:
                ctypes.memmove(address, value.ctypes.data, value.nbytes)

        self.device.put(work)
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
        self.device.stream_synchronize(stream)
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

    class RealEngine(Engine, trt.ICudaEngine):  # type: ignore[misc,name-defined]
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
    RealEngine.__init__(engine, device, compute, tensors)
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
        (Engine, trt.ICudaEngine),
        (Context, trt.IExecutionContext),
        (RuntimeConfig(), trt.IRuntimeConfig),
    )
    ours = {(real, name) for fake, real in pairs for name in vars(fake) if not name.startswith("_")}
    return [f"{real.__name__}.{name}" for real, name in ours if not hasattr(real, name)]
