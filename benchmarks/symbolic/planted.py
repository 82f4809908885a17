"""Edits that change what a model computes, planted into fixed models: is one of them "proven"?

An edit counts only if ONNX Runtime runs the fixed model and its outputs differ from those of the edited one by more
than the order of sums explains. (It computes half precision in float32, so that the original may differ as well.)

    python -m benchmarks.symbolic.planted PAIRS --seed 1 --edits 500

PAIRS is a folder with ``NAME.original.onnx`` and ``NAME.fixed.onnx``.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from benchmarks.command import parser_of
from benchmarks.symbolic.pairs import dtypes, list_pairs, load_pair, save_pair, shapes_of, tell_apart
from benchmarks.symbolic.special import special
from onnxfix.files.walk import copied
from onnxfix.proof.symbolic.inference import infer
from onnxfix.proof.symbolic.prove import prove

FAMILIES = [
    family.split()
    for family in (
        "Add Sub Mul Div Max Min Pow PRelu",
        "Relu Sigmoid Tanh Abs Exp Sqrt Neg Sign Erf Softplus Sin Cos Log Reciprocal Identity",
        "Floor Ceil Round",
        "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2",
        "And Or Xor",
        "Equal Less Greater LessOrEqual GreaterOrEqual",
        "MaxPool AveragePool",
        "GlobalMaxPool GlobalAveragePool",
        "ArgMax ArgMin",
        "Softmax LogSoftmax Hardmax",
        "MatMul Gemm",
    )
]
Edit = Callable[[ModelProto, random.Random], str]
SIZE = 3  # of each free dimension


def _nodes(model: ModelProto, fits: Callable[[NodeProto], bool]) -> list[NodeProto]:
    return [node for node in model.graph.node if fits(node)]


def _swap(model: ModelProto, draw: random.Random, side: str) -> str:
    node = draw.choice(_nodes(model, lambda one: len(getattr(one, side)) >= 2))
    names = getattr(node, side)
    first, second = draw.sample(range(len(names)), 2)
    names[first], names[second] = names[second], names[first]
    return f"swap {side}s of {node.op_type}"


swap_inputs, swap_outputs = (partial(_swap, side=side) for side in ("input", "output"))


def rewire(model: ModelProto, draw: random.Random) -> str:
    """Read another tensor."""
    node = draw.choice(_nodes(model, lambda one: len(one.input) >= 1))
    before = [name for one in model.graph.node for name in one.output]
    names = [one.name for one in (*model.graph.input, *model.graph.initializer)] + before
    place = draw.randrange(len(node.input))
    node.input[place] = draw.choice(names)
    return f"rewire {node.op_type}"


def drop_input(model: ModelProto, draw: random.Random) -> str:
    """Leave the last input out."""
    node = draw.choice(_nodes(model, lambda one: len(one.input) >= 2))
    del node.input[-1]
    return f"drop an input of {node.op_type}"


def change_operator(model: ModelProto, draw: random.Random) -> str:
    """Compute something similar."""
    node = draw.choice(_nodes(model, lambda one: any(one.op_type in family for family in FAMILIES)))
    family = next(family for family in FAMILIES if node.op_type in family)
    before = node.op_type
    node.op_type = draw.choice([one for one in family if one != before])
    return f"{before} to {node.op_type}"


def change_attribute(model: ModelProto, draw: random.Random) -> str:
    """Change a number in an attribute."""
    kinds = (AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.INTS, AttributeProto.FLOATS)
    node = draw.choice(_nodes(model, lambda one: any(a.type in kinds for a in one.attribute)))
    attribute = draw.choice([one for one in node.attribute if one.type in kinds])
    if attribute.type == AttributeProto.INT:
        attribute.i += draw.choice([-1, 1])
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = draw.choice([attribute.f * 1.5, attribute.f + 1e-3, -attribute.f, 0.0])
    elif attribute.type == AttributeProto.INTS:
        place = draw.randrange(len(attribute.ints))
        other = draw.randrange(len(attribute.ints))
        if draw.random() < 0.5:
            attribute.ints[place] += draw.choice([-1, 1])
        else:
            attribute.ints[place], attribute.ints[other] = attribute.ints[other], attribute.ints[place]
    else:
        attribute.floats[draw.randrange(len(attribute.floats))] *= 1.5
    return f"{attribute.name} of {node.op_type}"


def drop_attribute(model: ModelProto, draw: random.Random) -> str:
    """Leave an attribute out."""
    node = draw.choice(_nodes(model, lambda one: len(one.attribute) > 0))
    place = draw.randrange(len(node.attribute))
    name = node.attribute[place].name
    del node.attribute[place]
    return f"drop {name} of {node.op_type}"


def _changed(array: Any, draw: random.Random) -> Any:
    flat = np.array(array).reshape(-1)
    place = draw.randrange(flat.size)
    if flat.dtype.kind == "b":
        flat[place] = not flat[place]
    elif flat.dtype.kind in "iu":
        flat[place] = flat[place] + draw.choice([-1, 1])
    else:
        factor = draw.choice([-1.0, 1.0009765625, 0.5])
        flat[place] = factor * flat[place].astype(np.float64) + draw.choice([0.0, 1.0])
    return flat.reshape(array.shape)


def change_constant(model: ModelProto, draw: random.Random) -> str:
    """Change one element of an initializer or of a Constant."""
    tensors = [one for one in model.graph.initializer if one.data_type != TensorProto.STRING]
    tensors += [a.t for one in model.graph.node for a in one.attribute if a.type == AttributeProto.TENSOR]
    tensor = draw.choice([one for one in tensors if np.prod(one.dims, dtype=np.int64)])
    tensor.CopyFrom(numpy_helper.from_array(_changed(numpy_helper.to_array(tensor), draw), tensor.name))
    return f"constant of type {tensor.data_type}"


def transpose_constant(model: ModelProto, draw: random.Random) -> str:
    """Reverse the elements of an initializer."""
    tensor = draw.choice([one for one in model.graph.initializer if np.prod(one.dims, dtype=np.int64) > 1])
    array = numpy_helper.to_array(tensor)
    array = np.ascontiguousarray(array.reshape(-1)[::-1]).reshape(array.shape)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return "reversed constant"


def bypass(model: ModelProto, draw: random.Random) -> str:
    """Read a node's first input instead of its output."""
    node = draw.choice(_nodes(model, lambda one: len(one.input) >= 1 and bool(one.input[0])))
    outputs = {one.name for one in model.graph.output}
    if node.output[0] in outputs:
        node.op_type, source = "Identity", node.input[0]
        del node.input[:], node.output[1:], node.attribute[:]
        node.input.append(source)
        return "an Identity"
    for one in model.graph.node:
        for place, name in enumerate(one.input):
            if name == node.output[0]:
                one.input[place] = node.input[0]
    return f"bypass {node.op_type}"


