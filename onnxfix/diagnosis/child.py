"""The sandbox's side: runs a part of a model on stored values, and stores its outputs.

Every function is called through :class:`onnxfix.sandbox.Worker`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, shape_inference

from onnxfix import backends
from onnxfix.allowance import cores
from onnxfix.backends import ort, ort_messages, ort_weights
from onnxfix.causes import NO_MEMORY, Cause
from onnxfix.diagnosis.store import Held, hold
from onnxfix.graph.unfolding import unfolded
from onnxfix.record import record
from onnxfix.sandbox import allow_maps, one_line
from onnxfix.verification.compare.rounding import shaken

_HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
#: What only moves or constant values: rounded already.
_MOVING = frozenset(("Constant", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
_INPUTS_SINCE = 13
"""The opset from which on Unsqueeze and Squeeze have their axes as an input, and take bfloat16."""


def exact(model: ModelProto) -> ModelProto:
    """A model that computes the same with every value of its main graph in half precision rounded; the model itself
    where there is none. Types that shape inference does not find are left as they are.

    For most operators ONNX Runtime has no float16 kernel for the CPU. It computes them in float32 between Casts of its
    own, and removes a Cast to float16 that a Cast back follows, with all optimizations off too: 300 * 300 / 300 is
    then 300, where it is infinite. Two nodes in float16 between them keep the Casts: an Unsqueeze and a Squeeze, which
    have kernels for it and compute nothing.
    """
    if not _touches_half(model):
        return model
    version = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    halves = _halves(model, (TensorProto.FLOAT16,) if version < _INPUTS_SINCE else _HALF)
    read = {name for node in model.graph.node for name in node.input}
    if halves.isdisjoint(read):
        return model
    found = ModelProto()
    found.CopyFrom(model)
    graph, nodes = found.graph, list[NodeProto]()
    axes = "" if version < _INPUTS_SINCE else "exact/axes"
    if axes:
        graph.initializer.append(helper.make_tensor(axes, TensorProto.INT64, [1], [0]))
    for node in graph.node:
        nodes.append(node)
        for place, name in enumerate(node.output):
            if name in halves and name in read:
                node.output[place] = f"{name}/computed"
                nodes += _rounding(f"{name}/computed", name, axes)
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return found


def _rounding(source: str, result: str, axes: str) -> list[NodeProto]:
    """Two nodes that compute nothing and have kernels for half precision."""
    between = f"{result}/rounded"
    if axes:
        given = [axes]
        return [
            helper.make_node("Unsqueeze", [source, *given], [between]),
            helper.make_node("Squeeze", [between, *given], [result]),
        ]
    return [
        helper.make_node("Unsqueeze", [source], [between], axes=[0]),
        helper.make_node("Squeeze", [between], [result], axes=[0]),
    ]


def _touches_half(model: ModelProto) -> bool:
    """Whether an input, a weight, a constant or the target of a Cast is in half precision."""
    graph = model.graph
    if any(info.type.tensor_type.elem_type in _HALF for info in graph.input):
        return True
    if any(tensor.data_type in _HALF for tensor in graph.initializer):
        return True
    attributes = (one for node in graph.node for one in node.attribute)
    return any(
        (one.name in ("to", "dtype") and one.i in _HALF) or one.t.data_type in _HALF for one in attributes
    )


def _halves(model: ModelProto, kinds: Collection[int]) -> set[str]:
    """The values of these types that nodes of the main graph compute; none where nothing but Casts reads or writes
    such: ONNX Runtime adds no Casts then, and removes none."""
    try:
        typed = shape_inference.infer_shapes(model)
    except Exception:
        return set()  # shapes that contradict each other: it is left to ONNX Runtime to say so
    known = (*typed.graph.value_info, *typed.graph.output)
    halves = {info.name for info in known if info.type.tensor_type.elem_type in kinds}
    nodes = [node for node in model.graph.node if node.op_type != "Cast"]
    if not any(name in halves for node in nodes for name in (*node.input, *node.output)):
        return set()
    moving = {name for node in model.graph.node if node.op_type in _MOVING for name in node.output}
    return halves - moving


_WORDS = 1500


@record
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
        return ort.load_mapped(exact(part) if rounding else part, where, options)
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
