"""The nodes that compute a node's output in the other model, and how two constants differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from onnx import NodeProto, defs, helper

from onnxfix.diagnosis.distance import distance
from onnxfix.diagnosis.evidence import Array, Evidence, at, blocks, number, numeric
from onnxfix.diagnosis.terms import attributes
from onnxfix.files.tensors import constant_node_array
from onnxfix.graph.signatures import schema_of

_STANDARD = ("", "ai.onnx")
_LIMIT = 1 << 34
"""Most bytes of a constant that is read; they are in memory or mapped already."""

#: Inputs of newer opsets that were attributes of another name in older ones.
_ALIASES = {("Pad", "value"): "constant_value"}


@dataclass(frozen=True)
class Counterpart:
    """``nodes`` are those that compute something from tensors that are not constant. ``constants`` are the values that
    are known on the other side, by name."""

    nodes: tuple[NodeProto, ...]
    constants: Mapping[str, Array]


def counterpart_of(evidence: Evidence) -> Counterpart:
    """The other side's nodes, reduced to those that matter."""
    known = dict(evidence.constants)
    kept: list[NodeProto] = []
    for node in evidence.others:
        is_cast = node.op_type == "Cast" and node.domain in _STANDARD
        is_idle = is_cast or node.op_type in ("Identity", "Constant")
        folded = _folded(node, known)
        if folded is not None:
            known[node.output[0]] = folded
        elif not is_idle or node.op_type == evidence.node.op_type:
            kept.append(node)
    return Counterpart(tuple(kept), known)


def _folded(node: NodeProto, known: Mapping[str, Array]) -> Array | None:
    """The node's value where it is constant and of a kind that exporters leave around weights; else None."""
    if node.domain not in _STANDARD or len(node.output) != 1:
        return None
    if node.op_type == "Constant":
        return constant_node_array(node, None, _LIMIT)
    arrays = [known[name] for name in node.input if name in known]
    if not arrays or len(arrays) != len(node.input):
        return None
    try:
        return _fold(node.op_type, arrays, attributes(node))
    except (ValueError, TypeError, KeyError):
        return None


def _fold(op_type: str, arrays: Sequence[Array], given: Mapping[str, Any]) -> Array | None:
    data = arrays[0]
    listed = tuple(arrays[1].reshape(-1).tolist()) if len(arrays) > 1 else given.get("axes")
    match op_type:
        case "Identity":
            return data
        case "Cast":
            with np.errstate(all="ignore"):
                return data.astype(helper.tensor_dtype_to_np_dtype(given["to"]))
        case "Transpose":
            return data.transpose(given.get("perm"))
        case "Reshape":
            return data.reshape(listed or ())
        case "Unsqueeze":
            return np.expand_dims(data, tuple(listed or ()))
        case "Squeeze":
            return np.squeeze(data, None if listed is None else tuple(listed))
    return None


@dataclass(frozen=True)
class Parameter:
    """One setting or weight of a node. ``value`` is None where it is not known or not given.

    ``weight`` is True for an input that is no setting: a weight, a bias, a table. ``name`` is the tensor's, where it is
    an input; ``dynamic``: an input whose value is computed, and not known. ``default`` is what the schema states where
    an attribute is not given.
    """

    value: Any = None
    weight: bool = False
    name: str = ""
    dynamic: bool = False
    default: Any = None


#: Inputs that are settings: exporters and opsets store them as attributes or as constants.
_SETTINGS = {
    "axes", "axis", "constant_value", "depth", "ends", "k", "max", "min", "output_shape", "pads", "ratio", "repeats",
    "roi", "scales", "shape", "sizes", "split", "starts", "steps", "training_mode",
}  # fmt: skip


def parameters(node: NodeProto, values: Mapping[str, Array], version: int) -> dict[str, Parameter]:
    """A node's attributes, with the schema's defaults, and its inputs by their formal names.

    ``values`` are the tensors that are known, and ``version`` the opset of the node's domain (0: the newest).
    """
    defaults, inputs = _schema(node.op_type, "" if node.domain in _STANDARD else node.domain, version)
    given = {**defaults, **{name: plain(value) for name, value in attributes(node).items()}}
    found = {
        _ALIASES.get((node.op_type, name), name).lower(): Parameter(value, default=defaults.get(name))
        for name, value in given.items()
    }
    for i, name in enumerate(node.input):
        # Further inputs of a variadic operator are numbered.
        formal = inputs[i] if i < len(inputs) else f"{inputs[-1] if inputs else 'input'}[{i}]"
        if name:
            found[formal] = Parameter(values.get(name), formal not in _SETTINGS, name, name not in values)
    return found


