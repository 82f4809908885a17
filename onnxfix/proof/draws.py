"""Give the original and the fixed model the same random numbers, so that all the rest of them can be compared.

Two runs of a model with RandomNormalLike agree nowhere behind it. In copies of both models each such node becomes
nodes that compute numbers from their position alone: the same in both models, others in each node, in about the same
range. What is proven of the copies holds for the models, the random nodes themselves apart: these must be the same in
both, by output, place, operator and attributes. Where a node draws more than once in a run, in a loop or a function,
copies would hide what makes two draws one: such models are left as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfix.files import walk
from onnxfix.inputs.feeds.operands import DRAWS
from onnxfix.inputs.feeds.signature import signature
from onnxfix.proof.request import Request
from onnxfix.runtime.backends import ort_weights

_OTHERS = ("Multinomial", "Dropout")
"""Random operators that are left as they are; a Dropout is one where it is told that this is training."""
_MOST_BYTES = 1 << 30
"""Bytes of weights, which the copies hold twice."""
_STEP = 12.9898  # radians between neighbors, of which no small multiple is near a full turn


def share_noise(request: Request, folder: str) -> tuple[Request, tuple[str, ...]]:
    """The request for copies with the same random numbers, and the outputs of the random nodes; the request itself and
    none where no output depends on a random node, or the copies cannot be made."""
    if not request.known.drawn or ort_weights.weight_bytes(request.known.model) > _MOST_BYTES:
        return request, ()
    outcome = request.worker.call(
        f"{__name__}:write_copies",
        timeout=request.step,
        original=str(request.original),
        fixed=str(request.fixed),
        folder=folder,
    )
    if not outcome.ok or not outcome.value:
        return request, ()
    original, fixed, *names = outcome.value
    known = replace(signature(Path(original)), pinned=request.known.pinned)
    same = replace(request, original=Path(original), fixed=Path(fixed), known=known, networks=None)
    return same, tuple(names)


def write_copies(original: str, fixed: str, folder: str) -> list[str]:
    """Write the copies to ``folder``. Their paths, and the outputs of their random nodes; nothing where the random
    nodes differ, or one of them cannot be replaced. Runs in the sandbox's child."""
    models = [onnx.load(path) for path in (original, fixed)]
    drawn = []
    for model in models:  # the random nodes whose output something reads; others may be removed
        read = {name for node in walk.model_nodes(model) for name in node.input}
        read.update(info.name for graph in walk.graphs(model.graph) for info in graph.output)
        drawn.append(Counter(one for one in _drawn(model.graph.node) if one[0] in read))
    names = sorted({name for name, *_ in drawn[0]})
    phases = {name: number for number, name in enumerate(names)}
    if drawn[0] != drawn[1] or not all(_replace(model, phases) for model in models):
        return []
    paths = [str(Path(folder) / f"{name}.onnx") for name in ("original", "fixed")]
    for model, path in zip(models, paths, strict=True):
        onnx.save(model, path)
    return [*paths, *names]


def _is_random(node: NodeProto) -> bool:
    known = node.op_type in (*DRAWS, *_OTHERS) and node.domain in ("", "ai.onnx")
    return known and (node.op_type != "Dropout" or len(node.input) > 2)


def _drawn(nodes: Iterable[NodeProto], inside: str = "") -> Iterator[tuple[str, str, str, bytes]]:
    """The random nodes of a graph and of the branches inside: output, place, operator, and attributes."""
    for node in nodes:
        if _is_random(node):
            attributes = sorted(one.SerializeToString(deterministic=True) for one in node.attribute)
            yield node.output[0], inside, node.op_type, b"".join(attributes)
        elif node.op_type == "If":
            for one in node.attribute:
                yield from _drawn(one.g.node, f"{inside}/{node.output[0]}.{one.name}")


def _replace(model: ModelProto, phases: Mapping[str, int]) -> bool:
    """Replace the random nodes of the graph and of the branches inside; whether none is left anywhere."""
    opset = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    branches = [g for node in _outside_of_loops(model.graph.node) for g in walk.subgraphs(node)]
    for body in (*reversed(branches), model.graph):  # those inside first: what holds them is copied
        nodes = [new for node in body.node for new in _numbers(node, opset, phases)]
        del body.node[:]
        body.node.extend(nodes)
    return not any(map(_is_random, walk.model_nodes(model)))


def _outside_of_loops(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The If nodes of a graph, and those in their branches."""
    for node in nodes:
        if node.op_type == "If":
            yield node
            yield from _outside_of_loops(inner for graph in walk.subgraphs(node) for inner in graph.node)


def _numbers(node: NodeProto, opset: int, phases: Mapping[str, int]) -> list[NodeProto]:
    """Nodes with the output of a random node; the node itself where it is none, or cannot be replaced."""
    if not _is_random(node) or node.op_type in _OTHERS:
        return [node]
    attributes: dict[str, Any] = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    kind = attributes.get("dtype", None if node.input else TensorProto.FLOAT)
    if opset < (11 if kind else 15):  # Range came with 11, CastLike with 15
        return [node]
    output = node.output[0]
    nodes: list[NodeProto] = []

    def add(op_type: str, *inputs: str, **given: Any) -> str:
        nodes.append(helper.make_node(op_type, inputs, [f"{output}:number:{len(nodes)}"], **given))
        return str(nodes[-1].output[0])

    def constant(value: Any, dtype: type = np.float32) -> str:
        return add("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    shape = add("Shape", node.input[0]) if node.input else constant(attributes["shape"], np.int64)
    count = add("ReduceProd", shape, keepdims=0)
    place = add(
        "Cast", add("Range", constant(0, np.int64), count, constant(1, np.int64)), to=TensorProto.FLOAT
    )
    wave = add("Sin", add("Add", add("Mul", place, constant(_STEP)), constant(phases.get(output, 0))))
    wave = add("Reshape", wave, shape, **({"allowzero": 1} if opset >= 14 else {}))  # from -1 to 1
    share = add("Mul", add("Add", wave, constant(1)), constant(0.5))
    if node.op_type == "Bernoulli":
        share = add("Less", share, add("Cast", node.input[0], to=TensorProto.FLOAT))
    elif node.op_type.startswith("RandomNormal"):
        mean, scale = attributes.get("mean", 0.0), attributes.get("scale", 1.0)
        tails = add("Mul", wave, add("Mul", wave, wave))
        share = add("Add", add("Mul", tails, constant(4 * scale)), constant(mean))
    else:
        low, high = attributes.get("low", 0.0), attributes.get("high", 1.0)
        share = add("Add", add("Mul", share, constant(high - low)), constant(low))
    add("Cast", share, to=kind) if kind else add("CastLike", share, node.input[0])
    nodes[-1].output[0] = output
    return nodes
