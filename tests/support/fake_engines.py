"""Stand-ins for what needs a GPU: engines that are ONNX models, and a CUDA whose device is the host's memory.

No engine of TensorRT is executed by any of it. ``load``, ``run`` and ``drop`` are called in the sandbox in the place
of ``onnxfix.tensorrt.engine``'s. An engine file is an ONNX model, whose metadata say in JSON under ``fake`` what goes
wrong: ``refused`` (to load), ``fails`` (each run, and all later ones of the process), ``dies``, ``hangs``, ``unread``,
``unsteady`` (every second time that an engine of this name is loaded, its outputs are those times this number).
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx

from onnxfix.runtime.backends import ort
from onnxfix.tensorrt import engine as trt_run
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.timing import Latency, compared, timing

_ENGINES: dict[str, tuple[ort.OrtSession, dict[str, Any]]] = {}
_RUINED = ""


def load(name: str, path: str, *, package: str) -> str:
    assert package == "tensorrt"
    said = {one.key: one.value for one in onnx.load(path).metadata_props}
    tricks = json.loads(said.get("fake", "{}"))
    if "refused" not in tricks:
        with open(os.path.join(os.path.dirname(path), f"{name} loads"), "ab") as loads:
            loads.write(b"1")
        if loads_of(path, name) % 2 == 0:
            tricks.pop("unsteady", None)
        _ENGINES[name] = ort.load(path), tricks
    return str(tricks.get("refused", ""))


def loads_of(path: str, name: str) -> int:
    """How often engines beside ``path`` were loaded as ``name``, by any process."""
    return os.path.getsize(os.path.join(os.path.dirname(path), f"{name} loads"))


def run(name: str, feed: dict[str, Any], *, package: str, times: int = 1) -> Ran:
    global _RUINED
    assert package == "tensorrt"
    session, tricks = _ENGINES[name]
    _RUINED = _RUINED or tricks.get("fails", "")
    if _RUINED:
        return Ran(error=_RUINED, broken=True)
    if "dies" in tricks:
        os.abort()
    if "hangs" in tricks:
        time.sleep(600)
    unread = {one: f"{one} is INT4 in the engine" for one in tricks.get("unread", ())}
    runs = [dict(zip(session.outputs, session.run(feed), strict=True)) for _ in range(times)]
    if "unsteady" in tricks:
        runs = [
            {one: value * np.float32(tricks["unsteady"]) for one, value in found.items()} for found in runs
        ]
    read = [{one: value for one, value in found.items() if one not in unread} for found in runs]
    return Ran(read[0], unread, trt_run._unsteady(read[0], read[1:]))


def latency(paths: dict[str, str], feed: dict[str, Any], *, package: str) -> Latency:
    """What is timed are numbers: ``ms`` of the engine's tricks, or why there are none (``untimed``)."""
    drop()
    timings = {}
    for name, path in paths.items():
        assert load(name, path, package=package) == ""
        tricks = _ENGINES[name][1]
        if "untimed" in tricks:
            return Latency(reason=tricks["untimed"])
        if "dies_timed" in tricks:
            os.abort()
        timings[name] = timing([[tricks.get("ms", 2.0)] * 5] * 4, load_seconds=0.5, first_seconds=0.25)
    drop()
    shapes = tuple((name, value.shape) for name, value in feed.items())
    found = compared(timings.get("original"), timings["fixed"])
    return replace(found, launch="cuda-graph", captured_by="tensorrt", shapes=shapes)


def drop(name: str = "") -> None:
    if name:
        _ENGINES.pop(name, None)
    else:
        _ENGINES.clear()


def trial(path: str, *, package: str) -> tuple[str, str]:
    return "", "float32"


def warm(package: str) -> None:
    """Nothing has to be loaded."""


def held() -> list[str]:
    return list(_ENGINES)


# ----------------------------------------------------------------------- what Polygraphy's real runner is run against


