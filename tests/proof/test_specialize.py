"""``--fix-dim``, ``--fix-input`` and ``--static``: what becomes constant, what is proven of it, and what is refused."""
# Long because: one test for each promise of the options, and one for each mistake that a user can make with them.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onnxfix
from onnxfix.errors import UsageError
from onnxfix.files import loading, wire
from onnxfix.inputs.feeds.signature import signature
from onnxfix.inputs.specialize import ResolvedSpecialization, resolve
from onnxfix.options import Specialization
from onnxfix.proof.checks import gpu, probe
from onnxfix.proof.verdict import Verdict
from onnxfix.report.report import Fixed, Report
from onnxfix.runtime.sandbox import Worker
from onnxfix.verbs import contract
from onnxfix.verbs.whole import run as whole_run
from support import fake_engines, models
from support.cli import errors, output, refused, reported, run, streams
from support.ended import ended
from support.ort import run as outputs
from support.paths import FIXTURES
from support.real_tensorrt import REAL as WITH_TENSORRT
from test_rung_trt_gpu import RUNS, Rung, request

CPU = ["contract", "reference", "ort-cpu"]
SYMBOLS = """g (float[batch, seq, 4] x, float[batch, seq] m) => (float[batch, seq, 4] y, float[batch, total] z)
    <float[batch, seq, 4] a> { a = Exp(x) y = Neg(a) z = Concat<axis = 1>(m, m) }"""
RATE = """g (float[N, 4] x, int64 sr) => (float[N, 4] y) <int64 k = {16000}> { c = Equal(sr, k)
    y = If(c)<then_branch = p () => (float[N, 4] u) { u = Exp(x) },
              else_branch = q () => (float[N, 4] v) { s = Cast<to = 1>(sr) v = Mul(x, s) }> }"""
SHAPED = """g (float[N, 3] x) => (float[P, Q] y) <int64[1] one = {1}> { s = Shape(x) n = Gather<axis = 0>(s, one)
    d = Gather<axis = 0>(s, zero) f = Concat<axis = 0>(n, d) y = Reshape(x, f) }""".replace(
    "<int64[1] one = {1}>", "<int64[1] one = {1}, int64[1] zero = {0}>"
)


def model_of(text: str = SYMBOLS, **header: Any) -> ModelProto:
    return models.model(text, **{"opset": 18, **header})


def write(folder: Path, model: ModelProto | str = SYMBOLS, name: str = "m.onnx") -> Path:
    return models.write(folder / name, model, 18)


def apply(source: Any, output: Path | None = None, **options: Any) -> Report:
    return onnxfix.apply(source, output, **{"rungs": CPU, "select": ["ALL"], **options})


def proven(source: Any, output: Path | None = None, **options: Any) -> ModelProto:
    """The specialized model, which was compared with the original."""
    report = apply(source, output, **options)
    assert passing(report).compared
    assert report.model is not None
    return report.model


def passing(report: Report) -> Verdict:
    assert report.verdict.passed, report.verdict
    return report.verdict


def dims(info: onnx.ValueInfoProto) -> list[int | str]:
    shape = info.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in shape]


def shapes(model: ModelProto) -> dict[str, list[int | str]]:
    return {info.name: dims(info) for info in (*model.graph.input, *model.graph.output)}


