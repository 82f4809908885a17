"""Dimensions that meet in a broadcast and may differ."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, Value, rule, shared

from ._baked import BakedSizes
from ._common import Broadcast, Form, Operand, is_static_one, label, text
from ._meet import Meeting, Symbols, at_batch, broadcasts, collapsed, crossings, is_plain, meetings


@rule("BRC004", per="model", hazards=[51])
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


_flagged = partial(Flagged, runs=False)


def _add(b: str, b_values: str, x: str = "N,3") -> str:
    return f"g (float[{x}] x) => (float[{x}] y) <float[{b}] b = {{{b_values}}}> {{ y = Add(x, b) }}"


def _binary(x: str, z: str, y: str, call: str) -> str:
    return f"g (float[{x}] x, float[{z}] z) => (float[{y}] y) {{ y = {call}(x, z) }}"


dimensions_that_may_differ.examples = [
    Flagged("two symbols", _binary("N,3", "M,3", "K,3", "Add")),
    Flagged("unnamed dimensions, which are different symbols", _binary("?,3", "?,3", "?,3", "Mul")),
    Flagged("a sequence and a constant of static length", _add("1,4", "1,2,3,4", x="N,S")),
    Flagged(
        "S and 2 * S, which are equal only at 0",
        "g (float[N,S] x) => (float[N,K] y) { c = Concat<axis=1>(x, x)  y = Sub(c, x) }",
    ),
    Flagged("batch dimensions of a MatMul", _binary("N,H,2,3", "N,G,3,2", "N,K,2,2", "MatMul")),
    Flagged(
        "Expand to another input's size",
        "g (float[N,S] x, float[N,T] z) => (float[N,K] y) { s = Shape(z)  y = Expand(x, s) }",
    ),
    Flagged(
        "PRelu's slope and Gemm's C",
        "g (float[N,S] x, float[1,T] s, float[T,U] w) => (float[N,S] y, float[N,U] z)"
        " { y = PRelu(x, s)  z = Gemm(x, w, s) }",
    ),
    _flagged(
        "PRelu's slope, which must not be the larger side: batch 1 fails too",
        "g (float[N,3] x) => (float[N,3] y) <float[2,3] s = {1,2,3,4,5,6}> { y = PRelu(x, s) }",
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
    _flagged(
        "2 * N and 3 * N, which fail at batch 1 too",
        "g (float[N,3] x) => (float[K,3] y) { c = Concat<axis=0>(x, x)  d = Concat<axis=0>(x, x, x)"
        "  y = Add(c, d) }",
    ),
    Flagged("a sequence and a constant of length 2", _add("1,2", "1,2", x="N,S")),
    _flagged("two static sizes", _binary("2,2", "2,3", "2,3", "Add")),
    Silent(
        "a PRelu of static sizes, which BRC007 reports",
        "g (float[2,2] x) => (float[2,2] y) <float[3] s = {1, 2, 3}> { y = PRelu(x, s) }",
        runs=False,
    ),
    Silent("the same symbol on both sides", _binary("N,3", "N,3", "N,3", "Add")),
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
    Silent("a batch and a static size, which BRC005 reports", _add("2,3", "1,2,3,4,5,6")),
]


@rule("BRC005", per="model", hazards=[51])
def broadcast_at_batch_one_only(model: Model) -> Iterator[Match]:
    """Shapes that broadcast at batch 1 broadcast differently, or not at all, at other batch sizes.

    ## Why it matters
    Models are exported and tested at batch 1, where a dimension of N and one of 1 are the same. `(N, 1)` with `(N,)`
    gives one element at N = 1 and an N × N matrix at N = 2; `[N]` with `[N, 4]` scales the sample at N = 1, scales
    channels at N = 4, and fails otherwise; a constant traced at batch 4 enlarges the output at batch 1. No error is
    raised as long as the sizes broadcast. TensorRT imports the broadcast unchanged, so the engine is wrong in the same
    way; if the sizes are incompatible, the profile fails with `Broadcast has incompatible dimensions: 2 != 8` (measured
    with TensorRT-RTX 1.7.1). The message names the axis and the results at batch 1 and batch 2.

    Reported as warnings:

    - a batch dimension that is aligned, from the right, with another axis than the other operand's batch;
    - sizes that broadcast at batch 1 but not at most others: N * S with S, 2 with N (RSH010 names the node that makes
      the 2, if it is one of Tile, Expand and the like);
    - batched data that a `Reshape` turned into a single sample.

    A graph input of batch 1 that is repeated for a batch of N is reported as info. A batch is a symbol of axis 0 of
    graph inputs that occurs at no other axis. Biases, masks `[N,1,1,S]`, position embeddings `[1,S,D]` and pairs
    `[N,1]` with `[1,N]` are not reported: their dimensions are unambiguous.

    ## Fix
    None, since the intention is unknown: insert the missing dimension (`Unsqueeze`, `keepdims=1`) or the symbol in the
    source. BRC006, when selected, makes the actual repetition explicit as `Expand`: exact, but not a remedy.

    ## References
    - ONNX, docs/Broadcasting.md
    - Hard-coded sizes in Reshape itself are in the RSH family
    """
    symbols = shared(model, Symbols)
    if not symbols.batch:
        return
    seen: set[frozenset[str]] = set()
    baked = shared(model, BakedSizes).readers
    for broadcast in broadcasts(model, lambda node, form: not is_plain(node, form, symbols)):
        message = _crossing(broadcast, symbols) or _collapse(broadcast, symbols)
        if message:
            yield Match(message, node=broadcast.node)
            continue
        for meeting in meetings(broadcast):
            if meeting.key not in seen and broadcast.node not in baked and symbols.is_trap(meeting):
                seen.add(meeting.key)
                yield Match(_coincidence(meeting, symbols), node=broadcast.node)
        for value, name in _single_inputs(broadcast, symbols):
            if frozenset((value.name,)) not in seen:
                seen.add(frozenset((value.name,)))
                message = f"input {value.name!r} is declared with batch 1 and repeated for all {name} samples"
                yield Match(message, node=broadcast.node, severity=Severity.INFO)


def _crossing(broadcast: Broadcast, symbols: Symbols) -> str:
    for straight, shifted, axis, name in crossings(broadcast, symbols):
        return (
            f"axis {axis}: the batch {name} of {label(shifted)}{text(shifted.shape)} is aligned with another axis than "
            f"the batch of {label(straight)}{text(straight.shape)}; {_outcomes(broadcast, frozenset((name,)))}"
        )
    return ""


def _collapse(broadcast: Broadcast, symbols: Symbols) -> str:
    for straight, flat, name in collapsed(broadcast, symbols):
        return (
            f"axis 0: a Reshape turned {name} samples into {label(flat)}{text(flat.shape)}, which is broadcast "
            f"against {label(straight)}{text(straight.shape)}; {_outcomes(broadcast, frozenset((name,)))}"
        )
    return ""


def _coincidence(meeting: Meeting, symbols: Symbols) -> str:
    batch = (meeting.a.symbols | meeting.b.symbols) & symbols.batch
    how = "are equal" if symbols.only_at_one(meeting) else "broadcast"
    return (
        f"axis {meeting.axis}: {meeting.a} of {_name(meeting.first)} and {meeting.b} of {_name(meeting.second)} {how} "
        f"at {' = '.join(sorted(batch))} = 1; {_outcomes(meeting.broadcast, batch)}"
    )


def _name(side: Operand) -> str:
    return label(side).strip() or "the other side"


def _single_inputs(broadcast: Broadcast, symbols: Symbols) -> Iterator[tuple[Value, str]]:
    """Graph inputs with a static leading 1 where another operand has the batch, with the batch's symbol."""
    leading = [broadcast.dim(operand, 0) for operand in broadcast.operands]
    name = next((found for dim in leading if (found := symbols.batch_symbol(dim))), None)
    for operand, dim in zip(broadcast.operands, leading, strict=True):
        value = operand.value
        if name is None or dim is None or not is_static_one(dim) or value is None:
            continue
        if value.is_input and value.initializer is None and value.scope.kind == "graph":
            yield value, name


