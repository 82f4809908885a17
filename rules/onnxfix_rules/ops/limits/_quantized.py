"""uint8 tensors that come from a QuantizeLinear, which TensorRT imports as int8.

Its parser imports a QuantizeLinear to uint8 as a QUANTIZE layer whose output is INT8, or refuses the zero point; the
nodes that follow get INT8, which they move, pool and add (measured with TensorRT-RTX 1.7.1). The rules about
quantization cover what is wrong with such values, and their fixes also replace the nodes in between. A Cast back to
uint8 among them is refused: ``TensorRT does not support UINT8 types for intermediate tensors``.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfix.rule import Model, Node, Value, every_node, shared

_MAKERS = frozenset({("", "QuantizeLinear"), ("com.microsoft", "QuantizeLinear")})
_ENDS = frozenset({("", "Cast"), ("", "DequantizeLinear"), ("com.microsoft", "DequantizeLinear")})


def is_quantized(value: Value, model: Model) -> bool:
    """Whether a uint8 tensor comes, or may come, from a QuantizeLinear in the graph."""
    return value in shared(model, _quantized)


def _quantized(model: Model) -> frozenset[Value]:
    """All uint8 tensors downstream of a QuantizeLinear through nodes that keep the type, at any depth."""
    makers = every_node(model).of(lambda operator: operator in _MAKERS - model.function_names)
    if not makers:
        return frozenset()
    callers: dict[object, list[Node]] = {}
    if model.functions:
        for node in every_node(model):
            callers.setdefault(node.function, []).append(node)
    pending = [value for node in makers for value in node.outputs[:1] if value is not None]
    found: set[Value] = set()
    while pending:
        value = pending.pop()
        if value in found or model.shapes.elem_type(value) not in (TensorProto.UINT8, None):
            continue
        found.add(value)
        pending.extend(_next(value, callers))
    return frozenset(found)


def _next(value: Value, callers: dict[object, list[Node]]) -> Iterator[Value]:
    """Values that ``value`` is passed to as, and values that may be computed from it."""
    for use in value.uses:
        node = use.node
        called = node.function
        if called is not None and use.index < len(called.inputs):
            yield called.inputs[use.index]
        for body in node.subgraphs:
            yield from body.inputs
        if (node.domain, node.op_type) not in _ENDS:
            yield from (output for output in node.outputs if output is not None)
    scope = value.scope
    if value in scope.outputs:
        around = callers.get(scope, []) if scope.kind == "function" else [scope.owner]
        for user in around:
            if user is not None:
                yield from (output for output in user.outputs if output is not None)
                for body in user.subgraphs:
                    yield from body.inputs
