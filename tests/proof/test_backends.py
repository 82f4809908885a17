"""ONNX Runtime and the reference evaluator, behind one interface, with every element type."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, parser

from onnxfix.files import walk
from onnxfix.proof.compare.compare import identical
from onnxfix.runtime import backends
from onnxfix.runtime.backends import ort, reference

BOTH = ["ort-cpu", "reference"]


def save(folder: Path, model: onnx.ModelProto | str, name: str = "m.onnx") -> str:
    proto = parser.parse_model(model) if isinstance(model, str) else model
    onnx.save(proto, folder / name)
    return str(folder / name)


def passing(elem: int, op: str = "Identity", **attributes: Any) -> onnx.ModelProto:
    """x -> Identity -> y, for one element type."""
    tensor = helper.make_tensor_value_info
    node = helper.make_node(op, ["x"], ["y"], **attributes)
    to = attributes.get("to", elem)
    graph = helper.make_graph([node], "g", [tensor("x", elem, ["N"])], [tensor("y", to, ["N"])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def words(text: str) -> str:
    return f'<ir_version: 10, opset_import: ["": 21]>\n{text}'


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize(
    "name", ["FLOAT", "FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT64", "BOOL", "STRING"]
)
def test_types_pass_through(tmp_path: Path, backend: str, name: str) -> None:
    elem = TensorProto.DataType.Value(name)
    path = save(tmp_path, passing(elem))
    value = np.array(["a", "b", ""], object) if name == "STRING" else np.array([1, 0, 1])
    if name != "STRING":
        value = value.astype(helper.tensor_dtype_to_np_dtype(elem))
    session = backends.load(backend, path)
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
    path = save(
        tmp_path, words(f"g ({name.lower()}[N] x, float s) => (float[N] y) {{ y = DequantizeLinear(x, s) }}")
    )
    elem = TensorProto.DataType.Value(name)
    value = np.array([least, least + 15, 1, 2, 3][:count]).astype(helper.tensor_dtype_to_np_dtype(elem))
    (found,) = backends.load(backend, path).run({"x": value, "s": np.array(1.0, np.float32)})
    assert found.tolist() == [float(item) for item in value]


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("name", ["INT4", "UINT4"])
def test_four_bits_out(tmp_path: Path, backend: str, name: str) -> None:
    elem = TensorProto.DataType.Value(name)
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])],
        "g",
        [tensor("x", 1, ["N"])],
        [tensor("y", elem, ["N"])],
        [helper.make_tensor("s", 1, [], [1.0]), helper.make_tensor("z", elem, [], [0])],
    )
    path = save(
        tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    )
    (found,) = backends.load(backend, path).run({"x": np.array([7, -8, 3, 0, 15], np.float32)})
    assert found.dtype == helper.tensor_dtype_to_np_dtype(elem)
    assert [int(item) for item in found] == ([7, -8, 3, 0, 7] if name == "INT4" else [7, 0, 3, 0, 15])


@given(bits=st.sampled_from([2, 4]), signed=st.booleans(), data=st.data())
def test_packing_round_trips(bits: int, signed: bool, data: st.DataObject) -> None:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    values = np.array(data.draw(st.lists(st.integers(low, high), max_size=9)), np.int8)
    packed = ort.pack(values, bits)
    assert len(packed) == -(-len(values) * bits // 8)
    assert ort._unpack(packed, len(values), bits, signed).astype(np.int8).tolist() == values.tolist()


def test_mixed_inputs_and_outputs(tmp_path: Path) -> None:
    """What numpy has no type for beside strings and sequences, in one call."""
    path = save(
        tmp_path,
        words(
            """g (seq(float[N]) q, bfloat16[2] b, string[1] s) => (seq(float[N]) r, float[2] c, string[1] t)
            { r = Identity(q) c = Cast<to = 1>(b) t = Identity(s) }"""
        ),
    )
    import ml_dtypes

    feed = {
        "q": [np.ones(3, np.float32)],
        "b": np.array([1, 2], ml_dtypes.bfloat16),
        "s": np.array(["a"], object),
    }
    sequence, cast, string = ort.load(path).run(feed)
    assert sequence[0].tolist() == [1, 1, 1]
    assert cast.tolist() == [1, 2]
    assert string.tolist() == ["a"]
    both = save(
        tmp_path,
        words(
            "g (string[1] s, bfloat16[2] b) => (bfloat16[2] c, string[1] t) { c = Identity(b) t = Identity(s) }"
        ),
    )
    with pytest.raises(backends.Unsupported, match=r"cannot return tensor\(bfloat16\)"):
        ort.load(both).run({"s": feed["s"], "b": feed["b"]})


@pytest.mark.parametrize("backend", BOTH)
def test_sequences_optionals_and_several_outputs(tmp_path: Path, backend: str) -> None:
    path = save(
        tmp_path,
        words("g (seq(float[N]) x) => (int64 n, seq(float[N]) y) { n = SequenceLength(x) y = Identity(x) }"),
    )
    session = backends.load(backend, path)
    length, same = session.run({"x": [np.ones(2, np.float32)] * 3})
    assert (int(length), len(same)) == (3, 3)
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(1, [2]))
    graph = helper.make_graph(
        [helper.make_node("OptionalHasElement", ["x"], ["h"])],
        "g",
        [helper.make_value_info("x", optional)],
        [helper.make_tensor_value_info("h", 9, [])],
    )
    session = backends.load(
        backend,
        save(tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)),
    )
    assert [bool(np.asarray(session.run({"x": value})[0])) for value in (None, np.ones(2, np.float32))] == [
        False,
        True,
    ]


@pytest.mark.parametrize("backend", BOTH)
def test_external_data_is_found_from_anywhere(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = parser.parse_model(
        words("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    )
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array([1, 2], np.float32), "w"))
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert (tmp_path / "model" / "w.bin").exists()
    monkeypatch.chdir("/")
    assert backends.load(backend, str(path)).run({"x": np.zeros(2, np.float32)})[0].tolist() == [1, 2]


@pytest.mark.parametrize("backend", BOTH)
def test_overridable_initializers(tmp_path: Path, backend: str) -> None:
    path = save(tmp_path, words("g (float[2] x, float[2] w = {1, 2}) => (float[2] y) { y = Add(x, w) }"))
    session = backends.load(backend, path)
    assert session.run({"x": np.ones(2, np.float32), "w": np.zeros(2, np.float32)})[0].tolist() == [1, 1]


def test_ort_optimizes_nothing(tmp_path: Path) -> None:
    """Pad then MaxPool: ORT's optimizer fuses them and fills with -inf instead of 0."""
    path = save(
        tmp_path,
        words(
            """g (float[1, 1, 2, 2] x) => (float[1, 1, A, B] y) {
            p = Constant<value = int64[8] {0, 0, 1, 1, 0, 0, 1, 1}>()
            q = Pad(x, p)
            y = MaxPool<kernel_shape = [2, 2]>(q) }"""
        ),
    )
    value = np.full((1, 1, 2, 2), -1.0, np.float32)
    found = [backends.load(name, path).run({"x": value})[0] for name in BOTH]
    assert found[0][0, 0, 0, 0] == 0
    assert identical(found[0], found[1])


