"""``precision`` inside If, Loop and Scan, in local functions and beside sequences, in every operator set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx_cases import onnx_cases

import onnxfix
from onnxfix.files import walk
from onnxfix.lowering.convert import between_casts
from onnxfix.lowering.lowered import apart_by_name
from onnxfix.lowering.records import Lowering
from onnxfix.model import Model
from support import ort
from support.models import model
from support.paths import FIXTURES

RNG = np.random.default_rng(3)
W, V = (np.eye(16, dtype=np.float32) + RNG.normal(size=(2, 16, 16)).astype(np.float32) / 8).astype(np.float32)
X = RNG.normal(size=(4, 16)).astype(np.float32)

IF = """g (float[4,16] x, bool p) => (float[4,16] y) {
  h = MatMul(x, w)
  z = If(p) <then_branch = t () => (float[4,16] r) { a = MatMul(h, v)  b = Tanh(a)  r = MatMul(b, w) },
             else_branch = e () => (float[4,16] r) { a = Sigmoid(h)  r = MatMul(a, v) }>
  y = MatMul(z, v) }"""
LOOP = """g (float[4,16] x, int64 n) => (float[4,16] y, float[n,4,16] all) <bool on = {1}> {
  y, all = Loop(n, on, x) <body = b (int64 i, bool c, float[4,16] s) => (bool d, float[4,16] t, float[4,16] o) {
    d = Identity(c)  p = MatMul(s, w)  q = Tanh(p)  u = MatMul(q, v)  t = Tanh(u)  o = MatMul(t, w) }> }"""
SCAN = """g (float[4,16] x, float[5,4,16] z) => (float[4,16] y, float[5,4,16] all) {
  y, all = Scan(x, z) <num_scan_inputs = 1, body = b (float[4,16] s, float[4,16] k) => (float[4,16] t, float[4,16] o) {
    p = MatMul(s, w)  q = Add(p, k)  t = Tanh(q)  o = MatMul(t, v) }> }"""
FEEDS: Mapping[str, Mapping[str, np.ndarray]] = {
    IF: {"x": X, "p": np.array(False)},
    LOOP: {"x": X, "n": np.array(6)},
    SCAN: {"x": X, "z": RNG.normal(size=(5, 4, 16)).astype(np.float32)},
}


def _lower(
    made: onnx.ModelProto, path: Path, budget: float = 1e-2, **more: object
) -> tuple[Lowering, onnx.ModelProto]:
    found = onnxfix.precision(made, "fp16", budget, path / "low.onnx", rungs=("contract",), **more)  # type: ignore[arg-type]
    assert found.status == "written", found
    assert {name: status for name, status, _ in found.checks}["ort-cpu"] == "passed"
    low = onnx.load(path / "low.onnx")
    onnx.checker.check_model(low, full_check=True)
    assert found.casts == _count(low, "Cast") - _count(made, "Cast")
    return found, low


def _count(made: onnx.ModelProto, op_type: str) -> int:
    return sum(node.op_type == op_type for node in walk.graph_nodes(made.graph))


def _products(made: onnx.ModelProto, *, inner: bool = True) -> list[int | None]:
    """The types that products inside of nodes read."""
    overlay = Model(made, None)
    scopes = [*overlay.main.walk()][int(inner) :]
    products = [node for scope in scopes for node in scope.nodes if node.op_type == "MatMul"]
    return [
        overlay.shapes.elem_type(value) for node in products for value in node.inputs if value is not None
    ]


def _agree(low: onnx.ModelProto, made: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> None:
    for one, other in zip(ort.run(between_casts(low), feed), ort.run(made, feed), strict=True):
        assert np.abs(one - other).max() <= 0.01 * np.abs(other).max()


@pytest.mark.parametrize("text", [IF, LOOP, SCAN], ids=["If", "Loop", "Scan"])
def test_products_of_bodies_are_in_half_precision(text: str, tmp_path: Path) -> None:
    made = model(text, 17, 8, w=W, v=V)
    found, low = _lower(made, tmp_path)
    assert not found.kept
    assert found.low == found.nodes
    assert found.heavy_low == found.heavy == _count(made, "MatMul")
    assert set(_products(low)) == {TensorProto.FLOAT16}
    assert not [
        one for one in walk.graph_nodes(low.graph) if one.op_type == "Cast" and one.input[0] in ("w", "v")
    ]
    assert {tensor.data_type for tensor in low.graph.initializer if tensor.name in "wv"} == {
        TensorProto.FLOAT16
    }
    _agree(low, made, FEEDS[text])


def test_what_a_loop_reads_of_the_graph_around_it_is_cast_once(tmp_path: Path) -> None:
    made = model(LOOP.replace("float[4,16] x,", "float[4,16] x, float[16,16] w,"), 17, 8, v=V)
    _, low = _lower(made, tmp_path)
    casts = [node.input[0] for node in low.graph.node if node.op_type == "Cast"]
    assert casts == ["w"]
    _agree(low, made, {**FEEDS[LOOP], "w": W})


def test_a_node_of_a_body_that_overflows_stays(tmp_path: Path) -> None:
    big = LOOP.replace("t = Tanh(u)", "f = Mul(u, many)  g = Mul(f, few)  t = Tanh(g)")
    made = model(big, 17, 8, w=W, v=V, many=np.float32(3e5), few=np.float32(1 / 3e5))
    found, low = _lower(made, tmp_path)
    kept = {one.place.output: one for one in found.kept}
    assert {"f", "g"} <= kept.keys() <= {"f", "g", "t"}
    assert kept["f"].why in ("overflow", "constant")
    assert kept["f"].place.graph == ("y.body",)
    assert kept["f"].place.around is not None
    assert found.heavy_low == found.heavy == 3
    assert found.low == found.nodes - len(kept)
    _agree(low, made, FEEDS[LOOP])


def test_an_overflow_of_a_later_iteration_is_seen_at_the_outputs(tmp_path: Path) -> None:
    """Only the first iterations are looked at."""
    text = """g (float[4,16] x) => (float[4,16] y) <int64 n = {20}, bool on = {1}, float ten = {10}> {
      h = MatMul(x, w)
      r, z = Loop(n, on, h, h) <body = b (int64 i, bool c, float[4,16] s, float[4,16] k)
        => (bool d, float[4,16] t, float[4,16] m) { d = Identity(c)  t = Mul(s, ten)  e = MatMul(k, v)  m = Tanh(e) }>
      l = Abs(r)  o = Log(l)  q = Add(o, z)  y = MatMul(q, w) }"""
    made = model(text, 17, 8, w=W, v=V)
    found, low = _lower(made, tmp_path)
    assert {"t", "l"} <= {one.place.output for one in found.kept}
    _agree(low, made, {"x": X})


def test_a_branch_that_no_sample_runs_stays(tmp_path: Path) -> None:
    made = model(IF, 17, 8, w=W, v=V)
    feeds = [{"x": X, "p": np.array(True)}]
    found, low = _lower(made, tmp_path, inputs=feeds)
    assert {one.place.output: one.why for one in found.kept} == dict.fromkeys(("a_2", "r_2"), "unseen")
    assert found.heavy_low == found.heavy - 1
    _agree(low, made, FEEDS[IF])


def test_nodes_of_bodies_are_named_by_keep(tmp_path: Path) -> None:
    made = model(
        LOOP.replace("p = MatMul", "[inner] p = MatMul").replace("y, all =", "[outer] y, all ="),
        17,
        8,
        w=W,
        v=V,
    )
    found, _ = _lower(made, tmp_path, keep=("inner",))
    assert [(one.place.node, one.why) for one in found.kept] == [("inner", "user")]
    assert found.keep_fp32 == ("inner",)
    result = onnxfix.precision(made, "fp16", 1e-2, keep=("outer",))
    assert result.status == "nothing"
    assert {one.why for one in result.kept} == {"user"}
    assert len(result.kept) == 5


def test_a_loop_in_a_branch(tmp_path: Path) -> None:
    text = """g (float[4,16] x, bool p) => (float[4,16] y) <int64 n = {3}, bool on = {1}> {
      y = If(p) <then_branch = t () => (float[4,16] r) { k = MatMul(x, w)
          r = Loop(n, on, x) <body = b (int64 i, bool c, float[4,16] s) => (bool d, float[4,16] t) {
            d = Identity(c)  m = MatMul(s, v)  q = Add(m, k)  t = Tanh(q) }> },
        else_branch = e () => (float[4,16] r) { m = MatMul(x, v)  r = Tanh(m) }> }"""
    made = model(text, 17, 8, w=W, v=V)
    found, low = _lower(made, tmp_path)
    assert not found.kept
    assert set(_products(low)) == {TensorProto.FLOAT16}
    for taken in (True, False):
        _agree(low, made, {"x": X, "p": np.array(taken)})


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
      g (float[4,16] x) => (float[4,16] y) { h = local.layer(x, w)  y = local.layer(h, v) }
      <opset_import: ["" : 17], domain: "local"> layer (a, b) => (c) { [one] m = MatMul(a, b)  c = Tanh(m) }"""
    made = model(text, w=W, v=V)
    found, low = _lower(made, tmp_path, keep=("one__1",))
    assert (found.low, found.nodes, found.heavy_low) == (3, 4, 1)
    assert any("2 local functions" in note or "1 local function" in note for note in found.notes)
    assert _products(low, inner=False).count(TensorProto.FLOAT16) == 2
    onnx.save(made, tmp_path / "m.onnx")
    assert (
        onnxfix.precision(tmp_path / "m.onnx", "fp16", 1e-2, tmp_path / "l.onnx", rungs=()).status
        == "written"
    )
    assert onnxfix.verify(tmp_path / "m.onnx", tmp_path / "l.onnx", rungs=("ort-cpu",)).exit_code == 0
    _agree(low, made, {"x": X})


