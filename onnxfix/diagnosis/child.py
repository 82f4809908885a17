"""The sandbox's side: runs a model, or a part of one.

Every function is called through :class:`onnxfix.runtime.sandbox.Worker`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfix.graph.order import unfolded
from onnxfix.lowering.convert import between_casts
from onnxfix.proof.compare.tolerance import shaken
from onnxfix.runtime import backends
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

    values: dict[str, Any] = field(default_factory=dict)
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
    """Run a model.

    Args:
        model: its bytes, or the path of its file.
        feed: its inputs by name.
        scratch: a file for a model that a backend takes from a file alone.
        folder: where its external data is, for a model as bytes.
        mapped: bytes of files that its weights may map.
        backend: "ort-cpu", "ort-cuda" or "reference".
        moved: move floating-point inputs at random by this share of each element first.
        seed: of the moves.
        rounding: round every value in half precision, as ONNX Runtime by itself does not on a CPU; of bytes alone.
    """
    values = shaken(feed, seed, moved) if moved else feed
    stage = "load"
    try:
        session = _session(model, folder, mapped, backend, scratch, rounding)
        stage = "run"
        outputs = session.run({name: _as_taken(value) for name, value in values.items()})
    except Exception as error:
        return _failed(error, stage)
    finally:
        allow_maps()
    pairs = zip(session.outputs, outputs, strict=True)
    return Reply({name: np.asarray(one) if isinstance(one, np.generic) else one for name, one in pairs})


def _as_taken(value: Any) -> Any:
    """A value as ONNX Runtime takes it: no scalar, and texts as objects."""
    value = np.asarray(value) if isinstance(value, np.generic) else value
    return value.astype(object) if isinstance(value, np.ndarray) and value.dtype.kind in "US" else value


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
    path = Path(scratch)
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

Values = Mapping[str, Any]
"""Values by their names: arrays, and what ONNX Runtime takes and gives for sequences, maps and optionals."""


@dataclass(frozen=True)
class Kind:
    """The element type of an array (numpy's name) and its shape; both empty for anything but numbers and truths."""

    dtype: str = ""
    shape: tuple[int, ...] = ()

    @property
    def is_shape(self) -> bool:
        """Whether it is taken for a shape or an index, which TensorRT keeps on the host: a few integers or truths."""
        whole = self.dtype.startswith(("int", "uint", "bool"))
        return whole and math.prod(self.shape) <= _SHAPE


def kind_of(value: Any) -> Kind:
    """The kind of a value."""
    if not isinstance(value, np.ndarray) or value.dtype.kind in "OUS":
        return Kind()
    return Kind(value.dtype.name, value.shape)


def in_type(value: Any, dtype: str) -> Any:
    """An array of numbers in another element type (numpy's name); any other value as it is."""
    if kind_of(value).dtype in ("", dtype) or not dtype:
        return value
    with np.errstate(all="ignore"):
        return value.astype(np.dtype(dtype))
