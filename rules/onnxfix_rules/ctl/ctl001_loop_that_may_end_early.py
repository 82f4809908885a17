"""CTL001: loops with both a trip count and a condition."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxfix.files import tensors
from onnxfix.rule import (
    Draft,
    Edit,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Scope,
    SetInput,
    Severity,
    Silent,
    Value,
    is_read,
    rule,
)

_SMALL = 16
"""Bytes, enough for a condition of one element."""


@rule("CTL001", ops=["Loop"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[8, 58])
def loop_that_may_end_early(node: Node, model: Model) -> Iterator[Match]:
    """A Loop with a trip count, a condition and scan outputs: TensorRT returns as many rows as the trip count says.

    ## Why it matters
    In ONNX a scan output has one row per iteration that ran. In TensorRT its length is the trip count; if the condition
    ends the loop earlier, the other rows are undefined. Measured with TensorRT-RTX 1.7.1: a loop of at most 6
    iterations has an output of shape [6, 2], whatever the condition says. It builds, with a warning: `both a trip limit
    and a loop termination condition was set! If the number of iterations of the loop is less than the trip limit during
    runtime, scan output … may have the wrong shape. For consistent results it's recommended to export loops with only a
    trip limit`. The loop-carried outputs are correct.

    - **error**: the condition may become false before the trip count is reached, or is not proven to stay true.
    - **warning**: it is always true, or is so unless a caller overrides a default. Exporters write such loops for `for
      i in range(n)`. The rows are correct, and the condition is superfluous.

    ## Fix
    If the initial condition is true (or false only because there are no iterations) and the body keeps it true, the
    Loop's condition is removed; its readers in the body read a constant true. Exact. Removing only the input is not
    enough: TensorRT refuses the body (`Node input was not registered`). There is no fix if the loop may really end
    early: compute a fixed number of iterations, or read only as many rows as a counter in the loop says.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Loop.html
    """
    count, condition = node.require(0), node.require(1)
    if len(node.subgraphs) != 1:
        return
    body = node.subgraphs[0]
    carried = len(node.inputs) - 2
    if len(body.inputs) != carried + 2 or not body.outputs:
        return
    if not any(is_read(value) for value in node.outputs[carried:]):
        return
    same_source = _is_any(condition, count)
    if (same_source or _is_true(condition, None, model, defaults=True)) and _is_true(
        body.outputs[0], body.inputs[1], model, defaults=True
    ):
        certain = (same_source or _is_true(condition, None, model)) and _is_true(
            body.outputs[0], body.inputs[1], model
        )
        unless = "" if certain else ", unless a default is overridden"
        yield Match(
            f"Loop with a trip count and a condition that is always true{unless}: TensorRT warns of wrong scan outputs",
            node=node,
            severity=Severity.WARNING,
            fix=_without_condition(node, body, model) if certain else None,
            reads=(condition, body.outputs[0]),
        )
        return
    yield Match(
        "Loop with a trip count and a condition that may end it earlier: TensorRT's scan outputs have as many rows as "
        "the trip count",
        node=node,
    )


def _is_any(condition: Value, count: Value) -> bool:
    """Whether both are casts of one value, so that the condition is false only for 0 iterations."""
    first, second = condition.producer, count.producer
    return (
        first is not None
        and second is not None
        and first.op_type == second.op_type == "Cast"
        and first.is_onnx
        and second.is_onnx
        and first.input(0) is second.input(0)
    )


def _is_true(value: Value, given: Value | None, model: Model, *, defaults: bool = False) -> bool:
    """Whether the value is certainly true if ``given`` is; ``defaults``: unless a caller overrides a default."""
    pending, seen = [value], {id(value)}
    while pending:
        value = pending.pop()
        if value is given or _is_known_true(value, model, defaults):
            continue
        node = value.producer
        if node is None or not node.is_onnx or node.op_type not in ("Identity", "And"):
            return False
        for source in node.inputs:
            if source is None:
                return False
            if id(source) not in seen:
                seen.add(id(source))
                pending.append(source)
    return True


def _is_known_true(value: Value, model: Model, defaults: bool) -> bool:
    array = value.constant()
    if defaults and value.is_input and value.initializer is not None:
        array = tensors.to_array(value.initializer, model.base_dir, _SMALL)
    if array is not None:
        return array.dtype == np.bool_ and array.size == 1 and bool(array.all())
    known = model.shapes.value(value)
    return known is not None and known.static == (1,)


def _without_condition(node: Node, body: Scope, model: Model) -> Fix | None:
    """Remove the condition's input, and replace it by true inside the body; None if that is not possible."""
    inner = body.inputs[1]
    edits: list[Edit] = [SetInput(node, 1, "")]
    if len(node.inputs) < 3:
        return None  # a Loop has at least two inputs, and an empty last one is dropped
    if not inner.replaceable:
        return None
    if inner.use_count:
        condition = node.input(1)
        if (
            condition is None
            or model.shapes.rank(condition) != 0
            or model.shapes.rank(body.outputs[0]) not in (0, None)
        ):
            return None  # readers of the condition may see another shape
        draft = Draft(body.nodes[0])
        draft.replace_uses(inner, draft.constant(np.array(True), "true"))
        edits += draft.edits
    return Fix("remove the condition", edits)


