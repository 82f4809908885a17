"""The sandbox's side: runs a part of a model on stored values, and stores its outputs.

Every function is called through :class:`onnxfix.sandbox.Worker`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from onnxfix import backends
from onnxfix.allowance import cores
from onnxfix.backends import ort, ort_messages, ort_weights
from onnxfix.causes import NO_MEMORY, Cause
from onnxfix.diagnosis.store import Held, hold
from onnxfix.graph.unfolding import unfolded
from onnxfix.lowering.convert import between_casts
from onnxfix.sandbox import allow_maps, one_line
from onnxfix.verification.compare.rounding import shaken

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
    feed: Mapping[str, Held],
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
