"""Operators with graphs and of sequences, and constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, helper

from onnxfix.proof.symbolic import hashes
from onnxfix.proof.symbolic.calls import Call, Value, attribute_tensor, operator
from onnxfix.proof.symbolic.elements import add, modulo
from onnxfix.proof.symbolic.evaluate import SPECIAL, Evaluator, Frame, spread, summarize
from onnxfix.proof.symbolic.logic import where
from onnxfix.proof.symbolic.moves import broadcast, number, pick, reshape, transpose
from onnxfix.proof.symbolic.tensor import T, Tensor, atoms, constant

UNROLLED = 128
"""Iterations up to which a loop is unrolled."""


def _constant(side: Evaluator, frame: Frame, call: Call) -> Sequence[Value]:
    attribute = next(iter(call.node.attribute))
    if attribute.type == AttributeProto.TENSOR:
        return [side.initializer(attribute.t)]
    if attribute.type == AttributeProto.SPARSE_TENSOR:
        raise call.stuck("sparse constants are not read")
    value = call.attributes[attribute.name]
    dtype: Any = np.float32 if "float" in attribute.name else np.int64 if "int" in attribute.name else object
    return [constant(np.array(value, dtype), T.STRING if dtype is object else 0)]


def _constant_of_shape(side: Evaluator, frame: Frame, call: Call) -> Sequence[Value]:
    shape = call.integers(0) or []
    attribute = next((one for one in call.node.attribute if one.name == "value"), None)
    value = attribute_tensor(attribute) if attribute is not None else constant(np.zeros((1,), np.float32))
    return [broadcast(reshape(value, ()), tuple(shape))]


def _dropout(side: Evaluator, frame: Frame, call: Call) -> Sequence[Value]:
    training = call.known(2) if call.version >= 12 else None
    if (training is not None and training.any()) or call.version < 7 or any(call.node.output[1:]):
        return side.black_box(frame, call)
    return [call.tensor(0)]


def _if(side: Evaluator, frame: Frame, call: Call) -> Sequence[Value]:
    condition = call.tensor(0)
    graphs = {one.name: one.g for one in call.node.attribute}
    if condition.known is not None:
        return side.branch(frame, graphs["then_branch" if condition.known.ravel()[0] else "else_branch"], {})
    results: list[Value] = []
    for one, other in zip(
        *(side.branch(frame, graphs[name], {}) for name in ("then_branch", "else_branch")), strict=True
    ):
        if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.shape != other.shape:
            raise call.stuck("its branches have results of different shapes")
        results.append(where(reshape(condition, ()), one.settled(), other.settled()))
    return results


def _loop(side: Evaluator, frame: Frame, call: Call) -> Sequence[Value]:
    body = next(one.g for one in call.node.attribute if one.name == "body")
    trips = call.tensor(0) if call.has(0) else None
    going = call.tensor(1) if call.has(1) else None
    carried = [one for one in call.inputs[2:] if one is not None]
    names = [one.name for one in body.input]
    stacked: list[list[Value]] = [[] for _ in body.output[1 + len(carried) :]]
    count = int(trips.known.ravel()[0]) if trips is not None and trips.known is not None else None
    if count is None or count > UNROLLED or (going is not None and going.known is None):
        return _repeat(side, frame, call, body, carried)
    if going is not None and going.known is not None and not going.known.ravel()[0]:
        count = 0
    for step in range(count):
        values = dict(
            zip(names, [constant(np.array(step, np.int64)), constant(np.array(True)), *carried], strict=False)
        )
        results = side.branch(frame, body, values)
        carried = results[1 : 1 + len(carried)]
        for rows, row in zip(stacked, results[1 + len(carried) :], strict=True):
            rows.append(row)
        on = results[0]
        if not isinstance(on, Tensor) or on.known is None:
            return _repeat(side, frame, call, body, [one for one in call.inputs[2:] if one is not None])
        if not on.known.ravel()[0]:
            break
    if any(not rows for rows in stacked):
        raise call.stuck("it stacks the results of no iteration")
    return [*carried, *(_stack(call, rows, 0) for rows in stacked)]


def _repeat(
    side: Evaluator, frame: Frame, call: Call, body: GraphProto, carried: Sequence[Value]
) -> Sequence[Value]:
    """A loop as a function of its beginning, by what its body does to values that are not known: two loops are the
    same whose bodies do the same."""
    if len(body.output) > 1 + len(carried) and any(call.node.output[len(carried) :]):
        raise call.stuck("the number of its iterations is not known before the model runs", 0, 1)
    state: list[Tensor] = []
    depth = frame.depth()  # a loop inside of another one has values of its own
    for place, one in enumerate(carried):
        if not isinstance(one, Tensor):
            raise call.stuck("it carries a sequence", 0, 1)
        state.append(atoms(f"loop {depth} {place} {one.dtype} {one.shape}", one.dtype, one.shape))
    inside: list[Value] = [
        atoms(f"loop {depth} step", T.INT64, ()),
        atoms(f"loop {depth} condition", T.BOOL, ()),
        *state,
    ]
    results = side.branch(frame, body, dict(zip((one.name for one in body.input), inside, strict=False)))
    for one, result in zip(state, results[1:], strict=False):
        if not isinstance(result, Tensor) or (result.shape, result.dtype) != (one.shape, one.dtype):
            raise call.stuck("what it carries changes its shape")
    begin = [summarize(one) for one in (*call.inputs[:2], *carried)]
    content = hashes.mix("loop", *begin, *(summarize(one) for one in results))
    outputs: list[Value] = []
    for place, one in enumerate(state):
        outputs.append(spread(f"loop result {place}", lambda: content, one.dtype, one.shape))
    return outputs


def _stack(call: Call, rows: Sequence[Value], axis: int) -> Tensor:
    tensors = [one for one in rows if isinstance(one, Tensor)]
    if len(tensors) < len(rows) or len({one.shape for one in tensors}) > 1:
        raise call.stuck("results of different shapes are stacked")
    return pick(tensors, np.stack(number(tensors), axis))


def _scan(side: Evaluator, frame: Frame, call: Call) -> Sequence[Value]:
    body = next(one.g for one in call.node.attribute if one.name == "body")
    scanned = call.attributes["num_scan_inputs"]
    states = list(call.inputs[: len(call.inputs) - scanned])
    sources = [call.tensor(index) for index in range(len(states), len(call.inputs))]
    outputs = len(body.output) - len(states)
    zeros = [0] * max(scanned, outputs)
    axes, ways, out_axes, out_ways = (
        call.attributes.get(f"scan_{name}") or zeros
        for name in ("input_axes", "input_directions", "output_axes", "output_directions")
    )
    length = sources[0].shape[axes[0]]
    if call.version < 9 or not 0 < length <= UNROLLED:
        raise call.stuck(f"it has {length} steps")
    stacked: list[list[Value]] = [[] for _ in range(outputs)]
    for step in range(length):
        parts = [
            pick([one], np.take(number([one])[0], length - 1 - step if way else step, axis))
            for one, axis, way in zip(sources, axes, ways, strict=False)
        ]
        given = dict(zip((one.name for one in body.input), [*states, *parts], strict=True))
        results = side.branch(frame, body, {name: one for name, one in given.items() if one is not None})
        states = list(results[: len(states)])
        for rows, row in zip(stacked, results[len(states) :], strict=True):
            rows.append(row)
    ordered = [rows[::-1] if way else rows for rows, way in zip(stacked, out_ways, strict=False)]
    ends = [one for one in states if one is not None]
    return [*ends, *(_stack(call, rows, axis) for rows, axis in zip(ordered, out_axes, strict=False))]


def _sequence(call: Call, index: int) -> tuple[Value, ...]:
    value = call.inputs[index]
    if not isinstance(value, tuple):
        raise call.stuck("an input is not a sequence")
    return value


def _has_element(side: Evaluator, frame: Frame, call: Call) -> Sequence[Value]:
    return [constant(np.array(call.has(0)))]


def _sequence_at(side: Evaluator, frame: Frame, call: Call) -> Sequence[Value]:
    return [_sequence(call, 0)[(call.integers(1) or [0])[0]]]


def _sequence_insert(side: Evaluator, frame: Frame, call: Call) -> Sequence[Value]:
    rows, value = list(_sequence(call, 0)), call.inputs[1]
    place = (call.integers(2) or [0])[0] if call.has(2) else len(rows)
    if value is None or not -len(rows) <= place <= len(rows):
        raise call.stuck("it inserts nothing, or at no place")
    rows.insert(place, value)
    return [tuple(rows)]


def _batch_first(side: Evaluator, frame: Frame, call: Call) -> Sequence[Value]:
    """Recurrent layers with the batch first, by those with the time first."""
    if not call.attributes.get("layout"):
        return side.black_box(frame, call)
    node = NodeProto()
    node.CopyFrom(call.node)
    del node.attribute[:]
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
    """ScatterElements by indices that count from where each row of the batch begins."""
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


def _concat_sequence(side: Evaluator, frame: Frame, call: Call) -> Sequence[Value]:
    axis = call.attributes["axis"]
    tensors = [one.settled() for one in _sequence(call, 0) if isinstance(one, Tensor)]
    if call.attributes.get("new_axis"):
        return [_stack(call, tensors, axis)]
    return [pick(tensors, np.concatenate(number(tensors), axis))]


def _split_sequence(side: Evaluator, frame: Frame, call: Call) -> Sequence[Value]:
    x, axis = call.tensor(0), call.attributes["axis"]
    size = x.shape[axis]
    if not call.has(1):
        parts, keep = [1] * size, bool(call.attributes["keepdims"])
    else:
        split, keep = call.known(1), True
        assert split is not None
        step = int(split.ravel()[0]) if split.size else 1
        parts = (
            [int(one) for one in split.ravel()]
            if split.ndim
            else [min(step, size - at) for at in range(0, size, step)]
        )
    pieces = np.split(number([x])[0], np.cumsum(parts)[:-1], axis)
    return [tuple(pick([x], one if keep else np.squeeze(one, axis)) for one in pieces)]


SPECIAL.update(
    {
        "Constant": _constant,
        "ConstantOfShape": _constant_of_shape,
        "Dropout": _dropout,
        "If": _if,
        "Loop": _loop,
        "Scan": _scan,
        "SequenceConstruct": lambda side, frame, call: [tuple(one for one in call.inputs if one is not None)],
        **dict.fromkeys(("RNN", "GRU", "LSTM"), _batch_first),
        "SequenceInsert": _sequence_insert,
        "SequenceEmpty": lambda side, frame, call: [()],
        "SequenceLength": lambda side, frame, call: [constant(np.array(len(_sequence(call, 0)), np.int64))],
        "SequenceAt": _sequence_at,
        "OptionalHasElement": _has_element,
        "OptionalGetElement": lambda side, frame, call: [
            () if one is None else one for one in call.inputs[:1]
        ],
        "ConcatFromSequence": _concat_sequence,
        "SplitToSequence": _split_sequence,
    }
)
