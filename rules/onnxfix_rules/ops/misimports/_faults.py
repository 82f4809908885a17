"""How the known faults of OPS123 look in a graph, and a form without the fault where one is equal.

A function for each fault returns a ``Hit`` where the pattern is proven, and None where it is not or is unknown. The ids
are those of onnxfix/targets/faults.tsv.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxfix.rule import Draft, Fix, Model, Node, Safety, Scope, Severity, Value, is_float
from onnxfix_rules.ops._bounds import number
from onnxfix_rules.ops.misimports._workarounds import (
    WHOLE,
    WORKAROUNDS,
    Hit,
    Known,
    elem_of,
    is_depthwise,
    is_small,
    readers,
    shape_of,
    sole_producer,
)
from onnxfix_rules.prc._common import HIGHEST, producer

_HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def _shared_initializer_names(node: Node, model: Model) -> Hit | None:
    names = [_initializers(scope) for scope in node.subgraphs]
    outer: set[str] = set()
    scope: Scope | None = node.scope
    while scope is not None:
        outer |= _initializers(scope)
        scope = scope.parent
    shared = len(names) == 2 and (names[0] & names[1] or outer & (names[0] | names[1]))
    return Hit() if shared else None


def _initializers(scope: Scope) -> set[str]:
    return {tensor.name for tensor in getattr(scope.proto, "initializer", ())}


def _depthwise_swish(node: Node, model: Model) -> Hit | None:
    output, quantize = node.output(), producer(node.input(0), "QuantizeLinear")
    if output is None or not output.is_output or output.use_count or quantize is None:
        return None
    product = producer(quantize.input(0), "Mul")
    if product is None:
        return None
    for data, gate in (product.inputs[:2], product.inputs[1::-1]):
        conv, sigmoid = producer(data, "Conv"), producer(gate, "Sigmoid")
        if (
            conv is not None
            and sigmoid is not None
            and sigmoid.input(0) is data
            and is_depthwise(conv, model)
        ):
            return Hit(reads=(quantize, product, conv, sigmoid))
    return None


def _depthwise_int8(node: Node, model: Model) -> Hit | None:
    weights, output = producer(node.input(1), "DequantizeLinear"), node.output()
    if weights is None or elem_of(weights, model, 0) != TensorProto.INT8 or not is_depthwise(node, model):
        return None
    return Hit(reads=(weights,)) if output is not None and output.is_output else None


def _large_integers(node: Node, model: Model) -> Hit | None:
    return Hit() if elem_of(node, model, 0) in WHOLE and not is_small(node.require(0), model) else None


def _clip_before_size(node: Node, model: Model) -> Hit | None:
    if not is_float(elem_of(node, model, 0) or 0):
        return None
    for cast, _ in readers(node.output(), "Cast"):
        if cast.attr("to") != TensorProto.INT64:
            continue
        for reader, index in readers(cast.output(), "Range", "Expand", "ConstantOfShape"):
            if reader.op_type != "Expand" or index == 1:
                return Hit(reads=(cast, reader))
    return None


def _root_of_shape(node: Node, model: Model) -> Hit | None:
    reshape = producer(node.input(0), "Reshape")
    passed = list(_above(reshape.input(1))) if reshape is not None else []
    kinds = {one.op_type for one in passed}
    return Hit(reads=(reshape, *passed)) if reshape is not None and {"Sqrt", "Shape"} <= kinds else None


def _above(value: Value | None) -> Iterator[Node]:
    """The 16 nodes nearest to a value that compute it, nearest first."""
    waiting, seen = [value], set[Node]()
    while waiting and len(seen) < 16:
        node = None if waiting[0] is None else waiting[0].producer
        del waiting[0]
        if node is not None and node.is_onnx and node not in seen:
            seen.add(node)
            waiting += [] if node.op_type == "Shape" else node.inputs
            yield node


def _returned_transpose(node: Node, model: Model) -> Hit | None:
    values = [*node.inputs, *node.outputs] if node.op_type == "Max" else node.inputs[:1]
    for value in values:
        for reader, _ in readers(value, "Transpose"):
            output = reader.output()
            if output is not None and output.is_output:
                return Hit(reads=(reader,))
    return None


def _gemv_twice(node: Node, model: Model) -> Hit | None:
    for value in node.inputs[:2]:
        first = producer(value, "MatMul")
        if first is not None and _is_gemv(first, model) and _is_gemv(node, model):
            return Hit(reads=(first,))
    return None


def _is_gemv(node: Node, model: Model) -> bool:
    left, right = (None if v is None else model.shapes.shape(v) for v in node.inputs[:2])
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return False
    return left[-2].value == 1 or right[-1].value == 1


def _shared_operand(node: Node, model: Model) -> Hit | None:
    data, weights = node.require(0), node.require(1)
    shape = model.shapes.shape(data)
    if shape is None or len(shape) < 3 or shape[0].value != 1 or not weights.is_constant:
        return None
    # One finding for all.
    alike = [one for one, index in readers(data, "MatMul") if index == 0 and one.require(1).is_constant]
    return Hit(reads=tuple(alike)) if len(alike) >= 2 and alike[0] is node else None


def _beyond_half(node: Node, model: Model) -> Hit | None:
    for value in node.inputs[:2]:
        array = None if value is None else value.constant()
        large = array is not None and array.dtype == np.float32 and bool((np.abs(array) > HIGHEST).any())
        if value is not None and large:
            return Hit(reads=(value,))
    return None


def _pad_before_conv(node: Node, model: Model) -> Hit | None:
    pad = sole_producer(node.input(0), "Pad")
    if (
        pad is None
        or elem_of(node, model, 0) != TensorProto.FLOAT16
        or pad.attr("mode", "constant") != "constant"
    ):
        return None
    total = pad.attr("pads") if pad.opset < 11 else pad.require(1).constant()
    value = pad.attr("value", 0.0) if pad.opset < 11 else 0 if pad.input(2) is None else number(pad.input(2))
    own = node.attr("pads", [0] * (len(total) - 4 if total is not None else 0))
    fix = None
    if (
        total is not None
        and value == 0
        and pad.input(3) is None
        and node.attr("auto_pad", "NOTSET") == "NOTSET"
    ):
        before, after = (list(map(int, half)) for half in np.split(np.asarray(total), 2))
        if not any(before[:2] + after[:2]) and min(before + after) >= 0:
            draft, pads = Draft(node), [a + b for a, b in zip(before[2:] + after[2:], own, strict=True)]
            draft.set_input(node, 0, pad.require(0))
            draft.set_attr(node, "pads", pads)
            fix = Fix("pad in the Conv", draft.edits, Safety.NUMERIC)
    return Hit(fix, (pad,))


def _deconv_and_cast(node: Node, model: Model) -> Hit | None:
    before = producer(node.input(0), "Cast")
    casts = [before] if before is not None else [one for one, _ in readers(node.output(), "Cast")]
    rank = model.shapes.rank(node.require(0))
    return Hit(reads=tuple(casts)) if rank == 5 and casts else None


def _in_if(node: Node, model: Model) -> Hit | None:
    scope = node.scope
    while scope.parent is not None and scope.owner is not None:
        if scope.owner.is_onnx and scope.owner.op_type == "If":
            return Hit()
        scope = scope.parent
    return None


def _tested_for_nan(node: Node, model: Model) -> Hit | None:
    """A model that asks for NaN before or after the node reckons with it."""
    if node.op_type == "Cast" and (
        node.attr("to") != TensorProto.INT32 or elem_of(node, model, 0) != TensorProto.FLOAT
    ):
        return None
    if not is_float(elem_of(node, model, 0) or 0) or (node.op_type == "Min" and len(node.inputs) < 2):
        return None
    output = node.output() if node.op_type == "Min" else None
    tests = ("IsNaN", "IsInf") if node.op_type == "Cast" else ("IsNaN",)
    found = [one for value in (*node.inputs, output) for one, _ in readers(value, *tests)]
    guarded = any(index == 2 for _, index in readers(node.output(), "Where"))
    return Hit(reads=tuple(found)) if found and not guarded else None


def _clip_of_nan(node: Node, model: Model) -> Hit | None:
    data, output = node.require(0), node.require_output()
    if elem_of(node, model, 0) != TensorProto.FLOAT or node.input(1) is None:
        return None
    tests = [one for value in (data, output) for one, _ in readers(value, "IsNaN")]
    if not tests or any(index == 2 for _, index in readers(output, "Where")):
        return None
    draft = Draft(node)
    clipped = draft.copy_node(node, outputs=[draft.name("clipped")])
    draft.replace_output(node, draft.add("Where", [draft.add("IsNaN", [data]), data, clipped]))
    return Hit(Fix("keep NaN by Where", draft.edits, Safety.NUMERIC), tuple(tests))


def _resize_after_if(node: Node, model: Model) -> Hit | None:
    transpose = producer(node.input(0), "Transpose")
    choice = producer(transpose.input(0), "If") if transpose is not None else None
    if (
        transpose is None
        or choice is None
        or node.input(3) is None
        or node.attr("mode", "nearest") == "nearest"
    ):
        return None
    shape = model.shapes.shape(transpose.require(0))
    dynamic = shape is not None and any(dim.value is None for dim in shape)
    return Hit(reads=(transpose, choice)) if dynamic and not choice.require(0).is_constant else None


def _attention_of_transposed_input(node: Node, model: Model) -> Hit | None:
    if elem_of(node, model, 0) not in _HALF:
        return None
    softmax = _next_softmax(node)
    if softmax is None or not readers(softmax.output(), "MatMul"):
        return None
    for index in (0, 1):
        transpose, shape = producer(node.input(index), "Transpose"), shape_of(node, model, index)
        if transpose is None or shape is None or len(shape) < 3:
            continue
        if (
            transpose.require(0).is_input
            and shape[-1 if index == 0 else -2] >= 9
            and np.prod(shape[:-2]) >= 2
        ):
            return Hit(reads=(transpose, softmax))
    return None


def _next_softmax(node: Node) -> Node | None:
    """The Softmax of scores, after at most three nodes that scale or mask them."""
    for _ in range(4):
        after = readers(node.output(), "Softmax", "Mul", "Div", "Add", "Where")
        if len(after) != 1:
            return None
        node = after[0][0]
        if node.op_type == "Softmax":
            return node
    return None


KNOWN: dict[str, Known] = {
    **WORKAROUNDS,
    "if-shared-initializer-names": Known("If", _shared_initializer_names,
        "initializers of its branches have names that are used twice"),
    "qdq-dwconv-swish-end": Known("DequantizeLinear", _depthwise_swish,
        "no kernel for a quantized depthwise Conv and Swish at the network's end"),
    "qdq-depthwise-conv": Known("Conv", _depthwise_int8,
        "no kernel for the int8 weights of a depthwise Conv at the network's end"),
    "topk-int32-via-float": Known("TopK", _large_integers,
        "TopK compares integers as float32, which rounds from 2^24 on", Severity.INFO),
    "float-clip-before-shape": Known("Clip", _clip_before_size,
        "a size that a Clip of floats computes does not build; cast before the Clip"),
    "layernorm-float-shape-86": Known("LayerNormalization", _root_of_shape,
        "LayerNormalization of a shape computed by Sqrt does not build"),
    "max-extra-transposes": Known("Max", _returned_transpose,
        "Max is wrong beside a Transpose that is returned"),
    "cast-extra-transpose-output": Known("Cast", _returned_transpose,
        "Cast is wrong beside a Transpose of its input that is returned"),
    "gemv-twice": Known("MatMul", _gemv_twice, "two products of a vector and a matrix in a row are inaccurate"),
    "fc-horizontal-fusion-sm110": Known("MatMul", _shared_operand,
        "MatMuls of one tensor are fused wrongly; merge them into one, and split its result"),
    "half-weights-overflow-blackwell": Known("MatMul Gemm Conv", _beyond_half,
        "weights beyond 65504 become infinite when it is built with half precision"),
    "slice-fill-conv-blackwell": Known("Conv", _pad_before_conv,
        "a Pad before a Conv in half precision does not build"),
    "convtranspose-3d-sm120": Known("ConvTranspose", _deconv_and_cast,
        "ConvTranspose of three dimensions beside a Cast does not build"),
    "attention-in-if": Known("Attention", _in_if, "Attention in a branch of an If does not build"),
    "cast-float-int32-nan": Known("Cast", _tested_for_nan,
        "NaN becomes 0, +Inf the largest int32, by Cast; ONNX leaves both open"),
    "min-nan": Known("Min", _tested_for_nan, "Min of NaN and a number is the number"),
    "clip-nan": Known("Clip", _clip_of_nan, "Clip of NaN is the lower bound"),
    "if-transpose-resize": Known("Resize", _resize_after_if,
        "Resize of a transposed result of an If is wrong; transpose before the If"),
    "transpose-input-mha": Known("MatMul", _attention_of_transposed_input,
        "attention in half precision misreads a transposed graph input"),
}  # fmt: skip
"""Fault -> how it looks, and what it does."""