def _outcomes(broadcast: Broadcast, names: frozenset[str]) -> str:
    return f"batch 1: {at_batch(broadcast, names, 1)}; batch 2: {at_batch(broadcast, names, 2)}"


def _mul(y: str, x: str = "N,4", w: str = "N") -> str:
    return f"g (float[{x}] x, float[{w}] w) => (float[{y}] y) {{ y = Mul(x, w) }}"


broadcast_at_batch_one_only.examples = [
    Flagged("(N, 1) with (N,) gives (N, N), correct only at N = 1", _mul("N,K", x="N,1")),
    Flagged("(N,) with (N, 1)", "g (float[N] w, float[N,1] x) => (float[N,K] y) { y = Sub(w, x) }"),
    Flagged(
        "a reduction without keepdims",
        "g (float[N,3] x) => (float[N,K] y) <int64[1] a = {1}> { m = ReduceMax<keepdims=0>(x, a)"
        " n = ReduceMax(x, a)  y = Sub(n, m) }",
    ),
    _flagged("[N, C] with [N], which scales a sample at N = 1 and a channel at N = C", _mul("N,4")),
    Flagged(
        "[N, H, S] with a mask [N, S], which lacks a dimension",
        "g (float[N,4,S] x, bool[N,S] m) => (float[N,4,S] y) <float z = {0}> { y = Where(m, x, z) }",
    ),
    Flagged("a constant traced at batch 2", _add("2,3", "1,2,3,4,5,6")),
    _flagged(
        "a batch of 1 traced into a Reshape: S with N * S",
        "g (float[N,S,2] x) => (float[N,S,2] y) <int64[3] s = {1,-1,2}> { r = Reshape(x, s)  y = Add(x, r) }",
    ),
    Flagged(
        "a batch of 1 traced into a Reshape: a column with a row",
        "g (float[N,1] x) => (float[N,K] y) <int64[2] s = {1,-1}> { r = Reshape(x, s)  y = Add(x, r) }",
    ),
    _flagged(
        "sizes that are equal at batch 1 only: Concat along the batch",
        "g (float[N,3] x) => (float[K,3] y) <float[3,3] b = {1,2,3,4,5,6,7,8,9}>"
        " { c = Concat<axis=0>(x, x, x)  y = Add(c, b) }",
    ),
    _flagged(
        "batch dimensions of a MatMul: w lacks the heads",
        "g (float[N,4,2,3] x, float[N,3,2] w) => (float[N,4,2,2] y) { y = MatMul(x, w) }",
    ),
    _flagged(
        "Expand of a vector of samples to [N, 4]",
        "g (float[N] x, float[N,4] z) => (float[N,4] y) { s = Shape(z)  y = Expand(x, s) }",
    ),
    _flagged(
        "Gemm's C with one element per sample, added along the columns",
        "g (float[N,2] x, float[N] c) => (float[N,3] y) <float[2,3] w = {1,2,3,4,5,6}> { y = Gemm(x, w, c) }",
    ),
    Flagged(
        "an input of batch 1 with one of batch N",
        "g (float[N,3] x, float[1,3] m) => (float[N,3] y) { y = Add(x, m) }",
    ),
    Silent("a bias", _add("3", "1,2,3")),
    Silent(
        "an attention mask", "g (float[N,4,S,S] x, float[N,1,1,S] m) => (float[N,4,S,S] y) { y = Add(x, m) }"
    ),
    Silent(
        "a table that a Reshape turns into a single sample",
        "g (float[N,6] x) => (float[N,6] y) <float[6] t = {1,2,3,4,5,6}, int64[2] s = {1,6}>"
        " { p = Reshape(t, s)  y = Add(x, p) }",
    ),
    Silent(
        "an input with an initializer: a weight, not a sample",
        "g (float[N,3] x, float[1,3] b) => (float[N,3] y) <float[1,3] b = {1,2,3}> { y = Add(x, b) }",
    ),
    Silent(
        "sizes that fail at batch 1 too, which BRC004 reports",
        "g (float[N,3] x) => (float[K,3] y) { c = Concat<axis=0>(x, x)  d = Concat<axis=0>(x, x, x)"
        "  y = Add(c, d) }",
        runs=False,
    ),
    Silent(
        "a position embedding",
        "g (float[N,2,3] x) => (float[N,2,3] y) <float[1,2,3] p = {1,2,3,4,5,6}> { y = Add(x, p) }",
    ),
    Silent("one element per sample, of shape [N, 1]", _mul("N,4", w="N,1")),
    Silent(
        "a causal mask: positions, not samples",
        "g (int64[N,S] i) => (bool[S,S] y) <int64[1] a = {1}, int64[1] b = {0}, int64 z = {0}, int64 o = {1}> {"
        " t = Shape<start=1,end=2>(i)  n = Squeeze(t, b)  r = Range(z, n, o)  c = Unsqueeze(r, a)  y = Less(c, r) }",
    ),
    Silent("pairs of samples: [N, 1] with [1, N]", _binary("N,1", "1,N", "N,N", "Sub")),
    Silent(
        "batch at axis 1 on both sides",
        "g (float[N,3] x) => (float[5,N,3] y) <float[5,1,1] p = {1,2,3,4,5}> { e = Add(p, x)  y = Mul(e, x) }",
    ),
    Silent("two symbols, which BRC004 reports", _binary("N,3", "M,3", "K,3", "Add")),
    Silent(
        "unknown rank",
        "g (float[N,1] x, float[N] w, int64[K] s) => (float[] y) { r = Reshape(x, s)  y = Add(r, w) }",
        runs=False,
    ),
]
