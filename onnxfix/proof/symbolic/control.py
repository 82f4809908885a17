"""Evaluates control flow, sequences and constants symbolically, and some operators by way of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, helper, numpy_helper

from onnxfix.proof.symbolic import hashes
from onnxfix.proof.symbolic.calls import OPERATORS, Call, Value, operator
from onnxfix.proof.symbolic.elements import add, modulo
from onnxfix.proof.symbolic.evaluate import SPECIAL, Evaluator, Frame, spread, summarize
from onnxfix.proof.symbolic.logic import where
from onnxfix.proof.symbolic.moves import broadcast, number, pick, reshape, transpose
from onnxfix.proof.symbolic.tensor import T, Tensor, Undecided, atoms, constant, fill

UNROLLED = 128
"""Most iterations of a loop that is unrolled."""


def _constant(side: Evaluator, frame: Frame, call: Call) -> Sequence[Value]:
    attribute = next(iter(call.node.attribute))
    if attribute.type == AttributeProto.TENSOR:
        return [side.initializer(attribute.t)]
    if attribute.type == AttributeProto.SPARSE_TENSOR:
        raise call.stuck("sparse constants are not read")
    value = call.attributes[attribute.name]
    dtype: Any = np.float32 if "float" in attribute.name else np.int64 if "int" in attribute.name else object
    return [constant(np.array(value, dtype), T.STRING if dtype is object else 0)]


@operator("ConstantOfShape")
def _constant_of_shape(call: Call) -> Tensor:
    value = fill(0, T.FLOAT)
    for one in call.node.attribute:
        value = reshape(constant(numpy_helper.to_array(one.t), one.t.data_type), ())
    return broadcast(value, tuple(call.integers(0) or ()))


@operator("Dropout")
def _dropout(call: Call) -> Tensor | None:
    training = call.known(2) if call.version >= 12 else None
    draws = (training is not None and training.any()) or call.version < 7 or any(call.node.output[1:])
    return None if draws else call.tensor(0)


def _if(side: Evaluator, frame: Frame, call: Call) -> Sequence[Value]:
    condition = call.tensor(0)
    graphs = [_graph(call, name) for name in ("then_branch", "else_branch")]
    if condition.known is not None:
        return side.branch(frame, graphs[0 if condition.known.ravel()[0] else 1], {})
    results: list[Value] = []
    for one, other in zip(*(side.branch(frame, graph, {}) for graph in graphs), strict=True):
        if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.shape != other.shape:
            raise call.stuck("its branches have results of different shapes")
        results.append(where(reshape(condition, ()), one.settled(), other.settled()))
    return results


def _graph(call: Call, name: str) -> GraphProto:
    return next(one.g for one in call.node.attribute if one.name == name)


def _loop(side: Evaluator, frame: Frame, call: Call) -> Sequence[Value]:
    body, begin = _graph(call, "body"), [one for one in call.inputs[2:] if one is not None]
    try:
        trips, condition = call.known(0), call.known(1)
    except Undecided:
        return _repeat(side, frame, call, body, begin)
    if trips is None or trips.ravel()[0] > UNROLLED:
        return _repeat(side, frame, call, body, begin)
    carried, rows = begin, list[list[Value]]()
    for step in range(int(trips.ravel()[0]) if condition is None or condition.ravel()[0] else 0):
        values = [constant(np.array(step, np.int64)), fill(True, T.BOOL), *carried]
        inside = dict(zip((one.name for one in body.input), values, strict=False))
        proceed, *results = side.branch(frame, body, inside)
        if not isinstance(proceed, Tensor) or proceed.known is None:
            return _repeat(side, frame, call, body, begin)
        carried = results[: len(begin)]
        rows.append(results[len(begin) :])
        if not proceed.known.ravel()[0]:
            break
    if not rows and len(body.output) > 1 + len(begin):
        raise call.stuck("it stacks the results of no iteration")
    return [*carried, *(_stack(call, column, 0) for column in zip(*rows, strict=True))]


def _repeat(
    side: Evaluator, frame: Frame, call: Call, body: GraphProto, carried: Sequence[Value]
) -> Sequence[Value]:
    """A loop that is not unrolled, as a function of its inputs and of what its body computes from unknown values: two
    loops with equal inputs and equal bodies have equal results."""
    if len(body.output) > 1 + len(carried) and any(call.node.output[len(carried) :]):
        raise call.stuck("the number of its iterations is not known before the model runs", 0, 1)
    depth = frame.depth()  # a nested loop has its own unknown values
    state = [one for one in carried if isinstance(one, Tensor)]
    if len(state) < len(carried):
        raise call.stuck("it carries a sequence", 0, 1)
    inside = [atoms(f"loop {depth} step", T.INT64, ()), atoms(f"loop {depth} condition", T.BOOL, ())]
    for place, one in enumerate(state):
        inside.append(atoms(f"loop {depth} {place} {one.dtype} {one.shape}", one.dtype, one.shape))
    results = side.branch(frame, body, dict(zip((one.name for one in body.input), inside, strict=False)))
    for before, after in zip(state, results[1:], strict=False):
        if not isinstance(after, Tensor) or (after.shape, after.dtype) != (before.shape, before.dtype):
            raise call.stuck("what it carries changes its shape")
    begin = [summarize(one) for one in (*call.inputs[:2], *carried)]
    content = hashes.mix("loop", *begin, *(summarize(one) for one in results))
    return [
        spread(f"loop result {place}", lambda: content, one.dtype, one.shape)
        for place, one in enumerate(state)
    ]


def _stack(call: Call, rows: Sequence[Value], axis: int) -> Tensor:
    tensors = [one for one in rows if isinstance(one, Tensor)]
    if len(tensors) < len(rows) or len({one.shape for one in tensors}) > 1:
        raise call.stuck("results of different shapes are stacked")
    return pick(tensors, np.stack(number(tensors), axis))


def _scan(side: Evaluator, frame: Frame, call: Call) -> Sequence[Value]:
    body, scanned = _graph(call, "body"), call.attributes["num_scan_inputs"]
    states = list(call.inputs[: len(call.inputs) - scanned])
    sources = [call.tensor(index) for index in range(len(states), len(call.inputs))]
    outputs = len(body.output) - len(states)
    zeros = [0] * max(scanned, outputs)
    axes, directions, out_axes, out_directions = (
        call.attributes.get(f"scan_{name}") or zeros
        for name in ("input_axes", "input_directions", "output_axes", "output_directions")
    )
    length = sources[0].shape[axes[0]]
    if call.version < 9 or not 0 < length <= UNROLLED:
        raise call.stuck(f"it has {length} steps")
    rows: list[Sequence[Value]] = []
    for step in range(length):
        parts = [
            pick([one], np.take(number([one])[0], length - 1 - step if reverse else step, axis))
            for one, axis, reverse in zip(sources, axes, directions, strict=False)
        ]
        inside = dict(zip((one.name for one in body.input), [*states, *parts], strict=True))
        results = side.branch(frame, body, {name: one for name, one in inside.items() if one is not None})
        states = list(results[: len(states)])
        rows.append(results[len(states) :])
    columns = zip(zip(*rows, strict=True), out_directions, out_axes, strict=False)
    stacked = [_stack(call, column[::-1] if reverse else column, axis) for column, reverse, axis in columns]
    return [*(one for one in states if one is not None), *stacked]


def _sequence(call: Call, index: int) -> tuple[Value, ...]:
    value = call.inputs[index]
    if not isinstance(value, tuple):
        raise call.stuck("an input is not a sequence")
    return value


def _batch_first(side: Evaluator, frame: Frame, call: Call) -> Sequence[Value]:
    """Evaluate a recurrent layer whose batch axis is first as the same layer with the time axis first."""
    if not call.attributes.get("layout"):
        return side.black_box(frame, call)
    node = helper.make_node(call.name, call.node.input, call.node.output)
    node.attribute.extend(one for one in call.node.attribute if one.name != "layout")
    moved = [
        transpose(one, (1, 0, 2)) if place in (0, 5, 6) and isinstance(one, Tensor) else one
        for place, one in enumerate(call.inputs)
    ]
    results = side.black_box(frame, replace(call, node=node, inputs=moved))
    orders = (2, 0, 1, 3), (1, 0, 2), (1, 0, 2)
    return [
        transpose(one, order) if isinstance(one, Tensor) else one
        for one, order in zip(results, orders, strict=False)
    ]


@operator("TensorScatter")
def _tensor_scatter(call: Call) -> Call:
    """Rewrite TensorScatter as ScatterElements, with indices that count from the write position of each batch row."""
    data, update = call.tensor(0), call.tensor(1)
    rank, axis = len(data.shape), call.axis(call.attributes["axis"], len(data.shape))
    count = np.arange(update.shape[axis]).reshape([-1 if place == axis else 1 for place in range(rank)])
    indices = constant(count)
    if call.has(2):
        indices = add(reshape(call.tensor(2), (data.shape[0], *[1] * (rank - 1))), indices)
    if call.attributes["mode"] == "circular":
        indices = modulo(indices, constant(np.array(data.shape[axis])))
    node = helper.make_node("ScatterElements", ["data", "indices", "update"], call.node.output, axis=axis)
    return Call(node, call.version, [data, broadcast(indices, update.shape), update])


@operator("ConcatFromSequence")
def _concat_sequence(call: Call) -> Tensor:
    axis = call.attributes["axis"]
    tensors = [one.settled() for one in _sequence(call, 0) if isinstance(one, Tensor)]
    if call.attributes.get("new_axis"):
        return _stack(call, tensors, axis)
    return pick(tensors, np.concatenate(number(tensors), axis))


@operator("SplitToSequence")
def _split_sequence(call: Call) -> Sequence[Value]:
    x, axis = call.tensor(0), call.attributes["axis"]
    size = x.shape[axis]
    split = call.known(1)
    keep = split is not None or bool(call.attributes["keepdims"])
    step = int(split.ravel()[0]) if split is not None and split.size else 1
    parts = (
        split if split is not None and split.ndim else [min(step, size - at) for at in range(0, size, step)]
    )
    pieces = np.split(number([x])[0], np.cumsum(parts)[:-1], axis)
    return [tuple(pick([x], one if keep else np.squeeze(one, axis)) for one in pieces)]


SPECIAL.update({"Constant": _constant, "If": _if, "Loop": _loop, "Scan": _scan})
SPECIAL.update(dict.fromkeys(("RNN", "GRU", "LSTM"), _batch_first))
OPERATORS.update(
    {
        "OptionalGetElement": lambda call: [() if one is None else one for one in call.inputs[:1]],
        "OptionalHasElement": lambda call: fill(call.has(0), T.BOOL),
        "SequenceAt": lambda call: [_sequence(call, 0)[(call.integers(1) or [0])[0]]],
        "SequenceConstruct": lambda call: [tuple(one for one in call.inputs if one is not None)],
    }
)
