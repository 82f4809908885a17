"""PRC004: operands of different types."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto, defs

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
    is_float,
    name_of,
    rule,
    target_of,
)

from ._common import NUMPY, type_of

_TAKEN = ("Clip", "Pad")
"""Constant inputs that TensorRT-RTX 1.7.1 accepts in another type."""
_APART = {"Where": (0,), "Pad": (1, 3)}
"""Inputs with a type of their own in every opset."""
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
OPERATORS = (
    *("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Where", "PRelu", "MatMul", "Gemm", "Concat"),
    *("Conv", "ConvTranspose", "BatchNormalization", "InstanceNormalization", "LayerNormalization"),
    *_COMPARISONS,
    *_TAKEN,
)


@rule("PRC004", ops=OPERATORS, safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[71])
def operands_of_different_types(node: Node, model: Model) -> Iterator[Match]:
    """Operands that must have the same type differ, mostly half precision and float32.

    ## Why it matters
    Converters that lower part of a model to float16 leave such models behind. ONNX forbids them, so ONNX Runtime
    refuses to load them, and so does TensorRT-RTX 1.7.1's parser: `ElementWiseOperation SUM must have same input
    types. But they are of types Half and Float` (also PROD, MAX, GREATER and the others), `IMatrixMultiplyLayer must
    have same input types`, ``INormalizationLayer `input` and `scale` must have identical types``, ``IConvolutionLayer
    `input` and `kernel` must be of same type``, `ISelectLayer must have thenInput and elseInput of same types`,
    `IConcatenationLayer inputs must all be of the same type`, `Inputs must be either all FLOAT or all FLOAT16`
    (InstanceNormalization). It accepts Clip's bounds and Pad's value in another type: a warning only. TensorRT with
    weak typing selected a type itself.

    ## Fix
    Constants are converted to the type of the data. NUMERIC: a narrower type rounds them. There is no reference
    result, since the model did not run before. No fix if a value would become infinite or 0, if two non-constant
    operands differ (insert a Cast to the intended type), and if a graph output is declared in another type.

    ## References
    - https://onnx.ai/onnx/operators/ (type constraints)
    - onnx-tensorrt, importerUtils.cpp; NVIDIA/TensorRT documentation, "Strong typing"
    """
    apart = _APART.get(node.op_type, ())
    kinds = {
        model.shapes.elem_type(value)
        for index, value in enumerate(node.inputs)
        if value is not None and index not in apart
    }
    if len(kinds) < 2 and None not in kinds:
        return  # usually all types are equal
    for indices in _groups(node.op_type, node.opset, len(node.inputs)):
        operands = [(i, v) for i in indices if (v := node.input(i)) is not None]
        types = [type_of(value, model) for _, value in operands]
        known = [kind for kind in types if kind is not None]
        if len(known) != len(types) or len(set(known)) < 2 or not any(is_float(kind) for kind in known):
            continue
        names = " and ".join(name_of(kind) for kind in dict.fromkeys(known))
        taken = node.op_type in _TAKEN or not target_of(model).strongly_typed_only
        yield Match(
            f"{node.op_type} of {names}: its operands must have the same type",
            node=node,
            fix=_cast(node, operands, model),
            severity=Severity.WARNING if taken else Severity.ERROR,
            reads=tuple(value for _, value in operands),
        )
        return


@functools.cache
def _groups(op_type: str, opset: int, count: int) -> tuple[tuple[int, ...], ...]:
    """The inputs that ONNX requires in the same type, by index."""
    try:
        schema = defs.get_schema(op_type, opset, "")
    except defs.SchemaError:
        return ()
    found: dict[str, list[int]] = {}
    for index in range(count):
        formal = schema.inputs[min(index, len(schema.inputs) - 1)] if schema.inputs else None
        if formal is not None and (formal.is_homogeneous or index < len(schema.inputs)):
            found.setdefault(formal.type_str, []).append(index)
    return tuple(tuple(indices) for indices in found.values() if len(indices) > 1)


def _cast(node: Node, operands: list[tuple[int, Value]], model: Model) -> Fix | None:
    """Store each constant of another type in the type of the non-constant operands."""
    data = {type_of(value, model) for _, value in operands if not value.is_constant}
    wanted = data.pop() if len(data) == 1 else None
    output = node.output()
    if wanted is None or wanted not in NUMPY or output is None:
        return None
    if output.is_output and node.op_type not in _COMPARISONS:
        declared = output.declared
        if declared is not None and declared.tensor_type.elem_type not in (TensorProto.UNDEFINED, wanted):
            return None
    draft = Draft(node)
    for index, value in operands:
        if type_of(value, model) == wanted:
            continue
        array = _held(value, wanted)
        if array is None:
            return None
        draft.set_input(node, index, draft.constant(array, name_of(wanted)))
    return Fix(f"store the constants as {name_of(wanted)}", draft.edits, Safety.NUMERIC)


def _held(value: Value, elem: int) -> np.ndarray[Any, Any] | None:
    """The constant in that type, rounded; None if a value becomes infinite or 0, or an integer is rounded."""
    array = value.constant(1 << 28)
    if array is None or array.dtype.kind not in "fiu":
        return None
    with np.errstate(over="ignore", under="ignore"):
        made = array.astype(NUMPY[elem])
    if array.dtype.kind != "f":
        return made if np.array_equal(made.astype(np.float64), array.astype(np.float64)) else None
    lost = (np.isinf(made) & np.isfinite(array)) | ((made == 0) & (array != 0))
    return None if lost.any() else made


_HALF_TWO = "float16 c = {f16(2.0)}"


_fixed = partial(Fixed, safety=Safety.NUMERIC, opset=17, ir_version=8, runs=False)
_flagged = partial(Flagged, safety=Safety.NUMERIC, opset=17, ir_version=8, runs=False)
_IO = "g (float16[N,2] x) => (float16[N,2] y)"


def _with_scalar(call: str, elem: str = "float16", other: str = "float", b: str = "2") -> str:
    return f"g ({elem}[N,2] x) => ({elem}[N,2] y) <{other} b = {{{b}}}> {{ y = {call}(x, b) }}"


operands_of_different_types.examples = [
    _fixed(
        "a float32 constant added to half precision",
        _with_scalar("Add"),
        f"{_IO} <{_HALF_TWO}> {{ y = Add(x, c) }}",
    ),
    _fixed(
        "a constant first operand, opset 7",
        f"{_IO} <float b = {{2}}> {{ y = Mul(b, x) }}",
        f"{_IO} <{_HALF_TWO}> {{ y = Mul(c, x) }}",
        opset=7,
    ),
    _fixed(
        "a half-precision constant with float32 data: no rounding",
        f"g (float[N,2] x) => (float[N,2] y) <{_HALF_TWO}> {{ y = Max(x, c) }}",
        _with_scalar("Max", elem="float"),
    ),
    _fixed(
        "weights and bias",
        f"{_IO} <float[2,2] w = {{2,0,0,2}}, float[2] b = {{2,2}}> {{ y = Gemm(x, w, b) }}",
        f"{_IO} <float16[2,2] w = {{16384,0,0,16384}}, float16[2] b = {{16384,16384}}> {{ y = Gemm(x, w, b) }}",
    ),
    _fixed(
        "a scale of LayerNormalization with another reader",
        "g (float16[N,2] x, float[N,2] z) => (float16[N,2] y, float[N,2] u) <float[2] s = {2, 2}>"
        " { y = LayerNormalization(x, s)  u = Mul(z, s) }",
        "g (float16[N,2] x, float[N,2] z) => (float16[N,2] y, float[N,2] u)"
        " <float16[2] c = {f16(2.0, 2.0)}, float[2] s = {2, 2}> { y = LayerNormalization(x, c)  u = Mul(z, s) }",
    ),
    _fixed(
        "an integer constant", _with_scalar("Add", other="int64"), f"{_IO} <{_HALF_TWO}> {{ y = Add(x, c) }}"
    ),
    _fixed(
        "Clip's bounds, which TensorRT accepts and ONNX does not",
        f"{_IO} <float b = {{2}}> {{ y = Clip(x, , b) }}",
        f"{_IO} <{_HALF_TWO}> {{ y = Clip(x, , c) }}",
    ),
    _flagged("no constant operand", "g (float16[N,2] x, float[N,2] z) => (float16[N,2] y) { y = Add(x, z) }"),
    _flagged("a value that half precision cannot represent", _with_scalar("Div", b="1e6")),
    _flagged("a value that would become 0", _with_scalar("Add", b="1e-12")),
    _flagged(
        "a graph output in the constant's type",
        "g (float16[N,2] x) => (float[N,2] y) <float b = {2}> { y = Add(b, x) }",
    ),
    _flagged(
        "a float32 constant that may be overridden",
        "g (float16[N,2] x, float b) => (float16[N,2] y) <float b = {2}> { y = Add(x, b) }",
    ),
    Silent("equal types", f"{_IO} <{_HALF_TWO}> {{ y = Add(x, c) }}"),
    Silent("Pow's exponent may have a type of its own", _with_scalar("Pow")),
    Silent(
        "Where's condition",
        f"g (float16[N,2] x, bool[N,2] p) => (float16[N,2] y) <{_HALF_TWO}> {{ y = Where(p, x, c) }}",
    ),
    Silent(
        "the statistics of BatchNormalization from opset 15 on",
        "g (float16[N,2] x) => (float16[N,2] y) <float16[2] s = {f16(2.0, 2.0)}, float[2] m = {1,1}>"
        " { y = BatchNormalization(x, s, s, m, m) }",
        runs=False,
    ),
    Silent(
        "an unknown type",
        '<ir_version: 8, opset_import: ["" : 17, "o" : 1]>'
        f" {_IO} <float b = {{2}}> {{ u = o.Half(x)  v = Add(u, b)  y = Cast<to=FLOAT16>(v) }}",
        runs=False,
    ),
    Flagged(
        "Concat and Where",
        """g (float16[2] x, bool[2] c) => (float16[4] y, float16[2] z) <float[2] w = {1,2}> { y =
            Concat<axis=0>(x, w) z = Where(c, x, w) }""",
        opset=17,
    ),
    Flagged(
        "Conv's weights",
        """g (float16[1,1,4,4] x) => (float16[1,1,3,3] y) <float[1,1,2,2] w = {1,2,3,4}> { y = Conv(x, w) }""",
        opset=17,
    ),
]
