"""Random small graphs of the operators that demand something of sizes: inputs of unknown sizes, constants that are
given. A graph may take no sizes at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from support.models import floats, of_nodes

Draw = Callable[[st.SearchStrategy[Any]], Any]
#: Names of dimensions; few, so that they meet.
SYMBOLS = ("A", "B", "C")
ELEMENTWISE = ("Add", "Div", "Max", "Mean", "Min", "Mul", "Sub", "Sum")
COMPARED = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")


class Graph:
    """A graph that grows by nodes.

    ``ranks`` are those of the float values made so far, ``other`` the types of the rest. ``signed`` are values of which
    a size is a difference: the shape of a Reshape to a size that may be -1 for all that is known is not known.
    """

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.ranks: dict[str, int] = {}
        self.other: dict[str, int] = {}
        self.signed: set[str] = set()
        self._count = 0

    def pick(self, *values: Any) -> Any:
        """One of the values."""
        return self.draw(st.sampled_from(values))

    def number(self, low: int, high: int) -> int:
        """A number from ``low`` to ``high``."""
        return int(self.draw(st.integers(low, high)))

    def value(self, *ranks: int) -> str:
        """A value of one of these ranks; any rank where none is given."""
        among = [name for name, rank in self.ranks.items() if not ranks or rank in ranks]
        return str(self.pick(*among)) if among else self._reshaped(self.pick(*ranks))

    def constant(self, array: Any) -> str:
        """An initializer."""
        self._count += 1
        self.constants.append(numpy_helper.from_array(np.asarray(array), f"k{self._count}"))
        return f"k{self._count}"

    def numbers(self, *numbers: int) -> str:
        """An initializer of integers."""
        return self.constant(np.array(numbers, np.int64))

    def weight(self, *shape: int) -> str:
        """An initializer of floats."""
        return self.constant(np.full(shape, 0.5, np.float32))

    def put(
        self, op: str, inputs: list[str], *ranks: int, elem: int = TensorProto.FLOAT, **attrs: Any
    ) -> str:
        """A node whose outputs have these ranks and one type; the first output."""
        outputs = []
        for rank in ranks:
            self._count += 1
            outputs.append(f"v{self._count}")
            if op in ("ConstantOfShape", "Pad", "ConvTranspose") or not self.signed.isdisjoint(inputs):
                self.signed.add(outputs[-1])
            if elem == TensorProto.FLOAT:
                self.ranks[outputs[-1]] = rank
            else:
                self.other[outputs[-1]] = elem
        self.nodes.append(helper.make_node(op, inputs, outputs, **attrs))
        return outputs[0]

    def shape(self, value: str) -> str:
        """The shape of a value, as one."""
        return self.put("Shape", [value], 1, elem=TensorProto.INT64)

    def _reshaped(self, rank: int) -> str:
        """Some value in another rank: dimensions of 1, or the last ones as one."""
        value = self.value()
        had = self.ranks[value]
        if had < rank:
            return self.put("Unsqueeze", [value, self.numbers(*range(rank - had))], rank)
        target = self.numbers(*[0] * (rank - 1), -1)
        return self.put("Reshape", [value, target], rank)

    def model(self, inputs: dict[str, list[Any]]) -> ModelProto:
        """The model: what nothing reads is its output."""
        read = {name for node in self.nodes for name in node.input}
        made = {**dict.fromkeys(self.ranks, TensorProto.FLOAT), **self.other}
        left = {name: elem for name, elem in made.items() if name not in read and name not in inputs}
        outputs = left or {next(iter(inputs)): TensorProto.FLOAT}
        declared = {name: (elem, None) for name, elem in outputs.items()}
        proto = of_nodes(self.nodes, floats(**inputs), declared, opset=17, ir_version=8)
        proto.graph.initializer.extend(self.constants)
        return proto


def _elementwise(graph: Graph) -> None:
    first, second = graph.value(), graph.value()
    rank = max(graph.ranks[first], graph.ranks[second])
    match graph.number(0, 3):
        case 0:
            condition = graph.put(graph.pick(*COMPARED), [first, second], rank, elem=TensorProto.BOOL)
            third = graph.value()
            graph.put("Where", [condition, third, second], max(rank, graph.ranks[third]))
        case 1:
            graph.put("Mul", [first, graph.weight(graph.number(1, 5))], max(1, graph.ranks[first]))
        case _:
            graph.put(graph.pick(*ELEMENTWISE), [first, second], rank)


def _slope(graph: Graph) -> None:
    data = graph.value(2, 3)
    sizes = [graph.pick(1, 3), *[1] * (graph.ranks[data] - 2)]
    graph.put("PRelu", [data, graph.weight(*sizes)], graph.ranks[data])


def _window(graph: Graph) -> None:
    data = graph.value(3, 4)
    count = graph.ranks[data] - 2
    kernel = [graph.number(1, 5) for _ in range(count)]
    attrs: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": [graph.number(1, 3) for _ in kernel],
        "pads": [graph.number(0, (size - 1) // 2) for size in kernel] * 2,
    }
    op = graph.pick("AveragePool", "Conv", "Conv", "ConvTranspose", "LpPool", "MaxPool")
    inputs = [data]
    if op in ("Conv", "ConvTranspose"):
        groups = graph.pick(1, 1, 2)
        attrs["dilations"] = [graph.number(1, 2) for _ in kernel]
        attrs["group"] = groups
        channels = (2 * groups, graph.number(1, 3)) if op == "Conv" else (groups * graph.number(1, 3), 2)
        inputs.append(graph.weight(*channels, *kernel))
    graph.put(op, inputs, graph.ranks[data], **attrs)


def _product(graph: Graph) -> None:
    left = graph.value(2, 3)
    right = graph.weight(graph.number(1, 6), 3) if graph.number(0, 1) else graph.value(2, 3)
    graph.put("MatMul", [left, right], max(graph.ranks[left], graph.ranks.get(right, 2)))


def _gemm(graph: Graph) -> None:
    inputs = [graph.value(2), graph.value(2)]
    if graph.number(0, 1):
        inputs.append(graph.weight(graph.number(1, 4)) if graph.number(0, 1) else graph.value(2))
    graph.put("Gemm", inputs, 2, transA=graph.number(0, 1), transB=graph.number(0, 1))


def _concat(graph: Graph) -> None:
    first = graph.value(1, 2, 3, 4)
    rank = graph.ranks[first]
    graph.put("Concat", [first, graph.value(rank)], rank, axis=graph.number(-rank, rank - 1))


def _reshape(graph: Graph) -> None:
    data = graph.value()
    match graph.number(0, 3):
        case 0:
            model = graph.pick(*(name for name in graph.ranks if name not in graph.signed))
            graph.put("Reshape", [data, graph.shape(model)], graph.ranks[model])
        case 1:
            graph.put("Reshape", [data, graph.numbers(graph.number(1, 6), -1)], 2)
        case 2:
            graph.put("Reshape", [data, graph.numbers(graph.number(1, 4), graph.number(1, 6))], 2)
        case _ if graph.ranks[data]:
            graph.put("Reshape", [data, graph.numbers(0, -1, graph.number(1, 3))], 3)


def _expand(graph: Graph) -> None:
    data, model = graph.value(), graph.value()
    if graph.number(0, 1):
        graph.put("Expand", [data, graph.shape(model)], max(graph.ranks[data], graph.ranks[model]))
    else:
        sizes = [graph.number(1, 5), graph.pick(1, 4)]
        graph.put("Expand", [data, graph.numbers(*sizes)], max(graph.ranks[data], 2))


def _squeeze(graph: Graph) -> None:
    data = graph.value(1, 2, 3, 4)
    rank = graph.ranks[data]
    graph.put("Squeeze", [data, graph.numbers(graph.number(-rank, rank - 1))], rank - 1)


def _split(graph: Graph) -> None:
    data = graph.value(1, 2, 3)
    rank, parts = graph.ranks[data], graph.number(2, 3)
    axis = graph.number(-rank, rank - 1)
    inputs = [data]
    if graph.number(0, 1):
        inputs.append(graph.numbers(*[graph.number(1, 4) for _ in range(parts)]))
    graph.put("Split", inputs, *[rank] * parts, axis=axis)


def _gather(graph: Graph) -> None:
    data = graph.value(1, 2, 3)
    rank = graph.ranks[data]
    indices = graph.numbers(*[graph.number(-9, 9) for _ in range(graph.number(1, 2))])
    graph.put("Gather", [data, indices], rank, axis=graph.number(-rank, rank - 1))


def _elements(graph: Graph) -> None:
    data = graph.value(1, 2, 3)
    rank = graph.ranks[data]
    shape = [graph.number(1, 4) for _ in range(rank)]
    axis = graph.number(-rank, rank - 1)
    if graph.pick(True, False):
        indices = graph.constant(np.zeros(shape, np.int64))
        graph.put("GatherElements", [data, indices], rank, axis=axis)
    else:
        shape[axis] = 1  # no place is written twice
        indices = graph.constant(np.zeros(shape, np.int64))
        graph.put("ScatterElements", [data, indices, graph.weight(*shape)], rank, axis=axis)


def _top(graph: Graph) -> None:
    data = graph.value(1, 2, 3)
    rank = graph.ranks[data]
    value = graph.put(
        "TopK", [data, graph.numbers(graph.number(1, 12))], rank, axis=graph.number(-rank, rank - 1)
    )
    graph.nodes[-1].output.append(f"{value}i")
    graph.other[f"{value}i"] = TensorProto.INT64


def _pad(graph: Graph) -> None:
    data = graph.value(1, 2, 3)
    rank = graph.ranks[data]
    if graph.number(0, 1):
        pads = [graph.number(0, 4) for _ in range(2 * rank)]
        graph.put("Pad", [data, graph.numbers(*pads)], rank, mode="reflect")
    else:
        pads = [graph.number(-3, 2) for _ in range(2 * rank)]
        graph.put("Pad", [data, graph.numbers(*pads)], rank)


def _recurrence(graph: Graph) -> None:
    op, gates = graph.pick(("GRU", 3), ("LSTM", 4), ("RNN", 1))
    data, size = graph.value(3), graph.number(1, 3)
    inputs = [data, graph.weight(1, 2 * gates, size), graph.weight(1, 2 * gates, 2)]
    if graph.number(0, 1):
        inputs += ["", "", graph.weight(1, graph.number(1, 3), 2)]
    graph.put(op, inputs, 4, hidden_size=2)


def _channels(graph: Graph) -> None:
    data, size = graph.value(3, 4), graph.number(1, 5)
    if graph.number(0, 1):
        graph.put("BatchNormalization", [data, *(graph.weight(size) for _ in range(4))], graph.ranks[data])
    else:
        graph.put("InstanceNormalization", [data, graph.weight(size), graph.weight(size)], graph.ranks[data])


def _last(graph: Graph) -> None:
    data = graph.value(2, 3)
    graph.put("LayerNormalization", [data, graph.weight(graph.number(1, 6))], graph.ranks[data])


def _blocks(graph: Graph) -> None:
    graph.put(graph.pick("DepthToSpace", "SpaceToDepth"), [graph.value(4)], 4, blocksize=graph.number(2, 3))


def _filled(graph: Graph) -> None:
    """A size that is a dimension less a number."""
    shape = graph.shape(graph.value(1))
    less = graph.put("Sub", [shape, graph.numbers(graph.number(0, 7))], 1, elem=TensorProto.INT64)
    graph.put("ConstantOfShape", [less], 1)


def _extreme(graph: Graph) -> None:
    data = graph.value(1, 2, 3)
    op, axis = graph.pick("ArgMax", "ArgMin"), graph.number(0, graph.ranks[data] - 1)
    graph.put(op, [data], graph.ranks[data], elem=TensorProto.INT64, axis=axis)


def _resized(graph: Graph) -> None:
    data = graph.value(3, 4)
    scales = [1.0, 1.0, *(graph.pick(0.25, 0.5, 1.5, 2.0) for _ in range(graph.ranks[data] - 2))]
    graph.put(
        "Resize", [data, "", graph.constant(np.array(scales, np.float32))], graph.ranks[data], mode="nearest"
    )


def _moved(graph: Graph) -> None:
    """Operators that demand nothing, and change shapes."""
    data = graph.value(1, 2, 3, 4)
    rank = graph.ranks[data]
    axis = graph.number(0, rank - 1)
    match graph.number(0, 3):
        case 0:
            order = graph.draw(st.permutations(range(rank)))
            graph.put("Transpose", [data], rank, perm=order)
        case 1:
            ends = (graph.number(-5, 5), graph.number(-5, 5), axis, graph.pick(1, 1, 2))
            graph.put("Slice", [data, *(graph.numbers(one) for one in ends)], rank)
        case 2 if rank < 4:
            graph.put("Unsqueeze", [data, graph.numbers(graph.number(0, rank))], rank + 1)
        case _:
            graph.put("ReduceMax", [data], rank, axes=[axis])


MAKERS: tuple[Callable[[Graph], None], ...] = (
    _elementwise, _slope, _window, _product, _gemm, _concat, _reshape, _expand, _squeeze, _split, _gather,
    _elements, _top, _pad,
    _recurrence, _channels, _last, _blocks, _filled, _extreme, _resized, _moved,
)  # fmt: skip


@st.composite
def graphs(draw: Draw, most: int = 5) -> ModelProto:
    """A model of up to ``most`` operators and what they need."""
    graph = Graph(draw)
    inputs = {}
    for name in ("x", "y", "z")[: graph.number(1, 3)]:
        inputs[name] = [graph.pick(*SYMBOLS, 1, 2, 6) for _ in range(graph.number(1, 4))]
        graph.ranks[name] = len(inputs[name])
    if not any(isinstance(dim, str) for dims in inputs.values() for dim in dims):
        inputs["x"][0] = "A"
    for _ in range(graph.number(1, most)):
        graph.pick(*MAKERS)(graph)
    return graph.model(inputs)
