"""GRA006: sparse constants."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from onnx import NodeProto, SparseTensorProto, helper

from onnxfix.rule import (
    AddNode,
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
)
from onnxfix_rules.gra import _sparse


@rule("GRA006", ops=["Constant"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[60])
def sparse_constant(node: Node, model: Model) -> Iterator[Match]:
    """A Constant stores its value as a sparse tensor.

    ## Why it matters
    The parser stops: `This version of TensorRT does not support the sparse_value, value_string and value_strings
    attributes.`, measured with TensorRT-RTX 1.7.1. It supports `value`, `value_float`, `value_int`, `value_floats` and
    `value_ints`.

    ## Fix
    Store the value as a dense tensor. Exact. There is no fix if the dense tensor exceeds 64 MiB, or if the sparse
    tensor is invalid (indices out of range, or duplicate indices). A sparse constant that is an output of the graph is
    kept: neither ONNX Runtime nor the reference returns it.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Constant.html
    """
    sparse = node.attr("sparse_value")
    output = node.require_output()
    if not isinstance(sparse, SparseTensorProto):
        return
    tensor = _sparse.dense(sparse, "", model.base_dir)
    fix = None
    if tensor is not None and output.replaceable:
        draft = Draft(node)
        draft.remove(node)
        proto = NodeProto()
        proto.CopyFrom(node.proto)
        del proto.attribute[:]
        proto.attribute.append(helper.make_attribute("value", tensor))
        draft.edits.append(AddNode(node.scope, proto, node))
        fix = Fix("make it dense", draft.edits)
    yield Match(
        f"TensorRT does not support sparse constants; this one has shape {list(sparse.dims)}",
        node=node,
        fix=fix,
    )


_ADD = "g (float[2,3] x) => (float[2,3] y) { y = Add(x, w) }"
_DENSE = "g (float[2,3] x) => (float[2,3] y) <float[2,3] w = {0, 1, 0, 0, 2, 0}> { y = Add(x, w) }"


sparse_constant.examples = [
    Fixed(
        "linear indices",
        before=partial(_sparse.model, _ADD, [2, 3], [1, 4], node=True),
        after=_DENSE,
    ),
    Fixed(
        "indices by coordinates",
        before=partial(_sparse.model, _ADD, [2, 3], [[0, 1], [1, 1]], node=True),
        after=_DENSE,
    ),
    Flagged(
        "a graph output, which no backend runs",
        partial(
            _sparse.model, "g (float[2] x) => (float[3] w, float[2] y) { y = Neg(x) }", [3], [2], node=True
        ),
        runs=False,
    ),
    Flagged(
        "duplicate indices, which are invalid",
        partial(_sparse.model, _ADD, [2, 3], [1, 1], node=True),
        runs=False,
    ),
    Flagged(
        "larger than 64 MiB as a dense tensor",
        partial(
            _sparse.model,
            "g (float[1] x) => (float[1] y) { s = ReduceMax<keepdims = 0>(w)  y = Add(x, s) }",
            [1 << 25],
            [7],
            node=True,
        ),
        runs=False,
    ),
    Silent(
        "a dense Constant",
        "g (float[1] x) => (float[1] y) { w = Constant<value_float = 1.0>()  y = Add(x, w) }",
    ),
    Silent(
        "value_ints, which TensorRT supports",
        "g (int64[2] x) => (int64[2] y) { w = Constant<value_ints = [1, 2]>()  y = Add(x, w) }",
    ),
    Silent(
        "value_int and value_floats",
        """g (int64[2] x, float[2] u) => (int64[2] y, float[2] v) {
            w = Constant<value_int = 3>()  y = Add(x, w)
            k = Constant<value_floats = [1.0, 2.0]>()  v = Add(u, k) }""",
    ),
]
