"""RSH007."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Silent, rule, symbols
from onnxfix_rules.rsh import _common as c


@rule("RSH007", ops=["Reshape"], safety=Safety.EXACT, hazards=[35])
def allowzero_before_opset_14(node: Node, model: Model) -> Iterator[Match]:
    """A Reshape with ``allowzero`` before opset 14, which introduced it.

    ## Why it matters
    The model is invalid: ONNX's checker and ONNX Runtime refuse it (``Unrecognized attribute: allowzero``).
    TensorRT-RTX 1.7.1 accepts it with a warning about a "TensorRT extension" and honors it (measured).

    ## Fix
    Remove the attribute. Exact if it is 0, or if the shape is proven to contain no 0: everything that accepts the
    model, TensorRT included, then computes the same without it. If the shape may contain a 0, TensorRT interprets it
    as a size before and as "copy" afterwards, so the fix requires `--unsafe-fixes`. No fix where the copied
    sizes have another number of elements than the data.

    ## References
    ONNX, Reshape-13 and Reshape-14.
    """
    if not 5 <= node.opset < 14 or node.attribute("allowzero") is None:
        return
    dims = c.requested(node, model)
    idle = node.attr("allowzero") == 0 or (dims is not None and all(symbols.is_zero(d).no for d in dims))
    draft = Draft(node)
    draft.set_attr(node, "allowzero", None)
    effect = "it has no effect here" if idle else "TensorRT honors it, and the shape may hold a 0"
    yield Match(
        f"Reshape has no attribute allowzero before opset 14 (this is {node.opset}): the checker and ONNX Runtime "
        f"refuse the model; {effect}",
        node=node,
        fix=Fix("drop allowzero", draft.edits, Safety.EXACT if idle else Safety.UNSAFE)
        if idle or _copies(node, model)
        else None,
    )


def _copies(node: Node, model: Model) -> bool:
    """Whether the data may have as many elements as the shape whose zeros copy sizes; so taken where unknown."""
    data, wanted = model.shapes.static_shape(node.require(0)), node.require(1).constant()
    if data is None or wanted is None or (wanted < 0).any():
        return True
    sizes = [int(size) for size in wanted.reshape(-1)]
    if any(size == 0 and axis >= len(data) for axis, size in enumerate(sizes)):
        return False
    return prod(size or data[axis] for axis, size in enumerate(sizes)) == prod(data)


_PLAIN = "g (float[N,12] x) => (float[M,6] y) <int64[2] s = {-1, 6}> { y = Reshape%s(x, s) }"
_COPIED = "g (float[N,4] x) => (float[A,B] y) <int64[2] s = {2, 0}> { y = Reshape%s(x, s) }"
_ZERO = "g (float[0,4] x) => (float[A,B] y) <int64[2] s = {4, 0}> { y = Reshape%s(x, s) }"


allowzero_before_opset_14.examples = [
    Fixed(
        "the value is the default", before=_PLAIN % "<allowzero=0>", after=_PLAIN % "", opset=13, runs=False
    ),
    Fixed(
        "1, but the shape holds no 0", before=_PLAIN % "<allowzero=1>", after=_PLAIN % "", opset=13, runs=False
    ),
    Fixed(
        "1, and a 0 in the shape: TensorRT reads a length, a 0 of opset 13 copies",
        before=_COPIED % "<allowzero=1>",
        after=_COPIED % "",
        opset=13,
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged(
        "a tensor without elements, whose copied sizes would ask for some",
        _ZERO % "<allowzero=1>", opset=13, safety=Safety.UNSAFE, runs=False,
    ),
    Flagged(
        "where it matters it is only reported", _ZERO % "<allowzero=1>", opset=13, runs=False
    ),
    Flagged(
        "1, and nothing is known of the shape",
        "g (float[4] x, int64[2] s) => (float[A,B] y) { y = Reshape<allowzero=1>(x, s) }",

        opset=13,
        runs=False,
    ),
    Silent("opset 14 has the attribute", _PLAIN % "<allowzero=0>", opset=14),
    Silent("no attribute", _PLAIN % "", opset=13),
]  # fmt: skip
