"""Finds where a network begins to compute something else, and at which node ONNX Runtime rejects a model. Compares
tensors that have the same name on both sides, in the model's order, until a tensor differs although everything that it
depends on agrees."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, defs, helper

from onnxfix.files import walk
from onnxfix.inputs.feeds.flow import CHOOSING
from onnxfix.inputs.feeds.signature import Signature
from onnxfix.place import Place, place_of
from onnxfix.proof.checks.sessions import Bench
from onnxfix.proof.compare.compare import Metrics
from onnxfix.proof.compare.tolerance import shaken
from onnxfix.proof.readback.values import Values, chooses_alike, inputs_of, judge, measure_noise, partners
from onnxfix.proof.request import Trial
from onnxfix.runtime.backends import ort_messages
from onnxfix.tensorrt.lift.records import Lifted
from onnxfix.tensorrt.reading import Kind, Misread, Subject

MOST = 5
"""How many causes to look for."""
_LAYERS = 20  # maximum number of layers named for one node
_BYTES = 256 << 20  # maximum size of the tensors that a model outputs at once
_FIRST, _GROWTH = 16, 4  # number of tensors in the first step, and its growth
_LEAST, _INFLATION = 256 << 10, 4  # assumed bytes of a tensor, and as a multiple of the inputs' bytes


@dataclass(frozen=True)
class Pair:
    """A model and the network that TensorRT imported from it, as files and as their content. ``wires`` maps the model's
    inputs to the network's and their types. ``outputs`` are pairs of names to compare, the model's and the network's;
    ``static`` are the differences in declarations and weights."""

    path: str
    model: ModelProto
    lifted: Lifted
    network: ModelProto
    wires: Mapping[str, tuple[str, int]]
    known: Signature
    outputs: Sequence[tuple[str, str]] = ()
    static: Sequence[Misread] = ()

    def wire(self, values: Values) -> dict[str, Any]:
        """The inputs of the model for the network, by its names and in its types."""
        wired = ((*self.wires[name], value) for name, value in values.items() if name in self.wires)
        with np.errstate(all="ignore"):
            return {
                name: np.asarray(value).astype(helper.tensor_dtype_to_np_dtype(elem))
                for name, elem, value in wired
            }


@dataclass
class Search:
    """Runs both models again on the inputs of ``trial``, and compares the inner tensors that wrong outputs
    depend on. ``deadline`` is a time of ``time.monotonic``.

    ``misreads`` are the first differences, and ``off`` all tensors that depend on them. ``unsure`` says
    why the search is incomplete. ``choices`` leads from a tensor that differs to the operator that chose other
    elements, which are equal up to rounding; ``within`` from one within noise to its name in the network."""

    bench: Bench
    pair: Pair
    trial: Trial
    backend: str
    coarse: str
    deadline: float
    off: set[str] = field(default_factory=set)
    misreads: list[Misread] = field(default_factory=list)
    choices: dict[str, str] = field(default_factory=dict)
    within: dict[str, str] = field(default_factory=dict)
    unsure: str = ""

    def __post_init__(self) -> None:
        # Assumed bytes of an inner tensor. The first ones are often small shapes, unlike later ones.
        fed = sum(getattr(value, "nbytes", 0) for value in self.trial.values.values())
        self.guess = max(_LEAST, _INFLATION * fed)

    def run(self, wrong: Sequence[str]) -> None:
        """Find where the outputs ``wrong`` begin to differ."""
        waiting = self._candidates(wrong)
        size = max(1, min(_FIRST, _BYTES // self.guess))
        while waiting and len(self.misreads) < MOST and not self.unsure:
            if time.monotonic() > self.deadline:
                self.unsure = "the time limit was reached"
                break
            part, waiting = waiting[:size], waiting[size:]
            size = self._look(part, size)
            waiting = [pair for pair in waiting if pair[0] not in self.off]

    def _candidates(self, wrong: Sequence[str]) -> list[tuple[str, str]]:
        """The tensors that the wrong outputs depend on: names on both sides, in the model's order."""
        graph, names = self.pair.model.graph, self.pair.lifted.names
        inner = {name for node in self.pair.network.graph.node for name in node.output}
        inner |= {tensor.name for tensor in self.pair.network.graph.initializer}
        needed = upstream(graph, wrong)
        outputs = dict(output_pairs(self.pair))
        candidates = []
        for node in graph.node:
            for name in node.output:
                other = outputs.get(name, names.get(name, ""))
                plain = node.op_type != "Constant" and not self.pair.known.draws_on(name)
                if name in needed and other in inner and plain:
                    candidates.append((name, other))
        return candidates

    def _run(self, names: Sequence[str], others: Sequence[str], *, moved: bool) -> tuple[str, list[Values]]:
        """Why the two do not run ("" if they do), and what they compute for these tensors: the model, with ``moved``
        the model on moved inputs too, and the network."""
        values, pair = self.trial.values, self.pair
        own = [values, shaken(values)] if moved else [values]
        computed: list[Values] = []
        for path, wanted, feeds in ((pair.path, names, own), (pair.lifted.path, others, [pair.wire(values)])):
            reply = self.bench.put(self.backend, path, wanted)
            for feed in feeds:
                reply = reply if reply.error else self.bench.compute(feed)
                computed.append(reply.outputs)
            if reply.error:
                return reply.error, []
        return "", computed

    def _look(self, part: Sequence[tuple[str, str]], size: int) -> int:
        """Compare some tensors; returns how many to compare next."""
        names = [name for name, _ in part]
        error, computed = self._run(names, sorted({other for _, other in part}), moved=True)
        if error:
            self.unsure = f"tensors inside could not be compared: {error}"
            return size
        ours, moved, theirs = computed
        metrics = judge(ours, theirs, part, self.coarse, measure_noise(ours, moved, names))
        for (name, other), metric in zip(part, metrics, strict=False):
            if metric.agreement == "within":
                self.within[name] = other
            if metric.agreement == "different" and name not in self.off and len(self.misreads) < MOST:
                self._blame(name, other, metric)
        read_bytes = sum(getattr(value, "nbytes", 0) for value in ours.values())
        fits = int(_BYTES / max(read_bytes / max(len(part), 1), self.guess))
        return max(1, min(fits, size * _GROWTH))

    def _blame(self, name: str, other: str, metric: Metrics) -> None:
        graph = self.pair.model.graph
        node = next(candidate for candidate in graph.node if name in candidate.output)
        self.off |= downstream(graph, node)
        before = self.within.keys() & upstream(graph, [name])
        others = [
            (producer, key, self.within[key])
            for producer in graph.node
            for key in producer.output
            if key in before
        ]
        chosen = (node, name, other), *others
        choosers = (item[0] for item in chosen if metric.kind == "values" and self._chooses_alike(*item))
        if chooser := next(choosers, None):
            self.choices[name] = chooser.op_type
        else:
            self.misreads.append(misread(self.pair, name, metric, self.trial.label))

    def _chooses_alike(self, node: NodeProto, name: str, other: str) -> bool:
        """Whether a node chose other elements that are equal up to rounding: ``name`` are its indices."""
        if node.op_type not in CHOOSING or name != node.output[-1]:
            return False
        data = node.input[0]
        their_data = self.pair.lifted.names.get(data, "")
        error, computed = self._run([data, name], [*filter(None, (their_data, other))], moved=False)
        if error:
            return False
        ours, theirs = computed
        axes = (attribute.i for attribute in node.attribute if attribute.name == "axis")
        axis = next(axes, CHOOSING[node.op_type])
        sides = ours[data], theirs.get(their_data, ours[data])
        return chooses_alike(sides, (ours[name], theirs[other]), axis=axis, coarse=self.coarse)


