"""CTL015: loop states that change their shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxfix.rule import Dim, Flagged, Match, Model, Node, Severity, Silent, equal, rule
from onnxfix.shapes.symbols import substitute, symbol
from onnxfix_rules.ctl import _loops


@rule("CTL015", ops=["Loop"], severity=Severity.ERROR, hazards=[58])
def loop_state_that_changes_its_shape(node: Node, model: Model) -> Iterator[Match]:
    """A loop-carried value changes its shape in an iteration.

    ## Why it matters
    ONNX allows a state to grow. A TensorRT recurrence has one shape, and the builder refuses another one, measured with
    TensorRT-RTX 1.7.1: `IRecurrenceLayer must have inputs with same shape. First input x has shape [2] and second input
    w has shape [4]`, or, with dynamic sizes, `kOPT values for profile 0 violate shape constraints: … inputs to
    IRecurrenceLayer have different shapes`. It does so even for a loop that runs once or never. Such loops come from
    Python lists that are appended to by `torch.cat`. Sizes that only may differ are not reported: they build, and are
    correct as long as they are equal.

    ## Fix
    None here. CTL014 unrolls a short loop of constant trip count. Otherwise collect rows as a scan output, which may
    have any number of them, or write into a tensor of full size by ScatterND.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Loop.html
    """
    body = _loops.body_of(node)
    if body is None:
        return
    shape = model.shapes.shape
    triples = [
        (inner, shape(start), shape(inner), shape(end))
        for start, inner, end in zip(node.inputs[2:], body.inputs[2:], body.outputs[1:], strict=False)
        if start is not None
    ]
    first: dict[str, Dim] = {}
    for _, before, inside, _ in triples:
        if before is not None and inside is not None and len(before) == len(inside):
            first.update(_named(inside, before))
    for inner, before, _, result in triples:
        if before is None or result is None:
            continue
        try:
            after = [substitute(dim, first) for dim in result]
        except ZeroDivisionError:
            continue
        if _differs(after, before, model):
            yield Match(
                f"the state {inner.name!r} changes from {_text(before)} to {_text(after)} in the first iteration",
                node=node,
            )
            return


def _named(inside: Sequence[Dim], before: Sequence[Dim]) -> Iterator[tuple[str, Dim]]:
    """The sizes in the first iteration of the dimensions that may change between iterations."""
    for dim, start in zip(inside, before, strict=True):
        names = list(dim.symbols)
        if len(names) == 1 and dim is symbol(names[0]):
            yield names[0], start


def _differs(first: Sequence[Dim], second: Sequence[Dim], model: Model) -> bool:
    """Whether two shapes certainly differ if no size of a graph input is 0; no profile allows only 0."""
    if len(first) != len(second):
        return True
    for one, other in zip(first, second, strict=True):
        sizes = {
            name: symbol(name) + 1 for name in one.symbols | other.symbols if name in model.shapes.symbols
        }
        try:
            if equal(substitute(one, sizes), substitute(other, sizes)).no:
                return True
        except ZeroDivisionError:
            continue
    return False


def _text(shape: Sequence[Dim]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _loop(inputs: str, body: str, weights: str = "", start: str = "x") -> str:
    return f"""g ({inputs}, int64 n) => (float y) {weights} {{ z = Loop(n, , {start})
        <body = b (int64 i, bool on, float[A] v) => (bool more, float[B] w) {{
            more = Constant<value = bool {{1}}>()  {body} }}>  y = ReduceMax<keepdims = 0>(z) }}"""


loop_state_that_changes_its_shape.examples = [
    Flagged("a state that grows", _loop("float[2] x", "w = Concat<axis = 0>(v, x)")),
    Flagged("a state of dynamic size that grows", _loop("float[N] x", "w = Concat<axis = 0>(v, x)")),
    Flagged(
        "an empty initial state that grows",
        _loop("float[2] x", "w = Concat<axis = 0>(v, x)", "<float[0] e = {}>", "e"),
    ),
    Flagged(
        "a state that is reduced to size 1",
        _loop("float[4] x", "w = ReduceSum<keepdims = 1>(v, a)", "<int64[1] a = {0}>"),
    ),
    Flagged("a state that is broadcast", _loop("float[1] x, float[4] q", "w = Add(v, q)")),
    Flagged(
        "two states of different size that are swapped",
        """g (float[2] x, float[3] q, int64 n) => (float[K] y, float[J] z) { y, z = Loop(n, , x, q)
            <body = b (int64 i, bool on, float[A] v, float[B] w) => (bool more, float[B] r, float[A] s) {
                more = Constant<value = bool {1}>()  r = Neg(w)  s = Neg(v) }> }""",
    ),
    Flagged(
        "in a branch",
        """g (float[2] x, int64 n, bool c) => (float y) { z = If(c)<then_branch = p () => (float[K] u) {
            u = Loop(n, , x)<body = b (int64 i, bool on, float[A] v) => (bool more, float[B] w) {
                more = Constant<value = bool {1}>()  w = Concat<axis = 0>(v, x) }> },
            else_branch = q () => (float[2] r) { r = Neg(x) }>  y = ReduceMax<keepdims = 0>(z) }""",
    ),
    Silent("a state that keeps its shape", _loop("float[N] x", "w = Add(v, x)")),
    Silent("sizes that may be equal", _loop("float[N] x, float[M] q", "w = Add(v, q)")),
    Silent(
        "a size that may already be 1",
        _loop("float[N] x", "w = ReduceSum<keepdims = 1>(v, a)", "<int64[1] a = {0}>"),
    ),
    Silent(
        "rows collected in a scan output",
        """g (float[2] x, int64 n) => (float[K,2] y) { z, y = Loop(n, , x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                more = Constant<value = bool {1}>()  w = Neg(v)  s = Abs(v) }> }""",
    ),
]
