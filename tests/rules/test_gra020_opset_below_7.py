"""GRA020 through a whole run; the old operators of the reference evaluator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfix
from onnxfix.errors import EditError
from onnxfix.model import Model
from onnxfix.rewrite.edits import SetImport, SetInput
from onnxfix.rewrite.transaction import Transaction
from onnxfix.runtime.backends.reference import evaluator
from support.models import of_opset

model = of_opset(6, 3)


PROBES = {
    "negative axis": "g (float[2,3,3] x, float[3] b) => (float[2,3,3] y) { y = Sub<broadcast=1, axis=-2>(x, b) }",
    "scalar": "g (float[2,3] x, float b) => (float[2,3] y) { y = Div<broadcast=1, axis=0>(x, b) }",
    "prelu": "g (float[1,2,2,2] x, float[2] s) => (float[1,2,2,2] y) { y = PRelu(x, s) }",
    "norm": """g (float[2,3,2,2] x, float[3] s, float[3] v) => (float[2,3,2,2] y) {
        a = BatchNormalization<is_test=1>(x, s, s, s, v)  y = Add(a, a) }""",
}


@pytest.mark.parametrize("name", PROBES)
def test_the_values_are_proven(name: str, tmp_path: Path) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(model(PROBES[name]), path)
    rungs = ["contract", "reference", "ort-cpu"]
    report = onnxfix.apply(path, out, rungs=rungs, select=["GRA020"])
    assert [(item.code, item.safety) for item in report.applied] == [("GRA020", "exact")]
    assert report.problems == ()
    assert report.verdict is not None
    assert report.verdict.passed
    reference, contract = report.verdict.rung("reference"), report.verdict.rung("contract")
    assert reference is not None
    assert contract is not None
    assert (reference.status, reference.reason.split()[0]) == ("passed", "identical")
    assert contract.status == "passed"
    fixed = onnx.load(out)
    assert [entry.version for entry in fixed.opset_import] == [7]
    onnx.checker.check_model(fixed)
    again = onnxfix.apply(out, tmp_path / "again.onnx", rungs=rungs, select=["GRA020"])
    assert again.applied == ()


def test_other_fixes_wait_for_another_round(tmp_path: Path) -> None:
    """A fix of the same round would have been written for the old operator set."""
    text = """g (float[2,3,3] x, float[3] b) => (float[2,3,3] y, float[2,3,3] z) {
        d = Cast<to=11>(x)  e = Cast<to=1>(d)  z = Neg(e)  y = Add<broadcast=1, axis=1>(x, b) }"""
    report = onnxfix.apply(model(text), verify=False, select=["CST", "GRA020"])
    rounds = {item.code[:3]: item.round for item in report.applied}
    assert set(rounds) == {"CST", "GRA"}
    assert rounds["GRA"] > rounds["CST"]
    assert report.model is not None
    onnx.checker.check_model(report.model)


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("y = Add<broadcast=1, axis=1>(x, b)", (1, 20, 300), [1, 1, 20, 20, 300, 300]),
        ("y = Add<broadcast=1, axis=-2>(x, b)", (1, 20, 300), [1, 1, 20, 20, 300, 300]),
    ],
)
def test_the_evaluator_aligns_by_axis(text: str, values: tuple[int, ...], expected: list[int]) -> None:
    proto = model(f"g (float[1,3,2] x, float[3] b) => (float[1,3,2] y) {{ {text} }}")
    feed = {"x": np.zeros((1, 3, 2), np.float32), "b": np.array(values, np.float32)}
    (got,) = evaluator(proto).run(None, feed)
    assert got.ravel().tolist() == expected


@pytest.mark.parametrize(
    ("opset", "attributes"), [(6, "<is_test=1>"), (7, ""), (8, ""), (9, ""), (14, ""), (15, "")]
)
def test_the_evaluator_normalizes_by_the_given_statistics(opset: int, attributes: str) -> None:
    text = f"""g (float[2,1,2] x, float[1] s, float[1] b, float[1] m, float[1] v) => (float[2,1,2] y) {{
        y = BatchNormalization{attributes}(x, s, b, m, v) }}"""
    given = {"s": 2.0, "b": 1.0, "m": 3.0, "v": 4.0}
    feed = {name: np.array([value], np.float32) for name, value in given.items()}
    feed["x"] = np.array([[[3, 5]], [[7, -1]]], np.float32)
    (got,) = evaluator(model(text, opset)).run(None, feed)
    assert np.allclose(got.ravel(), [1, 3, 5, -3], atol=1e-4)


def test_an_import_that_is_set_can_be_taken_back() -> None:
    proto = model("g (float[2] x) => (float[2] y) { y = Sum(x, x) }")
    before = proto.SerializeToString(deterministic=True)
    mine = Model(proto)
    transaction = Transaction(mine)
    with pytest.raises(EditError):  # the second cannot be done, so neither is
        transaction.apply([SetImport(mine.main, 7), _bad(mine)])
    transaction.close()
    assert proto.SerializeToString(deterministic=True) == before
    transaction = Transaction(mine)
    transaction.apply([SetImport(mine.main, 7)])
    transaction.close()
    assert mine.opset() == 7


def _bad(mine: Model) -> SetInput:
    return SetInput(mine.main.nodes[0], 0, "nosuchname")
