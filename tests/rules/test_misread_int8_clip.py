"""OPS054 and OPS074: each form of a Clip of int8 is refused by TensorRT, misread, or read right, and repaired."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety, Severity
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import findings, fixed
from support import repairs
from support.lifted import Feed, agree, both, text
from support.real_tensorrt import FACT, REAL, built

pytestmark = pytest.mark.corpus

RULES = {code: registry().get(code) for code in ("OPS054", "OPS074")}


def same(one: list[Any], other: list[Any]) -> bool:
    return all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and np.allclose(
            a.astype(float),
            b.astype(float),
            rtol=1e-5,
            atol=2e-3 if a.dtype == np.float16 else 1e-5,
            equal_nan=True,
        )
        for a, b in zip(one, other, strict=True)
    )


def repaired(model: ModelProto, code: str) -> ModelProto:
    """The model after the rule's only fix."""
    assert {one.severity for one in findings(RULES[code], model)} == {Severity.ERROR}
    result, run = repairs.repaired([RULES[code]], model, safety=Safety.NUMERIC)
    assert run.applied
    assert not findings(RULES[code], result)
    return result


def readings(
    worker: Worker, model: ModelProto, code: str, folder: Path, feed: Feed
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """What the model is to ONNX, what it is to TensorRT, and what its repaired form is to TensorRT, which builds."""
    (wanted,), (wrong,) = both(worker, model, folder, feed)
    result = repaired(model, code)
    (again,), (right,) = both(worker, result, folder, feed)
    assert same([wanted], [again])
    assert built(worker, result, folder).status == "accepted"
    return wanted, wrong, right


# --------------------------------------------------------------------------------------- OPS074: Clip of int8

EIGHT = np.array([-128, -100, -5, 0, 3, 50, 127], np.int8)
#: How a bound may be given: what it adds to the inputs, the initializers and the nodes, and its name.
FORMS = {
    "no": ("", "", "", ""),
    "weight": ("", "int8 {0} = {{{1}}}", "", "{0}"),
    "node": ("", "", "{0} = Constant<value = int8 {{{1}}}>()", "{0}"),
    "default": ("int8 {0} = {{{1}}}", "", "", "{0}"),
    "run time": ("int8 {0}", "", "", "{0}"),
    "computed": ("", "int8 {0} = {{{1}}}", "{0}i = Identity({0})", "{0}i"),
}


def clip(low: str, high: str, a: int = -10, b: int = 20) -> ModelProto:
    """A Clip of int8 with bounds in these forms."""
    parts = [
        [part.format(*bound) for part in FORMS[form]] for form, bound in ((low, ("a", a)), (high, ("b", b)))
    ]
    inputs, weights, nodes, names = (list(column) for column in zip(*parts, strict=True))
    given = ", ".join(filter(None, weights))
    while names and not names[-1]:
        names.pop()
    return text(
        f"""g ({", ".join(filter(None, ["int8[7] x", *inputs]))}) => (int8[7] y) {f"<{given}>" if given else ""} {{
            {" ".join(nodes)} y = Clip({", ".join(["x", *names])}) }}""",
        18,
    )


@FACT
@REAL
@pytest.mark.parametrize(("low", "high"), list(itertools.product(FORMS, FORMS)))
def test_each_clip_is_misread_refused_or_right(low: str, high: str, worker: Worker, tmp_path: Path) -> None:
    """What is misread is OPS074's, what is refused is OPS054's, and nobody speaks of the rest."""
    model = clip(low, high)
    forms = {"a": (low, -10), "b": (high, 20)}
    feed: Feed = {
        name: np.array(value, np.int8) for name, (form, value) in forms.items() if form == "run time"
    }
    feed["x"] = EIGHT
    found = {code for code in ("OPS054", "OPS074") if findings(RULES[code], model)}
    if built(worker, model, tmp_path).status == "refused":
        assert found == {"OPS054"}
        result, run = fixed([RULES["OPS054"]], model)
        assert run.applied
        agree(worker, result, tmp_path, feed)
        return
    (wanted,), (read,) = both(worker, model, tmp_path, feed)
    assert found == (set() if same([wanted], [read]) else {"OPS074"})
    if found:
        upper = 0 if high != "no" else 127
        np.testing.assert_array_equal(read, EIGHT.clip(0, upper))
        if "default" in (low, high):  # TensorRT refuses a Cast of one
            assert [one.match.fix for one in findings(RULES["OPS074"], model)] == [None]
            return
        _, _, right = readings(worker, model, "OPS074", tmp_path, feed)
        np.testing.assert_array_equal(right, wanted)
