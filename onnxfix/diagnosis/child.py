"""The sandbox's side: runs a part of a model on stored values, and stores its outputs.

Every function is called through :class:`onnxfix.runtime.sandbox.Worker`.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfix.graph.unfolding import unfolded
from onnxfix.lowering.convert import between_casts
from onnxfix.proof.compare.rounding import shaken
from onnxfix.runtime import backends, replies
from onnxfix.runtime.allowance import cores
from onnxfix.runtime.backends import ort, ort_messages, ort_weights
from onnxfix.runtime.causes import NO_MEMORY, Cause
from onnxfix.runtime.sandbox import allow_maps, one_line

_WORDS = 1500


@dataclass(frozen=True)
class Reply:
    """The outputs of a model by name, or ``error``: why there are none, with its ``cause`` as data, the ``stage``
    ("load" or "run") and ONNX Runtime's ``status`` (FAIL, INVALID_ARGUMENT, ...). ``no_kernel``: ONNX Runtime has none
    for a node. ``unable``: the backend cannot do this, or has no memory left, which proves nothing about the model."""

    values: dict[str, Held] = field(default_factory=dict)
    error: str = ""
    cause: Cause = ""
    stage: str = ""
    status: str = ""
    no_kernel: bool = False
    unable: bool = False


def run(
    model: bytes | str,
    feed: Values,
    scratch: str,
    *,
    folder: str = "",
    mapped: int = 0,
    backend: str = "ort-cpu",
    moved: float = 0.0,
    seed: int = 0,
    rounding: bool = True,
) -> Reply:
    """Run a model on stored inputs.

    Args:
        model: its bytes, or the path of its file.
        feed: its inputs by name.
        scratch: prefix of the files that its outputs are written to.
        folder: where its external data is, for a model as bytes.
        mapped: bytes of files that its weights may map.
        backend: "ort-cpu", "ort-cuda" or "reference".
        moved: move floating-point inputs at random by this share of each element first.
        seed: of the moves.
        rounding: round every value in half precision, as ONNX Runtime by itself does not on a CPU; of bytes alone.
    """
    values = {name: held.load() for name, held in feed.items()}
    if moved:
        values = shaken(values, seed, moved)
    stage = "load"
    try:
        session = _session(model, folder, mapped, backend, scratch, rounding)
        stage = "run"
        outputs = session.run(values)
    except Exception as error:
        return _failed(error, stage)
    finally:
        allow_maps()
    try:
        return Reply(
            {
                name: hold(value, Path(f"{scratch}.{number}"))
                for number, (name, value) in enumerate(zip(session.outputs, outputs, strict=True))
            }
        )
    except OSError as error:
        return Reply(error=f"the disk is full: {one_line(error)}", cause="memory", unable=True)


def _session(
    model: bytes | str, folder: str, mapped: int, backend: str, scratch: str, rounding: bool
) -> backends.Session:
    allow_maps(mapped)
    if isinstance(model, str):
        return backends.load(backend, model)
    if backend == "ort-cpu":
        where = ort_weights.Stored(inside=mapped, folder=folder)
        options = ort.session_options(cores())
        # The copies that kernels pack of weights save time only where a session runs more than once.
        options.add_session_config_entry("session.disable_prepacking", "1")
        part = onnx.ModelProto.FromString(model)
        return ort.load_mapped(between_casts(part) if rounding else part, where, options)
    path = Path(scratch + ".onnx")
    whole = onnx.ModelProto.FromString(model)
    if folder:
        onnx.load_external_data_for_model(whole, folder)
    onnx.save(whole, path)
    try:
        return backends.load(backend, str(path))
    finally:
        path.unlink(missing_ok=True)


def _failed(error: Exception, stage: str) -> Reply:
    text = str(error)
    unable = isinstance(error, (backends.Unsupported, backends.Broken))
    starved = isinstance(error, MemoryError) or (not unable and bool(NO_MEMORY.search(text)))
    return Reply(
        error=text if unable else one_line(error, _WORDS),
        cause="memory" if starved else (getattr(error, "cause", "") or "refused"),
        stage=stage,
        status=ort_messages.status(text),
        no_kernel=isinstance(error, backends.NoKernel) or (not starved and ort_messages.is_gap(text)),
        unable=unable or starved,
    )


def inlined(model: bytes) -> bytes:
    """The model with its local functions in place of their calls.

    Raises:
        ModelError: they have too many nodes for that.
    """
    return bytes(unfolded(onnx.ModelProto.FromString(model)).SerializeToString())


def untensored(model: bytes) -> list[str]:
    """Names of the values that are sequences, maps or optionals, as far as ONNX's shape inference knows."""
    inferred = onnx.shape_inference.infer_shapes(onnx.ModelProto.FromString(model))
    infos = (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output)
    return [one.name for one in infos if one.type.WhichOneof("value") not in (None, "tensor_type")]