def operators(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


# ---- --fix-dim


def test_a_symbol_becomes_a_number_wherever_it_is_declared() -> None:
    model = proven(model_of(), fix_dims={"batch": 2})
    assert shapes(model) == {"x": [2, "seq", 4], "m": [2, "seq"], "y": [2, "seq", 4], "z": [2, "total"]}
    assert {info.name: dims(info) for info in model.graph.value_info} == {"a": [2, "seq", 4]}


def test_names_that_are_arithmetic_follow() -> None:
    original = model_of("""g (float[N, past] x, float[N, P] y, float[S] p, float[size] q) => (float[N, Q] z)
        { c = Concat<axis = 1>(x, y) z = Neg(c) }""")
    for info, axis, name in ((1, 1, "past + 1"), (2, 0, "past-size")):
        original.graph.input[info].type.tensor_type.shape.dim[axis].dim_param = name
    original.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "2*past + 1"
    assert shapes(proven(original, fix_dims={"past": 3, "size": 1})) == {
        "x": ["N", 3], "y": ["N", 4], "p": [2], "q": [1], "z": ["N", 7]
    }  # fmt: skip
    partly = proven(original, fix_dims={"past": 3})
    assert dims(partly.graph.input[2]) == ["3-size"]


def test_dimensions_without_a_name_have_their_place() -> None:
    text = "g (float[a, b] x, float[b] w) => (float[a, b] y) { y = Add(x, w) }"
    model = model_of(text)
    for info in (*model.graph.input, *model.graph.output):
        for dim in info.type.tensor_type.shape.dim:
            dim.Clear()
    fixed = proven(model, fix_dims={"x.0": 2, "x.1": 5, "w.0": 5})
    assert shapes(fixed) == {"x": [2, 5], "w": [5], "y": [2, 5]}


def test_a_question_mark_is_no_name() -> None:
    """PaddlePaddle's exporter writes it for sizes that have nothing to do with each other."""
    model = model_of("g (float[a, b] x) => (float[c, d] y) { y = Exp(x) }")
    for info in (*model.graph.input, *model.graph.output):
        for dim in info.type.tensor_type.shape.dim:
            dim.dim_param = "?"
    assert signature(model).symbols == ("x.0", "x.1")
    fixed = proven(model, static=True, input_shapes=["x:2x5"])
    assert shapes(fixed) == {"x": [2, 5], "y": [2, 5]}


def test_an_input_without_a_rank_gets_one() -> None:
    model = model_of("g (float[a] x) => (float[a] y) { y = Exp(x) }")
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.ClearField("shape")
    assert dims(proven(model, fix_dims={"x.rank": 3, "x.1": 4}).graph.input[0]) == ["", 4, ""]
    with pytest.raises(UsageError, match=r"x\.1: it declares no rank: give --fix-dim x\.rank=RANK too"):
        apply(model, fix_dims={"x.1": 4})


def test_shapes_fold_once_sizes_are_known() -> None:
    model = proven(model_of(SHAPED), fix_dims={"N": 2})
    assert operators(model) == ["Reshape"]
    assert shapes(model) == {"x": [2, 3], "y": [3, 2]}


def test_sizes_of_outputs_that_follow_are_declared() -> None:
    """What hangs on data stays open, and so does what hangs on a size that nobody fixed."""
    model = model_of("""g (float[N, M] x) => (float[P, Q] y, int64[R, K] z, float[S] u) <int64[1] s = {-1}>
        { y = Transpose<perm = [1, 0]>(x) z = NonZero(x) u = Reshape(x, s) }""")
    fixed = proven(model, fix_dims={"N": 2, "M": 5})
    assert shapes(fixed) == {"x": [2, 5], "y": [5, 2], "z": [2, "K"], "u": [10]}
    partly = proven(model, fix_dims={"N": 2})
    assert shapes(partly) == {"x": [2, "M"], "y": ["P", 2], "z": [2, "K"], "u": ["S"]}


def test_what_a_model_says_of_values_inside_tells_no_size_of_an_output() -> None:
    """Exporters leave there the sizes with which they traced it."""
    text = """g (float[N] x) => (float[P] y) { a = Exp(x) b = my.f(a) y = Neg(b) }
        <domain: "my", opset_import: ["" : 18]> f (a) => (b) { z = NonZero(a)
        k = Constant<value_ints = [-1]>() i = Reshape(z, k) b = Gather(a, i) }"""
    model = model_of(text, domains={"my": 1})
    model.graph.value_info.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [7]))
    fixed = proven(model, fix_dims={"N": 3}, select=["CTL010"])
    assert shapes(fixed) == {"x": [3], "y": ["P"]}
    assert [dims(info) for info in fixed.graph.value_info] == [[7]]


def test_names_in_branches_follow_and_those_of_functions_are_their_own() -> None:
    text = """g (float[N] x, bool c) => (float[N] y) { h = If(c)<then_branch = p () => (float[N] u) { u = Exp(x) },
        else_branch = q () => (float[N] v) <float[N] w> { w = Neg(x) v = my.f(w) }> y = Neg(h) }
        <domain: "my", opset_import: ["" : 18]> f (a) => (b) { b = Abs(a) }"""
    original = model_of(text, domains={"my": 1})
    for function in original.functions:
        function.value_info.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, ["N"]))
    model = proven(original, fix_dims={"N": 3}, select=["CTL010"])
    branch = next(one.g for one in model.graph.node[0].attribute if one.name == "else_branch")
    assert [dims(info) for info in (*branch.output, *branch.value_info)] == [[3], [3]]
    assert dims(model.functions[0].value_info[0]) == ["N"]


# ---- --fix-input


def test_a_branch_that_the_value_decides_goes_away() -> None:
    original = model_of(RATE)
    model = proven(original, fix_inputs={"sr": 16000})
    assert operators(model) == ["Exp"]
    assert list(shapes(model)) == ["x", "y"]
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    assert np.array_equal(outputs(model, {"x": x})[0], outputs(original, {"x": x, "sr": np.array(16000)})[0])
    other = proven(original, fix_inputs={"sr": 8000})
    assert operators(other) == ["Mul"]
    assert np.array_equal(outputs(other, {"x": x})[0], outputs(original, {"x": x, "sr": np.array(8000)})[0])


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("float[2, 3]", 1.5, np.full((2, 3), 1.5, np.float32)),
        ("float[2, 3]", "1.5", np.full((2, 3), 1.5, np.float32)),
        ("float[3]", "[1, 2.5, -inf]".replace("-inf", "-Infinity"), np.array([1, 2.5, -np.inf], np.float32)),
        ("float", "nan", np.array(np.nan, np.float32)),
        ("float16[1]", 0.1, np.array([0.1], np.float16)),
        ("bfloat16[1]", [1.5], np.array([1.5], ml_dtypes.bfloat16)),
        ("double[2]", [1, 2], np.array([1.0, 2.0])),
        ("int64[N]", [1, 2, 3], np.array([1, 2, 3], np.int64)),
        ("uint8", "255", np.array(255, np.uint8)),
        ("int32", 3.0, np.array(3, np.int32)),
        ("int4[3]", [-8, 7, 1], np.array([-8, 7, 1], ml_dtypes.int4)),
        ("float8e4m3fn[2]", [448, -1.5], np.array([448, -1.5], ml_dtypes.float8_e4m3fn)),
        ("bool[2]", "[true, false]", np.array([True, False])),
        ("bool", True, np.array(True)),
        ("string[2]", ["a", "b"], np.array(["a", "b"], object)),
        ("string", "a b", np.array("a b", object)),
        ("int64[1, 2]", np.array([[5, 6]]), np.array([[5, 6]], np.int64)),
    ],
)
def test_a_value_has_the_type_and_shape_of_its_input(kind: str, value: Any, expected: Any) -> None:
    known = signature(model_of(f"g ({kind} v, float[2] x) => (float[2] y) {{ y = Exp(x) }}"))
    special, _, _ = resolve(known, Specialization(inputs={"v": value}))
    made = special.values["v"]
    assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
    assert made.tolist() == expected.tolist() or np.isnan(expected)


