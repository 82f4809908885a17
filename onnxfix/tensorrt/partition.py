"""How ONNX Runtime's TensorRT providers cut a model: what TensorRT takes, in how many parts, and what is left.

The provider of onnxruntime-gpu asks the parser which groups of nodes it takes, and asks again about each group alone.
NVIDIA's plugin for TensorRT-RTX leaves all nodes of a group that the parser does not take whole. All groups become one
part where that closes no cycle. TensorRT gets an If, a Loop or a Scan only with all of its bodies. Before that, ONNX
Runtime puts functions in place of their calls and computes what is constant. This module does the same.

Evidence: ``GetCapability`` and ``GetSupportedList`` of ONNX Runtime's onnxruntime/core/providers/tensorrt, and of the
plugin's src/tensorrt_rtx_execution_provider.cc (TensorRT-RTX-EP-ABI 0.4): it lists groups only if ``parseModelProto``
succeeds. The plugin takes the types of ``_TYPES``, and replaces Q and DQ (src/qdq_lowering.cc).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from onnxfix.files import dtypes, walk
from onnxfix.graph.order import unfolded
from onnxfix.place import place_of
from onnxfix.runtime.sandbox import note
from onnxfix.tensorrt import messages
from onnxfix.tensorrt.build import Run, issue_of
from onnxfix.tensorrt.package import load
from onnxfix.tensorrt.records import Outside, Partition

#: Element types that the plugin hands to TensorRT. Inputs and outputs of the model cannot be double.
_TYPES = {
    *(TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.BOOL),
    *(TensorProto.INT4, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT4E2M1),
}
_QDQ = ("QuantizeLinear", "DequantizeLinear")
#: What ONNX Runtime does not compute before it asks the provider.
_KEPT = (*_QDQ, "Bernoulli", "Multinomial", "Random")


def read(path: str, *, package: str, compute_capability: str) -> Partition:
    """How the provider of this ``package`` cuts the model file. Raises anything: call it in a sandbox."""
    note("parse")
    with messages.memory_errors():
        cutter = _Cutter(Run(load(package), path, package, compute_capability))
    parts = cutter.parts, cutter.whole if cutter.rtx else cutter.nodes - len(cutter.outside)
    return Partition(cutter.nodes, *parts, tuple(cutter.outside), package, cutter.run.base.version)


class _Cutter:
    """The model of a run, and how it is cut. ``whole``: nodes of groups that the parser takes at once."""

    def __init__(self, run: Run) -> None:
        model = unfolded(onnx.load(run.path, load_external_data=False))
        with suppress(Exception):  # a model that inference fails on has the types that it declares
            model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        self.run, self.model, self.rtx = run, model, run.base.package == "tensorrt-rtx"
        self.outside: list[Outside] = []
        self.parts = self.nodes = self.whole = 0
        self.weights: dict[str, TensorProto] = {}
        self._types: dict[str, ValueInfoProto] = {}
        self._places = {place.output: place for place, _ in run.places.every_node()}
        ends = [one for one in (*model.graph.input, *model.graph.output) if one.type.tensor_type.shape.dim]
        self._cut(model.graph, self._refuse_types(ends, TensorProto.DOUBLE))

    def _refuse_types(self, values: Iterable[ValueInfoProto], *more: int) -> Outside | None:
        """That the plugin takes no value of such a type, or of one ``more``; None if it takes all."""
        for value in values if self.rtx else ():
            elem = value.type.tensor_type.elem_type
            if elem and elem not in _TYPES.difference(more):
                return _left(f"the provider takes nothing with {value.name}, which is {dtypes.name_of(elem)}")
        return None

    def _cut(self, graph: GraphProto, refused: Outside | None = None) -> bool:
        """Cut a graph, the bodies in it first; returns whether TensorRT takes it whole. ``refused``: it takes none."""
        self._types.update((one.name, one) for one in (*graph.value_info, *graph.input, *graph.output))
        self._fold(graph)
        left = {n: why for n, node in enumerate(graph.node) if (why := refused or self._refuse(node))}
        self.parts += len(self._refine(graph, left))
        self.nodes += len(graph.node)
        for number, why in sorted(left.items()):
            node = graph.node[number]
            place = place_of(node)
            self.outside.append(replace(why, place=self._places.get(place.output, place)))
        return not left

    def _fold(self, graph: GraphProto) -> None:
        """Replace nodes that compute constants by initializers."""
        from onnx.reference import ReferenceEvaluator  # lazy: start-up

        inputs, kept = {one.name for one in graph.input}, list[NodeProto]()
        self.weights.update((one.name, one) for one in graph.initializer if one.name not in inputs)
        opsets = {one.domain: one.version for one in self.model.opset_import}
        for node in graph.node:
            try:
                feed = self._known(node)
                values = ReferenceEvaluator(node, opsets=opsets).run(None, feed)
                folded = [numpy_helper.from_array(*one) for one in zip(values, node.output, strict=True)]
            except Exception:  # not constant, or ONNX's evaluator lacks the operator
                kept.append(walk.copied(node))
            else:
                self.weights.update((one.name, one) for one in folded)
                graph.initializer.extend(folded)
        del graph.node[:]
        graph.node.extend(kept)

    def _known(self, node: NodeProto) -> dict[str, Any]:
        """The constant inputs of a node; of Shape, a tensor of the same sizes. Raises KeyError where one is unknown."""
        if node.op_type.startswith(_KEPT):
            raise KeyError(node.op_type)
        sizes = [one.dim_value for one in self.info(next(iter(node.input), "")).type.tensor_type.shape.dim]
        if node.op_type == "Shape" and sizes and all(sizes):
            return {node.input[0]: np.broadcast_to(False, sizes)}
        return {name: numpy_helper.to_array(self.weights[name]) for name in node.input if name}

    def _refuse(self, node: NodeProto) -> Outside | None:
        """Why the provider does not ask the parser about a node: its bodies, which are cut here, or a type."""
        before = self.parts, self.nodes, self.whole
        whole = [self._cut(graph) for graph in walk.subgraphs(node) if graph.node]
        if not all(whole):
            return _left("a part of its body runs elsewhere")
        self.parts, self.nodes, self.whole = before  # its bodies are in the part that has the node
        return self._refuse_types(map(self.info, (*node.input, *node.output)))

    def _refine(self, graph: GraphProto, left: dict[int, Outside]) -> list[list[int]]:
        """The parts that the parser takes of the nodes that are not ``left``; adds the others to these."""
        taken: list[list[int]] = []
        runs = itertools.groupby(range(len(graph.node)), key=lambda number: number in left)
        waiting = [(list(numbers), True) for is_left, numbers in runs if not is_left]
        while waiting:
            group, is_first = waiting.pop(0)
            flag = self.run.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
            network = self.run.builder.create_network(1 << int(flag))
            parser = self.run.trt.OnnxParser(network, self.run.log)
            model = self._extract([graph.node[number] for number in group], graph)
            if parser.supports_model_v2(model.SerializeToString(), self.run.path):
                taken.append(group)
                self.whole += len(group) * is_first
                continue
            found = [sorted(map(int, parser.get_subgraph_nodes(n))) for n in range(parser.num_subgraphs)]
            given = [parser.get_error(number) for number in range(parser.num_errors)]
            errors = {int(one.node()): issue_of(one, Outside) for one in reversed(given)}
            why = next(iter(errors.values()), _left("TensorRT's parser gives no reason"))
            if max(map(len, found), default=0) == len(group):  # it names no node: the provider gives up
                found = []
            for number in set(range(len(group))).difference(*found):
                left[group[number]] = errors.get(number, why)
            waiting[:0] = [([group[number] for number in one], False) for one in found]
        joined = [sorted(itertools.chain.from_iterable(taken))]
        return joined if taken and not _is_cyclic(graph, joined[0]) else taken

    def _extract(self, nodes: Sequence[NodeProto], graph: GraphProto) -> ModelProto:
        """A model of some nodes of a graph. What others read is its output."""
        made = {name for node in nodes for name in node.output if name}
        read = dict.fromkeys(name for node in nodes for name in walk.captures(node) if name)
        chosen, others = set(map(id, nodes)), {one.name for one in graph.output}
        others.update(name for node in graph.node if id(node) not in chosen for name in walk.captures(node))
        part = helper.make_graph(
            [self._stand_in(node) for node in nodes],
            "part",
            [self.info(name) for name in read if name not in made and name not in self.weights],
            [self.info(name) for name in sorted(made & others)],
            [self.weights[name] for name in read if name in self.weights],
            value_info=[self._types[name] for name in sorted(made - others) if name in self._types],
        )
        version = self.model.ir_version
        return helper.make_model(part, opset_imports=self.model.opset_import, ir_version=version)

    def info(self, name: str) -> ValueInfoProto:
        """What is known of a value's type; float32 where nothing is: operators of ONNX Runtime's own return that."""
        return self._types.get(name) or helper.make_tensor_value_info(name, TensorProto.FLOAT, None)

    def _stand_in(self, node: NodeProto) -> NodeProto:
        """The node; for a Q or DQ that the plugin computes with other operators a Cast, which is the last of these."""
        if not self.rtx or node.op_type not in _QDQ:
            return node
        data, scale, zero = (self.weights.get(name) for name in (*node.input, "")[:3])
        is_wide = data is not None and data.data_type == TensorProto.INT32
        is_moved = zero is not None and numpy_helper.to_array(zero).any()
        if scale is None or not (is_wide or is_moved):
            return node
        to = zero.data_type if zero is not None and node.op_type == "QuantizeLinear" else scale.data_type
        return helper.make_node("Cast", node.input[:1], node.output, node.name, to=to)


def _left(text: str) -> Outside:
    return Outside("parse", "error", text)


def _is_cyclic(graph: GraphProto, part: list[int]) -> bool:
    """Whether nodes outside of a part lie between nodes of it."""
    own = {name for number in part for name in graph.node[number].output if name}
    inside, between = set(part), set[str]()
    for number, node in enumerate(graph.node):
        read = walk.captures(node)
        if number in inside and not between.isdisjoint(read):
            return True
        if number not in inside and not (own.isdisjoint(read) and between.isdisjoint(read)):
            between.update(filter(None, node.output))
    return False
