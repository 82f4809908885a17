"""The mixed-precision model: types of tensors, weights in the type that reads them, and Casts where the type changes.

A tensor has the type that its node writes. Its name stays with that type, unless something needs float32 under the
name: an output of a graph. A Cast is made once for each tensor and type, in the graph that defines the tensor: what a
loop reads of the graph around it is not cast in each iteration.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfix.errors import ModelError
from onnxfix.files import tensors, walk
from onnxfix.lowering.choice import Graph
from onnxfix.lowering.lowered import ELEMENT, FLOAT, HEAVY, Lowerable, apart_by_name, names_of, rebuild
from onnxfix.lowering.quantized import QUANTIZERS, SCALES, fresh, opset_of, raise_opset
from onnxfix.lowering.records import IoTypes
from onnxfix.model import Model

_ANY = frozenset({"Shape", "Size", "Cast"})
"""Operators that read any type: they need no Cast before them."""
_HUGE = 1 << 40


def converted(
    model: ModelProto,
    able: Lowerable,
    low: frozenset[int],
    *,
    base_dir: Path | None = None,
    io_types: IoTypes = "keep",
    weights: bool = True,
) -> ModelProto:
    """The model in which the nodes ``low`` (by index, of those in ``able.slots``) have the low type, as a copy.

    Constants that are read in both types are stored in both. ``weights`` False: those of products and tables
    keep no data, for looking at the graph alone.

    Raises:
        ModelError: a weight cannot be read, or its file has changed.
    """
    proto = walk.copied(apart_by_name(model))
    _Conversion(proto, able, low, base_dir, io_types, weights).run()
    return proto


class _Conversion:
    """``stored`` has the types of tensors by name, ``where`` the names under which a tensor has a type."""

    def __init__(
        self,
        proto: ModelProto,
        able: Lowerable,
        low: frozenset[int],
        base_dir: Path | None,
        io_types: IoTypes,
        weights: bool,
    ) -> None:
        self.proto, self.able, self.low, self.base_dir = proto, able, low, base_dir
        self.io_types, self.weights = io_types, weights
        self.to = ELEMENT[able.to]
        self.names = names_of(proto)
        self.scales = False  # in the low type
        self.homes: dict[str, list[NodeProto]] = {}
        self.where: dict[tuple[str, int], str] = {}
        self.stored: dict[str, int] = dict.fromkeys(able.floats, FLOAT)
        nodes, self.graphs = walk.graph_nodes(proto.graph), [*walk.graphs(proto.graph)]
        inputs = {info.name for info in proto.graph.input}
        self.constants: dict[str, TensorProto | NodeProto] = {
            tensor.name: tensor
            for graph in self.graphs
            for tensor in graph.initializer
            if tensor.name not in inputs
        }
        self.constants.update(
            (node.output[0], node) for node in nodes if node.op_type == "Constant" and not node.domain
        )
        #: Weights of products and tables: what is not looked at without ``weights``.
        self.heavy = {
            name for node in nodes if node.op_type in HEAVY or node.op_type == "Gather" for name in node.input
        }
        outputs = {info.name for info in proto.graph.output}
        self.held = {info.name for graph in self.graphs[1:] for info in graph.output}
        self.held |= {one.tensor_name for graph in self.graphs for one in graph.quantization_annotation}
        if io_types == "keep":
            self.held |= outputs
        self.read: set[str] = self.held | outputs

    # -- the whole

    def run(self) -> None:
        graph = self.proto.graph
        initialized = {tensor.name for tensor in graph.initializer}
        for info in graph.input if self.io_types == "low" else ():
            if info.name in self.able.floats and info.name not in self.held | initialized:
                info.type.tensor_type.elem_type = self.to
                self.stored[info.name] = self.to
        chosen = Graph(self.proto, self.able)
        self.scans = {name for name in self.able.scans if chosen.low_tensor(name, self.low)}
        for info in (info for inner in self.graphs[1:] for info in inner.input if info.name in self.scans):
            info.type.tensor_type.elem_type = self.to
            self.stored[info.name] = self.to
        rebuild(self.proto, self.homes, self._visit)
        self.graphs = [*walk.graphs(graph)]  # the nodes around them are new
        for inner in self.graphs:
            for index in reversed(range(len(inner.node))):
                node = inner.node[index]
                if node.op_type == "Constant" and not node.domain and self.read.isdisjoint(node.output):
                    del inner.node[index]
        self._drop_initializers()
        self._declare()
        self.proto.ir_version = max(self.proto.ir_version, 4)  # before, initializers had to be inputs too
        if self.scales and opset_of(self.proto) < SCALES:
            raise_opset(self.proto, self.names)

    def _visit(self, index: int, node: NodeProto, nodes: list[NodeProto]) -> None:
        if index not in self.low:
            scanned = {slot for name in self.scans for scan, slot in [self.able.scans[name]] if scan == index}
            for slot, name in enumerate(node.input):
                node.input[slot] = self._as(name, self.to) if slot in scanned else self._plain(node, name)
            nodes.append(node)
            return
        slots = self.able.slots[index]
        for slot, name in enumerate(node.input):
            if slot in slots.inputs and node.op_type not in _ANY:
                node.input[slot] = self._as(name, self.to)
            else:
                node.input[slot] = self._plain(node, name)
        nodes.append(node)
        self.scales |= node.op_type in QUANTIZERS
        _retype(node, {FLOAT}, self.to)
        for slot in slots.outputs:
            name = node.output[slot]
            if not name:
                continue
            self.stored[name] = self.to
            if name in self.held:
                node.output[slot] = fresh(self.names, f"{name}/{self.able.to}")
                self.where[name, self.to] = node.output[slot]
                self._cast(node.output[slot], name, FLOAT, name)
                self.where[name, FLOAT] = name

    def _plain(self, node: NodeProto, name: str) -> str:
        """What a node reads in place of ``name`` where it needs the original type."""
        if node.op_type in _ANY and not node.domain and name in self.stored:
            return self._seen(self.where.get((name, self.stored[name]), name))
        return self._as(name, FLOAT) if name in self.stored else self._seen(name)

    def _seen(self, name: str) -> str:
        self.read.add(name)
        return name

    def _as(self, name: str, to: int) -> str:
        """The name under which a float32 tensor of the original has the type ``to``."""
        if not name or self.stored.get(name, to) == to:
            return self._seen(self.where.get((name, to), name))
        if (name, to) not in self.where:
            kind = "float32" if to == FLOAT else self.able.to
            made = fresh(self.names, f"{name}/{kind}")
            constant = self.constants.get(name) if to == self.to else None
            if constant is None or not self._store(constant, made):
                self._seen(name)
                self._cast(name, made, to, name)
            self.where[name, to] = made
        return self._seen(self.where[name, to])

    def _cast(self, source: str, result: str, to: int, of: str) -> None:
        """Add a Cast where the tensor ``of`` is defined."""
        name = fresh(self.names, f"{result}/Cast")
        self.homes[of].append(helper.make_node("Cast", [source], [result], name, to=to))

    # -- constants

    def _store(self, constant: TensorProto | NodeProto, name: str) -> bool:
        """Add the constant in the low type under ``name``; False where it can only be cast."""
        if isinstance(constant, NodeProto):
            array = tensors.constant_node_array(constant, self.base_dir, _HUGE)
        elif not self.weights and constant.name in self.heavy:
            lacking = TensorProto(name=name, data_type=self.to, dims=constant.dims)
            lacking.data_location = TensorProto.EXTERNAL
            lacking.external_data.add(key="location", value="absent")
            self.proto.graph.initializer.append(lacking)
            return True
        else:
            array = tensors.to_array(constant, self.base_dir, _HUGE)
            if array is None:
                raise ModelError(f"the weight {constant.name!r} cannot be read")
        if array is None:
            return False
        self.proto.graph.initializer.append(low_tensor(array, name, self.to))
        return True

    def _drop_initializers(self) -> None:
        """Remove the constants that were read in float32 and are now in the low type only, which gets their name."""
        renamed = {
            self.where[name, self.to]: name
            for name, one in self.constants.items()
            if isinstance(one, TensorProto) and (name, self.to) in self.where and name not in self.read
        }
        gone = {
            name
            for name, one in self.constants.items()
            if isinstance(one, TensorProto) and name in self.stored and name not in self.read
        }
        self.stored.update(dict.fromkeys(renamed.values(), self.to))
        for graph in self.graphs:
            kept = [tensor for tensor in graph.initializer if tensor.name not in gone]
            del graph.initializer[:]
            graph.initializer.extend(kept)
            for tensor in graph.initializer:
                tensor.name = renamed.get(tensor.name, tensor.name)
            declared = [info for info in graph.value_info if info.name not in gone - set(renamed.values())]
            del graph.value_info[:]
            graph.value_info.extend(declared)
            for node in graph.node:
                for slot, name in enumerate(node.input):
                    if name in renamed:
                        node.input[slot] = renamed[name]

    def _declare(self) -> None:
        """Correct the declared types of inner tensors, and of outputs where these may be low."""
        infos = [info for graph in self.graphs for info in graph.value_info]
        for info in (*infos, *(self.proto.graph.output if self.io_types == "low" else ())):
            if self.stored.get(info.name) == self.to and info.name not in self.held:
                info.type.tensor_type.elem_type = self.to


def _retype(node: NodeProto, known: Set[int], to: int) -> None:
    """Where an attribute gives what the node writes one of the types ``known``, it is ``to`` afterwards."""
    names = {"Cast": "to", "DequantizeLinear": "output_dtype"}
    if node.op_type == "ConstantOfShape" and not node.attribute and FLOAT in known:
        node.attribute.append(helper.make_attribute("value", low_tensor(np.zeros(1), "value", to)))
    for attribute in node.attribute:
        if attribute.name == names.get(node.op_type) and attribute.i in known:
            attribute.i = to
        if attribute.name == "value" and attribute.HasField("t") and attribute.t.data_type in known:
            attribute.t.CopyFrom(low_tensor(numpy_helper.to_array(attribute.t), attribute.t.name, to))


def low_tensor(array: np.ndarray[Any, Any], name: str, to: int) -> TensorProto:
    """The array in the low type, rounded to nearest; what is beyond its range becomes infinite."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        made = np.ascontiguousarray(array.astype(helper.tensor_dtype_to_np_dtype(to)))
    return TensorProto(name=name, data_type=to, dims=array.shape, raw_data=made.tobytes())


