"""RSH002."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule
from onnxfix_rules.rsh import _common as c


@rule("RSH002", ops=["Reshape"], safety=Safety.UNSAFE, severity=Severity.ERROR, hazards=[35])
def zero_and_minus_one_with_allowzero(node: Node, model: Model) -> Iterator[Match]:
    """A Reshape with ``allowzero=1`` whose shape contains both 0 and -1.

    ## Why it matters
    With ``allowzero=1`` a 0 is a dimension of size 0, so the -1 cannot be determined: ONNX forbids it. TensorRT-RTX
    1.7.1 fails (measured): ``reshape wildcard -1 has infinite number of solutions or no solution. Reshaping [2,3,4]
    to [0,-1]``. ONNX's checker with full inference and ONNX Runtime reject it as well.

    ## Fix
    Let the 0 copy the data's dimension (``allowzero=0``), which the exporter almost certainly intended. This is a
    guess: the original model is invalid, so there is no reference. No fix if the data has no dimension at the
    position of the 0.

    ## References
    ONNX, Reshape-14: "if allowzero is set … the shape cannot contain both 0 and -1".
    """
    if not c.keeps_zero(node):
        return
    dims = c.requested(node, model)
    if dims is None or not c.zeros(dims) or c.inferred(dims) is None:
        return
    remedy = None
    if c.copy_fits(dims, c.shape_of(node.input(0), model)):
        draft = Draft(node)
        c.let_zero_copy(draft, node, model)
        remedy = Fix("copy the data's dimension for the 0 (allowzero=0)", draft.edits, Safety.UNSAFE)
    yield Match(
        f"allowzero=1 with both 0 and -1 in the shape {c.text(dims)} is invalid: TensorRT and ONNX Runtime reject it",
        node=node,
        fix=remedy,
    )


_BEFORE = "g (float[2,3,4] x) => (float[2,12] y) <int64[2] s = {0, -1}> { y = Reshape<allowzero=1>(x, s) }"


zero_and_minus_one_with_allowzero.examples = [
    Fixed(
        "0 and -1 in one shape, which all backends refuse",
        before=_BEFORE,
        after="g (float[2,3,4] x) => (float[2,12] y) <int64[2] s = {0, -1}> { y = Reshape(x, s) }",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged("reported only, by default", _BEFORE, runs=False),
    Fixed(
        "a concatenated shape that contains both for every N",
        before="""g (float[3,N,4] x) => (float[3,N,4] y) <int64[1] z = {0}, int64[1] m = {-1}, int64[1] i = {1}> {
            d = Shape(x) n = Gather(d, i) s = Concat<axis=0>(z, n, m) y = Reshape<allowzero=1>(x, s) }""",
        after="""g (float[3,N,4] x) => (float[3,N,4] y) <int64[1] z = {0}, int64[1] m = {-1}, int64[1] i = {1}> {
            d = Shape(x) n = Gather(d, i) s = Concat<axis=0>(z, n, m) y = Reshape(x, s) }""",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged(
        "the 0 is beyond the data's last axis: nothing to copy",
        "g (float[6] x) => (float[A,B] y) <int64[2] s = {-1, 0}> { y = Reshape<allowzero=1>(x, s) }",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Fixed(
        "for TensorRT 8.4 the attribute is required",
        before=_BEFORE,
        after="g (float[2,3,4] x) => (float[2,12] y) <int64[2] s = {0, -1}> { y = Reshape<allowzero=0>(x, s) }",
        safety=Safety.UNSAFE,
        target="trt8.4",
        runs=False,
    ),
    Silent(
        "without allowzero the 0 copies",
        "g (float[2,3,4] x) => (float[2,12] y) <int64[2] s = {0, -1}> { y = Reshape(x, s) }",
    ),
    Silent(
        "no -1", "g (float[0,4] x) => (float[4,0] y) <int64[2] s = {4, 0}> { y = Reshape<allowzero=1>(x, s) }"
    ),
    Silent(
        "no literal 0: N may be 0, but then only that call fails",
        """g (float[N,4] x) => (float[N,4] y) <int64[1] m = {-1}, int64[1] i = {0}> {
            d = Shape(x) n = Gather(d, i) s = Concat<axis=0>(n, m) y = Reshape<allowzero=1>(x, s) }""",
    ),
    Silent(
        "a default that may be overridden is not a constant",
        "g (float[2,6] x, int64[2] s = {0, -1}) => (float[A,B] y) { y = Reshape<allowzero=1>(x, s) }",
    ),
]
