"""BRC005: broadcasts that work differently, or not at all, at batch sizes other than 1."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Severity, Silent, Value, rule, shared

from ._common import Broadcast, Operand, is_static_one, label, text
from ._meet import Meeting, Symbols, at_batch, broadcasts, collapsed, crossings, is_plain, meetings


@rule("BRC005", per="model", severity=Severity.WARNING, hazards=[51])
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
    - sizes that broadcast at batch 1 but not at most others: N * S with S, 2 with N;
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
    for broadcast in broadcasts(model, lambda node, form: not is_plain(node, form, symbols)):
        message = _crossing(broadcast, symbols) or _collapse(broadcast, symbols)
        if message:
            yield Match(message, node=broadcast.node)
            continue
        for meeting in meetings(broadcast):
            if meeting.key not in seen and symbols.is_trap(meeting):
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


broadcast_at_batch_one_only.examples = [
    Flagged(
        "(N, 1) with (N,) gives (N, N), correct only at N = 1",
        "g (float[N,1] x, float[N] w) => (float[N,K] y) { y = Mul(x, w) }",
    ),
    Flagged("(N,) with (N, 1)", "g (float[N] w, float[N,1] x) => (float[N,K] y) { y = Sub(w, x) }"),
    Flagged(
        "a reduction without keepdims",
        "g (float[N,3] x) => (float[N,K] y) <int64[1] a = {1}> { m = ReduceMax<keepdims=0>(x, a)"
        " n = ReduceMax(x, a)  y = Sub(n, m) }",
    ),
    Flagged(
        "[N, C] with [N], which scales a sample at N = 1 and a channel at N = C",
        "g (float[N,4] x, float[N] w) => (float[N,4] y) { y = Mul(x, w) }",
        runs=False,
    ),
    Flagged(
        "[N, H, S] with a mask [N, S], which lacks a dimension",
        "g (float[N,4,S] x, bool[N,S] m) => (float[N,4,S] y) <float z = {0}> { y = Where(m, x, z) }",
    ),
    Flagged(
        "a constant traced at batch 2",
        "g (float[N,3] x) => (float[N,3] y) <float[2,3] b = {1,2,3,4,5,6}> { y = Add(x, b) }",
    ),
    Flagged(
        "a batch of 1 traced into a Reshape: S with N * S",
        "g (float[N,S,2] x) => (float[N,S,2] y) <int64[3] s = {1,-1,2}> { r = Reshape(x, s)  y = Add(x, r) }",
        runs=False,
    ),
    Flagged(
        "a batch of 1 traced into a Reshape: a column with a row",
        "g (float[N,1] x) => (float[N,K] y) <int64[2] s = {1,-1}> { r = Reshape(x, s)  y = Add(x, r) }",
    ),
    Flagged(
        "sizes that are equal at batch 1 only: Concat along the batch",
        "g (float[N,3] x) => (float[K,3] y) <float[3,3] b = {1,2,3,4,5,6,7,8,9}>"
        " { c = Concat<axis=0>(x, x, x)  y = Add(c, b) }",
        runs=False,
    ),
    Flagged(
        "batch dimensions of a MatMul: w lacks the heads",
        "g (float[N,4,2,3] x, float[N,3,2] w) => (float[N,4,2,2] y) { y = MatMul(x, w) }",
        runs=False,
    ),
    Flagged(
        "Expand of a vector of samples to [N, 4]",
        "g (float[N] x, float[N,4] z) => (float[N,4] y) { s = Shape(z)  y = Expand(x, s) }",
        runs=False,
    ),
    Flagged(
        "Gemm's C with one element per sample, added along the columns",
        "g (float[N,2] x, float[N] c) => (float[N,3] y) <float[2,3] w = {1,2,3,4,5,6}> { y = Gemm(x, w, c) }",
        runs=False,
    ),
    Flagged(
        "an input of batch 1 with one of batch N",
        "g (float[N,3] x, float[1,3] m) => (float[N,3] y) { y = Add(x, m) }",
    ),
    Silent("a bias", "g (float[N,3] x) => (float[N,3] y) <float[3] b = {1,2,3}> { y = Add(x, b) }"),
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
    Silent(
        "one element per sample, of shape [N, 1]",
        "g (float[N,4] x, float[N,1] w) => (float[N,4] y) { y = Mul(x, w) }",
    ),
    Silent(
        "a causal mask: positions, not samples",
        "g (int64[N,S] i) => (bool[S,S] y) <int64[1] a = {1}, int64[1] b = {0}, int64 z = {0}, int64 o = {1}> {"
        " t = Shape<start=1,end=2>(i)  n = Squeeze(t, b)  r = Range(z, n, o)  c = Unsqueeze(r, a)  y = Less(c, r) }",
    ),
    Silent(
        "pairs of samples: [N, 1] with [1, N]",
        "g (float[N,1] x, float[1,N] z) => (float[N,N] y) { y = Sub(x, z) }",
    ),
    Silent(
        "batch at axis 1 on both sides",
        "g (float[N,3] x) => (float[5,N,3] y) <float[5,1,1] p = {1,2,3,4,5}> { e = Add(p, x)  y = Mul(e, x) }",
    ),
    Silent(
        "two symbols, which BRC004 reports",
        "g (float[N,3] x, float[M,3] z) => (float[K,3] y) { y = Add(x, z) }",
    ),
    Silent(
        "unknown rank",
        "g (float[N,1] x, float[N] w, int64[K] s) => (float[] y) { r = Reshape(x, s)  y = Add(r, w) }",
        runs=False,
    ),
]
