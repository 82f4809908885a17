"""What differs between a node and what computes its output on the other side: weights, attributes, operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from onnx import NodeProto

from onnxfix.diagnosis.canonical import COMMUTATIVE
from onnxfix.diagnosis.counterpart import (
    Counterpart,
    Parameter,
    change_of,
    counterpart_of,
    parameters,
    version_of,
)
from onnxfix.diagnosis.distance import distance
from onnxfix.diagnosis.evidence import Evidence, number, numeric
from onnxfix.diagnosis.records import Explanation

_NO_EFFECT: Final = {"seed", "stash_type", "doc_string", "training_mode", "is_test", "consumed_inputs"}
"""Attributes that change no value, or only random ones."""
_SHOWN = 5
"""Elements of a list, and nodes, that a sentence shows."""


def changed(evidence: Evidence) -> Explanation | None:
    """A weight or attribute in which the two sides differ; None where they are the same or cannot be paired."""
    other = counterpart_of(evidence)
    if evidence.node.op_type == "Constant":
        return _constant(evidence, other)
    same = (evidence.node.op_type, evidence.node.domain or "ai.onnx")
    pairs = [node for node in other.nodes if (node.op_type, node.domain or "ai.onnx") == same]
    if len(pairs) != 1:
        return _weight_anywhere(evidence, other)
    mine = parameters(evidence.node, evidence.inputs, version_of(evidence.node, evidence.opsets))
    theirs = parameters(pairs[0], other.constants, version_of(pairs[0], evidence.other_opsets))
    alone = len(other.nodes) == 1
    found = (_operands(evidence, pairs[0], other) if alone else None) or _attribute(
        evidence, mine, theirs, alone
    )
    if found is None and alone:
        found = _weight(evidence, mine, theirs)
    return found or (None if alone else _weight_anywhere(evidence, other))


def _constant(evidence: Evidence, other: Counterpart) -> Explanation | None:
    """A Constant node against the other side's constant."""
    name = evidence.node.output[0]
    for candidate in (*other.constants.values(), evidence.own.get(name)):
        if candidate is not None and name in evidence.truth:
            change = change_of(evidence.truth[name], candidate)
            if change is not None and not change.rounded:
                return "weight", f"the constant {name!r} {change.text}"
    return None


def _operands(evidence: Evidence, node: NodeProto, other: Counterpart) -> Explanation | None:
    """An input that reads another tensor than on the truth's side. Constants are told apart by their values."""
    if evidence.node.op_type in COMMUTATIVE or len(node.input) != len(evidence.node.input):
        return None
    mine = list(evidence.node.input)
    theirs = [_partner(name, place, evidence, other) for place, name in enumerate(node.input)]
    off = [place for place, name in enumerate(theirs) if name is not None and name != mine[place]]
    known = all(name is not None for name in theirs)
    if not off:
        return None
    op_type = evidence.node.op_type
    if (
        known
        and len(off) == 2
        and [theirs[place] for place in off] == [mine[place] for place in reversed(off)]
    ):
        return "operator", f"the inputs {off[0]} and {off[1]} of {op_type} are swapped in {evidence.side}"
    place = off[0]
    return (
        "operator",
        f"input {place} of {op_type} is {theirs[place]!r} in {evidence.side} instead of {mine[place]!r}",
    )


def _partner(name: str, place: int, evidence: Evidence, other: Counterpart) -> str | None:
    """The truth's name of what a node of the other side reads; None where that is not known."""
    if not name:
        return ""
    if name not in other.constants:
        return evidence.names.get(name)
    stated = evidence.node.input[place]
    order = [stated, *(one for one in evidence.node.input if one != stated)]
    same = (one for one in order if one in evidence.inputs)
    return next((one for one in same if change_of(evidence.inputs[one], other.constants[name]) is None), None)


def _attribute(
    evidence: Evidence, mine: Mapping[str, Parameter], theirs: Mapping[str, Parameter], alone: bool
) -> Explanation | None:
    """The first attribute, or input that is a setting, with another value on the other side.

    ``alone``: the node's counterpart is a single node. Where there are more, one of them may undo the difference (a
    Transpose before a Gemm with ``transB``), so that attributes of layout are not compared.
    """
    for name in sorted(mine.keys() | theirs.keys()):
        one, other = mine.get(name, Parameter()), theirs.get(name, Parameter())
        if one.weight or other.weight or one.dynamic or other.dynamic or name in _NO_EFFECT:
            continue
        if not alone and name.startswith(("trans", "perm", "axis", "axes")):
            continue
        if (one.value is None or other.value is None) and _is_default(one) and _is_default(other):
            continue  # an attribute that older opsets do not have
        first, second = _resolved(name, one.value, evidence), _resolved(name, other.value, evidence)
        if not _equal(first, second):
            first, second = _stated(one.value, first), _stated(other.value, second)
            here, there = f"{_shown(first)} in the first model", f"{_shown(second)} in {evidence.side}"
            return "attribute", f"the attribute {name} of {evidence.node.op_type} is {here} and {there}"
    return None


def _stated(value: Any, resolved: Any) -> Any:
    """A value as the model states it; what it means where it states none."""
    return resolved if value is None else value.tolist() if isinstance(value, np.ndarray) else value


