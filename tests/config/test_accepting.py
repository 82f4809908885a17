"""Findings that a configuration or a baseline accepts: apart in the report, counted, no failure; nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from onnxfix.config.holding import Baseline, Holding, known_of, load_baseline, load_or_new_baseline
from onnxfix.config.records import Config, Layer, Suppression
from onnxfix.errors import UsageError
from onnxfix.options import RunOptions
from onnxfix.place import Place
from onnxfix.proof.verdict import RungResult, Verdict
from onnxfix.report.render.findings import accepted_section, count_accepted
from onnxfix.report.render.html.render import render_html
from onnxfix.report.render.markdown import render_markdown
from onnxfix.report.render.terminal import section_lines
from onnxfix.report.report import AppliedFix, Finding, Report, Withdrawn
from onnxfix.tensorrt.records import TrtBuild
from support.cli import output, refused, run
from support.cli_models import CLEAN, FIXABLE, write

TODAY = date(2026, 11, 23)


def finding(code: str, node: str, severity: str = "error") -> Finding:
    return Finding(code, "a-rule", severity, Place(node=node, op_type="Cast", output=f"{node}_out"), "is odd")


A, B, C = finding("CST002", "/a/Cast"), finding("CST002", "/b/Cast"), finding("GRA010", "/a/Add")
REPORT = Report("m.onnx", "check", "trt11", findings=(A, B, C))


def suppression(rule: str = "CST002", node: str = "/a/*", until: date | None = None) -> Suppression:
    return Suppression(rule, frozenset({"CST002", "CST003"}), "it is fine", node, (), until, "onnxfix.toml")


def holding(*suppressions: Suppression, **more: object) -> Holding:
    return Holding(Config(suppressions=suppressions), today=TODAY, **more)


def test_a_suppressed_finding_is_apart_with_its_reason() -> None:
    found = holding(suppression(until=TODAY)).judge("m.onnx", REPORT, RunOptions())
    assert found.findings == (B, C)
    (one,) = found.suppressed
    assert (one.finding, one.by, one.reason, one.until) == (A, "configuration", "it is fine", "2026-11-23")
    assert found.to_json()["suppressed"][0]["reason"] == "it is fine"
    assert found.exit_code == 1
    all_of_it = holding(suppression(node="*"), suppression("GRA", "*")).judge("m.onnx", REPORT, RunOptions())
    assert [one.code for one in all_of_it.findings] == ["GRA010"]  # the codes count, not the text


def test_an_expired_one_counts_as_not_there_and_is_said() -> None:
    held = holding(suppression(until=date(2026, 11, 22)))
    assert held.judge("m.onnx", REPORT, RunOptions()).findings == REPORT.findings
    assert held.expired(["m.onnx"]) == [
        "onnxfix.toml: the suppression of CST002 at /a/* expired on 2026-11-22: it is fine"
    ]
    assert holding(suppression(until=TODAY)).expired(["m.onnx"]) == []


def test_one_that_matches_nothing_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A typo in a node's name, and not what one of several models has, what was fixed, or what TensorRT was not asked
    about."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "onnxfix.toml").write_text(
        "".join(
            f'[[suppressions]]\nrule = "{rule}"\nnode = "{node}"\nreason = "fine"\n'
            for rule, node in (("CST002", "typo*"), ("CST", "*"), ("TRT004", "*"))
        )
    )
    models = [write(tmp_path / "a.onnx", CLEAN), write(tmp_path / "m.onnx", FIXABLE)]
    for command in (["check"], ["apply", "--no-verify", "--output-dir", "out"]):
        err = run(*command, *models)[2]
        assert [line.partition(": warning: ")[2] for line in err.splitlines()] == [
            "onnxfix.toml: the suppression of CST002 at typo* matches no finding"
        ], err


def test_nothing_hides_a_failure() -> None:
    all_of_it = holding(suppression(node="*"))
    only = replace(REPORT, findings=(A, B))
    assert all_of_it.judge("m.onnx", only, RunOptions()).exit_code == 0
    failed = replace(only, verdict=Verdict((RungResult("ort-cpu", "failed", "differs"),)))
    withdrawn = replace(only, withdrawn=(Withdrawn("CST002", A.place, "remove it", "differs"),))
    assert all_of_it.judge("m.onnx", failed, RunOptions()).exit_code == 3
    assert all_of_it.judge("m.onnx", withdrawn, RunOptions()).exit_code == 1


def test_known_findings_do_not_fail_and_those_that_are_gone_are_named(tmp_path: Path) -> None:
    known = Baseline(tmp_path / "b.json", {"m.onnx": known_of([A, C])})
    held = holding(baseline=known)
    model = str(tmp_path / "m.onnx")
    same = held.judge(model, replace(REPORT, findings=(A, C)), RunOptions())
    assert (same.exit_code, same.vanished, len(same.suppressed)) == (0, (), 2)
    other = held.judge(model, replace(REPORT, findings=(A, B)), RunOptions())
    assert (other.exit_code, other.findings) == (1, (B,))
    assert [(one.code, one.place) for one in other.vanished] == [("GRA010", "/a/Add_out (/a/Add)")]
    # What was fixed, suppressed, or not looked for is not gone.
    fixed = AppliedFix("GRA010", "a-rule", "error", C.place, "is odd", "remove it", "exact", 1)
    assert held.judge(model, replace(REPORT, findings=(A,), applied=(fixed,)), RunOptions()).vanished == ()
    unasked = RunOptions(rules=replace(RunOptions().rules, select=("CST",)))
    assert held.judge(model, replace(REPORT, findings=(A,)), unasked).vanished == ()
    both = holding(suppression(), baseline=known).judge(model, REPORT, RunOptions())
    assert ([one.by for one in both.suppressed], both.vanished) == (["configuration", "baseline"], ())
    # TensorRT's findings are gone only where TensorRT ran.
    with_trt = Baseline(tmp_path / "b.json", {"m.onnx": known_of([finding("TRT001", "/a/Cast")])})
    assert holding(baseline=with_trt).judge(model, REPORT, RunOptions()).vanished == ()
    built = replace(REPORT, build=TrtBuild("accepted", package="tensorrt-rtx", version="1.7"))
    everything = RunOptions(rules=replace(RunOptions().rules, select=("TRT001",)))
    (gone,) = holding(baseline=with_trt).judge(model, built, everything).vanished
    assert gone.code == "TRT001"
    # Another model has findings of its own.
    assert held.judge(str(tmp_path / "n.onnx"), REPORT, RunOptions()).findings == REPORT.findings


def test_a_baseline_is_written_and_read(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    for name in ("m.onnx", "n.onnx"):
        (tmp_path / "models" / name).touch()
    empty = load_or_new_baseline(tmp_path / "b.json")
    first = empty.with_findings({str(tmp_path / "models" / "m.onnx"): [C, A], "s3://x/m.onnx": [B]})
    (tmp_path / "b.json").write_text(first.text())
    again = load_baseline(tmp_path / "b.json")
    assert again.text() == first.text()
    assert list(json.loads(first.text())["models"]) == ["models/m.onnx", "s3://x/m.onnx"]
    # Other models stay while they are there; a model without findings has no entry.
    more = again.with_findings({str(tmp_path / "models" / "n.onnx"): [A], "s3://x/m.onnx": []})
    assert list(more.models) == ["models/m.onnx", "models/n.onnx"]
    (tmp_path / "models" / "m.onnx").unlink()
    assert list(more.with_findings({}).models) == ["models/n.onnx"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not a baseline"),
        ("[]", "is not a baseline"),
        ('{"reports": []}', "is not a baseline"),
        ('{"onnxfix-baseline": 9}', "of another version"),
        ('{"onnxfix-baseline": 1, "models": {"a": [{}]}}', "is a damaged baseline"),
        ('{"onnxfix-baseline": 1, "models": []}', "is a damaged baseline"),
    ],
)
def test_no_other_file_is_taken_for_a_baseline_or_replaced(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(text)
    for use in (load_baseline, load_or_new_baseline):
        with pytest.raises(UsageError, match=said):
            use(path)
    with pytest.raises(UsageError, match="no such file; --write-baseline"):
        load_baseline(tmp_path / "other.json")


def test_text_counts_what_is_accepted_by_reason() -> None:
    known = Baseline(Path("b.json"), {"m.onnx": known_of([B, C, finding("INT001", "/x\x1b[2J")])})
    found = holding(suppression(until=TODAY), baseline=known).judge("m.onnx", REPORT, RunOptions())
    section = accepted_section(found.suppressed, found.vanished)
    assert section is not None
    lines = [line.plain for line in section_lines([section], verbose=False)]
    assert lines == [
        "  accepted  CST002 ×1: it is fine (until 2026-11-23)  onnxfix.toml",
        "  known     CST002 ×1  GRA010 ×1  b.json",
        "  gone      1 known finding no longer there: INT001 at /x\\x1b[2J_out (/x\\x1b[2J)  (update it with "
        "--write-baseline b.json)",
    ]
    lines = [line.plain for line in section_lines([section], verbose=True)]
    assert lines[1] == "    CST002 /a/Cast", "the places stand below the reason, without a title"
    assert lines[3:5] == ["    CST002 /b/Cast", "    GRA010 /a/Add"]
    markdown = render_markdown([found])
    assert "accepted CST002 (a-rule) ×1: it is fine" in markdown
    assert "known CST002 (a-rule) ×1  GRA010 (a-rule) ×1" in markdown
    assert count_accepted(found.suppressed) == "1 accepted, 2 known"
    page = render_html([found])
    words = (
        "Accepted findings",
        "1 accepted, 2 known",
        "it is fine (until 2026-11-23)",
        "no longer there",
        "/a/Cast",
    )
    assert all(one in page for one in words)
    assert "\x1b" not in page
    assert "Accepted findings" not in render_html([REPORT])


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("m.onnx"), FIXABLE)
    write(Path("n.onnx"), CLEAN)
    Path("onnxfix.toml").write_text(
        'fail-on = "info"\n[[overrides]]\nmodels = "n.onnx"\nfail-on = "never"\n'
        '[[suppressions]]\nrule = "CST"\nreason = "old"\nuntil = 2020-01-01\n',
        encoding="utf-8",
    )
    code, out, err = run("check", "m.onnx", "n.onnx", "--format", "json")
    data = json.loads(out)
    assert code == 1
    assert [one["fail_on"] for one in data["reports"]] == ["info", "never"]
    assert [one["exit_code"] for one in data["reports"]] == [1, 0]
    assert data["warnings"] == ["onnxfix.toml: the suppression of CST expired on 2020-01-01: old"]
    assert "warning: onnxfix.toml: the suppression of CST expired" in err
    assert run("check", "m.onnx", "--isolated")[0] == 0
    assert run("check", "m.onnx", "--fail-on", "error")[0] == 0
    assert run("check", "m.onnx", "--write-baseline", "b.json")[0] == 0
    out = output(0, "check", "m.onnx", "--baseline", "b.json")
    assert "known     CST00" in out
    assert "--write-baseline none.json makes one" in refused("check", "m.onnx", "--baseline", "none.json")
    for wrong in (
        ["--config", "onnxfix.toml", "--isolated"],
        ["--baseline", "b.json", "--write-baseline", "b.json"],
    ):
        assert run("check", "m.onnx", *wrong)[0] == 2
    code, _, err = run("check", "m.onnx", "--write-baseline", "m.onnx")
    assert (code, "is not a baseline" in err) == (2, True)


def test_show_settings_names_values_and_origins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("m.onnx"), CLEAN)
    Path("onnxfix.toml").write_text(
        'target = "trt10"\nbaseline = "b.json"\n[[suppressions]]\nrule = "CST"\nnode = "/a/*"\nreason = "fine"\n'
        '[[overrides]]\nmodels = "m.onnx"\nselect = ["CST", "GRA"]\ntolerance = { rtol = 0.5 }\n',
        encoding="utf-8",
    )
    code, _, err = run("check", "m.onnx")
    assert (code, "onnxfix: onnxfix.toml: baseline " in err, "no such file" in err) == (2, True, True)
    Path("b.json").write_text('{"onnxfix-baseline": 1, "models": {}}', encoding="utf-8")
    code, out, _ = run("apply", "m.onnx", "--show-settings", "--fail-on", "never", "--output-dir", "made")
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines()[1:]}
    assert code == 0
    assert rows == {
        "config": "onnxfix.toml",
        "target": "trt10 onnxfix.toml",
        "select": "CST, GRA onnxfix.toml, overrides for m.onnx",
        "ignore": "none default",
        "fail-on": "never command line",
        "require": "none default",
        "rtol": "0.5 onnxfix.toml, overrides for m.onnx",
        "atol": "by element type default",
        "effort": "default default",
        "baseline": f"{tmp_path / 'b.json'} onnxfix.toml",
        "suppression": "CST at /a/*: fine onnxfix.toml",
    }
    assert not Path("made").exists()
    code, out, _ = run("verify", "m.onnx", "--show-settings", "--format", "json")
    (model,) = json.loads(out)["models"]
    settings = {one["name"]: one["value"] for one in model["settings"]}
    assert (code, settings["rtol"]) == (0, "0.5")
    assert set(settings) == {"config", "require", "rtol", "atol", "effort"}
    assert run("check", "*.none", "--show-settings")[0] == 2


def test_options_of_each_model() -> None:
    config = Config(
        layer=Layer("f", {"require": ("ort-cpu",), "rtol": 0.1}),
        overrides=(Layer("f", {"target": "rtx"}, ("v*",)),),
    )
    held = Holding(config, Layer("command line", {"select": ("CST",)}))
    plain = RunOptions()
    own = held.options("v.onnx", plain)
    assert (own.rules.target, own.rules.select, own.verification.rtol) == ("rtx", ("CST",), 0.1)
    assert own.verification.require == ("ort-cpu",)
    assert held.options("w.onnx", plain).rules.target is None
    unproven = replace(plain, verification=replace(plain.verification, enabled=False))
    assert held.options("v.onnx", unproven).verification.require == ()
    exact = replace(plain, verification=replace(plain.verification, exact=True))
    assert held.options("v.onnx", exact).verification.rtol is None


def test_markdown_names_each_known_finding_that_is_gone() -> None:
    """The first three stand in the summary; a comment on a pull request has no other place for the rest."""
    gone = [finding("INT001", f"/node{number}") for number in range(5)]
    baseline = Baseline(Path("b.json"), {"m.onnx": known_of(gone)})
    found = holding(baseline=baseline).judge("m.onnx", REPORT, RunOptions())
    page = render_markdown([found])
    assert all(f"/node{number}" in page for number in range(5))
    assert "((" not in page
