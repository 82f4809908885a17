"""Execute engines on a GPU, through Polygraphy's ``TrtRunner`` (NVIDIA's own; it serves both packages).

Call it in a sandbox, and not in the one that builds: TensorRT keeps the first logger of a process, and Polygraphy
brings its own. TF32 is forbidden by the environment of that sandbox's process (``trt.package.TF32_OFF``).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from onnxfix.errors import OnnxfixError
from onnxfix.runtime.backends import Unsupported
from onnxfix.runtime.causes import Cause
from onnxfix.runtime.sandbox import one_line
from onnxfix.tensorrt import latency as trt_latency
from onnxfix.tensorrt.cudart import Cuda
from onnxfix.tensorrt.latency import Tools
from onnxfix.tensorrt.log import plugin_libraries, register_plugins
from onnxfix.tensorrt.package import module_name, select_for_polygraphy, trial_feed, trial_precision
from onnxfix.tensorrt.timing import Latency

Arrays = dict[str, Any]

#: TensorRT's name of an element type -> numpy's type. What is missing has less than a byte for an element.
_DTYPES: dict[str, Any] = {
    "FLOAT": np.float32, "HALF": np.float16, "BF16": ml_dtypes.bfloat16, "FP8": ml_dtypes.float8_e4m3fn,
    "E8M0": ml_dtypes.float8_e8m0fnu, "INT64": np.int64, "INT32": np.int32, "INT8": np.int8, "UINT8": np.uint8,
    "BOOL": np.bool_,
}  # fmt: skip


class EngineError(OnnxfixError):
    """An engine does not load or run; ``str`` is TensorRT's reason, verbatim and on one line."""


@dataclass(frozen=True)
class Ran:
    """What a model or an engine gave for one feed.

    ``outputs``: name -> array. ``unread``: name of an output that could not be read -> why. ``unsteady``: what another
    run on the same inputs gave, of outputs whose bits vary. ``error``: why there are no outputs, ``cause`` the same as
    data. ``broken``: the process cannot be used any more; ``died``: it crashed or was killed. ``late``: the time limit
    was exceeded. ``lacking``: the backend cannot do this, or memory ran out, which proves nothing about the model.
    ``kept``: they are from an earlier check. ``seconds``: of the first run, of the clock for an engine, else of the
    processor.
    """

    outputs: Arrays = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    unsteady: Arrays = field(default_factory=dict)
    error: str = ""
    cause: Cause = ""
    broken: bool = False
    late: bool = False
    died: bool = False
    lacking: bool = False
    kept: bool = False
    seconds: float = 0.0


_LONGEST = 600  # characters of TensorRT's reason: it names the function that it failed in, twice


class ErrorLog(logging.Handler):
    """Keeps errors. Polygraphy logs TensorRT's messages as errors, and its own exceptions as critical."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.ERROR:
            self.texts.append(" ".join(record.getMessage().split()))

    def reason(self) -> str:
        """The errors, each cause once: TensorRT reports it from each function on its way out."""
        causes: dict[str, str] = {}
        for text in self.texts:
            causes.setdefault(text.rpartition("(")[2], text)
        return one_line("; ".join(causes.values()), _LONGEST)

    def take(self) -> str:
        """The same; the errors are forgotten."""
        reason = self.reason()
        self.texts.clear()
        return reason


_TRIAL = "trial"
_ERRORS = ErrorLog()
_RUNNERS: dict[str, Any] = {}


def load(name: str, path: str, *, package: str) -> str:
    """Load the engine file and keep it as ``name``, ready to run; returns why that is impossible, else "".

    ``package`` is the one that built it: a process serves one package only.
    """
    try:
        with _reasons(package):
            from polygraphy.backend import trt  # lazy: optional package

            _register(package, trt.get_trt_logger())
            drop(name)
            engine = trt.EngineFromBytes(Path(path).read_bytes())
            runner = trt.TrtRunner(lambda: _context(engine(), name))
            activate(runner)
            _RUNNERS[name] = runner
    except EngineError as error:
        return str(error)
    return ""


@functools.cache
def _register(package: str, log: Any) -> None:
    """Register the user's plugins; Polygraphy registers those of NVIDIA."""
    if plugin_libraries():
        register_plugins(importlib.import_module(module_name(package)), log)