def test_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backends.missing("ort-cpu") is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert backends.missing("ort-cpu") == 'onnxruntime is not installed: pip install "onnxfix[cpu]"'
    assert backends.missing("reference") is None


def test_asking_imports_nothing_heavy() -> None:
    code = (
        "import sys; from onnxfix.runtime import backends; [backends.missing(n) for n in backends.BACKENDS];"
        "print([m for m in ('onnxruntime', 'onnx.reference') if m in sys.modules])"
    )
    root = Path(backends.__file__).resolve().parents[3]
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert run.stdout.strip() == "[]"


def test_feasibility_of_the_reference() -> None:
    small = parser.parse_model(words("g (float[N] x) => (float[N] y) { y = Add(x, x) }"))
    assert reference.infeasible(small, 1000) is None
    reason = reference.infeasible(small, 10**10)
    assert reason is not None
    assert "too large for onnx.reference (1 nodes" in reason
    weights = TensorProto(name="w", data_type=1, dims=[30_000, 30_000])
    small.graph.initializer.append(weights)
    assert "900,000,000 weights" in (reference.infeasible(small, 1) or "")


def test_nodes_are_found_everywhere() -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21, "my": 1]>
        g (bool c, float[2] x) => (float[2] y) {
          y = If(c)<then_branch = t () => (float[2] a) { a = my.f(x) },
          else_branch = e () => (float[2] b) { b = Neg(x) }>
        }
        <domain: "my", opset_import: ["": 21]> f (x) => (y) { y = Abs(x) }"""
    )
    assert sorted(node.op_type for node in walk.model_nodes(model)) == ["Abs", "If", "Neg", "f"]


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("shape", [(), (2,), (1, 2), (2, 2)])
def test_scan_outputs_are_stacked_along_a_new_axis(
    backend: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    """onnx's own evaluator puts them behind each other along their first axis, and gives scalars a second one."""
    dims = f"[{','.join(map(str, shape))}]" if shape else ""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float{dims} x, int64 n) => (float{dims} s, float y) {{
        s, y = Loop(n, , x) <body = b (int64 i, bool c, float{dims} v) => (bool d, float{dims} w, float{dims} r) {{
            d = Identity(c) w = Add(v, x) r = Neg(v) }}> }}"""
    proto = parser.parse_model(text)
    for _ in range(len(shape) + 1):
        proto.graph.output[1].type.tensor_type.shape.dim.add()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    x = np.ones(shape, np.float32)
    last, rows = backends.load(backend, str(path)).run({"x": x, "n": np.array(3, np.int64)})
    np.testing.assert_array_equal(last, 4 * x)
    np.testing.assert_array_equal(rows, np.stack([-x, -2 * x, -3 * x]))


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("opset", [13, 18])
def test_a_sum_of_squares_has_the_type_of_its_input(backend: str, opset: int, tmp_path: Path) -> None:
    """onnx's own evaluator gives int64 for int32."""
    call = "ReduceSumSquare<axes = [1]>(x)" if opset < 18 else "ReduceSumSquare(x, a)"
    text = f"""<ir_version: 8, opset_import: ["": {opset}]> g (int32[2,2] x) => (int32[2,1] y)
        <int64[1] a = {{1}}> {{ y = {call} }}"""
    path = tmp_path / "m.onnx"
    path.write_bytes(parser.parse_model(text).SerializeToString())
    (y,) = backends.load(backend, str(path)).run({"x": np.array([[3, 4], [-5, 12]], np.int32)})
    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, np.array([[25], [169]], np.int32))


@pytest.mark.parametrize("backend", BOTH)
def test_a_loop_without_a_condition_runs_as_often_as_it_says(backend: str, tmp_path: Path) -> None:
    """onnx's own evaluator runs it zero times; in a branch, another evaluator of the same kind is at work."""
    body = "body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) { d = Identity(c) w = Add(v, x) }"
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[2] x, int64 n, bool k) => (float[2] y, float[2] z) {{
        y = Loop(n, , x) <{body}>
        z = If(k)<then_branch = t () => (float[2] p) {{ p = Loop(n, , x) <{body}> }},
                  else_branch = e () => (float[2] q) {{ q = Neg(x) }}> }}"""
    path = tmp_path / "m.onnx"
    path.write_bytes(parser.parse_model(text).SerializeToString())
    x, n, k = np.array([1, 2], np.float32), np.array(3, np.int64), np.array(True)
    for value in backends.load(backend, str(path)).run({"x": x, "n": n, "k": k}):
        np.testing.assert_array_equal(value, 4 * x)