class HostCuda:
    """In the place of ``polygraphy.cuda``'s wrapper. As on a device, what is put on the stream is done when the stream
    is synchronized and not before."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], object]] = []
        self.blocks: dict[int, Any] = {}

    def malloc(self, nbytes: int) -> int:
        block = (ctypes.c_ubyte * max(1, nbytes))(*[0xEE] * nbytes)
        self.blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def free(self, pointer: int) -> None:
        """Nothing is freed: a late copy must not crash the test."""

    def memcpy(self, dst: int, src: int, nbytes: int, kind: Any, stream_ptr: int | None = None) -> None:
        def copy() -> None:
            ctypes.memmove(dst, src, nbytes)

        if stream_ptr is None:
            copy()
        else:
            self.queue.append(copy)

    def create_stream(self) -> int:
        return 7

    def destroy_stream(self, pointer: int) -> None:
        assert pointer == 7

    def stream_synchronize(self, pointer: int) -> None:
        assert pointer == 7
        while self.queue:
            self.queue.pop(0)()


class Context:
    """An execution context that computes ``rule`` (inputs by name -> outputs by name) on the host."""

    # Of the class, so that TensorRT's properties of these names are not those of a subclass of both.
    engine: Any = None
    active_optimization_profile = 0

    def __init__(self, engine: Any, cuda: HostCuda, rule: Callable[..., dict[str, Any]]) -> None:
        self.engine, self.cuda, self.rule = engine, cuda, rule
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
        self.shapes[name] = tuple(shape)
        return True

    def get_tensor_address(self, name: str) -> int:
        return self.addresses.get(name, 0)

    def set_tensor_address(self, name: str, pointer: int) -> bool:
        self.addresses[name] = pointer
        return True

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        self.allocators[name] = allocator
        return True

    def execute_async_v3(self, stream: int) -> bool:
        given = {}
        for name, pointer in self.addresses.items():
            dtype = self.engine.types[self.engine.tensors[name][1]]
            size = int(np.prod(self.shapes[name])) * dtype.itemsize
            self.cuda.stream_synchronize(stream)  # the copies of inputs come before on the stream
            given[name] = np.frombuffer(ctypes.string_at(pointer, size), dtype).reshape(self.shapes[name])
        for name, value in self.rule(**given).items():
            raw = np.ascontiguousarray(value)
            pointer = self.allocators[name].reallocate_output_async(name, 0, raw.nbytes, 256, stream)
            self.allocators[name].notify_shape(name, raw.shape if np.ndim(value) else ())
            self.shapes[name] = tuple(np.shape(value))
            self.cuda.queue.append(
                lambda to=pointer, raw=raw: ctypes.memmove(to, raw.ctypes.data, raw.nbytes)
            )
        return True


class RuntimeConfig:
    """In the place of TensorRT-RTX's: where kernels come from that were compiled before."""

    cache: Any = None
    given: list[bytes] = []  # noqa: RUF012  # what all caches were given, in order

    def create_runtime_cache(self) -> Any:
        return SimpleNamespace(serialize=lambda: b"kernels", deserialize=self.given.append)

    def set_runtime_cache(self, cache: Any) -> None:
        self.cache = cache


def engine_class(trt: Any) -> Any:
    """A class of engines for the package ``trt``: a subclass of its own, as its runner asks for one, made without a
    TensorRT engine behind it."""

    class Engine(trt.ICudaEngine):  # type: ignore[misc]
        tensors: dict[str, tuple[str, str, tuple[int, ...]]]  # name -> INPUT or OUTPUT, type, shape
        types: dict[str, np.dtype[Any]]

        @property
        def num_io_tensors(self) -> int:
            return len(self.tensors)

        def get_tensor_name(self, number: int) -> str:
            return list(self.tensors)[number]

        def get_tensor_mode(self, name: str) -> Any:
            return getattr(trt.TensorIOMode, self.tensors[name][0])

        def get_tensor_dtype(self, name: str) -> Any:
            return getattr(trt.DataType, self.tensors[name][1])

        def get_tensor_shape(self, name: str) -> tuple[int, ...]:
            return self.tensors[name][2]

        def get_tensor_format(self, *_: Any) -> Any:
            return trt.TensorFormat.LINEAR

        def is_shape_inference_io(self, name: str) -> bool:
            return False

        def get_aliased_input_tensor(self, name: str) -> None:
            return None

        def create_runtime_config(self) -> Any:
            return RuntimeConfig()

        def create_execution_context(self, config: Any) -> Any:
            assert config.cache is not None
            return self.context

    return Engine


