"""Causes that lie in two models: what is planted in the second one is what is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxfix.diagnosis.evidence import Evidence
from onnxfix.diagnosis.explain import explain
from support.evidence import evidence, normal
from support.models import model

LINEAR = "g (float[4,16] x) => (float[4,8] y) { y = MatMul(x, w) }"
BIASED = "g (float[4,16] x) => (float[4,8] y) { y = Gemm(x, w, b) }"
CONV = "g (float[1,2,8,8] x) => (float[1,4,a,b] y) { y = Conv<pads = [1, 1, 1, 1]>(x, w, b) }"


def two(
    before: str,
    after: str,
    feed: dict[str, Any],
    mine: dict[str, Any],
    theirs: dict[str, Any] | None = None,
    **how: Any,
) -> Evidence:
    """Two models with weights of their own."""
    opset, other_opset = how.get("opset", 20), how.get("other_opset", how.get("opset", 20))
    other = model(after, opset=other_opset, **(mine if theirs is None else theirs))
    return evidence(model(before, opset=opset, **mine), feed, other)


# ------------------------------------------------------------------------------------------------------ two models


W, B, X = normal(16, 8), normal(8, seed=3), normal(4, 16, seed=1)
ELEMENT, TURNED = W.copy(), W.T.copy()
ELEMENT[3, 5] = 7.5
TURNED[2, 9] += 1
KERNEL, SQUARE = {"w": normal(4, 2, 3, 3), "b": normal(4, seed=2)}, normal(16, 16)
ON_X = "g (float[4,16] x) => (float[4,%s] y) { y = %s }"
PRODUCT, RELU = ON_X % (16, "MatMul(x, w)"), ON_X % (16, "Relu(x)")
WHERE = "g (bool[2,4] m, float[2,4] x) => (float[2,4] y) { y = Where(m, x, v) }"
MASK = {"m": np.array([[True, False] * 2] * 2), "x": normal(2, 4)}
SUM = "g (float[4,6] x) => (float[a,b] y) { y = ReduceSum<keepdims = 1>(x, axes) }"
SOFTMAX = """g (float[8,64] x) => (float[8,64] y) {
    m = ReduceMax(x, a)  d = Sub(x, m)  e = Exp(d)  s = ReduceSum(e, a)  y = Div(e, s) }"""

#: Both models, the inputs, both models' weights, the cause, and words of the reason.
DIFFERENCES: dict[str, Any] = {
    "scaled": (LINEAR, LINEAR, {"x": X}, {"w": W}, {"w": W * np.float32(1.01)},
               "weight", "'w' is the first model's times 1.01 (128 elements)"),
    "element": (LINEAR, LINEAR, {"x": X}, {"w": W}, {"w": ELEMENT},
                "weight", f"1 of 128 elements differs at [3, 5]: {W[3, 5]:.5g} in the first model and 7.5 in"),
    "zero bias": (BIASED, BIASED, {"x": X}, {"w": W, "b": B}, {"w": W, "b": B * 0},
                  "weight", "the bias 'b' is all zeros"),
    "no bias": (CONV, CONV.replace(", b)", ")"), {"x": normal(1, 2, 8, 8, seed=1)}, KERNEL, {"w": KERNEL["w"]},
                "weight", "the input b of Conv (b, 4 elements, up to 2.4415) is only in the first model"),
    "Gemm": (LINEAR, ON_X % (8, "Gemm<transB = 1>(x, v)"), {"x": X}, {"w": W}, {"v": TURNED},
             "weight", "the weight 'w' differs: 1 of 128"),
    "mask": (WHERE, WHERE, MASK, {"v": np.float32(-np.inf)}, {"v": np.float32(-1e4)},
             "weight", "-inf in the first model and -10000 in the other"),
    "shape": (SUM, SUM, {"x": normal(4, 6)}, {"axes": np.array([0])}, {"axes": np.array([1])}, "attribute",
              "axes of ReduceSum is [0] in the first model and [1] in the second model; "
              "the output has the shape [4, 1] instead of [1, 6]"),
    "operator": (RELU, RELU.replace("Relu", "Gelu"), {"x": X}, {}, {},
                 "operator", "Relu in the first model is computed by Gelu"),
    "structure": (RELU, ON_X.replace("{", "{ s = Sigmoid(x) ") % (16, "Mul(x, s)"), {"x": X}, {}, {},
                  "structure", "computed by Sigmoid, Mul"),
    "left out": (ON_X % (16, "Add(x, c)"), ON_X % (16, "Identity(x)"), {"x": X}, {"c": normal(16, seed=2)}, {},
                 "operator", "returns the input 'x' of Add unchanged without 'c'"),
    "stored in half precision": (
        LINEAR, ON_X.replace("{", "{ v = Cast<to = 1>(w) ") % (8, "MatMul(x, v)"), {"x": X},
        {"w": W}, {"w": W.astype(np.float16)}, "precision", "computes in float16"),
    "other words": ("g (float[8,64] x) => (float[8,64] y) { y = Softmax<axis = 1>(x) }", SOFTMAX,
                    {"x": normal(8, 64, scale=3)}, {}, {"a": np.array([1])}, "rounding", "rounding of float32"),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_named(name: str) -> None:
    before, after, feed, mine, theirs, cause, words = DIFFERENCES[name]
    found, reason = explain(two(before, after, feed, mine, theirs))
    assert (found, words in reason) == (cause, True), reason


def test_a_constant_node_is_a_weight_too_and_its_form_does_not_matter():
    constant = "g (float[4,16] x) => (float[4,8] y) { w = Constant<value = float[16,8] w0 {%s}>()  y = MatMul(x, w) }"
    w = normal(16, 8)
    digits = ", ".join(f"{float(value)!r}" for value in w.reshape(-1))
    given = {"x": normal(4, 16, seed=1)}
    same = two(LINEAR, constant.replace("%s", digits), given, {"w": w}, {})
    assert explain(same)[0] == "rounding"
    other = ", ".join(f"{float(np.float32(value * np.float32(0.5)))!r}" for value in w.reshape(-1))
    cause, reason = explain(two(LINEAR, constant.replace("%s", other), given, {"w": w}, {}))
    assert (cause, "times 0.5" in reason) == ("weight", True)


def test_a_weight_behind_a_transpose_is_compared_as_what_it_is():
    turned = "g (float[4,16] x) => (float[4,8] y) { t = Transpose<perm = [1, 0]>(v)  y = MatMul(x, t) }"
    w, given = normal(16, 8), {"x": normal(4, 16, seed=1)}
    assert explain(two(LINEAR, turned, given, {"w": w}, {"v": w.T.copy()}))[0] == "rounding"
    changed = w.T.copy()
    changed[2, 9] += 1
    cause, reason = explain(two(LINEAR, turned, given, {"w": w}, {"v": changed}))
    assert (cause, "at [9, 2]" in reason) == ("weight", True)


def test_the_constant_of_a_commutative_operator_may_be_on_either_side():
    before = "g (float[4] x) => (float[4] y) { y = Mul(x, c) }"
    after = "g (float[4] x) => (float[4] y) { y = Mul(c, x) }"
    given, c = {"x": normal(4, seed=1)}, normal(4)
    assert explain(two(before, after, given, {"c": c}))[0] == "rounding"
    cause, reason = explain(two(before, after, given, {"c": c}, {"c": c * np.float32(2)}))
    assert (cause, "'c' is the first model's times 2" in reason) == ("weight", True)


@pytest.mark.parametrize(
    ("before", "after", "shape", "weights", "expected"),
    [
        (
            "g (float[4,4] x) => (float[4,4] y) { y = Transpose(x) }",
            "g (float[4,4] x) => (float[4,4] y) { y = Transpose<perm = [0, 1]>(x) }",
            (4, 4), {}, "perm of Transpose is [1, 0] in the first model and [0, 1]",
        ),
        (
            "g (float[4,4] x) => (float[4,4] y) { y = Softmax<axis = 0>(x) }",
            "g (float[4,4] x) => (float[4,4] y) { y = Softmax(x) }",
            (4, 4), {}, "axis of Softmax is 0 in the first model and -1",
        ),
        (
            "g (float[4,4] x) => (float[4,4] y) { y = Clip(x, low, high) }",
            "g (float[4,4] x) => (float[4,4] y) { y = Clip(x, low) }",
            (4, 4), {"low": np.float32(-1), "high": np.float32(0.5)},
            "max of Clip is 0.5 in the first model and not given",
        ),
    ],
    ids=["default-perm", "default-axis", "clip"],
)  # fmt: skip
def test_an_attribute_is_named_with_both_values(before, after, shape, weights, expected):
    used = {name: value for name, value in weights.items() if name in after}
    cause, reason = explain(two(before, after, {"x": normal(*shape, seed=5)}, weights, used))
    assert cause == "attribute"
    assert expected in reason


def test_stated_defaults_and_axes_from_the_end_are_no_difference():
    before = "g (float[4,6] x) => (float[4,6] y) { y = Softmax(x) }"
    after = "g (float[4,6] x) => (float[4,6] y) { y = Softmax<axis = 1>(x) }"
    far = two(before, after, {"x": normal(4, 6)}, {})
    assert explain(wrong_by(far, 0.1))[0] == "unknown"
    explicit = CONV.replace(
        "pads", 'auto_pad = "NOTSET", dilations = [1, 1], group = 1, strides = [1, 1], pads'
    )
    weights = {"w": normal(4, 2, 3, 3), "b": normal(4)}
    far = two(CONV, explicit, {"x": normal(1, 2, 8, 8)}, weights)
    assert explain(wrong_by(far, 0.1))[0] == "unknown"


def test_an_attribute_of_an_old_opset_is_an_input_of_a_new_one():
    before = "g (float[4,6] x) => (float[4,1] y) { y = ReduceSum<axes = [1]>(x) }"
    after = "g (float[4,6] x) => (float[4,1] y) { y = ReduceSum(x, axes) }"
    given, axes = {"x": normal(4, 6)}, {"axes": np.array([-1])}
    same = two(before, after, given, {}, axes, opset=11, other_opset=13)
    assert explain(wrong_by(same, 0.5))[0] == "unknown"
    before = "g (float[4,4] x) => (float[a,b] y) { y = Pad<pads = [0, 1, 0, 0], value = 2.0>(x) }"
    after = "g (float[4,4] x) => (float[a,b] y) { y = Pad(x, pads, v) }"
    pads = np.array([0, 1, 0, 0])
    found = two(
        before, after, {"x": normal(4, 4)}, {}, {"pads": pads, "v": np.float32(3)}, opset=10, other_opset=13
    )
    cause, reason = explain(found)
    assert (cause, "constant_value of Pad is 2 in the first model and 3" in reason) == ("attribute", True)


def wrong_by(found: Evidence, amount: float) -> Evidence:
    """The evidence with one element of what the other side computed moved."""
    name = next(iter(found.truth))
    own = np.array(found.own[name])
    own.reshape(-1)[3] += np.asarray(amount, own.dtype)
    return replace(found, own={name: own})


def test_a_lower_precision_in_the_second_model_is_seen_by_its_casts():
    wrapped = (
        "g (float[4,16] x) => (float[4,8] y) { h = Cast<to = 10>(x)  v = Cast<to = 10>(w)  z = MatMul(h, v)"
        "  y = Cast<to = 1>(z) }"
    )
    for scale, expected in ((1.0, "precision"), (5e4, "overflow")):
        x, w = normal(4, 16, scale=scale), normal(16, 8)
        found = two(LINEAR, wrapped, {"x": x}, {"w": w})
        with np.errstate(all="ignore"):  # ONNX Runtime removes such Casts on a CPU
            own = (x.astype(np.float16) @ w.astype(np.float16)).astype(np.float32)
        cause, reason = explain(replace(found, own={"y": own}))
        assert cause == expected
        assert "float16" in reason
