"""benchmarks/exports: how findings of severity error are confirmed, what counts as a fault, and what the tables say."""

from __future__ import annotations

import ast
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from exports import outcome, report, sizes, static
from exports.outcome import Applied, Error, Outcome

from onnxfix.causes import Problem
from onnxfix.place import Place
from onnxfix.report.report import AppliedFix, Report, Withdrawn
from onnxfix.trt.records import Issue, TrtBuild
from onnxfix.verification.verdict import FeedResult, RungResult, Verdict
from support import models
from support.paths import ROOT

FOLDER = ROOT / "benchmarks" / "exports"


def saved(folder: Path, graph: str, opset: int = 17) -> Path:
    return models.write(folder / "model.onnx", models.model(graph, opset, 8))


def refused(*places: str) -> TrtBuild:
    found = tuple(Issue("parse", "error", "no such thing", Place(output=place)) for place in places)
    return TrtBuild("refused", "parse", errors=found)


SEQUENCE = (
    "g (float[2] x) => (float[4] y) { s = SequenceConstruct(x, x)  y = ConcatFromSequence<axis = 0>(s) }"
)


@pytest.mark.parametrize(
    ("graph", "places", "code", "how"),
    [
        (SEQUENCE, ["s"], "OPS001", "confirmed"),
        (SEQUENCE, ["s"], "CTL020", "pattern"),  # TensorRT names the node that makes the sequence
        (SEQUENCE, ["elsewhere"], "CTL020", "unconfirmed"),
        (SEQUENCE, [], "OPS001", "unconfirmed"),
        ("g (float[] x) => (float[] y) { y = Neg(x) }", [], "IFC001", "misread"),
    ],
)
def test_how_errors_are_confirmed(tmp_path: Path, graph: str, places: list[str], code: str, how: str) -> None:
    found = outcome.errors(saved(tmp_path, graph), "rtx", refused(*places))
    assert {error.how for error in found if error.code == code} == {how}


def test_refusal_of_an_input_confirms_what_is_said_of_its_reader(tmp_path: Path) -> None:
    shape = "[1,1,1,1,1,1,1,1,2]"
    path = saved(tmp_path, f"g (float{shape} x) => (float{shape} y) {{ y = Neg(x) }}")
    assert [(e.code, e.how) for e in outcome.errors(path, "rtx", refused("x"))] == [("OPS045", "pattern")]
    assert [(e.code, e.how) for e in outcome.errors(path, "rtx", refused())] == [("OPS045", "unconfirmed")]


def test_what_only_informs_confirms_nothing(tmp_path: Path) -> None:
    shape = "[1,1,1,1,1,1,1,1,2]"
    path = saved(tmp_path, f"g (int64{shape} x) => (int64{shape} y) {{ y = Neg(x) }}")
    text = "Make sure input x has Int64 binding."
    build = TrtBuild("accepted", warnings=(Issue("parse", "warning", text, Place(output="x")),))
    assert {e.how for e in outcome.errors(path, "rtx", build)} == {"unconfirmed"}


def test_what_tensorrt_says_of_no_place_has_to_be_on_the_page(tmp_path: Path) -> None:
    path = saved(tmp_path, "g (float[2] x, float[2] b) => (float[2] y) { y = Add(x, b) }", opset=6)
    words = (
        "Assertion failed: ctx->getOpsetVersion() >= 7: Pre-opset 7 broadcasting is unsupported in this version "
        "of the ONNX parser"
    )
    for text, how in ((words, "quoted"), ("Out of luck", "unconfirmed")):
        build = TrtBuild("refused", "parse", errors=(Issue("parse", "error", text),))
        assert [(e.code, e.how) for e in outcome.errors(path, "rtx", build)] == [("GRA020", how)]


def rung(name: str, *statuses: str, **rest: Any) -> RungResult:
    feeds = tuple(FeedResult("", None, status) for status in statuses)  # type: ignore[arg-type]
    return RungResult(name, rest.pop("status", "passed"), feeds=feeds, **rest)


