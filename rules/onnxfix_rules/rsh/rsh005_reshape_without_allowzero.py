"""RSH005."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, rule


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
    yield Match(
        f"{model.target.title} fails at a Reshape of opset {node.opset} without allowzero",
        node=node,
        fix=Fix("write allowzero=0", draft.edits),
    )


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