def test_a_value_says_the_sizes_of_its_symbols_and_fills_what_is_known() -> None:
    text = "g (float[N, S] x, float[N, S] m, float[S] b) => (float[N, S] y) { a = Mul(x, m) y = Add(a, b) }"
    model = proven(model_of(text), fix_inputs={"b": 2, "m": [[1.0, 0.0, 1.0]]})
    assert shapes(model) == {"x": [1, 3], "y": [1, 3]}
    (report_fixed,) = apply(model_of(text), fix_inputs={"m": [[1.0, 0.0, 1.0]]}).steps
    assert [one.name for one in report_fixed.fixed] == ["N", "S", "m"]


def test_a_value_from_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.arange(20, dtype=np.float32).reshape(2, 10))
    path, out = write(tmp_path), tmp_path / "out.onnx"
    code, printed, err = run(
        "apply", path, "-o", out, "--fix-input", f"m=@{tmp_path / 'm.npy'}", "--rungs", "ort-cpu"
    )
    assert (code, err) == (0, "")
    assert "fixed: batch = 2, seq = 10, m = float32[2, 10]" in printed
    assert shapes(onnx.load(out)) == {"x": [2, 10, 4], "y": [2, 10, 4], "z": [2, 20]}
    err = errors(2, "apply", path, "-o", tmp_path / "m.npy", "--fix-input", f"m=@{tmp_path / 'm.npy'}")
    assert "is also a value of --fix-input" in err


INSIDE = """g (float[2] x, float[2] k, bool c, int64 n) => (float[2] y, float[2] z) <bool t = {1}> {
    a = Add(x, k)
    y = If(c)<then_branch = p () => (float[2] u) { u = Mul(a, k) }, else_branch = q () => (float[2] v) { v = Neg(a) }>
    z = Loop(n, t, x)<body = b (int64 i, bool go, float[2] s) => (bool on, float[2] r)
        { on = Identity(go) r = Add(s, k) }>
    }"""


@pytest.mark.parametrize("keep", [False, True])
def test_a_value_is_read_in_branches_and_loops(keep: bool) -> None:
    original = model_of(INSIDE)
    model = proven(original, fix_inputs={"k": [1.5, -2.0]}, keep_inputs=keep, select=["GRA002"])
    assert ("k" in shapes(model)) is keep
    feed = {"x": np.array([3, 4], np.float32), "c": np.array(True), "n": np.array(3)}
    right = {"k": np.array([1.5, -2.0], np.float32)}
    expected = outputs(original, {**feed, **right})
    # Whatever a kept input is fed, nothing reads it.
    found = outputs(model, {**feed, **({"k": np.array([9, 9], np.float32)} if keep else {})})
    assert [one.tolist() for one in found] == [one.tolist() for one in expected]


def test_a_branch_that_returns_the_input_itself() -> None:
    original = model_of("g (float[2] x, float[2] k, bool c) => (float[2] y) { y = If(c)<then_branch = p () => "
                        "(float[2] u) { u = Neg(x) }, else_branch = q () => (float[2] k) { }> }")  # fmt: skip
    for keep in (False, True):
        report = apply(
            original,
            fix_inputs={"k": 2},
            keep_inputs=keep,
            rungs=["contract", "reference"],
            require=["reference"],
        )
        passing(report)
        session = ReferenceEvaluator(report.model)
        feed = {"x": np.ones(2, np.float32), "c": np.array(False)}
        found = session.run(None, {**feed, **({"k": np.array([9, 9], np.float32)} if keep else {})})
        assert found[0].tolist() == [2, 2], "whatever a kept input is fed"


