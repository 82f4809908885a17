"""Preconditions of fixes that the examples of the rules do not reach: ranks, omitted inputs, unknown constants, limits."""

# ruff: noqa: E501 - graphs in ONNX text are best read on one line

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, ValueInfoProto, helper

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety
from onnxfix.shapes.symbols import constant
from onnxfix.testing import findings, fixed
from onnxfix_rules.brc import _common as brc
from onnxfix_rules.brc import _meet
from onnxfix_rules.brc.brc006_implicit_repetition import _repeats
from onnxfix_rules.gra._common import is_handed_in
from onnxfix_rules.int_._known import Known
from onnxfix_rules.ops.expansions import _formulas, _own, _refused, fourier
from onnxfix_rules.ops.limits import ops066_lp_pool_form as ops066
from onnxfix_rules.ops.misimports import _deconv, _ratios
from onnxfix_rules.prc import _norm
from onnxfix_rules.qdq import _common as qdq
from onnxfix_rules.qdq import _float, _products, _region, _remedy
from onnxfix_rules.qdq import qdq017_partial_last_block as qdq017
from support.models import model as model_of
from test_guards import fixes, node_of, overlay

# ---- broadcasting


def broadcast(first: str, second: str) -> brc.Broadcast:
    model = overlay(f"g (float[{first}] x, float[{second}] z) => (float[] y) {{ y = Add(x, z) }}")
    found = brc.broadcast_of(model.main.nodes[0], model)
    assert found is not None
    return found


def test_a_size_of_one_and_a_missing_axis_meet_no_symbol() -> None:
    assert not list(_meet._open_pairs(broadcast("1", "N")))
    assert not list(_meet._open_pairs(broadcast("N,3", "3")))
    assert [axis for axis, *_ in _meet._open_pairs(broadcast("N", "M"))] == [0]


def test_an_operand_is_not_repeated_along_a_size_of_one() -> None:
    found = broadcast("2,N,3", "1,3")
    wide, narrow = found.operands
    assert not _repeats(found, narrow, wide)
    assert _repeats(found, wide, narrow)


# ---- subgraphs


def test_what_a_nested_body_declares_and_annotates_gets_the_new_names() -> None:
    """``r`` is a value of the body; the declaration of a name that the body does not have is dropped."""
    proto = model_of(
        """g (float[2] x, int64 n) => (float[2] y) <bool t = {1}> { y = If(t)
        <then_branch = p () => (float[2] u) { u = Loop(n, , x) <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {
            more = Identity(on)  r = Neg(v)  w = Abs(r) }> }, else_branch = q () => (float[2] o) { o = Abs(x) }> }""",
        18,
    )
    body = proto.graph.node[0].attribute[0].g.node[0].attribute[0].g
    del body.value_info[:]
    body.value_info.extend([helper.make_tensor_value_info(name, 1, [2]) for name in ("r", "ghost")])
    for name in ("r", "elsewhere"):
        body.quantization_annotation.add(tensor_name=name).quant_parameter_tensor_names.add(
            key="SCALE_TENSOR", value="x"
        )
    result, run = fixed([registry().get("CTL010")], proto)
    assert len(run.applied) == 1
    (loop,) = (node for node in result.graph.node if node.op_type == "Loop")
    inner = loop.attribute[0].g
    renamed = next(node.output[0] for node in inner.node if node.op_type == "Neg")
    infos: list[ValueInfoProto] = list(inner.value_info)
    assert [info.name for info in infos] == [renamed]
    notes = [
        (note.tensor_name, note.quant_parameter_tensor_names[0].value)
        for note in inner.quantization_annotation
    ]
    assert notes == [(renamed, "x"), ("elsewhere", "x")]


def test_only_the_body_of_a_loop_is_handed_a_result() -> None:
    model = overlay(
        """g (float[2] x, int64 n, bool c) => (float[2] y, float[2] z) {
        l = Loop(n, , x) <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) { more = Identity(on)  w = Neg(v) }>
        y = If(c) <then_branch = p () => (float[2] u) { u = Abs(l) }, else_branch = q () => (float[2] o) { o = Neg(x) }>
        z = Loop(n, , x) <body = d (int64 j, bool go, float[2] k) => (bool on2, float[2] m) { on2 = Identity(go)  m = Add(k, l) }> }"""
    )
    result = model.main.values["l"]
    handed = {use.node.op_type: is_handed_in(result, use.node) for use in result.uses}
    assert handed == {"Abs": False, "Add": True}


