"""OPS062: a lossless Cast to an 8-bit integer, followed by another Cast."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    dtypes,
    rule,
    target_of,
)
from onnxfix_rules.ops._integers import SMALL, unnarrowed


@rule(
    "OPS062",
    ops=["Cast"],
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[50, 32],
    types=tuple(SMALL),
)
def cast_through_small_integer(node: Node, model: Model) -> Iterator[Match]:
    """A Cast of int32 or int64 to uint8 that loses nothing, followed by a Cast to another type.

    ## Why it matters
    uint8 between two nodes is refused: `TensorRT does not support UINT8 types for intermediate tensors`, measured with
    TensorRT-RTX 1.7.1. That includes the middle of such a chain, which rewritten uint8 arithmetic leaves behind. The
    severity is info if the uint8 is a graph output, which another node may also read.

    ## Fix
    Cast from the wide integer. Exact: the range of the integers is proven from the operators that produce them.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    value = node.input(0)
    elem = None if value is None else model.shapes.elem_type(value)
    if value is None or elem is None or target_of(model).between(elem):
        return
    before = unnarrowed(value, node, model)
    if before is None:
        return
    draft = Draft(node)
    draft.set_input(node, 0, before)
    yield Match(
        f"{dtypes.name_of(elem)} between two Casts, where TensorRT does not support it",
        node=node,
        fix=Fix("cast from the wide integer", draft.edits),
        severity=Severity.INFO if value.is_output else None,  # other nodes may also read a graph output
        reads=(value, before),
    )


cast_through_small_integer.examples = [
    Fixed(
        "wrapped around by Mod before the Cast",
        before="""g (int32[N] x) => (float[N] y) <int32 m = {256}> {
            r = Mod(x, m)  s = Cast<to = UINT8>(r)  y = Cast<to = FLOAT>(s) }""",
        after="g (int32[N] x) => (float[N] y) <int32 m = {256}> { r = Mod(x, m)  y = Cast<to = FLOAT>(r) }",
    ),
    Fixed(
        "a small sum; the uint8 is a graph output too",
        before="""g (bool[N] x, bool[N] z) => (float[N] y, uint8[N] s) {
            a = Cast<to = 6>(x)  b = Cast<to = 6>(z)  r = Add(a, b)  s = Cast<to = 2>(r)  y = Cast<to = 1>(s) }""",
        after="""g (bool[N] x, bool[N] z) => (float[N] y, uint8[N] s) {
            a = Cast<to = 6>(x)  b = Cast<to = 6>(z)  r = Add(a, b)  s = Cast<to = 2>(r)  y = Cast<to = 1>(r) }""",
    ),
    Silent(
        "values that may be too large",
        "g (int32[N] x) => (float[N] y) { s = Cast<to = UINT8>(x)  y = Cast<to = FLOAT>(s) }",
    ),
    Silent(
        "values that may be negative",
        """g (int32[N] x) => (float[N] y) <int32 m = {256}> {
            r = Mod<fmod = 1>(x, m)  s = Cast<to = UINT8>(r)  y = Cast<to = FLOAT>(s) }""",
    ),
]
