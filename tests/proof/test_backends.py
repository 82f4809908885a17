"""ONNX Runtime and the reference evaluator, behind one interface, with every element type."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from onnxfix.proof.compare.compare import identical
from onnxfix.runtime import backends
from onnxfix.runtime.backends import ort
from support.models import model, write

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
