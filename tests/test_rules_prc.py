"""The rules about half precision: random norms judged by float64, and TensorRT's own words before and after.

``onnx.reference`` rounds after each node; ONNX Runtime computes half precision in float32 on the CPU, so that it shows
no overflow. No engine is executed.
"""

# Long because: four rules share the models, the evaluator and the questions to TensorRT.

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onnxfix
from onnxfix.backends.tensorrt import attempt
from onnxfix.rule import Safety, Severity
from onnxfix.sandbox import Worker
from onnxfix.testing import assert_interface_kept, findings, fixed
from onnxfix_rules.prc.prc001_decomposed_layer_norm import decomposed_norm_in_half_precision as norm_rule
from onnxfix_rules.prc.prc002_epsilon_that_is_zero import epsilon_that_is_zero as epsilon_rule
from onnxfix_rules.prc.prc003_constant_beyond_half_precision import (
    constant_beyond_half_precision as mask_rule,
)
from onnxfix_rules.prc.prc004_operands_of_different_types import operands_of_different_types as type_rule
from onnxfix_rules.prc.prc005_sum_in_half_precision import sum_in_half_precision as sum_rule
from onnxfix_rules.prc.prc006_scale_after_product import scale_after_product as scale_rule
from real_tensorrt import REAL

Array = np.ndarray[Any, Any]
EXAMPLES = int(os.environ.get("ONNXFIX_EXAMPLES", "150"))
FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
WARNED = "Detected layernorm nodes in FP16"


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as one:
        yield one


def model(text: str, opset: int = 17, ir_version: int = 8) -> ModelProto:
    return onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>\n{text}')


def said(worker: Worker, proto: ModelProto, tmp_path: Path) -> str:
    """What TensorRT says of a model that it takes."""
    onnx.save(proto, tmp_path / "model.onnx")
    build = attempt(worker, tmp_path / "model.onnx", package="tensorrt-rtx")
    assert build.status == "accepted", build
    return "\n".join(issue.text for issue in build.warnings)


