"""What is said of the values of one operator each: element type, dimensions, and values that are known."""

# ruff: noqa: E501 - graphs in ONNX text are best read on one line

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

from onnxfix.model import Model
from onnxfix.shapes import propagate
from onnxfix.shapes.shapes import Shapes
from onnxfix.shapes.symbols import symbol
from support.models import floats, of_nodes
from support.shape_oracle import parse

MS = ', "com.microsoft" : 1'

pytestmark = pytest.mark.usefixtures("strict_shapes")


def described(text: str, opset: int) -> dict[str, str]:
    """Each value by name, those of subgraphs too: its kind or element type, dimensions, and value where one is known."""
    model = Model(parse(f"g {text}", opset, MS))
    shapes = Shapes(model)
    found = {}
    for scope in model.scopes:
        for name, value in scope.values.items():
            info = shapes.info(value)
            parts = [info.kind] if info.kind != "tensor" else []
            info = info.item or info
            parts.append("?" if info.elem is None else TensorProto.DataType.Name(info.elem))
            parts.append("?" if info.shape is None else "[" + ", ".join(map(str, info.shape)) + "]")
            if info.value is not None:
                parts.append("= " + ", ".join(map(str, info.value.reshape(-1))))
            found[name] = " ".join(parts)
    return found


SAID: list[tuple[int, str, dict[str, str]]] = [
    # ---- operators of com.microsoft
    (17, "(float[N,S,4] x, float[4] b) => (float[] y) { y = com.microsoft.BiasGelu(x, b) }", {"y": "FLOAT [N, S, 4]"}),
    (17, "(float[N,4,S] a, float[4,8] b) => (float[] y) { y = com.microsoft.FusedMatMul<transA=1>(a, b) }", {"y": "FLOAT [N, S, 8]"}),
    (17, "(float[N,4,S] a, float[N,4,8] b) => (float[] y) { y = com.microsoft.FusedMatMul<transA=1>(a, b) }", {"y": "FLOAT [N, S, 8]"}),
    (17, "(float[N,S,4] x, float[4] w) => (float[] y) { y, m, v, s = com.microsoft.SkipLayerNormalization(x, x, w) }", {"y": "FLOAT [N, S, 4]", "m": "FLOAT [N, S, 1]", "v": "FLOAT [N, S, 1]", "s": "FLOAT [N, S, 4]"}),
    (17, "(float[N,S,4] x, float[4] w) => (float[] y) { y, m = SimplifiedLayerNormalization(x, w) }", {"y": "FLOAT [N, S, 4]", "m": "FLOAT [N, S, 1]"}),
    (17, "(uint8[] a, uint8[4,8] b, float s, float t) => (float[] y) { y = com.microsoft.MatMulIntegerToFloat(a, b, s, t) }", {"y": "FLOAT ?"}),
    (17, "(uint8[N,4] a, uint8[] b, float s, float t) => (float[] y) { y = com.microsoft.MatMulIntegerToFloat(a, b, s, t) }", {"y": "FLOAT ?"}),
    (17, "(uint8[N,4] x, float16 s, uint8 z) => (float16[] y) { y = com.microsoft.DequantizeLinear(x, s, z) }", {"y": "FLOAT16 [N, 4]"}),
    (17, "(uint8[N,4] x, float s, uint8 z, float t, uint8 u) => (uint8[] y) { y = com.microsoft.QLinearSigmoid(x, s, z, t, u) }", {"y": "UINT8 [N, 4]"}),
    # ---- windows
    (17, "(float[N,3,9,9] x, float[] w) => (float[] y) { y = Conv<kernel_shape=[3,3]>(x, w) }", {"y": "FLOAT [N, y.1, 7, 7]"}),
    (17, "(uint8[N,3,9,9] x, uint8[8,3,3,3] w, uint8 z) => (int32[] y) { y = ConvInteger(x, w, z) }", {"y": "INT32 [N, 8, 7, 7]"}),
    (17, "(uint8[N,3,9,9] x, float s, uint8 z, int8[8,3,3,3] w, float t, int8 u, float v, uint8 o) => (uint8[] y) { y = QLinearConv(x, s, z, w, t, u, v, o) }", {"y": "UINT8 [N, 8, 7, 7]"}),
    (17, "(float[N,1,2,2] x, int64[N,1,2,2] i) => (float[] y) { s = Constant<value_ints=[1,1,5,5]>() y = MaxUnpool<kernel_shape=[2,2],strides=[2,2]>(x, i, s) }", {"y": "FLOAT [1, 1, 5, 5]"}),
    (17, "(float[N,C,9,9] x, float[R,5] r) => (float[] y) { y = MaxRoiPool<pooled_shape=[2,3]>(x, r) }", {"y": "FLOAT [R, C, 2, 3]"}),
    (17, "(float[] x, float[R,4] r, int64[R] b) => (float[] y) { y = RoiAlign<output_height=2,output_width=3>(x, r, b) }", {"y": "FLOAT [R, y.1, 2, 3]"}),
    (18, "(float[N,12,S] x, int64[2] i) => (float[] y) { b = Constant<value_ints=[2,2]>() y = Col2Im(x, i, b) }", {"y": "FLOAT [N, 3, i[0], i[1]]"}),
    (18, "(float[N,12,S] x, int64[K] i) => (float[] y) { b = Constant<value_ints=[2,2]>() y = Col2Im(x, i, b) }", {"y": "FLOAT [N, 3, y.2, y.3]"}),
    # ---- elements and constants
    (17, "(float[N,S] x, float b) => (float[] y) { y = Clip(x, b) }", {"y": "FLOAT [N, S]"}),
    (17, "(float[N,2] x) => (float[] y) { k = Constant<value=float[2] {1.0,2.0}>() y = Resize(x, , k) }", {"y": "FLOAT [N, 4]"}),
    (17, "(int64[2] t) => (float[] y) { y = ConstantOfShape(t) }", {"y": "FLOAT [t[0], t[1]]"}),
    (17, "(float[N,4] x) => (float[] y) { k = Constant<value_ints=[2,3,4]>() at = Constant<value=int64[1,1] {1}>() u = Constant<value_ints=[9]>() t = ScatterND(k, at, u) y = ConstantOfShape(t) }", {"t": "INT64 [3] = 2, 9, 4", "y": "FLOAT [2, 9, 4]"}),
    # ---- selections
    (9, "(float[N,S] x) => (float[] y) { y = Slice<starts=[0],ends=[3],axes=[1]>(x) }", {"y": "FLOAT [N, S - max(0, S - 3)]"}),
    (17, "(float[N,S] x, int64[1,S] i, float[1,S] u) => (float[] y) { y = ScatterElements(x, i, u) }", {"y": "FLOAT [N, S]"}),
    (17, "(float[N,S,4,5] x, int64[N,7,1] i) => (float[] y) { y = GatherND<batch_dims=1>(x, i) }", {"y": "FLOAT [N, 7, 4, 5]"}),
    (17, "(float[N,S] x, bool[K] c) => (float[] y) { y = Compress(x, c) }", {"y": "FLOAT [y.0]"}),
    (17, "(int64[N] x, float[] d, float[2] v) => (float[] y) { y = OneHot(x, d, v) }", {"y": "FLOAT [N, y.1]"}),
    (17, "(float[N,S] x, int64 a) => (float[] y) { y = CumSum(x, a) }", {"y": "FLOAT [N, S]"}),
    (17, "(float a, float b, float c) => (float[] y) { y = Range(a, b, c) }", {"y": "FLOAT [y.0]"}),
    (17, "(int64 d) => (int64[] y) { a = Constant<value_int=0>() b = Constant<value_int=9>() y = Range(a, b, d) }", {"y": "INT64 [y.0]"}),
    (17, "() => (float[] y) { a = Constant<value_float=0.0>() b = Constant<value_float=4.5>() c = Constant<value_float=1.0>() y = Range(a, b, c) }", {"y": "FLOAT [5]"}),
    (17, "() => (float[] y) { a = Constant<value_float=0.0>() b = Constant<value_float=0.3>() c = Constant<value_float=0.1>() y = Range(a, b, c) }", {"y": "FLOAT [y.0]"}),
    # ---- layout
    (17, "(float[2,1,4] x) => (float[] y) { y = Squeeze(x) }", {"y": "FLOAT [2, 4]"}),
    (17, "(float[N,S] x, int64[1] a) => (float[] y) { y = Unsqueeze(x, a) }", {"y": "FLOAT [y.0, y.1, y.2]"}),
    (12, "(float[N,S] x) => (float[] y) { y = Unsqueeze<axes=[1]>(x) }", {"y": "FLOAT [N, 1, S]"}),
    (17, "(float[N,3] x, float[1] s) => (float[] y) { t = Constant<value_floats=[2.0]>() k = Concat<axis=0>(s, t) y = Resize(x, , k) }", {"k": "FLOAT [2] = None, 2.0", "y": "FLOAT [y.0, 6]"}),
    (17, "(float[N,4] x, float[M,K] z) => (float[] y) { y = Concat<axis=0>(z, x) }", {"y": "FLOAT [M + N, 4]"}),
    (17, "(float[] x) => (float[] y) { y, z = Split<axis=0>(x) }", {"y": "FLOAT ?", "z": "FLOAT ?"}),
    (10, "(float[N,S] x) => (float[] y) { y, m = Dropout(x) }", {"y": "FLOAT [N, S]", "m": "BOOL [N, S]"}),
    (6, "(float[] x, int64[2] r) => (float[] y) { y = Tile(x, r) }", {"y": "FLOAT [y.0, y.1]"}),
    (17, "(float[N,S] x, int64[K] t) => (float[] y) { y = Reshape(x, t) }", {"y": "FLOAT ?"}),
    # ---- products, normalizations, transforms
    (17, "(float[] a, float[4,5] b) => (float[] y) { y = MatMul(a, b) }", {"y": "FLOAT ?"}),
    (17, "(float[N,4] a, float[] b) => (float[] y) { y = MatMul(a, b) }", {"y": "FLOAT ?"}),
    (17, '(float[N,4] x) => (float[] y) { y = Einsum<equation="i?->i">(x) }', {"y": "FLOAT ?"}),
    (17, "(float[] x, float[4] w) => (float[] y) { y, m, v = LayerNormalization(x, w) }", {"y": "FLOAT ?", "m": "FLOAT ?", "v": "FLOAT ?"}),
    (17, "(float[L,N,3] x, float[1,12,3] w, float[] r) => (float[] y) { y, h = LSTM<hidden_size=5>(x, w, r) }", {"y": "FLOAT [L, 1, N, 5]", "h": "FLOAT [1, N, 5]"}),
    (17, "(float[N,4] x, float s, int8 z) => (int8[] y) { y = QuantizeLinear(x, s, z) }", {"y": "INT8 [N, 4]"}),
    (19, "(int8[N,4] x, float16 s) => (float16[] y) { y = DequantizeLinear(x, s) }", {"y": "FLOAT16 [N, 4]"}),
    (17, "(float[N,C,9,9] x, float[N,5,6,2] g) => (float[] y) { y = GridSample(x, g) }", {"y": "FLOAT [N, C, 5, 6]"}),
    (17, "(float[] x, float[N,5,6,2] g) => (float[] y) { y = GridSample(x, g) }", {"y": "FLOAT [y.0, y.1, y.2, y.3]"}),
    (20, "(float[N,2,3] t, int64[4] s) => (float[] y) { y = AffineGrid(t, s) }", {"y": "FLOAT [s[0], s[2], s[3], 2]"}),
    (17, "(float[N,S,1] x, int64[] l) => (float[] y) { y = DFT<onesided=1>(x, l) }", {"y": "FLOAT [N, y.1, 2]"}),
    (17, "(float[N,S,1] x, int64 l) => (float[] y) { y = DFT<onesided=1>(x, l) }", {"y": "FLOAT [N, floor(l[0] / 2) + 1, 2]"}),
    (17, "(float[N,S,2] x) => (float[] y) { l = Constant<value_int=16>() y = DFT<onesided=1,inverse=1>(x, l) }", {"y": "FLOAT [N, 16, 1]"}),
    (17, "(float[N,S,1] x, float[16] w) => (float[] y) { k = Constant<value_int=4>() y = STFT(x, k, w) }", {"y": "FLOAT [N, floor(S / 4) - 3, 9, 2]"}),
    # ---- arithmetic on shapes
    (17, "(float[N,S] x) => (float[] y) { s = Shape(x) p = ReduceProd(s) y = ConstantOfShape(p) }", {"s": "INT64 [2] = N, S", "p": "INT64 [1] = N*S", "y": "FLOAT [N*S]"}),
    (17, "() => (int64[] y) { a = Constant<value_ints=[-7,7]>() b = Constant<value_ints=[2,-2]>() y = Div(a, b) }", {"y": "INT64 [2] = -3, -3"}),
    (17, "() => (int64[] y) { a = Constant<value_ints=[-7,7]>() b = Constant<value_ints=[3,-3]>() y = Mod<fmod=1>(a, b) }", {"y": "INT64 [2] = -1, 1"}),
    (17, "(float[N,S] x) => (int64[] y) { s = Shape(x) e = Constant<value_int=2>() y = Pow(s, e) }", {"s": "INT64 [2] = N, S", "y": "INT64 [2] = N*N, S*S"}),
    (17, "(bool[1] c) => (bool[] y) { t = Constant<value=bool[1] {1}>() y = Or(t, c) z = And(t, c) }", {"y": "BOOL [1] = 1", "z": "BOOL [1] = z[0]"}),
    (17, "() => (int64[] y) { a = Constant<value_ints=[-3,0,3]>() y = Relu(a) z = Sign(a) }", {"y": "INT64 [3] = 0, 0, 3", "z": "INT64 [3] = z[0], 0, 1"}),
    (17, "() => (float[] y) { a = Constant<value_floats=[1.0]>() y = Max(a, a) }", {"y": "FLOAT [1]"}),
    (17, "(float[1] x) => (float[] y) { a = Constant<value_floats=[1.0,2.0]>() c = Concat<axis=0>(x, a) y = Add(c, c) }", {"c": "FLOAT [3] = None, 1.0, 2.0", "y": "FLOAT [3] = None, 2.0, 4.0"}),
    (17, "(float[N,3] x) => (float[] y) { a = Constant<value_ints=[1,2]>() k = Cast<to=1>(a) y = Resize(x, , k) }", {"k": "FLOAT [2] = 1.0, 2.0", "y": "FLOAT [N, 6]"}),
    (17, "(float[N,S] x) => (float[] y) { k = Constant<value_floats=[1.0,0.7]>() y = Resize(x, , k) }", {"y": "FLOAT [N, y.1]"}),
    (17, "(float[N,S] x) => (float[] y) { k = Constant<value_floats=[1.0,5001.0]>() y = Resize(x, , k) }", {"y": "FLOAT [N, y.1]"}),
    (17, "(float[4] x) => (float[] y) { p = Constant<value_ints=[1,1]>() f = Constant<value_float=0.0>() y = Pad(x, p, f) }", {"y": "FLOAT [6]"}),
    # ---- sequences and optionals
    (17, "(seq(float[2,3]) s, int64 i) => (seq(float[]) y) { y = SequenceErase(s, i) }", {"y": "sequence FLOAT [2, 3]"}),
    (17, "(float[N,S,4] x) => (seq(float[]) y) { y = SplitToSequence<axis=1>(x) z = SplitToSequence<axis=1,keepdims=0>(x) }", {"y": "sequence FLOAT [N, 1, 4]", "z": "sequence FLOAT [N, 4]"}),
    (17, "(seq(float[2,3]) s) => (float[] y) { y = ConcatFromSequence<axis=-1,new_axis=1>(s) z = ConcatFromSequence<axis=-1>(s) }", {"y": "FLOAT [2, 3, y.2]", "z": "FLOAT [2, z.1]"}),
    (17, "(float[N] x) => (bool[] y) { o = Optional(x) y = OptionalHasElement(o) }", {"o": "optional FLOAT [N]", "y": "BOOL [] = y[0]"}),
    (18, "() => (bool[] y) { y = OptionalHasElement() }", {"y": "BOOL [] = 0"}),
    # ---- operators with subgraphs
    (17, "(float[N,4] x) => (float[] y) { y = com.microsoft.Strange() <body = b (float v) => (float[] w) { w = Relu(x) }> }", {"y": "? ?", "v": "? ?", "w": "FLOAT [N, 4]"}),
    (17, "(float[N,4] x) => (float[] y) { k = Constant<value_int=3>() y = Loop(k) <body = b (int64 i, bool c) => (bool d, float[] w) { d = Constant<value=bool {1}>() w = Relu(x) }> }", {"y": "FLOAT [3, N, 4]", "i": "INT64 [] = y.body / i[0]", "c": "BOOL [] = 1", "w": "FLOAT [N, 4]"}),
    (17, "(float[N,4] x) => (float[] y) { k = Constant<value_int=3>() t = Constant<value=bool {1}>() y = Loop(k, t) <body = b (int64 i, bool c) => (bool d, float[] w) { m = ReduceSum<keepdims=0>(x) z = Constant<value_float=0.0>() d = Less(m, z) w = Relu(x) }> }", {"y": "FLOAT ?", "i": "INT64 [] = y.body / i[0]", "c": "BOOL [] = 1", "m": "FLOAT []", "d": "BOOL [] = y.body / d[0]", "w": "FLOAT [N, 4]"}),
    (17, "(int64 k) => (int64[] y) { t = Constant<value=bool {1}>() y = Loop(k, t) <body = b (int64[1] i, bool[1] c) => (bool d, int64[] w) { d = Identity(c) w = Identity(i) }> }", {"y": "INT64 ?", "i": "INT64 ?", "c": "BOOL ?", "d": "BOOL ?", "w": "INT64 ?"}),
    (17, "(int64 k, float[3] f) => (float[] y) { t = Constant<value=bool {1}>() a = Constant<value_ints=[2,3]>() b = Constant<value_floats=[2.0]>() p, q = Loop(k, t, a, b) <body = b (int64 i, bool c, int64[2] v, float[1] u) => (bool d, int64[] w, float[] r) { d = Identity(c) w = Identity(v) r = Identity(u) }> y = ConstantOfShape(p) z = Resize(f, , q) }", {"p": "INT64 [2] = 2, 3", "q": "FLOAT [1] = 2.0", "y": "FLOAT [2, 3] = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0", "z": "FLOAT [6]", "i": "INT64 [] = p.body / i[0]", "c": "BOOL [] = 1", "v": "INT64 [2] = 2, 3", "u": "FLOAT [1] = 2.0", "d": "BOOL [] = 1", "w": "INT64 [2] = 2, 3", "r": "FLOAT [1] = 2.0"}),
    (17, "(int64 k) => (float[] y) { t = Constant<value=bool {1}>() a = Constant<value_ints=[2]>() y = Loop(k, t, a) <body = b (int64 i, bool c, int64[1] v) => (bool d, int64[] w) { d = Identity(c) w = Add(v, v) inside = ConstantOfShape(v) }> }", {"y": "INT64 [1] = y[0]", "i": "INT64 [] = y.body / i[0]", "c": "BOOL [] = 1", "v": "INT64 [1] = y.body / v[0]", "d": "BOOL [] = 1", "w": "INT64 [1] = y.body / w[0]", "inside": "FLOAT [y.body / v[0]]"}),
    (17, "(float[2] x, int64 k) => (float[] y) { t = Constant<value=bool {1}>() y = Loop(k, t, x) <body = b (int64 i, bool c, float[] v) => (bool d, float[] w) { d = Identity(c) z = Constant<value_ints=[0]>() w = Unsqueeze(v, z) }> }", {"v": "FLOAT ?", "y": "FLOAT ?"}),
    (8, "(float[1,3,4] x) => (float[] y) { y = Scan<num_scan_inputs=1, body = b (float[4] v) => (float[4] w) { w = Relu(v) }>( , x) }", {"y": "? ?", "v": "? ?", "w": "? ?"}),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(SAID)))
