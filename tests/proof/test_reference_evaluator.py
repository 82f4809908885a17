"""Operators that onnx's own evaluator gets wrong, against ONNX Runtime; both behind one interface, with every element
type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from onnxfix.proof.compare.compare import identical
from onnxfix.runtime import backends
from onnxfix.runtime.backends import ort
from support.models import model, write


def outputs(
    folder: Path, backend: str, op_type: str, arrays: dict[str, Any], opset: int, **attributes: Any
) -> Any:
    """What a backend computes in one node that reads these arrays."""
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
    ]
    node = helper.make_node(op_type, list(arrays), ["y"], **attributes)
    graph = helper.make_graph([node], "g", infos, [ValueInfoProto(name="y")])
    path = folder / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    [found] = backends.load(backend, str(path)).run(arrays)
    return found


def both(
    folder: Path, op_type: str, arrays: dict[str, Any], opset: int = 17, **attributes: Any
) -> tuple[Any, Any]:
    """What the evaluator computes, and ONNX Runtime."""
    found, expected = (
        outputs(folder, backend, op_type, arrays, opset, **attributes) for backend in ("reference", "ort-cpu")
    )
    assert found.dtype == expected.dtype
    return found, expected


def drawn(shapes: dict[str, list[int]], dtype: Any = np.float32) -> dict[str, Any]:
    random = np.random.default_rng(3)
    return {name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"strides": [2, 2], "output_shape": [10, 12]},
        {"strides": [2, 2], "output_shape": [10, 12], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "output_shape": [10, 12], "auto_pad": "SAME_LOWER"},
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "auto_pad": "SAME_LOWER", "output_padding": [1, 1]},
        {"strides": [2, 2], "auto_pad": "VALID", "output_padding": [1, 0]},
        {"strides": [3, 2], "pads": [1, 0, 2, 1], "output_padding": [1, 1]},
        {"dilations": [2, 2], "pads": [1, 1, 0, 2]},
        {"strides": [2, 3], "dilations": [2, 1], "output_padding": [1, 2]},
    ],
)
def test_conv_transpose(tmp_path: Path, attributes: dict[str, Any], groups: int) -> None:
    arrays = drawn({"x": [2, 4, 5, 6], "w": [4, 3, 3, 3], "b": [3 * groups]})
    found, expected = both(tmp_path, "ConvTranspose", arrays, group=groups, **attributes)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_conv_transpose_of_one_axis(tmp_path: Path) -> None:
    arrays = drawn({"x": [2, 4, 5], "w": [4, 3, 3], "b": [3]})
    found, expected = both(tmp_path, "ConvTranspose", arrays, strides=[2], output_shape=[10])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dtype", "step"), [(np.float16, 2.0**-10), (ml_dtypes.bfloat16, 2.0**-7)])
def test_narrow_conv_transpose_sums_in_float(tmp_path: Path, dtype: Any, step: float) -> None:
    """64 channels, whose partial sums would lose digits; numpy's einsum knows no bfloat16."""
    arrays = drawn({"x": [1, 64, 3, 3], "w": [64, 2, 2, 2], "b": [2]}, dtype)
    wide = {name: array.astype(np.float32) for name, array in arrays.items()}
    found = outputs(tmp_path, "reference", "ConvTranspose", arrays, 22, strides=[2, 2])
    exact = outputs(tmp_path, "ort-cpu", "ConvTranspose", wide, 21, strides=[2, 2])
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype(np.float32), exact, rtol=step, atol=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("op_type", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
@pytest.mark.parametrize("ignored", [-1, 2, None])
def test_losses(tmp_path: Path, op_type: str, reduction: str, weighted: bool, ignored: int | None) -> None:
    """A mean is over what is not ignored, -1 included."""
    random = np.random.default_rng(5)
    arrays = {"x": random.standard_normal((2, 3, 4)).astype(np.float32), "t": random.integers(0, 3, (2, 4))}
    attributes: dict[str, Any] = {"reduction": reduction}
    if ignored is not None:
        arrays["t"][0, :2] = attributes["ignore_index"] = ignored
    if weighted:
        arrays["w"] = np.array([0.5, 2, 3], np.float32)
    found, expected = both(tmp_path, op_type, arrays, 13, **attributes)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("zero", [0, 1, 7])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("op", ["QLinearMatMul", "QLinearConv"])
def test_sums_in_the_middle_between_two_steps_are_rounded_before_they_are_moved(
    tmp_path: Path, op: str, kind: Any, zero: int
) -> None:
    """Of every sum the half: ONNX rounds that to even, whatever the zero point is."""
    x = np.arange(-8 if kind is np.int8 else 0, 8, dtype=kind)
    shape, ones = ([1, 1, 4, -1], [1, 1, 1, 1]) if op == "QLinearConv" else ([-1, 1], [1, 1])
    arrays = {
        "x": x.reshape(shape), "xs": np.array(0.5, np.float32), "xz": np.array(0, kind),
        "w": np.ones(ones, kind), "ws": np.array(1.0, np.float32), "wz": np.array(0, kind),
        "ys": np.array(1.0, np.float32), "yz": np.array(zero, kind),
    }  # fmt: skip
    found, expected = both(tmp_path, op, arrays)
    ends = np.iinfo(kind)
    wanted = np.clip(np.rint(arrays["x"] * 0.5) + zero, ends.min, ends.max)
    assert np.array_equal(found, wanted.astype(kind))
    assert np.array_equal(found, expected)


def test_a_scale_and_a_zero_point_for_each_filter(tmp_path: Path) -> None:
    """Weights of 7 bits: ONNX Runtime's kernels for larger ones add in int16 on some processors, and saturate."""
    rng = np.random.default_rng(2)
    arrays = {
        "x": rng.integers(0, 256, (2, 4, 5, 6)).astype(np.uint8), "xs": np.array(0.03, np.float32),
        "xz": np.array(121, np.uint8), "w": rng.integers(-64, 64, (6, 2, 3, 3)).astype(np.int8),
        "ws": rng.uniform(0.01, 0.05, 6).astype(np.float32), "wz": np.zeros(6, np.int8),
        "ys": np.array(0.4, np.float32), "yz": np.array(3, np.uint8),
        "b": rng.integers(-99, 99, 6).astype(np.int32),
    }  # fmt: skip
    found, expected = both(tmp_path, "QLinearConv", arrays, group=2, pads=[1, 0, 1, 2], strides=[2, 1])
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
    assert np.mean(found != expected) < 0.02
    assert len(np.unique(found)) > 40


def test_zero_points_for_each_row_of_the_data(tmp_path: Path) -> None:
    """Onnx's own kernel takes them for those of columns; the matrix is square, so that nothing else shows it."""
    x, w = np.array([[9, 10], [20, 30]], np.uint8), np.array([[1, 2], [3, 4]], np.int8)
    text = """
        g (uint8[2,2] x, int8[2,2] w) => (int32[2,2] y, uint8[2,2] z)
          <uint8[2] a = {7, 8}, float[2] s = {1, 0.5}, float one = {1}, int8 o = {0}, uint8 u = {0}>
          { y = MatMulInteger(x, w, a)  z = QLinearMatMul(x, s, a, w, one, o, one, u) }"""
    path = str(write(tmp_path / "m.onnx", text, 21))
    y, z = backends.load("reference", path).run({"x": x, "w": w})
    rows = (x.astype(int) - [[7], [8]]) @ w.astype(int)
    assert y.dtype == np.int32
    assert np.array_equal(y, rows)
    assert np.array_equal(z, np.rint(rows * [[1], [0.5]]))


def test_an_output_that_is_left_out_is_no_input_of_later_nodes(tmp_path: Path) -> None:
    """Of a pool's index, which is 0, onnx's own evaluator makes the Loop's condition."""
    text = """
        g (float[2] x, float[1,1,1] p) => (float[2] y, float[1,1,1] m) <int64 n = {3}> {
          m, "" = MaxPool<kernel_shape = [1]>(p)
          y = Loop(n, "", x)<body = l (int64 i, bool on, float[2] s) => (bool go, float[2] t)
            <float one = {1}> { go = Identity(on)  t = Add(s, one) }> }"""
    path = str(write(tmp_path / "m.onnx", text, 21))
    feed = {"x": np.zeros(2, np.float32), "p": np.zeros((1, 1, 1), np.float32)}
    found, _ = backends.load("reference", path).run(feed)
    expected, _ = backends.load("ort-cpu", path).run(feed)
    assert np.array_equal(found, expected)
    assert found.tolist() == [3, 3]


def test_a_target_that_does_not_fit_its_scores_is_an_error(tmp_path: Path) -> None:
    text = """
        g (float[1,3,5] x, int64[1,D] t) => (float[1,E] y) {
          y = NegativeLogLikelihoodLoss<reduction = "none">(x, t) }"""
    path = str(write(tmp_path / "m.onnx", text, 21))
    session = backends.load("reference", path)
    x = np.ones((1, 3, 5), np.float32)
    assert session.run({"x": x, "t": np.zeros((1, 5), np.int64)})[0].shape == (1, 5)
    with pytest.raises(ValueError, match="does not fit"):
        session.run({"x": x, "t": np.zeros((1, 1), np.int64)})


@pytest.mark.parametrize("attributes", [{}, {"pads": [1, 1, 0, 0]}, {"strides": [2, 1]}])
def test_indices_of_a_max_pool_count_through_the_whole_tensor(
    tmp_path: Path, attributes: dict[str, Any]
) -> None:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3, 4, 5])
    node = helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2], **attributes)
    graph = helper.make_graph([node], "g", [x], [ValueInfoProto(name="y"), ValueInfoProto(name="i")])
    path = write(tmp_path / "m.onnx", helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    arrays = drawn({"x": [2, 3, 4, 5]})
    found, expected = (backends.load(name, str(path)).run(arrays) for name in ("reference", "ort-cpu"))
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_a_mean_over_nothing_is_zero(tmp_path: Path, shape: tuple[int, int], opset: int) -> None:
    found, expected = both(tmp_path, "ReduceMean", {"x": np.zeros(shape, np.float32)}, opset)
    np.testing.assert_array_equal(found, expected)


BOTH = ["ort-cpu", "reference"]


def session_of(folder: Path, backend: str, model: ModelProto | str, opset: int = 21) -> backends.Session:
    """A session of a model, or of one from text."""
    return backends.load(backend, str(write(folder / "m.onnx", model, opset)))


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize(
    "name", ["FLOAT", "FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT64", "BOOL", "STRING"]
)
def test_types_pass_through(tmp_path: Path, backend: str, name: str) -> None:
    kind = name.lower()
    value = np.array(["a", "b", ""], object) if name == "STRING" else np.array([1, 0, 1])
    if name != "STRING":
        value = value.astype(helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(name)))
    session = session_of(tmp_path, backend, f"g ({kind}[N] x) => ({kind}[N] y) {{ y = Identity(x) }}")
    (found,) = session.run({"x": value})
    assert session.outputs == ["y"]
    assert identical(value, found)
    if name != "STRING":
        assert found.dtype == value.dtype
        assert identical(value[:0], session.run({"x": value[:0]})[0])


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize(("name", "least"), [("INT4", -8), ("UINT4", 0)])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_four_bits_in(tmp_path: Path, backend: str, name: str, least: int, count: int) -> None:
    text = f"g ({name.lower()}[N] x, float s) => (float[N] y) {{ y = DequantizeLinear(x, s) }}"
    kind = helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(name))
    value = np.array([least, least + 15, 1, 2, 3][:count]).astype(kind)
    (found,) = session_of(tmp_path, backend, text).run({"x": value, "s": np.array(1.0, np.float32)})
    assert found.tolist() == [float(item) for item in value]


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize(("name", "wanted"), [("INT4", [7, -8, 3, 0, 7]), ("UINT4", [7, 0, 3, 0, 15])])
def test_four_bits_out(tmp_path: Path, backend: str, name: str, wanted: list[int]) -> None:
    kind = TensorProto.DataType.Value(name)
    text = f"g (float[N] x, float s) => ({name.lower()}[N] y) {{ y = QuantizeLinear<output_dtype = {kind}>(x, s) }}"
    feed = {"x": np.array([7, -8, 3, 0, 15], np.float32), "s": np.array(1.0, np.float32)}
    (found,) = session_of(tmp_path, backend, text).run(feed)
    assert found.dtype == helper.tensor_dtype_to_np_dtype(kind)
    assert [int(item) for item in found] == wanted