# ---- old operators, interfaces and shape arithmetic


def test_a_concat_without_an_axis_gets_the_old_default() -> None:
    proto = model_of(
        "g (float[2,3,4] x, float[2,3,4] z) => (float[2,6,4] y) { c = Concat(x, z)  y = Add(c, c) }", 3
    )
    result, run = fixed([registry().get("GRA020")], proto, safety=Safety.UNSAFE)
    assert run.applied
    (concat,) = (node for node in result.graph.node if node.op_type == "Concat")
    assert [(one.name, one.i) for one in concat.attribute] == [("axis", 1)]


def test_an_input_without_an_element_type_does_not_contradict_its_default() -> None:
    proto = model_of("g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1,2}> { y = Add(x, w) }", 18)
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.UNDEFINED
    assert findings(registry().get("IFC004"), proto) == []
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.INT32
    assert len(findings(registry().get("IFC004"), proto)) == 1


def test_a_slice_backwards_from_the_largest_integer_is_not_folded() -> None:
    text = """g (float[N] x) => (int64[K] y) <int64[3] k = {{1,2,3}}, int64[1] s = {{2}}, int64[1] e = {{{end}}}, int64[1] a = {{0}}, int64[1] d = {{-1}}> {{
        r = Slice(k, s, e, a, d)  y = Neg(r) }}"""

    def known(end: int) -> Any:
        model = overlay(text.format(end=end))
        return Known(model).array(model.main.values["r"])

    assert known(2**63 - 1) is None
    assert known(0).tolist() == [3, 2]


def test_half_precision_is_not_folded_where_backends_round_differently() -> None:
    def known(kind: str, stored: str) -> bool:
        model = overlay(
            f"g (float[N] x) => (int64[1] y) <{kind}[1] h = {{{stored}}}> {{ r = Cast<to = 7>(h)  y = Neg(r) }}"
        )
        return Known(model).array(model.main.values["r"]) is not None

    assert [known("float16", "15360"), known("float", "1.0")] == [False, True]


# ---- operators


def test_masks_need_a_range() -> None:
    def masked(opset: int) -> bool:
        node = node_of("com.microsoft.Attention<num_heads = 1, unidirectional = 1>(a, b, c)", opset)
        return _formulas.masking(node, None, None, constant(2), TensorProto.FLOAT) is not None

    assert [masked(10), masked(11)] == [False, True]


@pytest.mark.parametrize(("inverse", "onesided"), [(False, False), (False, True), (True, True)])
def test_the_size_of_a_transform_is_that_of_its_matrix(inverse: bool, onesided: bool) -> None:
    transform = fourier.Transform(4, 2, 6, inverse, onesided)
    assert transform.size == transform.matrix(np.dtype(np.float32)).size


def test_an_operator_of_unknown_types_gets_no_body() -> None:
    call = helper.make_node("LayerNormalization", ["x", "s"], ["y"], axis=-1)
    floats = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3]).SerializeToString()
    assert _own.function(call, (b"", floats), 17, allow_self=True) is None
    assert _own.function(call, (floats, floats), 17, allow_self=True) is not None


def test_sizes_of_heads() -> None:
    def size(shape: str) -> int | None:
        model = overlay(f"g (float[{shape}] x) => (float[{shape}] y) {{ y = Abs(x) }}")
        return _refused._head_size(model.main.values["x"], 2, model)

    assert [size("2,5,8"), size("2,5,N"), size("2,2,5,4"), size("2,8")] == [4, None, 4, None]


def test_paddings_of_lp_pool() -> None:
    def allowed(more: str) -> bool:
        return ops066._has_no_negative_padding(node_of(f"LpPool<kernel_shape = [2]{more}>(a)"))

    assert [allowed(""), allowed(", pads = [0,0]"), allowed(", pads = [-1,0]")] == [True, True, False]


def test_a_transposed_convolution_that_the_reference_starts_elsewhere() -> None:
    made = _deconv.Deconv((3,), (3,), (2,), (0,), (5,), (1, 1), "NOTSET", 11)
    assert made.disputed((0,))
    assert not made.disputed((1,))
    assert not replace(made, output_shape=(9,)).disputed((0,))


