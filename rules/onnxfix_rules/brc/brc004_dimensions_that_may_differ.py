"""BRC004: broadcasts of dimensions with different symbols."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, rule, shared

from ._common import Form, label
from ._meet import Meeting, Symbols, broadcasts, meetings


@rule("BRC004", per="model", severity=Severity.WARNING, hazards=[51])
def dimensions_that_may_differ(model: Model) -> Iterator[Match]:
    """Dimensions with different symbols, a symbol and a static size, or different static sizes are broadcast.

    ## Why it matters
    `[N]` with `[M]` works if N and M are equal or if either is 1, with results of different shapes. Nothing in the
    model shows which is intended. TensorRT builds it, and the mismatch appears only when a profile or an input has
    incompatible sizes: `Broadcast has incompatible dimensions: 2 != 8` (measured with TensorRT-RTX 1.7.1). The builder
    also optimizes less than for one symbol, since it must support both cases. The usual cause is an export that gave
    the same size two names, or left the dimensions of several inputs unnamed.

    Two different static sizes, neither of them 1, never broadcast, and ONNX Runtime and TensorRT refuse the model:
    `broadcast dimensions must be conformable` (measured with TensorRT-RTX 1.7.1). That is an error. BRC007 reports the
    slopes of PRelu.

    Each pair of dimensions is reported once, at the first node that broadcasts it. Data-dependent sizes are not
    reported, nor dimensions that differ at some sizes only (a table sliced to `min(S, 512)`).

    ## Fix
    None: only the author knows which sizes are equal. Give equal dimensions one name in the exporter (`dynamic_axes`,
    `dynamic_shapes`), or export a static size as a symbol. BRC006, when selected, makes the repetition of both operands
    explicit; that changes neither the sizes that work nor the error for the others.

    ## References
    - ONNX, docs/Broadcasting.md
    - TensorRT documentation, "Working with Dynamic Shapes": dimensions of one name are equal at run time
    """
    symbols = shared(model, Symbols)
    first: dict[frozenset[str], Meeting] = {}
    nodes: dict[frozenset[str], set[Node]] = {}

    def is_open(node: Node, form: Form) -> bool:
        answers = symbols.answers(form)
        return answers.is_open and not answers.crosses  # BRC005 reports a batch at the wrong axis

    for broadcast in broadcasts(model, is_open):
        for meeting in meetings(broadcast):
            if broadcast.node.op_type != "PRelu" or not meeting.is_static:
                nodes.setdefault(meeting.key, set()).add(meeting.broadcast.node)
                first.setdefault(meeting.key, meeting)
    for key, meeting in first.items():
        if symbols.conflicts(meeting) and not symbols.is_trap(meeting):
            severity = Severity.ERROR if meeting.is_static else None
            yield Match(
                _message(meeting, len(nodes[key]) - 1), node=meeting.broadcast.node, severity=severity
            )


def _message(meeting: Meeting, more: int) -> str:
    names = [label(side).strip() or "the other side" for side in (meeting.first, meeting.second)]
    stretching = [
        dim for dim, side in ((meeting.a, meeting.first), (meeting.b, meeting.second)) if side.stretches
    ]
    ones = " or ".join(f"{dim} = 1" for dim in stretching if dim.value is None)
    only = f"broadcast only if they are equal{f' (or {ones}, which repeats that side)' if ones else ''}"
    text = (
        f"axis {meeting.axis}: {meeting.a} of {names[0]} and {meeting.b} of {names[1]} "
        f"{'do not broadcast' if meeting.is_static else only}"
    )
    return text + (
        f"; {more} more node{'s' * (more > 1)} broadcast{'s' * (more == 1)} the same pair" if more else ""
    )


dimensions_that_may_differ.examples = [
    Flagged("two symbols", "g (float[N,3] x, float[M,3] z) => (float[K,3] y) { y = Add(x, z) }"),
    Flagged(
        "unnamed dimensions, which are different symbols",
        "g (float[?,3] x, float[?,3] z) => (float[?,3] y) { y = Mul(x, z) }",
    ),
    Flagged(
        "a sequence and a constant of static length",
        "g (float[N,S] x) => (float[N,S] y) <float[1,4] b = {1,2,3,4}> { y = Add(x, b) }",
    ),
    Flagged(
        "S and 2 * S, which are equal only at 0",
        "g (float[N,S] x) => (float[N,K] y) { c = Concat<axis=1>(x, x)  y = Sub(c, x) }",
    ),
    Flagged(
        "batch dimensions of a MatMul",
        "g (float[N,H,2,3] x, float[N,G,3,2] z) => (float[N,K,2,2] y) { y = MatMul(x, z) }",
    ),
    Flagged(
        "Expand to another input's size",
        "g (float[N,S] x, float[N,T] z) => (float[N,K] y) { s = Shape(z)  y = Expand(x, s) }",
    ),
    Flagged(
        "PRelu's slope and Gemm's C",
        "g (float[N,S] x, float[1,T] s, float[T,U] w) => (float[N,S] y, float[N,U] z)"
        " { y = PRelu(x, s)  z = Gemm(x, w, s) }",
    ),
    Flagged(
        "PRelu's slope, which must not be the larger side: batch 1 fails too",
        "g (float[N,3] x) => (float[N,3] y) <float[2,3] s = {1,2,3,4,5,6}> { y = PRelu(x, s) }",
        runs=False,
    ),
    Flagged(
        "C of a Gemm with transA and transB",
        "g (float[2,N] x, float[S,2] w, float[1,T] c) => (float[N,S] y)"
        " { y = Gemm<transA=1, transB=1>(x, w, c) }",
    ),
    Silent(
        "a correct C of the same Gemm",
        "g (float[2,N] x, float[S,2] w, float[N,S] c) => (float[N,S] y)"
        " { y = Gemm<transA=1, transB=1>(x, w, c) }",
    ),
    Flagged(
        "2 * N and 3 * N, which fail at batch 1 too",
        "g (float[N,3] x) => (float[K,3] y) { c = Concat<axis=0>(x, x)  d = Concat<axis=0>(x, x, x)"
        "  y = Add(c, d) }",
        runs=False,
    ),
    Flagged(
        "a sequence and a constant of length 2",
        "g (float[N,S] x) => (float[N,S] y) <float[1,2] b = {1,2}> { y = Add(x, b) }",
    ),
    Flagged(
        "two static sizes",
        "g (float[2,2] x, float[2,3] z) => (float[2,3] y) { y = Add(x, z) }",
        runs=False,
    ),
    Silent(
        "a PRelu of static sizes, which BRC007 reports",
        "g (float[2,2] x) => (float[2,2] y) <float[3] s = {1, 2, 3}> { y = PRelu(x, s) }",
        runs=False,
    ),
    Silent(
        "the same symbol on both sides", "g (float[N,3] x, float[N,3] z) => (float[N,3] y) { y = Add(x, z) }"
    ),
    Silent(
        "dimensions of 1: mask and position embedding",
        "g (float[N,4,S,S] x, float[N,1,1,S] m, float[N,S,2] e) => (float[N,4,S,S] y, float[N,S,2] w)"
        " <float[1,1,2] p = {1,2}> { y = Add(x, m)  w = Add(e, p) }",
    ),
    Silent(
        "different expressions of equal size",
        "g (float[N,S] x) => (float[N,K] y) { c = Concat<axis=1>(x, x)  d = Concat<axis=1>(x, x)"
        "  y = Add(c, d) }",
    ),
    Silent(
        "a table sliced to the sequence length, shorter only beyond the table's end",
        "g (float[N,S] x) => (float[N,S] y) <float[1,6] t = {1,2,3,4,5,6}, int64[1] z = {0}, int64[1] a = {1}> {"
        " s = Shape<start=1>(x)  p = Slice(t, z, s, a)  y = Add(x, p) }",
    ),
    Silent(
        "a data-dependent size",
        "g (float[N] x, float[M] z) => (float[K] y) <int64[1] a = {0}> { i = NonZero(x)"
        "  j = Squeeze(i, a)  v = Gather(x, j)  y = Add(z, v) }",
    ),
    Silent(
        "a batch and a static size, which BRC005 reports",
        "g (float[N,3] x) => (float[N,3] y) <float[2,3] b = {1,2,3,4,5,6}> { y = Add(x, b) }",
    ),
]
