"""QDQ012: a quantized constant that other nodes read before it is dequantized."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from onnxfix.rule import (
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    RemoveNode,
    Safety,
    Severity,
    Silent,
    Value,
    is_small,
    rule,
    target_of,
)

from ._read import I4, I8, U8, WEIGHT_LIMIT, Array, Linear, is_op, numpy_type, read, scope_opset
from ._region import moved, same_from_float
from ._rewrite import Workshop, fixed


def moved_constant(node: Node, array: Array) -> Array | None:
    """The result of a node for a constant; None if it depends on runtime data or the operator is not covered."""
    operand = node.input(1)
    given = None if operand is None else operand.constant()
    if operand is not None and given is None:
        return None
    numbers = None if given is None else [int(number) for number in given.reshape(-1)]
    if node.op_type == "Identity":
        return array
    if node.op_type == "Transpose":
        perm = node.attr("perm")
        if perm and sorted(perm) != list(range(array.ndim)):
            return None
        return array.transpose(perm) if perm else array.transpose()
    if node.op_type == "Flatten":
        axis = int(node.attr("axis", 1))
        if not -array.ndim <= axis <= array.ndim:
            return None
        axis += array.ndim if axis < 0 else 0
        first = int(np.prod(array.shape[:axis], dtype=np.int64))
        return array.reshape(first, int(np.prod(array.shape[axis:], dtype=np.int64)))
    if node.op_type == "Reshape":
        numbers = numbers if numbers is not None else node.attr("shape")
        return _reshaped(array, numbers, bool(node.attr("allowzero", 0)))
    if node.op_type in ("Squeeze", "Unsqueeze"):
        return _ones(node.op_type, array, numbers if numbers is not None else node.attr("axes"))
    return None


def _reshaped(array: Array, shape: list[int] | None, allowzero: bool) -> Array | None:
    if shape is None or not array.size or not is_small(*[1] * len(shape)):
        return None  # with empty tensors 0 and -1 are ambiguous
    if any(size == 0 and (allowzero or axis >= array.ndim) for axis, size in enumerate(shape)):
        return None
    wanted = [array.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]
    rest = int(np.prod([size for size in wanted if size != -1], dtype=np.int64))
    if wanted.count(-1) > 1 or min(wanted, default=1) < -1 or array.size % rest:
        return None
    return array.reshape(wanted) if -1 in wanted or rest == array.size else None


def _ones(op_type: str, array: Array, axes: list[int] | None) -> Array | None:
    if not axes:
        return None  # Squeeze of all axes, or of none: RSH009
    rank = array.ndim + (len(axes) if op_type == "Unsqueeze" else 0)
    places = {axis % rank for axis in axes}
    if any(not -rank <= axis < rank for axis in axes) or len(places) < len(axes) or not is_small(*[1] * rank):
        return None
    if op_type == "Unsqueeze":
        found: Array = np.expand_dims(array, tuple(sorted(places)))
        return found
    if any(array.shape[axis] != 1 for axis in places):
        return None
    return array.reshape([size for axis, size in enumerate(array.shape) if axis not in places])


MAX_MOVES = 16

_KINDS = (I8, U8, I4)


@dataclass(frozen=True)
class Chain:
    """A constant, the nodes that move it (in order), and the node that reads the last one's output."""

    constant: Value
    moves: tuple[Node, ...]
    end: Node
    elem: int


