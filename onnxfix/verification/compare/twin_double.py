"""The original and the fixed model in float64 instead of float32, to tell rounding from other differences.

What a Cast to float32 rounds away is what the model says, not how it computes: such a Cast stays, and one to float64
follows. Everything here runs in the sandbox's child.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfix import backends, walk
from onnxfix.backends import Session, reference
from onnxfix.verification.compare.twin import element_types, opened, raised, widened

MOST_BYTES = 1 << 30
"""Bytes of weights in float64; a larger model is not run in float64."""
_DOUBLE = int(TensorProto.DOUBLE)
_SINGLE = int(TensorProto.FLOAT)
_EXACT = frozenset(
    (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.BOOL, TensorProto.INT8,
     TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16)
)  # fmt: skip
"""Types of which float32 holds every value."""


@dataclass(frozen=True)
class Doubles:
    """The original and the fixed model in float64."""

    original: Session
    fixed: Session

    def run(self, feed: dict[str, Any], without: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
        """What both compute, by output. The fixed model gets no inputs in ``without``."""
        wide = {name: raised(value, _DOUBLE, ("float32",)) for name, value in feed.items()}
        fewer = {name: value for name, value in wide.items() if name not in without}
        first, second = (
            dict(zip(one.outputs, one.run(given), strict=True))
            for one, given in ((self.original, wide), (self.fixed, fewer))
        )
        return first, second


def load(backend: str, original: str, fixed: str, folder: str) -> Doubles:
    """Write both models in float64 into ``folder`` and load them; with the reference evaluator where the backend has no
    kernels for that.

    Raises:
        Unsupported: a model is too large.
        ModelError: its functions take too many nodes in place of their calls.
        Exception: whatever onnx, or the evaluator, raises for these models.
    """
    first, second = (_load(backend, Path(one), Path(folder)) for one in (original, fixed))
    return Doubles(first, second)


def _load(backend: str, path: Path, folder: Path) -> Session:
    model, _ = opened(path, "float64", 8, MOST_BYTES)
    out = folder / "double.onnx"
    onnx.save(doubled(model), out)
    try:
        return backends.load(backend, str(out))
    except Exception:
        if backend == "reference" or reference.infeasible(model, 0) is not None:
            raise
        return backends.load("reference", str(out))


def is_float(value: Any) -> bool:
    """Whether a value of a feed is, or holds, floats."""
    if isinstance(value, (list, tuple)):
        return any(map(is_float, value))
    return "float" in getattr(getattr(value, "dtype", None), "name", "")


def doubled(model: ModelProto) -> ModelProto:
    """``model`` itself with float64 instead of float32, except for what its Casts round. Its external data must have
    been loaded, and its functions been put in place of their calls."""
    kinds = element_types(model)
    for graph in walk.graphs(model.graph):
        for node in list(graph.node):
            _spell_out(node)
            if node.op_type == "Cast" and kinds.get(node.input[0], _SINGLE) not in _EXACT:
                _round_first(graph, node)
    kept = {node.output[0] for graph in walk.graphs(model.graph) for node in graph.node if _rounds(node)}
    widened(model, _DOUBLE, (_SINGLE,))
    for graph in walk.graphs(model.graph):
        for node in graph.node:
            if node.output and node.output[0] in kept:
                next(one for one in node.attribute if one.name == "to").i = _SINGLE
    return model


_ROUNDED = "/onnxfix-rounded"
"""The end of the name of what a Cast that rounds gives, in float32 still."""


def _rounds(node: NodeProto) -> bool:
    return node.op_type == "Cast" and node.output[0].endswith(_ROUNDED)


def _round_first(graph: GraphProto, node: NodeProto) -> None:
    """Have a Cast to float32 that rounds do so in two steps, of which the second is not one to float32 any more."""
    target = next((one for one in node.attribute if one.name == "to"), None)
    if target is None or target.i != _SINGLE:
        return
    name = f"{node.output[0]}{_ROUNDED}"
    place = list(graph.node).index(node)
    graph.node.insert(place, helper.make_node("Cast", [node.input[0]], [name], to=_SINGLE))
    node.input[0] = name


def _spell_out(node: NodeProto) -> None:
    """Give constants of implied type float32 an explicit tensor."""
    if node.op_type == "Constant":
        for attribute in list(node.attribute):
            if attribute.name in ("value_float", "value_floats"):
                values = attribute.f if attribute.name == "value_float" else attribute.floats
                _set_value(node, np.array(values, np.float32), attribute.name)
    elif node.op_type == "ConstantOfShape" and not node.attribute:
        _set_value(node, np.zeros(1, np.float32), "")


def _set_value(node: NodeProto, value: Any, old: str) -> None:
    kept = [one for one in node.attribute if one.name != old]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("value", numpy_helper.from_array(value))])
