"""A float32 model as half precision would compute it: Casts that round what its nodes read and write.

Every node still computes in float32, so that ONNX Runtime's CPU kernels run it; what it reads and writes are numbers of
the low type. Kernels of GPUs work alike: they read and write half precision and accumulate in float32. The Casts come
in pairs, which optimizations of ONNX Runtime would remove: run such models without them.

Names stay: tensor ``x`` of the model is called ``x`` afterwards and is float32. What a node in the low type wrote is
rounded; inputs, weights, constants and what other nodes wrote is not, and is rounded where a node in the low type
reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, defs, helper

from onnxfix import walk
from onnxfix.graph.overlay import Node, Value
from onnxfix.model import Model

Low = Literal["fp16", "bf16"]

FLOAT = int(TensorProto.FLOAT)
ELEMENT: dict[str, int] = {"fp16": int(TensorProto.FLOAT16), "bf16": int(TensorProto.BFLOAT16)}
"""The element types, as numbers of ``TensorProto``."""

#: Operators that stay as they are: what they compute is chosen by an attribute, is random, depends on the bits of
#: float32, or is quantization, whose scales are float32 in most opsets.
_WHOLE = frozenset(
    [
        *(
            "Bernoulli",
            "BitCast",
            "Constant",
            "DequantizeLinear",
            "DynamicQuantizeLinear",
            "EyeLike",
            "Multinomial",
        ),
        *("MeanVarianceNormalization", "QLinearConv", "QLinearMatMul", "QuantizeLinear"),
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    ]
)
#: Operators that read no value: they take any type.
_BLIND = frozenset({"Shape", "Size"})
#: Outputs whose type an attribute chooses.
_STAYING_OUTPUTS = {"LayerNormalization": (1, 2)}
#: Inputs that stay float32 though ONNX allows other types: TensorRT reads them as weights of the layer's geometry.
_STAYING = {"Resize": (1, 2), "Upsample": (1,), "RoiAlign": (1,), "MaxRoiPool": (1,)}

#: Why a node stays in float32, as data. "control-flow": it holds graphs. "function": it calls a local function.
#: "domain": an operator of another domain. "operator": its types are not chosen by its inputs. "schema": ONNX has no
#: such operator in this type and opset. "kind": sequences, optionals or maps. "unknown": types are not proven.
Whole = Literal["control-flow", "function", "domain", "operator", "schema", "kind", "unknown"]


class Slots(NamedTuple):
    """The inputs and outputs of a node, by index, that have the low type if the node has."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Lowerable:
    """Which nodes of a model's main graph can compute in the low type.

    ``slots`` has them by the node's index in the stored order; ``whole`` says of the other nodes that read or write
    float32 why they stay (Shape and Size, which read no value, are in neither). ``floats`` are the names of the main
    graph's tensors that are proven to be float32.
    """

    to: Low
    slots: Mapping[int, Slots]
    whole: Mapping[int, Whole]
    floats: frozenset[str]


@dataclass(frozen=True)
class Rounded:
    """``proto`` is the model with Casts; ``low`` are the indices (stored order of the original) of the nodes that are
    rounded, ``whole`` says of others that read or write float32 why they are not (those to keep are not among them).
    """

    proto: ModelProto
    low: tuple[int, ...]
    whole: Mapping[int, Whole] = field(default_factory=dict)


def rounded(
    model: ModelProto,
    to: Low,
    keep: Collection[str] = (),
    *,
    apart: bool = True,
    base_dir: Path | None = None,
    able: Lowerable | None = None,
) -> Rounded:
    """The model with Casts that round what its float32 nodes read and write to ``to``, as a copy. Weights are not
    looked at: they may be stand-ins or external.

    ``keep`` are nodes that stay in float32: their names, or the name of one of their outputs. ``apart``: also round
    what a rounded node reads from another one, which changes nothing in a run of the whole model; without it there are
    fewer Casts. ``able`` is ``lowerable`` of the model, if it is known.

    Raises:
        ModelError: the model is not a valid graph.
    """
    able = able or lowerable(model, to, base_dir)
    low = tuple(index for index in able.slots if not is_kept(model.graph.node[index], keep))
    return Rounded(with_casts(model, able, frozenset(low), apart=apart), low, able.whole)