def test_sequences_stay_and_the_rest_does_not(tmp_path: Path) -> None:
    text = """g (float[4,16] x) => (float[4,16] y, float[32,16] k, seq(float[4,16]) s) <int64 one = {1}> {
      a = MatMul(x, w)  b = Tanh(a)  s = SequenceConstruct(a, b)  c = SequenceAt(s, one)  d = MatMul(c, v)
      e = SequenceInsert(s, d)  f = ConcatFromSequence<axis = 1>(e)  h = Transpose<perm = [1, 0]>(f)
      k = MatMul(h, x)  y = Add(d, b) }"""
    made = model(text, 17, 8, w=W, v=V)
    found, low = _lower(made, tmp_path)
    assert found.heavy_low == found.heavy == 3
    assert found.low == found.nodes
    feed = {"x": X}
    one, other = ort.run(between_casts(low), feed), ort.run(made, feed)
    assert one[0].dtype == np.float32
    assert [item.dtype for item in one[2]] == [np.float32] * 2
    assert np.abs(one[0] - other[0]).max() <= 0.01 * np.abs(other[0]).max()


@pytest.mark.parametrize(
    "name", ["loop_of_cells.legacy.op17", "if_of_experts.dynamo.op18", "split_in_thirds.legacy.op17"]
)
def test_exports(name: str, tmp_path: Path) -> None:
    found, _ = _lower(onnx.load(FIXTURES / "kinds" / f"{name}.onnx"), tmp_path)
    assert found.heavy_low == found.heavy > 0
    assert found.low == found.nodes