def misread(pair: Pair, name: str, metric: Metrics, feed: str) -> Misread:
    """What a node of the model computes differently, as a record; ``name`` is the tensor that shows it."""
    graph = pair.model.graph
    node = next((one for one in graph.node if name in one.output), None)
    outputs = {info.name for info in graph.output}
    subject: Subject = "output" if name in outputs else "tensor"
    place = locate_node(node, graph)
    layers = layers_of(pair.network.graph, node) if node is not None else ()
    unnamed = _unnamed(pair, node) if node is not None else 0
    first = metric.values
    if first is not None and metric.at is not None:
        extent = metric.reason
        return Misread("value", place, subject, *first, metric.at, extent, layers, feed, unnamed, name=name)
    declared, native = metric.sides or (metric.reason, "something else")
    word = {"shape": "shape ", "dtype": "type "}.get(metric.kind, "") if metric.sides is not None else ""
    kind: Kind = "shape" if metric.kind == "shape" else "value"
    declared, native = f"{'of ' * bool(word)}{word}{declared}", f"{word}{native}"
    return Misread(kind, place, subject, declared, native, None, "", layers, feed, unnamed, name=name)


def output_pairs(pair: Pair) -> list[tuple[str, str]]:
    """The model's outputs with their names in the lifted model."""
    declared = [info.name for info in pair.model.graph.output]
    positions = partners(declared, [tensor.name for tensor in pair.lifted.outputs])
    files = [info.name for info in pair.network.graph.output]
    return [(name, files[positions[name]]) for name in declared if name in positions]


def label_of(node: NodeProto) -> str:
    """What TensorRT's parser calls a node."""
    return node.name or f"node_of_{next((name for name in node.output if name), '')}"


def layers_of(network: GraphProto, node: NodeProto) -> tuple[str, ...]:
    """Kind and name of TensorRT's layers of a node and its subgraphs. Layers named after a node come first;
    layers that the parser adds for shapes and casts come last."""
    labels, layers = {label_of(inner) for inner in walk.nodes([node])}, dict[str, bool]()
    for layer_node in walk.nodes(network.node):
        metadata = {entry.key: entry.value for entry in layer_node.metadata_props}
        if metadata.get("onnx_node") in labels and metadata.get("trt_kind"):
            name = metadata.get("trt_layer", "")
            layers[f"{metadata['trt_kind']} {name}".strip()] = any(label in name for label in labels)
    names = sorted(layers, key=lambda name: not layers[name])
    more = [f"and {len(names) - _LAYERS} more"] if len(names) > _LAYERS else []
    return (*names[:_LAYERS], *more)


