"""A float32 model as half precision would compute it: Casts that round what its nodes read and write.

Every node still computes in float32, so that ONNX Runtime's CPU kernels run it; what it reads and writes are numbers of
the low type. Kernels of GPUs work alike: they read and write half precision and accumulate in float32. The Casts come
in pairs, which optimizations of ONNX Runtime would remove: run such models without them.

Names stay: tensor ``x`` of the model is called ``x`` afterwards and is float32. What a node in the low type wrote is
rounded; inputs, weights, constants and what other nodes wrote is not, and is rounded where a node in the low type
reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, defs, helper

from onnxfix.files import walk
from onnxfix.graph.overlay import Node, Value
from onnxfix.graph.signatures import signature
from onnxfix.lowering.quantized import QUANTIZERS, SCALES, fresh, obstacle, represents
from onnxfix.model import Model

Low = Literal["fp16", "bf16"]

FLOAT = int(TensorProto.FLOAT)
ELEMENT: dict[str, int] = {"fp16": int(TensorProto.FLOAT16), "bf16": int(TensorProto.BFLOAT16)}
"""The element types, as numbers of ``TensorProto``."""
LOW_TYPES = {low: helper.tensor_dtype_to_np_dtype(elem) for low, elem in ELEMENT.items()}
"""The element types, as numpy has them."""

#: Operators that stay as they are: what they compute is chosen by an attribute, is random, depends on the bits of
#: float32, or is quantization whose scales are always float32.
_WHOLE = frozenset({
    "Bernoulli", "BitCast", "Constant", "DynamicQuantizeLinear", "EyeLike", "MeanVarianceNormalization", "Multinomial",
    "QLinearConv", "QLinearMatMul", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip
#: Operators that read no value: they take any type.
_BLIND = frozenset({"Shape", "Size"})
#: Outputs whose type an attribute chooses.
_STAYING_OUTPUTS = {"LayerNormalization": (1, 2)}
#: Inputs that stay float32 though ONNX allows other types: TensorRT reads them as weights of the layer's geometry.
_STAYING = {"Resize": (1, 2), "Upsample": (1,), "RoiAlign": (1,), "MaxRoiPool": (1,)}

#: Why a node stays in float32, as data. "control-flow": it holds graphs. "function": it calls a local function.
#: "domain": an operator of another domain. "operator": its types are not chosen by its inputs. "schema": ONNX has no
#: such operator in this type and opset. "kind": sequences, optionals or maps. "quantized": a Q or DQ whose scale stays
#: float32, or a product that reads one: Casts between would prevent INT8. "unknown": types are not proven.
Whole = Literal["control-flow", "function", "domain", "operator", "schema", "kind", "quantized", "unknown"]


class Slots(NamedTuple):
    """The inputs and outputs of a node, by index, that have the low type if the node has."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Lowerable:
    """Which nodes of a model can compute in the low type.

    ``slots`` has them by the node's index in ``walk.graph_nodes``; ``whole`` says of the other nodes that read or write
    float32 why they stay (Shape and Size, which read no value, and control flow whose nodes are looked at are in
    neither). ``floats`` are the names of the tensors that are proven to be float32, ``tied`` those that DQs write,
    moved or not: no Cast may follow. ``scans`` has the names by which bodies of Scans read what is scanned, with the
    indices of the Scan and of its input: they can have the low type, for what is scanned can be cast as a whole.
    """

    to: Low
    slots: Mapping[int, Slots]
    whole: Mapping[int, Whole]
    floats: frozenset[str]
    tied: frozenset[str] = frozenset()
    scans: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def with_casts(
    model: ModelProto, able: Lowerable, low: Collection[int] | Mapping[int, Slots], *, apart: bool
) -> ModelProto:
    """The model with Casts that round what its float32 nodes read and write, as a copy. Weights are not looked at: they
    may be stand-ins or external.

    ``low`` are the nodes to round, by index (of those in ``able.slots``), or what to round of them. ``apart``: also
    round what a rounded node reads from another one, which changes nothing in a run of the whole model; without it
    there are fewer Casts.
    """
    proto = walk.copied(apart_by_name(model))
    names, lowered = names_of(proto), set[str]()
    chosen = low if isinstance(low, Mapping) else {index: able.slots[index] for index in low}
    rounded: dict[str, str] = {}  # names of rounded tensors by that of the original
    homes: dict[str, list[NodeProto]] = {}

    def add_casts(nodes: list[NodeProto], source: str, result: str) -> None:
        between = fresh(names, f"{result}/{able.to}")
        nodes.append(helper.make_node("Cast", [source], [between], between, to=ELEMENT[able.to]))
        nodes.append(
            helper.make_node("Cast", [between], [result], fresh(names, f"{between}/float32"), to=FLOAT)
        )

    def visit(index: int, node: NodeProto, nodes: list[NodeProto]) -> None:
        slots = chosen.get(index, Slots((), ()))
        for slot in slots.inputs:
            name = node.input[slot]
            if name in lowered and not apart:
                continue
            if name not in rounded:
                rounded[name] = fresh(names, f"{name}/rounded")
                add_casts(homes.get(name, nodes), name, rounded[name])
            node.input[slot] = rounded[name]
        written = [(slot, node.output[slot]) for slot in slots.outputs if node.output[slot]]
        for slot, name in written:
            node.output[slot] = fresh(names, f"{name}/float32")
        nodes.append(node)
        for slot, name in written:
            add_casts(nodes, node.output[slot], name)
            lowered.add(name)

    rebuild(proto, homes, visit)
    return proto


