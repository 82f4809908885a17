"""QDQ023: ONNX Runtime's product with weights of 2, 4 or 8 bits."""

# Long because: one operator packs, groups and centers its weights in many ways, each of which has an example.

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto

from onnxfix.rule import (
    Edit,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    name_of,
    rule,
    target_of,
)

from ._read import FLOATS, I4, I8, WEIGHT_LIMIT, Array, numpy_type, takes_blocks
from ._rewrite import Unable, Workshop, elem_of, excess, fitted


class _Weights(NamedTuple):
    """``packed`` [N, bytes] minus ``points`` [N, blocks], times ``scales`` [N, blocks].

    Column k has the point and scale ``given[k]``. The numbers are unpacked for the edits only.
    """

    packed: Array
    bits: int
    points: Array
    scales: Array
    given: Array
    block: int


@rule(
    "QDQ023", ops=["com.microsoft::MatMulNBits"], safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[57]
)
def matmul_of_few_bits(node: Node, model: Model) -> Iterator[Match]:
    """A MatMulNBits of ONNX Runtime: weights of 2, 4 or 8 bits, quantized in blocks.

    ## Why it matters
    Weight-only quantizers (`MatMulNBitsQuantizer`) and the model builder for generative models write it. TensorRT-RTX
    1.7.1 has an importer, which fails for each form, measured: `input tensor A must be FP16` for float and bfloat16,
    `only 4-bit and 8-bit MatMulNBits are supported`, `block_size must be one of 32/64/128`, and `failed to load
    MatMulNBits plugin` for what is left, since the package has no plugins. Other releases may have the plugin: a
    warning there for half precision.

    ## Fix
    A blocked DequantizeLinear and MatMul, which TensorRT-RTX 1.7.1 builds for int4 and int8, float, half precision
    and bfloat16, in blocks of 16 to 256. TensorRT takes no zero points: they are subtracted from the weights, as int4
    where all differences fit, else as int8. A block that int8 does not hold (8 bits around another point than 128)
    loses another constant: the sum of the block's data times this constant, in float32, is added to the product. A
    shorter last block becomes smaller ones with repeated scales. Before opset 21, and for int8 before TensorRT 10.15,
    which may have no blocks of it: a scale for each row of one block, then Reshape (executed: TensorRT 10.6.0, H200).
    Weights whose groups a `g_idx` scatters are sorted by group, and the data's columns are gathered in that order.

    NUMERIC: the weights are bit-identical, up to one rounding for half precision, but products are added in another
    order. UNSAFE for `accuracy_level` 4, which permits ONNX Runtime to round the data to int8: its CPU kernel does, and
    TensorRT, more accurate, differs by some percent. UNSAFE if both `g_idx` and zero points are given: the CPU kernel
    of ONNX Runtime 1.32 then ignores the zero points, measured, against its documentation.

    Fractional zero points, groups of unequal sizes, an odd number of rows, opsets before 13, and TensorRT before 10:
    float weights, without compression. No fix for weights that are not constant, packed for one processor, or above
    256 MiB.

    Executed with TensorRT-RTX 1.6.1 on an H200, which it does not list: int4 is right (4 of 4 examples). Of int8, from
    zero points, two small examples fail at run time in cuDNN and one model of 16 outputs is wrong, while products of 64
    by 64 in blocks of 16 and 32 are right. Require trt-gpu where the weights become int8.

    ## References
    - https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
    - https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html
    """
    data, scale = node.require(0), node.require(2)
    if node.function is not None:
        return
    target, elem = target_of(model), model.shapes.elem_type(scale)
    recent = target.has_type(I4)  # TensorRT 10, which also brought blocks
    try:
        fix = _fix(node, elem, packs=recent)
    except Unable:
        fix = None
    unsure = elem == TensorProto.FLOAT16 and recent and target.package != "tensorrt-rtx"
    yield Match(
        f"{target.title} {'may not run' if unsure else 'does not run'} com.microsoft.MatMulNBits of "
        f"{name_of(elem or 0)}: its importer needs a plugin that its package may lack",
        node=node,
        severity=Severity.WARNING if unsure else None,
        fix=fix,
        reads=tuple(value for value in node.inputs if value is not None and value is not data),
    )


