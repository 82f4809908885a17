"""Selects between the results of an If's branches, where nothing that a branch does can fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, TensorProto

from onnxfix.rule import (
    AddNode,
    Dim,
    Draft,
    Fix,
    Model,
    Node,
    RemoveNode,
    Safety,
    Scope,
    Value,
    dtypes,
    equal,
    is_read,
)
from onnxfix_rules.ctl import _inline
from onnxfix_rules.gra import _common

_PRODUCTS = frozenset(("Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"))
_UNARY = frozenset(
    (
        "Abs", "Ceil", "Constant", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity",
        "LeakyRelu", "Log", "LogSoftmax", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Shape", "Sigmoid",
        "Sign", "Sin", "Softmax", "Softplus", "Softsign", "Sqrt", "Tanh", "Transpose", "Trilu",
    )
)  # fmt: skip
_BINARY = frozenset(("Add", "Div", "Max", "Min", "Mul", "Pow", "Sub"))
_OF_INTEGERS = frozenset(
    ("Add", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mul", "Sub")
)
_REDUCTIONS = frozenset(
    (
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare",
    )
)  # fmt: skip
_SELECTED = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16))
_ANYWHERE = _SELECTED | {TensorProto.INT32, TensorProto.INT64}
_MOST_NODES = 100
_END = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class _Step:
    """How a value is made: by the first branch's nodes, by a copy of ``node`` on ``inputs``, by a Where, or by a Concat
    of ``parts``, of which the ``optional`` ones are in one branch only."""

    first: Value
    second: Value
    node: Node | None = None
    inputs: tuple[_Step | None, ...] = ()
    parts: tuple[Value, ...] = ()
    optional: frozenset[int] = frozenset()


class Selection:
    """The results of two branches, selected by the condition of the If without running one branch only."""

    def __init__(self, node: Node, then: Scope, other: Scope, model: Model) -> None:
        self.draft = Draft(node)
        self._scopes = (then, other)
        self._inliners = {scope: _inline.Inliner(self.draft, scope) for scope in self._scopes}
        self._model = model
        self._steps: dict[tuple[Value, Value], _Step | None] = {}
        self._names: dict[Value | _Step, str] = {}
        self._pairs: dict[tuple[Node, Node], bool] = {}
        self._condition = ""
        self.exact = True

    def plan(self, first: Value, second: Value, *, result: bool = True) -> _Step | None:
        """How to select between two values of the branches; None if their nodes may fail or differ in shape."""
        if len(self._scopes[0].nodes) + len(self._scopes[1].nodes) > _MOST_NODES:
            return None
        first, second = _source(first, self._scopes[0]), _source(second, self._scopes[1])
        key = (first, second)
        if key not in self._steps:
            self._steps[key] = self._plan(first, second, result)
        return self._steps[key]

    def _plan(self, first: Value, second: Value, result: bool) -> _Step | None:
        outside = self._hoists(first, self._scopes[0])
        if outside and (first is second or _equal(first, second)):
            return _Step(first, first)
        alike = self._alike(first, second)
        if alike is None:
            alike = self._joined(first, second)
        if alike is not None:
            return alike
        shapes = self._model.shapes
        elem = shapes.elem_type(first)
        if elem != shapes.elem_type(second) or elem not in (_ANYWHERE if result else _SELECTED):
            return None
        fits = outside and self._hoists(second, self._scopes[1]) and shapes.same_shape(first, second).yes
        return _Step(first, second) if fits else None

    def _alike(self, first: Value, second: Value) -> _Step | None:
        """The same operator in both branches, on what is selected."""
        one, two = first.producer, second.producer
        if one is None or two is None or (first.scope, second.scope) != self._scopes:
            return None
        if not (one.is_onnx and two.is_onnx) or one.subgraphs or one.op_type in _common.RANDOM:
            return None
        if _form(one) != _form(two) or first.output_index != second.output_index:
            return None
        steps: list[_Step | None] = []
        for given, other in zip(one.inputs, two.inputs, strict=True):
            if (given is None) != (other is None):
                return None
            step = None if given is None or other is None else self.plan(given, other, result=False)
            if given is not None and step is None:
                return None
            steps.append(step)
            weights = step is not None and step.first is not step.second and step.first.is_constant
            # Kernels for weights and for computed operands round differently.
            if weights and one.op_type in _PRODUCTS:
                self.exact = False
        return _Step(first, second, one, tuple(steps))

    def _joined(self, first: Value, second: Value) -> _Step | None:
        """A Concat, of whose parts the other branch has some. Its Slices need sizes that are computed from data, which
        TensorRT takes in the main graph only."""
        few, many = (_parts(value, scope) for value, scope in zip((first, second), self._scopes, strict=True))
        swapped = len(few) > len(many)
        if swapped:
            few, many = many, few
        node, other = (second, first)[swapped].producer, (first, second)[swapped].producer
        if node is None or len(many) < 2 or self.draft.anchor.scope is not self._model.main:
            return None
        if len(few) > 1 and other is not None and other.attr("axis") != node.attr("axis"):
            return None
        left, optional = list(few), set()
        for number, part in enumerate(many):
            if left and part is left[0]:
                left.pop(0)
            else:
                optional.add(number)
        if left or not optional:
            return None
        shapes = [self._model.shapes.shape(part) for part in many]
        if not _join(shapes, node.attr("axis")) or not all(self._hoists(part, node.scope) for part in many):
            return None
        return _Step(first, second, node, parts=tuple(many), optional=frozenset(optional))

    def _hoists(self, value: Value, scope: Scope) -> bool:
        """Whether the nodes that compute a value in a branch never fail, or run in both, and work outside of it."""
        nodes = _inline.needed(scope, [value])
        if nodes is None:
            return False
        if not all(_never_fails(node, self._model) or self._runs_in_both(node, scope) for node in nodes):
            return False
        return _inline.movable(nodes, [value], scope, self.draft.anchor)

    def _runs_in_both(self, node: Node, scope: Scope) -> bool:
        """Whether the other branch computes the same from the same operands, so that the node runs in any case."""
        other = self._scopes[scope is self._scopes[0]]
        live = _inline.needed(other, other.outputs) or ()
        return any(self._same(node, one) for one in live if one.op_type == node.op_type)

    def _same(self, one: Node, two: Node) -> bool:
        if (one, two) not in self._pairs:
            alike = one.is_onnx and two.is_onnx and not one.subgraphs and one.op_type not in _common.RANDOM
            self._pairs[one, two] = (
                alike
                and _form(one) == _form(two)
                and all(map(self._equals, one.inputs, two.inputs, [one.scope] * len(one.inputs)))
            )
        return self._pairs[one, two]

    def _equals(self, first: Value | None, second: Value | None, scope: Scope) -> bool:
        """Whether an operand of a node in ``scope`` is that of a node in the other branch."""
        if first is None or second is None:
            return first is second
        other = self._scopes[scope is self._scopes[0]]
        first, second = _source(first, scope), _source(second, other)
        if first is second or _equal(first, second):
            return True
        one, two = first.producer, second.producer
        if one is None or two is None or (first.scope, second.scope) != (scope, other):
            return False
        return first.output_index == second.output_index and self._same(one, two)

    def write(self, step: _Step) -> str:
        """Add the nodes of a step, and return the name of its result."""
        if step not in self._names:
            self._names[step] = self._write(step)
        return self._names[step]

    def _join_parts(self, step: _Step, node: Node) -> str:
        """A Concat of the parts, of which the optional ones have no elements where the other branch is taken. TensorRT
        takes no size from a boolean input, but from an ArgMax."""
        draft, place = self.draft, self._scopes.index(node.scope)
        half = draft.constant(np.array([[0.5]], np.float32), "half")
        flag = draft.reshape(draft.cast(draft.anchor.require(0), TensorProto.FLOAT), [1, 1])
        chosen = draft.add("Concat", [half, flag] if place == 0 else [flag, half], axis=1)
        count = draft.add("ArgMax", [chosen], axis=1, keepdims=0)
        axis = node.attr("axis")
        start, axes, after = draft.integers([0]), draft.integers([axis]), draft.integers([axis + 1 or _END])
        names = []
        for number, part in enumerate(step.parts):
            name = self._hoist(part, self._scopes[place])
            if number in step.optional:
                size = draft.add("Slice", [draft.add("Shape", [name]), axes, after])
                name = draft.add("Slice", [name, start, draft.add("Mul", [size, count]), axes])
            names.append(name)
        return draft.add("Concat", names, axis=axis)

    def _write(self, step: _Step) -> str:
        if step.node is not None and step.parts:
            return self._join_parts(step, step.node)
        if step.node is not None:
            inputs = ["" if one is None else self.write(one) for one in step.inputs]
            proto = NodeProto()
            proto.CopyFrom(step.node.proto)
            proto.ClearField("name")
            proto.input[:] = inputs
            proto.output[:] = [self.draft.name(one) if one else "" for one in proto.output]
            self.draft.edits.append(AddNode(self.draft.anchor.scope, proto, self.draft.anchor))
            return proto.output[step.first.output_index]
        first = self._hoist(step.first, self._scopes[0])
        if step.first is step.second:
            return first
        condition = self.draft.anchor.require(0)
        if not self._condition:
            scalar = self._model.shapes.rank(condition) == 0
            self._condition = condition.name if scalar else self.draft.squeeze(condition, [0])
        return self.draft.add("Where", [self._condition, first, self._hoist(step.second, self._scopes[1])])

    def _hoist(self, value: Value, scope: Scope) -> str:
        if value not in self._names:
            nodes = [one for one in _inline.needed(scope, [value]) or () if one.outputs[0] not in self._names]
            made = self._inliners[scope].copy(
                nodes, {v: n for v, n in self._names.items() if isinstance(v, Value)}, {}
            )
            self._names.update({v: n for v, n in made.items() if v.scope is scope})
            self._names[value] = self._inliners[scope].name(value, made)
        return self._names[value]


def by_where(node: Node, then: Scope, other: Scope, model: Model) -> Fix | None:
    """Selects every output of an If; None if one cannot be."""
    condition = node.require(0)
    if model.shapes.rank(condition) not in (0, 1) or node.scope.opset() < 9:
        return None
    selection = Selection(node, then, other, model)
    steps = []
    for output, a, b in zip(node.outputs, then.outputs, other.outputs, strict=False):
        if output is None or not is_read(output):
            continue
        step = selection.plan(a, b)
        if step is None:
            return None
        steps.append((output, a, step))
    draft = selection.draft
    names = [selection.write(step) for *_, step in steps]
    safety = Safety.EXACT if selection.exact else Safety.NUMERIC
    if len(node.outputs) == 1:
        draft.replace_output(node, names[0])
        return Fix("select by Where", draft.edits, safety)
    draft.edits.insert(0, RemoveNode(node))
    if not all(
        _inline.deliver(draft, output, name, a) for (output, a, _), name in zip(steps, names, strict=True)
    ):
        return None
    return Fix("select by Where", draft.edits, safety)


def _parts(value: Value, scope: Scope) -> list[Value]:
    """The parts of a branch's Concat; any other value is its only part."""
    node = value.producer
    if (
        value.scope is not scope
        or node is None
        or not node.is_onnx
        or node.op_type != "Concat"
        or node.opset < 11
    ):
        return [value]
    return [_source(part, scope) for part in node.inputs if part is not None]


