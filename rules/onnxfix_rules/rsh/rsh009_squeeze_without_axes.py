"""RSH009."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxfix.rule import (
    Dim,
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    Value,
    rule,
    symbols,
)
from onnxfix_rules.rsh import _common as c


@rule("RSH009", ops=["Squeeze"], safety=Safety.EXACT, hazards=[47])
def squeeze_without_axes(node: Node, model: Model) -> Iterator[Match]:
    """A Squeeze without axes, which removes all dimensions of size 1.

    ## Why it matters
    With a dynamic dimension the rank of the result depends on the data. TensorRT 10.x fails:
    ``UNSUPPORTED_NODE_DYNAMIC: Cannot infer squeeze dimensions from a dynamic shape.`` TensorRT-RTX 1.7.1 builds,
    warns (measured) ``ISqueezeLayer without an axes input requires dimension 0 to not be 1 at runtime``, and fails at
    batch 1. With static dimensions every version supports it; then it is a remark.

    An explicitly empty axes list is ambiguous: ONNX Runtime removes every dimension of 1, the ONNX reference removes
    none. That is only reported.

    ## Fix
    Write the axes whose dimension is proven to be 1, if every other one is proven not to be: exact, sizes of 0
    included. Without any such axis the node is a copy and is removed (an empty list would be ambiguous). A dimension
    that may be 1 is kept: equal for all its other sizes, a different rank at 1. That requires `--numeric-fixes`.

    ## References
    ONNX, Squeeze. modelscope PR #1577.
    """
    data = node.input(0)
    given = node.input(1) if node.opset >= 13 else None
    shape = c.shape_of(data, model)
    if data is None or (node.opset < 13 and node.attr("axes")):
        return
    if given is not None or (node.opset < 13 and node.attribute("axes") is not None):
        yield from _empty(node, given, shape)
    elif shape is None:
        yield Match(
            "Squeeze without axes on data of unknown rank: TensorRT cannot determine the dimensions to "
            "remove",
            node=node,
            severity=_severity(model),
        )
    else:
        yield _match(node, model, data, shape)


def _match(node: Node, model: Model, data: Value, shape: Sequence[Dim]) -> Match:
    ones = [symbols.is_one(d) for d in shape]
    axes = [i for i, one in enumerate(ones) if one.yes]
    open_axes = [i for i, one in enumerate(ones) if one.unknown]
    draft = Draft(node)
    if not axes:
        draft.bypass(node, data)
    elif node.opset >= 13:
        draft.set_input(node, 1, draft.integers(axes, "axes"))
    else:
        draft.set_attr(node, "axes", axes)
    title, safety = f"write axes {axes}" if axes else "remove the Squeeze", Safety.EXACT
    text = f"Squeeze without axes on {c.text(shape)}: it removes {f'axes {axes}' if axes else 'nothing'}"
    if open_axes:
        some = ", ".join(f"{shape[i]} (axis {i})" for i in open_axes)
        title, safety = f"{title}, assuming that the others are never 1", Safety.UNSAFE
        text = (
            f"Squeeze without axes on the dynamic shape {c.text(shape)}: the result has another rank where {some} "
            "is 1; TensorRT 8 and 10 refuse it, TensorRT-RTX fails at that size"
        )
    static = not open_axes and c.sizes(shape) is not None
    severity = Severity.INFO if static else _severity(model)
    return Match(text, node=node, severity=severity, fix=Fix(title, draft.edits, safety))


def _empty(node: Node, given: Value | None, shape: Sequence[Dim] | None) -> Iterator[Match]:
    """Explicit axes: reported only if they are an empty list and some dimension could be removed."""
    if given is not None:
        array = given.constant()
        if array is None or array.size:
            return
    if shape is None or not all(symbols.is_one(d).no for d in shape):
        yield Match(
            "the axes list is empty: ONNX Runtime then removes every dimension of 1, the ONNX reference none",
            node=node,
        )


def _severity(model: Model) -> Severity:
    return Severity.WARNING if model.target.dynamic_squeeze else Severity.ERROR


def _unary(x: str, y: str, call: str = "Squeeze") -> str:
    return f"g (float[{x}] x) => (float[{y}] y) {{ y = {call}(x) }}"


squeeze_without_axes.examples = [
    Fixed(
        "static dimensions: the axes are known",
        before=_unary("1,3,1,2", "3,2"),
        after="g (float[1,3,1,2] x) => (float[3,2] y) <int64[2] a = {0, 2}> { y = Squeeze(x, a) }",
    ),
    Fixed(
        "before opset 13 the axes are an attribute",
        before=_unary("1,3,1,2", "3,2"),
        after=_unary("1,3,1,2", "3,2", call="Squeeze<axes=[0, 2]>"),
        opset=11,
    ),
    Fixed(
        "an axis of size 0 stays",
        before=_unary("1,0,2", "0,2"),
        after="g (float[1,0,2] x) => (float[0,2] y) <int64[1] a = {0}> { y = Squeeze(x, a) }",
    ),
    Fixed(
        "a dynamic dimension that is never 1",
        before="g (float[1,N] x) => (float[M] y) { c = Concat<axis=1>(x, x) y = Squeeze(c) }",
        after="g (float[1,N] x) => (float[M] y) <int64[1] a = {0}> { c = Concat<axis=1>(x, x) y = Squeeze(c, a) }",
    ),
    Fixed(
        "nothing to remove: a copy", before=_unary("2,3", "2,3"), after=_unary("2,3", "2,3", call="Identity")
    ),
    Fixed(
        "nothing to remove, inside the graph",
        before="g (float[2,3] x) => (float[2,3] y) { s = Squeeze(x) y = Relu(s) }",
        after=_unary("2,3", "2,3", call="Relu"),
    ),
    Fixed(
        "IR version 3: the axes become a Constant node, not another input",
        before=_unary("1,3", "3"),
        after="g (float[1,3] x) => (float[3] y) { a = Constant<value = int64[1] {0}>() y = Squeeze(x, a) }",
        ir_version=3,
        opset=13,
    ),
    Fixed(
        "N may be 1, which gives the result another rank",
        before=_unary("N,1,3", "M,3"),
        after="g (float[N,1,3] x) => (float[M,3] y) <int64[1] a = {1}> { y = Squeeze(x, a) }",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged("a dynamic dimension is only reported, by default", _unary("N,1,3", "M,3")),
    Fixed(
        "no axis is known to be 1",
        before=_unary("N,3", "M,3"),
        after=_unary("N,3", "M,3", call="Identity"),
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged(
        "unknown rank",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,3] x) => (float[A,B] y) { u = my.op(x) y = Squeeze(u) }""",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged(
        "an empty axes list: ONNX Runtime removes both, the reference removes none",
        "g (float[1,3,1] x) => (float[3] y) <int64[0] a = {}> { y = Squeeze(x, a) }",
        safety=Safety.UNSAFE,
    ),
    Silent(
        "an empty axes list, and no axis that could be removed",
        "g (float[2,3] x) => (float[2,3] y) <int64[0] a = {}> { y = Squeeze(x, a) }",
    ),
    Silent("explicit axes", "g (float[N,1,3] x) => (float[N,3] y) <int64[1] a = {1}> { y = Squeeze(x, a) }"),
    Silent("explicit axes, as an attribute", _unary("N,1,3", "N,3", call="Squeeze<axes=[1]>"), opset=11),
    Silent("axes from a graph input", "g (float[1,3] x, int64[K] a) => (float[M] y) { y = Squeeze(x, a) }"),
]
