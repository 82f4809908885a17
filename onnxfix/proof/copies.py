"""Copies of the original and the fixed model that make comparable what the models' own outputs do not show.

Two runs of a model with RandomNormalLike agree nowhere behind it. In copies of both models each such node becomes
nodes that compute numbers from their position alone: the same in both models, others in each node, in about the same
range. What is proven of the copies holds for the models, the random nodes themselves apart: these must be the same in
both, by output, place, operator and attributes. Where a node draws more than once in a run, in a loop or a function,
copies would hide what makes two draws one: such models are left as they are.

In float64, rounding tells itself from other differences. What a Cast to float32 rounds away is what the model says, not
how it computes: such a Cast stays, and one to float64 follows.

With unsigned weights, products of bytes are exact. ONNX Runtime multiplies uint8 by int8 with an instruction that cuts
off sums at 16 bits on processors with AVX2 and without VNNI; its products of uint8 by uint8 are exact on all of them. A
weight and its zero point that both move by 128 are the same weight.

The copies are made and run in the sandbox's child.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfix.files import walk
from onnxfix.inputs.feeds.flow import DRAWS
from onnxfix.inputs.feeds.signature import signature
from onnxfix.proof.compare.twin import element_types, opened, raised, widened
from onnxfix.proof.request import Request
from onnxfix.runtime import backends
from onnxfix.runtime.backends import Session, ort_weights, reference

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


MOST_BYTES = 1 << 30
"""Bytes of a copy's weights; of a larger model there is no copy."""
_DOUBLE = int(TensorProto.DOUBLE)
_SINGLE = int(TensorProto.FLOAT)
_EXACT = frozenset(
    (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.BOOL, TensorProto.INT8,
     TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16)
)  # fmt: skip
"""Types of which float32 holds every value."""