def rebuild(
    model: ModelProto,
    homes: dict[str, list[NodeProto]],
    visit: Callable[[int, NodeProto, list[NodeProto]], None],
) -> None:
    """Give each graph the nodes that ``visit`` appends, in place. It gets each node after those inside it, by its index
    in ``walk.graph_nodes``. ``homes`` receives the new nodes of the graph that defines a tensor: what is appended there
    is computed before its readers, once for all iterations of a loop."""
    count = 0

    def enter(graph: GraphProto) -> None:
        nonlocal count
        start, nodes = count, list[NodeProto]()
        count += len(graph.node)
        homes.update(dict.fromkeys(walk.defined(graph), nodes))
        for index, node in enumerate(list(graph.node), start):
            for inner in walk.subgraphs(node):
                enter(inner)
            visit(index, node, nodes)
        del graph.node[:]
        graph.node.extend(nodes)

    enter(model.graph)


def in_order(model: ModelProto) -> ModelProto:
    """The model with the nodes of each graph in topological order, and a name of its own for each tensor: itself, or a
    copy."""
    if any(order != sorted(order) for order in (walk.order(one.node) for one in walk.graphs(model.graph))):
        model = walk.copied(model)
        for graph in walk.graphs(model.graph):
            nodes = [graph.node[index] for index in walk.order(graph.node)]
            del graph.node[:]
            graph.node.extend(nodes)
    return apart_by_name(model)


def apart_by_name(model: ModelProto) -> ModelProto:
    """The model with other names for tensors of inner graphs that share theirs: itself, or a copy."""
    defined = [walk.defined(graph) for graph in walk.graphs(model.graph)]
    seen = set[str]()
    if sum(map(len, defined)) == len(seen.union(*defined)):
        return model
    made = walk.copied(model)
    taken = names_of(model)
    for graph, own in zip(walk.graphs(made.graph), defined, strict=True):
        new = {name: fresh(taken, name) for name in sorted(own & seen)}
        seen |= own
        if new:
            nodes = [walk.renamed(node, new) for node in graph.node]
            del graph.node[:]
            graph.node.extend(nodes)
            for info in (*graph.input, *graph.output, *graph.value_info):
                info.name = new.get(info.name, info.name)
            for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
                tensor.name = new.get(tensor.name, tensor.name)
    return made


def names_of(model: ModelProto) -> set[str]:
    """Every name of a value or node at any depth: what a new name must avoid."""
    found = {info.name for info in (*model.graph.input, *model.graph.output, *model.graph.value_info)}
    for body in walk.bodies(model):
        for one in walk.nodes(body.node):
            found.update((one.name, *one.input, *one.output))
            for graph in walk.subgraphs(one):
                found.update(info.name for info in (*graph.input, *graph.output))
                found.update(tensor.name for tensor in graph.initializer)
    found.update(tensor.name for tensor in model.graph.initializer)
    found.update(sparse.values.name for sparse in model.graph.sparse_initializer)
    return found