def reference(proto: ModelProto, feed: dict[str, Array]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(ReferenceEvaluator(proto).run(None, feed)[0])


def ops(proto: ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


# ------------------------------------------------------------------------------------------------- norms

LAYER = """g (float16[2,8] x) => (float16[2,8] y) <float16 e = {168}, float16 two = {16384}> {
    m = ReduceMean<axes=[-1]>(x)  d = Sub(x, m)  q = Pow(d, two)  v = ReduceMean<axes=[-1]>(q)  a = Add(v, e)
    s = Sqrt(a)  y = Div(d, s) }"""
RMS = """g (float16[2,8] x) => (float16[2,8] y) <float16 e = {168}> { q = Mul(x, x)
    v = ReduceMean<axes=[-1]>(q)  a = Add(v, e)  s = Sqrt(a)  r = Reciprocal(s)  y = Mul(x, r) }"""
DOUBLE = """g (float16[2,8] x) => (float16[2,8] y) <double e = {0.00001}, double two = {2}> {
    m = ReduceMean<axes=[-1]>(x)  h = Sub(x, m)  d = Cast<to=11>(h)  q = Pow(d, two)  v = ReduceMean<axes=[-1]>(q)
    a = Add(v, e)  s = Sqrt(a)  t = Div(d, s)  y = Cast<to=10>(t) }"""
NORMS = {
    "layer": (LAYER, 17, ["LayerNormalization"]),
    "layer-before-17": (LAYER, 13, None),
    "channels": (LAYER.replace("[-1]", "[0]"), 17, None),
    "rms": (RMS, 17, None),
    "mean-only": (DOUBLE, 13, None),
}


@REAL
@pytest.mark.parametrize("name", NORMS)
def test_tensorrt_warns_before_and_not_after(name: str, worker: Worker, tmp_path: Path) -> None:
    text, opset, becomes = NORMS[name]
    before = model(text, opset)
    assert WARNED in said(worker, before, tmp_path)
    after, run = fixed([norm_rule], before, safety=Safety.NUMERIC)
    assert len(run.applied) == 1
    assert WARNED not in said(worker, after, tmp_path)
    assert becomes is None or ops(after) == becomes


@REAL
@pytest.mark.parametrize(
    "text",
    [
        LAYER.replace("float16", "float").replace("{168}", "{0.00001}").replace("{16384}", "{2}"),
        LAYER.replace("float16", "bfloat16").replace("{168}", "{15104}"),
        "g (float16[2,8] x) => (float16[2,1] y) { q = Mul(x, x)  y = ReduceMean<axes=[-1]>(q) }",
    ],
    ids=["float32", "bfloat16", "mean of squares"],
)
def test_tensorrt_and_the_rule_are_silent(text: str, worker: Worker, tmp_path: Path) -> None:
    proto = model(text)
    assert WARNED not in said(worker, proto, tmp_path)
    assert not findings(norm_rule, proto)


@REAL
def test_half_precision_bert_loses_the_warning(worker: Worker, tmp_path: Path) -> None:
    before = onnx.load(FIXTURES / "bert_fp16.legacy.op13.onnx")
    assert WARNED in said(worker, before, tmp_path)
    after, run = fixed([norm_rule], before, safety=Safety.NUMERIC)
    assert len(run.applied) == 5
    assert WARNED not in said(worker, after, tmp_path)


def test_half_precision_bert_is_proven_within_tolerance(tmp_path: Path) -> None:
    report = onnxfix.apply(
        FIXTURES / "bert_fp16.legacy.op13.onnx",
        tmp_path / "out.onnx",
        select=["PRC001"],
        numeric_fixes=True,
        rungs=["contract", "ort-cpu"],
    )
    assert len(report.applied) == 5
    assert not report.withdrawn


@pytest.mark.parametrize("width", [8, 768])
@pytest.mark.parametrize("text", [LAYER, RMS], ids=["layer", "rms"])
def test_overflow_is_gone_in_float32(text: str, width: int) -> None:
    before = model(text.replace("[2,8]", f"[2,{width}]"), 13)
    row = np.resize(np.array([0, 600], np.float16), (2, width))
    exact = row.astype(float) - (row.astype(float).mean() if text is LAYER else 0)
    exact /= np.sqrt((exact**2).mean(-1, keepdims=True))
    lost = reference(before, {"x": row})
    assert not np.allclose(lost, exact, atol=0.5)
    after, _ = fixed([norm_rule], before, safety=Safety.NUMERIC)
    np.testing.assert_allclose(reference(after, {"x": row}), exact, atol=2e-3)


@st.composite
def norms(draw: st.DrawFn) -> tuple[ModelProto, Array, Array, bool]:
    """A random norm: the model, its input, what float64 makes of it, and whether it may be replaced."""
    opset = draw(st.sampled_from([11, 13, 17, 18, 23]))
    shape = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, 2)))] + [draw(st.integers(4, 9))]
    rank = len(shape)
    axes = draw(st.lists(st.integers(0, rank - 1), min_size=1, max_size=rank, unique=True))
    wanted = tuple(axes)
    written = [axis - rank if draw(st.booleans()) else axis for axis in axes]
    others = [(axis + 1) % rank for axis in axes] if draw(st.integers(0, 5)) == 0 else axes
    epsilon = np.float16(draw(st.sampled_from([1e-5, 1e-3, 0.5])))
    layer = draw(st.booleans())
    nodes, weights = [], {"e": epsilon.reshape([1] * draw(st.integers(0, 1)))}

    def mean(source: str, target: str, over: list[int]) -> None:
        inputs, attributes = [source], {"axes": over}
        if opset >= 18:
            weights[f"{target}_axes"] = np.array(over, np.int64)
            inputs, attributes = [source, f"{target}_axes"], {}
        nodes.append(helper.make_node("ReduceMean", inputs, [target], **attributes))

    def add(op_type: str, *names: str) -> None:
        nodes.append(helper.make_node(op_type, list(names[:-1]), [names[-1]]))

    data = "x"
    if layer:
        mean("x", "m", others)
        add("Sub", "x", "m", "d")
        data = "d"
    if draw(st.booleans()):
        weights["two"] = np.array(
            2, draw(st.sampled_from([np.float16, np.float32, np.int64])) if opset >= 13 else np.float16
        )
        add("Pow", data, "two", "q")
    else:
        add("Mul", data, data, "q")
    mean("q", "v", written)
    add("Add", *draw(st.permutations(["v", "e"])), "a")
    add("Sqrt", "a", "s")
    form = draw(st.sampled_from(["Div", "Reciprocal"]))
    if form == "Div":
        add("Div", data, "s", "n")
    else:
        add("Reciprocal", "s", "r")
        add("Mul", *draw(st.permutations([data, "r"])), "n")
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    result, value = "n", rng.normal(size=shape).astype(np.float16)
    x = value.astype(float)
    less = x - x.mean(tuple(others), keepdims=True) if layer else x
    exact = less / np.sqrt((less**2).mean(wanted, keepdims=True) + float(epsilon))
    for op_type, name, apply in (("Mul", "g", np.multiply), ("Add", "b", np.add)):
        if draw(st.booleans()):
            kept = shape[draw(st.integers(0, rank)) :]
            weights[name] = rng.uniform(0.5, 1.5, kept).astype(np.float16)
            add(op_type, *draw(st.permutations([result, name])), f"{result}{name}")
            result, exact = f"{result}{name}", apply(exact, weights[name].astype(float))
    nodes[-1].output[0] = "y"
    extra = draw(st.sampled_from([None, None, None, "a", "q", "s"]))
    outputs = ["y"]
    if extra is not None:
        add("Neg", extra, "z")
        outputs.append("z")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, shape)],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT16, [f"{name}{i}" for i in range(rank)])
            for name in outputs
        ],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    # A difference from another mean is a tensor like any other: an RMSNorm of it.
    return made, value, exact, extra is None


