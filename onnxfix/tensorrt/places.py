"""From TensorRT's messages back to the ONNX model: parser labels and layer names to nodes.

The parser calls a node by its name, or ``node_of_<first output>`` where it has none, and stamps each layer with the
labels of its node and of the local functions around it: ``[ONNX Layer: inner | call (G)]``. Layers that it adds of its
own accord carry no stamp; the next stamped layer is the one that they serve.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import onnx

from onnxfix.errors import ModelError
from onnxfix.files import loading
from onnxfix.graph.overlay import Node
from onnxfix.model import Model
from onnxfix.place import Place, place_of
from onnxfix.tensorrt import messages
from onnxfix.tensorrt.log import text_of

_UNNAMED = "node_of_"


def stamp_of(layer: Any) -> str | None:
    """The parser's label of the ONNX node that a layer was made for; None for a layer without a node."""
    stamps = messages.stamps_in(text_of(lambda: layer.metadata))
    return next((messages.split_stamp(stamp)[0] for stamp in stamps), None)


class Places:
    """The nodes of the model at ``path``, by TensorRT's labels. Reads the file on first use."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._loaded: loading.Loaded | None = None  # its file stays open as long as the model is looked at

    @cached_property
    def proto(self) -> onnx.ModelProto | None:
        """The model without its external data; None where onnx cannot read it."""
        try:
            self._loaded = loading.open_model(Path(self._path))
            return self._loaded.proto
        except Exception:  # TensorRT's message about such a file is the report; there are no places in it
            return None

    @cached_property
    def _nodes(self) -> list[Node]:
        """All nodes; only the main graph's where the model makes no sense as a graph, none where it has none."""
        if self.proto is None:
            return []
        try:
            return list(Model(self.proto, Path(self._path).parent).nodes())
        except ModelError:
            return []

    @cached_property
    def _labels(self) -> dict[str, list[Node]]:
        found: dict[str, list[Node]] = defaultdict(list)
        for node in self._nodes:
            found[node.name or _UNNAMED + node.first_output].append(node)
        return found

    @cached_property
    def _index(self) -> dict[int, int]:
        return {id(node.proto): number for number, node in enumerate(self._nodes) if not node.scope.path}

    def of_error(self, index: int, label: str, operator: str) -> Place:
        """The node of a parser error: ``index`` in the main graph, ``label`` and ``operator`` of the innermost."""
        proto = self.proto
        if proto is None or not 0 <= index < len(proto.graph.node):
            return Place(op_type=operator)
        outer = proto.graph.node[index]
        inner = [n for n in self._labels.get(label, ()) if n.op_type == operator]
        within = [n for n in inner if n.proto is outer or n.scope.path]
        if within and not any(n.proto is outer for n in within):
            return self._of(self._nearest(within, outer), index)
        return place_of(outer, index)

    def of_label(self, label: str, operator: str = "") -> Place:
        """The node that the parser calls ``label``; an empty place where none or several are called that."""
        found = [n for n in self._labels.get(label, ()) if not operator or n.op_type == operator]
        main = [n for n in found if not n.scope.path]
        one = main[0] if len(main) == 1 else found[0] if len(found) == 1 else None
        return self._of(one) if one is not None else Place()

    def every_node(self) -> list[tuple[Place, bool]]:
        """All nodes of the model in stored order, in subgraphs and local functions too, without Constant; each with
        whether other nodes are inside it: of an If, a Loop, a Scan, or a call of a local function."""
        functions = (
            {(one.domain, one.name) for one in self.proto.functions} if self.proto is not None else set()
        )
        found = []
        for node in self._nodes:
            if node.op_type != "Constant":
                graphs = any(one.type in (one.GRAPH, one.GRAPHS) for one in node.proto.attribute)
                holds_nodes = graphs or (node.proto.domain, node.op_type) in functions
                found.append((self._of(node), holds_nodes))
        return found

    def of_stamp(self, stamp: str) -> list[Place]:
        """The nodes that the parser's stamp of a layer may mean: mostly one, all of them where several in the same
        graph have one label, none where the model has no such node."""
        label, around = messages.split_stamp(stamp)
        found = self._labels.get(label, [])
        if len(found) > 1:
            inside = [n for n in found if bool(n.scope.path) == bool(around)] or found
            found = [n for n in inside if self._within(n, around)] or inside
        return [self._of(node) for node in found]

    def _within(self, node: Node, around: tuple[tuple[str, str], ...]) -> bool:
        """Whether a node is in the subgraphs that a stamp names. Who calls a local function is not known."""
        graphs = []
        scope = node.scope
        while scope.owner is not None:
            graphs.append((scope.attr, scope.owner.name or _UNNAMED + scope.owner.first_output))
            scope = scope.owner.scope
        return tuple(graphs) == around[: len(graphs)]

    def _nearest(self, found: list[Node], outer: onnx.NodeProto) -> Node:
        """Of nodes with one label, the one in a subgraph of ``outer``, else the first."""
        for node in found:
            owner: Node | None = node
            while owner is not None and owner.proto is not outer:
                owner = owner.scope.owner
            if owner is not None:
                return node
        return found[0]

    def _of(self, node: Node, index: int = -1) -> Place:
        """The place of a node. ``index`` is that of the node of the main graph around it, if it is in a function."""
        index, around = self._index.get(id(node.proto), index), None
        if node.scope.path:
            owner: Node | None = node
            while owner is not None and owner.scope.path:
                owner = owner.scope.owner
            if owner is not None:
                index, around = self._index.get(id(owner.proto), index), owner.at
            elif index >= 0 and self.proto is not None:
                around = place_of(self.proto.graph.node[index], index)
        return replace(node.at, index=index, around=around)

    def of_operation(self, text: str) -> Place:
        """The node of the operator that a message without a layer names, if the model has just one of them."""
        operator = messages.operation_in(text)
        found = [n for n in self._nodes if operator and n.op_type == operator]
        return self._of(found[0]) if len(found) == 1 else Place()


class Layers:
    """The layers of a network, by name, with the label of the ONNX node that each came from."""

    def __init__(self, network: Any) -> None:
        self.kinds: dict[str, int] = defaultdict(int)
        self._labels: dict[str, str] = {}
        waiting: list[str] = []
        for number in range(network.num_layers):
            layer = network.get_layer(number)
            self.kinds[layer.type.name] += 1
            label = stamp_of(layer)
            waiting.append(text_of(partial(getattr, layer, "name")))
            if label is not None:
                self._labels.update(dict.fromkeys(waiting, label))
                waiting.clear()
        self._labels.update(dict.fromkeys(waiting, ""))

    def named_in(self, text: str) -> str:
        """The layer that the builder's message is about; "" where it names none."""
        return messages.layer_in(text, self._labels)

    def label(self, layer: str) -> str:
        """The label of the node that the layer came from; "" where that is not known."""
        return self._labels.get(layer, "")
