"""Regions of connected quantized tensors, with every node that produces, moves or reads them; quantized scalars.

A quantized type cannot be changed at a single node: the output of a QuantizeLinear, a Transpose of it and its two
DequantizeLinear readers must change together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from onnx import TensorProto

from onnxfix.rule import INTEGERS, Fix, Model, Node, Value, holds_exactly, is_read
from onnxfix.targets.documented import names

from ._read import Linear, integral, is_op, read

FACTORS = {
    "MatMulInteger": ((0, 2), (1, 3)),
    "ConvInteger": ((0, 2), (1, 3)),
    "QLinearMatMul": ((0, 2), (3, 5)),
    "QLinearConv": ((0, 2), (3, 5)),
}
"""Input indices of (data, zero point) for both factors."""


def requantizes(node: Node) -> bool:
    return node.op_type.startswith("QLinear")


def quantized_inputs(node: Node) -> list[Value]:
    """Data and zero points of both factors, as far as present."""
    found = [node.input(index) for pair in FACTORS[node.op_type] for index in pair]
    return [value for value in found if value is not None]


LIMIT = 512
"""Most nodes and values of a region; larger ones are reported without a fix."""

TOO_LARGE = f"its region has more than {LIMIT} nodes and values"

_MOVES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Gather",
         "GatherElements", "GatherND", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "MaxPool"),
        (0,),
    ),
    "Where": (1, 2),
}  # fmt: skip
"""Operators that move elements without changing them, with their data inputs. MaxPool selects elements: it commutes
with every shift, since padding never wins."""

NARROW = (TensorProto.INT8, TensorProto.UINT8)

_PLAIN_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def same_from_float(elem: int | None, to: object) -> bool:
    """Whether casting an integer of type ``elem`` to ``to`` gives the same result when a float holds the integer.

    Out-of-range integers wrap but out-of-range floats are undefined; strings would be formatted differently.
    """
    if elem is None or not isinstance(to, int):
        return False
    return to in _PLAIN_FLOATS or (to in INTEGERS and (to == TensorProto.BOOL or holds_exactly(to, elem)))


def moved(node: Node) -> tuple[int, ...]:
    """Indices of the inputs whose elements the node moves; empty for other operators."""
    if not node.is_onnx:
        return ()
    if node.op_type == "Concat":
        return tuple(range(len(node.inputs)))
    if node.op_type == "MaxPool" and any(output is not None for output in node.outputs[1:]):
        return ()
    return _MOVES.get(node.op_type, ())


@dataclass
class Region:
    """Quantized tensors between their sources and their readers.

    ``values`` are produced inside the region; ``sources`` come from elsewhere (graph inputs, other operators) and
    ``constants`` are fixed. ``entries`` are Casts from floats, ``casts`` those to other types. ``weights`` are
    multiplied by what is dequantized, if the fix depends on them. ``problem`` explains why the region cannot be
    changed, "" if it can.
    """

    values: list[Value] = field(default_factory=list)
    sources: list[Value] = field(default_factory=list)
    constants: list[Value] = field(default_factory=list)
    quantizers: list[Linear] = field(default_factory=list)
    dequantizers: list[Linear] = field(default_factory=list)
    dynamic: list[Node] = field(default_factory=list)
    moves: list[Node] = field(default_factory=list)
    products: list[Node] = field(default_factory=list)
    entries: list[Node] = field(default_factory=list)
    casts: list[Node] = field(default_factory=list)
    shapes: list[Node] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    weights: list[Value] = field(default_factory=list)
    problem: str = ""
    fixes: dict[str, Fix | None] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """The problem for messages, in brackets."""
        return f" ({self.problem})" if self.problem else ""

    @property
    def closed(self) -> bool:
        """Whether QuantizeLinear makes all its integers, and only moves and DequantizeLinear read them."""
        others = (self.sources, self.outputs, self.dynamic, self.entries, self.products, self.casts)
        return bool(self.quantizers) and not self.problem and not any(others)

    @property
    def reads(self) -> tuple[Node | Value, ...]:
        """The values that a match about this region depends on."""
        nodes = [linear.node for linear in (*self.quantizers, *self.dequantizers)]
        nodes += [*self.entries, *self.dynamic, *self.moves, *self.products, *self.casts, *self.shapes]
        beside = [
            v for linear in (*self.quantizers, *self.dequantizers) for v in (linear.scale, linear.zero) if v
        ]
        return (*nodes, *self.values, *self.constants, *beside, *self.weights)


def region_of(start: Iterable[Value | Node], model: Model) -> Region:
    """The region around quantized values, or around nodes that read some."""
    # Regions found since the last edit, by the ids of values and nodes: each member of a region looks it up. They
    # are stored with the shapes, which an edit discards; a separate dictionary would keep the model alive.
    known: dict[int, Region] = vars(model.shapes).setdefault("_quantized_regions", {})
    items = list(start)
    for item in items:
        if id(item) in known:
            return known[id(item)]
    walk = _Walk(model, known)
    region = walk.run(items)
    # Other regions may read them as well.
    shared = {id(value) for value in (*region.sources, *region.constants)}
    known.update(dict.fromkeys(walk.seen - shared, region))
    return region


class _Walk:
    def __init__(self, model: Model, known: dict[int, Region]) -> None:
        self.model = model
        self.known = known
        self.region = Region()
        self.seen: set[int] = set()
        self.pending: list[Value] = []
        self.large = False

    def run(self, start: Iterable[Value | Node]) -> Region:
        for item in start:
            if isinstance(item, Node):
                self.reader(item, None)
            else:
                self.pending.append(item)
        while self.pending and not self.large:
            self.value(self.pending.pop())
            if len(self.seen) + len(self.pending) > LIMIT:
                self.large = True
        if self.large:
            self.region.problem = TOO_LARGE
        return self.region

    def fail(self, problem: str) -> None:
        self.region.problem = self.region.problem or problem

    def value(self, value: Value) -> None:
        if id(value) in self.seen:
            return
        self.seen.add(id(value))
        if id(value) in self.known:  # a region is complete unless it is too large
            self.large = True
            return
        if value.is_constant:
            self.region.constants.append(value)
            return
        if value.producer is None or not self.producer(value.producer, value):
            self.region.sources.append(value)
            return
        self.region.values.append(value)
        if value.pinned:
            self.fail(f"{value.name!r} is referenced by name outside of the nodes")
        if value.is_output:
            self.region.outputs.append(value)
            if value.scope.parent is not None or value.scope.kind == "function":
                self.fail(f"{value.name!r} leaves its subgraph or function")
        if value.use_count > LIMIT:
            self.large = True
            return
        for use in value.uses:
            self.reader(use.node, use.index)

    def producer(self, node: Node, value: Value) -> bool:
        """Whether the node belongs to the region as the producer of ``value``."""
        first = id(node) not in self.seen
        if is_op(node, "QuantizeLinear"):
            linear = read(node, self.model)
            if linear is None:
                return False
            if first:
                self.seen.add(id(node))
                self.region.quantizers.append(linear)
                self.zero(linear)
            return True
        if node.is_onnx and node.op_type == "DynamicQuantizeLinear":
            if value.output_index == 1:
                return False  # the scale is a float
            if first:
                self.seen.add(id(node))
                self.region.dynamic.append(node)
                self.pending.extend(v for v in (node.output(0), node.output(2)) if v is not None)
            return True
        if moved(node):
            self.move(node)
            return True
        if node.is_onnx and node.op_type == "Cast":
            return self.entry(node, value)
        if node.is_onnx and node.op_type in FACTORS and requantizes(node):
            self.product(node)
            return True
        return False

    def move(self, node: Node) -> None:
        if id(node) in self.seen:
            return
        if len(node.inputs) + len(node.outputs) > LIMIT:
            self.large = True
            return
        self.seen.add(id(node))
        self.region.moves.append(node)
        self.pending.extend(v for v in (node.input(i) for i in moved(node)) if v is not None)
        self.pending.extend(v for v in node.outputs if v is not None)

    def entry(self, node: Node, value: Value) -> bool:
        """A Cast of floats that already are integers of the quantized type."""
        source, elem = node.input(0), self.model.shapes.elem_type(value)
        if source is None or elem not in NARROW or not integral(source, elem, self.model):
            return False
        if id(node) not in self.seen:
            self.seen.add(id(node))
            self.region.entries.append(node)
        return True

    def product(self, node: Node) -> None:
        if id(node) in self.seen:
            return
        self.seen.add(id(node))
        self.region.products.append(node)
        self.pending.extend(quantized_inputs(node))
        zero, output = node.input(7), node.output(0)
        if requantizes(node):
            self.pending.extend(v for v in (zero, output) if v is not None)

    def casts(self, node: Node) -> bool:
        source = node.input(0)
        elem = None if source is None else self.model.shapes.elem_type(source)
        return same_from_float(elem, node.attr("to"))

    def zero(self, linear: Linear) -> None:
        """Include a zero point that a node of the region computes as a quantized value."""
        if linear.zero is not None and linear.zeros is None:
            self.pending.append(linear.zero)

    def reader(self, node: Node, index: int | None) -> None:
        """Add a node that reads a value of the region; ``index`` is None for the starting node."""
        region = self.region
        if index is not None and moved(node):
            if index in moved(node):
                self.move(node)
            else:
                self.fail(f"{node.place} uses it as an index")
            return
        if node.is_onnx and node.op_type in FACTORS:
            self.product(node)
            return
        if id(node) in self.seen:
            return
        self.seen.add(id(node))
        linear = read(node, self.model)
        if linear is not None and (not linear.quantizes or index == 2):
            (region.quantizers if linear.quantizes else region.dequantizers).append(linear)
            self.zero(linear)
            inner = linear.inner
            if inner is not None:
                self.pending.append(inner)
        elif node.is_onnx and node.op_type == "Cast" and self.casts(node):
            region.casts.append(node)
            self.pending.extend(v for v in node.inputs if v is not None)
        elif node.is_onnx and node.op_type in ("Shape", "Size"):
            region.shapes.append(node)
        else:
            self.fail(f"{node.place} ({node.op_type}) reads it")


MOST_STEPS = 64
"""Most values that are followed from one scalar."""

_ALONE = names(
    "Abs Cast Ceil Clip Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu Log Mish Neg Not Reciprocal "
    "Relu Round Selu Sigmoid Sign Softplus Softsign Sqrt Tanh ThresholdedRelu"
)
"""Operators whose result has the shape of their first input."""

_TOGETHER = names(
    "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or Pow Sub Sum Where Xor"
)
"""Operators whose inputs broadcast (ONNX, Multidirectional Broadcasting)."""


@dataclass(frozen=True)
class ScalarRegion:
    """A scalar, its quantizing node and the nodes that dequantize the result, or a single dequantizing node."""

    first: Node
    data: Value
    readers: tuple[Node, ...]

    @property
    def results(self) -> list[Value]:
        """The values that leave the region."""
        found = [node.output(0) for node in self.readers or (self.first,)]
        return [value for value in found if value is not None]

    @property
    def open(self) -> bool:
        """Whether another node reads the quantized value."""
        inner = self.first.output(0)
        return inner is not None and (not inner.replaceable or inner.use_count > len(self.readers))


def region_at(node: Node, model: Model) -> ScalarRegion | None:
    """The region that starts at this node; None if none does, or if its data is not a scalar."""
    data = node.input(0)
    if data is None or not is_read(node.output(0)) or model.shapes.rank(data) != 0:
        return None
    if is_op(node, "QuantizeLinear"):
        inner = node.require_output()
        uses = inner.uses if inner.use_count <= MOST_STEPS else []
        return ScalarRegion(
            node, data, tuple(use.node for use in uses if _dequantizes(use.node, use.index, node))
        )
    if not is_op(node, "DequantizeLinear"):
        return None
    maker = data.producer
    if maker is not None and is_op(maker, "QuantizeLinear") and _dequantizes(node, 0, maker):
        return None if maker.require_output().use_count <= MOST_STEPS else ScalarRegion(node, data, ())
    linear = read(node, model)
    if linear is not None and data.is_constant:
        return None  # covered by QDQ002 and QDQ005
    return ScalarRegion(node, data, ())


def _dequantizes(node: Node, index: int, maker: Node) -> bool:
    return index == 0 and is_op(node, "DequantizeLinear") and node.scope is maker.scope


def shows(values: list[Value], region: ScalarRegion, model: Model) -> bool | None:
    """Whether the caller can see an extra dimension in these values; None if unknown."""
    pending, seen, sure = list(values), set(values), True
    while pending:
        value = pending.pop()
        if value.is_output and value.scope is model.main:
            return True
        if not value.replaceable or value.use_count + len(seen) > MOST_STEPS:
            sure = False
            continue
        for use in value.uses:
            if use.node in region.readers:
                continue
            goes_on = _passes(use.node, use.index, value, model)
            sure = sure and goes_on is not None
            output = use.node.output(0)
            if goes_on and output is not None and output not in seen:
                seen.add(output)
                pending.append(output)
    return False if sure else None


def _passes(node: Node, index: int, value: Value, model: Model) -> bool | None:
    """Whether an extra dimension of this input adds one to the node's result; None if unknown."""
    if is_op(node, "QuantizeLinear") or is_op(node, "DequantizeLinear"):
        return index == 0  # a one-element scale applies to the whole tensor
    if not node.is_onnx:
        return None
    if node.op_type in _ALONE or (node.op_type == "Unsqueeze" and index == 0):
        return True if index == 0 else None
    if node.op_type == "Reshape" and index == 0:
        return False
    rank = model.shapes.rank(value)
    if node.op_type not in _TOGETHER or rank is None:
        return None
    ranks = [model.shapes.rank(one) for one in node.inputs if one is not None and one is not value]
    if any(one is not None and one > rank for one in ranks):
        return False
    return None if None in ranks else True