def test_an_output_that_is_the_fixed_input_keeps_its_name() -> None:
    original = model_of("g (float[2] x, float[2] k) => (float[2] y, float[2] k) { y = Add(x, k) }")
    model = proven(original, fix_inputs={"k": 2.0}, select=["GRA002"])
    assert list(shapes(model)) == ["x", "y", "k"]
    assert operators(model) == ["Identity", "Add"]
    assert outputs(model, {"x": np.ones(2, np.float32)})[1].tolist() == [2, 2]
    kept = proven(original, fix_inputs={"k": 2.0}, keep_inputs=True, select=["GRA002"])
    feed = {"x": np.ones(2, np.float32), "k": np.array([2, 2], np.float32)}
    assert [one.tolist() for one in outputs(kept, feed)] == [[3, 3], [2, 2]]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_a_default_gives_way_to_the_value(sparse: bool, keep: bool) -> None:
    original = model_of("g (float[3] x, float[3] k) => (float[3] y) { y = Add(x, k) }")
    if sparse:
        values = numpy_helper.from_array(np.array([7], np.float32), "k")
        indices = numpy_helper.from_array(np.array([1], np.int64))
        original.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))
    else:
        original.graph.initializer.append(numpy_helper.from_array(np.array([7, 7, 7], np.float32), "k"))
    rungs = ["contract", *([] if sparse else ["ort-cpu"])]
    report = apply(original, fix_inputs={"k": 2.0}, keep_inputs=keep, select=["GRA001"], rungs=rungs)
    assert report.verdict.rungs[0].status == "passed", report.verdict
    assert sparse or passing(report)
    model = report.model
    if not sparse or not keep:
        assert outputs(model, {"x": np.zeros(3, np.float32)})[0].tolist() == [2, 2, 2]
    assert bool(model.graph.sparse_initializer) is (sparse and keep)


def test_before_ir_version_4_the_value_is_a_node() -> None:
    text = "g (float[3] x, float[3] k) => (float[3] y) { y = Add(x, k) }"
    original = model_of(text, opset=9, ir_version=3)
    model = proven(original, fix_inputs={"k": 2.0}, select=["GRA002"])
    assert operators(model) == ["Constant", "Add"]
    assert not model.graph.initializer


def test_what_is_said_of_an_input_stays() -> None:
    original = model_of(RATE)
    original.graph.input[1].doc_string = "in Hz"
    original.graph.input[1].metadata_props.add(key="unit", value="Hz")
    original.metadata_props.add(key="author", value="somebody")
    model = proven(original, fix_inputs={"sr": 16000}, select=["GRA001"])
    (tensor,) = [one for one in model.graph.initializer if one.name == "sr"]
    assert (tensor.doc_string, [entry.value for entry in tensor.metadata_props]) == ("in Hz", ["Hz"])
    assert model.metadata_props == original.metadata_props


# ---- --static


def test_static_from_inputs(tmp_path: Path) -> None:
    for number, batch in ((0, 2), (1, 2), (2, 5)):
        folder = tmp_path / "feeds" / str(number)
        folder.mkdir(parents=True)
        for name, tail in (("x", (7, 4)), ("m", (7,))):
            np.save(folder / f"{name}.npy", np.full((batch, *tail), number, np.float32))
    report = apply(model_of(), static=True, inputs=tmp_path / "feeds")
    assert report.model is not None
    passing(report)
    assert shapes(report.model) == {"x": [2, 7, 4], "m": [2, 7], "y": [2, 7, 4], "z": [2, 14]}
    assert any(note.startswith("1 of 3 given inputs do not have the fixed sizes") for note in report.notes)
    assert len(report.verdict.rung("ort-cpu").feeds) == 2, "the third has another batch"


def test_static_from_input_shapes_and_fixed_dimensions() -> None:
    model = proven(model_of(), static=True, input_shapes=["x:2x7x4"])
    assert shapes(model)["m"] == [2, 7]
    assert shapes(proven(model_of(), static=True, fix_dims={"batch": 1, "seq": 2}))["x"] == [1, 2, 4]
    assert shapes(proven(model_of(SHAPED), static=True, fix_inputs={"x": [[1, 2, 3]]})) == {"y": [3, 1]}


def test_static_wants_to_know_everything() -> None:
    with pytest.raises(UsageError, match="--static does not know the size of batch, seq: give --inputs"):
        apply(model_of(), static=True)
    with pytest.raises(UsageError, match="does not know the size of seq:"):
        apply(model_of(), static=True, fix_dims={"batch": 1})
    with pytest.raises(UsageError, match="batch is 3 and, by --input-shapes, 2"):
        apply(model_of(), static=True, fix_dims={"batch": 3}, input_shapes=["x:2x7x4"])


