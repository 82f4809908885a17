"""The rules about half precision: random norms judged by float64, and TensorRT's own words before and after.

``onnx.reference`` rounds after each node; ONNX Runtime computes half precision in float32 on the CPU, so that it shows
no overflow. No engine is executed.
"""

# Long because: the rules share the models, the evaluator and the questions to TensorRT.

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxfix
from onnxfix.files.walk import copied
from onnxfix.proof.compare import twin
from onnxfix.proof.compare.tolerance import tolerance_for
from onnxfix.proof.verdict import CPU_RUNGS
from onnxfix.rule import Safety
from onnxfix.runtime.backends.reference import evaluator
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.build import attempt
from onnxfix.testing import assert_interface_kept, findings, fixed
from onnxfix_rules.prc.formulas import decomposed_softmax as softmax_rule
from onnxfix_rules.prc.formulas import epsilon_rounds_to_zero as epsilon_rule
from onnxfix_rules.prc.norms import decomposed_norm_in_half_precision as norm_rule
from onnxfix_rules.prc.prc003_constant_beyond_half_precision import (
    constant_beyond_half_precision as mask_rule,
)
from onnxfix_rules.prc.prc004_operands_of_different_types import operands_of_different_types as type_rule
from onnxfix_rules.prc.products import power_in_half_precision as power_rule
from onnxfix_rules.prc.products import scale_after_product as scale_rule
from onnxfix_rules.prc.sums import mean_in_half_precision as mean_rule
from onnxfix_rules.prc.sums import sum_in_half_precision as sum_rule
from support import ort
from support.models import of_nodes, of_opset
from support.paths import FIXTURES
from support.real_tensorrt import REAL

Array = np.ndarray[Any, Any]
EXAMPLES = int(os.environ.get("ONNXFIX_EXAMPLES", "40"))
WARNED = "Detected layernorm nodes in FP16"


model = of_opset(17, 8)


def said(worker: Worker, proto: ModelProto, tmp_path: Path) -> str:
    """What TensorRT says of a model that it takes."""
    onnx.save(proto, tmp_path / "model.onnx")
    build = attempt(worker, tmp_path / "model.onnx", package="tensorrt-rtx")
    assert build.status == "accepted", build
    return "\n".join(issue.text for issue in build.warnings)


def reference(proto: ModelProto, feed: dict[str, Array]) -> Array:
    return np.asarray(ort.reference(proto, feed)[0])


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


def loud_bert() -> tuple[ModelProto, dict[str, Array]]:
    """bert_fp16 with embeddings whose sum, over one row of 32, passes 65504."""
    proto = onnx.load(FIXTURES / "bert_fp16.legacy.op13.onnx")
    [words] = [one for one in proto.graph.initializer if one.name.endswith("word_embeddings.weight")]
    loud = 4000 + 1e5 * numpy_helper.to_array(words).astype(float)
    words.CopyFrom(numpy_helper.from_array(loud.astype(np.float16), words.name))
    tokens = np.arange(1, 13).reshape(2, 6)  # 0 is padding, whose embedding is 0: a constant row
    return proto, {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}


def bright_vit() -> tuple[ModelProto, dict[str, Array]]:
    pixels = np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype(np.float16)
    return onnx.load(FIXTURES / "vit_fp16.legacy.op16.onnx"), {"pixel_values": pixels}


@pytest.mark.parametrize("make", [loud_bert, bright_vit])
def test_transformers_overflow_before_and_not_after(
    make: Callable[[], tuple[ModelProto, dict[str, Array]]], tmp_path: Path
) -> None:
    before, feed = make()
    wide = evaluator(twin.widened(copied(before), TensorProto.FLOAT))
    [single] = wide.run(None, {name: twin.raised(value, TensorProto.FLOAT) for name, value in feed.items()})
    assert single.dtype == np.float32
    assert np.isfinite(single).all()
    lost = watched(before, feed)
    if make is loud_bert:
        assert np.isnan(lost).all(), "the mean is infinite"
    else:
        assert np.isfinite(lost).all(), "a variance is infinite, the quotient 0"
        assert np.abs(lost[:, 0] - single[:, 0]).max() > 3, "the class token"
    onnx.save(before, tmp_path / "in.onnx")
    np.savez(tmp_path / "feed.npz", **feed)
    report = onnxfix.apply(
        tmp_path / "in.onnx",
        tmp_path / "out.onnx",
        numeric_fixes=True,
        rungs=CPU_RUNGS,
        inputs=tmp_path / "feed.npz",
    )
    assert not report.withdrawn
    assert report.verdict is not None
    reference = next(one for one in report.verdict.rungs if one.name == "reference")
    assert "judged by the original in float64" in reference.reason
    found = watched(onnx.load(tmp_path / "out.onnx"), feed)
    assert found.dtype == np.float16
    limit = tolerance_for("float16")
    np.testing.assert_allclose(found, single, rtol=limit.rtol, atol=limit.atol * np.abs(single).max())


