"""benchmarks/gpu/hazards.py: the rules' examples carried, executed by stand-ins, judged, and told in the docs."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import ledger
import numpy as np
import onnx
import pytest
from gpu import engines, hazard_cases, hazard_runs, hazard_verdicts, hazards
from gpu.engines import Bench, Executed
from gpu.hazard_cases import FIXED, TWIN, Case, Entry, Truth
from gpu.hazard_runs import Fed, Outcome

from onnxfix.nvidia import Gpu
from onnxfix.place import Place
from onnxfix.registry import BUILT_IN, rules_of
from onnxfix.sandbox import Worker
from onnxfix.trt.package import Choice
from onnxfix.trt.records import Issue, TrtBuild
from support.patience import PATIENCE
from test_docs import maker

CHOICE = Choice("tensorrt", "10.0", "8.9", Gpu("NVIDIA Test", "8.9"))
RULES = ("OPS010", "PRC001", "GRA013")  # an exact fix, a half precision that overflows, and no examples
TRICKS: dict[str, dict[str, Any]] = {
    "OPS010.0/before": {"build": ("refused", "parse")},
    "OPS010.1/before": {"build": ("crash", "build")},
    "OPS010.1/after": {"dies": True},
    "OPS010.2/after": {"build": ("timeout", "build")},
}


def build(worker: Worker, path: Path, *, save_engine: str, timeout: float, **rest: Any) -> TrtBuild:
    """In the place of TensorRT's: the engine is the model, unless its metadata say otherwise."""
    said = {one.key: one.value for one in onnx.load(path).metadata_props}
    status, stage = json.loads(said.get("fake", "{}")).get("build", ("accepted", ""))
    if status == "accepted":
        shutil.copy(path, save_engine)
        return TrtBuild("accepted")
    return TrtBuild(status, stage, (Issue(stage, "error", "not in /tmp/some/model.onnx", Place()),))


def tricked(case: Case, key: str) -> Case:
    models = {}
    for side, data in case.models.items():
        proto = onnx.load_model_from_string(data)
        onnx.helper.set_model_props(proto, {"fake": json.dumps(TRICKS.get(f"{key}/{side}", {}))})
        models[side] = proto.SerializeToString()
    return Case(models, case.feeds, case.truths)


@pytest.fixture(scope="module")
def carry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from gpu import hazard_models

    path = tmp_path_factory.mktemp("carry") / "hazards.zip"
    with pytest.MonkeyPatch.context() as patch:
        chosen = [one for one in rules_of(BUILT_IN) if one.code in RULES]
        patch.setattr(hazard_models, "rules_of", lambda _: chosen)
        assert hazards.main(["prepare", str(path), "--most", "3"]) == 0
    return path


def test_examples_are_carried_with_feeds_and_true_outputs(carry: Path) -> None:
    with hazard_cases.Carried(carry) as carried:
        assert carried.manifest["rules"] == sorted(RULES)
        entries = {one.key: one for one in carried.entries}
        assert [key.partition(".")[0] for key in entries] == ["OPS010"] * 3 + ["PRC001"] * 3
        exact, half = entries["OPS010.0"], entries["PRC001.0"]
        assert (exact.safety, exact.target, exact.truths, exact.agrees) == (
            "exact",
            "rtx",
            ("ort-cpu",),
            True,
        )
        assert half.truths[0] == TWIN, "ONNX Runtime and the reference overflow, or one of them does"
        case = carried.case(exact)
        assert set(case.models) == {"before", "after"}
        assert 1 <= len(case.feeds) <= 3
        assert all(0 not in np.shape(value) for feed in case.feeds for value in feed.values())
        assert len(case.truths[0].outputs) == len(case.feeds) == len(exact.labels)


def test_from_the_carried_file_to_the_verdicts(
    carry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = hazard_cases.Carried.case
    monkeypatch.setattr(
        hazard_cases.Carried, "case", lambda self, entry: tricked(real(self, entry), entry.key)
    )
    monkeypatch.setattr(
        engines, "ready", lambda _: (CHOICE, {"TensorRT": "tensorrt-rtx 1.6", "GPU": "G, 9.0"})
    )
    monkeypatch.setattr(hazards, "Bench", partial(Bench, build=build, module="support.fake_engines"))
    target = tmp_path / "found.json"
    command = ["execute", str(carry), "--json", str(target), "--jobs", "1", "--timeout", str(PATIENCE)]
    assert hazards.main([*command, "--match", "PRC001"]) == 0
    assert hazards.main([*command, "--budget", "0"]) == 1, "something is left"
    assert hazards.main(command) == 0
    assert "6 models to measure" in capsys.readouterr().out, "what was measured is not measured again"
    results = ledger.load(target)["results"]
    assert results["OPS010.0/after"]["status"] == "right"
    assert (results["OPS010.1/after"]["status"], results["OPS010.2/after"]["status"]) == ("crash", "timeout")

    monkeypatch.setattr(hazards, "RESULT", tmp_path / "hazards.json")
    (tmp_path / "README.md").write_text("<!-- hazards: begin -->\n<!-- hazards: end -->\n")
    assert hazards.main(["table", str(target), "--write"]) == 1, "one fixed model has no engine"
    known = json.loads((tmp_path / "hazards.json").read_text())
    shown = [one["verdict"] for one in known["rules"]["OPS010"]["examples"]]
    assert shown == ["refused-confirmed", "not-repaired", "contradicted"]
    assert known["rules"]["OPS010"]["examples"][0]["reason"] == "not in model.onnx"
    assert known["rules"]["GRA013"] == {"verdict": "not-runnable", "examples": []}
    assert "**Contradicted: 1 examples.**" in (tmp_path / "README.md").read_text()


def test_an_error_here_is_of_one_model_alone() -> None:
    class Broken:
        def execute(self, *_: Any) -> Executed:
            raise ValueError("odd")

    data = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g () => () {}'
    ).SerializeToString()
    found = hazard_runs.run(Broken(), Entry("A", 0, "why"), Case({"before": data}), "before")  # type: ignore[arg-type]
    assert (found["status"], found["reason"]) == ("error", "ValueError: odd")


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