@given(bits=st.sampled_from([2, 4]), signed=st.booleans(), data=st.data())
def test_packing_round_trips(bits: int, signed: bool, data: st.DataObject) -> None:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    values = np.array(data.draw(st.lists(st.integers(low, high), max_size=9)), np.int8)
    packed = ort.pack(values, bits)
    assert len(packed) == -(-len(values) * bits // 8)
    assert ort._unpack(packed, len(values), bits, signed).astype(np.int8).tolist() == values.tolist()


def test_mixed_inputs_and_outputs(tmp_path: Path) -> None:
    """What numpy has no type for beside strings and sequences, in one call."""
    text = """g (seq(float[N]) q, bfloat16[2] b, string[1] s) => (seq(float[N]) r, float[2] c, string[1] t)
        { r = Identity(q) c = Cast<to = 1>(b) t = Identity(s) }"""
    several = [np.ones(3, np.float32)]
    feed = {"b": np.array([1, 2], ml_dtypes.bfloat16), "s": np.array(["a"], object)}
    sequence, cast, string = session_of(tmp_path, "ort-cpu", text).run({"q": several, **feed})
    assert (sequence[0].tolist(), cast.tolist(), string.tolist()) == ([1, 1, 1], [1, 2], ["a"])
    text = (
        "g (string[1] s, bfloat16[2] b) => (bfloat16[2] c, string[1] t) { c = Identity(b) t = Identity(s) }"
    )
    with pytest.raises(backends.Unsupported, match=r"cannot return tensor\(bfloat16\)"):
        session_of(tmp_path, "ort-cpu", text).run(feed)


@pytest.mark.parametrize("backend", BOTH)
def test_sequences_optionals_and_several_outputs(tmp_path: Path, backend: str) -> None:
    text = "g (seq(float[N]) x) => (int64 n, seq(float[N]) y) { n = SequenceLength(x) y = Identity(x) }"
    length, same = session_of(tmp_path, backend, text).run({"x": [np.ones(2, np.float32)] * 3})
    assert (int(length), len(same)) == (3, 3)
    text = "g (optional(float[2]) x) => (bool h) { h = OptionalHasElement(x) }"
    session = session_of(tmp_path, backend, text, 18)
    there = [session.run({"x": value})[0] for value in (None, np.ones(2, np.float32))]
    assert [bool(np.asarray(one)) for one in there] == [False, True]


def test_ort_optimizes_nothing(tmp_path: Path) -> None:
    """Pad then MaxPool: ORT's optimizer fuses them and fills with -inf instead of 0."""
    text = """g (float[1, 1, 2, 2] x) => (float[1, 1, A, B] y) {
        p = Constant<value = int64[8] {0, 0, 1, 1, 0, 0, 1, 1}>()
        q = Pad(x, p)
        y = MaxPool<kernel_shape = [2, 2]>(q) }"""
    value = np.full((1, 1, 2, 2), -1.0, np.float32)
    found = [session_of(tmp_path, name, text).run({"x": value})[0] for name in BOTH]
    assert found[0][0, 0, 0, 0] == 0
    assert identical(found[0], found[1])


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("shape", [(), (2,), (1, 2), (2, 2)])
def test_scan_outputs_are_stacked_along_a_new_axis(
    backend: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    """onnx's own evaluator puts them behind each other along their first axis, and gives scalars a second one."""
    dims = f"[{','.join(map(str, shape))}]" if shape else ""
    made = model(
        f"""g (float{dims} x, int64 n) => (float{dims} s, float y) {{
        s, y = Loop(n, , x) <body = b (int64 i, bool c, float{dims} v) => (bool d, float{dims} w, float{dims} r) {{
            d = Identity(c) w = Add(v, x) r = Neg(v) }}> }}""",
        17,
    )
    for _ in range(len(shape) + 1):
        made.graph.output[1].type.tensor_type.shape.dim.add()
    x = np.ones(shape, np.float32)
    last, rows = session_of(tmp_path, backend, made).run({"x": x, "n": np.array(3, np.int64)})
    np.testing.assert_array_equal(last, 4 * x)
    np.testing.assert_array_equal(rows, np.stack([-x, -2 * x, -3 * x]))


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize(
    ("opset", "call"), [(13, "ReduceSumSquare<axes = [1]>(x)"), (18, "ReduceSumSquare(x, a)")]
)
def test_a_sum_of_squares_has_the_type_of_its_input(
    backend: str, opset: int, call: str, tmp_path: Path
) -> None:
    """onnx's own evaluator gives int64 for int32."""
    text = f"g (int32[2,2] x) => (int32[2,1] y) <int64[1] a = {{1}}> {{ y = {call} }}"
    (y,) = session_of(tmp_path, backend, text, opset).run({"x": np.array([[3, 4], [-5, 12]], np.int32)})
    assert y.dtype == np.int32
    assert y.tolist() == [[25], [169]]


@pytest.mark.parametrize("backend", BOTH)
def test_a_loop_without_a_condition_runs_as_often_as_it_says(backend: str, tmp_path: Path) -> None:
    """onnx's own evaluator runs it zero times; in a branch, another evaluator of the same kind is at work."""
    body = "body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) { d = Identity(c) w = Add(v, x) }"
    text = f"""g (float[2] x, int64 n, bool k) => (float[2] y, float[2] z) {{
        y = Loop(n, , x) <{body}>
        z = If(k)<then_branch = t () => (float[2] p) {{ p = Loop(n, , x) <{body}> }},
                  else_branch = e () => (float[2] q) {{ q = Neg(x) }}> }}"""
    x, n, k = np.array([1, 2], np.float32), np.array(3, np.int64), np.array(True)
    for value in session_of(tmp_path, backend, text, 17).run({"x": x, "n": n, "k": k}):
        np.testing.assert_array_equal(value, 4 * x)
