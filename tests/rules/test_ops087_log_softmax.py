"""OPS087: the logarithm of a softmax after the fix, and by the reference evaluator, which judges the fix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety, Severity
from onnxfix.runtime import backends
from onnxfix.testing import assert_interface_kept, assert_same_outputs, findings, fixed
from support import lifted

pytestmark = pytest.mark.corpus

RULE = next(rule for rule in registry().rules if rule.code == "OPS087")


def one(shape: str, axis: int | None = None, opset: int = 21, kind: str = "float") -> ModelProto:
    """``y = LogSoftmax(x)``."""
    given = "" if axis is None else f"<axis = {axis}>"
    source = f"g ({kind}[{shape}] x) => ({kind}[{shape}] y) {{ y = LogSoftmax{given}(x) }}"
    return lifted.text(source, opset)


def repaired(proto: ModelProto) -> ModelProto:
    """The model after the fix, which leaves nothing to find and the interface as it was."""
    assert {found.severity for found in findings(RULE, proto)} == {Severity.WARNING}
    same, run = fixed([RULE], proto)
    assert not run.applied, "numeric fixes are asked for"
    assert same == proto
    result, run = fixed([RULE], proto, safety=Safety.NUMERIC)
    assert run.applied
    assert not run.problems
    assert not run.remaining
    assert_interface_kept(proto, result)
    onnx.checker.check_model(result, full_check=True)
    return result


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_what_is_no_number_stays(special: float, tmp_path: Path) -> None:
    scores = np.array([[1, special, 2], [special, special, special], [0, -300, 3]], np.float32)
    found = []
    for name, proto in (("a", one("N,3")), ("b", repaired(one("N,3")))):
        onnx.save(proto, tmp_path / name)
        found.append(lifted.run(tmp_path / name, {"x": scores})[0])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


def test_a_vector_is_made_a_matrix_first() -> None:
    rules = [rule for rule in registry().rules if rule.code in ("OPS023", "OPS087")]
    made = one("8")
    result, run = fixed(rules, made, safety=Safety.NUMERIC)
    assert [done.key.code for done in run.applied] == ["OPS023", "OPS087"]
    assert_same_outputs(made, result, exact=False)


@pytest.mark.parametrize("opset", [6, 9, 11, 12, 13, 18])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -2])
def test_the_reference_takes_no_logarithm_of_0(axis: int | None, opset: int, tmp_path: Path) -> None:
    """onnx's own evaluator does, and normalizes along one axis before opset 13 too; else the fix would be withdrawn."""
    if opset < 11 and axis is not None and axis < 0:
        axis = None
    onnx.save(one("2,3,4", axis, opset), tmp_path / "m")
    feed = {"x": np.random.default_rng(4).permutation(24).reshape(2, 3, 4).astype(np.float32) * -150}
    [meant], [found] = (
        backends.load(name, str(tmp_path / "m")).run(feed) for name in ("ort-cpu", "reference")
    )
    assert found.dtype == meant.dtype
    np.testing.assert_allclose(found, meant, rtol=1e-6)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", ["", ", w"])
def test_the_reference_takes_no_loss_of_infinity(reduction: str, weighted: str, tmp_path: Path) -> None:
    model = lifted.text(f"""g (float[2,3,2] x, int64[2,2] t, float[3] w) => (float y, float[2,3,2] l) {{
        y, l = SoftmaxCrossEntropyLoss<reduction = "{reduction}", ignore_index = 1>(x, t{weighted}) }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "m")
    scores = np.random.default_rng(4).permutation(12).reshape(2, 3, 2).astype(np.float32) * -150
    feed = {"x": scores, "t": np.array([[0, 2], [1, 2]]), "w": np.array([1, 2, 4], np.float32)}
    meant, found = (backends.load(name, str(tmp_path / "m")).run(feed) for name in ("ort-cpu", "reference"))
    for right, other in zip(meant, found, strict=True):
        assert other.dtype == right.dtype
        np.testing.assert_allclose(other, right, rtol=1e-6)


def test_the_reference_of_nothing(tmp_path: Path) -> None:
    onnx.save(one("N,0"), tmp_path / "m")
    [found] = backends.load("reference", str(tmp_path / "m")).run({"x": np.zeros((3, 0), np.float32)})
    assert found.shape == (3, 0)
