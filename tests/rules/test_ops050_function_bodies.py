"""OPS050: bodies of ONNX's functions, by ONNX's own test models and by TensorRT's real parser and builder."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, defs, helper, parser
from onnx_cases import onnx_cases

from onnxfix.model import Model
from onnxfix.rewrite.engine import Applied
from onnxfix.rule import Safety
from onnxfix.testing import assert_same_outputs, findings
from onnxfix_rules.ops.expansions import _bodies
from onnxfix_rules.ops.expansions.ops050_operator_with_function_body import (
    FUNCTIONS,
    operator_with_function_body,
)
from support import models
from support.ort import run_or_reference as run
from support.repairs import repaired

pytestmark = pytest.mark.corpus


def model_of(text: str, opset: int) -> ModelProto:
    ir_version = 9 if opset < 21 else 11 if opset < 26 else 13
    return models.model(text, opset, ir_version)


def after(
    model: ModelProto, target: str = "rtx", safety: Safety = Safety.NUMERIC
) -> tuple[ModelProto, tuple[Applied, ...]]:
    result, run = repaired([operator_with_function_body], model, safety=safety, target=target)
    return result, run.applied


def ops(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node if node.op_type != "Constant"]


def test_every_function_of_onnx_is_listed() -> None:
    known = {
        f"{schema.domain}::{schema.name}" if schema.domain else schema.name
        for schema in defs.get_all_schemas_with_history()
        if schema.has_function or schema.has_context_dependent_function
    }
    assert known - FUNCTIONS == {"SequenceMap", "Bernoulli"}


# ------------------------------------------------------------------------------- ONNX's own test models


NODE_MODELS = [
    "affine_grid_2d", "affine_grid_2d_align_corners", "affine_grid_3d", "affine_grid_3d_align_corners",
    "attention_3d_with_past_and_present_qk_matmul_softcap", "attention_4d_causal", "attention_4d_diff_heads_sizes",
    "attention_4d_gqa_attn_mask", "attention_4d_with_qk_matmul_softmax", "attention_4d_attn_mask_bool_4d",
    "causal_conv_with_state_silu_with_past_state", "causal_conv_with_state_fp16", "celu_float16",
    "center_crop_pad_crop_and_pad", "center_crop_pad_crop_negative_axes_hwc", "flexattention_causal_mask",
    "flexattention_gqa", "layer_normalization_2d_axis0", "layer_normalization_4d_axis_negative_3",
    "linear_attention_delta", "linear_attention_fp16", "linear_attention_gated", "linear_attention_linear",
    "linear_attention_prefill_with_past", "nllloss_NCd1d2_with_weight_reduction_sum_ii", "nllloss_NC",
    "sce_NCd1d2d3_none_no_weight_negative_ii_log_prob", "sce_mean_weight_ii_4d", "sce_none_log_prob", "sce_sum",
    "swiglu_alpha",
]  # fmt: skip


@pytest.mark.xdist_group("nodes")
@pytest.mark.corpus
@pytest.mark.parametrize("name", NODE_MODELS)
def test_bodies_give_the_outputs_that_onnx_expects(name: str) -> None:
    case = onnx_cases()[f"test_{name}"]
    # Sizes that come at run time may be 1, which has no two corners.
    result, applied = after(case.model, safety=Safety.UNSAFE if "align_corners" in name else Safety.NUMERIC)
    assert applied
    assert not set(ops(result)) & {"If", "Loop"}
    onnx.checker.check_model(result)
    for inputs, outputs in case.data_sets:
        feeds = {info.name: np.asarray(x) for info, x in zip(case.model.graph.input, inputs, strict=True)}
        for got, expected in zip(run(result, feeds), outputs, strict=True):
            assert got.dtype == expected.dtype
            assert got.shape == np.shape(expected)
            np.testing.assert_allclose(
                np.asarray(got, np.float64), np.asarray(expected, np.float64), case.rtol, 1e-7
            )


# ------------------------------------------------------------------------------------ what a body becomes


def test_only_what_is_read_is_written_out() -> None:
    model = model_of(
        "g (float[N,C] x, int64[N] t) => (float[N,C] l) { y, l = SoftmaxCrossEntropyLoss(x, t) }", 13
    )
    result, _ = after(model)
    assert ops(result) == ["LogSoftmax"]
    assert_same_outputs(model, result, exact=False)


def test_names_of_a_body_do_not_meet_those_of_the_model() -> None:
    model = model_of(
        """g (float[3,5] y_axes, int64[3] y_const_one, float[3] y_loss_NCdd) => (float[3] y, float[3] z) {
        y_const_zero = NegativeLogLikelihoodLoss<reduction = "none">(y_axes, y_const_one)
        y = Add(y_const_zero, y_loss_NCdd)
        z = NegativeLogLikelihoodLoss<reduction = "none">(y_axes, y_const_one) }""",
        13,
    )
    result, applied = after(model)
    assert len(applied) == 2
    assert_same_outputs(model, result)


def test_one_value_may_be_two_inputs() -> None:
    model = model_of("g (float[B,8] x) => (float[B,8] y) { y = SwiGLU(x, x) }", 28)
    assert_same_outputs(model, after(model)[0], exact=False)


@pytest.mark.parametrize(
    ("node", "old", "new", "kept"),
    [
        (helper.make_node("Softmax", ["x"], ["y"]), 12, 13, False),  # another default axis
        (helper.make_node("ReduceMean", ["x"], ["y"], axes=[1]), 13, 18, False),
        (helper.make_node("ReduceMean", ["x"], ["y"], keepdims=0), 13, 18, True),
        (helper.make_node("Unsqueeze", ["x"], ["y"], axes=[1]), 11, 13, False),
        (helper.make_node("Split", ["x"], ["y"]), 11, 18, True),
        (helper.make_node("Cast", ["x"], ["y"], to=1), 13, 28, True),
        (helper.make_node("Reshape", ["x", "s"], ["y"]), 13, 25, True),
        (helper.make_node("CastLike", ["x", "s"], ["y"]), 14, 15, False),  # not there yet
    ],
)
def test_operators_that_changed_are_not_used(node: onnx.NodeProto, old: int, new: int, kept: bool) -> None:
    assert _bodies._is_compatible(node, old, new) is kept


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [(4, 5), (2, 3, 4)])
def test_grids(batch: int, align: int, size: tuple[int, ...]) -> None:
    """ONNX's own body squeezes a batch of 1 away. The size comes at run time, or is a constant."""
    dims = len(size)
    numbers = ", ".join(map(str, (batch, 7, *size)))
    theta, grid = f"float[B,{dims},{dims + 1}] t", f"float[{'B' + ',M' * dims},{dims}] y"
    call = f"y = AffineGrid<align_corners = {align}>(t, s)"
    constant = model_of(f"g ({theta}) => ({grid}) <int64[{dims + 2}] s = {{{numbers}}}> {{ {call} }}", 20)
    asked = model_of(f"g ({theta}, int64[{dims + 2}] s) => ({grid}) {{ {call} }}", 20)
    matrices = np.random.default_rng(batch).standard_normal((batch, dims, dims + 1)).astype(np.float32)
    feeds = {"t": matrices, "s": np.array((batch, 7, *size))}
    # Of a size that comes at run time nobody knows that it is not 1.
    safest = Safety.UNSAFE if align else Safety.NUMERIC
    for model, given, safety in ((constant, {"t": matrices}, Safety.NUMERIC), (asked, feeds, safest)):
        result, (applied,) = after(model, safety=Safety.UNSAFE)
        assert applied.safety == safety
        (expected,), (got,) = run(model, given), run(result, given)
        np.testing.assert_allclose(got, expected, 1e-5, 1e-6)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("size", [(1, 2, 3), (2, 1, 3), (2, 3, 1), (1, 1, 1), (1, 4), (4, 1), (1, 1)])