def of(*rungs: RungResult, **rest: Any) -> Report:
    fix = AppliedFix("CST001", "", "info", Place(output="y"), "", "drop it", "exact", 1)
    return Report("m", "apply", "rtx", applied=(fix, fix), verdict=Verdict(rungs), nodes_after=3, **rest)


def test_identical_runs_are_counted() -> None:
    same = rung("ort-cpu", "identical", "identical", "not counted", exact=True)
    found = outcome.applied(of(rung("contract"), same), exact=True)
    assert found.fixes == {"CST001": 2}
    assert (found.passed, found.faults) == (True, [])
    assert found.rungs == ["contract passed", "ort-cpu passed 2/2"]


def test_within_tolerance_is_a_fault_only_where_identity_is_asked_for() -> None:
    near = rung("ort-cpu", "identical", "within", exact=True, reason="one bit")
    assert outcome.applied(of(near), exact=True).faults == [
        "ort-cpu: 1 of 2 runs are not bit-identical: one bit"
    ]
    assert outcome.applied(of(near), exact=False).faults == []
    half = rung("ort-cpu", "within", exact=False)  # what a rung judges by tolerance because of the types
    assert outcome.applied(of(half), exact=True).faults == []


def test_what_the_original_fails_too_is_no_fault_of_a_fix() -> None:
    inherited = rung("trt-build", status="failed", reason="no", inherited=True)
    refuted = rung("trt-build", status="failed", reason="no")
    assert outcome.applied(of(rung("ort-cpu", "identical"), inherited), exact=True).faults == []
    found = outcome.applied(of(rung("ort-cpu", "identical"), refuted), exact=True)
    assert (found.passed, found.faults) == (False, ["trt-build: no"])


def test_withdrawn_fixes_and_problems_are_faults() -> None:
    gone = Withdrawn("CST001", Place(output="y"), "drop it", "differs")
    found = outcome.applied(
        of(rung("ort-cpu", "identical"), withdrawn=(gone,), problems=(Problem("oops"),)), exact=True
    )
    assert found.faults == ["oops", "withdrawn: CST001 at y: differs"]


def row(**rest: Any) -> dict[str, Any]:
    fine = Outcome(
        "m",
        nodes=1200,
        found={"error OPS001": 1, "info CST001": 2},
        errors=[Error("OPS001", "y", "no", "confirmed", "false")],
        exact=Applied({"CST001": 2}, 900, True, ["contract passed", "ort-cpu passed 2/2"]),
        accepted=[True, True],
        layers=[1500, 1100],
        build_seconds=[2.0, 1.5],
        warnings=[{"a": 2}, {"a": 1}],
        reasons=["", ""],
    )
    return {**asdict(fine), **rest}


def test_a_sound_row_has_no_faults() -> None:
    assert report.faults(row()) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"fault": "TypeError: x"}, "TypeError: x"),
        ({"errors": [asdict(Error("OPS001", "y", "no", "unconfirmed"))]}, "unconfirmed OPS001 at y: no"),
        ({"accepted": [True, False], "reasons": ["", "bad"]}, "built before and not after: bad"),
        ({"exact": asdict(Applied(passed=True, faults=["f"]))}, "exact: f"),
        ({"numeric": asdict(Applied(passed=False, rungs=["r"]))}, "numeric: not verified: r"),
    ],
)
def test_faults_are_told(change: dict[str, Any], text: str) -> None:
    assert report.faults(row(**change)) == [text]


def test_a_model_that_never_built_is_no_fault() -> None:
    assert report.faults(row(accepted=[False, False], reasons=["bad", "bad"])) == []