def with_casts(model: ModelProto, able: Lowerable, low: frozenset[int], *, apart: bool) -> ModelProto:
    """The copy that ``rounded`` makes where ``low`` are the nodes to round, by index (of those in ``able.slots``)."""
    proto = ModelProto()
    proto.CopyFrom(model)
    _Rounding(proto, able, apart).insert(low)
    return proto


def is_kept(node: NodeProto, keep: Collection[str]) -> bool:
    """Whether ``keep`` names the node or one of its outputs."""
    return bool(keep) and (
        (node.name and node.name in keep) or any(one in keep for one in node.output if one)
    )


class _Rounding:
    """Inserts the Casts. ``where`` has the names of rounded tensors by the name of the original."""

    def __init__(self, proto: ModelProto, able: Lowerable, apart: bool) -> None:
        self.proto, self.able, self.apart = proto, able, apart
        self.where: dict[str, str] = {}
        self.names = names_of(proto)
        self.made: list[NodeProto] = []
        self.declared: list[ValueInfoProto] = []

    def insert(self, low: frozenset[int]) -> None:
        graph = self.proto.graph
        lowered: set[str] = set()
        for index, node in enumerate(list(graph.node)):
            if index not in low:
                self.made.append(node)
                continue
            slots = self.able.slots[index]
            for slot in slots.inputs:
                if self.apart or node.input[slot] not in lowered:
                    node.input[slot] = self._rounded(node.input[slot])
            written = [(slot, node.output[slot]) for slot in slots.outputs if node.output[slot]]
            for slot, name in written:
                node.output[slot] = fresh(self.names, f"{name}/float32")
            self.made.append(node)
            for slot, name in written:
                self._cast(node.output[slot], name)
                lowered.add(name)
        del graph.node[:]
        graph.node.extend(self.made)

    def _rounded(self, name: str) -> str:
        if name not in self.where:
            self.where[name] = fresh(self.names, f"{name}/rounded")
            self._cast(name, self.where[name])
        return self.where[name]

    def _cast(self, source: str, result: str) -> None:
        between = fresh(self.names, f"{result}/{self.able.to}")
        self.made.append(helper.make_node("Cast", [source], [between], between, to=ELEMENT[self.able.to]))
        name = fresh(self.names, f"{between}/float32")
        self.made.append(helper.make_node("Cast", [between], [result], name, to=FLOAT))


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