# ---------------------------------------------------------------------------- half precision, rounded as it says

_LOWS = frozenset(ELEMENT.values())
#: These take any type, or are Casts themselves.
_AS_THEY_ARE = frozenset({"Cast", "CastLike", "Constant", "Identity", "Shape", "Size"})


def between_casts(model: ModelProto) -> ModelProto:
    """A copy of the model in which every node that reads or writes half precision computes in float32, between Casts;
    the model itself where there is none. Functions stay as they are.

    ONNX Runtime has few half-precision kernels for the CPU. Where it lacks one it puts Casts around nodes itself and
    then drops pairs of them, with all optimizations off too: 300 * 300 / 300 is then 300, where it is infinite. Of
    bfloat16 it refuses most. This rounds exactly where the model's types say so.

    Raises:
        ModelError: the graph is not valid.
    """
    if not _touches_half(model):
        return model
    model = apart_by_name(model)
    made = walk.copied(model)
    overlay = Model(model, None)
    scopes = [*overlay.main.walk()]
    originals = [node for scope in scopes for node in scope.nodes]
    values = [(name, overlay.shapes.info(one)) for scope in scopes for name, one in scope.values.items()]
    kinds = {name: info.elem for name, info in values if info.kind == "tensor"}
    names = names_of(made)
    wide: dict[str, str] = {}
    homes: dict[str, list[NodeProto]] = {}

    def cast(nodes: list[NodeProto], source: str, result: str, to: int) -> str:
        nodes.append(helper.make_node("Cast", [source], [result], fresh(names, f"{result}/Cast"), to=to))
        return result

    def visit(index: int, node: NodeProto, nodes: list[NodeProto]) -> None:
        original = originals[index]
        if original.op_type in _AS_THEY_ARE or original.subgraphs or not original.is_onnx:
            nodes.append(node)
            return
        for slot, name in enumerate(node.input):
            if kinds.get(name) in _LOWS:
                if name not in wide:
                    wide[name] = cast(homes.get(name, nodes), name, fresh(names, f"{name}/wide"), FLOAT)
                node.input[slot] = wide[name]
        after = [(slot, name) for slot, name in enumerate(node.output) if kinds.get(name) in _LOWS]
        for slot, name in after:
            node.output[slot] = fresh(names, f"{name}/made")
        _retype(node, _LOWS, FLOAT)
        nodes.append(node)
        for slot, name in after:
            cast(nodes, node.output[slot], name, int(kinds[name] or FLOAT))

    rebuild(made, homes, visit)
    for graph in walk.graphs(made.graph):
        del graph.value_info[:]  # claims, which may be about types and shapes that are not there any more
    return made


def _touches_half(model: ModelProto) -> bool:
    """Whether an input, a weight, a constant or the target of a Cast is in half precision."""
    graphs = [*walk.graphs(model.graph)]
    declared = [info.type.tensor_type.elem_type for info in model.graph.input]
    stored = [tensor.data_type for graph in graphs for tensor in graph.initializer]
    attributes = [one for graph in graphs for node in graph.node for one in node.attribute]
    named = [one.i if one.name in ("to", "dtype") else one.t.data_type for one in attributes]
    return not _LOWS.isdisjoint((*declared, *stored, *named))