def test_ratios_are_of_single_precision() -> None:
    def known(elem: str) -> bool:
        model = overlay(
            f"g (float[N,3] x) => ({elem.lower()}[2] y) {{ s = Shape(x)  c = Cast<to = {TensorProto.DataType.Value(elem)}>(s)  y = Neg(c) }}"
        )
        return _ratios._cast(model.main.nodes[1], model) is not None

    assert [known("FLOAT"), known("DOUBLE")] == [True, False]


def test_a_norm_divides_its_own_difference() -> None:
    model = overlay("g (float[N] x, float[N] m) => (float[N] y) { d = Sub(x, m)  y = Neg(d) }")
    less, value = model.main.nodes[0], model.main.values["d"]
    assert _norm._divided(value, None, [less])
    assert not _norm._divided(value, None, [])


# ---- quantization


def test_constants_of_computed_zero_points_are_not_shared() -> None:
    model = overlay(
        """g (float[2] x, uint8 p) => (float[2] y) <uint8[2] w = {130,5}, float s = {0.5}, uint8 z = {128}> {
        a = DequantizeLinear(w, s, z)  b = DequantizeLinear(w, s, p)  c = DequantizeLinear(w, s, z)  d = Add(a, b)  e = Add(c, d)  y = Add(x, e) }"""
    )
    first = qdq.read(model.main.nodes[0], model)
    assert first is not None
    assert _remedy.sharers(first, model) == [model.main.nodes[0], model.main.nodes[2]]


def test_scales_of_different_types_have_no_ratio() -> None:
    text = "g (uint8[2,2] a, {s} s, uint8 z, uint8[2,2] b, float t, float u) => (uint8[2,2] y) {{ y = QLinearMatMul(a, s, z, b, t, z, u, z) }}"
    mixed = overlay(text.format(s="float16"), 21)
    with pytest.raises(qdq.Unable):
        _products.ratio(qdq.Workshop(), mixed.main.nodes[0], mixed)


def in_floats(text: str, name: str) -> bool:
    """Whether the region of a quantized value can be rewritten in floats."""
    model = overlay(text, 21)
    return _float.in_floats(_region.region_of([model.main.values[name]], model), model) is not None


def test_integers_times_a_double_scale_are_not_written_as_floats() -> None:
    def found(kind: str) -> bool:
        return in_floats(
            f"""g (uint8[N] q) => ({kind}[N] y) <{kind} s = {{0.5}}> {{
            t = Identity(q)  d = DequantizeLinear(t, s)  y = Neg(d) }}""",
            "t",
        )

    assert [found("float"), found("double")] == [True, False]


def test_a_split_of_integers_is_moved_to_floats() -> None:
    """It has two outputs: it stays, where a node with a graph output is written anew."""
    text = """g (float[4] x) => ({kind}[2] y, float[2] z) <float s = {{0.5}}, uint8 p = {{3}}> {{
        q = QuantizeLinear(x, s, p)  {first}, b = Split<num_outputs = 2>(q)  {more}  z = DequantizeLinear(b, s, p) }}"""
    assert in_floats(text.format(kind="float", first="a", more="y = DequantizeLinear(a, s, p)"), "q")
    assert not in_floats(text.format(kind="uint8", first="y", more=""), "q")


def test_computed_scales_of_blocks_need_the_rank_of_the_data() -> None:
    def found(shape: str, scales: str, axis: int) -> bool:
        return in_floats(
            f"""g (float[8] x, int64[R] k, float[{scales}] s) => (float[] y) <int64[2] fixed = {{4,2}}> {{
            r = Reshape(x, {shape})  q = QuantizeLinear<axis = {axis}, block_size = 2>(r, s)
            y = DequantizeLinear<axis = {axis}, block_size = 2>(q, s) }}""",
            "q",
        )

    assert found("fixed", "2,2", 0)
    assert not found("k", "2,2", 0)
    assert not found("fixed", "2,2,2", 0)
    assert not found("fixed", "2,2", 2)


BLOCKED = """g (float[6,2] x) => (float[6,2] y) <int8[6,2] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[2,2] s = {1,2,3,4}> {
    a = DequantizeLinear<axis = 0, block_size = 4>(w, s)  b = DequantizeLinear<axis = 0, block_size = 4>(w, s)
    c = Add(a, b)  y = Add(x, c) }"""