@settings(max_examples=EXAMPLES)
@given(norms())
def test_random_norms(case: tuple[ModelProto, Array, Array, bool]) -> None:
    proto, value, exact, free = case
    onnx.checker.check_model(proto, full_check=True)
    assert findings(norm_rule, proto)
    result, run = fixed([norm_rule], proto, safety=Safety.NUMERIC)
    assert not run.problems
    assert bool(run.applied) == free
    onnx.checker.check_model(result, full_check=True)
    assert_interface_kept(proto, result)
    again, second = fixed([norm_rule], result, safety=Safety.NUMERIC)
    assert not second.applied
    assert again.SerializeToString(deterministic=True) == result.SerializeToString(deterministic=True)
    got = reference(result, {"x": value})
    assert got.shape == exact.shape
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype(float), exact, rtol=5e-3, atol=2e-2)
    if free:
        fused = {"LayerNormalization", "RMSNormalization"}.intersection(ops(result))
        assert fused or "Cast" in ops(result)
        assert not findings(norm_rule, result)


# ------------------------------------------------------------------------------------------------- epsilons

STORED = LAYER.replace("{168}", "{0}")
CAST = LAYER.replace("float16 e = {168}, ", "").replace(
    "{\n", "{ f = Constant<value_float=1e-12>()  e = Cast<to=10>(f)\n", 1
)
LOGARITHM = "g (float16[2,8] x) => (float16[2,8] y) <float16 e = {0}> { a = Add(x, e)  y = Log(a) }"


