"""Reshape and allowzero."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

from onnxfix.rule import (
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
    rule,
    symbols,
)
from onnxfix_rules.rsh import _common as c


@rule("RSH001", ops=["Reshape"], safety=Safety.EXACT, severity=Severity.INFO, hazards=[35])
def redundant_allowzero(node: Node, model: Model) -> Iterator[Match]:
    """A Reshape with ``allowzero=1`` whose shape never contains a 0.

    ## Why it matters
    The attribute defines the meaning of a 0 in the shape; without a 0 it has no effect. PyTorch's dynamo exporter
    writes it anyway. Current TensorRT handles such a Reshape correctly, other tools do not: ONNX Runtime used to
    reject every ``allowzero=1`` together with a -1 and its ReshapeFusion drops the attribute, tract and MIGraphX
    ignore it or fail.

    ## Fix
    Remove the attribute (its default is 0); for TensorRT 8.0 to 8.4.1, which fails without it, write 0. Exact: every
    element of the shape is a nonzero constant, or proven to be at least 1 for all sizes of the inputs, 0 included.
    Not reported if an element may be 0.

    ## References
    ONNX, Reshape-14. onnxruntime #10664, #28348; tract #2698; AMDMIGraphX #2766; onnxscript PR #2346.
    """
    if not c.keeps_zero(node):
        return
    dims = c.requested(node, model)
    if dims is None or not all(symbols.is_zero(d).no for d in dims):
        return
    draft = Draft(node)
    c.let_zero_copy(draft, node, model)
    yield Match(
        f"allowzero=1 has no effect: the shape {c.text(dims)} contains no 0",
        node=node,
        fix=Fix("write allowzero=0" if model.target.requires_allowzero else "drop allowzero", draft.edits),
    )


_GROWN = """g (float[N,2] x, float[1,2] t) => (float[A,B] y)
    <int64[1] i = {0}, int64[1] one = {1}, int64[1] m = {-1}> {
    d = Shape(x) n = Gather(d, i) k = Add(n, one) s = Concat<axis=0>(k, m)
    p = Concat<axis=0>(x, t) y = Reshape%s(p, s) }"""
_fixed = partial(Fixed, runs=False, safety=Safety.UNSAFE)
_flagged = partial(Flagged, opset=13, runs=False)


def _reshape(x: str, y: str, s: str, attributes: str) -> str:
    return f"g (float[{x}] x) => (float[{y}] y) <int64[2] s = {{{s}}}> {{ y = Reshape{attributes}(x, s) }}"


redundant_allowzero.examples = [
    Fixed(
        "no 0 in an initializer",
        before=_reshape("N,12", "M,6", "-1, 6", "<allowzero=1>"),
        after=_reshape("N,12", "M,6", "-1, 6", ""),
    ),
    Fixed(
        "no 0 in a Constant node's value_ints",
        before="""g (float[3,4] x) => (float[2,6] y) {
            s = Constant<value_ints = [2, 6]>() y = Reshape<allowzero=1>(x, s) }""",
        after="""g (float[3,4] x) => (float[2,6] y) {
            s = Constant<value_ints = [2, 6]>() y = Reshape(x, s) }""",
    ),
    Fixed(
        "a computed shape proven to contain no 0",
        before="""g (float[3,4] x) => (float[4,3] y) <int64[2] i = {1, 0}> {
            d = Shape(x) s = Gather(d, i) y = Reshape<allowzero=1>(x, s) }""",
        after="""g (float[3,4] x) => (float[4,3] y) <int64[2] i = {1, 0}> {
            d = Shape(x) s = Gather(d, i) y = Reshape(x, s) }""",
    ),
    Fixed(
        "proven to be at least 1 although it depends on N", before=_GROWN % "<allowzero=1>", after=_GROWN % ""
    ),
    Fixed(
        "an empty shape: the result is a scalar",
        before="g (float[1] x) => (float y) <int64[0] s = {}> { y = Reshape<allowzero=1>(x, s) }",
        after="g (float[1] x) => (float y) <int64[0] s = {}> { y = Reshape(x, s) }",
    ),
    Fixed(
        "TensorRT 8.4 requires the attribute: it becomes 0",
        before=_reshape("N,12", "M,6", "-1, 6", "<allowzero=1>"),
        after=_reshape("N,12", "M,6", "-1, 6", "<allowzero=0>"),
        target="trt8.4",
    ),
    Silent(
        "with a 0 in the shape the attribute has an effect", _reshape("0,4", "4,0", "4, 0", "<allowzero=1>")
    ),
    Silent(
        "N may be 0: then a 0 in the shape would copy the 4",
        """g (float[N,4] x) => (float[4,N] y) <int64[2] i = {1, 0}> {
            d = Shape(x) s = Gather(d, i) y = Reshape<allowzero=1>(x, s) }""",
    ),
    Silent(
        "the shape is an overridable initializer, which may contain a 0",
        "g (float[N,12] x, int64[2] s = {-1, 6}) => (float[M,K] y) { y = Reshape<allowzero=1>(x, s) }",
    ),
    Silent(
        "the shape is a graph input",
        "g (float[N] x, int64[2] s) => (float[M,K] y) { y = Reshape<allowzero=1>(x, s) }",
    ),
    Silent(
        "the shape is a scalar: the model is invalid",
        "g (float[4] x) => (float[A] y) <int64 s = {4}> { y = Reshape<allowzero=1>(x, s) }",
    ),
    Silent("allowzero=0", _reshape("N,12", "M,6", "-1, 6", "<allowzero=0>")),
    Silent(
        "the attribute depends on the function's caller",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[N,4] x) => (float[M] y) { y = my.flat<z=1>(x) }
            <domain: "my", opset_import: ["" : 18]> flat<z>(a) => (b) {
                s = Constant<value = int64[1] {-1}>() b = Reshape<allowzero: int = @z>(a, s) }""",
    ),
]


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
    _fixed(
        "0 and -1 in one shape, which all backends refuse",
        before=_BEFORE,
        after=_reshape("2,3,4", "2,12", "0, -1", ""),
    ),
    Flagged("reported only, by default", _BEFORE, runs=False),
    _fixed(
        "a concatenated shape that contains both for every N",
        before="""g (float[3,N,4] x) => (float[3,N,4] y) <int64[1] z = {0}, int64[1] m = {-1}, int64[1] i = {1}> {
            d = Shape(x) n = Gather(d, i) s = Concat<axis=0>(z, n, m) y = Reshape<allowzero=1>(x, s) }""",
        after="""g (float[3,N,4] x) => (float[3,N,4] y) <int64[1] z = {0}, int64[1] m = {-1}, int64[1] i = {1}> {
            d = Shape(x) n = Gather(d, i) s = Concat<axis=0>(z, n, m) y = Reshape(x, s) }""",
    ),
    Flagged(
        "the 0 is beyond the data's last axis: nothing to copy",
        _reshape("6", "A,B", "-1, 0", "<allowzero=1>"),
        safety=Safety.UNSAFE,
        runs=False,
    ),
    _fixed(
        "for TensorRT 8.4 the attribute is required",
        before=_BEFORE,
        after=_reshape("2,3,4", "2,12", "0, -1", "<allowzero=0>"),
        target="trt8.4",
    ),
    Silent("without allowzero the 0 copies", _reshape("2,3,4", "2,12", "0, -1", "")),
    Silent("no -1", _reshape("0,4", "4,0", "4, 0", "<allowzero=1>")),
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