def insert(model: ModelProto, draw: random.Random) -> str:
    """Insert something that a rewriter may take for nothing."""
    place = draw.randrange(len(model.graph.node))
    node = model.graph.node[place]
    if not node.input or not node.input[0]:
        raise IndexError
    source, new = node.input[0], f"planted_{draw.randrange(1 << 30)}"
    number = draw.choice([0.0, 1.0, 2.0, -1.0])
    added: list[NodeProto]
    kind = draw.choice(["Relu", "Neg", "Abs", "Add", "Mul", "half", "Floor", "bfloat", "integer", "flip"])
    if kind in ("Add", "Mul"):
        model.graph.initializer.append(numpy_helper.from_array(np.array(number, np.float32), new + "_number"))
        added = [helper.make_node(kind, [source, new + "_number"], [new])]
    elif kind in ("half", "bfloat", "integer"):
        to = {"half": TensorProto.FLOAT16, "bfloat": TensorProto.BFLOAT16, "integer": TensorProto.INT32}[kind]
        added = [
            helper.make_node("Cast", [source], [new + "_cast"], to=to),
            helper.make_node("Cast", [new + "_cast"], [new], to=TensorProto.FLOAT),
        ]
    elif kind == "flip":
        for name, value in (("start", -1), ("end", -(1 << 62)), ("axis", 0), ("step", -1)):
            array = np.array([value], np.int64)
            model.graph.initializer.append(numpy_helper.from_array(array, f"{new}_{name}"))
        bounds = (f"{new}_{one}" for one in ("start", "end", "axis", "step"))
        added = [helper.make_node("Slice", [source, *bounds], [new])]
    else:
        added = [helper.make_node(kind, [source], [new])]
    node.input[0] = new
    for one in reversed(added):
        model.graph.node.insert(place, one)
    return f"insert {kind} {number if kind in ('Add', 'Mul') else ''}"