def test_limits_of_smaller_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = overlay(BLOCKED, 21)
    first, second = model.main.nodes[:2]
    blocks = qdq017._blocks(first, model)
    assert blocks is not None
    assert qdq017._others(first, blocks, model) == [second]
    scales = blocks.scale.constant()
    monkeypatch.setattr(qdq017, "WEIGHT_LIMIT", 24)
    found = qdq017._repeated(scales, blocks)
    assert found is not None
    assert found.tolist() == [[1, 2], [1, 2], [3, 4]]
    monkeypatch.setattr(qdq017, "WEIGHT_LIMIT", 23)
    assert qdq017._repeated(scales, blocks) is None
    monkeypatch.setattr(qdq017, "MAX_SHARERS", 1)
    assert qdq017._others(first, blocks, model) == []


@pytest.mark.parametrize(
    ("code", "opset", "text", "expected"),
    [
        # a Slice with no starts is a copy, of one axis too
        ("OPS020", 18, "g (float[N] x) => (float[N] y) <int64[0] s = {}, int64[0] e = {}> { y = Slice(x, s, e) }", [Safety.EXACT]),
        ("OPS020", 18, "g (float[N] x) => (float[M] y) <int64[1] s = {0}, int64[1] e = {2}> { y = Slice(x, s, e) }", []),
        # no update at all
        ("OPS039", 18, 'g (int32[4,3] x, int64[0,1] i, int32[0,3] u) => (int32[4,3] y) { y = ScatterND<reduction = "max">(x, i, u) }', [None]),
        # the node that makes the rank is reported, not those behind it
        ("OPS045", 18, "g (float[N] x) => (float[A,B,C,D,E,F,G,H,I] y) <int64[9] k = {1,1,1,1,1,1,1,1,-1}> { r = Reshape(x, k)  a = Abs(r)  y = Neg(a) }", [None]),
        # weights that are not constant, with a scale for each column, before DequantizeLinear had an axis
        ("QDQ008", 10, "g (uint8[2,2] a, uint8[2,2] b, uint8[2] p) => (uint8[2,2] y) <float s = {0.5}, uint8 z = {128}, float[2] t = {1,2}> { y = QLinearMatMul(a, s, z, b, t, p, s, z) }", [Safety.NUMERIC]),
        # a zero point that is not constant
        ("QDQ010", 18, "g (float[2] x, int8[2] z) => (float[2] y) <int8[2] w = {3,5}, float[2] s = {0,1}> { d = DequantizeLinear<axis = 0>(w, s, z)  y = Add(x, d) }", [None]),
        # a pair is reported once
        ("QDQ011", 18, "g (float[N,4] x, uint8 z) => (float[N,4] y) <float s = {0.1}> { q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }", [Safety.NUMERIC]),
        # DequantizeLinear came with opset 10
        ("QDQ012", 9, "g (float[2] x) => (float[2] y) <int8[2] w = {3,5}> { c = Cast<to = 1>(w)  y = Add(x, c) }", [None]),
        ("QDQ012", 10, "g (float[2] x) => (float[2] y) <int8[2] w = {3,5}> { c = Cast<to = 1>(w)  y = Add(x, c) }", [Safety.EXACT]),
        # one scale, as a vector of one element
        ("QDQ012", 18, "g (int64[N] i) => (float[N,2] y) <int8[3,2] w = {1,2,3,4,5,6}, float[1] s = {0.5}> { t = Gather(w, i)  y = DequantizeLinear(t, s) }", [Safety.EXACT]),
    ],
)  # fmt: skip
def test_fixes_at_their_limits(code: str, opset: int, text: str, expected: list[Safety | None]) -> None:
    assert fixes(code, text, opset) == expected


def test_a_cast_of_a_quantized_constant_is_replaced() -> None:
    proto = model_of(
        "g (float[2] x) => (float[2] y) <int8[2] w = {3,5}> { c = Cast<to = 1>(w)  y = Add(x, c) }", 18
    )
    result, run = fixed([registry().get("QDQ012")], proto)
    assert len(run.applied) == 1
    assert [node.op_type for node in result.graph.node] == ["DequantizeLinear", "Add"]