@dataclass(frozen=True)
class Copies:
    """Copies of the original and the fixed model, loaded."""

    original: Session
    fixed: Session

    def run(self, feed: dict[str, Any], without: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
        """What both compute, by output. The fixed model gets no inputs in ``without``."""
        fewer = {name: value for name, value in feed.items() if name not in without}
        first = dict(zip(self.original.outputs, self.original.run(feed), strict=True))
        return first, dict(zip(self.fixed.outputs, self.fixed.run(fewer), strict=True))


# ------------------------------------------------------------------------------------------------------ in float64


def load_doubled(backend: str, paths: tuple[Path, Path], folder: str) -> Copies:
    """Write both models in float64 into ``folder`` and load them; with the reference evaluator where the backend has no
    kernels for that. Raises as ``_load`` does."""
    return _load(backend, paths, folder, "float64", doubled)


def _load(
    backend: str, paths: tuple[Path, Path], folder: str, kind: str, change: Callable[[ModelProto], ModelProto]
) -> Copies:
    """Write both models, changed, into ``folder`` and load them. ``kind`` is the type of most of their weights.

    Raises:
        Unsupported: a model is too large, or cannot be changed.
        ModelError: its functions take too many nodes in place of their calls.
        Exception: whatever onnx, the backend, or the evaluator raises for these models.
    """
    sessions = []
    for number, path in enumerate(paths):
        model, _ = opened(path, kind, np.dtype(kind).itemsize, MOST_BYTES)
        file = Path(folder, f"{kind}-{number}.onnx")
        onnx.save(change(model), file)
        try:
            sessions.append(backends.load(backend, str(file)))
        except Exception:
            if backend == "reference" or kind != "float64" or reference.infeasible(model, 0) is not None:
                raise
            sessions.append(backends.load("reference", str(file)))
    return Copies(*sessions)


def double_feed(feed: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs for copies in float64."""
    return {name: raised(value, _DOUBLE, ("float32",)) for name, value in feed.items()}


def is_float(value: Any) -> bool:
    """Whether a value of a feed is, or holds, floats."""
    if isinstance(value, (list, tuple)):
        return any(map(is_float, value))
    return "float" in getattr(getattr(value, "dtype", None), "name", "")


def doubled(model: ModelProto) -> ModelProto:
    """``model`` itself with float64 instead of float32, except for what its Casts round. Its external data must have
    been loaded, and its functions been put in place of their calls."""
    kinds = element_types(model)
    for graph in walk.graphs(model.graph):
        for node in list(graph.node):
            _spell_out(node)
            to = next((one.i for one in node.attribute if one.name == "to"), 0)
            if node.op_type == "Cast" and to == _SINGLE and kinds.get(node.input[0], _SINGLE) not in _EXACT:
                # It rounds: in two steps, of which the second is not one to float32 any more.
                name = f"{node.output[0]}{_ROUNDED}"
                first = helper.make_node("Cast", [node.input[0]], [name], to=_SINGLE)
                graph.node.insert(list(graph.node).index(node), first)
                node.input[0] = name
    casts = [node for graph in walk.graphs(model.graph) for node in graph.node if node.op_type == "Cast"]
    kept = [node for node in casts if node.output[0].endswith(_ROUNDED)]
    widened(model, _DOUBLE, (_SINGLE,))
    for node in kept:
        next(one for one in node.attribute if one.name == "to").i = _SINGLE
    return model


_ROUNDED = "/onnxfix-rounded"
"""The end of the name of what a Cast that rounds gives, in float32 still."""


def _spell_out(node: NodeProto) -> None:
    """Give constants of implied type float32 an explicit tensor."""
    if node.op_type == "Constant":
        for attribute in list(node.attribute):
            if attribute.name in ("value_float", "value_floats"):
                values = attribute.f if attribute.name == "value_float" else attribute.floats
                _set_value(node, np.array(values, np.float32), attribute.name)
    elif node.op_type == "ConstantOfShape" and not node.attribute:
        _set_value(node, np.zeros(1, np.float32), "")


def _set_value(node: NodeProto, value: Any, old: str) -> None:
    kept = [one for one in node.attribute if one.name != old]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("value", numpy_helper.from_array(value))])


# ------------------------------------------------------------------------------------------- with unsigned weights


CUT_OFF = (
    "they differ where ONNX Runtime multiplies uint8 by int8, whose sums saturate at 16 bits on this processor; "
    "another check has compared them"
)
UNSIGNED = (
    "ONNX Runtime's sums of products of uint8 and int8 saturate at 16 bits on this processor: where outputs differed, "
    "both models ran once more with the same weights as uint8, whose sums do not"
)


class Operands(NamedTuple):
    """Which inputs of a product are the activation, its zero point, the weight, and its zero point. None: the operator
    itself quantizes the activation, to uint8."""

    activation: int | None
    zero: int | None
    weight: int
    weight_zero: int


_INTEGER, _LINEAR = Operands(0, 2, 1, 3), Operands(0, 2, 3, 5)
PRODUCTS = {
    ("", "MatMulInteger"): _INTEGER,
    ("", "ConvInteger"): _INTEGER,
    ("", "QLinearMatMul"): _LINEAR,
    ("", "QLinearConv"): _LINEAR,
    ("com.microsoft", "QGemm"): _LINEAR,
    ("com.microsoft", "DynamicQuantizeMatMul"): Operands(None, None, 1, 3),
    ("com.microsoft", "MatMulIntegerToFloat"): Operands(0, 4, 1, 5),
}
"""The products of bytes: domain and operator."""


def product(node: NodeProto) -> Operands | None:
    """The operands of a product of bytes; None for another node."""
    return PRODUCTS.get((walk.domain_of(node.domain), node.op_type))


def load_unsigned(backend: str, paths: tuple[Path, Path], folder: str) -> Copies:
    """Write both models with unsigned weights into ``folder`` and load them. Raises as ``_load`` does."""
    return _load(backend, paths, folder, "int8", unsigned)


def unsigned(model: ModelProto) -> ModelProto:
    """``model`` itself, with unsigned weights in all products of uint8 and int8. Its external data must have been
    loaded, and its functions been put in place of their calls.

    Raises:
        Unsupported: the weight of such a product is not constant.
    """
    kinds, constants = element_types(model), dict(_constants(model))
    made: dict[str, str] = {}  # the new name of what was moved
    for graph in walk.graphs(model.graph):
        for node in graph.node:
            operands = product(node)
            if operands is not None and _mixed(node, operands, kinds):
                _move(model.graph, node, operands, constants, made)
    return model


def _mixed(node: NodeProto, operands: Operands, kinds: Mapping[str, int]) -> bool:
    """Whether a product is one of uint8 and int8."""
    if kinds.get(_input(node, operands.weight)) != TensorProto.INT8:
        return False
    if operands.activation is None or operands.zero is None:
        return True
    of = (kinds.get(_input(node, place)) for place in (operands.activation, operands.zero))
    return TensorProto.UINT8 in of


def _move(
    graph: GraphProto,
    node: NodeProto,
    operands: Operands,
    constants: Mapping[str, TensorProto],
    made: dict[str, str],
) -> None:
    """Let a node read its weight, and the weight's zero point, 128 higher."""
    for place in (operands.weight, operands.weight_zero):
        name = _input(node, place)
        if name not in made:
            tensor = constants.get(name)
            if name and tensor is None:
                raise backends.Unsupported(f"{name} is not constant")
            value = numpy_helper.to_array(tensor) if tensor is not None else np.zeros((), np.int8)
            moved = (value.astype(np.int16) + 128).astype(np.uint8)
            made[name] = f"{name}/onnxfix-unsigned"
            graph.initializer.append(numpy_helper.from_array(moved, made[name]))
        node.input.extend([""] * (place + 1 - len(node.input)))
        node.input[place] = made[name]


def _input(node: NodeProto, place: int) -> str:
    return node.input[place] if place < len(node.input) else ""


def _constants(model: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """Initializers that no caller may set, and constants."""
    given = {info.name for info in model.graph.input}
    for graph in walk.graphs(model.graph):
        for tensor in graph.initializer:
            if tensor.name not in given:
                yield tensor.name, tensor
        for node in graph.node:
            if node.op_type == "Constant" and node.output and node.domain in ("", "ai.onnx"):
                for attribute in node.attribute:
                    if attribute.name == "value":
                        yield node.output[0], attribute.t