def _join(shapes: Sequence[tuple[Dim, ...] | None], axis: int) -> bool:
    """Whether the sizes beside the axis are known to be equal, also where the axis has no elements."""
    sized = [shape for shape in shapes if shape is not None]
    if len(sized) < len(shapes) or len({len(shape) for shape in sized}) > 1:
        return False
    others = [[*shape[:axis], *shape[axis:][1:]] for shape in sized]
    return all(equal(one, two).yes for shape in others for one, two in zip(others[0], shape, strict=True))


def _source(value: Value, scope: Scope) -> Value:
    """What a branch's value is a copy of."""
    while value.scope is scope and value.producer is not None and value.producer.is_onnx:
        if value.producer.op_type != "Identity":
            break
        value = value.producer.require(0)
    return value


def _equal(first: Value, second: Value) -> bool:
    """Whether both are the same small constant."""
    one, two = first.constant(1024), second.constant(1024)
    if one is None or two is None or one.dtype != two.dtype or one.shape != two.shape:
        return False
    return bool(np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(two).tobytes())


def _form(node: Node) -> tuple[object, ...]:
    attributes = sorted(one.SerializeToString(deterministic=True) for one in node.proto.attribute)
    return (node.op_type, attributes, len(node.inputs), [bool(one) for one in node.proto.output])