def activate(runner: Any) -> None:
    """Activate a runner, with the CUDA runtime that pip installed where Polygraphy finds none.

    Polygraphy looks in the folder that pip's packages had up to CUDA 12; from 13 on it is ``nvidia/cu13/lib``.

    Raises:
        EngineError: there is no CUDA runtime.
        Exception: Polygraphy's.
    """
    try:
        runner.activate()
    except OSError:
        folders = [path for entry in sys.path for path in Path(entry, "nvidia").glob("cu[0-9]*/lib")]
        known = os.environ.get("LD_LIBRARY_PATH", "")
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [known, *map(str, folders)]))
        try:
            runner.activate()
        except OSError as error:
            raise EngineError(
                f"Polygraphy finds no CUDA runtime ({error}): pip install nvidia-cuda-runtime, or "
                "nvidia-cuda-runtime-cu12 for CUDA 12"
            ) from error


#: The kernels that TensorRT-RTX compiled for the engines so far: most of a fixed model's are the original's.
_COMPILED: list[bytes] = []
#: By name of an engine, what its execution context uses and does not hold: itself, its runtime configuration and cache.
#: Without them TensorRT reads memory that was freed.
_HELD: dict[str, tuple[Any, Any, Any]] = {}


def _context(engine: Any, name: str) -> Any:
    """The engine, or TensorRT-RTX's execution context of it, which knows the kernels that this process compiled."""
    config: Any = engine.create_runtime_config() if hasattr(engine, "create_runtime_config") else None
    if not hasattr(config, "create_runtime_cache"):  # the full TensorRT's compiles nothing
        return engine
    cache = config.create_runtime_cache()
    _keep()
    if _COMPILED:
        cache.deserialize(_COMPILED[-1])
    config.set_runtime_cache(cache)
    _HELD[name] = engine, config, cache
    return engine.create_execution_context(config)


def _keep() -> None:
    """Keep the kernels of the engine that was loaded last: its cache holds those of the ones before."""
    for *_, cache in [*_HELD.values()][-1:]:
        _COMPILED[:] = [bytes(cache.serialize())]


def run(name: str, feed: Mapping[str, Any], *, package: str, times: int = 1) -> Ran:
    """Execute the engine that was loaded as ``name`` on a feed (input name -> array), several ``times``.

    Raises:
        KeyError: none was.
    """
    runner = _RUNNERS[name]
    try:
        with _reasons(package):
            began = time.perf_counter()
            first = infer(runner, feed)
            seconds = time.perf_counter() - began
            more = [infer(runner, feed).outputs for _ in range(times - 1)]
            return replace(first, unsteady=_unsteady(first.outputs, more), seconds=seconds)
    except Unsupported as error:
        return Ran(error=str(error))
    except EngineError as error:  # CUDA repeats an error of the device for the rest of the process
        return Ran(error=str(error), broken=True)


def latency(paths: Mapping[str, str], feed: Mapping[str, Any], *, package: str) -> Latency:
    """Time engine files ("fixed", and "original" where there is one) on a feed. All that was loaded is dropped, so that
    engines need not fit on the GPU twice; ``reason`` says why nothing was measured."""
    try:
        with _reasons(package):
            from polygraphy import cuda  # lazy: optional package
            from polygraphy.backend.trt import EngineFromBytes  # lazy: optional package

            drop()
            tools = Tools(
                cuda=Cuda(cuda.wrapper().handle),
                trt=importlib.import_module(module_name(package)),
                load=lambda path: EngineFromBytes(Path(path).read_bytes())(),
                inputs=lambda engine: _inputs(engine, feed),
                heard=_ERRORS.take,
            )
            return trt_latency.measure(paths, tools)
    except (EngineError, Unsupported) as error:
        return Latency(reason=str(error))


def _unsteady(first: Arrays, more: Sequence[Arrays]) -> Arrays:
    """The outputs whose shape or bits vary, as the last other run gave them."""
    return {
        name: one[name]
        for one in more
        for name in first
        if name in one and _raw(one[name]) != _raw(first[name])
    }


def _raw(value: Any) -> tuple[Any, bytes]:
    return np.shape(value), np.ascontiguousarray(value).tobytes()


def trial(path: str, *, package: str) -> tuple[str, str]:
    """Load and run the engine of ``package.trial_model`` in the file: why it does not run ("" where it does), and what
    float32 products are computed in: "float32", "tf32", or "" where the result is neither's."""
    error = load(_TRIAL, path, package=package)
    ran = Ran(error=error) if error else run(_TRIAL, trial_feed(), package=package)
    drop(_TRIAL)
    return ran.error, "" if ran.error else trial_precision(ran.outputs)