def optimized(path: str, out: str) -> str:
    """Write the model as ONNX Runtime optimizes it, with the name of every tensor that is left; returns the error."""
    import onnxruntime  # lazy: optional package

    options = ort.session_options(1)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = out
    key = "session.optimized_model_external_initializers"
    options.add_session_config_entry(f"{key}_file_name", Path(out).name + ".data")
    options.add_session_config_entry(f"{key}_min_size_in_bytes", "1024")
    try:
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return one_line(error, _WORDS)
    return ""


_SHAPE = 64  # elements
_INLINE = 1 << 14
"""Bytes up to which a value travels through the pipe and stays in memory: a file would cost more."""


@dataclass(frozen=True)
class Held:
    """A value that was stored: an array by ``dtype`` (its numpy name) and ``shape``, in a ``file`` or, if it is small
    or not an array (sequence, map, strings, None), as it is in ``value``. ``stored`` is the type in which it is stored,
    if that is another one."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    file: str = ""
    value: Any = None
    stored: str = ""
    is_strings: bool = False

    @property
    def is_tensor(self) -> bool:
        """Whether it is an array of numbers or truths."""
        return bool(self.dtype)

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """The element type of an array."""
        return _dtype(self.dtype)

    @property
    def is_shape(self) -> bool:
        """Whether it is taken for a shape or an index, which TensorRT keeps on the host: a few integers or truths."""
        whole = self.dtype.startswith(("int", "uint", "bool"))
        return whole and math.prod(self.shape) <= _SHAPE

    @property
    def nbytes(self) -> int:
        """Its size in bytes; 0 for a value that is not an array."""
        return math.prod(self.shape) * _dtype(self.dtype).itemsize if self.dtype else 0

    def load(self) -> Any:
        """The value. An array may be read-only."""
        if not self.dtype:  # pickled by ``hold`` in this run
            return replies.loads(Path(self.file).read_bytes()) if self.file else self.value
        dtype = _dtype(self.stored or self.dtype)
        value = np.fromfile(self.file, np.uint8).view(dtype).reshape(self.shape) if self.file else self.value
        if not self.stored:
            return value
        with np.errstate(all="ignore"):
            return value.astype(_dtype(self.dtype))

    def as_type(self, dtype: str) -> Held:
        """The same array, converted to another type when it is loaded; any other value as it is."""
        if not self.dtype or self.dtype == dtype:
            return self
        stored = self.stored or self.dtype
        return replace(self, dtype=dtype, stored="" if stored == dtype else stored)

    def drop(self) -> None:
        """Remove its file."""
        if self.file:
            Path(self.file).unlink(missing_ok=True)


Values = Mapping[str, Held]
"""Stored values by their names."""


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # lazy: seldom used

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found


def hold(value: Any, file: Path) -> Held:
    """Store a value, a large one in ``file``.

    Raises:
        OSError: the disk is full.
    """
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "US":
        value = value.astype(object)  # as ONNX Runtime takes texts
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        if value.nbytes <= _INLINE:
            return Held(value.dtype.name, value.shape, value=value)
        np.ascontiguousarray(value).reshape(-1).view(np.uint8).tofile(file)
        return Held(value.dtype.name, value.shape, str(file))
    data = pickle.dumps(value, protocol=5)
    strings = isinstance(value, np.ndarray)
    shape = value.shape if strings else ()
    if len(data) <= _INLINE:
        return Held(shape=shape, value=value, is_strings=strings)
    file.write_bytes(data)
    return Held(shape=shape, file=str(file), is_strings=strings)