def layer_of(words: str, pair: Pair) -> tuple[NodeProto | None, tuple[str, ...]]:
    """The node of the model whose layer in the network ONNX Runtime's error is about, and that layer."""
    inner = node_of(words, pair.network.graph)
    by = {entry.key: entry.value for entry in inner.metadata_props} if inner is not None else {}
    node = next((one for one in pair.model.graph.node if label_of(one) == by.get("onnx_node")), None)
    layer = f"{by.get('trt_kind', '')} {by.get('trt_layer', '')}".strip()
    return node, (layer,) if layer else ()


def upstream(graph: GraphProto, names: Sequence[str]) -> set[str]:
    """These tensors of the main graph, and all that they depend on."""
    makers = {name: node for node in graph.node for name in node.output if name}
    return walk.ancestors(makers, names)


def downstream(graph: GraphProto, node: NodeProto) -> set[str]:
    """The outputs of a node and all tensors that depend on them. Nodes are in topological order."""
    names: set[str] = set()
    for current in graph.node:
        if current is node or not names.isdisjoint(walk.reads(current)):
            names.update(name for name in current.output if name)
    return names


def _unnamed(pair: Pair, node: NodeProto) -> int:
    """How many preceding nodes have no tensor that can be compared. Stops at nodes that have one."""
    nodes = [one for one in pair.model.graph.node if one.op_type != "Constant"]
    makers = {name: one for one in nodes for name in one.output if name and name not in pair.lifted.names}
    passed = walk.ancestors(makers, walk.reads(node))
    return sum(any(name in passed and name in makers for name in one.output) for one in nodes)


# -- why ONNX Runtime rejects a model: whether the model is to blame, and at which node

#: Operators that read of a tensor no more than its shape.
_OF_SHAPE = ("Shape", "Size")


def lacks(text: str, graph: GraphProto) -> bool:
    """Whether ONNX Runtime lacks something, and the model is not at fault: a kernel, a newer operator, memory."""
    if ort_messages.is_gap(text):
        return True
    node, attribute = node_of(text, graph), ort_messages.unknown_attribute(text)
    if attribute is not None and node is not None and node.domain in ("", "ai.onnx"):
        # It is older than the model's opset if ONNX has that attribute.
        operator, name = attribute
        if defs.has(operator) and name in defs.get_schema(operator).attributes:
            return True
    if not ort_messages.is_unregistered(text):
        return False
    domains = ("ai.onnx.", "com.microsoft")
    return node is None or node.domain in ("", "ai.onnx") or node.domain.startswith(domains)


def node_of(text: str, graph: GraphProto) -> NodeProto | None:
    """The node of the main graph that the text is about, or that holds it; None where it names none."""
    clues = ort_messages.clues(text)
    for node, inner in _all(graph):
        if inner.name and inner.name in clues.names:
            return node
    for node, inner in _all(graph):
        if any(name and name in inner.output for name in clues.outputs):
            return node
    alike = [node for node, inner in _all(graph) if inner.op_type in clues.operators]
    return alike[0] if alike and all(node is alike[0] for node in alike) else None


def _all(graph: GraphProto) -> Iterator[tuple[NodeProto, NodeProto]]:
    """Every node with the one of the main graph around it."""
    return ((node, inner) for node in graph.node for inner in walk.nodes([node]))


def locate_node(node: NodeProto | None, graph: GraphProto) -> Place:
    """The place of a node of the main graph, as reports show it; an empty one for None."""
    if node is None:
        return Place()
    return place_of(node, next(number for number, one in enumerate(graph.node) if one is node))


#: Operators whose result has another type than what they read: integers or truth values of floats.
_TURNS = {"ArgMax", "ArgMin", "BitCast", "Cast", "CastLike", "Equal", "Greater", "GreaterOrEqual", "IsInf"}
_TURNS |= {"IsNaN", "Less", "LessOrEqual", "NonZero", "QuantizeLinear", "TopK", "Unique"}
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def settled(text: str, graph: GraphProto) -> bool:
    """Whether a model of static shape fails on any input: at a node whose integers depend on no input's values."""
    node = node_of(text, graph)
    kinds = [info.type.tensor_type for info in inputs_of(graph)]
    static = all(
        kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim) for kind in kinds
    )
    return node is not None and static and _chosen(graph).isdisjoint(node.input)


def _chosen(graph: GraphProto) -> set[str]:
    """The values of the main graph, other than floats, that depend on the values of an input, and not on shapes."""
    fed = {info.name for info in inputs_of(graph)}
    found = {info.name for info in inputs_of(graph) if info.type.tensor_type.elem_type not in _FLOATS}
    for node in graph.node:
        reads = set(walk.reads(node))
        if node.op_type in _OF_SHAPE or reads.isdisjoint(fed):
            continue
        made = [name for name in node.output if name]
        fed.update(made)
        if node.op_type in _TURNS or not reads.isdisjoint(found):
            found.update(made)
    return found