@pytest.mark.parametrize("text", [STORED, CAST, LOGARITHM], ids=["stored", "cast", "logarithm"])
def test_an_epsilon_of_zero_is_no_guard(text: str) -> None:
    before = model(text)
    zeros = {"x": np.zeros((2, 8), np.float16)}
    assert not np.isfinite(reference(before, zeros)).any()
    after, run = fixed([epsilon_rule], before, safety=Safety.UNSAFE)
    assert [item.safety for item in run.applied] == [Safety.UNSAFE]
    assert np.isfinite(reference(after, zeros)).all()
    plain = {"x": np.linspace(0.5, 4, 16).astype(np.float16).reshape(2, 8)}
    np.testing.assert_allclose(reference(after, plain), reference(before, plain), rtol=1e-2)
    assert not fixed([epsilon_rule], before, safety=Safety.NUMERIC)[1].applied


@REAL
@pytest.mark.parametrize("text", [STORED, CAST, LOGARITHM], ids=["stored", "cast", "logarithm"])
def test_tensorrt_says_nothing_of_an_epsilon(text: str, worker: Worker, tmp_path: Path) -> None:
    before = model(text)
    assert "psilon" not in said(worker, before, tmp_path)
    after, _ = fixed([epsilon_rule], before, safety=Safety.UNSAFE)
    said(worker, after, tmp_path)


def test_the_epsilon_comes_before_the_norm() -> None:
    after, run = fixed([norm_rule, epsilon_rule], model(STORED), safety=Safety.UNSAFE)
    assert [item.key.code for item in run.applied] == ["PRC002", "PRC001"]
    assert ops(after) == ["LayerNormalization"]
    assert {a.name: a.f for a in after.graph.node[0].attribute}["epsilon"] == np.float16(1e-7)


def halves() -> st.SearchStrategy[int]:
    """Bits of a float16, with many around 0."""
    return st.one_of(st.integers(0, 4), st.integers(0x8000, 0x8004), st.integers(0, 0xFFFF))


@settings(max_examples=EXAMPLES)
@given(halves(), st.booleans())
def test_only_zero_is_found(bits: int, cast: bool) -> None:
    number = np.array(bits, np.uint16).view(np.float16)
    before = model("g (float16[2] x) => (float16[2] y) { a = Add(x, e)  y = Log(a) }")
    before.graph.initializer.append(numpy_helper.from_array(number.reshape(()), "e"))
    if cast:  # halfway to the next float16 towards 0, which is rounded to an even last bit
        wide = np.array(float(number) * 0.5 if abs(float(number)) < 1e-7 else float(number), np.float32)
        before.graph.initializer[0].CopyFrom(numpy_helper.from_array(wide, "f"))
        before.graph.node.insert(0, helper.make_node("Cast", ["f"], ["e"], to=TensorProto.FLOAT16))
        with np.errstate(all="ignore"):
            number = wide.astype(np.float16)
    assert bool(findings(epsilon_rule, before)) == bool(number == 0)


# ------------------------------------------------------------------------------------------------- masks

