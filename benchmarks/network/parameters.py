"""Small changes of a model's parameters: a whole weight, a constant, an epsilon, pads, a permutation, an operator.

As in ``mutating``: who takes them finds out which of them are valid models.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from network.mutating import FEWEST, Kind, Mutant, axes, copy_of

FACTORS = (1.01, 1.1, 2.0)
EPSILON = 1e-3
#: A constant of at most this much, and above 0, is an epsilon.
TINY = 1e-4
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
_DEFAULT_EPSILON = {"LayerNormalization": 1e-5, "BatchNormalization": 1e-5, "InstanceNormalization": 1e-5}
_INSTEAD = {
    "Add": "Sub", "Sub": "Add", "Erf": "Tanh", "Tanh": "Erf", "Sigmoid": "HardSigmoid", "ReduceMean": "ReduceMax",
    "Less": "LessOrEqual", "LessOrEqual": "Less", "Greater": "GreaterOrEqual", "Sqrt": "Abs", "Sin": "Cos",
    "Cos": "Sin", "Softmax": "LogSoftmax",
}  # fmt: skip


def _constants(model: ModelProto) -> list[TensorProto]:
    """Initializers and the tensors of Constant nodes, in order."""
    found = list(model.graph.initializer)
    for node in model.graph.node:
        if node.op_type == "Constant":
            found += [one.t for one in node.attribute if one.name == "value"]
    return found


def _is(tensor: TensorProto, least: int) -> bool:
    """Whether it holds floating-point numbers, ``least`` of them or (0) one."""
    count = int(np.prod(tensor.dims))
    return tensor.data_type in _FLOATS and (count >= least if least else count == 1)


def _put(tensor: TensorProto, array: Any) -> None:
    """Give a tensor other values, whatever field had them."""
    fresh = numpy_helper.from_array(np.ascontiguousarray(array).reshape(tuple(tensor.dims)), tensor.name)
    tensor.CopyFrom(fresh)


def _multiplied(model: ModelProto, places: list[int], kind: Kind, rng: random.Random) -> Iterator[Mutant]:
    rng.shuffle(places)
    for number, place in enumerate(places):
        copy, factor = copy_of(model), FACTORS[number % len(FACTORS)]
        tensor = _constants(copy)[place]
        array = numpy_helper.to_array(tensor)
        with np.errstate(over="ignore"):
            product = array * array.dtype.type(factor)
        if not np.any(array) or not np.isfinite(product).all():
            continue
        _put(tensor, product)
        name = tensor.name or "a Constant"
        yield Mutant(kind, f"{name}{list(tensor.dims)} × {factor}", copy)


def scales(model: ModelProto, rng: random.Random) -> Iterator[Mutant]:
    """A whole weight, multiplied."""
    places = [n for n, tensor in enumerate(_constants(model)) if _is(tensor, FEWEST)]
    return _multiplied(model, places, "scale", rng)


def constants(model: ModelProto, rng: random.Random) -> Iterator[Mutant]:
    """One number that is no epsilon, multiplied."""
    places = [
        n
        for n, tensor in enumerate(_constants(model))
        if _is(tensor, 0) and not abs(float(numpy_helper.to_array(tensor).reshape(-1)[0])) <= TINY
    ]
    return _multiplied(model, places, "constant", rng)


def epsilons(model: ModelProto, rng: random.Random) -> Iterator[Mutant]:
    """The epsilon of one normalization, an attribute or a constant, becomes ``EPSILON``."""
    nodes = [n for n, node in enumerate(model.graph.node) if node.op_type in _DEFAULT_EPSILON]
    rng.shuffle(nodes)
    for place in nodes:
        copy = copy_of(model)
        node = copy.graph.node[place]
        old = next((one for one in node.attribute if one.name == "epsilon"), None)
        before = old.f if old is not None else _DEFAULT_EPSILON[node.op_type]
        if old is not None:
            node.attribute.remove(old)
        node.attribute.append(helper.make_attribute("epsilon", EPSILON))
        yield Mutant("epsilon", f"{node.op_type} {node.name}: epsilon {before:g} → {EPSILON:g}", copy)
    tiny = [
        n
        for n, tensor in enumerate(_constants(model))
        if _is(tensor, 0) and 0 < float(numpy_helper.to_array(tensor).reshape(-1)[0]) <= TINY
    ]
    rng.shuffle(tiny)
    for place in tiny:
        copy = copy_of(model)
        tensor = _constants(copy)[place]
        array = numpy_helper.to_array(tensor)
        _put(tensor, np.full(array.shape, EPSILON, array.dtype))
        before = float(array.reshape(-1)[0])
        yield Mutant("epsilon", f"{tensor.name or 'a Constant'}: {before:g} → {EPSILON:g}", copy)


def pads(model: ModelProto, rng: random.Random) -> Iterator[Mutant]:
    """The padding of one Conv, pool or Pad moves by one from the front to the back, or begins at the front."""
    places = [n for n, node in enumerate(model.graph.node) if _padding(model, node) is not None]
    rng.shuffle(places)
    for place in places:
        copy = copy_of(model)
        node = copy.graph.node[place]
        before = _padding(copy, node)
        assert before is not None
        after = _moved(before)
        for one in [one for one in node.attribute if one.name == "pads"]:
            node.attribute.remove(one)
        if node.op_type == "Pad" and len(node.input) > 1:
            name = f"{node.name or node.output[0]}/mutant"
            copy.graph.initializer.append(numpy_helper.from_array(np.array(after, np.int64), name))
            node.input[1] = name
        else:
            node.attribute.append(helper.make_attribute("pads", after))
        yield Mutant("pads", f"{node.op_type} {node.name}: pads {before} → {after}", copy)


def _padding(model: ModelProto, node: NodeProto) -> list[int] | None:
    for one in node.attribute:
        if one.name == "pads" and one.type == AttributeProto.INTS:
            return list(one.ints)
    if node.op_type == "Pad" and len(node.input) > 1:
        stored = {tensor.name: tensor for tensor in model.graph.initializer}
        if node.input[1] in stored:
            return [int(one) for one in numpy_helper.to_array(stored[node.input[1]])]
    return None


def _moved(before: list[int]) -> list[int]:
    """The first padding before the elements goes behind them; where there is none, one is put before them."""
    after, rank = list(before), len(before) // 2
    front = next((axis for axis in range(rank) if before[axis] > 0), None)
    if front is None:
        back = next((axis for axis in range(rank) if before[rank + axis] > 0), None)
        if back is not None:
            after[rank + back] -= 1
        after[back if back is not None else 0] += 1
    else:
        after[front] -= 1
        after[rank + front] += 1
    return after


def perms(model: ModelProto, rng: random.Random) -> Iterator[Mutant]:
    """Two axes of one Transpose."""
    for mutant in axes(model, rng):
        if mutant.what.startswith("Transpose"):
            yield Mutant("perm", mutant.what, mutant.model)


def operators(model: ModelProto, rng: random.Random) -> Iterator[Mutant]:
    """One operator becomes another of the same form."""
    places = [n for n, node in enumerate(model.graph.node) if node.op_type in _INSTEAD and not node.domain]
    rng.shuffle(places)
    for place in places:
        copy = copy_of(model)
        node = copy.graph.node[place]
        before, node.op_type = node.op_type, _INSTEAD[node.op_type]
        yield Mutant("operator", f"{node.name or node.output[0]}: {before} → {node.op_type}", copy)


def operands(model: ModelProto, rng: random.Random) -> Iterator[Mutant]:
    """Both operands of one Sub, Div, Pow or MatMul change places."""
    places = [n for n, node in enumerate(model.graph.node) if node.op_type in ("Sub", "Div", "Pow", "MatMul")]
    rng.shuffle(places)
    for place in places:
        copy = copy_of(model)
        node = copy.graph.node[place]
        node.input[0], node.input[1] = node.input[1], node.input[0]
        yield Mutant("operands", f"{node.op_type} {node.name}: operands swapped", copy)


MAKERS: dict[Kind, Callable[[ModelProto, random.Random], Iterator[Mutant]]] = {
    "scale": scales,
    "constant": constants,
    "epsilon": epsilons,
    "pads": pads,
    "perm": perms,
    "operator": operators,
    "operands": operands,
}
