"""BRC008: Expand to a negative size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule


@rule("BRC008", ops=["Expand"], safety=Safety.UNSAFE, severity=Severity.ERROR, hazards=[51])
def expand_to_minus_one(node: Node, model: Model) -> Iterator[Match]:
    """An Expand to a shape with a negative size.

    ## Why it matters
    In torch's `expand`, -1 keeps a size; in ONNX that is 1, and -1 is invalid. ONNX Runtime refuses it, and so does
    TensorRT: the parser with `Invalid Node`, or, if the data's size is dynamic, the builder with `ISliceLayer size
    elements must be non-negative`, measured with TensorRT-RTX 1.7.1.

    ## Fix
    1 instead of -1 if the whole shape is known. UNSAFE: it is most likely the intention, but the original model is
    invalid. None for other negative sizes.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Expand.html
    """
    wanted = node.input(1)
    found = None if wanted is None else model.shapes.value(wanted)
    if wanted is None or found is None or len(found.shape) != 1:
        return
    negative = [size.value for size in found.data if size.value is not None and size.value < 0]
    if not negative:
        return
    fix = None
    if found.static is not None and set(negative) == {-1}:
        draft = Draft(node)
        sizes = np.array([1 if size == -1 else size for size in found.static], np.int64)
        draft.set_input(node, 1, draft.constant(sizes, "shape"))
        fix = Fix("replace -1 by 1", draft.edits, Safety.UNSAFE)
    yield Match(f"Expand to a size of {negative[0]}", node=node, fix=fix, reads=(wanted,))


expand_to_minus_one.examples = [
    Fixed(
        "-1 for an unchanged size, as in torch",
        before="g (float[2,1] x) => (float[2,3] y) <int64[2] s = {-1, 3}> { y = Expand(x, s) }",
        after="g (float[2,1] x) => (float[2,3] y) <int64[2] s = {1, 3}> { y = Expand(x, s) }",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged(
        "the fix requires --unsafe-fixes",
        "g (float[2,1] x) => (float[2,3] y) <int64[2] s = {-1, 3}> { y = Expand(x, s) }",
        runs=False,
    ),
    Fixed(
        "a computed shape",
        before="""g (float[N,1] x) => (float[N,3] y) <int64[1] m = {-1}, int64[1] c = {3}> {
            s = Concat<axis = 0>(m, c)  y = Expand(x, s) }""",
        after="g (float[N,1] x) => (float[N,3] y) <int64[2] s = {1, 3}> { y = Expand(x, s) }",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged(
        "another negative size",
        "g (float[N,1] x) => (float[N,3] y) <int64[2] s = {-2, 3}> { y = Expand(x, s) }",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged(
        "a shape with a dynamic size",
        """g (float[N,1] x, int64[1] k) => (float[N,K] y) <int64[1] m = {-1}> {
            s = Concat<axis = 0>(m, k)  y = Expand(x, s) }""",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Silent(
        "1 for an unchanged size",
        "g (float[N,1] x) => (float[N,3] y) <int64[2] s = {1, 3}> { y = Expand(x, s) }",
    ),
    Silent("a size of 0", "g (float[1,1] x) => (float[0,3] y) <int64[2] s = {0, 3}> { y = Expand(x, s) }"),
    Silent("the shape is an input", "g (float[N,1] x, int64[2] s) => (float[A,B] y) { y = Expand(x, s) }"),
    Silent(
        "a Reshape, where -1 is valid",
        "g (float[N,3] x) => (float[A,3] y) <int64[2] s = {-1, 3}> { y = Reshape(x, s) }",
    ),
]
