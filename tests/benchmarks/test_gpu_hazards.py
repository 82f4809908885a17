"""benchmarks/gpu/hazards.py: the verdicts on the rules' examples, and what the docs tell of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from gpu import hazard_runs, hazard_verdicts
from gpu.engines import Executed
from gpu.hazard_cases import FIXED, TWIN, Case, Entry, Truth
from gpu.hazard_runs import Fed, Outcome

from onnxfix.rewrite.registry import BUILT_IN, rules_of
from test_docs import maker


def fed(*truths: Truth, found: float) -> Fed:
    text = '<ir_version: 9, opset_import: ["" : 18]> g (float[1] x) => (float[1] y) { y = Neg(x) }'
    proto = onnx.parser.parse_model(text)
    ran = Executed("ran", outputs=({"y": np.array([found], np.float32)},))
    return hazard_runs.fed(proto, proto.SerializeToString(), ran, 0, truths, Entry("A", 0, "why"))


def truth(source: str, value: float) -> Truth:
    return Truth(source, [[np.array([value], np.float32)]])


def test_each_feed_is_judged_by_the_first_truth() -> None:
    assert fed(truth("ort-cpu", 1), found=1.00001).status == "right"
    wrong = fed(truth("ort-cpu", 1), found=2)
    assert (wrong.status, wrong.largest, bool(wrong.outputs)) == ("wrong", 1.0, True)
    assert wrong.reason.endswith("1.0 expected, 2.0 found")
    assert fed(truth(TWIN, 1), truth("reference", 2), found=2).status == "other"
    assert fed(found=2).status == "unknown"


def ran(*statuses: Any) -> Outcome:
    worst = max(statuses, key=("right", "other", "unknown", "wrong").index)
    return Outcome(worst, feeds=tuple(Fed(one) for one in statuses))


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (ran("wrong", "right"), ran("right", "right"), "wrong-confirmed"),
        (ran("wrong", "right"), ran("right", "wrong"), "contradicted"),
        (ran("wrong", "wrong"), ran("right", "wrong"), "not-repaired"),
        (ran("right"), ran("right"), "not-confirmed"),
        (ran("right"), Outcome("parser"), "contradicted"),
        (ran("wrong"), Outcome("timeout"), "contradicted"),
        (Outcome("builder"), ran("right"), "refused-confirmed"),
        (Outcome("crash"), ran("other"), "refused-confirmed"),
        (Outcome("unfed", stage="run"), ran("right"), "refused-confirmed"),
        (Outcome("parser"), Outcome("builder"), "not-repaired"),
        (Outcome("parser"), ran("unknown"), "finding-confirmed"),
        (Outcome("failed", stage="build"), ran("right"), "not-runnable"),
        (ran("unknown"), ran("right"), "not-runnable"),
        (Outcome("unfed"), ran("right"), "not-runnable"),
        (Outcome("not measured"), Outcome("not measured"), "not-runnable"),
        (ran("right"), Outcome("not measured"), "not-runnable"),
        (ran("wrong"), None, "finding-confirmed"),
        (Outcome("timeout"), None, "finding-confirmed"),
        (ran("right"), None, "not-confirmed"),
        (ran("unknown"), None, "not-runnable"),
    ],
)
def test_the_verdict_of_an_example(before: Outcome, after: Outcome | None, verdict: str) -> None:
    entry = Entry("A", 0, "why", "exact" if after is not None else "", truths=("ort-cpu",), agrees=True)
    assert hazard_verdicts.shown(entry, before, after).verdict == verdict


def test_what_a_fix_changes_without_tensorrt_too_is_no_fault_of_it() -> None:
    entry = Entry("A", 0, "why", "unsafe", truths=("ort-cpu",), agrees=False)
    assert hazard_verdicts.shown(entry, ran("right"), ran("wrong")).verdict == "not-confirmed"


def test_half_precision_that_overflows_is_wrong_where_the_fixed_one_is_right() -> None:
    entry = Entry("A", 0, "why", "numeric", truths=(TWIN, "reference"), agrees=True)
    assert hazard_verdicts.shown(entry, ran("other"), ran("right")).verdict == "wrong-confirmed"
    assert hazard_verdicts.shown(entry, ran("other"), ran("other")).verdict == "not-confirmed"


def test_the_fixed_model_says_nothing_of_the_original() -> None:
    text = '<ir_version: 9, opset_import: ["" : 18]> g (float[1] x) => (float[1] y) { y = Neg(x) }'
    data = onnx.parser.parse_model(text).SerializeToString()
    case = Case({"before": data, "after": data}, [{"x": np.array([1], np.float32)}], (truth(FIXED, -1),))

    class Ran:
        def execute(self, *_: Any) -> Executed:
            return Executed("ran", outputs=({"y": np.array([-1], np.float32)},))

    sides = {
        side: hazard_runs.run(Ran(), Entry("A", 0, "why"), case, side)["status"]  # type: ignore[arg-type]
        for side in case.models
    }
    assert sides == {"before": "unknown", "after": "right"}


def test_the_docs_tell_what_engines_showed() -> None:
    first, second = sorted(rules_of(BUILT_IN), key=lambda rule: rule.code)[:2]
    examples = [{"verdict": one} for one in ("wrong-confirmed", "refused-confirmed", "not-confirmed")]
    setting = {"TensorRT": "tensorrt-rtx 1.6.1.120", "GPU": "NVIDIA H200, compute capability 9.0"}
    known = {"setting": setting, "rules": {first.code: {"verdict": "wrong-confirmed", "examples": examples}}}
    told = maker().Engines(known)
    assert told.cell(first) == "confirmed (2 of 3)"
    assert told.line(first) == (
        "On an executed engine (TensorRT-RTX 1.6.1.120, NVIDIA H200): **confirmed**. 1 of 3 examples is wrong before "
        "the fix and right after it; 1 is without a working engine before the fix and right after it; 1 is right "
        "without a fix."
    )
    assert (told.cell(second), told.line(second)) == ("not run", "Not run on an engine.")
    assert maker().Engines().cell(first) == "not run yet"
    assert set(maker().VERDICTS) == set(hazard_verdicts.VERDICTS)