# ------------------------------------------------------------------------------------------- what can have the low type


def lowerable(
    model: ModelProto, to: Low, base_dir: Path | None = None, *, strict: bool = False, inner: bool = False
) -> Lowerable:
    """Which nodes can compute in ``to``. ``base_dir`` is the folder of external data. It may be absent: scales alone
    are read, and one that cannot be read stays float32. ``strict``: only where ONNX allows the type in the model's
    opset, not where a later one does. ``inner``: also nodes inside If, Loop, Scan and SequenceMap, of a model in which
    all tensors have names of their own.

    Raises:
        ModelError: the model is not a valid graph.
    """
    overlay = Model(model, base_dir)
    shapes = overlay.shapes
    cast = signature("Cast", overlay.opset() or 0)
    rounds = cast is not None and ELEMENT[to] in cast.outputs[0].elems  # not to bfloat16 before opset 13
    scopes = [*overlay.main.walk()] if inner else [overlay.main]
    nodes = [node for scope in scopes for node in scope.nodes]

    floats, tied = set[str](), set[str]()
    has_scales = any(node.op_type in QUANTIZERS for node in nodes) and not obstacle(model)

    def elem(value: Value | None) -> int | None:
        if value is not None and value.name in floats:
            return FLOAT
        return None if value is None else shapes.elem_type(value)

    def is_tensor(value: Value | None) -> bool:
        return value is None or shapes.info(value).kind == "tensor"

    slots: dict[int, Slots] = {}
    whole: dict[int, Whole] = {}
    for index, node in enumerate(nodes):
        if node.is_onnx and (node.op_type in _BLIND or (inner and node.subgraphs)):
            continue
        values = (*node.inputs, *node.outputs)
        whole_of = _whole(node, ELEMENT[to], has_scales) or (None if rounds else "schema")
        reason = whole_of if all(map(is_tensor, values)) else "kind"
        moves = node.op_type in MOVES and not tied.isdisjoint(node.proto.input)
        # int32 is a bias, for which Casts do not matter
        if moves or (node.op_type == "DequantizeLinear" and elem(node.input(0)) != TensorProto.INT32):
            tied |= set(node.proto.output)
        chosen = reason or _slots(node, elem, ELEMENT[to], strict)
        if isinstance(chosen, Slots):
            if chosen.inputs or chosen.outputs:
                slots[index] = chosen
                # An operator of another domain may have written them: only this node says that they are float32.
                floats |= {node.proto.input[slot] for slot in chosen.inputs}
                floats |= {node.proto.output[slot] for slot in chosen.outputs} - {""}
        elif FLOAT in (types := list(map(elem, values))) or (None in types and reason != "operator"):
            whole[index] = chosen
    values_of = (item for scope in scopes for item in scope.values.items())
    floats |= {name for name, value in values_of if elem(value) == FLOAT and is_tensor(value)}
    scans = dict(_scans(model)) if inner else {}
    return Lowerable(to, slots, whole, frozenset(floats), frozenset(tied), scans)


def _scans(model: ModelProto) -> Iterator[tuple[str, tuple[int, int]]]:
    """``Lowerable.scans``."""
    for index, node in enumerate(walk.graph_nodes(model.graph)):
        for body in walk.subgraphs(node) if node.op_type == "Scan" and not node.domain else ():
            count = next((one.i for one in node.attribute if one.name == "num_scan_inputs"), 0)
            # Before opset 9, an input that the body has not came first.
            slots = range(len(node.input) - count, len(node.input))
            names = [info.name for info in body.input][-count:]
            yield from ((name, (index, slot)) for name, slot in zip(names, slots, strict=False))