def test_tensors_that_share_names_are_told_apart() -> None:
    made = model(IF, 17, 8, w=W, v=V)
    again = apart_by_name(made)
    names = [name for node in walk.graph_nodes(again.graph) for name in node.output]
    assert len(names) == len(set(names))
    for feed in (FEEDS[IF], {**FEEDS[IF], "p": np.array(True)}):
        assert np.array_equal(ort.run(made, feed)[0], ort.run(again, feed)[0])
    assert apart_by_name(again) is again


NETWORKS = {
    "convolutions": """g (float[1,3,8,8] x) => (float[1,10] y) {
        c = Conv<kernel_shape = [3,3], pads = [1,1,1,1]>(x, k)  r = Relu(c)
        p = MaxPool<kernel_shape = [2,2], strides = [2,2]>(r)  f = Flatten(p)  m = Gemm(f, d, l)
        y = Softmax<axis = 1>(m) }""",
    "norm": """g (float[4,8] x) => (float[4,8] y) <float e = {0.000000000001}> {
        p = MatMul(x, w)  m = ReduceMean<axes=[-1]>(p)  d = Sub(p, m)  q = Mul(d, d)  v = ReduceMean<axes=[-1]>(q)
        a = Add(v, e)  s = Sqrt(a)  n = Div(d, s)  y = MatMul(n, w) }""",
    "branches": """g (float[4,8] x, bool p) => (float[4,8] y) {
        h = MatMul(x, w)  z = If(p) <then_branch = t () => (float[4,8] u) { u = MatMul(h, w) },
                                     else_branch = f () => (float[4,8] v) { r = Relu(h)  v = MatMul(r, w) }>
        y = MatMul(z, w) }""",
    "loop": """g (float[4,8] x, int64 n, bool on) => (float[4,8] y) {
        y = Loop(n, on, x) <body = b (int64 i, bool c, float[4,8] s) => (bool d, float[4,8] t) {
            d = Identity(c)  p = MatMul(s, w)  t = Tanh(p) }> }""",
}  # fmt: skip


