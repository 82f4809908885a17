"""OPS041, OPS042 and OPS098: axes that come at run time, by ONNX's own models, at random, and by the real TensorRT-RTX;
reductions whose axes TensorRT before 11 ignores."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_cases import onnx_cases

from onnxfix.rewrite.engine import check
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety, Severity
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.records import Profile, TrtBuild
from onnxfix.testing import findings, fixed, overlay
from onnxfix_rules.ops.limits._axes import REDUCTIONS
from onnxfix_rules.ops.limits.axes import reduction_over_non_constant_axes, squeeze_over_non_constant_axes
from onnxfix_rules.ops.limits.reductions import reduction_of_booleans
from support import ort
from support.models import of_nodes, of_opset
from support.ort import run_or_reference as run
from support.real_tensorrt import REAL, built
from support.repairs import assert_same_bits, repaired

Feeds = dict[str, Any]
RULES = [reduction_of_booleans, reduction_over_non_constant_axes, squeeze_over_non_constant_axes]


model_of = of_opset(18, 9)


def one_node(
    op_type: str, dims: list[int | str], count: int, elem: int = 1, *, opset: int = 18, **attributes: int
) -> ModelProto:
    """A model of one node whose axes are an input; it says nothing of the result's shape."""
    node = helper.make_node(op_type, ["x", "a"], ["y"], **attributes)
    return of_nodes([node], {"x": (elem, dims), "a": (7, [count])}, {"y": (elem, None)}, opset=opset)


def after(model: ModelProto) -> ModelProto:
    return repaired(RULES, model, target="rtx")[0]


def rank_of_axes(op_type: str, rank: int, count: int) -> int:
    return rank + count if op_type == "Unsqueeze" else rank


# ------------------------------------------------------------------------------- ONNX's own test models


def _reads_axes(model: ModelProto) -> bool:
    inputs = {info.name for info in model.graph.input}
    return any(
        node.op_type in (*REDUCTIONS, "Squeeze", "Unsqueeze") and set(node.input[1:]) & inputs
        for node in model.graph.node
    )


@pytest.mark.xdist_group("nodes")
@pytest.mark.corpus
@pytest.mark.filterwarnings("ignore")
def test_onnx_models_give_what_onnx_expects_and_the_same_for_other_axes() -> None:
    cases = {name: case for name, case in onnx_cases().items() if _reads_axes(case.model)}
    others = 0
    for name, case in cases.items():
        result = after(case.model)
        assert not findings(reduction_over_non_constant_axes, result, "rtx"), name
        onnx.checker.check_model(result)
        for inputs, outputs in case.data_sets:
            feeds = dict(zip((info.name for info in case.model.graph.input), inputs, strict=True))
            for got, expected in zip(run(result, feeds), outputs, strict=True):
                assert (got.dtype, got.shape) == (expected.dtype, np.shape(expected)), name
                wide = np.asarray(got, np.float64), np.asarray(expected, np.float64)
                np.testing.assert_allclose(*wide, case.rtol, 1e-7, err_msg=name)
        others += _with_other_axes(case.model, result, feeds)
    assert len(cases) >= 135
    assert others > 600


def _with_other_axes(model: ModelProto, result: ModelProto, feeds: Feeds) -> int:
    """How often both gave the same bits. The models' declared results are those of their own axes."""
    data, count = feeds[model.graph.input[0].name], len(feeds["axes"])
    if data.size == 0 or not count or model.graph.node[0].op_type == "Squeeze":
        return 0
    free = [ModelProto.FromString(one.SerializeToString()) for one in (model, result)]
    for one in free:
        one.graph.output[0].type.tensor_type.ClearField("shape")
    rank = rank_of_axes(model.graph.node[-1].op_type, data.ndim, count)
    choices = list(itertools.permutations(range(-rank, rank), count))
    unique = [axes for axes in choices if len({axis % rank for axis in axes}) == count][:24]
    for axes in unique:
        given = feeds | {"axes": np.array(axes)}
        assert_same_bits(run(free[0], given), run(free[1], given))
    return len(unique)


# ------------------------------------------------------------------------------------------------ at random