@rule(
    "QDQ012",
    ops=("DequantizeLinear", "com.microsoft::DequantizeLinear", "Cast"),
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[50],
    types=_KINDS,
)
def quantized_constant_before_other_nodes(node: Node, model: Model) -> Iterator[Match]:
    """An int8 constant that is moved or cast before it is dequantized.

    ## Why it matters
    TensorRT treats int8 as a quantized type. The builder fails: `Quantized constant (w) is only allowed before DQ or
    PLUGIN_V2 or kPLUGIN_V3 node. If this constant is not intended as a quantized floating-point value, consider using
    other data types` (measured with TensorRT-RTX 1.7.1, for Transpose, Reshape, Identity, Gather and Cast). The
    parser turns uint8 constants into int32, which DequantizeLinear then refuses; with a Cast they work.

    ## Fix
    - Moved by nodes with constant parameters only (Transpose, Reshape, Squeeze, Unsqueeze, Flatten, Identity): the
      moved constant is stored.
    - Moved depending on runtime data, such as the Gather of an embedding, with one scale: dequantized first, then
      moved.
    - Cast: `DequantizeLinear` with scale 1, which is equivalent to a Cast, at the constant.

    All are exact: moving elements commutes with elementwise operations.

    No fix if another node reads the moved integers, or for per-channel scales with data-dependent moves.

    ## References
    - https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html
    """
    chain = _chain(node, model)
    if chain is None:
        return
    what = f"{chain.moves[0].op_type} of" if chain.moves else "Cast of"
    yield Match(
        f"{what} the quantized constant {chain.constant.name!r}: {target_of(model).title} supports those "
        "only at DequantizeLinear",
        node=node,
        fix=_remedy(chain, model),
        reads=(chain.constant, *chain.moves, *(v for m in chain.moves for v in m.inputs if v is not None)),
    )


def _chain(node: Node, model: Model) -> Chain | None:
    """The moves between a quantized constant and this node; None if the chain does not start at such a constant."""
    moves: list[Node] = []
    value = node.input(0)
    while value is not None and not value.is_constant:
        producer = value.producer
        if producer is None or moved(producer) != (0,):
            return None
        if len(moves) == MAX_MOVES or producer.op_type == "MaxPool":
            return None
        moves.insert(0, producer)
        value = producer.input(0)
    if value is None or not fixed(value):
        return None
    elem = model.shapes.elem_type(value)
    casts = node.op_type == "Cast"
    if elem not in _KINDS or (casts and elem == U8) or (not casts and not moves):
        return None
    return Chain(value, tuple(moves), node, elem)


def _remedy(chain: Chain, model: Model) -> Fix | None:
    node = chain.end
    if node.op_type == "Cast":
        if scope_opset(node) < 10 or not same_from_float(chain.elem, node.attr("to")):
            return None  # DequantizeLinear came with opset 10
        kind = numpy_type(TensorProto.FLOAT)
        return _raised(chain, None, kind)
    linear = read(node, model)
    if linear is None or not is_op(node, "DequantizeLinear"):
        return None
    return _folded(chain) or (_raised(chain, linear, None) if _plain(linear, model) else None)


def _plain(linear: Linear, model: Model) -> bool:
    """Whether one scale and zero point apply to all elements, independent of the rank."""
    shapes = [model.shapes.static_shape(v) for v in (linear.scale, linear.zero) if v is not None]
    return linear.kind == "tensor" and all(shape in ((), (1,)) for shape in shapes)


def _folded(chain: Chain) -> Fix | None:
    """The constant after all moves."""
    array = chain.constant.constant(WEIGHT_LIMIT)
    for node in chain.moves:
        array = None if array is None else moved_constant(node, array)
    if array is None:
        return None
    shop = Workshop()
    shop.at(chain.end).set_input(chain.end, 0, shop.constant(chain.end, array, "moved"))
    return Fix(f"store {chain.constant.name!r} moved", shop.edits)


def _raised(chain: Chain, linear: Linear | None, kind: np.dtype[np.generic] | None) -> Fix | None:
    """Dequantize at the constant and move floats. Without ``linear`` the chain ends in a Cast, and the scale is 1."""
    end = chain.end
    for move in chain.moves:
        output = move.output(0)
        if output is None or not output.replaceable or output.use_count != 1:
            return None
    shop = Workshop()
    first = chain.moves[0] if chain.moves else end
    draft = shop.at(first)
    if linear is not None:
        inputs: list[Value | str | None] = [chain.constant]
        for value in (linear.scale, linear.zero):
            operand = None if value is None else _readable(shop, first, value)
            if value is not None and operand is None:
                return None
            inputs += [] if operand is None else [operand]
        # With one scale the axis is irrelevant, and the constant may have fewer axes.
        name = shop.like(
            end, "DequantizeLinear", inputs, domain=end.domain, without=("axis", "block_size"), before=first
        )
        elem = linear.result
    else:
        scale = shop.constant(first, np.array(1.0, dtype=kind), "one")
        name = draft.add("DequantizeLinear", [chain.constant, scale])
        elem = TensorProto.FLOAT
    if not chain.moves:
        return _recast(shop, end, name)
    draft.set_input(first, 0, name)
    for move in chain.moves:
        output = move.require_output()
        shop.retype(output, elem)
    last = chain.moves[-1].require_output()
    if linear is None and end.attr("to") != TensorProto.FLOAT:
        # The Cast then starts from float.
        return Fix("dequantize the constant with scale 1 first", shop.edits)
    shop.at(end).bypass(end, last)
    return Fix("dequantize the constant first", shop.edits)