def test_a_grid_of_one_place_along_an_axis(size: tuple[int, ...], known: bool) -> None:
    """With aligned corners it lies at -1 by ONNX's reference, at 0 by ONNX Runtime, and nowhere by ONNX's own body."""
    from onnx.reference import ReferenceEvaluator

    dims = len(size)
    numbers = ", ".join(map(str, (1, 7, *size)))
    theta, grid = f"float[1,{dims},{dims + 1}] t", f"float[1{',M' * dims},{dims}] y"
    given, held = ("", f"<int64[{dims + 2}] s = {{{numbers}}}>") if known else (f", int64[{dims + 2}] s", "")
    call = "y = AffineGrid<align_corners = 1>(t, s)"
    model = model_of(f"g ({theta}{given}) => ({grid}) {held} {{ {call} }}", 20)
    assert not after(model)[1]
    result, (applied,) = after(model, safety=Safety.UNSAFE)
    assert applied.safety == Safety.UNSAFE
    matrix = np.random.default_rng(5).standard_normal((1, dims, dims + 1)).astype(np.float32)
    feeds = {"t": matrix} if known else {"t": matrix, "s": np.array((1, 7, *size))}
    with np.errstate(divide="ignore"):
        (expected,) = ReferenceEvaluator(model).run(None, feeds)
    for (got,) in (ReferenceEvaluator(result).run(None, feeds), run(result, feeds)):
        np.testing.assert_allclose(got, expected, 1e-5, 1e-6)