@st.composite
def reductions(draw: st.DrawFn) -> tuple[ModelProto, Feeds]:
    op_type = draw(st.sampled_from(REDUCTIONS))
    rank = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(0, 4), min_size=rank, max_size=rank))
    count = draw(st.integers(0, rank))
    opset = (
        draw(st.sampled_from([18, 20])) if op_type != "ReduceSum" else draw(st.sampled_from([13, 14, 18, 20]))
    )
    dims: list[int | str] = [draw(st.sampled_from([size, f"D{axis}"])) for axis, size in enumerate(sizes)]
    axes = draw(st.permutations(range(rank)))[:count]
    if 0 not in sizes:  # ONNX Runtime 1.31 does not count from the end in an empty tensor
        axes = [axis - draw(st.sampled_from([0, rank])) for axis in axes]
    integers = op_type not in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
    elem = draw(st.sampled_from([TensorProto.FLOAT, TensorProto.INT32] if integers else [TensorProto.FLOAT]))
    keep = draw(st.integers(0, 1))
    idle = draw(st.integers(0, 1))
    model = one_node(op_type, dims, count, elem, opset=opset, keepdims=keep, noop_with_empty_axes=idle)
    values = np.random.default_rng(draw(st.integers(0, 99))).uniform(-9, 9, sizes)
    return model, {"x": values.astype(helper.tensor_dtype_to_np_dtype(elem)), "a": np.array(axes, np.int64)}


@settings(max_examples=100, deadline=None)
@given(reductions())
@pytest.mark.filterwarnings("ignore")
def test_a_reduction_computes_the_same_bits(case: tuple[ModelProto, Feeds]) -> None:
    model, feeds = case
    assert_same_bits(run(model, feeds), run(after(model), feeds))


@st.composite
def squeezes(draw: st.DrawFn) -> tuple[ModelProto, Feeds]:
    op_type = draw(st.sampled_from(["Squeeze", "Unsqueeze"]))
    rank = draw(st.integers(0, 4))
    count = (
        draw(st.integers(0, 8 - rank)) if op_type == "Unsqueeze" else draw(st.integers(min(1, rank), rank))
    )
    of = rank_of_axes(op_type, rank, count)
    axes = draw(st.permutations(range(of)))[:count]
    sizes = draw(st.lists(st.integers(0, 3), min_size=rank, max_size=rank))
    if op_type == "Squeeze":
        sizes = [1 if axis in axes else size for axis, size in enumerate(sizes)]
    dims: list[int | str] = [draw(st.sampled_from([size, f"D{axis}"])) for axis, size in enumerate(sizes)]
    axes = [axis - draw(st.sampled_from([0, of])) for axis in axes]
    model = one_node(op_type, dims, count, opset=draw(st.sampled_from([13, 14, 21])))
    feeds = {"x": np.arange(math.prod(sizes), dtype=np.float32).reshape(sizes), "a": np.array(axes, np.int64)}
    return model, feeds


@settings(max_examples=100, deadline=None)
@given(squeezes())
def test_a_squeeze_gives_the_same_shape(case: tuple[ModelProto, Feeds]) -> None:
    model, feeds = case
    if model.graph.node[0].op_type == "Squeeze" and not len(feeds["a"]):
        return  # ONNX Runtime and ONNX's reference disagree on what that means
    assert_same_bits(run(model, feeds), run(after(model), feeds))


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("keep", [0, 1])
def test_booleans_become_integers_first(op_type: str, keep: int) -> None:
    model = one_node(op_type, [3, 2], 1, TensorProto.BOOL, opset=20, keepdims=keep)
    result = after(model)
    assert sum(node.op_type == op_type for node in result.graph.node) == 2
    x = np.array([[True, True], [True, False], [False, False]])
    for axis in (-2, -1, 0, 1):
        feeds = {"x": x, "a": np.array([axis])}
        assert_same_bits(list(ReferenceEvaluator(model).run(None, feeds)), run(result, feeds))


# ------------------------------------------------------------------------------------- edges of the rewrite


@pytest.mark.parametrize("rank", range(2, 9))
def test_no_two_sets_of_axes_are_taken_for_each_other(rank: int) -> None:
    """Every set of every number of axes; a power of two for each axis would do for a reduction as well."""
    sizes = [2 + axis % 2 for axis in range(rank)]
    x = np.arange(math.prod(sizes), dtype=np.int32).reshape(sizes)
    for count in range(1, rank):
        result = after(one_node("ReduceSum", list(sizes), count, TensorProto.INT32))
        for axes in itertools.islice(itertools.combinations(range(rank), count), 12):
            (got,) = run(result, {"x": x, "a": np.array(axes)})
            np.testing.assert_array_equal(got, x.sum(axes, dtype=np.int32, keepdims=True))


@pytest.mark.parametrize("axes", [[1, 1], [2, 2], [0, -3], [0, 0]])
@pytest.mark.parametrize("keep", [0, 1])
def test_axes_that_repeat_are_taken_for_no_others(axes: list[int], keep: int) -> None:
    model = one_node("ReduceSum", ["N", 3, 4], 2, keepdims=keep)
    (got,) = run(after(model), {"x": np.ones((2, 3, 4), np.float32), "a": np.array(axes)})
    assert got.size == 0


