"""Multi-head attention, decomposed: shared by the rules about ONNX Runtime's attention operators."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import AddNode, Dim, Draft, Node, Value, symbols
from onnxfix_rules.ops.expansions._formulas import Operand, scalar

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
_HALF = 65504.0


@dataclass(frozen=True)
class Masking:
    """What masks keys. ``lengths`` or ``raw`` is the caller's mask (the number of valid keys, or a 0 for each invalid
    one), which adds ``filtered``; ``bias`` is added; ``causal``: no key after the query's position."""

    lengths: Value | None = None
    raw: Value | None = None
    filtered: float = -10000.0
    bias: Value | None = None
    causal: bool = False
    past: Operand | None = None
    """Keys [batch, heads, length, size] that precede those at the queries' own positions."""


def masking(node: Node, mask: Value | None, bias: Value | None, batch: Dim, elem: int) -> Masking | None:
    """The masks of a node, in the forms that ONNX Runtime's kernels support; None for one that is not decomposed."""
    shapes, filtered = node.model.shapes, float(node.attr("mask_filter_value", -10000.0))
    causal = bool(node.attr("unidirectional", 0))
    if not math.isfinite(filtered) or (elem == TensorProto.FLOAT16 and abs(filtered) > _HALF):
        return None
    if (mask is not None or causal) and node.scope.opset() < 11:  # no Range
        return None
    if bias is not None and (shapes.rank(bias) != 4 or shapes.elem_type(bias) != elem):
        return None
    if mask is None:
        return Masking(filtered=filtered, bias=bias, causal=causal)
    shape = shapes.shape(mask)
    if shape is None or shapes.elem_type(mask) != TensorProto.INT32:
        return None
    if len(shape) in (2, 3):
        return Masking(raw=mask, filtered=filtered, bias=bias, causal=causal)
    if len(shape) == 1 and symbols.equal(shape[0], batch).yes and (batch.value or 2) > 1:
        return Masking(lengths=mask, filtered=filtered, bias=bias, causal=causal)
    return None


def split(draft: Draft, data: Operand, sizes: tuple[int, ...], axis: int) -> list[str]:
    """Parts of these sizes along an axis."""
    names = [draft.name("part") for _ in sizes]
    source = data.name if isinstance(data, Value) else data
    if draft.anchor.scope.opset() < 13:
        proto = helper.make_node("Split", [source], names, axis=axis, split=list(sizes))
    else:
        lengths = draft.constant(np.array(sizes, np.int64), "sizes")
        proto = helper.make_node("Split", [source, lengths], names, axis=axis)
    draft.edits.append(AddNode(draft.anchor.scope, proto, draft.anchor))
    return names


def headed(draft: Draft, data: Operand, heads: int, size: int, output: str = "") -> str:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    shape = draft.constant(np.array([0, 0, heads, size], np.int64), "shape")
    return draft.add("Transpose", [draft.add("Reshape", [data, shape])], output=output, perm=[0, 2, 1, 3])


def attend(
    draft: Draft,
    parts: tuple[Operand, Operand, Operand],
    scale: float,
    masks: Masking,
    elem: int,
    width: int,
    output: str,
) -> None:
    """Attention of queries, keys and values, each [batch, heads, length, size], as ``output`` of ``width``."""
    query, key, value = parts
    transposed = draft.add("Transpose", [key], perm=[0, 1, 3, 2])
    scores = draft.add("MatMul", [query, transposed])
    scores = draft.add("Mul", [scores, scalar(draft, scale, elem, "scale")])
    if masks.bias is not None:
        scores = draft.add("Add", [scores, masks.bias])
    if masks.raw is not None or masks.lengths is not None:
        scores = draft.add("Add", [scores, _filtered(draft, key, masks, elem)])
    if masks.causal:
        scores = _causal(draft, query, key, scores, elem, masks)
    found = draft.add("MatMul", [draft.add("Softmax", [scores], axis=3), value])
    merged = draft.add("Transpose", [found], perm=[0, 2, 1, 3])
    shape = draft.constant(np.array([0, 0, width], np.int64), "shape")
    draft.add("Reshape", [merged, shape], output=output)


def _filtered(draft: Draft, key: Operand, masks: Masking, elem: int) -> str:
    """What the caller's mask adds to the scores."""
    if masks.lengths is not None:
        ends = draft.unsqueeze(masks.lengths, [1])
        seen, axes = draft.add("Less", [_positions(draft, key), ends]), [1, 2]
    else:
        assert masks.raw is not None
        zero = draft.constant(np.array(0, np.int32), "zero")
        seen = draft.add("Greater", [masks.raw, zero])
        axes = [1, 2] if draft.anchor.model.shapes.rank(masks.raw) == 2 else [1]
    values = [scalar(draft, number, elem, "masked") for number in (0.0, masks.filtered)]
    return draft.unsqueeze(draft.add("Where", [seen, *values]), axes)


def _causal(draft: Draft, query: Operand, key: Operand, scores: str, elem: int, masks: Masking) -> str:
    """The scores with keys after the query's position masked."""
    lowest = np.finfo(np.float16 if elem == TensorProto.FLOAT16 else np.float32).min
    rows = draft.unsqueeze(_positions(draft, query, masks.past), [1])
    later = draft.add("Less", [rows, _positions(draft, key)])
    return draft.add("Where", [later, scalar(draft, float(lowest), elem, "least"), scores])


def _positions(draft: Draft, data: Operand, after: Operand | None = None) -> str:
    """0, 1, 2, ..., the length of [batch, heads, length, size]; or starting at the length of ``after``."""
    one = draft.constant(np.array(1, np.int64), "one")
    first = draft.constant(np.array(0, np.int64), "first") if after is None else _length(draft, after)
    length = _length(draft, data)
    end = length if after is None else draft.add("Add", [first, length])
    return draft.add("Cast", [draft.add("Range", [first, end, one])], to=TensorProto.INT32)


def _length(draft: Draft, data: Operand) -> str:
    axis = draft.constant(np.array(2, np.int64), "axis")
    return draft.add("Gather", [draft.add("Shape", [data]), axis], axis=0)