EDITS: list[Edit] = [
    *(swap_inputs, rewire, drop_input, swap_outputs, drop_attribute, transpose_constant, bypass),
    *2 * (change_operator, change_attribute, change_constant, insert),
]


def make_feeds(model: ModelProto, size: int, seed: int) -> Iterator[dict[str, Any]]:
    """Inputs that tell models apart: normal, with special values, large."""
    kinds, draw = dtypes(model), np.random.default_rng(seed)
    for share, scale, most in ((0.0, 1, 3), (0.3, 1, 3), (0.0, 1000, 100)):
        feed: dict[str, Any] = {}
        for name, shape in shapes_of(model, size).items():
            kind = kinds[name]
            if kind.kind in "iu":
                feed[name] = draw.integers(0, most, shape).astype(kind)
            else:
                feed[name] = np.asarray(special(kind, shape, share, draw) * kind.type(scale))
        yield feed


def differ(one: Any, other: Any) -> str:
    """By what two outputs differ more than the order of sums explains."""
    first, second = np.asarray(one), np.asarray(other)
    if first.shape != second.shape or first.dtype != second.dtype:
        return "another shape or type"
    if first.dtype.kind in "OSUbiu":
        return "" if np.array_equal(first, second) else "values"
    first, second = first.astype(np.float64), second.astype(np.float64)
    zeros = (first == 0) & (second == 0)
    if np.any(zeros & (np.signbit(first) != np.signbit(second))):
        return "the sign of a zero"
    with np.errstate(all="ignore"):
        return "" if np.allclose(first, second, rtol=1e-5, atol=1e-6, equal_nan=True) else "values"


def main() -> None:
    """Plant edits and report those that are proven."""
    parser = parser_of(__doc__)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--edits", type=int, default=500)
    parser.add_argument("--keep", type=Path, help="a folder for proven pairs that ONNX Runtime tells apart")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    paths = list_pairs(arguments.pairs)
    counts: collections.Counter[str] = collections.Counter()
    kinds: set[str] = set()
    while counts["edits"] < arguments.edits:
        name, original, fixed, _ = load_pair(draw.choice(paths))
        edited = copied(fixed)
        try:
            what = draw.choice(EDITS)(edited, draw)
            onnx.checker.check_model(edited, full_check=True)
        except Exception:  # there is no such place, or the edited model is none
            counts["no valid edit"] += 1
            continue
        shapes = shapes_of(original, SIZE)
        if not infer(original, shapes) and len(original.graph.node) > 1:
            continue
        if any(not one.type.HasField("tensor_type") for one in original.graph.input):
            continue
        counts["edits"] += 1
        kinds.add(what)
        outcome = prove(original, edited, shapes, limit=20)
        if not outcome.proven:
            counts["not proven"] += 1
            continue
        feeds = make_feeds(original, SIZE, draw.randrange(1 << 30))
        apart = tell_apart(fixed, edited, feeds, differ)
        if apart:
            counts["PROVEN, BUT DIFFERENT"] += 1
            print(name, what, apart, flush=True)
            if arguments.keep:
                save_pair(arguments.keep, str(counts["edits"]), original, edited)
        else:
            counts["proven, not run" if apart is None else "proven, equal in ONNX Runtime"] += 1
    print(dict(counts), f"{len(kinds)} kinds")


if __name__ == "__main__":
    main()
