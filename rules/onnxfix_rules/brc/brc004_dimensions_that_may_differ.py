"""BRC004: dimensions with different symbols meet in a broadcast."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.graph.overlay import Node
from onnxfix.graph.shared import shared
from onnxfix.model import Model
from onnxfix.rule import Example, Match, Severity, rule

from ._common import Form, label
from ._meet import Meeting, Symbols, broadcasts, meetings

EXAMPLES = [
    Example(
        why="two symbols",
        before="g (float[N,3] x, float[M,3] z) => (float[K,3] y) { y = Add(x, z) }",
        detect=True,
    ),
    Example(
        why="unnamed dimensions are symbols of their own",
        before="g (float[?,3] x, float[?,3] z) => (float[?,3] y) { y = Mul(x, z) }",
        detect=True,
    ),
    Example(
        why="a sequence against a constant of one length",
        before="g (float[N,S] x) => (float[N,S] y) <float[1,4] b = {1,2,3,4}> { y = Add(x, b) }",
        detect=True,
    ),
    Example(
        why="one symbol and its double, which are equal at no size but 0",
        before="g (float[N,S] x) => (float[N,K] y) { c = Concat<axis=1>(x, x)  y = Sub(c, x) }",
        detect=True,
    ),
    Example(
        why="batch dimensions of a MatMul",
        before="g (float[N,H,2,3] x, float[N,G,3,2] z) => (float[N,K,2,2] y) { y = MatMul(x, z) }",
        detect=True,
    ),
    Example(
        why="Expand to another input's size",
        before="g (float[N,S] x, float[N,T] z) => (float[N,K] y) { s = Shape(z)  y = Expand(x, s) }",
        detect=True,
    ),
    Example(
        why="PRelu's slope and Gemm's C",
        before="g (float[N,S] x, float[1,T] s, float[T,U] w) => (float[N,S] y, float[N,U] z)"
        " { y = PRelu(x, s)  z = Gemm(x, w, s) }",
        detect=True,
    ),
    Example(
        why="PRelu's slope may not be the larger side, so batch 1 fails, too",
        before="g (float[N,3] x) => (float[N,3] y) <float[2,3] s = {1,2,3,4,5,6}> { y = PRelu(x, s) }",
        detect=True,
        runs=False,
    ),
    Example(
        why="Gemm's columns by transB, and rows by transA",
        before="g (float[2,N] x, float[S,2] w, float[1,T] c) => (float[N,S] y)"
        " { y = Gemm<transA=1, transB=1>(x, w, c) }",
        detect=True,
    ),
    Example(
        why="the same Gemm with what fits",
        before="g (float[2,N] x, float[S,2] w, float[N,S] c) => (float[N,S] y)"
        " { y = Gemm<transA=1, transB=1>(x, w, c) }",
    ),
    Example(
        why="sizes that fail at batch 1 as well: 2 * N against 3 * N",
        before="g (float[N,3] x) => (float[K,3] y) { c = Concat<axis=0>(x, x)  d = Concat<axis=0>(x, x, x)"
        "  y = Add(c, d) }",
        detect=True,
        runs=False,
    ),
    Example(
        why="a sequence against a constant of length 2, the smallest that is not 1",
        before="g (float[N,S] x) => (float[N,S] y) <float[1,2] b = {1,2}> { y = Add(x, b) }",
        detect=True,
    ),
    Example(
        why="two static sizes: no question of symbols",
        before="g (float[2,2] x, float[2,3] z) => (float[2,3] y) { y = Add(x, z) }",
        runs=False,
    ),
    Example(
        why="another domain's Add",
        before='<ir_version: 9, opset_import: ["" : 18, "other" : 18]>'
        " g (float[N,3] x, float[M,3] z) => (float[K,3] y) { y = other.Add(x, z) }",
        runs=False,
    ),
    Example(
        why="one symbol on both sides",
        before="g (float[N,3] x, float[N,3] z) => (float[N,3] y) { y = Add(x, z) }",
    ),
    Example(
        why="a dimension of 1 fits everything: mask and position embedding",
        before="g (float[N,4,S,S] x, float[N,1,1,S] m, float[N,S,2] e) => (float[N,4,S,S] y, float[N,S,2] w)"
        " <float[1,1,2] p = {1,2}> { y = Add(x, m)  w = Add(e, p) }",
    ),
    Example(
        why="differently written, but the same",
        before="g (float[N,S] x) => (float[N,K] y) { c = Concat<axis=1>(x, x)  d = Concat<axis=1>(x, x)"
        "  y = Add(c, d) }",
    ),
    Example(
        why="a table cut to the sequence's length differs from it only beyond the table's end",
        before="g (float[N,S] x) => (float[N,S] y) <float[1,6] t = {1,2,3,4,5,6}, int64[1] z = {0}, int64[1] a = {1}> {"
        " s = Shape<start=1>(x)  p = Slice(t, z, s, a)  y = Add(x, p) }",
    ),
    Example(
        why="a size that data decide: nothing is known",
        before="g (float[N] x, float[M] z) => (float[K] y) <int64[1] a = {0}> { i = NonZero(x)"
        "  j = Squeeze(i, a)  v = Gather(x, j)  y = Add(z, v) }",
    ),
    Example(
        why="a batch against a fixed size is BRC005's",
        before="g (float[N,3] x) => (float[N,3] y) <float[2,3] b = {1,2,3,4,5,6}> { y = Add(x, b) }",
    ),
]


@rule("BRC004", per="model", severity=Severity.WARNING, hazards=[21], examples=EXAMPLES)
def dimensions_that_may_differ(model: Model) -> Iterator[Match]:
    """Dimensions with different symbols, or a symbol and a fixed size, meet in a broadcast.

    ## Why it matters
    `[N]` with `[M]` works where N and M are equal, and where either is 1, with results of different shapes. Nothing
    in the model says which is meant. TensorRT builds it, and the disagreement shows up only when a profile or an
    input has sizes that do not fit: `Broadcast has incompatible dimensions: 2 != 8` (measured with TensorRT-RTX
    1.7.1). The builder also optimizes less than for one symbol, since it must keep both outcomes. The usual cause is
    an export that gave the same size two names, or left the dimensions of several inputs unnamed.

    Each pair of dimensions is reported once, at the first node where it meets. Sizes that only data decide are not
    reported, nor dimensions that differ at some sizes only (a table cut to `min(S, 512)`).

    ## Fix
    None: which sizes belong together is known to the author alone. Give equal dimensions one name in the exporter
    (`dynamic_axes`, `dynamic_shapes`), or export a fixed size as a symbol. BRC006 makes both operands' repetition
    explicit when it is selected; that changes neither the sizes that work nor the error for the others.

    ## References
    - ONNX, docs/Broadcasting.md
    - TensorRT documentation, "Working with Dynamic Shapes": dimensions of one name are equal at run time
    """
    symbols = shared(model, Symbols)
    first: dict[frozenset[str], Meeting] = {}
    count: dict[frozenset[str], int] = {}

    def is_open(node: Node, form: Form) -> bool:
        answers = symbols.answers(form)
        return answers.is_open and not answers.crosses  # a batch at the wrong axis: BRC005 says more

    for broadcast in broadcasts(model, is_open):
        for meeting in meetings(broadcast):
            count[meeting.key] = count.get(meeting.key, 0) + 1
            first.setdefault(meeting.key, meeting)
    for key, meeting in first.items():
        if symbols.conflicts(meeting) and not symbols.is_trap(meeting):
            yield Match(_message(meeting, count[key] - 1), node=meeting.broadcast.node)


def _message(meeting: Meeting, more: int) -> str:
    names = [label(side).strip() or "the other side" for side in (meeting.first, meeting.second)]
    stretching = [
        dim for dim, side in ((meeting.a, meeting.first), (meeting.b, meeting.second)) if side.stretches
    ]
    ones = " or ".join(f"{dim} = 1" for dim in stretching if dim.value is None)
    text = (
        f"axis {meeting.axis}: {meeting.a} of {names[0]} meets {meeting.b} of {names[1]}, which works only where they "
        f"are equal" + (f" (or {ones}, which repeats that side)" if ones else "")
    )
    return text + (f"; the same pair meets in {more} more place{'s' * (more > 1)}" if more else "")