_LINEAR = """(float[1,T,8] q, float[1,T,8] k, float[1,T,8] v) => (float[1,T,8] y) {
    y = LinearAttention<q_num_heads = 2, kv_num_heads = 2, update_rule = "linear">(q, k, v) }"""


@pytest.mark.parametrize("steps", [1, 17, "T"])
def test_a_body_with_a_scan_takes_any_number_of_steps(steps: int | str) -> None:
    """Without any, ONNX's body fails: where that may be, the fix is not offered as one that keeps the outputs."""
    model = model_of("g " + _LINEAR.replace("[1,T,", f"[1,{steps},"), 27)
    result, applied = after(model, safety=Safety.UNSAFE)
    assert [item.safety for item in applied] == [Safety.UNSAFE if steps == "T" else Safety.NUMERIC]
    assert ops(result).count("Scan") == 1
    onnx.checker.check_model(result)
    if steps != "T":
        assert_same_outputs(model, result, exact=False)
    feeds = {name: np.random.default_rng(3).random((1, 5, 8), np.float32) for name in "qkv"}
    if steps == "T":
        np.testing.assert_allclose(run(model, feeds)[0], run(result, feeds)[0], rtol=1e-5)


def test_two_bodies_with_scans_share_no_name() -> None:
    """One of them inside a branch of which the other's names could be seen."""
    text = """g (bool c, float[1,T,8] q) => (float[1,T,8] z) {
        p = LinearAttention<q_num_heads = 2, kv_num_heads = 2, update_rule = "linear">(q, q, q)
        z = If(c)<then_branch = t () => (float[1,T,8] u) {
                u = LinearAttention<q_num_heads = 2, kv_num_heads = 2, update_rule = "linear">(p, q, q) },
            else_branch = e () => (float[1,T,8] v) { v = Neg(p) }> }"""
    model = model_of(text.replace("T", "3"), 27)
    result, applied = after(model)
    assert len(applied) == 2
    names = [name for scope in Model(result).scopes for name in scope.values]
    assert len(names) == len(set(names))
    assert_same_outputs(model, result, exact=False)


def test_a_crash_of_onnx_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (float[3,9,2] x) => (float[3,9,2] y) <int64[1] s = {9}> { y = CenterCropPad<axes = [1]>(x, s) }"
    for broken in (os.abort, lambda *_: 1 / 0, lambda *_: None):
        _bodies._cached.cache_clear()
        monkeypatch.setattr(_bodies, "_build", _ignoring(broken))
        assert not findings(operator_with_function_body, model_of(text, 18))
    monkeypatch.undo()
    _bodies._cached.cache_clear()
    assert len(findings(operator_with_function_body, model_of(text, 18))) == 1


def _ignoring(broken: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *_: broken()


def test_what_hangs_once_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (float[3,9,2] x) => (float[3,9,2] y) <int64[1] s = {9}> { y = CenterCropPad<axes = [1]>(x, s) }"
    _bodies._cached.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(_bodies, "TIMEOUT_S", 1e-6)
        assert not findings(operator_with_function_body, model_of(text, 18))
    assert len(findings(operator_with_function_body, model_of(text, 18))) == 1


def test_a_graph_inside_may_not_capture() -> None:
    """FlexAttention's graphs become part of its body; what they capture would be lost."""
    head = '<ir_version: 13, opset_import: ["" : 26, "ai.onnx.preview" : 1]>'
    text = """g (float[1,2,3,4] q, float[1,2,3,4] k, float[1,2,3,4] v, float b) => (float[1,2,3,4] y) {
        y = ai.onnx.preview.FlexAttention<score_mod = m (float[B,H,L,S] s) => (float[B,H,L,S] r) {
            o = Constant<value_float = 1.0>()  r = Add(s, FACTOR) }>(q, k, v) }"""
    for factor, found in (("o", 1), ("b", 0)):
        model = parser.parse_model(f"{head}\n{text.replace('FACTOR', factor)}")
        assert len(findings(operator_with_function_body, model)) == found


def test_calls_that_onnx_does_not_define_are_left_alone() -> None:
    text = "g (float[3,5] x, int64[3] t) => (float[3] y) { y = NegativeLogLikelihoodLoss<ATTRIBUTES>(x, t) }"
    for attributes, found in (
        ('reduction = "none"', 1),
        ('reduction = "all"', 0),
        ('reduction = "none", a = 1', 0),
    ):
        model = model_of(text.replace("ATTRIBUTES", attributes), 13)
        assert len(findings(operator_with_function_body, model)) == found
