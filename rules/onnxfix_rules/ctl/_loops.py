"""Shared by the rules about Loop: its body, whether its condition can end it, and replacing the condition by true."""

from __future__ import annotations

import operator

import numpy as np
from onnx import TensorProto

from onnxfix.files import tensors
from onnxfix.rule import Draft, Edit, Model, Node, Scope, Value

_COMPARISONS = {
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
}


def body_of(node: Node) -> Scope | None:
    """The body of a well-formed Loop, or None."""
    if len(node.subgraphs) != 1:
        return None
    body = node.subgraphs[0]
    carried = len(node.inputs) - 2
    if carried < 0 or len(body.inputs) != carried + 2:
        return None
    if len(body.outputs) < max(carried + 1, len(node.outputs) + 1):
        return None
    return body


def runs(node: Node, body: Scope, model: Model, most: int) -> int | None:
    """How often the body runs, if its trip count or a counter in its condition says so; None if more than ``most``."""
    if not begins(node, model):
        return None
    count = trips(node, model, most)
    if goes_on(body, model):
        return count
    if node.input(0) is not None and trips(node, model, np.iinfo(np.int64).max) is None:
        return None
    test = body.outputs[0].producer
    while test is not None and test.is_onnx and test.op_type == "Identity":
        test = test.require(0).producer
    if test is None or not test.is_onnx or test.op_type not in _COMPARISONS:
        return None
    left, right = (_progress(test.require(index), node, body, model) for index in (0, 1))
    if left is None or right is None:
        return None
    holds = _COMPARISONS[test.op_type]
    for number in range(most if count is None else count):
        if not holds(left[0] + number * left[1], right[0] + number * right[1]):
            return number + 1
    return count


def _progress(value: Value, node: Node, body: Scope, model: Model) -> tuple[int, int] | None:
    """What an integer is in the first iteration, and by how much it grows in each; None if unknown."""
    if (number := _integer(value, model)) is not None:
        return number, 0
    if value is body.inputs[0]:
        return 0, 1
    if value in body.inputs[2:]:
        place = body.inputs.index(value)
        start = node.input(place)
        first, step = (
            None if start is None else _integer(start, model),
            _step(body.outputs[place - 1], value, model),
        )
        return None if first is None or step is None else (first, step)
    for state, result in zip(body.inputs[2:], body.outputs[1:], strict=False):
        if result is value and (before := _progress(state, node, body, model)) is not None:
            return before[0] + before[1], before[1]
    return None


def _step(result: Value, state: Value, model: Model) -> int | None:
    """What is added to a state in each iteration; None if it is not a constant."""
    node = result.producer
    if node is None or not node.is_onnx or node.op_type != "Add":
        return None
    first, second = node.require(0), node.require(1)
    return _integer(second if first is state else first, model) if state in (first, second) else None


def _integer(value: Value, model: Model) -> int | None:
    array, known = value.constant(64), model.shapes.value(value)
    if array is None and known is not None and known.static is not None:
        array = np.array(known.static)
    if array is None or array.size != 1 or array.dtype.kind != "i":
        return None
    return int(array.reshape(-1)[0])


def trips(node: Node, model: Model, most: int) -> int | None:
    """The trip count if it is constant and at most ``most``, else None."""
    count = node.input(0)
    if count is None:
        return None
    array = count.constant(64)
    if array is None:
        known = model.shapes.value(count)
        array = None if known is None or known.static is None else np.array(known.static, np.int64)
    if array is None or array.size != 1 or array.dtype != np.int64:
        return None
    number = int(array.reshape(-1)[0])
    return number if 0 <= number <= most else None


def begins(node: Node, model: Model) -> bool:
    """Whether the Loop's initial condition is certainly true, or omitted, which is equivalent."""
    condition = node.input(1)
    return condition is None or always_true(condition, None, model)


def goes_on(body: Scope, model: Model) -> bool:
    """Whether the body returns true whenever its condition is true."""
    return always_true(body.outputs[0], body.inputs[1], model)


def always_true(value: Value, given: Value | None, model: Model, *, defaults: bool = False) -> bool:
    """Whether the value is certainly true if ``given`` is; ``defaults``: unless a caller overrides a default."""
    pending, seen = [value], {value}
    while pending:
        value = pending.pop()
        if value is given or _known_true(value, model, defaults):
            continue
        node = value.producer
        if node is None or not node.is_onnx or node.op_type not in ("Identity", "And"):
            return False
        for source in node.inputs:
            if source is None:
                return False
            if source not in seen:
                seen.add(source)
                pending.append(source)
    return True


def _known_true(value: Value, model: Model, defaults: bool) -> bool:
    array = value.constant()
    if defaults and value.is_input and value.initializer is not None:
        array = tensors.to_array(value.initializer, model.base_dir, 16)
    if array is not None:
        return array.dtype == np.bool_ and array.size == 1 and bool(array.all())
    known = model.shapes.value(value)
    return known is not None and known.static == (1,)


def scalar(value: Value) -> bool:
    """Whether the body's counter or condition is declared as a scalar, or without a shape, which is equivalent."""
    declared = value.declared
    return declared is None or len(declared.tensor_type.shape.dim) == 0


def counter_shape(counter: Value) -> tuple[int, ...] | None:
    """The shape that is declared for the counter: that of a scalar, or of a vector of one element; None for another."""
    if scalar(counter):
        return ()
    dims = [] if counter.declared is None else list(counter.declared.tensor_type.shape.dim)
    return (1,) if len(dims) == 1 and dims[0].dim_value == 1 else None


def true_inside(body: Scope) -> list[Edit] | None:
    """Edits that replace the body's condition by true for its readers; None if that is not possible."""
    inner = body.inputs[1]
    declared = 0 if inner.declared is None else inner.declared.tensor_type.elem_type
    if not inner.replaceable or not scalar(inner) or declared not in (0, TensorProto.BOOL):
        return None
    if not inner.use_count:
        return []
    if body.opset() < 9 and body.root.kind == "function":  # constants are nodes there, and none is boolean
        return None
    draft = Draft(body.nodes[0])
    draft.replace_uses(inner, draft.constant(np.array(True), "true"))
    return draft.edits
