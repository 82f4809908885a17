"""BRC006: operands that are repeated without an Expand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Safety,
    Severity,
    Silent,
    Value,
    equal,
    rule,
    shared,
)

from ._common import MULTIDIRECTIONAL, Broadcast, Operand, is_static_one, label, text
from ._exact import safety_of_repetition
from ._meet import Symbols, broadcasts, meetings


@rule("BRC006", per="model", safety=Safety.EXACT, severity=Severity.INFO, hazards=[51], default=False)
def implicit_repetition(model: Model) -> Iterator[Match]:
    """Several operands of an operator are, or may be, repeated without an explicit Expand.

    ## Why it matters
    This rule helps readers, and importers with bugs in two-sided broadcasting (BRC003, BRC004, BRC005). TensorRT does
    not need it: TensorRT-RTX 1.7.1 builds every valid form. There, explicit repetition has a cost: measured, a static
    two-sided Add grows from 1 layer to 3, a dynamic one from 1 layer to 31 (shape arithmetic and SLICE), and the
    expanded operands take memory. So the rule is off by default and runs only when selected.

    ## Fix
    Insert an `Expand` before each operand that is or may be repeated: to the result's shape if that is static,
    otherwise to the runtime `Shape` of each other operand. A size that is never 1 (3, or 2 * N) is not repeated. Exact:
    Expand repeats as the operator does, and fails if the operator fails. NUMERIC in half precision, for `Pow`, and for
    `Min`, `Max` and `Where` on floats, for which ONNX Runtime (it verifies fixes) then uses other kernels. It makes a
    batch-1 trap visible; it does not remove it.

    ## References
    - ONNX, docs/Operators.md (Expand), docs/Broadcasting.md
    """
    symbols = shared(model, Symbols)
    for broadcast in broadcasts(
        model, lambda node, form: node.op_type in MULTIDIRECTIONAL and node.opset >= 8
    ):
        node = broadcast.node
        open_sizes = any(symbols.conflicts(meeting) for meeting in meetings(broadcast))
        if not open_sizes and not broadcast.form.is_two_sided:
            continue
        draft = Draft(node)
        for operand in broadcast.operands:
            _expand(draft, broadcast, operand)
        if not draft.edits:
            continue  # sizes that are never 1, which BRC004 covers
        sides = " and ".join(label(operand) + text(operand.shape) for operand in broadcast.operands)
        safety = safety_of_repetition(broadcast, model)
        title = "Expand the operands to the result's shape"
        yield Match(f"{sides} are repeated implicitly", node=node, fix=Fix(title, draft.edits, safety))


def _expand(draft: Draft, broadcast: Broadcast, operand: Operand) -> None:
    others = [
        other for other in broadcast.operands if other is not operand and _repeats(broadcast, other, operand)
    ]
    if not others:
        return
    current: Value | str | None = operand.value
    target = _static_result(broadcast)
    if target is not None:
        current = draft.add("Expand", [current, draft.constant(np.array(target, dtype=np.int64), "shape")])
    else:
        for other in others:
            current = draft.add("Expand", [current, draft.add("Shape", [other.value])])
    draft.set_input(broadcast.node, operand.place, current)


def _repeats(broadcast: Broadcast, other: Operand, operand: Operand) -> bool:
    """Whether ``other`` has a dimension along which ``operand`` is or may be repeated."""
    for axis in range(broadcast.rank):
        wanted, present = broadcast.dim(other, axis), broadcast.dim(operand, axis)
        if wanted is None or (is_static_one(wanted) and present is not None):
            continue
        if present is None or not (equal(wanted, present).yes or equal(present, 1).no):
            return True
    return False


def _static_result(broadcast: Broadcast) -> list[int] | None:
    result = []
    for axis in range(broadcast.rank):
        dims = {broadcast.dim(operand, axis) for operand in broadcast.operands}
        sizes = {1 if dim is None else dim.value for dim in dims} - {1}
        if len(sizes) > 1 or None in sizes:
            return None
        result.append(next(iter(sizes)) or 0 if sizes else 1)
    return result


implicit_repetition.examples = [
    Fixed(
        "static sizes, with a constant target",
        before="g (float[2,1] x, float[1,3] z) => (float[2,3] y) { y = Add(x, z) }",
        after="g (float[2,1] x, float[1,3] z) => (float[2,3] y) <int64[2] s = {2,3}, int64[2] t = {2,3}>"
        " { a = Expand(x, s)  b = Expand(z, t)  y = Add(a, b) }",
    ),
    Fixed(
        "symbolic sizes, with the other operand's shape as target",
        before="g (float[N,1] x, float[1,M] z) => (float[N,M] y) { y = Add(x, z) }",
        after="g (float[N,1] x, float[1,M] z) => (float[N,M] y)"
        " { s = Shape(z)  a = Expand(x, s)  t = Shape(x)  b = Expand(z, t)  y = Add(a, b) }",
    ),
    Fixed(
        "sizes that may differ",
        before="g (float[N,3] x, float[M,3] z) => (float[K,3] y) { y = Add(x, z) }",
        after="g (float[N,3] x, float[M,3] z) => (float[K,3] y)"
        " { s = Shape(z)  a = Expand(x, s)  t = Shape(x)  b = Expand(z, t)  y = Add(a, b) }",
    ),
    Fixed(
        "(N, 1) with (N,), a batch-1 trap",
        before="g (float[N,1] x, float[N] w) => (float[N,K] y) { y = Mul(x, w) }",
        after="g (float[N,1] x, float[N] w) => (float[N,K] y)"
        " { s = Shape(w)  a = Expand(x, s)  t = Shape(x)  b = Expand(w, t)  y = Mul(a, b) }",
    ),
    Fixed(
        "three operands",
        before="g (bool[N,1] p, int64[1,M] x, int64 z) => (int64[N,M] y) { y = Where(p, x, z) }",
        after="g (bool[N,1] p, int64[1,M] x, int64 z) => (int64[N,M] y) {"
        " s = Shape(x)  a = Expand(p, s)  t = Shape(p)  b = Expand(x, t)"
        " u = Shape(p)  c = Expand(z, u)  v = Shape(x)  d = Expand(c, v)  y = Where(a, b, d) }",
    ),
    Flagged(
        "half precision, which has no exact fix",
        "g (float16[2,1] x, float16[1,3] z) => (float16[2,3] y) { y = Add(x, z) }",
    ),
    Flagged(
        "Pow, which has a kernel of its own for an exponent of one element",
        "g (float[N,1] x, float[1,M] z) => (float[N,M] y) { y = Pow(x, z) }",
    ),
    Fixed(
        "a size that is never 1: only the other operand may be repeated",
        before="g (float[N,3] x, float[M,3] z) => (float[K,3] y) { c = Concat<axis=0>(x, x)  y = Add(c, z) }",
        after="g (float[N,3] x, float[M,3] z) => (float[K,3] y)"
        " { c = Concat<axis=0>(x, x)  s = Shape(c)  a = Expand(z, s)  y = Add(c, a) }",
    ),
    Silent(
        "two sizes that are never 1 and never equal",
        "g (float[N,3] x) => (float[K,3] y) { c = Concat<axis=0>(x, x)  d = Concat<axis=0>(x, x, x)"
        "  y = Add(c, d) }",
        runs=False,
    ),
    Silent(
        "3 * N with 3: an Expand from 3 to 9 rows would be invalid",
        "g (float[N,3] x) => (float[K,3] y) <float[3,3] b = {1,2,3,4,5,6,7,8,9}>"
        " { c = Concat<axis=0>(x, x, x)  y = Add(c, b) }",
        runs=False,
    ),
    Silent(
        "only one operand is repeated (a bias)",
        "g (float[N,3] x) => (float[N,3] y) <float[3] b = {1,2,3}> { y = Add(x, b) }",
    ),
    Silent(
        "a mask with dimensions of 1",
        "g (float[N,4,S,S] x, float[N,1,1,S] m) => (float[N,4,S,S] y) { y = Add(x, m) }",
    ),
    Silent(
        "a MatMul, whose matrices must not be expanded, and an Expand",
        "g (float[N,1,2,3] x, float[1,4,3,2] z, float[1,3] w) => (float[N,4,2,2] y, float[2,3] v)"
        " <int64[2] s = {2,1}> { y = MatMul(x, z)  v = Expand(w, s) }",
    ),
    Silent(
        "opset 7, which has no Expand",
        "g (float[2,1] x, float[1,3] z) => (float[2,3] y) { y = Add(x, z) }",
        opset=7,
    ),
    Silent(
        "unknown rank",
        "g (float[N,1] x, float[1,3] z, int64[K] s) => (float[] y) { r = Reshape(x, s)  y = Add(r, z) }",
        runs=False,
    ),
]
