"""Why a target rejects a node although it may import the operator: its type or its configuration.

The configurations were measured with TensorRT-RTX 1.7.1, one model each. Results of the
parser also hold for TensorRT 11; results of the builder hold only for TensorRT-RTX.
"""

from __future__ import annotations

from onnx import TensorProto

from onnxfix.rule import Model, Node, Target, Value, is_read, name_of

_HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_WINDOWS = frozenset({"BlackmanWindow", "HammingWindow", "HannWindow"})
HEADS = range(9, 257)
"""Head sizes that fused attention supports; 8 and 264 were rejected, 12 and 256 accepted."""


def data_of(node: Node) -> Value | None:
    """The value whose type determines a target's support."""
    return node.output(0) if node.op_type in _WINDOWS else node.input(0)


def reason(node: Node, model: Model, target: Target) -> str:
    """Why the target rejects this node; "" if it accepts the node, or if that is unknown."""
    if node.domain:
        return "no TensorRT has an importer for it" if node.domain.startswith("ai.onnx.preview") else ""
    rejection = _reason(node, model, target)
    if rejection and node.attr("reduction", "mean") not in ("none", "mean", "sum"):
        return ""  # invalid in ONNX: its body would treat it as a sum
    return rejection


def _reason(node: Node, model: Model, target: Target) -> str:
    if target.imports(node.op_type) is False:
        return target.missing.get(node.op_type) or "it has no importer for it"
    data = data_of(node)
    elem = None if data is None else model.shapes.elem_type(data)
    if elem and target.types_measured and target.accepts(node.op_type, elem) is False:
        return f"it does not support {name_of(elem)} there"
    if target.types_measured and node.op_type == "Celu" and elem in _HALF:
        return f"it does not support {name_of(elem)} there"
    if target.types_measured and node.op_type == "LayerNormalization" and any(map(is_read, node.outputs[1:])):
        return "it supports only one output"
    if target.types_measured and node.op_type == "Attention":
        return _attention(node) or _shapes_of_attention(node, model, target)
    return ""


def _attention(node: Node) -> str:
    """Why the parser rejects attributes, optional inputs or outputs. OPS015 covers ignored attributes."""
    if any(is_read(value) for value in node.outputs[1:]):
        return "it supports only one output"
    if node.input(4) is not None or node.input(5) is not None:
        return "it does not support past keys and values"
    if node.attr("softcap", 0.0) != 0:
        return "it does not support softcap"
    if node.attribute("softmax_precision") is not None:
        return "it does not support softmax_precision"
    if node.input(3) is not None and node.attr("is_causal", 0):
        return "it supports a mask or is_causal, not both"
    return ""


def _shapes_of_attention(node: Node, model: Model, target: Target) -> str:
    """Which head sizes and types the parser and, for TensorRT-RTX, the builder reject."""
    query, key, value = (node.input(index) for index in range(3))
    if query is None or key is None or value is None:
        return ""
    heads = node.attr("q_num_heads", 0), node.attr("kv_num_heads", 0)
    size, value_size = _head_size(key, heads[1], model), _head_size(value, heads[1], model)
    if size is not None and value_size is not None and size != value_size:
        return "it requires values of the same size as the keys"
    elem, rank = model.shapes.elem_type(query), model.shapes.rank(query)
    if target.package != "tensorrt-rtx" or elem is None or rank is None:
        return ""
    if _in_a_body(node):
        return "its builder does not support attention in If, Loop or Scan"
    is_plain = rank == 3 and node.input(3) is None and not node.attr("is_causal", 0) and heads[0] == heads[1]
    is_static = all(model.shapes.static_shape(tensor) is not None for tensor in (query, key, value))
    if is_plain and is_static:
        return ""
    if elem not in _HALF:
        return f"its builder does not support attention in {name_of(elem)}"
    if size is not None and size not in HEADS:
        return f"its builder does not support attention with heads of {size}"
    return ""


def _in_a_body(node: Node) -> bool:
    """Whether the node stays in a subgraph. The taken branch of an If with a constant condition does not."""
    while (owner := node.scope.owner) is not None:
        condition = owner.input(0)
        if owner.op_type != "If" or condition is None or not condition.is_constant:
            return True
        node = owner
    return False


def _head_size(value: Value, heads: int, model: Model) -> int | None:
    shape = model.shapes.shape(value)
    if shape is None or len(shape) not in (3, 4):
        return None
    last = shape[-1].value
    if last is None or len(shape) == 4:
        return last
    return last // heads if heads else None
