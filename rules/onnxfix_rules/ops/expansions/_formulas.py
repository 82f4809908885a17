"""Formulas of ONNX Runtime's operators, in ONNX's own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import Dim, Draft, Node, Target, Value, symbols, takes

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
Operand = Value | str


def scalar(draft: Draft, value: float, elem: int, hint: str = "const") -> str:
    """A scalar constant of an element type."""
    return draft.constant(np.array(value, helper.tensor_dtype_to_np_dtype(elem)), hint)


def gelu(draft: Draft, data: Operand, elem: int, target: Target) -> str:
    """The exact Gelu of ``data``; "" where the opset cannot express it."""
    opset = draft.anchor.scope.opset()
    if opset >= 20 and target.imports("Gelu"):
        return draft.add("Gelu", [data])
    if not takes("Erf", opset, elem):
        return ""
    scaled = draft.add("Mul", [data, scalar(draft, np.sqrt(0.5), elem)])
    shifted = draft.add("Add", [draft.add("Erf", [scaled]), scalar(draft, 1.0, elem)])
    half = draft.add("Mul", [data, scalar(draft, 0.5, elem)])
    return draft.add("Mul", [half, shifted])


def tanh_gelu(draft: Draft, data: Operand, elem: int, target: Target) -> str:
    """Gelu's Tanh approximation."""
    if draft.anchor.scope.opset() >= 20 and target.imports("Gelu"):
        return draft.add("Gelu", [data], approximate="tanh")
    slope = np.sqrt(2.0 / np.pi)
    square = draft.add("Mul", [data, data])
    inner = draft.add("Mul", [square, scalar(draft, 0.044715 * slope, elem)])
    factor = draft.add("Add", [inner, scalar(draft, slope, elem)])
    tanh = draft.add("Tanh", [draft.add("Mul", [data, factor])])
    shifted = draft.add("Add", [tanh, scalar(draft, 1.0, elem)])
    half = draft.add("Mul", [data, scalar(draft, 0.5, elem)])
    return draft.add("Mul", [half, shifted])


def layer_normalization(
    draft: Draft,
    data: Operand,
    scale: Operand,
    bias: Operand | None,
    epsilon: float,
    elem: int,
    target: Target,
    output: str,
) -> None:
    """Layer normalization over the last axis as ``output``: LayerNormalization, or its definition in float32."""
    if draft.anchor.scope.opset() >= 17 and target.imports("LayerNormalization"):
        inputs = [data, scale] if bias is None else [data, scale, bias]
        draft.add("LayerNormalization", inputs, output=output, axis=-1, epsilon=epsilon)
        return
    wide, kind = widened(draft, data, elem)
    centered = draft.add("Sub", [wide, mean(draft, wide)])
    normed = draft.add("Div", [centered, deviation(draft, centered, epsilon, kind)])
    _scaled(draft, normed, scale, bias, (elem, kind), output)


def rms_normalization(
    draft: Draft, data: Operand, scale: Operand, epsilon: float, elem: int, target: Target, output: str
) -> None:
    """The same without the mean: RMSNormalization, or its definition in float32."""
    if draft.anchor.scope.opset() >= 23 and target.imports("RMSNormalization"):
        draft.add("RMSNormalization", [data, scale], output=output, axis=-1, epsilon=epsilon)
        return
    wide, kind = widened(draft, data, elem)
    normed = draft.add("Div", [wide, deviation(draft, wide, epsilon, kind)])
    _scaled(draft, normed, scale, None, (elem, kind), output)


def mean(draft: Draft, data: Operand, output: str = "") -> str:
    """The mean along the last axis, which is kept with length 1."""
    return draft.along("ReduceMean", data, [-1], output=output, keepdims=1)


def deviation(draft: Draft, data: Operand, epsilon: float, elem: int) -> str:
    """The root of the mean square, with epsilon added to the mean square."""
    square = mean(draft, draft.add("Mul", [data, data]))
    return draft.add("Sqrt", [draft.add("Add", [square, scalar(draft, epsilon, elem, "epsilon")])])


def widened(draft: Draft, data: Operand, elem: int) -> tuple[Operand, int]:
    """``data`` in at least float32, and its type then: squares of float16 overflow."""
    if elem != TensorProto.FLOAT16:
        return data, elem
    return draft.add("Cast", [data], to=TensorProto.FLOAT), TensorProto.FLOAT


def _scaled(
    draft: Draft, data: str, scale: Operand, bias: Operand | None, kinds: tuple[int, int], output: str
) -> None:
    """Multiply by the scale, add the bias, and cast back to the type of the data, which both have."""
    elem, kind = kinds
    narrow = elem != kind

    def wide(value: Operand) -> Operand:
        return draft.add("Cast", [value], to=kind) if narrow else value

    last = draft.add("Mul", [data, wide(scale)], output="" if narrow or bias is not None else output)
    if bias is not None:
        last = draft.add("Add", [last, wide(bias)], output="" if narrow else output)
    if narrow:
        draft.add("Cast", [last], output=output, to=elem)


def known_float(node: Node, *values: Value) -> int | None:
    """The common float type of all values; None where it is another type, unknown, or they differ."""
    elems = {node.model.shapes.elem_type(value) for value in values}
    elem = elems.pop() if len(elems) == 1 else None
    return elem if elem in FLOATS else None


ATTENTION_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16)
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


def headed(draft: Draft, data: Operand, heads: int, size: int, output: str = "") -> str:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    shape = draft.integers([0, 0, heads, size], "shape")
    return draft.add("Transpose", [draft.add("Reshape", [data, shape])], output=output, perm=[0, 2, 1, 3])


def attend(
    draft: Draft, parts: tuple[Operand, Operand, Operand], scale: float, masks: Masking, elem: int, width: int
) -> str:
    """Attention of queries, keys and values, each [batch, heads, length, size], of ``width`` in all."""
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
    shape = draft.integers([0, 0, width], "shape")
    return draft.add("Reshape", [merged, shape])


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
    one = draft.integers(1, "one")
    first = draft.integers(0, "first") if after is None else _length(draft, after)
    length = _length(draft, data)
    end = length if after is None else draft.add("Add", [first, length])
    return draft.add("Cast", [draft.add("Range", [first, end, one])], to=TensorProto.INT32)


def _length(draft: Draft, data: Operand) -> str:
    axis = draft.integers(2, "axis")
    return draft.add("Gather", [draft.add("Shape", [data]), axis], axis=0)