def test_of_the_axes_of_two_reductions_in_a_row_both_come_at_run_time() -> None:
    model = model_of(
        """g (float[2,3,4] x, int64[1] a, int64[1] b) => (float[P] y) {
        r = ReduceSum<keepdims = 0>(x, a)  y = ReduceMax<keepdims = 0>(r, b) }"""
    )
    result = after(model)
    assert sum(node.op_type.startswith("ReduceMax") for node in result.graph.node) == 2
    x = np.random.default_rng(1).random((2, 3, 4), np.float32)
    for first, second in itertools.product((-3, 1, 2), (-2, 1)):
        feeds = {"x": x, "a": np.array([first]), "b": np.array([second])}
        assert_same_bits(run(model, feeds), run(result, feeds))


SAID_ONCE = [
    ("g (float[2,3] x, int64[1] a) => (float[A,B] y) { y = ReduceSum(x, a) }", "OPS041"),
    ("g (float[2,3] x, int64[1] a) => (float[A,B,C] y) { y = Unsqueeze(x, a) }", "OPS042"),
    ("g (float[2,3] x, int64[K] a) => (float[A,B] y) { y = ReduceSum(x, a) }", "OPS040"),
    ("g (bool[2,3] x, int64[1] a) => (bool[A,B] y) { y = ReduceMax(x, a) }", "OPS025"),
    ("g (float x, int64[0] a) => (float y) { y = ReduceSum(x, a) }", "OPS024"),
    ("g (int32[2,3] x, int64[1] a) => (int32[A,B] y) { y = ReduceLogSum(x, a) }", "INT006"),
    ("g (float[1,3] x, int64[0] a) => (float[A] y) { y = Squeeze(x, a) }", "OPS040"),
]


@pytest.mark.parametrize(("text", "code"), SAID_ONCE)
def test_nothing_is_said_twice(text: str, code: str) -> None:
    found = check(overlay(model_of(text, 20), "rtx"), registry().choose())
    assert [item.rule.code for item in found if item.severity == Severity.ERROR] == [code]


# ------------------------------------------------------------------------------------ the real TensorRT-RTX


def build(worker: Worker, model: ModelProto, feeds: list[Feeds], folder: Path) -> TrtBuild:
    return built(worker, model, folder, profiles=[Profile.of_feeds(feeds)])


@REAL
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("int64[1] b) => (float[A,B] y) <int64[1] o = {1}> { a = Sub(o, b)  y = ReduceSum(x, a) }", True),
        ("int32[1] b) => (float[A,B] y) { a = Cast<to = 7>(b)  y = ReduceSum(x, a) }", True),
        (
            "float[M] b) => (float[A,B] y) <int64[1] o = {1}> { s = Shape(b)  a = Sub(s, o)  y = ReduceSum(x, a) }",
            True,
        ),
        ("float[1] b) => (float[A,B] y) { a = Cast<to = 7>(b)  y = ReduceSum(x, a) }", False),
    ],
)
def test_axes_that_are_computed(worker: Worker, tmp_path: Path, text: str, wanted: bool) -> None:
    model = model_of("g (float[2,3] x, " + text)
    result = after(model)
    assert (len(result.graph.node) > len(model.graph.node)) == wanted
    elem = model.graph.input[1].type.tensor_type.elem_type
    b = np.ones(1, helper.tensor_dtype_to_np_dtype(elem))
    feeds = [{"x": np.ones((2, 3), np.float32), "b": b}]
    assert build(worker, result, feeds, tmp_path).accepted == wanted


OF_REDUCTIONS = [rule for rule in registry().rules if rule.code in ("OPS041", "OPS098")]
INF, NAN = np.inf, np.nan

model = of_opset(18)


def before_and_after(text: str, target: str, feed: dict[str, Any]) -> tuple[Any, Any, list[str]]:
    """The output before and after, and the operators after."""
    proto = model(text)
    result, run = fixed(OF_REDUCTIONS, proto, safety=Safety.NUMERIC, target=target)
    assert run.applied
    assert not run.problems
    before, after = (ort.run_or_reference(one, feed)[0] for one in (proto, result))
    return before, after, [node.op_type for node in result.graph.node]


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_logarithms_of_sums_of_infinite_and_huge_elements(kind: str, keep: int) -> None:
    rows = [
        [1, 2, 3], [-INF, -INF, -INF], [INF, 1, 2], [-INF, INF, 0], [NAN, 1, 2], [3.4e38, 3.3e38, -3.4e38],
        [-200, -201, -1e30], [250, 248, -INF],
    ]  # fmt: skip
    x = np.array(rows, {"float": np.float32, "double": np.float64}[kind])
    text = f"""g ({kind}[N,M] x) => ({kind}[{"N,A" if keep else "N"}] y) <int64[1] a = {{-1}}> {{
        y = ReduceLogSumExp<keepdims = {keep}>(x, a) }}"""
    before, after, operators = before_and_after(text, "trt10.6", {"x": x})
    assert "ReduceLogSumExp" not in operators
    np.testing.assert_allclose(after, before, rtol=1e-6)