def test_what_is_said(case: int) -> None:
    opset, text, expected = SAID[case]
    found = described(text, opset)
    assert {name: found[name] for name in expected} == expected


# ---- arithmetic on dimensions


N, S = symbol("N"), symbol("S")


# ---- names


def test_dimensions_called_by_a_question_mark_have_nothing_in_common() -> None:
    node = helper.make_node("Add", ["a", "b"], ["y"])
    model = Model(of_nodes([node], floats(a=["?"], b=["?"]), floats(y=None), opset=17))
    shapes = Shapes(model)
    assert [str(*shapes.shape(value) or ()) for value in model.main.inputs] == ["a.0", "b.0"]


# ---- bounds of the work


SHIFTED = """g (float[2] x, int64 k) => (float[] y) { t = Constant<value=bool {1}>()
    a1, a2, a3, a4, a5, a6, a7, a8, y = Loop(k, t, x, x, x, x, x, x, x, x, x) <body = b
        (int64 i, bool c, float[] v1, float[] v2, float[] v3, float[] v4, float[] v5, float[] v6, float[] v7, float[] v8, float[] v9)
        => (bool d, float[] w1, float[] w2, float[] w3, float[] w4, float[] w5, float[] w6, float[] w7, float[] w8, float[] w9) {
        d = Identity(c) w1 = Concat<axis=0>(v1, v1) w2 = Identity(v1) w3 = Identity(v2) w4 = Identity(v3) w5 = Identity(v4)
        w6 = Identity(v5) w7 = Identity(v6) w8 = Identity(v7) w9 = Identity(v8) }> }"""


def test_what_changes_only_after_many_iterations_is_forgotten() -> None:
    found = described(SHIFTED.removeprefix("g "), 17)
    assert {found[f"v{i}"] for i in range(1, 10)} == {"FLOAT ?"}
    assert found["y"] == "FLOAT ?"


def test_a_walk_without_budget_ends_and_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """(float[N,4] x, bool c) => (float[] y) { y = If(c)
        <then_branch = t () => (float[] a) { a = Relu(x) }, else_branch = e () => (float[] b) { b = Abs(x) }> }"""
    assert described(text, 17)["y"] == "FLOAT [N, 4]"
    monkeypatch.setattr(propagate, "BUDGET_BASE", 0)
    monkeypatch.setattr(propagate, "BUDGET_PER_NODE", 0)
    found = described(text, 17)
    assert [found[name] for name in "yab"] == ["? ?", "? ?", "? ?"]
