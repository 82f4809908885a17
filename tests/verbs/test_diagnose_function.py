"""``onnxfix.diagnose`` as a Python function: what it takes, and what it gives back."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxfix
from onnxfix import Diagnosis, UsageError
from support.models import model

NET = """
g (float[N, 4] x) => (float[N, 4] y)
<float[4] scale = {SCALE}>
{ a = Tanh(x)  b = Mul(a, scale)  y = Exp(b) }
"""


def net(scale: str = "1.0, 2.0, 3.0, 4.0") -> onnx.ModelProto:
    return model(NET.replace("SCALE", scale))


def test_two_models_are_compared() -> None:
    steps: list[str] = []
    found = onnxfix.diagnose(net(), net("1.0, 2.0, 3.5, 4.0"), progress=steps.append)
    assert isinstance(found, Diagnosis)
    assert (found.status, found.exit_code, found.against) == ("differ", 1, "model")
    assert [one.error.place.output for one in found.culprits] == ["b"]
    assert steps[0] == "reading"
    assert any(name.startswith("onnxruntime") for name in found.environment)


def test_inputs_are_arrays() -> None:
    samples = [{"x": np.full((size, 4), size, np.float32)} for size in (1, 2, 3)]
    found = onnxfix.diagnose(net(), net(), inputs=samples)
    assert (found.samples, found.status) == (3, "agree")
    assert found.outputs[0].elements == 24


def test_the_rounding_of_a_sequence_is_that_of_its_elements() -> None:
    text = "g (float[N,4] x) => (seq(float[M,4]) y) { a = Exp(x)  b = OP(x)  y = SequenceConstruct(a, b) }"
    found = onnxfix.diagnose(model(text.replace("OP", "Neg")), model(text.replace("OP", "Abs")))
    (output,) = found.outputs
    assert 0.0 < output.noise < 1e-5 * output.scale
    assert [one.error.place.output for one in found.culprits] == ["b"]


def test_one_side_is_needed_and_no_more() -> None:
    with pytest.raises(UsageError, match="name a second model, or what to compare with"):
        onnxfix.diagnose(net())
    with pytest.raises(UsageError, match="is for one model"):
        onnxfix.diagnose(net(), net(), against="fp16")
    with pytest.raises(UsageError, match="unknown against='gpu'; choose from model, ort-cpu"):
        onnxfix.diagnose(net(), against="gpu")


def test_a_part_in_half_precision_is_explained() -> None:
    """Its tensors have another type than the truth's: the node alone is run on values in that type."""
    right = """
    g (float[N, 64] x) => (float[N, 64] y) <float[64, 64] w>
    { a = MatMul(x, w)  b = MatMul(a, w)  y = Tanh(b) }
    """
    other = right.replace(
        "a = MatMul(x, w)  b = MatMul(a, w)",
        "h = Cast<to=10>(w)  p = Cast<to=10>(x)  a = MatMul(p, h)  q = MatMul(a, h)  b = Cast<to=1>(q)",
    )
    weight = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32) / 8
    models = [model(right), model(other)]
    for one in models:
        one.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    found = onnxfix.diagnose(*models)
    assert found.status == "differ"
    first = {one.error.place.output: one for one in found.culprits[:2]}
    assert first.keys() == {"a", "b"}
    assert {one.cause for one in first.values()} == {"precision"}
    assert all(0.0 < (one.error.effect or 0.0) < 0.01 for one in first.values())
