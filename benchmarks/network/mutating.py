"""Small changes of a model: one element of a weight, one axis, one type that a Cast makes, one number."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from diagnose.places import FEWEST, TINY
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfix.files.walk import copied

Kind = Literal["weight", "axis", "cast", "constant"]

#: How an element of a weight changes: by the last bit, by a thousandth, to its negative, to zero.
AMOUNTS: dict[str, Callable[[Any], Any]] = {
    "last bit": lambda value: np.nextafter(value, value.dtype.type(np.inf)),
    "one part in 1,000": lambda value: value.dtype.type(float(value) * 1.001),
    "negated": lambda value: -value,
    "zeroed": lambda value: value.dtype.type(0),
}
FACTORS = (1.01, 1.1, 2.0)
"""What a number is multiplied with, in turn."""
_AXIS_INPUTS = {
    **dict.fromkeys(
        ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "Squeeze", "Unsqueeze"), 1
    ),
    "Slice": 3,
    "CumSum": 1,
}
#: What a Cast may make instead of a type, so that something is lost or not.
_OTHERS = {
    TensorProto.FLOAT: (TensorProto.FLOAT16, TensorProto.INT32, TensorProto.BOOL),
    TensorProto.FLOAT16: (TensorProto.BFLOAT16, TensorProto.INT32, TensorProto.BOOL),
    TensorProto.INT64: (TensorProto.INT32, TensorProto.INT8, TensorProto.BOOL),
    TensorProto.INT32: (TensorProto.INT64, TensorProto.INT8, TensorProto.BOOL),
    TensorProto.BOOL: (TensorProto.INT32, TensorProto.FLOAT),
    TensorProto.INT8: (TensorProto.UINT8,),
    TensorProto.UINT8: (TensorProto.INT8,),
}


@dataclass(frozen=True)
class Mutant:
    """A changed copy of a model. ``what`` says what was changed, in one line."""

    kind: str
    what: str
    model: ModelProto


def weights(model: ModelProto, rng: random.Random) -> Iterator[Mutant]:
    """One element of a floating-point initializer that is no scalar, without end; the amounts take turns."""
    floats = [
        place
        for place, tensor in enumerate(model.graph.initializer)
        if tensor.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16)
        and int(np.prod(tensor.dims)) >= FEWEST
        and tensor.raw_data
    ]
    number = 0
    while floats:
        name, change = list(AMOUNTS.items())[number % len(AMOUNTS)]
        number += 1
        copy = copied(model)
        tensor = copy.graph.initializer[rng.choice(floats)]
        array = numpy_helper.to_array(tensor).copy()
        at = rng.randrange(array.size)
        before = array.reshape(-1)[at]
        array.reshape(-1)[at] = change(before)
        if array.reshape(-1)[at] == before:
            continue
        where = list(map(int, np.unravel_index(at, array.shape)))
        what = f"{tensor.name}{where}: {before!s} → {array.reshape(-1)[at]!s} ({name})"
        tensor.raw_data = array.tobytes()  # and what else the tensor carries stays
        yield Mutant("weight", what, copy)


def axes(model: ModelProto, rng: random.Random) -> Iterator[Mutant]:
    """One axis of a node to another number, in random order of nodes; who takes them finds out which run."""
    stored = {tensor.name for tensor in model.graph.initializer}
    places = [n for n, node in enumerate(model.graph.node) if _has_axis(node, stored)]
    rng.shuffle(places)
    for place in places:
        copy = copied(model)
        node = copy.graph.node[place]
        what = _change_axis(copy, node, rng)
        if what:
            yield Mutant("axis", f"{node.op_type} {node.name}: {what}", copy)


def _has_axis(node: NodeProto, stored: set[str]) -> bool:
    if any(one.name in ("axis", "axes", "perm") for one in node.attribute):
        return True
    at = _AXIS_INPUTS.get(node.op_type)
    return at is not None and at < len(node.input) and node.input[at] in stored


def _change_axis(model: ModelProto, node: NodeProto, rng: random.Random) -> str:
    """Change one axis of a node of the model; returns what was changed."""
    for one in node.attribute:
        if one.name == "perm" and len(one.ints) > 1:
            before = list(one.ints)
            a, b = rng.sample(range(len(before)), 2)
            one.ints[a], one.ints[b] = before[b], before[a]
            return f"perm {before} → {list(one.ints)}"
        if one.name == "axis":
            before = one.i
            one.i = before - 1 if before != 0 else 1
            return f"axis {before} → {one.i}"
        if one.name == "axes" and one.type == AttributeProto.INTS and one.ints:
            before = list(one.ints)
            one.ints[0] = before[0] - 1 if before[0] != 0 else 1
            return f"axes {before} → {list(one.ints)}"
    at = _AXIS_INPUTS.get(node.op_type)
    if at is None or at >= len(node.input):
        return ""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    if node.input[at] not in stored:
        return ""
    array = numpy_helper.to_array(stored[node.input[at]]).copy()
    if not array.size:
        return ""
    before = array.tolist()
    first = array.reshape(-1)
    first[0] = first[0] - 1 if first[0] != 0 else 1
    name = f"{node.input[at]}/mutant"
    model.graph.initializer.append(numpy_helper.from_array(array, name))
    node.input[at] = name
    return f"axes {before} → {array.tolist()}"


def casts(model: ModelProto, rng: random.Random) -> Iterator[Mutant]:
    """The type of one Cast to another one, and back to the first, which those who read it cannot do without."""
    places = [n for n, node in enumerate(model.graph.node) if node.op_type == "Cast"]
    pairs = [(n, other) for n in places for other in _OTHERS.get(_to(model.graph.node[n]), ())]
    rng.shuffle(pairs)
    for place, other in pairs:
        copy = copied(model)
        node = copy.graph.node[place]
        to = _to(node)
        output = node.output[0]
        node.output[0] = f"{output}/mutant"
        next(one for one in node.attribute if one.name == "to").i = other
        back = helper.make_node("Cast", [node.output[0]], [output], name=f"{node.name}/mutant", to=to)
        copy.graph.node.insert(place + 1, back)
        names = [TensorProto.DataType.Name(one).lower() for one in (to, other)]
        yield Mutant("cast", f"Cast {node.name}: to {names[0]} → {names[1]}", copy)


def constants(model: ModelProto, rng: random.Random) -> Iterator[Mutant]:
    """One number that is no epsilon, multiplied."""
    places = [place for place, tensor in enumerate(_stored(model)) if _is_number(tensor)]
    rng.shuffle(places)
    for turn, place in enumerate(places):
        copy, factor = copied(model), FACTORS[turn % len(FACTORS)]
        tensor = _stored(copy)[place]
        array = numpy_helper.to_array(tensor)
        with np.errstate(over="ignore"):
            product = np.asarray(array * array.dtype.type(factor))
        if np.any(array) and np.isfinite(product).all():
            tensor.CopyFrom(numpy_helper.from_array(product, tensor.name))
            yield Mutant("constant", f"{tensor.name or 'a Constant'} × {factor}", copy)


def _stored(model: ModelProto) -> list[TensorProto]:
    """Initializers and the tensors of Constant nodes, in order."""
    inner = [one.t for node in model.graph.node if node.op_type == "Constant" for one in node.attribute]
    return [*model.graph.initializer, *inner]


def _is_number(tensor: TensorProto) -> bool:
    """Whether it is one floating-point number, too large to be an epsilon."""
    if tensor.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16) or int(np.prod(tensor.dims)) != 1:
        return False
    return abs(float(numpy_helper.to_array(tensor).reshape(-1)[0])) > TINY


def _to(node: NodeProto) -> int:
    return next((one.i for one in node.attribute if one.name == "to"), 0)


MAKERS: dict[Kind, Callable[[ModelProto, random.Random], Iterator[Mutant]]] = {
    "weight": weights,
    "axis": axes,
    "cast": casts,
    "constant": constants,
}