def _never_fails(node: Node, model: Model) -> bool:
    """Whether a node computes a result for all values and sizes that its inputs can have."""
    if not node.is_onnx:
        return False
    if node.op_type in _UNARY:
        return True
    given = [one for one in node.inputs if one is not None]
    if node.op_type == "Where":
        return model.shapes.rank(given[0]) == 0 and model.shapes.same_shape(*given[1:]).yes
    elem = model.shapes.elem_type(given[0]) if given else None
    if node.op_type == "Cast":
        return elem in _ANYWHERE and node.attr("to") in _ANYWHERE
    if node.op_type == "Squeeze":
        return model.shapes.static_shape(node.require_output()) is not None
    if elem is None or not (dtypes.is_float(elem) or node.op_type in _OF_INTEGERS):
        return False
    if node.op_type in _REDUCTIONS:
        return all(one.is_constant for one in given[1:])
    if node.op_type == "Slice":  # takes any starts and ends, and as many of them as axes
        counts = {model.shapes.static_shape(one) for one in given[1:]}
        return len(given) == 4 and given[3].is_constant and len(counts) == 1 and None not in counts
    if node.op_type not in _BINARY | _OF_INTEGERS or len(given) != 2:
        return False
    return 0 in map(model.shapes.rank, given) or any(
        _broadcasts(model.shapes.shape(small), model.shapes.shape(large))
        for small, large in (given, reversed(given))
    )


def _broadcasts(small: tuple[Dim, ...] | None, large: tuple[Dim, ...] | None) -> bool:
    """Whether every size of ``small`` is known to be 1 or that of ``large``, whatever the sizes are."""
    if small is None or large is None or len(small) > len(large):
        return False
    pairs = zip(reversed(small), reversed(large), strict=False)
    return all(one.value == 1 or equal(one, two).yes for one, two in pairs)