@rule("RSH005", ops=["Reshape"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[35])
def reshape_without_allowzero(node: Node, model: Model) -> Iterator[Match]:
    """A Reshape without ``allowzero`` from opset 14, for a target that has no default for it.

    ## Why it matters
    TensorRT 8.0 to 8.4.1 have no default for the attribute: the parser throws ``Attribute not found: allowzero``
    (source of the branches 8.0-EA to 8.4-GA, ``builtin_op_importers.cpp``). The default was added in 8.4.2. Reported
    for ``--target trt8.4`` only.

    ## Fix
    Write ``allowzero=0``, the default. Exact.

    ## References
    TensorRT OSS changelog 22.08: "Fixed allowZero logic in Reshape operation". Paddle2ONNX PR #948.
    """
    if not model.target.requires_allowzero or node.opset < 14:
        return
    if any(attribute.name == "allowzero" for attribute in node.proto.attribute):
        return
    draft = Draft(node)
    draft.set_attr(node, "allowzero", 0)
    message = f"{model.target.title} fails at a Reshape of opset {node.opset} without allowzero"
    yield Match(message, node=node, fix=Fix("write allowzero=0", draft.edits))


_PLAIN = "g (float[N,12] x) => (float[M,6] y) <int64[2] s = {-1, 6}> { y = Reshape%s(x, s) }"


reshape_without_allowzero.examples = [
    Fixed(
        "opset 14 without the attribute",
        before=_PLAIN % "",
        after=_PLAIN % "<allowzero=0>",
        opset=14,
        target="trt8.4",
    ),
    Fixed(
        "for any shape",
        before="g (float[N,12] x, int64[2] s) => (float[A,B] y) { y = Reshape(x, s) }",
        after="g (float[N,12] x, int64[2] s) => (float[A,B] y) { y = Reshape<allowzero=0>(x, s) }",
        target="trt8.4",
        runs=False,
    ),
    Silent("present", _PLAIN % "<allowzero=0>", target="trt8.4"),
    Silent("present, as 1", _PLAIN % "<allowzero=1>", target="trt8.4"),
    Silent("opset 13 does not have the attribute", _PLAIN % "", opset=13, target="trt8.4"),
    Silent("TensorRT 8.4.2 and later have the default", _PLAIN % "", target="trt8.6"),
    Silent("so does the newest", _PLAIN % ""),
]  # fmt: skip


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


_COPIED = "g (float[N,4] x) => (float[A,B] y) <int64[2] s = {2, 0}> { y = Reshape%s(x, s) }"
_ZERO = "g (float[0,4] x) => (float[A,B] y) <int64[2] s = {4, 0}> { y = Reshape%s(x, s) }"


allowzero_before_opset_14.examples = [
    Fixed(
        "the value is the default", before=_PLAIN % "<allowzero=0>", after=_PLAIN % "", opset=13, runs=False
    ),
    Fixed(
        "1, but the shape holds no 0", before=_PLAIN % "<allowzero=1>", after=_PLAIN % "", opset=13, runs=False
    ),
    _fixed(
        "1, and a 0 in the shape: TensorRT reads a length, a 0 of opset 13 copies",
        before=_COPIED % "<allowzero=1>",
        after=_COPIED % "",
        opset=13,
    ),
    _flagged(
        "a tensor without elements, whose copied sizes would ask for some",
        _ZERO % "<allowzero=1>", safety=Safety.UNSAFE,
    ),
    _flagged(
        "where it matters it is only reported", _ZERO % "<allowzero=1>",
    ),
    _flagged(
        "1, and nothing is known of the shape",
        "g (float[4] x, int64[2] s) => (float[A,B] y) { y = Reshape<allowzero=1>(x, s) }",

    ),
    Silent("opset 14 has the attribute", _PLAIN % "<allowzero=0>", opset=14),
    Silent("no attribute", _PLAIN % "", opset=13),
]  # fmt: skip
