"""Draws a model by a seed and a number: pieces that rules match, operators between them, scopes around them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfix.files import walk
from onnxfix.names import TARGETS
from onnxfix.rule import Safety
from random_models.embedding import embed
from random_models.operators import OPERATORS
from random_models.pieces import NEWEST, OLDEST, Host, Piece, examples, least_ir, node_models, tensor_info

SIMPLER = 6
"""From this attempt on a model is its first piece, as it is."""


@dataclass
class Drawn:
    """A model, how it came about, and how it is to be fixed. ``hints`` are values that inputs are known to take."""

    proto: ModelProto
    code: str
    pieces: list[str]
    places: list[str]
    safety: Safety
    target: str | None
    hints: dict[str, Any] = field(default_factory=dict)
    opset: int = 0


def draw(seed: int, number: int, attempt: int = 0, *, nodes: bool = True) -> Drawn:
    """The model of a seed and a number. Each further attempt draws another, simpler one of the same first piece.

    Models of consecutive numbers begin with examples of consecutive rules. ``nodes``: other pieces may be ONNX's node
    models.
    """
    rng = random.Random(f"{seed}/{number}/{attempt}")
    codes = sorted(examples())
    code = codes[number % len(codes)]
    own = [piece for piece in examples()[code] if piece.accepted(piece.opset)] or examples()[code]
    fixed = [piece for piece in own if piece.fixed]
    first = rng.choice(fixed if fixed and rng.random() < 0.8 else own)
    return _drawn(rng, first, simple=attempt / SIMPLER, nodes=nodes)


def _drawn(rng: random.Random, first: Piece, *, simple: float, nodes: bool) -> Drawn:
    opset = first.opset
    host = Host(rng, opset)
    if rng.random() < 0.6 * (1 - simple):
        fitting = [one for one in range(OLDEST, NEWEST + 1) if first.accepted(one)]
        host.opset = host.imports[""] = opset = rng.choice(fitting) if fitting else opset
    safety, target = _run(rng, first)
    drawn = Drawn(ModelProto(), first.code, [], [], safety, target, opset=opset)
    others = 0 if simple >= 1 else rng.choice((0, 1, 1, 2, 3)) if simple < 0.5 else rng.choice((0, 0, 1))
    queue = [first, *(_another(rng, opset, nodes) for _ in range(others))]
    rng.shuffle(queue)
    nested = 0.35 * (1 - simple)
    for piece in filter(None, queue):
        _operators(host, simple)
        places = _places(host, nested)
        wired = simple < 1
        if embed(host, piece, places, wired=wired, twice=not places and host.chance(0.12 * (1 - simple))):
            drawn.pieces.append(piece.label)
            drawn.places += places
    _operators(host, simple)
    drawn.proto = _finished(host, first, simple)
    drawn.hints = host.hints
    return drawn


def _run(rng: random.Random, first: Piece) -> tuple[Safety, str | None]:
    """With which fixes and for which target the model is fixed."""
    safety = rng.choice((Safety.EXACT, Safety.EXACT, Safety.NUMERIC))
    if first.safety > safety and rng.random() < 0.95:
        safety = first.safety
    target = first.target
    if target is None and rng.random() < 0.2:
        target = rng.choice(sorted(TARGETS))
    return safety, target


def _another(rng: random.Random, opset: int, nodes: bool) -> Piece | None:
    """A piece that the opset accepts."""
    for _ in range(6):
        pool = node_models() if nodes and rng.random() < 0.35 else rng.choice(list(examples().values()))
        piece = rng.choice(pool)
        if piece.accepted(opset):
            return piece
    return None


def _operators(host: Host, simple: float) -> None:
    if simple < 1:
        for _ in range(host.rng.choice((0, 1, 2, 4) if simple < 0.5 else (0, 0, 1))):
            host.rng.choice(OPERATORS)(host)


def _places(host: Host, share: float) -> list[str]:
    """What a piece is put into, the innermost first."""
    found = []
    while host.chance(share) and len(found) < 2:
        found.append(host.rng.choice(("If", "If", "Loop", "Scan", "Function", "Function")))
    return found


def _finished(host: Host, first: Piece, simple: float) -> ModelProto:
    """The model that a host has become, in one of the many ways to write it."""
    if simple < 1:
        _as_constants(host)
        _named(host)
        _shuffled(host)
    _outputs(host)
    graph = helper.make_graph(
        host.nodes, first.proto.graph.name or "random", host.inputs, list(host.outputs.values())
    )
    graph.initializer.extend(host.initializers)
    graph.sparse_initializer.extend(host.sparse)
    graph.quantization_annotation.extend(host.annotations)
    graph.value_info.extend(host.infos)
    imports = [helper.make_opsetid(domain, version) for domain, version in host.imports.items()]
    model = helper.make_model(graph, opset_imports=imports)
    for function in host.functions:
        function.ClearField("opset_import")
        function.opset_import.extend(imports)
    model.functions.extend(host.functions)
    least = max(least_ir(host.opset), host.ir_version, 8 if host.functions else 3)
    model.ir_version = max(least, first.proto.ir_version)
    if simple < 1 and host.chance(0.2):
        model.ir_version = host.rng.randint(least, 11) if least <= 11 else least
    if host.chance(0.2) and simple < 1:
        helper.set_model_props(model, {"author": "random", "seed": str(host.rng.random())})
        model.doc_string, model.producer_name = "drawn", "random_models"
    if first.proto.training_info:
        model.training_info.extend(first.proto.training_info)
    return _declared(host, model) if simple < 1 and host.chance(0.3) else model


def _declared(host: Host, model: ModelProto) -> ModelProto:
    """With declarations of inner values, as onnx infers them."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except Exception:  # onnx says more about the model when it checks it
        return model
    del model.graph.value_info[:]
    model.graph.value_info.extend(inferred.graph.value_info)
    return model