def fresh(taken: set[str], wanted: str) -> str:
    """``wanted``, with a number where it is taken; the result is taken afterwards."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name)
    return name


# ------------------------------------------------------------------------------------------- what can have the low type


def lowerable(model: ModelProto, to: Low, base_dir: Path | None = None, *, strict: bool = False) -> Lowerable:
    """Which nodes of the main graph can compute in ``to``. ``base_dir`` is the folder of external data; types depend on
    none of it, so that it may be absent. ``strict``: only where ONNX allows the type in the model's opset, not where a
    later one does.

    Raises:
        ModelError: the model is not a valid graph.
    """
    overlay = Model(model, base_dir)
    shapes = overlay.shapes
    cast = _formal("Cast", overlay.opset(), strict=True)
    rounds = cast is not None and ELEMENT[to] in cast.outputs[0].types  # not to bfloat16 before opset 13

    def elem(value: Value | None) -> int | None:
        return None if value is None else shapes.elem_type(value)

    def kind(value: Value | None) -> str:
        return "tensor" if value is None else shapes.info(value).kind

    slots: dict[int, Slots] = {}
    whole: dict[int, Whole] = {}
    for index, node in enumerate(overlay.main.nodes):
        if node.is_onnx and node.op_type in _BLIND:
            continue
        touched = [elem(value) for value in (*node.inputs, *node.outputs)]
        reason: Whole | None
        if any(kind(value) != "tensor" for value in (*node.inputs, *node.outputs)):
            reason = "kind"
        else:
            reason = _whole(node) or (None if rounds else "schema")
        found = None if reason else _slots(node, elem, ELEMENT[to], strict)
        if isinstance(found, Slots):
            if found.inputs or found.outputs:
                slots[index] = found
        elif FLOAT in touched or (None in touched and reason != "operator"):
            whole[index] = reason or found or "unknown"
    floats = frozenset(
        name
        for name, value in overlay.main.values.items()
        if elem(value) == FLOAT and kind(value) == "tensor"
    )
    return Lowerable(to, slots, whole, floats)


def _whole(node: Node) -> Whole | None:
    """Why a node is not lowered whatever its types; None where they decide."""
    if node.subgraphs:
        return "control-flow"
    if node.function is not None:
        return "function"
    if not node.is_onnx:
        return "domain"
    training = node.op_type == "BatchNormalization" and len(node.outputs) > 1
    return "operator" if training or node.op_type in _WHOLE else None


def _slots(node: Node, elem: Callable[[Value | None], int | None], to: int, strict: bool) -> Slots | Whole:
    """The inputs and outputs that are float32 and may be ``to``; why there are none that can."""
    formal = _formal(node.op_type, node.opset, strict)
    if formal is None:
        return "schema"
    kinds: dict[str, int] = {}  # float32 as soon as one of the same type parameter is
    inputs = list(_paired(node.inputs, formal.inputs))
    outputs = list(_paired(node.outputs, formal.outputs))
    for value, one in (*inputs, *outputs):
        if elem(value) == FLOAT and one.homogeneous:
            kinds[one.parameter] = FLOAT
    staying = _STAYING.get(node.op_type, ()), _STAYING_OUTPUTS.get(node.op_type, ())
    found: list[list[int]] = []
    lacking = False
    for side, values in enumerate((inputs, outputs)):
        found.append([])
        for index, (value, one) in enumerate(values):
            if value is None or index in staying[side]:
                continue
            known = elem(value) or (kinds.get(one.parameter) if one.homogeneous else None)
            if known is None and FLOAT in one.types:
                return "unknown"
            if known == FLOAT and to in one.types:
                found[side].append(index)
            elif known == FLOAT and one.types != {FLOAT}:
                lacking = True  # of several float types, the low one is none
    inside, outside = tuple(found[0]), tuple(found[1])
    return "schema" if lacking or not (inside or outside) else Slots(inside, outside)


class _Formal(NamedTuple):
    """An input or output of an operator: the name of its type parameter, and the tensor element types allowed."""

    parameter: str
    types: frozenset[int]
    homogeneous: bool


class _Schema(NamedTuple):
    inputs: tuple[_Formal, ...]
    outputs: tuple[_Formal, ...]


def _paired(
    values: Iterable[Value | None], formal: tuple[_Formal, ...]
) -> Iterable[tuple[Value | None, _Formal]]:
    """Each input or output with its description; the last description is that of all further ones."""
    for index, value in enumerate(values):
        if formal:
            yield value, formal[min(index, len(formal) - 1)]


@cache
def _formal(op_type: str, opset: int, strict: bool) -> _Schema | None:
    """The operator in this opset; unless ``strict`` with the float types that its newest version has besides."""
    try:
        schema = defs.get_schema(op_type, opset, "")
        newest = schema if strict else defs.get_schema(op_type, "")
    except defs.SchemaError:
        return None

    def described(
        formal: Sequence[defs.OpSchema.FormalParameter], later: Sequence[defs.OpSchema.FormalParameter]
    ) -> Iterator[_Formal]:
        for index, one in enumerate(formal):
            types = _elements(one)
            if len(types & _FLOATS) > 1 and index < len(later):
                types |= _elements(later[index]) & _FLOATS
            yield _Formal(one.type_str, types, one.is_homogeneous)

    return _Schema(
        tuple(described(schema.inputs, newest.inputs)), tuple(described(schema.outputs, newest.outputs))
    )


def _elements(formal: defs.OpSchema.FormalParameter) -> frozenset[int]:
    return frozenset(_ELEMENTS[one] for one in formal.types if one in _ELEMENTS)


_ELEMENTS = {
    "tensor(float)": FLOAT,
    "tensor(float16)": ELEMENT["fp16"],
    "tensor(bfloat16)": ELEMENT["bf16"],
    "tensor(double)": int(TensorProto.DOUBLE),
    **{
        f"tensor({name})": int(TensorProto.DataType.Value(name.upper()))
        for name in ("bool", "int32", "int64")
    },
}
_FLOATS = frozenset({FLOAT, int(TensorProto.DOUBLE), *ELEMENT.values()})