def through_the_real_runner(
    path: str, feeds: list[dict[str, Any]], tensors: dict[str, Any], rule: str
) -> tuple[str, list[Ran], list[str]]:
    """``trt_run`` on Polygraphy's own ``TrtRunner``, whose engine and CUDA are fakes: what loading said, the runs, and
    the engines that are held in the end. For the sandbox."""
    from onnxfix.tensorrt import engine as trt_run
    from onnxfix.tensorrt.package import select_for_polygraphy

    select_for_polygraphy("tensorrt-rtx")
    import polygraphy.backend.trt
    import tensorrt_rtx as trt
    from polygraphy.cuda import cuda

    host = cuda.G_CUDA = HostCuda()
    kind = engine_class(trt)
    engine = kind.__new__(kind)  # its constructor is TensorRT's alone
    engine.tensors = tensors
    engine.types = {name: np.dtype(dtype) for name, dtype in trt_run._DTYPES.items()}
    both = type("RealContext", (Context, trt.IExecutionContext), {})
    engine.context = both.__new__(both)
    engine.context.__init__(engine, host, RULES[rule])
    polygraphy.backend.trt.EngineFromBytes = lambda raw: lambda: engine
    said = trt_run.load("one", path, package="tensorrt-rtx")
    ran = [trt_run.run("one", feed, package="tensorrt-rtx") for feed in feeds]
    trt_run.drop()
    return said, ran, list(trt_run._RUNNERS)


def find_cuda_runtime(path: str, site: str) -> str:
    """What Polygraphy loads for the CUDA runtime when ``trt_run`` loads an engine and pip's packages are in ``site``,
    or why it finds none. What else might be installed is out of its sight."""
    from onnxfix.tensorrt import engine as trt_run
    from onnxfix.tensorrt.package import select_for_polygraphy

    select_for_polygraphy("tensorrt-rtx")
    import polygraphy.backend.trt
    from polygraphy.cuda import cuda

    real = cuda.util.find_in_dirs
    cuda.util.find_in_dirs = lambda name, folders: real(
        name, [one for one in folders if one.startswith(site)]
    )
    loaded: list[str] = []

    def load(file: str) -> Any:
        if not os.path.exists(file):
            raise OSError(f"{file}: cannot open shared object file")
        loaded.append(file)
        return SimpleNamespace()

    cuda.ctypes = SimpleNamespace(CDLL=load)
    polygraphy.backend.trt.TrtRunner = lambda engine: SimpleNamespace(activate=cuda.wrapper)
    sys.path.append(site)
    return trt_run.load("one", path, package="tensorrt-rtx") or os.path.relpath(loaded[-1], site)


def sizes_of_types() -> dict[str, float | None]:
    """Bytes of an element by the real package's name of the type; None where it does not say."""
    import tensorrt_rtx as trt

    return {name: getattr(kind, "itemsize", None) for name, kind in trt.DataType.__members__.items()}


#: What ``tensorrt.latency`` asks of TensorRT-RTX, by class.
USED = {
    "CudaGraphStrategy": ["WHOLE_GRAPH_CAPTURE"],
    "DynamicShapesKernelSpecializationStrategy": ["EAGER"],
    "IRuntimeConfig": ["cuda_graph_strategy", "dynamic_shapes_kernel_specialization_strategy"],
    "ICudaEngine": [
        "create_runtime_config",
        "create_execution_context",
        "get_tensor_location",
        "get_tensor_name",
        "is_shape_inference_io",
    ],
    "IExecutionContext": [
        "execute_async_v3",
        "get_max_output_size",
        "get_tensor_shape",
        "infer_shapes",
        "is_stream_capturable",
        "set_input_shape",
        "set_tensor_address",
    ],
}


def lacking() -> list[str]:
    """What the real package does not have of it."""
    import tensorrt_rtx as trt

    kinds = {name: getattr(trt, name, None) for name in USED}
    return [
        f"{name}.{one}" for name, wanted in USED.items() for one in wanted if not hasattr(kinds[name], one)
    ]


def _twice(x: Any) -> dict[str, Any]:
    return {"y": x + x, "n": np.asarray(x.shape, np.int64), "s": np.float32(x.size).reshape(())}


RULES: dict[str, Callable[..., dict[str, Any]]] = {"twice": _twice}