# ---- mistakes: one line, exit code 2, nothing written


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--fix-dim", "bath=1"], "the inputs have no dimension bath; those that can be fixed are batch, seq"),
        (["--fix-dim", "batch"], "write --fix-dim NAME=SIZE"),
        (["--fix-dim", "batch=one"], "'one' is not a whole number"),
        (["--fix-dim", "batch=0"], "a size is a whole number from 1 to"),
        (["--fix-dim", "batch=1", "--fix-dim", "batch=2"], "batch is given two values: 1 and 2"),
        (["--fix-dim", "x.2=5"], "the model declares this dimension as 4"),
        (["--fix-dim", "x.0=5"], "this dimension has the name batch: --fix-dim batch=5"),
        (["--fix-input", "sr=1"], "the model has no such input; its inputs are x, m"),
        (["--fix-input", "m"], "write --fix-input NAME=VALUE"),
        (["--fix-input", "m=one"], "write a number, true, false, a list"),
        (["--fix-input", "m=true"], "the input is float, which True is not"),
        (["--fix-input", "m=1e60"], "1e+60 is outside the range of float"),
        (["--fix-input", "m=[[1,2],[3]]"], "the rows of the list differ in length"),
        (["--fix-input", "m=[1,2]"], "input m has rank 2"),
        (["--fix-input", "m=1"], "a single value cannot fill it: give --fix-dim for batch, seq"),
        (["--fix-input", "m=[[1]]", "--fix-dim", "seq=2"], "seq is 2, and the value has shape [1, 1]"),
        (["--fix-input", "m=@none.npy"], "none.npy cannot be read as .npy"),
        (["--fix-input", "m=@double.npy"], "expected float32, got float64"),
        (["--keep-inputs"], "--keep-inputs has no effect without --fix-input"),
        (["--fix-dim", "batch=1", "--input-shapes", "x:2x3x4"], "the size 2, but it is fixed as 1"),
        (["--fix-dim", "batch=1", "--inputs", "feed.npz"], "none of the given inputs has the fixed sizes"),
        (["--fix-dim", "batch=1", "--trt-min-shapes", "x:2x3x4"], "batch is fixed as 1: TensorRT's optimization"),
        (["--fix-input", "m=[[1]]", "--trt-min-shapes", "m:1x1"], "input m is fixed: TensorRT's optimization"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path)
    np.save("double.npy", np.zeros((2, 2)))
    np.savez("feed.npz", x=np.zeros((2, 3, 4), np.float32), m=np.zeros((2, 3), np.float32))
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    err = refused("apply", path, "-o", tmp_path / "out.onnx", *options)
    assert words in err
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("int64", 1.5, "the input is int64, which 1.5 is not"),
        ("uint8", 256, "256 is outside the range of uint8"),
        ("int8", [-129], "-129 is outside the range of int8"),
        ("int64", True, "which True is not"),
        ("bool", 2, "which 2 is not"),
        ("string", 1, "which 1 is not"),
        ("float16", 1e5, "100000.0 is outside the range of float16"),
        ("float", "null", "which None is not"),
        ("float", 10**400, "is outside the range of float"),
        ("float[2]", np.zeros(2), "expected float32, got float64"),
        ("float[2]", np.zeros(3, np.float32), "has size 2 in dimension 0, got shape"),
        ("float", [1.0], "has rank 0"),
        ("seq(float[2])", 1, "only a tensor can be fixed, and this is a sequence"),
    ],
)
def test_a_value_that_does_not_fit(kind: str, value: Any, words: str) -> None:
    known = signature(model_of(f"g ({kind} v, float[2] x) => (float[2] y) {{ y = Exp(x) }}"))
    with pytest.raises(UsageError, match="--fix-input") as caught:
        resolve(known, Specialization(inputs={"v": value}))
    assert words in str(caught.value)


def test_a_size_that_the_model_has_already_changes_nothing(tmp_path: Path) -> None:
    report = apply(model_of(), fix_dims={"x.2": 4})
    assert report.model is not None
    assert shapes(report.model) == shapes(model_of())
    assert (report.steps, report.changed) == ((), False)
    assert report.notes == ("nothing was specialized: the model has these sizes already",)


# ---- proof


def broken(
    after: Callable[[ModelProto], object] | None = None,
    before: Callable[[ResolvedSpecialization], ResolvedSpecialization] = lambda special: special,
) -> Callable[..., None]:
    """A step that does something else than it was told, or something more."""

    def specialized(proto: ModelProto, special: ResolvedSpecialization, base_dir: Path | None = None) -> None:
        REAL(proto, before(special), base_dir)
        if after is not None:
            after(proto)

    return specialized


def node_of(proto: ModelProto) -> onnx.NodeProto:
    return next(node for node in proto.graph.node if node.op_type == "Add")


VALUE = broken(
    before=lambda one: replace(one, values={name: value + 1 for name, value in one.values.items()})
)
SIZE = broken(before=lambda one: replace(one, sizes={name: size + 1 for name, size in one.sizes.items()}))
OUTPUT = broken(lambda proto: setattr(proto.graph.output[0].type.tensor_type.shape.dim[0], "dim_value", 7))
INPUTS = broken(
    lambda proto: proto.graph.input.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, [1]))
)
USE = broken(lambda proto: node_of(proto).input.__setitem__(1, "k"))
NODE = broken(lambda proto: setattr(node_of(proto), "op_type", "Sub"))
REAL = whole_run.specialize
ADD = "g (float[N, 3] x, float[N, 3] k) => (float[N, 3] y) { y = Add(x, k) }"


@pytest.mark.parametrize(
    ("bug", "rung"),
    [
        (VALUE, "reference"),
        (NODE, "reference"),
        (SIZE, "contract"),
        (OUTPUT, "contract"),
        (INPUTS, "contract"),
    ],
)
def test_a_bug_in_specializing_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: Any, rung: str
) -> None:
    """The original as it was read is what the result is compared with, so that nothing that we wrote judges itself."""
    monkeypatch.setattr(whole_run, "specialize", bug)
    out = tmp_path / "out.onnx"
    report = apply(write(tmp_path, ADD), out, fix_dims={"N": 2}, fix_inputs={"k": 2.0})
    assert report.exit_code == 3
    assert not out.exists()
    assert next(one.name for one in report.verdict.rungs if one.refutes) == rung
    assert report.withdrawn == (), "no fix is to blame"


