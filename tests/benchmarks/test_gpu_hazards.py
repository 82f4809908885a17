"""benchmarks/gpu/hazards.py: the verdicts on the rules' examples, and what the docs say about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from gpu import hazard_runs, hazard_verdicts
from gpu.engines import Executed
from gpu.hazard_cases import TWIN, Entry, Truth
from gpu.hazard_runs import Fed, Outcome

from onnxfix.rewrite.registry import BUILT_IN, rules_of
from test_docs import maker


def truth(source: str, value: float) -> Truth:
    return Truth(source, [[np.array([value], np.float32)]])


@pytest.mark.parametrize(
    ("truths", "output", "status"),
    [
        ([truth("ort-cpu", 1)], 1.00001, "right"),
        ([truth("ort-cpu", 1)], 2, "wrong"),
        ([truth(TWIN, 1), truth("reference", 2)], 2, "other"),
        ([], 2, "unknown"),
    ],
)
def test_each_feed_is_judged_by_the_first_truth(truths: list[Truth], output: float, status: str) -> None:
    text = '<ir_version: 9, opset_import: ["" : 18]> g (float[1] x) => (float[1] y) { y = Neg(x) }'
    proto = onnx.parser.parse_model(text)
    executed = Executed("ran", outputs=({"y": np.array([output], np.float32)},))
    fed = hazard_runs.fed(proto, proto.SerializeToString(), executed, 0, tuple(truths), Entry("A", 0, "why"))
    assert fed.status == status


def ran(*statuses: Any) -> Outcome:
    worst = max(statuses, key=("right", "other", "unknown", "wrong").index)
    return Outcome(worst, feeds=tuple(Fed(status) for status in statuses))


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (ran("wrong", "right"), ran("right", "right"), "wrong-confirmed"),
        (ran("wrong", "right"), ran("right", "wrong"), "contradicted"),
        (ran("wrong", "wrong"), ran("right", "wrong"), "not-repaired"),
        (ran("right"), ran("right"), "not-confirmed"),
        (ran("right"), Outcome("parser"), "contradicted"),
        (Outcome("builder"), ran("right"), "refused-confirmed"),
        (Outcome("parser"), Outcome("builder"), "not-repaired"),
        (Outcome("parser"), ran("unknown"), "finding-confirmed"),
        (Outcome("failed", stage="build"), ran("right"), "not-runnable"),
        (ran("right"), Outcome("not measured"), "not-runnable"),
        (ran("wrong"), None, "finding-confirmed"),
        (ran("right"), None, "not-confirmed"),
    ],
)
def test_the_verdict_of_an_example(before: Outcome, after: Outcome | None, verdict: str) -> None:
    entry = Entry("A", 0, "why", "exact" if after is not None else "", truths=("ort-cpu",), agrees=True)
    assert hazard_verdicts.shown(entry, before, after).verdict == verdict


def test_the_docs_say_what_engines_showed() -> None:
    rule = min(rules_of(BUILT_IN), key=lambda rule: rule.code)
    examples = [{"verdict": one} for one in ("wrong-confirmed", "refused-confirmed", "not-confirmed")]
    setting = {"TensorRT": "tensorrt-rtx 1.6.1.120", "GPU": "NVIDIA H200, compute capability 9.0"}
    known = {"setting": setting, "rules": {rule.code: {"verdict": "wrong-confirmed", "examples": examples}}}
    engines = maker().Engines(known)
    assert engines.cell(rule) == "confirmed (2 of 3)"
    assert engines.line(rule) == (
        "On an executed engine (TensorRT-RTX 1.6.1.120, NVIDIA H200): **confirmed**. 1 of 3 examples is wrong before "
        "the fix and right after it; 1 is without a working engine before the fix and right after it; 1 is right "
        "without a fix."
    )
    assert maker().Engines().cell(rule) == "not run yet"
    assert set(maker().VERDICTS) == set(hazard_verdicts.VERDICTS)