def _recast(shop: Workshop, end: Node, name: str) -> Fix | None:
    """A Cast directly after the constant."""
    output = end.output(0)
    if output is None:
        return None
    if end.attr("to") == TensorProto.FLOAT:
        shop.put(end, name)
    else:
        shop.edits.append(RemoveNode(end))
        shop.at(end).add("Cast", [name], output=output.name, to=end.attr("to"))
    return Fix("dequantize it with scale 1", shop.edits)


def _readable(shop: Workshop, node: Node, value: Value) -> str | None:
    """The name that ``node`` may read for the value without reordering nodes, None if there is none."""
    if value.producer is None:
        return value.name if node.scope.lookup(value.name) is value else None
    array = value.constant()  # a Constant node, which may come later
    return None if array is None else shop.constant(node, array, "parameter")


quantized_constant_before_other_nodes.examples = [
    Fixed(
        "transposed, then dequantized: the constant is stored transposed",
        before="""g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {1, 2, 3, 4}, float[2] s = {0.5, 0.25}> {
            t = Transpose<perm = [1, 0]>(w)  d = DequantizeLinear(t, s)  y = MatMul(x, d) }""",
        after="""g (float[N,2] x) => (float[N,2] y) <int8[2,2] t = {1, 3, 2, 4}, float[2] s = {0.5, 0.25}> {
            d = DequantizeLinear(t, s)  y = MatMul(x, d) }""",
    ),
    Fixed(
        "reshaped and squeezed",
        before="""g (float[N,2] x) => (float[N,2] y) <int8[4] w = {1, 2, 3, 4}, float s = {0.5},
            int64[3] r = {1, 2, -1}, int64[1] a = {0}> { t = Reshape(w, r)  u = Squeeze(t, a)
            d = DequantizeLinear(u, s)  y = MatMul(x, d) }""",
        after="""g (float[N,2] x) => (float[N,2] y) <int8[2,2] u = {1, 2, 3, 4}, float s = {0.5}> {
            d = DequantizeLinear(u, s)  y = MatMul(x, d) }""",
    ),
    Fixed(
        "an embedding: dequantized before the non-constant Gather",
        before="""g (int64[N] i) => (float[N,2] y) <int8[3,2] w = {1, 2, 3, 4, 5, 6}, float s = {0.5}> {
            t = Gather(w, i)  y = DequantizeLinear(t, s) }""",
        after="""g (int64[N] i) => (float[N,2] y) <int8[3,2] w = {1, 2, 3, 4, 5, 6}, float s = {0.5}> {
            d = DequantizeLinear(w, s)  y = Gather(d, i) }""",
    ),
    Fixed(
        "gathered and scaled by Cast and Mul",
        before="""g (int64[N] i) => (float[N,2] y) <int8[3,2] w = {1, 2, 3, 4, 5, 6}, float s = {0.5}> {
            t = Gather(w, i)  f = Cast<to = FLOAT>(t)  y = Mul(f, s) }""",
        after="""g (int64[N] i) => (float[N,2] y) <int8[3,2] w = {1, 2, 3, 4, 5, 6}, float s = {0.5}, float k = {1}> {
            d = DequantizeLinear(w, k)  f = Gather(d, i)  y = Mul(f, s) }""",
        opset=21,
        ir_version=10,
    ),
    Fixed(
        "cast to half precision",
        before="""g (float16[N,2] x) => (float16[N,2] y) <int8[2] w = {1, -128}> {
            f = Cast<to = FLOAT16>(w)  y = Mul(x, f) }""",
        after="""g (float16[N,2] x) => (float16[N,2] y) <int8[2] w = {1, -128}, float k = {1}> {
            d = DequantizeLinear(w, k)  f = Cast<to = FLOAT16>(d)  y = Mul(x, f) }""",
        opset=21,
        ir_version=10,
    ),
    Fixed(
        "another reader of the transposed constant",
        before="""g (float[N,2] x) => (float[N,2] y, int8[2,2] t) <int8[2,2] w = {1, 2, 3, 4}, float s = {0.5}> {
            t = Transpose(w)  d = DequantizeLinear(t, s)  y = MatMul(x, d) }""",
        after="""g (float[N,2] x) => (float[N,2] y, int8[2,2] t) <int8[2,2] w = {1, 2, 3, 4},
            int8[2,2] u = {1, 3, 2, 4}, float s = {0.5}> {
            t = Transpose(w)  d = DequantizeLinear(u, s)  y = MatMul(x, d) }""",
    ),
    Flagged(
        "gathered rows with a second reader",
        """g (int64[N] i) => (float[N,2] y, int8[N,2] t) <int8[3,2] w = {1, 2, 3, 4, 5, 6}, float s = {0.5}> {
            t = Gather(w, i)  y = DequantizeLinear(t, s) }""",
    ),
    Flagged(
        "gathered rows read by another node",
        """g (int64[N] i) => (float[N,2] y, int8[2,N] v) <int8[3,2] w = {1, 2, 3, 4, 5, 6}, float s = {0.5}> {
            t = Gather(w, i)  y = DequantizeLinear(t, s)  v = Transpose(t) }""",
    ),
    Fixed(
        "a Constant node after the Gather",
        before="""g (int64[N] i) => (float[N,2] y) { w = Constant<value = int8[3,2] {1, 2, 3, 4, 5, 6}>()
            t = Gather(w, i)  s = Constant<value = float {0.5}>()  y = DequantizeLinear(t, s) }""",
        after="""g (int64[N] i) => (float[N,2] y) <int8[3,2] w = {1, 2, 3, 4, 5, 6}, float s = {0.5}> {
            d = DequantizeLinear(w, s)  y = Gather(d, i) }""",
    ),
    Flagged(
        "a Cast to uint8, where -1 wraps",
        """g (int64[N] i) => (uint8[N,2] y) <int8[3,2] w = {1, 2, 3, 4, 5, -1}> {
            t = Gather(w, i)  y = Cast<to = UINT8>(t) }""",
    ),
    Flagged(
        "a non-constant Gather with per-column scales",
        """g (int64[N] i) => (float[N,2] y) <int8[3,2] w = {1, 2, 3, 4, 5, 6}, float[2] s = {0.5, 1}> {
            t = Gather(w, i)  y = DequantizeLinear(t, s) }""",
    ),
    Silent(
        "dequantized directly",
        """g (int64[N] i) => (float[N,2] y) <int8[3,2] w = {1, 2, 3, 4, 5, 6}, float s = {0.5}> {
            d = DequantizeLinear(w, s)  y = Gather(d, i) }""",
    ),
    Silent(
        "a cast uint8 constant: the parser makes it int32",
        """g (int64[N] i) => (float[N,2] y) <uint8[3,2] w = {1, 2, 3, 4, 5, 6}> {
            t = Gather(w, i)  y = Cast<to = FLOAT>(t) }""",
    ),
    Silent(
        "a tensor quantized in the graph may be moved",
        """g (float[N,2] x) => (float[2,N] y) <float s = {0.5}, int8 z = {0}> {
            q = QuantizeLinear(x, s, z)  t = Transpose(q)  y = DequantizeLinear(t, s, z) }""",
    ),
    Silent(
        "the constant may be overridden",
        """g (float[N,2] x, int8[2,2] w) => (float[N,2] y) <int8[2,2] w = {1, 2, 3, 4}, float s = {0.5}> {
            t = Transpose(w)  d = DequantizeLinear(t, s)  y = MatMul(x, d) }""",
    ),
    Flagged(
        "opset 9, which has no DequantizeLinear",
        "g (float[N,2] x) => (float[N,2] y) <int8[2] w = {3, -4}> { c = Cast<to = FLOAT>(w)  y = Mul(x, c) }",
        opset=9,
    ),
]
