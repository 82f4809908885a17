"""OPS069: Clip with non-constant bounds, for parsers that require weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from onnx import TensorProto

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    Value,
    rule,
    target_of,
)

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


@rule("OPS069", ops=["Clip"], safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[74])
def clip_with_non_constant_bounds(node: Node, model: Model) -> Iterator[Match]:
    """A Clip of floats whose minimum or maximum is not a weight.

    ## Why it matters
    TensorRT imports Clip as an activation layer, which stores both bounds. The parser up to TensorRT 10.1 therefore
    stops: `Clip min value must be an initializer!` (onnxOpImporters.cpp of TensorRT 10.1, which was read, not run). An
    error for TensorRT 8, and a warning for TensorRT 10, of which only the first releases do so. TensorRT-RTX 1.7.1 was
    measured to accept it, and TensorRT 11's parser is of the same generation.

    ## Fix
    `Min(Max(x, min), max)`: first the minimum, then the maximum, which wins if they cross. This is ONNX's definition of
    Clip, and the values are the same. NUMERIC because of two special values of a bound: with -0.0 the sign of a zero
    differs, even between the vectorized and the last elements of ONNX Runtime's Clip, and a NaN, which ONNX leaves
    open, is ignored by ONNX Runtime's Clip but not by its Max. A NaN in the data stays in both. On the side of a
    missing bound an infinity stays, which ONNX Runtime's Clip changes to the largest finite value.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Clip.html
    - https://github.com/onnx/onnx-tensorrt/blob/release/10.1-GA/onnxOpImporters.cpp
    """
    target = target_of(model)
    data = node.require(0)
    node.require_output()
    if target.types_measured or node.opset < 11:
        return
    if model.shapes.elem_type(data) not in _FLOATS or not any(map(_is_not_weight, node.inputs[1:3])):
        return
    yield Match(
        "the bounds of this Clip are not constant: "
        + ("TensorRT 10.0 and 10.1 require" if target.int64 else f"{target.title} requires")
        + " weights",
        node=node,
        fix=_decomposed(node, data, model),
        severity=Severity.WARNING if target.int64 else Severity.ERROR,
    )


def _is_not_weight(value: Value | None) -> bool:
    """Whether the parser finds a tensor instead of a weight. False in functions, whose inputs may be either."""
    if value is None or value.initializer is not None or value.is_constant:
        return False
    return value.scope.root.kind != "function"


def _decomposed(node: Node, data: Value, model: Model) -> Fix | None:
    steps = [
        (op, bound) for op, bound in zip(("Max", "Min"), node.inputs[1:], strict=False) if bound is not None
    ]
    if any(model.shapes.rank(bound) != 0 for _, bound in steps):
        return None
    draft, value = Draft(node), data.name
    for op_type, bound in steps:
        value = draft.add(op_type, [value, bound])
    draft.replace_output(node, value)
    return Fix("decompose into Max and Min", draft.edits, Safety.NUMERIC)


_BOTH = "g (float[N] x, float a, float b) => (float[N] y)"
_BELOW = "g (float[N] x, float a) => (float[N] y)"
_fixed = partial(Fixed, safety=Safety.NUMERIC, target="trt8.6")
_silent = partial(Silent, target="trt8.6")


clip_with_non_constant_bounds.examples = [
    _fixed(
        "both bounds are graph inputs",
        before=f"{_BOTH} {{ y = Clip(x, a, b) }}",
        after=f"""{_BOTH} {{ u = Max(x, a)  y = Min(u, b) }}""",
        opset=13,
    ),
    Fixed(
        "only a minimum, computed by the model",
        before=f"{_BELOW} {{ m = Neg(a)  y = Clip(x, m) }}",
        after=f"{_BELOW} {{ m = Neg(a)  y = Max(x, m) }}",
        opset=11,
        safety=Safety.NUMERIC,
        target="trt8.4",
    ),
    _fixed(
        "a non-constant maximum; the minimum is a weight",
        before=f"{_BELOW} <float z = {{0}}> {{ y = Clip(x, z, a) }}",
        after=f"""{_BELOW} <float z = {{0}}> {{
            u = Max(x, z)  y = Min(u, a) }}""",
    ),
    _fixed(
        "half precision, in a branch",
        before="""g (float16[2] x, float16 a, bool c) => (float16[2] y) {
            y = If(c)<then_branch = p () => (float16[2] u) { u = Clip(x, , a) },
                      else_branch = q () => (float16[2] v) { v = Neg(x) }> }""",
        after="""g (float16[2] x, float16 a, bool c) => (float16[2] y) {
            y = If(c)<then_branch = p () => (float16[2] u) { u = Min(x, a) },
                      else_branch = q () => (float16[2] v) { v = Neg(x) }> }""",
    ),
    Fixed(
        "TensorRT 10 accepts it only since 10.2",
        before=f"{_BOTH} {{ y = Clip(x, a, b) }}",
        after=f"""{_BOTH} {{ u = Max(x, a)  y = Min(u, b) }}""",
        safety=Safety.NUMERIC,
        target="trt10",
    ),
    Flagged("not fixed by default", f"{_BOTH} {{ y = Clip(x, a, b) }}", target="trt8.6"),
    Silent("TensorRT 11 accepts it", f"{_BOTH} {{ y = Clip(x, a, b) }}", target="trt11"),
    _silent("weights", "g (float[N] x) => (float[N] y) <float a = {0}, float b = {6}> { y = Clip(x, a, b) }"),
    _silent(
        "a default that the caller may override, which TensorRT treats as a weight",
        "g (float[N] x, float a = {0}) => (float[N] y) { y = Clip(x, a) }",
    ),
    _silent(
        "bounds as attributes",
        "g (float[N] x) => (float[N] y) { y = Clip<min = 0.0, max = 6.0>(x) }",
        opset=6,
    ),
    _silent(
        "integers, which TensorRT clips by Min and Max layers",
        "g (int32[N] x, int32 a) => (int32[N] y) { y = Clip(x, a) }",
    ),
    _silent(
        "in a function, whose caller may pass weights",
        """<ir_version: 9, opset_import: ["" : 18, "d" : 1]> g (float[N] x) => (float[N] y) <float a = {0}> {
            y = d.f(x, a) }
            <domain: "d", opset_import: ["" : 18]> f (u, l) => (w) { w = Clip(u, l) }""",
    ),
]