MASKS = {
    "where": "<float16 i = {64512}> { w = Where(c, x, i)  y = Softmax<axis=-1>(w) }",
    "cast": "<float i = {-3.4e38}> { h = Cast<to=10>(i)  w = Where(c, x, h)  y = Softmax<axis=-1>(w) }",
    "cast later": "<float i = {-3.4e38}, float z = {0}> { w = Where(c, z, i)  h = Cast<to=10>(w)  a = Add(x, h)"
    "  y = Softmax<axis=-1>(a) }",
    "product": "<float i = {-3.4e38}> { h = Cast<to=10>(i)  n = Not(c)  f = Cast<to=10>(n)  m = Mul(f, h)"
    "  a = Add(x, m)  y = Softmax<axis=-1>(a) }",
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_finite(name: str) -> None:
    before = model(f"g (float16[2,4] x, bool[2,4] c) => (float16[2,4] y) {MASKS[name]}")
    some, none = np.array([[1, 0, 1, 1], [0, 1, 1, 0]], bool), np.zeros((2, 4), bool)
    x = np.array([[1, 2, 3, 4], [-1, 0, 1, 7]], np.float16)
    assert len(findings(mask_rule, before)) == 1
    after, run = fixed([mask_rule], before, safety=Safety.UNSAFE)
    assert len(run.applied) == 1
    assert not findings(mask_rule, after)
    assert np.isnan(reference(before, {"x": x, "c": none})).all()
    np.testing.assert_allclose(reference(after, {"x": x, "c": none}).sum(-1), 1, atol=1e-2)
    wanted = np.where(some, np.exp(x.astype(float)), 0)
    wanted /= wanted.sum(-1, keepdims=True)
    np.testing.assert_allclose(reference(after, {"x": x, "c": some}), wanted, atol=2e-3)
    if name != "product":  # there 0 * -inf spoils the rest as well
        np.testing.assert_array_equal(
            reference(after, {"x": x, "c": some}), reference(before, {"x": x, "c": some})
        )
    assert not fixed([mask_rule], before, safety=Safety.NUMERIC)[1].applied


@REAL
@pytest.mark.parametrize("name", MASKS)
def test_tensorrt_says_nothing_of_masks(name: str, worker: Worker, tmp_path: Path) -> None:
    before = model(f"g (float16[2,4] x, bool[2,4] c) => (float16[2,4] y) {MASKS[name]}")
    after, _ = fixed([mask_rule], before, safety=Safety.UNSAFE)
    assert said(worker, before, tmp_path) == said(worker, after, tmp_path)


# ------------------------------------------------------------------------------------------------- types

MIXED = {
    "Add": "<float b = {2}> { y = Add(x, b) }",
    "MatMul": "<float[2,2] b = {1, 2, 3, 4}> { y = MatMul(x, b) }",
    "Gemm": "<float16[2,2] w = {1, 2, 3, 4}, float[2] b = {1, 2}> { y = Gemm(x, w, b) }",
    "LayerNormalization": "<float[2] b = {1, 2}> { y = LayerNormalization(x, b) }",
    "Concat": "<float[1,2] b = {1, 2}> { u = Concat<axis=0>(x, b)  y = Identity(u) }",
    "Where": "<bool c = {1}, float b = {1}> { y = Where(c, x, b) }",
    "Max": "<float b = {1}> { y = Max(x, b) }",
    "Mul by an integer": "<int64 b = {2}> { y = Mul(x, b) }",
}


def mixed(name: str, body: str) -> ModelProto:
    return model(f"g (float16[2,2] x) => (float16[{3 if name == 'Concat' else 2},2] y) {body}")


@REAL
@pytest.mark.parametrize("name", MIXED)
def test_tensorrt_refuses_mixed_types(name: str, worker: Worker, tmp_path: Path) -> None:
    before = mixed(name, MIXED[name])
    onnx.save(before, tmp_path / "model.onnx")
    assert attempt(worker, tmp_path / "model.onnx", package="tensorrt-rtx").status == "refused"
    assert [found.severity for found in findings(type_rule, before)] == [Severity.ERROR]
    after, run = fixed([type_rule], before, safety=Safety.NUMERIC)
    assert len(run.applied) == 1
    said(worker, after, tmp_path)
    onnx.checker.check_model(after, full_check=True)


@REAL
@pytest.mark.parametrize("body", ["<float b = {2}> { y = Clip(x, b) }", "<float b = {2}> { y = Pow(x, b) }"])
def test_tensorrt_takes_some_mixed_types(body: str, worker: Worker, tmp_path: Path) -> None:
    before = mixed("", body)
    said(worker, before, tmp_path)
    assert not [found for found in findings(type_rule, before) if found.severity == Severity.ERROR]


@settings(max_examples=EXAMPLES)
@given(
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=4),
    st.sampled_from([np.float16, np.float32]),
    st.sampled_from(["Add", "Max", "PRelu"]),
)
def test_constants_are_rounded_or_left(numbers: list[float], data: type[Any], op_type: str) -> None:
    wide = np.float32 if data is np.float16 else np.float16
    with np.errstate(all="ignore"):
        array = np.array(numbers, wide)
        wanted = array.astype(data)
    kind = "float16" if data is np.float16 else "float"
    before = model(
        f"g ({kind}[2,{len(numbers)}] x) => ({kind}[2,{len(numbers)}] y) {{ y = {op_type}(x, b) }}"
    )
    before.graph.initializer.append(numpy_helper.from_array(array, "b"))
    after, run = fixed([type_rule], before, safety=Safety.NUMERIC)
    kept = np.array_equal(np.isinf(wanted), np.isinf(array)) and np.array_equal(wanted == 0, array == 0)
    assert bool(run.applied) == kept
    if kept:
        [stored] = after.graph.initializer
        np.testing.assert_array_equal(numpy_helper.to_array(stored), wanted)
        onnx.checker.check_model(after, full_check=True)


