"""Where the values of a model's inputs go: which operand of which operator they end in, changed or unchanged.

A walk over the graph, into subgraphs and local functions. It finds, for instance, that an input reaches the indices of
a Gather through Cast and Unsqueeze, and how long the gathered axis is. Tables of names say what operators do with the
values of their operands. A guess is enough here: it shapes test inputs and proves nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import onnx

from onnxfix.files import tensors, walk
from onnxfix.graph.overlay import Node, Scope, Use, Value
from onnxfix.model import Model
from onnxfix.shapes import dimnames

if TYPE_CHECKING:
    import numpy.typing as npt

#: (operator, operand) -> what the operand is to it.
SINKS: dict[tuple[str, int], str] = {
    ("Gather", 1): "index", ("GatherElements", 1): "index", ("ScatterElements", 1): "index",
    ("Scatter", 1): "index", ("GatherND", 1): "index_nd", ("ScatterND", 1): "index_nd",
    ("NegativeLogLikelihoodLoss", 1): "index", ("SoftmaxCrossEntropyLoss", 1): "index",
    ("ArrayFeatureExtractor", 1): "index", ("RotaryEmbedding", 3): "index", ("OneHot", 0): "class",
    ("OneHot", 1): "depth", ("MaxUnpool", 1): "zero", ("RoiAlign", 2): "zero", ("TensorScatter", 2): "zero",
    ("SequenceAt", 1): "zero", ("SequenceInsert", 2): "zero", ("SequenceErase", 1): "zero", ("Trilu", 1): "zero",
    ("Reshape", 1): "reshape", ("Expand", 1): "expand", ("ConstantOfShape", 0): "size", ("Tile", 1): "repeat",
    ("TopK", 1): "one", ("Range", 0): "start", ("Range", 1): "limit", ("Range", 2): "one",
    ("Slice", 1): "zero", ("Slice", 2): "size", ("Slice", 3): "axes", ("Slice", 4): "one",
    ("Pad", 1): "pads", ("Pad", 3): "axes", ("Resize", 2): "scales", ("Resize", 3): "expand",
    ("Upsample", 1): "scales", ("Loop", 0): "size", ("Loop", 1): "true", ("Squeeze", 1): "axes",
    ("Unsqueeze", 1): "axes", ("CumSum", 1): "zero", ("Split", 1): "split", ("SplitToSequence", 1): "split",
    ("ReverseSequence", 1): "length", ("LSTM", 4): "length", ("GRU", 4): "length", ("RNN", 4): "length",
    ("Attention", 6): "length", ("NonMaxSuppression", 2): "size", ("Dropout", 1): "ratio",
    ("Dropout", 2): "false", ("HannWindow", 0): "size", ("HammingWindow", 0): "size",
    ("BlackmanWindow", 0): "size", ("DFT", 1): "size", ("DFT", 2): "one", ("STFT", 1): "one",
    ("STFT", 3): "size", ("CenterCropPad", 1): "size", ("Col2Im", 1): "image", ("Col2Im", 2): "one",
    ("AffineGrid", 1): "grid", ("MaxUnpool", 2): "unpooled", ("MelWeightMatrix", 0): "size",
    ("MelWeightMatrix", 1): "size",
    ("BitShift", 1): "shift", ("Clip", 1): "low", ("Clip", 2): "high", ("Bernoulli", 0): "share",
    ("QuantizeLinear", 1): "positive", ("DequantizeLinear", 1): "positive",
    ("BatchNormalization", 4): "positive",
    ("Multinomial", 0): "share", ("Upsample", 2): "scales", ("Compress", 1): "choice", ("If", 0): "choice",
    ("Log", 0): "above 0", ("Sqrt", 0): "above 0", ("Acos", 0): "unit", ("Asin", 0): "unit", ("Atanh", 0): "unit",
    ("Acosh", 0): "above 1", ("Mod", 1): "divisor", ("Div", 1): "divisor", ("Pow", 1): "exponent",
}  # fmt: skip

for _name in ("QLinearConv", "QLinearMatMul"):
    SINKS.update({(_name, place): "positive" for place in (1, 4, 6)})
for _name in ("Sum", "SumSquare", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp"):
    SINKS[f"Reduce{_name}", 1] = "axes"

#: Operands that any value of the right type and sign will do for.
HARMLESS = frozenset(
    {"positive", "low", "high", "share", "divisor", "exponent", "index", "choice", "ratio", "above 0", "above 1",
     "unit", "probability", "pixel"}
)  # fmt: skip

#: Operators whose first outputs hold the values of these operands, unchanged or merely rounded.
KEEPS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("Cast", "CastLike", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Slice", "Transpose", "Expand",
         "Tile", "Gather", "GatherND", "GatherElements", "Split", "Pad", "DepthToSpace", "SpaceToDepth", "Compress",
         "SequenceAt", "ConcatFromSequence", "SplitToSequence", "Optional", "OptionalGetElement", "ReverseSequence",
         "Trilu", "Dropout", "Resize", "Upsample", "BitCast", "Ceil", "Floor", "Round"),
        (0,),
    ),
    "Where": (1, 2), "ScatterElements": (0, 2), "ScatterND": (0, 2), "SequenceInsert": (0, 1), "Max": (0, 1),
    "Min": (0, 1),
}  # fmt: skip
KEEPS_ALL = ("Concat", "SequenceConstruct")
#: What only looks at the shape: no value passes.
BLIND = ("Shape", "Size", "SequenceLength", "OptionalHasElement", "SequenceEmpty")
#: Operators whose results differ from run to run.
DRAWS = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli")
#: Uses that make an integer look like a mask, if it has no others.
MASK_OPS = ("Mul", "Sub", "Where", "Equal", "Not", "And", "Or", "Greater", "Less", "Add")
SAME_SHAPE = (
    *("Cast", "CastLike", "Identity", "DequantizeLinear", "QuantizeLinear", "Relu", "Neg", "Dropout", "Clip"),
)

CHOOSING = {"ArgMax": 0, "ArgMin": 0, "TopK": -1}
"""Operators whose last output holds indices of the elements that they choose, with the default of their axis."""


#: Operators that compare their two operands.
_COMPARES = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
#: Those whose constant operand shows something about the other.
_BESIDE = frozenset((*_COMPARES, "Div", "Mul", "Sub"))
_OF_CHANNELS = ("Conv", "ConvTranspose", "BatchNormalization", "InstanceNormalization", "PRelu")
_PIXELS = 255.0  # the greatest value of a pixel
_SMALL = 64  # bytes of a number
#: A dimension: its size, the name of a symbol (or expression), or unknown.
Dim = int | str | None
Links = defaultdict[Value, list[Value]]


@dataclass
class Role:
    """How the model uses an input.
    ``strict`` and ``loose`` name the operands (values of SINKS) that its values reach unchanged, or through
    arithmetic. ``bounds`` are the sizes of the axes that it indexes. ``beside`` are the shapes of the data beside
    it, for operands such as Reshape's shape. ``masks``: it is only used as a mask.
    """

    strict: set[str] = field(default_factory=set)
    loose: set[str] = field(default_factory=set)
    bounds: list[Dim] = field(default_factory=list)
    beside: list[tuple[Dim, ...] | None] = field(default_factory=list)
    masks: bool = False
    #: Numbers that its elements are compared with.
    compared: list[float] = field(default_factory=list)
    #: axis (negative: from the end) -> size that an operator demands of this input, its rank when demanded
    wants: dict[int, int] = field(default_factory=dict)
    rank: int | None = None


def dims_of(kind: onnx.TypeProto) -> tuple[Dim, ...] | None:
    """The dimensions that a tensor type declares; None without a rank."""
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    return tuple(
        dimnames.own(dim.dim_param) or None
        if not dim.HasField("dim_value")
        else dim.dim_value
        if dim.dim_value >= 0
        else None
        for dim in kind.tensor_type.shape.dim
    )


class Flow:
    """The flow of a whole model. ``role(name)`` answers for a graph input. ``nodes`` are those of the graph, its
    subgraphs and the functions that it calls."""

    def __init__(self, model: Model) -> None:
        self.main = model.main
        self.keeps: Links = defaultdict(list)
        self.changes: Links = defaultdict(list)
        self.nodes: list[Node] = []
        self._actual: dict[Value, Value] = {}
        self._drawn: list[Value] = []
        self._numbers: dict[Scope, int] = {}
        self._enter(self.main)

    def _enter(self, scope: Scope) -> None:
        if scope in self._numbers:  # a function that several nodes call
            return
        self._numbers[scope] = len(self._numbers)
        for node in scope.nodes:
            self.nodes.append(node)
            self._visit(node)

    def _link(self, sources: Iterable[Value | None], target: Value | None, *, keeps: bool) -> None:
        for source in sources:
            if source is not None and target is not None:
                (self.keeps if keeps else self.changes)[source].append(target)

    def _visit(self, node: Node) -> None:
        if node.function is not None:
            self._enter(node.function)
            self._pass(node.inputs, node.function.inputs)
            for result, target in zip(node.function.outputs, node.outputs, strict=False):
                self._link([result], target, keeps=True)
            return
        # A Dropout draws only when it is told that this is training.
        if node.op_type in DRAWS or (node.op_type == "Dropout" and len(node.inputs) > 2):
            self._drawn += [value for value in node.outputs if value is not None]
        if node.subgraphs:
            for target in node.outputs:
                self._link(node.inputs[: {"If": 1, "Loop": 2}.get(node.op_type, 0)], target, keeps=False)
            for body in node.subgraphs:
                self._enter_body(node, body)
        elif node.op_type not in BLIND:
            kept = range(len(node.inputs)) if node.op_type in KEEPS_ALL else KEEPS.get(node.op_type, ())
            for index, source in enumerate(node.inputs):
                # The indices of a Gather choose among values and do not become values themselves.
                if index in kept or not node.op_type.startswith("Gather"):
                    for target in node.outputs:
                        self._link([source], target, keeps=index in kept)

    def _enter_body(self, node: Node, body: Scope) -> None:
        self._enter(body)
        # A Loop's body begins with the iteration number and its condition, and ends with the condition.
        skip_in, skip_out = {"Loop": (2, 1)}.get(node.op_type, (0, 0))
        formals = body.inputs[skip_in:]
        actuals = node.inputs[skip_in:] if node.op_type != "If" else []
        if node.op_type == "Scan" and len(actuals) == len(formals) + 1:
            actuals = actuals[1:]  # opset 8 has sequence_lens first
        self._pass(actuals, formals)
        for result, target in zip(body.outputs[skip_out:], node.outputs, strict=False):
            self._link([result], target, keeps=True)

    def _pass(self, actuals: Iterable[Value | None], formals: Iterable[Value]) -> None:
        """Note which values a body is given for its inputs."""
        for actual, formal in zip(actuals, formals, strict=False):
            self._link([actual], formal, keeps=True)
            if actual is not None:
                self._actual.setdefault(formal, actual)

    @cached_property
    def kept_from(self) -> dict[Value, list[Value]]:
        """The values that each one holds, unchanged or merely rounded."""
        found: dict[Value, list[Value]] = {}
        for source, targets in self.keeps.items():
            for target in targets:
                found.setdefault(target, []).append(source)
        return found

    def reach_from_input(self, name: str) -> set[Value]:
        """The values that are computed from a graph input."""
        return self.reach([self.main.values[name]], self.keeps, self.changes)

    def reach(self, start: Iterable[Value], *through: Links) -> set[Value]:
        """The values that one comes to from others."""
        return walk.reached(start, lambda value: [one for links in through for one in links.get(value, ())])

    @property
    def draws(self) -> bool:
        """Whether some node's results differ from run to run."""
        return bool(self._drawn)

    @cached_property
    def _reached(self) -> set[Value]:
        return self.reach(self._drawn, self.keeps, self.changes)

    def depends_on_draw(self, name: str) -> bool:
        """Whether the values of a graph output depend on such a node."""
        return self.main.lookup(name) in self._reached

    def role(self, name: str) -> Role:
        """What the graph input ``name`` is to the model."""
        role = Role()
        start = self.main.values.get(name)
        if start is None:  # the model is no graph
            return role
        kept = self.reach([start], self.keeps)
        operators: set[str] = set()
        for value in sorted(kept, key=lambda value: (self._numbers[value.scope], value.name)):
            for use in self._uses(value):
                operators.add(use.node.op_type)
                self._add_sink(role, use)
                self._read_constant_operand(role, use)
        for use in self._uses(start):
            self._add_demands(role, use)
        for value in self.reach_from_input(name) - kept:
            operands = ((use.node.op_type, use.index) for use in self._uses(value))
            role.loose.update(SINKS[operand] for operand in operands if operand in SINKS)
        ends = operators - KEEPS.keys() - set(KEEPS_ALL) - set(BLIND)
        role.masks = bool(ends) and ends <= set(MASK_OPS) and set(role.compared) <= {0.0, 0.5, 1.0}
        return role

    def _uses(self, value: Value) -> list[Use]:
        """The operands that a value is, without those of calls of functions."""
        return [use for use in value.uses if use.node.function is None]

    def _add_sink(self, role: Role, use: Use) -> None:
        node, what = use.node, SINKS.get((use.node.op_type, use.index))
        if what is None:
            return
        role.strict.add(what)
        # How long a sequence may be is a matter of the keys.
        data = self._shape(node.input(1 if node.op_type == "Attention" else 0))
        role.beside.append(data)
        if what == "index":
            default = 1 if "Loss" in node.op_type else -1 if node.op_type == "ArrayFeatureExtractor" else 0
            axis = _read_integer(node, "axis", default)
            if node.op_type == "RotaryEmbedding":
                data, axis = self._shape(node.input(1)), 0
            inside = data is not None and -len(data) <= axis < len(data)
            role.bounds.append(data[axis] if data is not None and inside else None)
        elif what == "split" and data:
            role.bounds.append(data[_read_integer(node, "axis", 0)])
        elif what == "index_nd":
            role.bounds.extend(data or [None])

    def _read_constant_operand(self, role: Role, use: Use) -> None:
        """What a constant beside the operand tells of it."""
        node = use.node
        if len(node.inputs) != 2 or node.op_type not in _BESIDE:
            return
        array = read_constant(node.inputs[1 - use.index], _SMALL)
        if array is None or array.size != 1 or array.dtype.kind not in "biuf":
            return
        number = float(array.reshape(-1)[0])
        if not math.isfinite(number):
            return
        result = node.output()
        users = [one.node.op_type for one in self._uses(result)] if result is not None else []
        op_type, index = node.op_type, use.index
        if op_type == "Sub" and index == 1 and number == 1 and "Log" in users:
            role.strict.add("probability")
        elif (op_type == "Div" and index == 0 and number == _PIXELS) or (
            op_type == "Mul" and math.isclose(number, 1 / _PIXELS, rel_tol=1e-3)
        ):
            role.strict.add("pixel")
        elif node.op_type in _COMPARES and number not in role.compared:
            role.compared.append(number)

    def _shape(self, value: Value | None, depth: int = 0) -> tuple[Dim, ...] | None:
        """The shape of a value, as far as types, initializers and operators that keep the shape tell."""
        if value is None or depth > 20:
            return None
        maker = value.producer
        if maker is not None and maker.op_type == "Constant" and maker.proto.attribute:
            attribute = maker.proto.attribute[0]
            return tuple(attribute.t.dims) if attribute.HasField("t") else None
        if maker is not None and maker.op_type in SAME_SHAPE:
            same = self._shape(maker.input(0), depth + 1)
            if same is not None:
                return same
        if value.initializer is not None:
            return tuple(value.initializer.dims)
        dims = dims_of(value.declared) if value.declared is not None else None
        # A formal input has the shape of what a caller passes.
        return dims if dims is not None else self._shape(self._actual.get(value), depth + 1)

    def _add_demands(self, role: Role, use: Use) -> None:
        """Sizes that the operator demands of this operand, from the shape of its weights."""
        node, index, op = use.node, use.index, use.node.op_type

        def want(axis: int, source: int, place: int, factor: int = 1) -> None:
            shape = self._shape(node.input(source))
            if shape is not None and -len(shape) <= place < len(shape) and isinstance(shape[place], int):
                role.wants[axis] = int(shape[place] or 0) * factor

        if index == 0 and op in _OF_CHANNELS:
            weights = self._shape(node.input(1))
            if op in ("Conv", "ConvTranspose") and weights is not None:
                role.rank = len(weights)
            group = _read_integer(node, "group", 1) if op == "Conv" else 1
            want(1, 1, 1 if op == "Conv" else 0, group)
        elif op == "MatMul" and len(node.inputs) == 2:
            want(-1 if index == 0 else -2, 1 - index, -2 if index == 0 else -1)
        elif op == "Gemm" and index < 2:
            turned = [bool(_read_integer(node, name, 0)) for name in ("transA", "transB")]
            role.rank = 2
            want(
                0 if turned[index] == (index == 0) else 1,
                1 - index,
                0 if turned[1 - index] == (index == 1) else 1,
            )
        elif op in ("LSTM", "GRU", "RNN") and index == 0:
            role.rank = 3
            want(2, 1, 2)
        elif op in ("LayerNormalization", "RMSNormalization") and index == 0:
            want(-1, 1, -1)


def _read_integer(node: Node, name: str, default: int) -> int:
    """An integer attribute; 0 where it is that of a function."""
    return next((one.i for one in node.proto.attribute if one.name == name), default)


def read_constant(value: Value | None, max_bytes: int) -> npt.NDArray[Any] | None:
    """The array of an initializer, defaults of inputs included, or of a Constant; None of any other value."""
    if value is None or value.sparse:
        return None
    if value.initializer is not None:
        return tensors.to_array(value.initializer, None, max_bytes)
    return value.constant(max_bytes)
