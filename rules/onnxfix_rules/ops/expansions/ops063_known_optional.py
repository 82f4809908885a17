"""OPS063: optional values that are known to be present or absent."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    Value,
    rule,
    target_of,
)


@rule(
    "OPS063",
    ops=["OptionalGetElement", "OptionalHasElement"],
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[59],
)
def known_optional(node: Node, model: Model) -> Iterator[Match]:
    """An OptionalHasElement or OptionalGetElement of a tensor, or of no input.

    ## Why it matters
    TensorRT imports neither: `UNSUPPORTED_NODE`, measured with TensorRT-RTX 1.7.1. Scripted models test whether an
    optional argument was given, and exporters store the answer.

    ## Fix
    The constant true or false, or the tensor itself. Exact.

    TensorRT layers: 1.

    ## References
    - https://onnx.ai/onnx/operators/onnx__OptionalHasElement.html
    """
    output, value = node.require_output(), node.input(0)
    if target_of(model).imports(node.op_type) is not False:
        return
    tensor = None if value is None else _tensor(value, node, model)
    if value is not None and tensor is None:
        return
    draft = Draft(node)
    if node.op_type == "OptionalHasElement":
        draft.remove(node)
        draft.add("Identity", [draft.constant(np.array(tensor is not None), "there")], output=output.name)
        title = f"replace by {'true' if tensor is not None else 'false'}"
    elif tensor is None:
        return
    else:
        title = "use the tensor itself"
        draft.remove(node)
        if output.replaceable:
            draft.replace_uses(output, tensor)
        else:
            draft.add("Identity", [tensor], output=output.name)
    message = f"TensorRT has no {node.op_type}; its result is known here"
    yield Match(message, node=node, fix=Fix(title, draft.edits), reads=() if value is None else (value,))


def _tensor(value: Value, node: Node, model: Model) -> Value | None:
    """The tensor that a value certainly is, or that an Optional wraps."""
    producer = value.producer
    if producer is not None and producer.is_onnx and producer.op_type == "Optional":
        inner = producer.input(0)
        if inner is None or node.scope.lookup(inner.name) is not inner:
            return None
        return _tensor(inner, node, model)
    return value if model.shapes.elem_type(value) else None


known_optional.examples = [
    Fixed(
        "no input",
        before="g (float[N] x) => (bool y, float[N] z) { y = OptionalHasElement()  z = Neg(x) }",
        after="g (float[N] x) => (bool y, float[N] z) <bool n = {0}> { y = Identity(n)  z = Neg(x) }",
    ),
    Fixed(
        "a tensor input",
        before="g (float[N] x) => (bool y) { y = OptionalHasElement(x) }",
        after="g (float[N] x) => (bool y) <bool n = {1}> { y = Identity(n) }",
    ),
    Fixed(
        "the element of a tensor",
        before="g (float[N] x) => (float[N] y) { e = OptionalGetElement(x)  y = Neg(e) }",
        after="g (float[N] x) => (float[N] y) { y = Neg(x) }",
    ),
    Fixed(
        "the element of a tensor, as a graph output",
        before="g (float[N] x) => (float[N] y) { y = OptionalGetElement(x) }",
        after="g (float[N] x) => (float[N] y) { y = Identity(x) }",
    ),
    Fixed(
        "an Optional of a tensor, and its element",
        before="""g (float[N] x) => (bool y, float[N] z) {
            o = Optional(x)  y = OptionalHasElement(o)  z = OptionalGetElement(o) }""",
        after="g (float[N] x) => (bool y, float[N] z) <bool n = {1}> { y = Identity(n)  z = Identity(x) }",
    ),
    Silent(
        "an optional that is a graph input",
        "g (optional(float[N]) x) => (bool y) { y = OptionalHasElement(x) }",
        runs=False,
    ),
    Silent(
        "a sequence", "g (seq(float[N]) x) => (seq(float[N]) y) { y = OptionalGetElement(x) }", runs=False
    ),
    Silent(
        "the element of an optional that is a graph input",
        "g (optional(float[N]) x) => (float[N] y) { y = OptionalGetElement(x) }",
        runs=False,
    ),
]