# ------------------------------------------------------------------------------------------------- scores

SCORES = {
    "Div": "<float16 c = {18432}> { s = MatMul(q, k)  y = Div(s, c) }",
    "Mul": "<float16 c = {12288}> { s = MatMul(q, k)  y = Mul(c, s) }",
}


@pytest.mark.parametrize("name", SCORES)
def test_scores_overflow_before_and_not_after(name: str) -> None:
    before = model(f"g (float16[2,128] q, float16[128,2] k) => (float16[2,2] y) {SCORES[name]}")
    after, run = fixed([scale_rule], before, safety=Safety.NUMERIC)
    assert len(run.applied) == 1
    assert not findings(scale_rule, after)
    feed = {"q": np.full((2, 128), 100, np.float16), "k": np.full((128, 2), 10, np.float16)}
    assert np.isinf(reference(before, feed)).all()
    np.testing.assert_array_equal(reference(after, feed), np.full((2, 2), 16000, np.float16))
    rng = np.random.default_rng(0)
    small = {one: rng.normal(size=array.shape).astype(np.float16) for one, array in feed.items()}
    np.testing.assert_array_equal(reference(after, small), reference(before, small))  # a power of two


@REAL
@pytest.mark.parametrize("name", SCORES)
def test_tensorrt_says_nothing_of_scores(name: str, worker: Worker, tmp_path: Path) -> None:
    before = model(f"g (float16[2,128] q, float16[128,2] k) => (float16[2,2] y) {SCORES[name]}")
    after, _ = fixed([scale_rule], before, safety=Safety.NUMERIC)
    assert said(worker, before, tmp_path) == said(worker, after, tmp_path)


# ------------------------------------------------------------------------------------------------- sums


@pytest.mark.parametrize(
    ("op_type", "value", "result"), [("ReduceL2", 300, 3000), ("ReduceLogSumExp", 20, 24.605)]
)
def test_sums_pass_the_limit_before_and_not_after(op_type: str, value: float, result: float) -> None:
    before = model(f"g (float16[1,100] x) => (float16[1,1] y) {{ y = {op_type}<axes=[1]>(x) }}")
    after, run = fixed([sum_rule], before, safety=Safety.NUMERIC)
    assert len(run.applied) == 1
    assert not findings(sum_rule, after)
    feed = {"x": np.full((1, 100), value, np.float16)}
    if op_type == "ReduceL2":  # onnx.reference subtracts the maximum before it exponentiates
        assert np.isinf(reference(before, feed)).all()
    np.testing.assert_allclose(reference(after, feed), [[result]], rtol=1e-3)


@REAL
@pytest.mark.parametrize("op_type", ["ReduceL2", "ReduceLogSumExp", "ReduceSumSquare"])
def test_tensorrt_says_nothing_of_sums(op_type: str, worker: Worker, tmp_path: Path) -> None:
    before = model(f"g (float16[1,100] x) => (float16[1,1] y) {{ y = {op_type}<axes=[1]>(x) }}")
    after, _ = fixed([sum_rule], before, safety=Safety.NUMERIC)
    assert said(worker, before, tmp_path) == said(worker, after, tmp_path) == ""