def plain(value: Any) -> Any:
    """An attribute's value as numbers, text, a list of these, or an array; graphs as their bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (int, float, str)):
        return value
    if hasattr(value, "data_type"):
        carrier = helper.make_node("Constant", [], ["value"])
        carrier.attribute.append(helper.make_attribute("value", value))
        return constant_node_array(carrier, None, _LIMIT)
    if hasattr(value, "SerializeToString"):
        return value.SerializeToString(deterministic=True)
    return [plain(one) for one in value]


@cache
def _schema(op_type: str, domain: str, version: int) -> tuple[dict[str, Any], list[str]]:
    """The defaults of an operator's attributes, and the names of its inputs in lower case."""
    schema = schema_of(op_type, version or defs.onnx_opset_version(), domain)
    if schema is None:
        return {}, []
    attributes = schema.attributes.items()
    defaults = {name: one.default_value for name, one in attributes if one.default_value.type}
    plain_defaults = {name: plain(helper.get_attribute_value(one)) for name, one in defaults.items()}
    return plain_defaults, [one.name.lower() for one in schema.inputs]


def version_of(node: NodeProto, opsets: Mapping[str, int]) -> int:
    """The opset of the node's domain; 0 where the model does not say."""
    names = _STANDARD if node.domain in _STANDARD else (node.domain,)
    return next((opsets[name] for name in names if name in opsets), 0)


_ALIKE = 1e-6
"""How far elements of float32 may be from one common factor, relative."""


@dataclass(frozen=True)
class Change:
    """How many elements differ, and the sentence about it. ``rounded``: the other side's are these, stored in a type of
    fewer bits; ``factor``: all elements are the first's times one factor."""

    differing: int
    elements: int
    text: str
    rounded: str = ""
    factor: bool = False

    @property
    def closeness(self) -> float:
        """A distance between constants: the smaller, the less is changed."""
        return 0.01 if self.rounded or self.factor else self.differing / max(1, self.elements)


def change_of(first: Array, second: Array) -> Change | None:
    """How ``second`` differs from ``first``; None where both hold the same values, whatever their types.

    Shapes that differ in leading dimensions of 1 are the same.
    """
    if not (numeric(first) and numeric(second)):
        same = first.shape == second.shape and bool(np.all(first == second))
        return None if same else Change(first.size, first.size, "holds other values")
    if _core(first) != _core(second):
        sizes = f"{list(first.shape)} in the first model and {list(second.shape)} in the other"
        return Change(first.size, first.size, f"has the shape {sizes}")
    differing = sum(
        int(np.count_nonzero((one != other) & ~(np.isnan(one) & np.isnan(other))))
        for _, (one, other) in blocks(first, second)
    )
    if not differing:
        return None
    rounded = _rounded(first, second)
    if rounded:
        return Change(differing, first.size, f"is stored in {rounded} on the other side", rounded)
    factor = _factor(first, second) if differing > 1 else None
    text = _describe(first, second, differing, factor)
    return Change(differing, first.size, text, factor=factor is not None)


def _core(array: Array) -> tuple[int, ...]:
    """The shape without leading dimensions of 1."""
    sizes = list(array.shape)
    while sizes and sizes[0] == 1:
        sizes.pop(0)
    return tuple(sizes)


def _describe(first: Array, second: Array, differing: int, factor: float | None) -> str:
    elements = first.size
    if elements == 1:
        return f"is {_both(first, second, 0)}"
    if differing > 1 and not np.any(second):
        return f"is all zeros on the other side ({differing} of {elements} elements differ)"
    if factor is not None:
        return f"is the first model's times {factor:.4g} ({elements} elements)"
    flat = distance(first.reshape(-1), second.reshape(-1)).at
    many = "elements differs" if differing == 1 else "elements differ, most"
    where = at([int(i) for i in np.unravel_index(flat, first.shape)])
    return f"differs: {differing} of {elements} {many}{where}: {_both(first, second, flat)}"


def _both(first: Array, second: Array, flat: int) -> str:
    one, other = float(first.reshape(-1)[flat]), float(second.reshape(-1)[flat])
    return f"{number(one)} in the first model and {number(other)} in the other"


def _factor(first: Array, second: Array) -> float | None:
    """The factor by which all elements are scaled, up to the rounding of their types; None where there is none."""
    product = square = 0.0
    with np.errstate(all="ignore"):
        for _, (one, other) in blocks(first, second):
            product, square = product + float(np.sum(one * other)), square + float(np.sum(one * one))
    if not np.isfinite(square) or not square or not product:
        return None
    factor = product / square
    half = min(first.dtype.itemsize, second.dtype.itemsize) == 2
    step, smallest = (2.0**-7, 2.0**-23) if half else (_ALIKE, 1e-37)
    if not np.isfinite(factor) or abs(factor - 1) <= 2.0**-10:
        return None
    for _, (one, other) in blocks(first, second):
        if not np.all(np.abs(other - factor * one) <= step * np.abs(other) + smallest):
            return None
    return factor


def _rounded(first: Array, second: Array) -> str:
    """The type of fewer bits through which the values of ``first`` went to become ``second``; "" for none."""
    if first.dtype.kind != "f" or first.dtype.itemsize < 4 or second.dtype.kind in "biu":
        return ""
    for kind in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        if second.dtype.itemsize >= 4 or second.dtype == kind:
            with np.errstate(all="ignore"):
                through = all(
                    np.array_equal(one.astype(kind).astype(np.float64), other, equal_nan=True)
                    for _, (one, other) in blocks(first, second)
                )
            if through:
                return str(kind)
    return ""
