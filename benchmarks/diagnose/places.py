"""What a fault is, which operators bear which, and the places of a model for each kind."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from onnx import ModelProto, NodeProto, TensorProto

from diagnose.copies import Graph, attribute
from onnxfix.runtime.replies import accept

Kind = Literal[
    "weight scaled", "weight element", "epsilon", "axis", "perm", "pads", "lost Cast", "mask value", "lost bias",
    "half precision", "shape constant", "operands", "operator",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)


@accept
@dataclass(frozen=True)
class Site:
    """Where a fault is planted: the number of a node in the main graph, one of its operands, and a number that a kind
    with several possibilities chooses by."""

    kind: Kind
    node: int
    operand: int = 0
    choice: int = 0


@accept
@dataclass(frozen=True)
class Planted:
    """Two models that differ by one fault.

    ``truth`` is the original itself except for "lost Cast", where it is the original with a pair of Casts, and
    ``other`` is the original. ``output`` is the first tensor that differs; ``nodes`` and ``outputs`` are the names by
    which naming it is right: the changed node, the nodes around it that are part of the change, and what they compute.
    """

    truth: ModelProto
    other: ModelProto
    output: str
    op_type: str
    nodes: tuple[str, ...]
    outputs: tuple[str, ...]
    what: str


@accept
@dataclass(frozen=True)
class Seen:
    """What a run of the model showed of a tensor: its shape and the name of its numpy type."""

    shape: tuple[int, ...]
    dtype: str


FEWEST = 8
"""Elements of a constant that counts as a weight."""
FACTOR = 1.01
EPSILON = 1e-3
MASK = -1e4
TINY = 1e-4  # a constant of at most this, added to something, is an epsilon
NORMS = {"LayerNormalization": 1e-5, "BatchNormalization": 1e-5, "InstanceNormalization": 1e-5}
WEIGHED = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Add", "Mul", "LayerNormalization", "Gather")
REDUCES = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2")
AXES = ("Softmax", "LogSoftmax", "Concat", "Gather", "Split", "LayerNormalization", "ArgMax", "Flatten")
PADDED = ("Conv", "ConvTranspose", "MaxPool", "AveragePool")
#: Operators that have a float16 form, with the operands that a Cast may make half precision.
HALF: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("MatMul", "Add", "Sub", "Mul", "Div"), (0, 1)),
    **dict.fromkeys(("Gemm", "Conv", "LayerNormalization"), (0, 1, 2)),
    **dict.fromkeys(("Softmax", "Sqrt", "Tanh", "Erf", "Gelu", "Sigmoid", "Pow", "Reciprocal", *REDUCES), (0,)),
}  # fmt: skip
#: Those that ONNX Runtime has no float16 kernel for on the CPU: it would compute in float32, and remove the Casts.
EMULATED = frozenset(HALF) - {"LayerNormalization"}
SWAPPED = {**dict.fromkeys(("Sub", "Div", "Concat", "MatMul", "Pow"), (0, 1)), "Where": (1, 2)}
#: Operators that an exporter or a converter takes for another.
INSTEAD = {
    "LessOrEqual": "Less", "Less": "LessOrEqual", "GreaterOrEqual": "Greater", "Greater": "GreaterOrEqual",
    "Erf": "Tanh", "Tanh": "Erf", "Sigmoid": "HardSigmoid", "Relu": "LeakyRelu", "Sin": "Cos", "Cos": "Sin",
    "ReduceMean": "ReduceMax", "Max": "Min", "Min": "Max", "And": "Or",
}  # fmt: skip
#: Constants of shapes and indices, by the operand of the node that reads them.
COUNTS = {
    "Slice": (1, 2),
    "Gather": (1,),
    "Reshape": (1,),
    "Expand": (1,),
    "Range": (0, 1),
    "Concat": (0, 1, 2, 3),
}
OPEN = 1 << 40
"""An end of a Slice beyond this means the end of the axis."""


def sites(graph: Graph, kind: Kind, seen: Mapping[str, Seen], rng: random.Random) -> list[Site]:
    """The places for a kind of fault, those of different operators first, else in an order drawn from ``rng``.

    ``seen`` has the tensors of the main graph that were looked at, see ``looked_at``. Some of the places do not run.
    """
    found = [
        one for number, node in enumerate(graph.nodes) for one in _PLACES[kind](graph, number, node, seen)
    ]
    rng.shuffle(found)
    turns: dict[str, int] = {}
    ranks = []
    for one in found:
        op_type = graph.nodes[one.node].op_type
        turns[op_type] = turns.get(op_type, 0) + 1
        ranks.append(turns[op_type])
    return [one for _, one in sorted(zip(ranks, found, strict=True), key=lambda pair: pair[0])]


def looked_at(graph: Graph) -> list[str]:
    """The tensors whose shapes and types ``sites`` wants to know: what operators that may be changed read and make."""
    wanted = {*HALF, *SWAPPED, *AXES, *REDUCES, "Transpose"}
    names = dict.fromkeys(
        name for node in graph.nodes if node.op_type in wanted for name in (node.input[0], node.output[0])
    )
    return [name for name in names if name in graph.makers]


def _weights(kind: Kind) -> Callable[..., Iterator[Site]]:
    def places(graph: Graph, number: int, node: NodeProto, _: Mapping[str, Seen]) -> Iterator[Site]:
        if node.op_type not in WEIGHED:
            return
        for operand, name in enumerate(node.input):
            if graph.is_float(name) and graph.count(name) >= FEWEST and graph.uses[name] == 1:
                if node.op_type == "Gather" and kind == "weight element":
                    continue  # nearly all rows of a vocabulary are not read
                yield Site(kind, number, operand, number)

    return places


def _epsilons(graph: Graph, number: int, node: NodeProto, _: Mapping[str, Seen]) -> Iterator[Site]:
    if node.op_type in NORMS:
        yield Site("epsilon", number)
    elif node.op_type == "Add":
        for operand, name in enumerate(node.input):
            array = graph.array(name, 8) if graph.is_float(name) else None
            if array is not None and array.size == 1 and 0 < float(array.reshape(-1)[0]) <= TINY:
                yield Site("epsilon", number, operand)


def _axes(graph: Graph, number: int, node: NodeProto, seen: Mapping[str, Seen]) -> Iterator[Site]:
    known = seen.get(node.input[0]) if node.input else None
    if known is None or (node.op_type not in AXES and node.op_type not in REDUCES):
        return
    for axis in range(1, len(known.shape) + 1):
        yield Site("axis", number, 0, -axis)


def _perms(graph: Graph, number: int, node: NodeProto, seen: Mapping[str, Seen]) -> Iterator[Site]:
    known = seen.get(node.input[0]) if node.op_type == "Transpose" else None
    if known is None:
        return
    perm = perm_of(node, len(known.shape))
    sizes = [known.shape[axis] for axis in perm]
    for choice, (a, b) in enumerate(pairs(len(perm))):
        if sizes[a] == sizes[b] > 1:
            yield Site("perm", number, 0, choice)


def _pads(graph: Graph, number: int, node: NodeProto, _: Mapping[str, Seen]) -> Iterator[Site]:
    pads = padding(graph, node)
    for axis in range(len(pads) // 2):
        if pads[axis + len(pads) // 2] > 0:
            yield Site("pads", number, 0, axis)


def _casts(graph: Graph, number: int, node: NodeProto, seen: Mapping[str, Seen]) -> Iterator[Site]:
    if not node.output or node.op_type not in HALF:
        return
    known = seen.get(node.output[0])
    if known is not None and known.dtype == "float32":
        for choice in range(2):  # through float16, through int64
            yield Site("lost Cast", number, 0, choice)


def _masks(graph: Graph, number: int, node: NodeProto, _: Mapping[str, Seen]) -> Iterator[Site]:
    if node.op_type not in ("Where", "Mul", "Add", "Sub"):
        return
    for operand, name in enumerate(node.input):
        array = graph.array(name, 1 << 16) if graph.is_float(name) else None
        if array is not None and array.size and float(array.min()) < 3 * MASK:
            yield Site("mask value", number, operand)


def _biases(graph: Graph, number: int, node: NodeProto, _: Mapping[str, Seen]) -> Iterator[Site]:
    if node.op_type in ("Conv", "ConvTranspose", "Gemm", "LayerNormalization"):
        operands: tuple[int, ...] = (2,)
    else:
        operands = (0, 1) if node.op_type == "Add" else ()
    for operand in operands:
        if operand < len(node.input) and graph.is_float(node.input[operand]):
            name = node.input[operand]
            if graph.count(name) >= FEWEST and len(graph.stored[name].dims) == 1:
                yield Site("lost bias", number, operand)


def _halves(graph: Graph, number: int, node: NodeProto, seen: Mapping[str, Seen]) -> Iterator[Site]:
    known = seen.get(node.output[0]) if node.op_type in HALF and node.output else None
    if known is not None and known.dtype == "float32" and known.shape:
        yield Site("half precision", number, 0, int(node.op_type in EMULATED))


def _counts(graph: Graph, number: int, node: NodeProto, _: Mapping[str, Seen]) -> Iterator[Site]:
    for operand in COUNTS.get(node.op_type, ()):
        name = node.input[operand] if operand < len(node.input) else ""
        if name in graph.stored and graph.stored[name].data_type == TensorProto.INT64:
            for choice in range(min(2 * graph.count(name), 16)):
                yield Site("shape constant", number, operand, choice)


def _operands(graph: Graph, number: int, node: NodeProto, seen: Mapping[str, Seen]) -> Iterator[Site]:
    pair = SWAPPED.get(node.op_type)
    if pair is not None and pair[1] < len(node.input) and node.input[pair[0]] != node.input[pair[1]]:
        yield Site("operands", number)


def _operators(graph: Graph, number: int, node: NodeProto, _: Mapping[str, Seen]) -> Iterator[Site]:
    if node.op_type in INSTEAD or node.op_type == "Gelu":
        yield Site("operator", number)


_PLACES: dict[Kind, Callable[..., Iterator[Site]]] = {
    "weight scaled": _weights("weight scaled"),
    "weight element": _weights("weight element"),
    "epsilon": _epsilons,
    "axis": _axes,
    "perm": _perms,
    "pads": _pads,
    "lost Cast": _casts,
    "mask value": _masks,
    "lost bias": _biases,
    "half precision": _halves,
    "shape constant": _counts,
    "operands": _operands,
    "operator": _operators,
}


def pairs(rank: int) -> list[tuple[int, int]]:
    """Two axes of so many, each pair once."""
    return [(a, b) for a in range(rank) for b in range(a + 1, rank)]


def perm_of(node: NodeProto, rank: int) -> list[int]:
    """The permutation of a Transpose."""
    perm = attribute(node, "perm")
    return list(perm.ints) if perm is not None else list(range(rank))[::-1]


def padding(graph: Graph, node: NodeProto) -> list[int]:
    """Constant pads, those before each axis and then those after it; none where they are not constant."""
    if node.op_type in PADDED:
        pads = attribute(node, "pads")
        return list(pads.ints) if pads is not None else []
    if node.op_type == "Pad" and len(node.input) > 1:
        array = graph.array(node.input[1], 1 << 10)
        return [] if array is None else [int(one) for one in array]
    return []