def watched(proto: ModelProto, feed: dict[str, Array]) -> Array:
    """By onnx's evaluator as onnxfix makes it, with LayerNormalization in float32 and GatherElements put right."""
    with np.errstate(all="ignore"):
        return np.asarray(evaluator(proto).run(None, feed)[0])


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
    extra = draw(st.sampled_from([None, None, None, "a", "q", "s"]))
    layer = draw(st.booleans())
    nodes, weights = [], {"e": epsilon.reshape([1] * draw(st.integers(0, rank)))}

    def over_axes(op_type: str, source: str, target: str, over: list[int], since: int, **more: Any) -> None:
        inputs, attributes = [source], {"axes": over}
        if opset >= since:
            weights[f"{target}_axes"] = np.array(over, np.int64)
            inputs, attributes = [source, f"{target}_axes"], {}
        nodes.append(helper.make_node(op_type, inputs, [target], **attributes, **more))

    def mean(source: str, target: str, over: list[int]) -> None:
        """One ReduceMean; or a ReduceSum over the number of elements; the dimensions kept, or put back."""
        made, put_back = target, draw(st.integers(0, 3)) == 0
        total, more = draw(st.integers(0, 3)) == 0, {}
        if put_back:
            made, more = f"{target}_flat", {"keepdims": 0}
        first = f"{made}_sum" if total else made
        over_axes("ReduceSum" if total else "ReduceMean", source, first, over, 13 if total else 18, **more)
        if total:
            count = math.prod(shape[axis] for axis in over)
            shrinks = draw(st.booleans())
            weights[f"{made}_n"] = np.float16(1 / count if shrinks else count)
            nodes.append(helper.make_node("Mul" if shrinks else "Div", [first, f"{made}_n"], [made]))
        if put_back:
            over_axes("Unsqueeze", made, target, sorted(axis % rank for axis in over), 13)

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
        ).reshape([1] * draw(st.integers(0, rank)))
        add("Pow", data, "two", "q")
    else:
        add("Mul", data, data, "q")
    mean("q", "v", written)
    add("Add", *draw(st.permutations(["v", "e"])), "a")
    form = draw(st.sampled_from(["Div", "Reciprocal", "one", "-0.5"]))
    if form == "-0.5" or draw(st.booleans()):
        weights["h"] = np.array(-0.5 if form == "-0.5" else 0.5, np.float16)
        add("Pow", "a", "h", "s")
    else:
        add("Sqrt", "a", "s")
    if form == "Div":
        add("Div", data, "s", "n")
    elif form == "-0.5":
        add("Mul", *draw(st.permutations([data, "s"])), "n")
    else:
        if form == "one":
            weights["one"] = np.ones([1] * draw(st.integers(0, rank)), np.float16)
        add(*(("Reciprocal", "s") if form == "Reciprocal" else ("Div", "one", "s")), "r")
        add("Mul", *draw(st.permutations([data, "r"])), "n")
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    loud = draw(st.sampled_from([1, 1, 300])) if extra is None else 1  # squares pass 65504
    result, value = "n", (loud * rng.normal(size=shape)).astype(np.float16)
    x = value.astype(float)
    less = x - x.mean(tuple(others), keepdims=True) if layer else x
    exact = less / np.sqrt((less**2).mean(wanted, keepdims=True) + float(epsilon))
    for op_type, name, apply in (("Mul", "g", np.multiply), ("Add", "b", np.add)):
        if draw(st.booleans()):
            kept = shape[draw(st.integers(0, rank)) :]
            ones = [1] * draw(st.integers(0, rank - len(kept)))
            weights[name] = rng.uniform(0.5, 1.5, [*ones, *kept]).astype(np.float16)
            add(op_type, *draw(st.permutations([result, name])), f"{result}{name}")
            result, exact = f"{result}{name}", apply(exact, weights[name].astype(float))
    nodes[-1].output[0] = "y"
    outputs = ["y"]
    if extra is not None:
        add("Neg", extra, "z")
        outputs.append("z")
    half = TensorProto.FLOAT16
    declared = {name: (half, [f"{name}{i}" for i in range(rank)]) for name in outputs}
    made = of_nodes(nodes, {"x": (half, shape)}, declared, weights, opset=opset, ir_version=10)
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
    if not free:
        assert result.SerializeToString(deterministic=True) == proto.SerializeToString(deterministic=True)
        return  # how far half precision takes the original from the exact result is no matter of the rule
    got = watched(result, {"x": value})
    assert got.shape == exact.shape
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype(float), exact, rtol=5e-3, atol=2e-2)
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