def _fix(node: Node, elem: int | None, *, packs: bool) -> Fix:
    """The decomposition; ``packs``: whether the weights stay integers.

    Raises:
        Unable: the weights are unknown, or packed in an unknown way.
    """
    if node.output() is None or elem not in FLOATS:
        raise Unable
    weights = _read(node, elem)
    moved = node.input(4) is not None and bool((weights.points != 1 << (weights.bits - 1)).any())
    safety = Safety.UNSAFE if moved or node.attr("accuracy_level", 0) == 4 else Safety.NUMERIC
    edits = partial(_edits, node, weights, elem, packs=packs)
    return Fix("multiply by the dequantized weights", edits, safety, replaces=node)


def _edits(node: Node, weights: _Weights, elem: int, *, packs: bool) -> list[Edit]:
    packed, bits, points, scales, given, block = weights
    left, bias = node.require(0).name, node.input(5)
    places, order = np.arange(given.size) // block, np.argsort(given, kind="stable")
    offsets = _unpacked(packed, bits)[:, : given.size] - points[:, given]
    shop = Workshop()
    draft = shop.at(node)
    if not np.array_equal(given[order], places):
        offsets, scales = offsets * scales[:, given].astype(np.float32), np.ones_like(scales)
    elif not np.array_equal(given, places):
        offsets = offsets[:, order]
        left = draft.add("Gather", [left, shop.constant(node, order, "order")], axis=-1)
    part, middles = math.gcd(block, given.size), np.zeros((), offsets.dtype)
    packs &= offsets.dtype.kind == "i" and part > 1 and node.scope.opset() >= 13
    if packs:
        parts = offsets.reshape(len(offsets), -1, part)
        middles = excess(parts, (2,))
        offsets = (parts - middles).reshape(offsets.shape)
    terms = [draft.add("MatMul", [left, _factor(shop, node, offsets, scales, elem, block, packs=packs)])]
    if middles.any():
        steps = scales[:, np.arange(0, given.size, part) // block].astype(np.float32)
        terms.append(_shares(shop, node, left, (middles[:, :, 0] * steps).T, elem, part))
    for term in terms[1:] + ([] if bias is None else [bias.name]):
        terms[0] = draft.add("Add", [terms[0], term])
    draft.replace_output(node, terms[0])
    return shop.edits


def _shares(shop: Workshop, node: Node, left: str, shares: Array, elem: int, block: int) -> str:
    """The sum of each block of the data times ``shares`` [blocks, N]; in float32, for half precision may overflow."""
    draft, rank = shop.at(node), node.model.shapes.rank(node.require(0))
    data = left if elem == TensorProto.FLOAT else draft.cast(left, TensorProto.FLOAT)
    if rank:
        split = draft.reshape(data, [*[0] * (rank - 1), len(shares), block])
    else:
        ends = [draft.integers([0]), draft.integers([-1])]
        sizes = [
            draft.add("Slice", [draft.add("Shape", [left]), *ends]),
            draft.integers([len(shares), block]),
        ]
        split = draft.add("Reshape", [data, draft.add("Concat", sizes, axis=0)])
    sums = [draft.sum(split, [-1]), shop.constant(node, shares.astype(np.float32), "share")]
    found = draft.add("MatMul", sums)
    return found if elem == TensorProto.FLOAT else draft.cast(found, elem)


def _factor(
    shop: Workshop, node: Node, offsets: Array, scales: Array, elem: int, block: int, *, packs: bool
) -> str:
    """The matrix [K, N] of type ``elem``: ``offsets`` [N, K] times ``scales``, column k with scale ``k // block``."""
    rows, columns = offsets.shape
    draft, part = shop.at(node), math.gcd(block, columns)
    blocked = node.scope.opset() >= 21
    kinds = (I4, I8) if blocked and offsets.size % 2 == 0 else (I8,)
    stored = next((found for one in kinds if packs and (found := fitted(offsets, one)) is not None), None)
    if stored is None:
        spread = scales[:, np.arange(columns) // block].astype(np.float32)
        return shop.constant(node, (offsets * spread).T.astype(numpy_type(elem)), "weights")
    steps = scales[:, np.arange(0, columns, part) // block]
    if blocked and takes_blocks(node.model, elem_of(stored)):
        names = [shop.constant(node, stored.T, "weights"), shop.constant(node, steps.T, "scales")]
        return draft.add("DequantizeLinear", names, axis=0, block_size=part)
    parts, steps = stored.reshape(-1, part), steps.reshape(-1).astype(np.float32)
    names = [shop.constant(node, parts, "weights"), shop.constant(node, steps, "scales")]
    floats = draft.add("DequantizeLinear", names, axis=0)
    if elem != TensorProto.FLOAT:
        floats = draft.cast(floats, elem)
    return draft.add("Transpose", [draft.reshape(floats, [rows, columns])], perm=[1, 0])


def _read(node: Node, elem: int) -> _Weights:
    columns, rows = int(node.attr("K", 0)), int(node.attr("N", 0))
    bits, block = int(node.attr("bits", 4)), int(node.attr("block_size", 0))
    if bits not in (2, 4, 8) or block < 16 or min(columns, rows) < 1 or node.attr("weight_prepacked", 0):
        raise Unable
    blocks = -(-columns // block)
    packed, scales, zeros, groups = (_constant(node, index) for index in range(1, 5))
    if packed is None or scales is None or packed.size != rows * blocks * block * bits // 8:
        raise Unable
    if packed.dtype != np.uint8 or scales.size != rows * blocks or scales.dtype != numpy_type(elem):
        raise Unable
    points = np.full((rows, blocks), 1 << (bits - 1), np.int16)
    if zeros is not None:
        points = _points(zeros, rows, blocks, bits)
    given = np.arange(columns) // block
    if groups is not None:
        given = groups.reshape(-1)[:columns].astype(np.int64)
    if given.size != columns or given.min() < 0 or given.max() >= blocks:
        raise Unable
    return _Weights(packed.reshape(rows, -1), bits, points, scales.reshape(rows, blocks), given, block)


def _constant(node: Node, index: int) -> Array | None:
    """The array of an input, None if it is omitted.

    Raises:
        Unable: it is not constant, or too large.
    """
    value = node.input(index)
    array = None if value is None else value.constant(WEIGHT_LIMIT)
    if array is None and value is not None:
        raise Unable
    return array


def _points(zeros: Array, rows: int, blocks: int, bits: int) -> Array:
    """Zero points [N, blocks]: packed like the weights, or floats, which stay floats if they are fractional."""
    if zeros.dtype == np.uint8:
        if zeros.size != rows * -(-blocks * bits // 8):
            raise Unable
        return _unpacked(zeros.reshape(rows, -1), bits)[:, :blocks]
    points = zeros.astype(np.float32).reshape(-1)
    if points.size != rows * blocks:
        raise Unable
    whole = bool((points == np.round(points)).all()) and bool((np.abs(points) < 256).all())
    return (points.astype(np.int16) if whole else points).reshape(rows, blocks)


def _unpacked(packed: Array, bits: int) -> Array:
    """The numbers in bytes, the lowest bits first, as int16."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], -1).astype(np.int16)


def _model(
    inits: str, call: str, *, size: str = "16,2", outer: str = "", opset: int = 21, float_type: str = "float"
) -> str:
    """A model with Relu before and Neg behind the nodes ``call``, which compute c from a."""
    (columns, rows), more = size.split(","), f", {outer}" if outer else ""
    return f"""<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>
        g ({float_type}[N,{columns}] x{more}) => ({float_type}[N,{rows}] y) <{inits}> {{
        a = Relu(x)  {call}  y = Neg(c) }}"""


def _bits(inputs: str, columns: int, rows: int, bits: int = 4) -> str:
    attributes = f"K = {columns}, N = {rows}, bits = {bits}, block_size = 16"
    return f"c = com.microsoft.MatMulNBits<{attributes}>({inputs})"


def _many(count: int, *numbers: float) -> str:
    return ", ".join(str(numbers[index % len(numbers)]) for index in range(count))


_B4 = f"uint8[2,1,8] w = {{{_many(8, 0x98)}, {_many(8, 0x7A)}}}, float[2,1] s = {{0.5, 2}}"
_BLOCKED = "d = DequantizeLinear<axis = 0, block_size = 16>(w, s)  c = MatMul(a, d)"
_AS_INT8 = _model(f"int8[16,2] w = {{{_many(32, 8, -5, 9, -8)}}}, float[1,2] s = {{0.5, 2}}", _BLOCKED)
_ROWS = """d = DequantizeLinear<axis = 0>(w, s)  r = Reshape(d, n)  t = Transpose<perm = [1, 0]>(r)
    c = MatMul(a, t)"""
_GROUPS = (
    f"uint8[1,2,8] w = {{{_many(16, 0x98)}}}, float[1,2] s = {{0.5, 2}}, int32[32] g = {{{_many(32, 0, 1)}}}"
)
_ORDER = ", ".join(str(index) for index in (*range(0, 32, 2), *range(1, 32, 2)))
_HALF: dict[str, Any] = {"size": "32,1", "outer": "int64[R] q", "float_type": "float16"}
_fixed = partial(Fixed, safety=Safety.NUMERIC)
_flagged = partial(Flagged, safety=Safety.NUMERIC)


matmul_of_few_bits.examples = [
    _fixed(
        "4 bits around 8: int4",
        before=_model(_B4, _bits("a, w, s", 16, 2)),
        after=_model(f"int4[16,2] w = {{{_many(16, 0x20, 0xF1)}}}, float[1,2] s = {{0.5, 2}}", _BLOCKED),
    ),
    Flagged("requires --numeric-fixes", _model(_B4, _bits("a, w, s", 16, 2))),
    _fixed(
        "4 bits around 0 and 15: int8",
        before=_model(f"{_B4}, uint8[2,1] z = {{0, 15}}", _bits("a, w, s, z", 16, 2)),
        after=_AS_INT8,
    ),
    _fixed(
        "zero points as floats",
        before=_model(f"{_B4}, float[2,1] z = {{0, 15}}", _bits("a, w, s, z", 16, 2)),
        after=_AS_INT8,
    ),
    _fixed(
        "a shorter last block",
        before=_model(
            f"uint8[1,2,8] w = {{{_many(16, 0x98)}}}, float[1,2] s = {{0.5, 2}}",
            _bits("a, w, s", 24, 1),
            size="24,1",
        ),
        after=_model(
            f"int4[24,1] w = {{{_many(12, 0x10)}}}, float[3,1] s = {{0.5, 0.5, 2}}",
            _BLOCKED.replace("16", "8"),
            size="24,1",
        ),
    ),
    _fixed(
        "groups that are scattered over the columns",
        before=_model(_GROUPS, _bits("a, w, s, , g", 32, 1), size="32,1"),
        after=_model(
            f"int4[32,1] w = {{{_many(8, 0)}, {_many(8, 17)}}}, float[2,1] s = {{0.5, 2}}, int64[32] o = {{{_ORDER}}}",
            f"e = Gather<axis = -1>(a, o)  {_BLOCKED.replace('MatMul(a', 'MatMul(e')}",
            size="32,1",
        ),
    ),
    _flagged(
        "groups and zero points, which ONNX Runtime ignores then",
        _model(f"{_GROUPS}, uint8[1,1] z = {{0}}", _bits("a, w, s, z, g", 32, 1), size="32,1"),
    ),
    _fixed(
        "8 bits around 128, half precision, a bias",
        before=_model(
            f"""uint8[2,1,16] w = {{{_many(32, 0, 255)}}}, float16[2,1] s = {{f16(0.5, 2.0)}},
            float16[2] b = {{f16(1.0, 2.0)}}""",
            _bits("a, w, s, , , b", 16, 2, 8),
            float_type="float16",
        ),
        after=_model(
            f"""int8[16,2] w = {{{_many(32, -128, -128, 127, 127)}}}, float16[1,2] s = {{f16(0.5, 2.0)}},
            float16[2] b = {{f16(1.0, 2.0)}}""",
            f"{_BLOCKED.replace('c =', 'm =')}  c = Add(m, b)",
            float_type="float16",
        ),
    ),
    _fixed(
        "2 bits, before opset 21: a scale for each row of one block",
        before=_model(
            f"uint8[2,1,4] w = {{{_many(8, 0xE4)}}}, float[2,1] s = {{0.5, 2}}",
            _bits("a, w, s", 16, 2, 2),
            opset=17,
        ),
        after=_model(
            f"int8[2,16] w = {{{_many(32, -2, -1, 0, 1)}}}, float[2] s = {{0.5, 2}}, int64[2] n = {{2, 16}}",
            _ROWS,
            opset=17,
        ),
    ),
    _fixed(
        "TensorRT 8.6: floats",
        before=_model(_B4, _bits("a, w, s", 16, 2)),
        after=_model(f"float[16,2] w = {{{_many(32, 0, 4, 0.5, -2)}}}", "c = MatMul(a, w)"),
        target="trt8.6",
    ),
    _fixed(
        "8 bits around 0, which int8 does not hold: 128 of it behind the product",
        before=_model(
            f"uint8[1,1,16] w = {{{_many(16, 1, 255)}}}, float[1,1] s = {{2}}, uint8[1,1] z = {{0}}",
            _bits("a, w, s, z", 16, 1, 8),
            size="16,1",
        ),
        after=_model(
            f"int8[16,1] w = {{{_many(16, -127, 127)}}}, float[1,1] s = {{2}}, int64[3] b = {{0, 1, 16}}, "
            "int64[1] l = {-1}, float[1,1] m = {256}",
            f"{_BLOCKED.replace('c =', 'p =')}  r = Reshape(a, b)  t = ReduceSum<keepdims = 0>(r, l)  "
            "u = MatMul(t, m)  c = Add(p, u)",
            size="16,1",
        ),
    ),
    _fixed(
        "one block of two in half precision, data of unknown rank: sums in float32",
        before=_model(
            f"uint8[1,2,16] w = {{{_many(16, 0, 255)}, {_many(16, 9, 7)}}}, float16[1,2] s = {{f16(0.5, 2.0)}}, "
            "uint8[1,2] z = {120, 8}",
            "h = Reshape(a, q)  " + _bits("h, w, s, z", 32, 1, 8),
            **_HALF,
        ).replace("[N,1] y", "[] y"),
        after=_model(
            f"""int8[32,1] w = {{{_many(16, -127, 127).replace("-127", "-128")}, {_many(16, 1, -1)}}},
            float16[2,1] s = {{f16(0.5, 2.0)}}, int64[1] b = {{0}}, int64[1] e = {{-1}}, int64[2] n = {{2, 16}},
            int64[1] l = {{-1}}, float[2,1] m = {{4, 0}}""",
            f"""h = Reshape(a, q)  {_BLOCKED.replace("c =", "p =").replace("(a", "(h")}  g = Cast<to = FLOAT>(h)
            f = Shape(h)  k = Slice(f, b, e)  o = Concat<axis = 0>(k, n)  r = Reshape(g, o)
            t = ReduceSum<keepdims = 0>(r, l)  u = MatMul(t, m)  v = Cast<to = FLOAT16>(u)  c = Add(p, v)""",
            **_HALF,
        ).replace("[N,1] y", "[] y"),
    ),
    _flagged("accuracy level 4", _model(_B4, _bits("a, w, s", 16, 2).replace("<", "<accuracy_level = 4, "))),
    _flagged(
        "weights that are an input",
        _model("float[2,1] s = {0.5, 2}", _bits("a, w, s", 16, 2), outer="uint8[2,1,8] w"),
    ),
    _flagged(
        "weights in the layout of one processor",
        _model(_B4, _bits("a, w, s", 16, 2).replace("<", "<weight_prepacked = 1, ")),
        runs=False,
    ),
    Silent(
        "a blocked DequantizeLinear",
        _model(f"int4[16,2] w = {{{_many(16, 0x20, 0xF1)}}}, float[1,2] s = {{0.5, 2}}", _BLOCKED),
    ),
    _fixed(
        "int8 for TensorRT 10.6, which takes blocks of int4 alone",
        before=_model(f"{_B4}, uint8[2,1] z = {{0, 15}}", _bits("a, w, s, z", 16, 2)),
        after=_model(
            f"""int8[2,16] w = {{{_many(16, 8, 9)}, {_many(16, -5, -8)}}}, float[2] s = {{0.5, 2}},
            int64[2] n = {{2, 16}}""",
            _ROWS,
        ),
        target="10.6",
    ),
]
