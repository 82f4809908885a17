"""Models to match, runs of all their tensors, planted faults, and how right a matching is."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper

from onnxfix.diagnosis.fingerprints import Fingerprint, Probe, fingerprint
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.matching import Matching, match
from onnxfix.files import walk
from support import ort
from support.paths import FIXTURES

PAIRS = FIXTURES / "pairs"
Values = dict[str, Any]


def read(name: str) -> ModelProto:
    """A model of fixtures/pairs."""
    return onnx.load(PAIRS / f"{name}.onnx")


def feed_of(model: ModelProto) -> Values:
    """Random inputs: two rows of 6 tokens of which the second one is masked at its end, two images."""
    rng = np.random.default_rng(0)
    weights = {tensor.name for tensor in model.graph.initializer}
    found: Values = {}
    for info in model.graph.input:
        if info.name in weights:
            continue
        dims = [dim.dim_value or (2, 6, 4, 4)[at] for at, dim in enumerate(info.type.tensor_type.shape.dim)]
        dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        if "mask" in info.name:
            found[info.name] = np.ones(dims, dtype)
            found[info.name][1, 4:] = 0
        elif dtype.kind == "i":
            found[info.name] = rng.integers(3, 45, dims).astype(dtype)
        else:
            found[info.name] = rng.standard_normal(dims).astype(dtype)
    return found


def every_value(model: ModelProto, feed: Values) -> Values:
    """All computed tensors of the main graph, and the inputs."""
    whole = walk.copied(model)
    names = [name for node in model.graph.node if node.op_type != "Constant" for name in node.output if name]
    del whole.graph.output[:]
    whole.graph.output.extend(ValueInfoProto(name=name) for name in names)
    return {**dict(zip(names, ort.run(whole, feed), strict=True)), **feed}


def probe_of(a: Values, b: Values) -> Probe:
    """A probe that knows these values."""

    def known(values: Values, names: Sequence[str]) -> dict[str, Fingerprint]:
        seen = {name: fingerprint(values[name]) for name in names if name in values}
        return {name: one for name, one in seen.items() if one is not None}

    return lambda ours, theirs: (known(a, ours), known(b, theirs))


def error(truth: Any, other: Any) -> float:
    """The largest difference of two arrays as a share of the truth's scale; infinite where shapes differ."""
    if truth.shape != other.shape:
        return float("inf")
    if not np.array_equal(np.isfinite(truth), np.isfinite(other)):
        return float("inf")
    x, y = (one[np.isfinite(truth)].astype(np.float64) for one in (truth, other))
    return float(np.abs(x - y).max(initial=0.0) / (np.abs(x).max(initial=0.0) or 1.0))


@dataclass(frozen=True)
class Measured:
    """A matching with the share of floating-point tensors of A and of B that have a partner, and the pairs whose values
    differ although they should not: (B's, A's, how far)."""

    found: Matching
    share_a: float
    share_b: float
    wrong: tuple[tuple[str, str, float], ...]


def measured(
    a: ModelProto, b: ModelProto, *, sound: Mapping[str, Any] | None = None, probing: bool = True
) -> Measured:
    """Match two models. ``sound`` are the values that B's tensors would have without the fault planted in it."""
    feed = feed_of(a)
    ours, theirs = every_value(a, feed), every_value(b, dict(zip(_inputs(b), feed.values(), strict=True)))
    found = match(Graph(a), Graph(b), probe_of(ours, theirs) if probing else None)
    right = theirs if sound is None else sound
    wrong = [
        (name, partner, error(ours[partner], right[name]))
        for name, partner in found.pairs.items()
        if name in right and not error(ours[partner], right[name]) <= 1e-3
    ]
    partners = set(found.pairs.values())
    return Measured(found, _share(a, ours, partners), _share(b, theirs, set(found.pairs)), tuple(wrong))


