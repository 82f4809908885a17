"""Quantization in floats: what QuantizeLinear and DequantizeLinear compute, written in other operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from onnx import TensorProto

from onnxfix.rule import INTEGERS, Edit, Model, Node, RemoveNode, Safety, Value, is_small
from onnxfix_rules.ops._integers import is_only_quantized

from ._common import (
    FLOATS,
    WEIGHT_LIMIT,
    Array,
    Linear,
    Unable,
    Workshop,
    behind_ones,
    numpy_type,
    rounded,
    scope_opset,
    sizes,
    spread,
)
from ._products import product, requantizes
from ._region import Region, moved


def dynamic(shop: Workshop, node: Node) -> tuple[str, str]:
    """The float forms of (quantized data, zero point); the scale keeps its name.

    ONNX divides the range of the data, extended to 0, by 255. For all-zero data the range is empty: ONNX Runtime then
    uses scale 1, and so does this code; ONNX's function body divides by 0.
    """
    draft = shop.at(node)
    data, scale = node.require(0), node.output(1)

    def number(value: float) -> str:
        return shop.constant(node, np.array(value, dtype=np.float32), "number")

    least = draft.add("Min", [draft.add("ReduceMin", [data], keepdims=0), number(0.0)])
    most = draft.add("Max", [draft.add("ReduceMax", [data], keepdims=0), number(0.0)])
    span = draft.add("Sub", [most, least])
    ratio = draft.add("Div", [span, number(255.0)])
    empty = draft.add("Equal", [span, number(0.0)])
    step = draft.add("Where", [empty, number(1.0), ratio], output=scale.name if scale is not None else "")
    start = draft.add("Sub", [number(0.0), draft.add("Div", [least, step])])
    zero = draft.add("Round", [draft.add("Clip", [start, number(0.0), number(255.0)])], hint="zero_point")
    quantized = draft.add("Add", [draft.add("Round", [draft.add("Div", [data, step])]), zero])
    name = draft.add("Clip", [quantized, number(0.0), number(255.0)], hint="quantized")
    return name, zero


F32, F16, BF16 = FLOATS


def in_floats(region: Region, model: Model) -> tuple[tuple[Edit, ...], Safety] | None:
    """The edits and their safety, or None if the region cannot be rewritten.

    EXACT if every value enters as an integer, from outside or from a constant; NUMERIC if floats are quantized."""
    if region.problem:
        return None
    try:
        writer = Writer(region, model)
        return writer.run()
    except Unable:
        return None


class Writer:
    def __init__(self, region: Region, model: Model) -> None:
        self.region, self.model = region, model
        self.shop = Workshop()
        self.names: dict[int, str] = {}
        self.sources = {id(value) for value in region.sources}
        self.carrier = self._carrier()
        self.safety = Safety.NUMERIC if self._quantizes() else Safety.EXACT

    def _quantizes(self) -> bool:
        region = self.region
        return bool(
            region.quantizers
            or region.dynamic
            or region.entries
            or any(requantizes(node) for node in region.products)
        )

    def _carrier(self) -> int:
        """The float type that carries the integers between the nodes.

        It is the type of the surrounding floats if that holds all of them (8 bits), else float32.
        """
        region = self.region
        linears = (*region.quantizers, *region.dequantizers)
        kinds = {linear.precision for linear in linears}
        narrow = all(linear.low >= -128 and linear.high <= 255 for linear in linears)
        others = (region.products, region.dynamic, region.entries, region.casts)
        if len(kinds) != 1 or not narrow or any(others):
            return F32
        (kind,) = kinds
        rounds = all(scope_opset(linear.node) >= 22 for linear in linears)  # Round supports bfloat16
        return F32 if kind == BF16 and not rounds else kind

    def run(self) -> tuple[tuple[Edit, ...], Safety]:
        linears = (*self.region.quantizers, *self.region.dequantizers)
        if any(linear.precision == BF16 and scope_opset(linear.node) < 13 for linear in linears):
            raise Unable  # no opset below computes or casts bfloat16; Microsoft's operators accept it
        write = self._writers()
        for node in self._ordered(list(write)):
            write[node]()
        return tuple(self.shop.edits), self.safety

    def _writers(self) -> dict[Node, Callable[[], None]]:
        """Rewrites each node of the region."""
        region = self.region
        found: dict[Node, Callable[[], None]] = {}
        for linear in region.quantizers:
            found[linear.node] = partial(self.quantize, linear)
        for linear in region.dequantizers:
            found[linear.node] = partial(self.dequantize, linear)
        found.update({node: partial(self.dynamic, node) for node in region.dynamic})
        found.update({node: partial(self.enter, node) for node in region.entries})
        found.update({node: partial(self.move, node) for node in region.moves})
        found.update({node: partial(product, self, node) for node in region.products})
        found.update({node: partial(self.follow, node) for node in (*region.casts, *region.shapes)})
        return found

    def _ordered(self, nodes: list[Node]) -> list[Node]:
        """Sort producers before readers: a new name must exist before it is used."""
        made = {id(value): node for node in nodes for value in node.outputs if value is not None}
        inputs = {
            node: [made[id(v)] for v in node.inputs if v is not None and id(v) in made] for node in nodes
        }
        order: dict[Node, None] = {}
        stack = [iter(nodes)]
        open_nodes: list[Node] = []
        while stack:
            node = next((n for n in stack[-1] if n not in order and n not in open_nodes), None)
            if node is not None:
                open_nodes.append(node)
                stack.append(iter(inputs[node]))
                continue
            stack.pop()
            if open_nodes:
                order[open_nodes.pop()] = None
        return list(order)

    # -- quantized values as floats

    def read(self, value: Value, node: Node, elem: int = 0) -> str:
        """A quantized value as a float that ``node`` may read, in type ``elem`` (default: the carrier's)."""
        elem = elem or self.carrier
        array = value.constant(WEIGHT_LIMIT) if value.is_constant else None
        if array is not None:
            return self.shop.constant(node, array.astype(np.int64).astype(numpy_type(elem)), "integers")
        if value.is_constant:
            raise Unable
        name = self.names.get(id(value), value.name)
        if id(value) in self.sources:
            if self.model.shapes.elem_type(value) == TensorProto.INT8 and is_only_quantized(node, self.model):
                found = self.shop.at(node).add(
                    "DequantizeLinear",
                    [name, self.shop.constant(node, np.ones((), np.float32))],
                    hint="integers",
                )
                return found if elem == F32 else self.shop.cast(node, found, elem)
            return self.shop.cast(node, name, elem, "integers")
        return name if elem == self.carrier else self.shop.cast(node, name, elem)

    def move(self, node: Node) -> None:
        """The node itself on floats; a second node if its output must keep its name and type."""
        if any(output is not None and output.is_output for output in node.outputs):
            self.replaced(node)
            return
        draft = self.shop.at(node)
        for index in moved(node):
            data = node.input(index)
            if data is not None:
                draft.set_input(node, index, self.read(data, node))
        for output in node.outputs:
            if output is not None:
                self.shop.retype(output, self.carrier)

    def replaced(self, node: Node) -> None:
        output = node.output(0)
        elem = None if output is None else self.model.shapes.elem_type(output)
        if len(node.outputs) != 1 or elem is None:
            raise Unable
        inputs: list[Value | str | None] = list(node.inputs)
        for index in moved(node):
            data = node.input(index)
            inputs[index] = None if data is None else self.read(data, node)
        self.shop.edits.append(RemoveNode(node))
        name = self.shop.like(node, node.op_type, inputs)
        self.publish(node, output, name, elem)

    def publish(self, node: Node, value: Value | None, name: str, elem: int) -> None:
        """Convert the float form ``name`` of ``value`` back for a graph output that keeps its integer type."""
        if value is None:
            return
        self.names[id(value)] = name
        if value.is_output and elem == TensorProto.INT8 and is_only_quantized(node, self.model):
            real = name if self.carrier == F32 else self.shop.cast(node, name, F32)
            parts = [
                self.shop.constant(node, one) for one in (np.ones((), np.float32), np.zeros((), np.int8))
            ]
            self.shop.at(node).add("QuantizeLinear", [real, *parts], output=value.name)
        elif value.is_output:
            self.shop.at(node).add("Cast", [name], output=value.name, to=elem)

    # -- nodes

    def follow(self, node: Node) -> None:
        """Rewrite a node that moves integers: the same operator on floats."""
        data = node.require(0)
        self.shop.at(node).set_input(node, 0, self.read(data, node))

    def quantize(self, linear: Linear) -> None:
        """``Clip(Round(x / scale) + zero point, least, largest)``."""
        node, kind = linear.node, linear.precision
        draft = self.shop.at(node)
        self.shop.edits.append(RemoveNode(node))
        found = self.model.shapes.elem_type(linear.data)
        if kind == 0 or found is None or (found not in FLOATS and found != TensorProto.INT32):
            raise Unable
        data = linear.data.name if found == kind else self.shop.cast(node, linear.data.name, kind)
        ratio = draft.add("Div", [data, self.scale(linear, kind)])
        if kind != self.carrier:
            ratio = self.shop.cast(node, ratio, self.carrier)
        number = draft.add("Add", [rounded(self.shop, node, ratio), self.zero(linear)])
        name = self.clip(node, number, linear.elem)
        self.publish(node, node.output(0), name, linear.elem)

    def clip(self, node: Node, name: str, elem: int) -> str:
        """Clip ``name`` to the range of an integer type."""
        if scope_opset(node) < 11:
            low, high = float(INTEGERS[elem].low), float(INTEGERS[elem].high)
            return self.shop.at(node).add("Clip", [name], hint="quantized", min=low, max=high)
        kind = numpy_type(self.carrier)
        ends = [np.array(end, dtype=kind) for end in (INTEGERS[elem].low, INTEGERS[elem].high)]
        bounds = [self.shop.constant(node, end, "end") for end in ends]
        return self.shop.at(node).add("Clip", [name, *bounds], hint="quantized")

    def dequantize(self, linear: Linear) -> None:
        """``(q - zero point) * scale``."""
        node, kind = linear.node, linear.precision
        output = node.output(0)
        if kind == 0 or output is None:
            raise Unable
        draft = self.shop.at(node)
        name = self.read(linear.data, node)
        if linear.point != 0:
            name = draft.add("Sub", [name, self.zero(linear)])
        if kind != self.carrier:
            name = self.shop.cast(node, name, kind)
        scale = self.scale(linear, kind)
        self.shop.edits.append(RemoveNode(node))
        if linear.result == kind:
            draft.add("Mul", [name, scale], output=output.name)
        else:
            draft.add("Cast", [draft.add("Mul", [name, scale])], output=output.name, to=linear.result)

    def enter(self, node: Node) -> None:
        """Rewrite a Cast of integers that are now floats; -0.0 becomes 0.0."""
        source, output = node.input(0), node.output(0)
        found = None if source is None else self.model.shapes.elem_type(source)
        elem = None if output is None else self.model.shapes.elem_type(output)
        if source is None or output is None or elem is None or found not in FLOATS:
            raise Unable
        self.shop.edits.append(RemoveNode(node))
        name = source.name if found == self.carrier else self.shop.cast(node, source.name, self.carrier)
        zero = self.shop.constant(node, np.zeros((), dtype=numpy_type(self.carrier)), "zero")
        self.publish(node, output, self.shop.at(node).add("Add", [name, zero]), elem)

    def dynamic(self, node: Node) -> None:
        """Decompose DynamicQuantizeLinear by its definition."""
        self.shop.edits.append(RemoveNode(node))
        quantized, zero = dynamic(self.shop, node)
        self.publish(node, node.output(0), quantized, TensorProto.UINT8)
        self.publish(node, node.output(2), zero, TensorProto.UINT8)

    # -- operands

    def scale(self, linear: Linear, kind: int) -> str:
        return self.operand(linear, linear.scale, linear.scales, kind)

    def zero(self, linear: Linear) -> str:
        """The zero point in the carrier's type; if it is computed, its float form."""
        if linear.zeros is not None:
            return self.constant_operand(linear, linear.zeros.astype(np.int64), self.carrier)
        assert linear.zero is not None
        return self.placed(linear, self.read(linear.zero, linear.node), linear.zero)

    def operand(self, linear: Linear, value: Value, array: Array | None, kind: int) -> str:
        if array is not None:
            return self.constant_operand(linear, array, kind)
        if value.is_constant:
            raise Unable
        found = self.model.shapes.elem_type(value)
        if found not in FLOATS:
            raise Unable
        name = value.name if found == kind else self.shop.cast(linear.node, value.name, kind)
        return self.placed(linear, name, value)

    def constant_operand(self, linear: Linear, array: Array, kind: int) -> str:
        found = spread(array, linear, self.model.shapes.rank(linear.data), sizes(linear.data, self.model))
        if found is None:
            raise Unable
        return self.shop.constant(linear.node, found.astype(numpy_type(kind)), "parameter")

    def placed(self, linear: Linear, name: str, value: Value) -> str:
        """A non-constant scale or zero point with trailing dimensions of 1 up to the data's rank."""
        rank, own = self.model.shapes.rank(linear.data), self.model.shapes.rank(value)
        if linear.kind == "block":
            return self.repeated(linear, name, value)
        if own == 0:
            return name
        if own != 1 or rank is None or not -rank <= linear.axis < rank:
            raise Unable
        # A one-element vector applies to the whole tensor and broadcasts in any position.
        behind = 0 if linear.kind == "tensor" else rank - 1 - linear.axis % rank
        return behind_ones(self.shop, linear.node, name, behind)

    def repeated(self, linear: Linear, name: str, value: Value) -> str:
        """Repeat a per-block parameter to one value per element along the axis."""
        dims, own = sizes(linear.data, self.model), self.model.shapes.rank(value)
        if dims is None or own != len(dims) or not -own <= linear.axis < own:
            raise Unable
        size = dims[linear.axis]
        if size is None or not is_small(size):
            raise Unable
        blocks = self.shop.constant(linear.node, np.arange(size, dtype=np.int64) // linear.block, "blocks")
        return self.shop.at(linear.node).add("Gather", [name, blocks], axis=linear.axis)