def _is_default(one: Parameter) -> bool:
    return one.value is None or (one.default is not None and _equal(one.value, one.default))


def _weight(
    evidence: Evidence, mine: Mapping[str, Parameter], theirs: Mapping[str, Parameter]
) -> Explanation | None:
    """A weight or another constant input that differs, or that one side does not have."""
    for name in sorted(mine.keys() | theirs.keys()):
        one, other = mine.get(name, Parameter()), theirs.get(name, Parameter())
        if not (one.weight or other.weight) or one.dynamic or other.dynamic:
            continue
        if one.value is None or other.value is None:
            present = other if one.value is None else one
            if np.any(present.value):
                where = evidence.side if one.value is None else "the first model"
                size = f"{present.value.size} elements, up to {number(distance(present.value, present.value).scale)}"
                return (
                    "weight",
                    f"the input {name} of {evidence.node.op_type} ({present.name}, {size}) is only in {where}",
                )
            continue
        swaps = evidence.node.op_type in COMMUTATIVE
        known = evidence.inputs if swaps else {one.name: one.value}
        # Of a commutative operator, the input that is changed least.
        which, change = min(
            ((which, change_of(array, other.value)) for which, array in known.items()),
            key=lambda candidate: candidate[1].closeness if candidate[1] is not None else 0.0,
        )
        if change is not None and not change.rounded:
            return "weight", f"the {_called(evidence.node.op_type, name)} {which!r} {change.text}"
    return None


def _called(op_type: str, formal: str) -> str:
    """What an input is called in a sentence."""
    if formal in ("scale", "bias") or (op_type, formal) in (
        ("Conv", "b"),
        ("ConvTranspose", "b"),
        ("Gemm", "c"),
    ):
        return "scale" if formal == "scale" else "bias"
    return "weight" if formal in ("w", "r") or (op_type in ("MatMul", "Gemm")) else "constant"


def _weight_anywhere(evidence: Evidence, other: Counterpart) -> Explanation | None:
    """A weight that the other side's nodes read as well, a little changed, wherever they read it."""
    stored = [array for array in other.constants.values() if numeric(array) and array.size > 1]
    for name, mine in evidence.inputs.items():
        if not numeric(mine) or mine.size < 2:
            continue
        alike = [array for array in stored if array.size == mine.size]
        turned = [
            one.T if one.shape != mine.shape and one.shape == mine.shape[::-1] else one for one in alike
        ]
        changes = [(change_of(mine, one), one) for one in turned]
        if not changes or any(change is None or change.rounded for change, _ in changes):
            continue
        for change, one in changes:
            assert change is not None
            if one.shape == mine.shape and (2 * change.differing <= change.elements or change.factor):
                return "weight", f"the weight {name!r} {change.text}"
    return None


def _resolved(name: str, value: Any, evidence: Evidence) -> Any:
    """A value as both sides can state it: defaults that no schema states, axes counted from 0, arrays as lists."""
    node = evidence.node
    data = evidence.inputs.get(node.input[0]) if node.input else None
    rank = data.ndim if data is not None else 0
    if isinstance(value, np.ndarray):
        value = value.reshape(-1).tolist() if value.ndim else value.item()
    if value is None:
        return _implied(name, evidence, rank)
    if node.op_type == "Unsqueeze":
        rank += np.size(value)
    if name == "axes" and rank:
        return sorted(int(axis) % rank for axis in np.atleast_1d(value))
    if name == "axis" and rank and isinstance(value, int):
        return value % rank
    return value


def _implied(name: str, evidence: Evidence, rank: int) -> Any:
    """What ONNX takes where an attribute without default in the schema is not given; None where nothing is implied."""
    node = evidence.node
    weights = evidence.inputs.get(node.input[1]) if len(node.input) > 1 else None
    spatial = max(0, rank - 2)
    if name == "kernel_shape" and weights is not None:
        return list(weights.shape[2:])
    return {
        "pads": [0] * 2 * spatial,
        "strides": [1] * spatial,
        "dilations": [1] * spatial,
        "output_padding": [0] * spatial,
        "perm": list(range(rank))[::-1],
        "axes": list(range(rank)),
        "steps": None,
        "constant_value": 0.0,
    }.get(name)


def _equal(first: Any, second: Any) -> bool:
    if first is None or second is None:
        return first is second
    if isinstance(first, (str, bytes)) or isinstance(second, (str, bytes)):
        return bool(first == second)
    one, other = np.asarray(first), np.asarray(second)
    if one.shape != other.shape:
        return False
    # float32 in the protobuf, or from an input in half precision
    if one.dtype.kind == "f" or other.dtype.kind == "f":
        with np.errstate(all="ignore"):
            return bool(np.array_equal(one.astype(np.float32), other.astype(np.float32), equal_nan=True))
    return bool(np.array_equal(one, other))


def _shown(value: Any) -> str:
    if value is None:
        return "not given"
    if isinstance(value, bytes):
        return f"a graph of {len(value)} bytes"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        more = ", ..." if len(value) > 2 * _SHOWN else ""
        return f"[{', '.join(_shown(one) for one in value[: 2 * _SHOWN])}{more}]"
    return str(value)