def _share(model: ModelProto, values: Values, paired: set[str]) -> float:
    names = [name for node in model.graph.node for name in node.output if name in values]
    floats = [name for name in names if values[name].dtype.kind == "f" and values[name].size > 1]
    return sum(name in paired for name in floats) / len(floats)


def _inputs(model: ModelProto) -> list[str]:
    weights = {tensor.name for tensor in model.graph.initializer}
    return [info.name for info in model.graph.input if info.name not in weights]


def renamed(model: ModelProto) -> tuple[ModelProto, dict[str, str]]:
    """The model with other names for everything but its interface, and the new name of each tensor."""
    found = walk.copied(model)
    graph = found.graph
    fixed = {info.name for info in (*graph.input, *graph.output)}
    old = [name for node in graph.node for name in node.output if name and name not in fixed]
    old += [tensor.name for tensor in graph.initializer if tensor.name not in fixed]
    numbers = list(range(len(old)))
    random.Random(0).shuffle(numbers)
    names = {name: f"{number}" for name, number in zip(old, numbers, strict=True)}
    for node in graph.node:
        node.name = ""
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    graph.ClearField("value_info")
    return found, names


# ------------------------------------------------------------------------------------------------------- faults


def _weight(model: ModelProto, number: int) -> bool:
    """A weight of a product, three times as large."""
    node = model.graph.node[number]
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    if node.op_type not in ("MatMul", "Gemm", "Conv") or node.input[1] not in weights:
        return False
    tensor = weights[node.input[1]]
    tensor.CopyFrom(numpy_helper.from_array(3 * numpy_helper.to_array(tensor), tensor.name))
    return True


def _epsilon(model: ModelProto, number: int) -> bool:
    """A large epsilon of a normalization."""
    found = [one for one in model.graph.node[number].attribute if one.name == "epsilon"]
    for attribute in found:
        attribute.f = 0.5
    return bool(found)


def _operator(model: ModelProto, number: int) -> bool:
    """Another function in place of an elementwise one."""
    node = model.graph.node[number]
    if node.op_type not in ("Erf", "Tanh", "Sigmoid", "Sqrt"):
        return False
    node.op_type = "Abs"
    return True


def _removed(model: ModelProto, number: int) -> bool:
    """An elementwise function that is not there."""
    gone = model.graph.node[number]
    if gone.op_type not in ("Erf", "Tanh", "Sigmoid", "Softmax"):
        return False
    if gone.output[0] in {info.name for info in model.graph.output}:
        return False
    old, new = gone.output[0], gone.input[0]
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
    del model.graph.node[number]
    return True


def _half(model: ModelProto, number: int) -> bool:
    """Casts to half precision and back at the first input of a node."""
    node = model.graph.node[number]
    made = {name for one in model.graph.node for name in one.output}
    if node.op_type not in ("MatMul", "LayerNormalization", "Softmax") or node.input[0] not in made:
        return False
    source = node.input[0]
    node.input[0] = f"{source}/back"
    low = helper.make_node("Cast", [source], [f"{source}/low"], to=onnx.TensorProto.FLOAT16)
    back = helper.make_node("Cast", [f"{source}/low"], [f"{source}/back"], to=onnx.TensorProto.FLOAT)
    model.graph.node.insert(number, back)
    model.graph.node.insert(number, low)
    return True


#: Changes a node in place; False where it is not one to change in this way.
FAULTS: dict[str, Callable[[ModelProto, int], bool]] = {
    "weight": _weight,
    "epsilon": _epsilon,
    "operator": _operator,
    "removed": _removed,
    "half": _half,
}


def planted(model: ModelProto, kind: str, which: int) -> tuple[ModelProto, str] | None:
    """A copy with one fault, at the ``which``-th place for it, and the node's output; None without such a place."""
    for number, node in enumerate(model.graph.node):
        copy = walk.copied(model)
        if FAULTS[kind](copy, number):
            if which == 0:
                return copy, node.output[0]
            which -= 1
    return None
