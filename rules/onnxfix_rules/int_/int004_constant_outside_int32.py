"""INT004: int64 constants that a TensorRT without int64 clamps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import cast

import numpy as np
from onnx import TensorProto

from onnxfix.files import tensors
from onnxfix.rule import (
    CONSTANT_LIMIT,
    Flagged,
    Match,
    Model,
    Node,
    Severity,
    Silent,
    UnknownAttribute,
    Value,
    rule,
)

from ._common import INT32_HIGH, INT32_LOW, Array

MOVES = {
    "Concat": None, "Expand": 0, "Gather": 0, "Identity": 0, "Reshape": 0, "Slice": 0, "Squeeze": 0, "Transpose": 0,
    "Unsqueeze": 0,
}  # fmt: skip
"""Operators that only move elements, with their data inputs (None: all)."""
DEPTH = 8


@rule("INT004", per="model", severity=Severity.ERROR, hazards=[33])
def constant_outside_int32(model: Model) -> Iterator[Match]:
    """An int64 constant outside int32, which TensorRT clamps on this target.

    ## Why it matters
    Up to 8.6 the parser converts int64 weights to int32: `Your ONNX model has been generated with INT64 weights,
    while TensorRT does not natively support INT64. Attempting to cast down to INT32.`, and clamps values that do not
    fit (8.6, `onnx2trt_utils.cpp`, `convertINT64`). A sentinel that is compared, divided by, selected by Where or
    cast to float then has another value (NVIDIA/TensorRT #2331, #3609; onnx-tensorrt #919). From 9.0 on, "the ONNX
    parser no longer automatically casts INT64 to INT32" (changelog of 9.0 EA), and with TensorRT-RTX 1.7.1 a constant
    of 2**40 was measured to survive: this rule is silent for those targets.

    An error for targets before 9.0, unless clamping has no effect: starts, ends and steps of Slice (no axis is that
    long), and bounds of Clip, Max and Min on the side where they never apply. Operators that only move elements are
    followed. Int64 constants over 1 MiB are not examined; the rule reports that.

    ## Fix
    None: only the author knows the intended value within int32. A newer TensorRT needs no change.

    ## References
    - https://github.com/NVIDIA/TensorRT/issues/2331 and https://github.com/NVIDIA/TensorRT/issues/3609
    - https://github.com/onnx/onnx-tensorrt/issues/919
    """
    if model.target is None or model.target.int64:
        return
    for scope in model.scopes:
        for value in scope.values.values():
            yield from _examine(value)


def _examine(value: Value) -> Iterator[Match]:
    found = _int64_weights(value)
    if found is None or not value.uses:
        return
    if isinstance(found, int):
        yield Match(
            f"{value.name} has {found:,} int64 values, too many to examine: TensorRT 8 clamps those "
            "outside int32",
            value=value,
            severity=Severity.INFO,
        )
        return
    outside = found[(found > INT32_HIGH) | (found < INT32_LOW)]
    if not outside.size:
        return
    above, below = bool((outside > 0).any()), bool((outside < 0).any())
    reader = _harmed(value, above, below, DEPTH)
    if reader is not None:
        yield Match(
            f"{value.name} contains {outside.reshape(-1)[0]}, outside int32: TensorRT 8 clamps it to "
            f"{np.clip(outside.reshape(-1)[0], INT32_LOW, INT32_HIGH)}, and {reader.op_type} "
            f"{reader.first_output} computes with it",
            value=value,
            reads=(reader,),
        )


def _int64_weights(value: Value) -> Array | int | None:
    """The int64 elements that TensorRT imports as a weight here; only their number if there are too many.

    An initializer that is a graph input counts: TensorRT imports it as a weight all the same.
    """
    tensor = value.initializer
    if tensor is not None:
        if tensor.data_type != TensorProto.INT64:
            return None
        array = tensors.to_array(tensor, value.scope.model.base_dir, CONSTANT_LIMIT)
        return tensors.element_count(tensor.dims) if array is None else array
    node = value.producer
    if node is None or not node.is_onnx:
        return None
    if node.op_type == "ConstantOfShape":
        try:
            fill = node.attr("value")
        except UnknownAttribute:
            return None
        array = (
            tensors.to_array(fill, value.scope.model.base_dir, CONSTANT_LIMIT) if fill is not None else None
        )
    else:
        array = value.constant()
    return array if array is not None and array.dtype == np.int64 else None


def _harmed(value: Value, above: bool, below: bool, depth: int) -> Node | None:
    """A node whose result may change when the value is clamped; None if there is none.

    ``above`` and ``below`` say on which sides of int32 elements lie. Operators that only move elements are followed,
    at most ``depth`` of them.
    """
    for use in value.uses:
        node, index = use.node, use.index
        if not node.is_onnx:
            return node
        if _no_bound(node.op_type, index, above, below):
            continue
        if node.op_type in MOVES and MOVES[node.op_type] in (None, index) and depth and not _leaves(node):
            further = _harmed(cast(Value, node.outputs[0]), above, below, depth - 1)
            if further is None:
                continue
            return further
        return node
    return None


def _no_bound(op_type: str, index: int, above: bool, below: bool) -> bool:
    """Whether the input is a bound so large that it never applies, clamped or not."""
    if op_type == "Slice":
        return index in (1, 2, 4)  # no axis is longer than int32 can say
    if (op_type, index) == ("Clip", 1) or op_type == "Max":
        return not above
    if (op_type, index) == ("Clip", 2) or op_type == "Min":
        return not below
    return False


def _leaves(node: Node) -> bool:
    """Whether the node's result is a graph or subgraph output, where a clamped element would be visible."""
    return len(node.outputs) != 1 or node.outputs[0] is None or not node.outputs[0].replaceable


_flagged = partial(Flagged, target="trt8.6")
_silent = partial(Silent, target="trt8.6")
constant_outside_int32.examples = [
    _flagged(
        "a sentinel in a Where",
        """g (int64[N] x, bool[N] b) => (int64[N] y) <int64 big = {9223372036854775807}> {
            y = Where(b, x, big) }""",
    ),
    _flagged(
        "a sentinel that a Cast turns into a float",
        """g (float[N] x) => (float[N] y) <int64 big = {-9223372036854775808}> {
            f = Cast<to = FLOAT>(big)  y = Max(x, f) }""",
    ),
    Flagged(
        "arithmetic and comparison",
        """g (int64[N] x) => (int64[N] y, bool[N] e) <int64 big = {4294967296}, int64 low = {-4294967296}> {
            y = Mod(x, big)  e = Equal(x, low) }""",
        target="trt8.4",
    ),
    _flagged(
        "a Constant node, moved before use",
        """g (int64[N] x) => (int64[M] y) <int64[1] z = {0}> {
            c = Constant<value_int = 4294967296>()  u = Unsqueeze(c, z)  t = Concat<axis = 0>(x, u)
            w = Neg(t)  y = Identity(w) }""",
    ),
    _flagged(
        "the fill value of ConstantOfShape",
        """g (int64[1] s, int64[1] k) => (int64[N] y) {
            c = ConstantOfShape<value = int64[1] {4294967296}>(s)  y = Add(c, k) }""",
    ),
    _flagged(
        "a graph output returns the clamped value",
        """g (int64[N] x) => (int64[M] y) <int64[1] big = {4294967296}> { y = Concat<axis = 0>(x, big) }""",
    ),
    _flagged(
        "an upper bound that excludes part of int32",
        """g (int64[N] x) => (int64[N] y) <int64 low = {-4294967296}> { y = Min(x, low) }""",
    ),
    _flagged(
        "an overridable initializer is clamped as well",
        """g (int64[N] x, int64 big = {4294967296}) => (int64[N] y) { y = Add(x, big) }""",
    ),
    _silent(
        "ends and starts of a Slice: no axis is that long",
        """g (float[N] x) => (float[N] y)
                <int64[1] a = {-1}, int64[1] b = {-9223372036854775807}, int64[1] k = {0}> {
            y = Slice(x, a, b, k, a) }""",
    ),
    _silent(
        "a Slice's end that is moved before use",
        """g (float[N,M] x) => (float[N,M] y)
                <int64 e = {9223372036854775807}, int64[1] z = {0}, int64[1] one = {1}> {
            u = Unsqueeze(e, z)  t = Concat<axis = 0>(u, u)  b = Concat<axis = 0>(z, z)  k = Concat<axis = 0>(z, one)
            y = Slice(x, b, t, k) }""",
    ),
    _silent(
        "bounds that never apply",
        """g (int64[N] x) => (int64[N] y) <int64 lo = {-9223372036854775808}, int64 hi = {9223372036854775807}> {
            a = Clip(x, lo, hi)  b = Max(a, lo)  y = Min(b, hi) }""",
    ),
    Silent(
        "the newest TensorRT computes int64",
        "g (int64[N] x) => (int64[N] y) <int64 big = {4294967296}> { y = Add(x, big) }",
    ),
    _silent(
        "constants within int32",
        "g (int64[N] x) => (int64[N] y) <int64[2] c = {2147483647, -2147483648}> { y = Concat<axis = 0>(x, c) }",
    ),
    _silent(
        "other types", "g (double[N] x) => (double[N] y) <double big = {4294967296.0}> { y = Add(x, big) }"
    ),
]