def test_the_row_of_a_model() -> None:
    numeric = asdict(Applied({"CST001": 2, "PRC001": 3}, 880, True))
    line = report.table([row(layers=[1500, 1100, 1090], numeric=numeric)])[-1]
    assert line == (
        "| `m` | 1,200 → 900 | 1/0/2 | 0.00 | 2 | ort-cpu 2/2 | 1,500 → 1,100 | 2.00 → 1.50 | PRC001×3: 1,090 |"
    )


def test_codes_with_how_they_are_confirmed() -> None:
    lines = report.by_code([row(), row()])
    assert lines[2:] == [
        "| error | OPS001 | 2 | 2 | – | 2 confirmed |",
        "| info | CST001 | 4 | 2 | 4 | – |",
    ]


def test_warnings_of_a_model_that_only_numeric_fixes_change() -> None:
    only = row(exact=asdict(Applied(passed=True)), warnings=[{"a": 1, "b": 1}, {"b": 1}])
    assert report.by_warning([only, row()])[2:] == ["| a | 2 | 2 | 1 |", "| b | 1 | 1 | 1 |"]


def test_models_in_folders_and_below(tmp_path: Path) -> None:
    for name in ("flat/a.onnx", "flat/below/b.onnx", "deep/c/model.onnx"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert [name for name, _ in report.cases([tmp_path / "flat", tmp_path / "deep"])] == ["a", "c"]


def rows_of_make() -> dict[str, tuple[str, int]]:
    """Name -> (exporter, opset), read without torch."""
    tree = ast.parse((FOLDER / "make.py").read_text(encoding="utf-8"))
    (table,) = [n for n in tree.body if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == "ROWS"]
    assert isinstance(table.value, ast.Dict)
    found = {}
    for key, value in zip(table.value.keys, table.value.values, strict=True):
        assert isinstance(value, ast.Tuple)
        found[ast.literal_eval(key)] = tuple(ast.literal_eval(item) for item in value.elts[1:])
    return found


def test_rows_are_called_what_they_are() -> None:
    rows = rows_of_make()
    assert len(rows) == 22
    for name, (exporter, opset) in rows.items():
        assert name.split(".")[1:] == [exporter, f"op{opset}"]
    assert {opset for _, opset in rows.values()} == set(range(11, 21))


def test_every_export_is_in_the_tables() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    missing = [name for name in rows_of_make() if f"| `{name}` |" not in text]
    assert not missing, "run benchmarks/exports/report.py and copy its tables to README.md"


@pytest.mark.corpus
@pytest.mark.parametrize("path", sorted((ROOT / "fixtures").glob("*.onnx")), ids=lambda path: path.stem)
def test_fixtures_run_at_sizes_given_and_fail_at_those_excluded(path: Path) -> None:
    (given, ran), _, (excluded, failed), _ = sizes.counts(sizes.judged(path))
    assert given == ran >= 3
    assert excluded == failed


def test_sizes_that_do_not_run_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, "g (float[N,3] x, float[M,3] z) => (float[A,3] y) { y = Add(x, z) }")
    row = sizes.judged(path)
    assert sizes.counts(row)[0] == (5, 5)
    assert sizes.counts(row)[2][0] >= 4
    monkeypatch.setattr(sizes, "given", lambda _: [{"N": 2, "M": 5}, {"N": 3, "M": 1}, {"N": 0, "M": 3}])
    row = sizes.judged(path)
    assert [sizes.counts(row)[k] for k in (0, 1)] == [(2, 1), (1, 0)]
    assert sizes.table([row]).splitlines()[-1].startswith("| all |  | 1 | 2: 1 | 1: 0 | ")


def test_what_takes_too_long_to_be_made_static_is_said(tmp_path: Path) -> None:
    path = saved(tmp_path, "g (float[N,3] x) => (float[N,3] y) { y = Abs(x) }")
    row = static.measured(path, 8, "", 0.01)
    assert row["exit"] == [124, 124]
    assert "no result in 0.01 s" in row["stderr"]
    assert static.table([row]).splitlines()[-1] == "| `model` | N=1 | timed out | timed out | none |"