def _outputs(host: Host) -> None:
    """What nobody reads becomes a graph output, at times it stays unused; some that is read becomes one, too."""
    computed = {name for node in host.nodes for name in node.output}
    read = {name for node in walk.nodes(host.nodes) for name in node.input}
    read |= {info.name for node in host.nodes for inner in walk.nodes([node]) for info in _returned(inner)}
    for value in list(host.values.values()):
        wanted = value.name not in read and not host.chance(0.04)
        if value.name in computed and (wanted or host.chance(0.15)):
            if value.dims is None:  # an output has to declare its rank
                flat = host.fresh("flat")
                host.nodes.append(helper.make_node("Reshape", [value.name, host.minus_one()], [flat]))
                host.outputs[flat] = tensor_info(flat, value.elem, (None,))
            else:
                host.outputs.setdefault(value.name, tensor_info(value.name, value.elem, value.dims))
    if not host.outputs:
        name = next((one for one in host.values if one in computed), None)
        if name is not None:
            host.outputs[name] = tensor_info(name, host.values[name].elem, host.values[name].dims)


def _returned(node: NodeProto) -> list[onnx.ValueInfoProto]:
    return [info for one in node.attribute if one.type == AttributeProto.GRAPH for info in one.g.output]


def _as_constants(host: Host) -> None:
    """Some weights become Constant nodes, others fields of numbers instead of bytes."""
    inputs = {info.name for info in host.inputs}
    kept = []
    share = host.rng.choice((0.0, 0.0, 0.3, 1.0))
    for tensor in host.initializers:
        if tensor.name in inputs or tensor.name in host.outputs or not host.chance(share):
            kept.append(_in_numbers(host, tensor))
            continue
        array = numpy_helper.to_array(tensor) if tensor.data_type == TensorProto.INT64 else None
        if array is not None and array.ndim == 1 and array.size and host.opset >= 12:
            host.nodes.insert(0, helper.make_node("Constant", [], [tensor.name], value_ints=array.tolist()))
        else:
            host.nodes.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    host.initializers = kept


def _in_numbers(host: Host, tensor: TensorProto) -> TensorProto:
    """A weight with its numbers as numbers."""
    if tensor.data_type not in (TensorProto.FLOAT, TensorProto.INT64) or not host.chance(0.2):
        return tensor
    array = numpy_helper.to_array(tensor)
    return helper.make_tensor(tensor.name, tensor.data_type, list(tensor.dims), np.ravel(array).tolist())


def _named(host: Host) -> None:
    """Names of nodes: as they are, one for each, the same for some, none."""
    how = host.rng.choice(("as they are", "own", "by scope", "none"))
    if how != "as they are":
        for number, node in enumerate(walk.nodes(host.nodes)):
            node.name = f"node_{number}" if how == "own" else ""
    if how == "by scope":  # the same names in each
        scopes = [host.nodes, *(g.node for node in walk.nodes(host.nodes) for g in walk.subgraphs(node))]
        for scope in (*scopes, *(function.node for function in host.functions)):
            for number, node in enumerate(scope):
                node.name = f"n{number}"


def _shuffled(host: Host) -> None:
    """At times another order of the nodes in which each still comes after what it reads."""
    if not host.chance(0.3):
        return
    producer = {name: at for at, node in enumerate(host.nodes) for name in node.output if name}
    waits = []
    for node in host.nodes:
        names = {name for inner in walk.nodes([node]) for name in inner.input}
        names |= {info.name for inner in walk.nodes([node]) for info in _returned(inner)}
        waits.append({producer[name] for name in names if name in producer})
    for at, wait in enumerate(waits):
        wait.discard(at)
        if any(other > at for other in wait):  # an example of nodes out of order
            return
    order: list[int] = []
    left = list(range(len(host.nodes)))
    while left:
        ready = [at for at in left if waits[at].issubset(order)]
        order.append(host.rng.choice(ready))
        left.remove(order[-1])
    host.nodes = [host.nodes[at] for at in order]