def test_a_kept_input_that_is_still_read_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the values that are fixed nobody could tell by what is computed."""
    monkeypatch.setattr(whole_run, "specialize", USE)
    report = apply(model_of(ADD), fix_dims={"N": 2}, fix_inputs={"k": 2.0}, keep_inputs=True)
    assert report.exit_code == 3
    assert report.verdict.rungs[0].reason == "input 'k' is still read"


def test_the_contract_allows_what_was_asked_and_nothing_else() -> None:
    original = model_of(ADD.replace("(float[N, 3] y)", "(float[N, M] y)"))
    special = ResolvedSpecialization({"N": 2}, {"k": np.full((2, 3), 2.0, np.float32)})
    right = model_of("g (float[2, 3] x) => (float[2, M] y) { y = Exp(x) }")

    def changes(text: str, how: ResolvedSpecialization = special) -> list[str]:
        fixed = model_of(text) if isinstance(text, str) else text
        return contract.interface_changes(original, fixed, how)

    assert changes(right) == []  # type: ignore[arg-type]
    for wrong in (
        "g (float[2, 3] x) => (float[N, M] y) { y = Exp(x) }",  # not everywhere
        "g (float[2, 3] x) => (float[2, 4] y) { y = Exp(x) }",  # M was not asked for
        "g (float[3, 3] x) => (float[2, M] y) { y = Exp(x) }",  # another size
        "g (float[2, K] x) => (float[2, M] y) { y = Exp(x) }",  # a declared size is gone
        "g (double[2, 3] x) => (float[2, M] y) { y = Exp(x) }",  # another type
        "g (float[2] x) => (float[2, M] y) { y = Exp(x) }",  # another rank
        "g (float[2, 3] x, float[2, 3] k) => (float[2, M] y) { y = Exp(x) }",  # the input is still there
        "g () => (float[2, M] y) { y = Exp(x) }",  # too many are gone
    ):
        assert changes(wrong), wrong
    follows = replace(special, outputs={"y": (None, 4)})
    assert changes("g (float[2, 3] x) => (float[2, 4] y) { y = Exp(x) }", follows) == []
    for wrong in ("float[2, M]", "float[2, 5]", "float[N, 4]"):
        assert changes(f"g (float[2, 3] x) => ({wrong} y) {{ y = Exp(x) }}", follows), wrong
    kept = ResolvedSpecialization(special.sizes, special.values, keep=True)
    assert changes("g (float[2, 3] x, float[2, 3] k) => (float[2, M] y) { y = Exp(x) }", kept) == []
    assert changes("g (float[2, 3] x) => (float[2, M] y) { y = Exp(x) }", kept)


def test_it_is_proven_for_these_inputs_and_no_others() -> None:
    """The result differs from the original on any other rate, so that feeds of another one would refute it."""
    report = apply(model_of(RATE), fix_inputs={"sr": 16000}, fix_dims={"N": 3})
    for name in ("reference", "ort-cpu"):
        rung = ended("passed", report.verdict.rung(name))
        assert rung.exact
        assert rung.reason.startswith("identical on ")
        assert rung.reason.endswith(", with N = 3, sr = 16000")
        assert all(feed.label.startswith("N=3; ") for feed in rung.feeds)
    model = report.model
    assert model is not None
    x = np.ones((3, 4), np.float32)
    assert (
        outputs(model, {"x": x})[0].tolist()
        != outputs(model_of(RATE), {"x": x, "sr": np.array(8000)})[0].tolist()
    )


def test_sizes_that_the_original_does_not_take_are_no_bug_of_ours(tmp_path: Path) -> None:
    """ONNX Runtime loads the original, whose sizes are open, and refuses them where it runs."""
    text = "g (float[a, 3] x, float[b, 3] k) => (float[c, 3] y) { y = Add(x, k) }"
    out = tmp_path / "out.onnx"
    report = apply(write(tmp_path, text), out, fix_dims={"a": 2, "b": 5}, rungs=["ort-cpu"])
    assert report.exit_code == 3
    assert not out.exists()
    rung = ended("skipped", report.verdict.rung("ort-cpu"))
    assert rung.reason.startswith("the original does not run on the fixed sizes and values either: ")


def test_a_constant_of_floats_need_not_give_the_same_bits() -> None:
    report = apply(model_of(ADD), fix_inputs={"k": 2.0}, fix_dims={"N": 2})
    rung = ended("passed", report.verdict.rung("ort-cpu"))
    assert not rung.exact


def test_a_fixed_model_is_judged_in_float64_too() -> None:
    """Out of tolerance in float32, by rounding alone: the fixed model gets its feeds without the fixed input there."""
    text = """g (float[4, 512] x, float[512, 512] w) => (float[4, 512] y)
        { a = MatMul(x, w) b = Exp(a) c = MatMul(b, w) d = Sin(c) y = ReduceSum<keepdims = 0>(d) }"""
    original = model_of(text.replace("=> (float[4, 512] y)", "=> (float y)"))
    w = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32) / 8
    report = apply(original, fix_inputs={"w": w}, rungs=["ort-cpu"])
    assert not report.verdict.failed
    assert not any("could not run" in note for rung in report.verdict.rungs for note in rung.notes)


def test_inputs_of_the_user_have_the_fixed_values_filled_in(tmp_path: Path) -> None:
    np.savez(tmp_path / "feed.npz", x=np.ones((3, 4), np.float32))
    report = apply(model_of(RATE), fix_inputs={"sr": 16000}, inputs=tmp_path / "feed.npz")
    assert passing(report).compared
    np.savez(tmp_path / "feed.npz", x=np.ones((3, 4), np.float32), sr=np.int64(8000))
    with pytest.raises(UsageError, match="input sr is 8000, and is fixed as 16000"):
        apply(model_of(RATE), fix_inputs={"sr": 16000}, inputs=tmp_path / "feed.npz")


@WITH_TENSORRT
@pytest.mark.parametrize("given", [False, True])
def test_tensorrt_reads_and_builds_the_result(tmp_path: Path, given: bool) -> None:
    np.savez(tmp_path / "feed.npz", x=np.ones((3, 4), np.float32), sr=np.int64(16000))
    report = apply(
        model_of(RATE),
        fix_inputs={"sr": 16000},
        fix_dims={"N": 3},
        inputs=tmp_path / "feed.npz" if given else None,
        rungs=["ort-cpu", "trt-build", "trt-network"],
        require=["trt-build", "trt-network"],
    )
    passing(report)
    before, after = report.builds
    assert after.accepted
    assert after.profiles == (), "nothing is dynamic any more"
    assert not before.accepted or all("x" in profile.shapes for profile in before.profiles)
    assert report.networks[-1].status == "agrees"


GAIN = "g (float[N, 2] x, float k) => (float[N, 2] y) { y = Mul(x, k) }"


def test_the_engine_of_the_fixed_model_gets_no_fixed_inputs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, worker: Worker
) -> None:
    """On engines that are ONNX models. What was kept of the original under one value is not used under another."""
    rung = Rung(tmp_path, worker)
    (tmp_path / "once").mkdir()
    monkeypatch.setattr(gpu, "builder", lambda options: rung)
    monkeypatch.setattr(probe, "probe", lambda found: RUNS)
    monkeypatch.setattr(probe, "RUN", fake_engines.__name__)
    original = None
    for value in (2.0, 3.0):
        fixed = f"g (float[2, 2] x) => (float[2, 2] y) <float k = {{{value}}}> {{ y = Mul(x, k) }}"
        rung.texts = {"original": GAIN, "fixed": fixed}
        asked = request(rung.folder, rung.worker, GAIN, fixed, shapes={"N": 2})
        original = original or asked.original.rename(tmp_path / "once" / "original.onnx")
        asked = replace(asked, original=original)
        special = ResolvedSpecialization({"N": 2}, {"k": np.array(value, np.float32)})
        result = gpu.run(replace(asked, known=replace(asked.known, pinned=special.values), special=special))
        assert result.status == "passed"
        assert {feed.label for feed in result.feeds if feed.status == "not counted"} == set()


@WITH_TENSORRT
def test_inputs_of_the_user_where_tensorrt_refuses_the_original(tmp_path: Path) -> None:
    text = """g (float[N, 4] x, int64 sr) => (float[N, 4] y) <int64 k = {16000}> { c = Equal(sr, k) y = If(c)
        <then_branch = p () => (float[N, 4] u) { u = Exp(x) },
         else_branch = q () => (float[N, 4] v) { m = my.Mystery(x) v = Neg(m) }> }"""
    original = model_of(text, domains={"my": 1})
    np.savez(tmp_path / "feed.npz", x=np.ones((3, 4), np.float32), sr=np.array(16000))
    report = apply(
        original,
        fix_inputs={"sr": 16000},
        static=True,
        inputs=tmp_path / "feed.npz",
        rungs=["reference", "trt-build", "trt-network"],
    )
    assert report.won
    assert [one.status for one in report.networks][-1] == "agrees"
    assert not report.verdict.broken


def test_what_was_learnt_under_one_value_is_forgotten_under_another(tmp_path: Path) -> None:
    path = write(tmp_path, RATE)
    for rate in (16000, 8000):
        report = apply(path, fix_inputs={"sr": rate}, fix_dims={"N": 2}, rungs=["ort-cpu", "trt-network"])
        passing(report)


# ---- the report


def test_the_record_in_text_and_json(tmp_path: Path) -> None:
    path = write(tmp_path, RATE)
    options = ["--fix-input", "sr=16000", "--fix-dim", "N=3", "--rungs", "ort-cpu"]
    out = output(0, "apply", path, "-o", tmp_path / "a.onnx", *options)
    assert "taken     specialize (onnxfix " in out
    assert "fixed: N = 3, sr = 16000" in out
    assert "note:" not in out, "what is said above need not be said twice"
    verbose = run("apply", path, "-o", tmp_path / "c.onnx", *options, "-v")[1]
    assert "the interface changed only as requested (N = 3, sr = 16000)" in " ".join(verbose.split())
    _, report = reported("apply", path, "-o", tmp_path / "b.onnx", *options, "--keep-inputs")
    (step,) = report["steps"]
    assert (step["name"], step["status"], step["safety"]) == ("specialize", "taken", "unsafe")
    assert step["fixed"] == [
        {"kind": "dimension", "name": "N", "value": "3", "dtype": "", "shape": [], "kept": False},
        {"kind": "input", "name": "sr", "value": "16000", "dtype": "int64", "shape": [], "kept": True},
    ]
    assert Fixed(**{**step["fixed"][0], "shape": ()}) == Fixed("dimension", "N", "3")
    assert (tmp_path / "a.onnx").exists()
    assert (tmp_path / "b.onnx").exists()


@pytest.mark.slow
def test_several_models_and_the_journal(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("a.onnx", "b.onnx"):
        write(folder, RATE, name)
    write(folder, SYMBOLS, "c.onnx")
    np.save(tmp_path / "sr.npy", np.int64(16000))
    options = [
        "--output-dir",
        tmp_path / "out",
        "--fix-input",
        f"sr=@{tmp_path / 'sr.npy'}",
        "--rungs",
        "ort-cpu",
    ]
    out, err = streams(2, "apply", str(folder / "*.onnx"), *options, "--resume", "--jobs", "2")
    assert "c.onnx" in err
    assert "its inputs are x, m" in err
    assert sorted(one.name for one in (tmp_path / "out").glob("*.onnx")) == ["a.onnx", "b.onnx"]
    _, out, _ = run("apply", str(folder / "*.onnx"), *options, "--resume")
    assert out.count("unchanged, skipped") == 2
    np.save(tmp_path / "sr.npy", np.int64(8000))
    _, out, _ = run("apply", str(folder / "*.onnx"), *options, "--resume")
    assert "unchanged, skipped" not in out
    assert operators(onnx.load(tmp_path / "out" / "a.onnx")) == ["Mul"]


def test_a_script_may_change_a_specialized_model(tmp_path: Path) -> None:
    pytest.importorskip("onnx_graphsurgeon")
    script = tmp_path / "fix.py"
    script.write_text(
        "import onnx_graphsurgeon as gs\ndef fix(graph):\n    graph.outputs[0].name = 'other'\n"
        "    graph.inputs.append(gs.Variable('k', 'float32', []))\n"
    )
    text = "g (float[N, 2] x, float k) => (float[N, 2] y) { a = Identity(x) y = Neg(a) }"
    report = apply(model_of(text), fix_inputs={"k": 2}, graphsurgeon=[script], unsafe_fixes=True)
    assert [step.status for step in report.steps] == ["taken", "taken"]
    assert report.applied, "so that something is left to prove"
    passing(report)
    assert report.model is not None
    assert list(shapes(report.model)) == ["x", "k", "other"], "the script's own input is none that was fixed"


# ---- models as they come


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("bert.legacy.op17.onnx", {"batch": 1, "seq": 9}),
        ("gpt2.legacy.op13.onnx", {"batch": 1, "seq": 6}),
        ("mixed_precision.legacy.op17.onnx", {"batch": 1}),
    ],
)
def test_exported_models_at_batch_1(tmp_path: Path, name: str, sizes: dict[str, int]) -> None:
    original, out = onnx.load(FIXTURES / name), tmp_path / "out.onnx"
    known = signature(original)
    asked = {symbol: sizes.get(symbol, 4) for symbol in known.symbols}
    report = onnxfix.apply(FIXTURES / name, out, fix_dims=asked, rungs=["ort-cpu"])
    passing(report)
    fixed = onnx.load(out)
    assert all(isinstance(size, int) for info in fixed.graph.input for size in dims(info))


def weighted(size: int) -> ModelProto:
    """A model with one weight, and an input that is of no use."""
    text = f"g (float[N, {size}] x, int64 n) => (float[N, {size}] y) {{ a = MatMul(x, w) y = Neg(a) }}"
    model = model_of(text.replace("{ a", f"<float[{size}, {size}] w> {{ a"))
    del model.graph.value_info[:]
    w = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    return model


def weight(model: ModelProto) -> Any:
    return numpy_helper.to_array(next(one for one in model.graph.initializer if one.name == "w"))


def test_a_model_over_the_limit_of_protobuf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = weighted(64)
    path, out = write(tmp_path, original), tmp_path / "out.onnx"
    monkeypatch.setattr(wire, "PROTOBUF_LIMIT", 8000)
    monkeypatch.setattr(loading, "SMALL", 0)
    report = onnxfix.apply(path, out, fix_dims={"N": 2}, fix_inputs={"n": 1}, rungs=["ort-cpu"])
    assert passing(report).compared
    fixed = onnx.load(out)
    assert dims(fixed.graph.input[0]) == [2, 64]
    assert (tmp_path / "out.onnx.data").exists()
    assert np.array_equal(weight(fixed), weight(original))


def test_external_data_goes_along(tmp_path: Path) -> None:
    original = weighted(64)
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    target.mkdir()
    onnx.save(original, source / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    before = (source / "m.onnx").read_bytes()
    model = proven(source / "m.onnx", target / "m.onnx", fix_dims={"N": 2}, fix_inputs={"n": 1})
    assert shapes(model) == {"x": [2, 64], "y": [2, 64]}
    assert sorted(one.name for one in target.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert dims(onnx.load(target / "m.onnx").graph.input[0]) == [2, 64]
    assert (source / "m.onnx").read_bytes() == before


def test_in_place_and_a_raised_operator_set(tmp_path: Path) -> None:
    text = "g (float[N, 2] x, int64 n) => (float[N, 2] y) { a = Add<broadcast = 1>(x, x) y = Exp(a) }"
    path = write(tmp_path, model_of(text, opset=6, ir_version=3))
    report = apply(path, in_place=True, fix_dims={"N": 2}, fix_inputs={"n": 1})
    passing(report)
    assert [one.safety for one in report.applied if one.code == "GRA020"] == ["exact"]
    assert report.output == str(path)
    assert shapes(onnx.load(path)) == {"x": [2, 2], "y": [2, 2]}