# ------------------------------------------------------------------------------------------------- types


def mixed(name: str, body: str) -> ModelProto:
    return model(f"g (float16[2,2] x) => (float16[{3 if name == 'Concat' else 2},2] y) {body}")


APART = {
    "Where": (
        "<bool c = {1}, TYPE b = {1}> { y = Where(c, x, b) }",
        "<bool c = {1}, TYPE b = {1}> { y = Where(c, b, x) }",
    ),
    "Pad": ("<int64[4] p = {0, 0, 0, 0}, TYPE b = {1}> { y = Pad(x, p, b) }",),
}


@pytest.mark.parametrize(("name", "body"), [(name, body) for name in APART for body in APART[name]])
def test_inputs_of_types_of_their_own_hide_no_others(name: str, body: str) -> None:
    for kind, wanted in (("float", 1), ("float16", 0)):
        assert len(findings(type_rule, mixed(name, body.replace("TYPE", kind)))) == wanted


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


# ------------------------------------------------------------------------------------------------- what else overflows

_AXIS = "k = Constant<value_ints=[1]>()"
OVERFLOWS = {
    # name: (rule, graph, opset, the value of all elements but the first, which is 0; the result for the last one)
    "softmax": (
        softmax_rule,
        f"g (float16[2,200] x) => (float16[2,200] y) {{ {_AXIS}  e = Exp(x)  s = ReduceSum(e, k)  y = Div(e, s) }}",
        17,
        12.0,
        1 / 199,
    ),
    "softmax before 13": (
        softmax_rule,
        "g (float16[2,200] x) => (float16[2,200] y) { e = Exp(x)  s = ReduceSum<axes=[1]>(e)  y = Div(e, s) }",
        11,
        100.0,
        1 / 199,
    ),
    "divided sum": (
        sum_rule,
        f"g (float16[2,200] x) => (float16[2,1] y) <float16 n = {{23104}}> {{ {_AXIS}  s = ReduceSum(x, k)"
        "  y = Div(s, n) }",
        17,
        400.0,
        199 * 400 / 200,
    ),
    "scaled sum of squares": (
        sum_rule,
        "g (float16[2,200] x) => (float16[2,1] y) <float16 n = {5120}>"
        " { s = ReduceSumSquare<axes=[1]>(x)  y = Mul(s, n) }",
        13,
        200.0,
        199 * 200**2 / 1024,
    ),
    "mean": (
        mean_rule,
        "g (float16[2,200] x) => (float16[2,1] y) { y = ReduceMean<axes=[1]>(x) }",
        17,
        400.0,
        398,
    ),
    "mean of all": (
        mean_rule,
        "g (float16[2,200] x) => (float16[1,1] y) { y = ReduceMean(x) }",
        18,
        400.0,
        399,
    ),
}


def rows(value: float) -> dict[str, Array]:
    made = np.full((2, 200), value, np.float16)
    made[0, 0] = made[1, 0] = 0
    return {"x": made}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_what_overflows_is_finite_after(name: str) -> None:
    rule, text, opset, value, result = OVERFLOWS[name]
    before = model(text, opset)
    after, run = fixed([rule], before, safety=Safety.NUMERIC)
    assert len(run.applied) == 1
    assert not findings(rule, after)
    onnx.checker.check_model(after, full_check=True)
    assert not np.isfinite(reference(before, rows(value))).all()
    found = reference(after, rows(value)).astype(float)
    np.testing.assert_allclose(found[..., -1], 398 if name == "mean of all" else result, rtol=2e-3)


POWERS = {
    "cube": ("<float16 c = {16896}> { y = Pow(x, c) }", 41.0),
    "square": ("<float16 c = {16384}> { y = Pow(x, c) }", 257.0),
    "exponential": ("{ y = Exp(x) }", 11.2),
}


@pytest.mark.parametrize("name", POWERS)
def test_powers_are_reported_where_they_overflow(name: str) -> None:
    body, value = POWERS[name]
    before = model(f"g (float16[2] x) => (float16[2] y) {body}")
    assert len(findings(power_rule, before)) == 1
    assert np.isinf(reference(before, {"x": np.full(2, value, np.float16)})).all()
    assert np.isfinite(reference(before, {"x": np.full(2, 0.95 * value, np.float16)})).all()
