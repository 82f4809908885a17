"""What a choice of nodes costs on a GPU, estimated by flops and bytes.

Products and convolutions take as long as their arithmetic or their memory traffic, whichever is longer. Other nodes
are fused with each other and with the product before: what they hand on costs nothing, except a tensor that several of
them read, and one whose type changes, for a Cast breaks the fusion. What a product reads is written in its type.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Set
from functools import cached_property

from onnxfix.lowering.choice import Graph, stretches
from onnxfix.lowering.lowered import HEAVY
from onnxfix.lowering.measure import Tensor

#: A datacenter GPU, at 60 % of the rates that an H100 is sold for: half precision on tensor cores and float32 without
#: TF32, flops a second; bytes a second.
_RATES = {True: 6e14, False: 4e13}
_BANDWIDTH = 2e12
_WIDTHS = {True: 2, False: 4}
"""Bytes of an element, in the low type or not."""
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})


class Costs:
    """Estimates for the nodes of a graph, whose ``tensors`` have been measured."""

    def __init__(self, graph: Graph, tensors: Mapping[str, Tensor]) -> None:
        self._graph, self._tensors = graph, tensors
        self._heavy = frozenset(i for i in graph.able.slots if graph.nodes[i].op_type in HEAVY)

    def seconds(self, low: Set[int]) -> float:
        """The time of the model with these nodes in the low type."""
        return self._sum(self._graph.uses, self._heavy, low)

    def added(self, nodes: Collection[int], low: Set[int]) -> float:
        """What it adds to the time that these nodes of ``low`` have float32."""
        graph = self._graph
        names = {name for index in nodes for name in (*graph.sources(index), *graph.results(index))}
        names = set().union(*(graph.origins[name] for name in names))
        names.update(name for name, whole in self._attentions.items() if not whole.isdisjoint(nodes))
        heavy = self._heavy.intersection(nodes)
        return self._sum(names, heavy, low - set(nodes)) - self._sum(names, heavy, low)

    def _sum(self, names: Collection[str], heavy: Collection[int], low: Set[int]) -> float:
        moved = sum(self._moved(name, low) for name in names)
        return moved + sum(self._product(index, index in low) for index in heavy)

    def _size(self, name: str) -> float:
        measured = self._tensors.get(name)
        return measured.count / measured.samples if measured is not None else 0.0

    def _product(self, index: int, is_low: bool) -> float:
        """The time of a product or convolution, with what it reads and writes."""
        node = self._graph.nodes[index]
        size = sum(map(self._size, (*node.input, *node.output)))
        arithmetic = self._flops(index) / _RATES[is_low]
        return max(arithmetic, size * _WIDTHS[is_low] / _BANDWIDTH)

    def _flops(self, index: int) -> float:
        node = self._graph.nodes[index]
        shapes = [self._tensors[name].shape if name in self._tensors else () for name in node.input]
        first, second, third = map(self._size, [*node.input, "", ""][:3])
        result, kind = self._size(node.output[0]), node.op_type
        if kind in ("Conv", "ConvTranspose") and shapes[1]:
            return 2 * (result if kind == "Conv" else first) * second / shapes[1][0]
        if kind == "MatMul" and shapes[0]:
            return 2 * result * shapes[0][-1]
        if kind == "Attention" and len(shapes[1]) > 1:
            return 4 * first * shapes[1][-2]
        if kind in _RECURRENT and shapes[0]:
            return 2 * math.prod(shapes[0][:-1]) * (second + third)
        return 2 * math.sqrt(first * second * result)  # right for matrices

    def _moved(self, name: str, low: Set[int]) -> float:
        """The time to move a tensor between kernels, beyond what products read and write."""
        readers, size = self._graph.uses.get(name, ()), self._size(name) / _BANDWIDTH
        producer, is_low = self._graph.producers.get(name, -1), self._graph.low_tensor(name, low)
        products = {index in low for index in readers if index in self._heavy}
        others = [index in low for index in readers if index not in self._heavy]
        is_cast = (not is_low) in others
        seconds = 0.0
        if others and (is_cast or len(readers) > 1):
            seconds += size * _WIDTHS[is_low] * (len(others) + (producer not in self._heavy))
        if producer in self._heavy or producer < 0:
            if (not is_low) in products:  # a Cast alone
                seconds += size * sum(_WIDTHS.values())
        elif not (name in self._attentions and self._attentions[name] <= low):
            seconds += sum(size * _WIDTHS[kind] for kind in products)
        return seconds

    @cached_property
    def _attentions(self) -> dict[str, frozenset[int]]:
        """What nodes with a Softmax write for a product, and all nodes from the products before to those after: with
        half precision alone they are one kernel."""
        graph, found = self._graph, {}
        for stretch in stretches(graph):
            if not any(graph.nodes[index].op_type == "Softmax" for index in stretch):
                continue
            read, written = (
                {name for index in stretch for name in tensors(index)}
                for tensors in (graph.sources, graph.results)
            )
            after = {name: self._heavy.intersection(self._graph.uses.get(name, ())) for name in written}
            before = self._heavy.intersection(graph.producers.get(name, -1) for name in read)
            computing = filter(graph.computes, stretch)
            whole = before.union(computing, *after.values())
            found.update({name: whole for name, products in after.items() if products})
        return found