@pytest.mark.corpus(every=5)
@pytest.mark.parametrize("opset", range(7, 27))
def test_every_opset(opset: int, tmp_path: Path) -> None:
    for name, text in NETWORKS.items():
        if opset >= 18:
            text = text.replace("ReduceMean<axes=[-1]>(p)", "ReduceMean(p, last)").replace(
                "ReduceMean<axes=[-1]>(q)", "ReduceMean(q, last)"
            )
        made = model(text, opset, 8 if opset < 19 else 10)
        weights = {"w": (8, 8), "k": (4, 3, 3, 3), "d": (64, 10), "l": (10,)}
        read = {one for node in walk.graph_nodes(made.graph) for one in node.input} - walk.defined(made.graph)
        made.graph.initializer.extend(
            numpy_helper.from_array(RNG.normal(size=size).astype(np.float32) / 4, one)
            for one, size in weights.items()
            if one in read
        )
        if "last" in read:
            made.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "last"))
        found, _ = _lower(made, tmp_path, 2e-2)
        assert found.heavy_low == found.heavy > 0
        assert {one.why for one in found.kept} == ({"norm"} if name == "norm" else set())


@pytest.mark.trt
@pytest.mark.parametrize("text", [IF, LOOP, SCAN], ids=["If", "Loop", "Scan"])
def test_tensorrt_builds_them(text: str, tmp_path: Path) -> None:
    made = model(text, 17, 8, w=W, v=V)
    found = onnxfix.precision(made, "fp16", 1e-2, tmp_path / "low.onnx", require=("trt-build",))
    assert found.status == "written", found.reason


@pytest.mark.trt
@pytest.mark.xdist_group("nodes")
def test_where_tensorrt_refuses_bodies_the_rest_is_converted(tmp_path: Path) -> None:
    """TensorRT-RTX 1.7.1 builds this Scan in float32 alone."""
    made = onnx.ModelProto()
    made.CopyFrom(onnx_cases()["test_linear_attention_linear_expanded"].model)
    made.graph.node.append(onnx.helper.make_node("MatMul", ["w", "w"], ["product"]))
    made.graph.input.append(onnx.helper.make_tensor_value_info("w", TensorProto.FLOAT, [16, 16]))
    made.graph.output.append(onnx.helper.make_tensor_value_info("product", TensorProto.FLOAT, [16, 16]))
    found = onnxfix.precision(made, "fp16", 1e-2, tmp_path / "low.onnx", require=("trt-build",))
    assert found.status == "written", found.reason
    assert found.heavy_low == 1
    assert "refused" in {one.why for one in found.kept}


@pytest.mark.parametrize("count", [0, 2])
def test_a_scan_that_onnx_does_not_allow_is_refused(count: int, tmp_path: Path) -> None:
    made = model(SCAN, 17, 8, w=W, v=V)
    scan = next(node for node in made.graph.node if node.op_type == "Scan")
    next(one for one in scan.attribute if one.name == "num_scan_inputs").i = count
    found = onnxfix.precision(made, "fp16", 1e-2, tmp_path / "low.onnx")
    assert found.status == "unknown"
    assert not (tmp_path / "low.onnx").exists()