def drop(name: str = "") -> None:
    """Release an engine, or all of them, and their memory on the GPU."""
    _keep()
    for one in [name] if name else [*_RUNNERS]:
        if one in _RUNNERS:
            _RUNNERS.pop(one).deactivate()
        _HELD.pop(one, None)


@contextlib.contextmanager
def _reasons(package: str) -> Iterator[None]:
    """Replace Polygraphy's exceptions, most of which only refer to the log, by the errors in the log.

    Raises:
        EngineError: with TensorRT's reason, or the exception's text where it gave none.
    """
    try:
        _listen(package)
        yield
    except Unsupported:
        raise
    except Exception as error:
        raise EngineError(_ERRORS.reason() or one_line(error)) from error


def _listen(package: str) -> None:
    # Where torch is installed, Polygraphy imports it at the first inference to see whether an input is one of its
    # tensors: 3 to 5 seconds for nothing.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # "is not there", to the import system
    select_for_polygraphy(package)
    from polygraphy.logger import G_LOGGER  # lazy: optional package

    G_LOGGER.letter = G_LOGGER.colors = False
    G_LOGGER.use_python_logging_system = True
    logger = logging.getLogger("Polygraphy")
    logger.propagate = False
    logger.addHandler(_ERRORS)  # the same one a second time is not added
    _ERRORS.texts.clear()


def infer(runner: Any, feed: Mapping[str, Any]) -> Ran:
    """One inference. The results are read after the stream has come to rest, and copied.

    Polygraphy returns views of buffers that the next inference overwrites or frees; a copy made before the stream is
    idle may contain old data. They are read as bytes, since Polygraphy gives up all outputs where one
    has a type that numpy does not know itself (bfloat16); for the same reason the check of inputs is ours.

    Raises:
        Unsupported: the engine wants an input that the feed does not have, or not in that type.
    """
    found = runner.infer(
        _inputs(runner.engine, feed), check_inputs=False, copy_outputs_to_host=True, return_raw_buffers=True
    )
    runner.stream.synchronize()
    outputs: Arrays = {}
    unread: dict[str, str] = {}
    for name, value in found.items():
        try:
            outputs[name] = _read(runner, name, value)
        except Unsupported as error:
            unread[name] = str(error)
    return Ran(outputs, unread)


def _dtype(engine: Any, name: str) -> np.dtype[Any]:
    kind = engine.get_tensor_dtype(name).name
    if kind not in _DTYPES:
        raise Unsupported(f"{name} is {kind} in the engine, a type smaller than a byte")
    dtype: np.dtype[Any] = np.dtype(_DTYPES[kind])
    return dtype


def _inputs(engine: Any, feed: Mapping[str, Any]) -> Arrays:
    """All inputs of an engine, in its types."""
    names = [engine.get_tensor_name(number) for number in range(engine.num_io_tensors)]
    inputs = [name for name in names if engine.get_tensor_mode(name).name == "INPUT"]
    return {name: _given(engine, name, feed) for name in inputs}


def _given(engine: Any, name: str, feed: Mapping[str, Any]) -> Any:
    """An input in the engine's type. TensorRT has no float64: its parser converts it to float32."""
    if name not in feed:
        raise Unsupported(f"the engine has an input {name} that the model does not have")
    dtype, array = _dtype(engine, name), np.asarray(feed[name])
    if (array.dtype.name, dtype.name) == ("float64", "float32"):
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
    if array.dtype != dtype:
        raise Unsupported(f"input {name} is {dtype.name} in the engine and {array.dtype.name} in the model")
    return np.ascontiguousarray(array).reshape(array.shape)  # it makes vectors of scalars


def _read(runner: Any, name: str, value: Any) -> Any:
    """An output's bytes and shape as an array of the engine's type."""
    dtype, shape, raw = _dtype(runner.engine, name), tuple(value.shape), value.array
    size = dtype.itemsize * math.prod(shape)
    if not isinstance(raw, np.ndarray) or raw.nbytes != size:
        what = f"{raw.nbytes} bytes" if isinstance(raw, np.ndarray) else f"a {type(raw).__name__}"
        raise Unsupported(
            f"{name} comes back as {what}, where {dtype.name} of shape {shape} has {size} bytes"
        )
    wanted = tuple(runner.context.get_tensor_shape(name))
    if -1 not in wanted and wanted != shape:  # -1: the data decide, and only the runner knows
        raise Unsupported(f"{name} has shape {wanted} in the engine and comes back with {shape}")
    return raw.reshape(-1).copy().view(dtype).reshape(shape)
