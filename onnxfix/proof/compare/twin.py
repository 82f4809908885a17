"""The original in higher precision: what it would compute if half precision had the range and digits of another type.

A fix that removes an overflow cannot agree with an original that overflows. The twin is the original with every
FLOAT16 and BFLOAT16 tensor, type and type-valued attribute replaced by that type, and nothing else; ``compare.Twin``
says when the fixed model may agree with it. The type is float64, in which exponentials of hundreds are finite still,
or float32 where the model is large or a backend has no kernels for float64. That half precision was left at all is
shown on the same feed: a value that the original computes on its way is not finite, and is in the twin. The reference
evaluator is watched node by node, also in subgraphs; of ONNX Runtime such values are asked as outputs, which those in
subgraphs cannot be.

Everything here runs in the sandbox's child.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, TypeProto, helper, numpy_helper

from onnxfix.files import walk
from onnxfix.graph.order import unfolded
from onnxfix.runtime import backends
from onnxfix.runtime.backends import Session
from onnxfix.runtime.backends.reference import ReferenceSession

HALVES = (int(TensorProto.FLOAT16), int(TensorProto.BFLOAT16))
#: Attributes of ONNX's operators that hold an element type.
TYPE_ATTRIBUTES = frozenset(
    ("dtype", "output_datatype", "output_dtype", "precision", "softmax_precision", "stash_type", "to")
)
MOST_BYTES = 4 << 30
"""Bytes of weights in float32; a larger model has no twin."""
_DOUBLE_BYTES = 1 << 30
"""Bytes of weights in float64; a larger model has a twin in float32."""
_ONE_FILE = 1 << 30
_FLOATS = ("float16", "bfloat16")


def half_type(model: ModelProto) -> str:
    """The coarser of the half-precision types that nodes, inputs or weights of the model name; "" for none."""
    types = {tensor.data_type for tensor in walk.model_tensors(model)}
    types.update(info.type.tensor_type.elem_type for info in model.graph.input)
    for node in walk.model_nodes(model):
        types.update(a.i for a in node.attribute if a.name in ("to", "dtype", "output_dtype"))
    if TensorProto.BFLOAT16 in types:
        return "bfloat16"
    return "float16" if TensorProto.FLOAT16 in types else ""


def widened(model: ModelProto, elem: int, kinds: Sequence[int] = HALVES) -> ModelProto:
    """``model`` itself, with ``elem`` wherever it said one of ``kinds``, by default float16 and bfloat16. Its external
    data must have been loaded.

    A type that a function's attribute reference brings in stays: inline functions before.
    """
    for tensor in walk.model_tensors(model):
        if tensor.data_type in kinds:
            wide = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(elem))
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    for graph in walk.graphs(model.graph):
        for info in (*graph.input, *graph.output, *graph.value_info):
            _widen_type(info.type, elem, kinds)
    for function in model.functions:
        for info in function.value_info:
            _widen_type(info.type, elem, kinds)
    for node in walk.model_nodes(model):
        for attribute in node.attribute:
            if attribute.name in TYPE_ATTRIBUTES and attribute.i in kinds:
                attribute.i = elem
            if attribute.HasField("tp"):
                _widen_type(attribute.tp, elem, kinds)
            for kind in attribute.type_protos:
                _widen_type(kind, elem, kinds)
    return model


def element_types(model: ModelProto) -> dict[str, int]:
    """The element types of all values whose type is known."""
    found: dict[str, int] = {}
    for graph in walk.graphs(onnx.shape_inference.infer_shapes(model).graph):
        for info in (*graph.input, *graph.value_info, *graph.output):
            if info.type.HasField("tensor_type"):
                found[info.name] = info.type.tensor_type.elem_type
        found.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
    return found


def _widen_type(kind: TypeProto, elem: int, kinds: Sequence[int]) -> None:
    for field in ("tensor_type", "sparse_tensor_type"):
        if kind.HasField(field) and getattr(kind, field).elem_type in kinds:
            getattr(kind, field).elem_type = elem
    for field in ("sequence_type", "optional_type"):
        if kind.HasField(field):
            _widen_type(getattr(kind, field).elem_type, elem, kinds)
    if kind.HasField("map_type"):
        _widen_type(kind.map_type.value_type, elem, kinds)


def raised(value: Any, elem: int, kinds: Sequence[str] = _FLOATS) -> Any:
    """A value of a feed in the twin's types: ``kinds``, by default half precision, become ``elem``. Exact."""
    if isinstance(value, (list, tuple)):
        return [raised(item, elem, kinds) for item in value]
    if isinstance(value, dict):
        return {key: raised(item, elem, kinds) for key, item in value.items()}
    return (
        value.astype(helper.tensor_dtype_to_np_dtype(elem))
        if getattr(value, "dtype", np.dtype(bool)).name in kinds
        else value
    )


def beyond(names: Sequence[str], half: Sequence[Any], single: Sequence[Any]) -> tuple[str, ...]:
    """The names whose value is not finite in half precision at a place where it is in the twin.

    ``half`` and ``single`` are what the original and its twin computed for ``names``.
    """
    return tuple(name for name, low, high in zip(names, half, single, strict=True) if _is_lost(low, high))