def _whole(node: Node, to: int, has_scales: bool) -> Whole | None:
    """Why a node is not lowered whatever its types; None where they decide."""
    if node.subgraphs:
        return "control-flow"
    if node.function is not None:
        return "function"
    if not all(one.is_onnx for one in _around(node)):
        return "domain"
    quantizers = [_dequantizer(value) for value in node.inputs[:2]] if node.op_type in HEAVY else [node]
    for one in quantizers:
        if one is not None and one.op_type in QUANTIZERS and not (has_scales and represents(one, to)):
            return "quantized"
    training = node.op_type == "BatchNormalization" and len(node.outputs) > 1
    return "operator" if training or node.op_type in _WHOLE else None


def _around(node: Node | None) -> Iterator[Node]:
    """A node and those around it."""
    while node is not None:
        yield node
        node = node.scope.owner


def _dequantizer(value: Value | None) -> Node | None:
    """The node that writes the tensor, or what is moved to make it."""
    made = None if value is None else value.producer
    while made is not None and made.op_type in MOVES:
        source = made.input(0)
        made = None if source is None else source.producer
    return made


def _slots(node: Node, elem: Callable[[Value | None], int | None], to: int, strict: bool) -> Slots | Whole:
    """The inputs and outputs that are float32 and may be ``to``; why there are none that can."""
    own = signature(node.op_type, max(node.opset or 0, SCALES if node.op_type in QUANTIZERS else 0))
    newest = own if strict else signature(node.op_type, defs.onnx_opset_version())
    if own is None or newest is None:
        return "schema"
    operands = [
        (0, index, value, own.input(index), newest.input(index)) for index, value in enumerate(node.inputs)
    ] + [
        (1, index, value, own.output(index), newest.output(index)) for index, value in enumerate(node.outputs)
    ]
    #: Type variables that are float32 because one value of that type is.
    floats = {one.variable for *_, value, one, _ in operands if one is not None and elem(value) == FLOAT} - {
        ""
    }
    staying = _STAYING.get(node.op_type, ()), _STAYING_OUTPUTS.get(node.op_type, ())
    chosen: tuple[list[int], list[int]] = [], []
    unsupported = False
    for side, index, value, one, later in operands:
        if value is None or one is None or index in staying[side]:
            continue
        types = one.elems
        if later is not None and len(types & _FLOATS) > 1:
            types |= later.elems & _FLOATS
        known = elem(value) or (FLOAT if one.variable in floats else None)
        if known is None and FLOAT in types:
            return "unknown"
        if known == FLOAT and to in types:
            chosen[side].append(index)
        elif known == FLOAT and types != {FLOAT}:
            unsupported = True  # of several float types, the low one is none
    return "schema" if unsupported or not any(chosen) else Slots(tuple(chosen[0]), tuple(chosen[1]))


def first_opset(op_type: str, opset: int, to: Low) -> int:
    """The first operator set after ``opset`` in which the operator, and Cast, have the low type; 0 if none has."""
    for later in range(opset + 1, defs.onnx_opset_version() + 1):
        found = [signature(name, later) for name in ("Cast", op_type)]
        operands = [[*one.inputs, *one.outputs] for one in found if one is not None]
        if len(operands) == 2 and all(any(ELEMENT[to] in one.elems for one in some) for some in operands):
            return later
    return 0


_FLOATS = frozenset({FLOAT, int(TensorProto.DOUBLE), *ELEMENT.values()})

MOVES = frozenset({
    "Compress", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity",
    "Pad", "Reshape", "ReverseSequence", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze",
    "Tile", "Transpose", "Unsqueeze", "Where",
})  # fmt: skip
"""Operators that compute nothing of their data: what they write is rounded as what they read."""

HEAVY = frozenset({"Attention", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})
"""Products and convolutions: what half precision is for, and where most of the time goes."""

DENOMINATORS = {"Div": 1, "Log": 0, "Reciprocal": 0, "Sqrt": 0}
"""Operators and the input that must not become 0."""

SUMS = frozenset({
    "AveragePool", "GlobalAveragePool", "GlobalLpPool", "LpPool", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceMean", "ReduceSum", "ReduceSumSquare",
})  # fmt: skip
"""Operators that sum before they make the result small."""

SQUARES = frozenset({"GlobalLpPool", "LpPool", "ReduceL2", "ReduceSumSquare"})
"""Those that sum squares."""