_START = "g (float[2] x, bool c, int64 n, float l) => (float[2] y, float[K,2] z)"
_IN = "(int64 i, bool on, float[2] v)"
_OUT = "(bool more, float[2] w, float[2] s)"


def _loop(
    more: str, call: str = "n, t, x", *, before: str = "", true: str = "<bool t = {1}>", head: str = ""
) -> str:
    """A model whose loop has a scan output; ``more`` computes the body's condition."""
    return f"""{_START} {true} {{ {before} y, z = Loop({call})<body = b {_IN} => {_OUT} {head} {{
        {more}  w = Add(v, v)  s = Neg(v) }}> }}"""


# Fixed models do not run here: onnx.reference interprets a missing condition as false. The tests use ONNX Runtime.
loop_that_may_end_early.examples = [
    Fixed(
        "initially true, and passed on",
        before=_loop("more = Identity(on)"),
        after=_loop("more = Identity(d)", "n, , x", true="", head="<bool d = {1}>"),
    ),
    Fixed(
        "always true in the body",
        before=_loop("more = Constant<value = bool {1}>()"),
        after=_loop("more = Constant<value = bool {1}>()", "n, , x", true=""),
        opset=13,
    ),
    Fixed(
        "true by And; another node reads the condition",
        before="""g (float[2] x, int64 n) => (float[2] y, float[K,2] z) <bool t = {1}> {
            y, z = Loop(n, t, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                e = Identity(on)  more = And(e, t)  w = Where(on, v, x)  s = Neg(v) }> }""",
        after="""g (float[2] x, int64 n) => (float[2] y, float[K,2] z) <bool t = {1}> {
            y, z = Loop(n, , x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s)
                <bool d = {1}> { e = Identity(d)  more = And(e, t)  w = Where(d, v, x)  s = Neg(v) }> }""",
    ),
    Fixed(
        "trip count and condition cast from the same value, as in ONNX's expansion of Range",
        before="""g (float[2] x, int32 n) => (float[2] y, float[K,2] z) { c = Cast<to = 9>(n)  m = Cast<to = 7>(n)
            y, z = Loop(m, c, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                more = Identity(on)  w = Add(v, v)  s = Neg(v) }> }""",
        after="""g (float[2] x, int32 n) => (float[2] y, float[K,2] z) { m = Cast<to = INT64>(n)
            y, z = Loop(m, , x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s)
                <bool d = {1}> { more = Identity(d)  w = Add(v, v)  s = Neg(v) }> }""",
    ),
    Flagged(
        "trip count and condition cast from different values",
        """g (float[2] x, int32 n, int32 k) => (float[2] y, float[K,2] z) {
            c = Cast<to = BOOL>(k)  m = Cast<to = INT64>(n)
            y, z = Loop(m, c, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                more = Identity(on)  w = Add(v, v)  s = Neg(v) }> }""",
    ),
    Flagged("the condition depends on the state", _loop("m = ReduceMax<keepdims = 0>(v)  more = Less(m, l)")),
    Flagged("the initial condition is an input", _loop("more = Identity(t)", "n, c, x")),
    Flagged("the initial condition is false", _loop("more = Identity(f)", "n, f, x", before="f = Not(t)")),
    Flagged(
        "the initial condition is true by default (a warning)",
        """g (float[2] x, bool t, int64 n) => (float[2] y, float[K,2] z) <bool t = {1}> {
            y, z = Loop(n, t, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                more = Identity(on)  w = Add(v, v)  s = Neg(v) }> }""",
    ),
    Flagged(
        "the body returns its condition directly, so no node can be rewired",
        """g (float[2] x, int64 n) => (float[2] y, float[K,2] z) <bool t = {1}> {
            y, z = Loop(n, t, x)<body = b (int64 i, bool on, float[2] v) => (bool on, float[2] w, float[2] s) {
                w = Add(v, v)  s = Neg(v) }> }""",
    ),
    Silent("a trip count without a condition", _loop("more = Identity(t)", "n, , x")),
    Silent(
        "a condition and no scan output, which TensorRT imports correctly",
        """g (float[2] x, bool c, int64 n) => (float[2] y) {
            y = Loop(n, c, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {
                more = Not(on)  w = Add(v, v) }> }""",
    ),
    Silent(
        "unused scan output",
        """g (float[2] x, bool c, int64 n) => (float[2] y) {
            y, z = Loop(n, c, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                more = Not(on)  w = Add(v, v)  s = Neg(v) }> }""",
    ),
    Silent(
        "a Scan",
        """g (float[3,2] x, float[2] h) => (float[2] y, float[3,2] z) {
            y, z = Scan<num_scan_inputs = 1, body = b (float[2] v, float[2] e) => (float[2] w, float[2] s) {
                w = Add(v, e)  s = Neg(w) }>(h, x) }""",
    ),
]