def _is_lost(low: Any, high: Any) -> bool:
    if isinstance(low, (list, tuple)) and isinstance(high, (list, tuple)):
        return any(map(_is_lost, low, high))
    if low is None or high is None or isinstance(low, dict):
        return False
    low, high = np.asarray(low), np.asarray(high)
    if low.shape != high.shape or "float" not in low.dtype.name or "float" not in high.dtype.name:
        return False
    with np.errstate(all="ignore"):
        return bool((~np.isfinite(low.astype(np.float64)) & np.isfinite(high.astype(np.float64))).any())


@dataclass(frozen=True)
class Twins:
    """The original with its half-precision values as outputs (``probe``), and the same in ``elem`` (``single``).

    The first ``count`` names are the original's own outputs; ``origins`` are the values that each of them depends on.
    """

    probe: Session
    single: Session
    names: tuple[str, ...]
    count: int
    elem: int
    origins: Mapping[str, frozenset[str]]

    @property
    def precision(self) -> str:
        """The name of the twin's type."""
        return str(helper.tensor_dtype_to_np_dtype(self.elem))

    def run(self, feed: dict[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
        """The values with which the original leaves half precision's range on ``feed``, in the order of computation,
        and the outputs of the twin by name."""
        wide = {name: raised(value, self.elem) for name, value in feed.items()}
        if isinstance(self.probe, ReferenceSession) and isinstance(self.single, ReferenceSession):
            _, lost = self.probe.traced(feed)
            values, also = self.single.traced(wide)
            overflowed = tuple(name for name, count in lost.items() if count > also.get(name, 0))
            return overflowed, dict(zip(self.names[: self.count], values, strict=False))
        low = dict(zip(self.probe.outputs, self.probe.run(feed), strict=True))
        high = dict(zip(self.single.outputs, self.single.run(wide), strict=True))
        # In the order of computation: what comes last are the outputs.
        order = (*self.names[self.count :], *self.names[: self.count])
        overflowed = beyond(order, [low[name] for name in order], [high[name] for name in order])
        return overflowed, {name: high[name] for name in self.names[: self.count]}


def load(backend: str, original: str, folder: str) -> Twins:
    """Write the two models into ``folder`` and load them.

    Raises:
        Unsupported: the model is too large.
        ModelError: its functions take too many nodes in place of their calls.
        Exception: whatever onnx, or the backend, raises for these models.
    """
    probe = Path(folder) / "probe.onnx"
    model, weights = opened(Path(original), "float32", 4, MOST_BYTES)
    own = [output.name for output in model.graph.output]
    names = (*own, *(name for name in half_values(model) if name not in own))
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names[len(own) :])
    makers = {name: node for node in model.graph.node for name in node.output if name}
    origins = {name: frozenset(walk.ancestors(makers, [name])) for name in own}
    large = weights > _ONE_FILE
    _save(model, probe, large)
    first = backends.load(backend, str(probe))

    def load_as(elem: int) -> Twins:
        path = probe.with_name("single.onnx")
        _save(widened(onnx.load(probe), elem), path, large)
        return Twins(first, backends.load(backend, str(path)), names, len(own), elem, origins)

    if 2 * weights <= _DOUBLE_BYTES:
        # of a kernel that is missing; what else is wrong shows in float32
        with contextlib.suppress(Exception):
            return load_as(int(TensorProto.DOUBLE))
    return load_as(int(TensorProto.FLOAT))


def opened(path: Path, kind: str, size: int, most: int) -> tuple[ModelProto, int]:
    """A model with its external data, and with its functions in place of their calls; and the bytes of its weights in
    elements of a ``kind`` of that ``size``.

    Raises:
        Unsupported: these are more than ``most``.
        ModelError: the functions take too many nodes in place of their calls.
    """
    model = onnx.load(path, load_external_data=False)
    weights = size * sum(math.prod(tensor.dims) for tensor in walk.model_tensors(model))
    if weights > most:
        raise backends.Unsupported(f"it has {weights / 1e9:.1f} GB of weights in {kind}")
    onnx.load_external_data_for_model(model, str(path.parent))
    return unfolded(model), weights


def half_values(model: ModelProto) -> list[str]:
    """The float16 results of the main graph's nodes, in order. bfloat16 has float32's range."""
    inferred = onnx.shape_inference.infer_shapes(model)
    kinds = {info.name: info.type.tensor_type.elem_type for info in inferred.graph.value_info}
    made = (name for node in model.graph.node for name in node.output)
    return [name for name in made if kinds.get(name) == TensorProto.FLOAT16]


def _save(model: ModelProto, path: Path, large: bool) -> None:
    """``large`` stores the weights beside the model, and takes them out of ``model``."""
    data = path.with_suffix(".data")
    data.unlink(missing_ok=True)  # onnx would append to it
    onnx.save(model, path, save_as_external_data=large, location=data.name if large else None)
