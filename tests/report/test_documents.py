"""Reports as documents of programs and CI systems: each is valid, complete, and free of what names could smuggle in."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from markdown_it import MarkdownIt

from onnxfix.errors import UsageError
from onnxfix.place import Place
from onnxfix.proof.verdict import Verdict
from onnxfix.report.findings import repository_path
from onnxfix.report.render.documents import Kind, refuse_unknown_kind, render_document, target_of
from onnxfix.report.render.issues import issues_of
from onnxfix.report.render.markdown import code, safe
from support.reports import CLEAN, EVIL, PLACE, REPORTS, finding, report, rung

HERE = Path(__file__).parent
SARIF = json.loads((HERE / "schemas" / "sarif-schema-2.1.0.json").read_text(encoding="utf-8"))
ERRORS = [("gone.onnx", "gone.onnx: no such file"), ("", "no rule 'X'"), (EVIL, EVIL)]
WARNINGS = ["a pack is broken", EVIL]
EACH = pytest.mark.parametrize("name", REPORTS)
FAIL_ON = ("never", "info", "warning", "error")


def rendered(kind: Kind, *names: str, errors: Any = (), warnings: Any = ()) -> str:
    return render_document(kind, [REPORTS[one] for one in names], errors, warnings)


# -------------------------------------------------------------------------------------------------------------- issues


def test_issues_come_worst_first_and_their_fingerprints_are_of_the_place_alone() -> None:
    first, second, third = (
        finding("info"),
        finding("error", Place(node="m", op_type="Cast", output="u")),
        finding(),
    )
    everything = issues_of(report(first, second, third, path="a/m.onnx"))
    assert [one.severity for one in everything] == ["error", "warning", "info"]
    marks = {one.severity: one.fingerprint for one in everything}
    moved = Place(PLACE.graph, PLACE.node, "Identity", PLACE.output, index=99)
    alone = issues_of(report(finding("error", moved, message="other words"), path="/b/c.onnx"))
    assert alone[0].fingerprint == marks["info"]  # whatever else is found, and wherever file and node are
    assert len(set(marks.values())) == 3


def test_a_path_is_that_in_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    for name in ("GITHUB_WORKSPACE", "CI_PROJECT_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert repository_path("./a/../m.onnx") == repository_path(str(tmp_path / "sub/m.onnx")) == "m.onnx"
    assert repository_path("../m.onnx") == (tmp_path / "m.onnx").as_posix()
    assert repository_path("s3://bucket/m.onnx") == "s3://bucket/m.onnx"
    monkeypatch.setenv("CI_PROJECT_DIR", str(tmp_path))
    assert repository_path("m.onnx") == "sub/m.onnx"


# --------------------------------------------------------------------------------------------------------------- SARIF


def sarif(*names: str, errors: Any = (), warnings: Any = ()) -> dict[str, Any]:
    document = json.loads(rendered(Kind.sarif, *names, errors=errors, warnings=warnings))
    checker = jsonschema.Draft4Validator.FORMAT_CHECKER
    jsonschema.Draft4Validator(SARIF, format_checker=checker).validate(document)
    (run,) = document["runs"]
    return dict(run)


def test_sarif_is_valid_whatever_is_in_it() -> None:
    run = sarif(*REPORTS, errors=ERRORS, warnings=WARNINGS)
    (invocation,) = run["invocations"]
    assert (invocation["executionSuccessful"], invocation["exitCode"]) == (False, 3)
    messages = "".join(one["message"]["text"] for one in run["results"])
    assert not any(char in messages for char in "\x1b\u202e")
    texts = [one["message"]["text"] for one in invocation["toolExecutionNotifications"]]
    assert [text[:25] for text in texts][:2] == ["no such file", "no rule 'X'"]
    assert "rule X failed" in texts
    assert sarif() == {**sarif(), "results": [], "artifacts": []}


def test_a_sarif_result_says_which_rule_where_and_what_helps() -> None:
    run = sarif("error")
    first, second = run["results"]
    rules = run["tool"]["driver"]["rules"]
    assert [first["level"], second["level"]] == ["error", "note"]
    assert first["message"]["text"] == (
        "y.then_branch / n: a message [fix: remove it (numeric, with --numeric-fixes)]"
    )
    (location,) = first["locations"]
    assert location["physicalLocation"]["artifactLocation"] == {"uri": "m.onnx", "uriBaseId": "%SRCROOT%"}
    assert location["logicalLocations"] == [
        {"name": "n", "fullyQualifiedName": "y.then_branch/n", "kind": "node"}
    ]
    prints = [one["partialFingerprints"] for one in (first, second)]
    assert prints[0]["primaryLocationLineHash"] == prints[0]["onnxfixPlace/v1"] + ":1"
    assert prints[0] != prints[1]
    assert [rule["id"] for rule in rules] == ["CST004"]
    assert rules[first["ruleIndex"]]["defaultConfiguration"]["level"] == "note"
    assert rules[0]["name"] == "lossy-cast-round-trip"
    assert "## Why it matters" in rules[0]["help"]["markdown"]
    assert rules[0]["helpUri"].startswith("https://")


def test_sarif_shows_checks_and_no_fixes_that_were_made() -> None:
    assert sarif("fixed")["results"] == []
    (result,) = sarif("failed")["results"]
    assert (result["ruleId"], result["level"]) == ("ort-cpu", "error")
    assert "it differs" in result["message"]["text"]


def test_paths_in_sarif_are_uris() -> None:
    found = [
        replace(REPORTS["warning"], path=path)
        for path in ("a b/ü#.onnx", "/nowhere/a?.onnx", "https://host/m 1.onnx?v=%20")
    ]
    run = json.loads(render_document(Kind.sarif, found))["runs"][0]
    uris = [one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in run["results"]]
    assert uris == ["a%20b/%C3%BC%23.onnx", "file:///nowhere/a%3F.onnx", "https://host/m%201.onnx?v=%20"]


# ----------------------------------------------------------------------------------------------------- GitHub, GitLab

COMMAND = re.compile(r"::(error|warning|notice) [a-z]+=[^:,\s][^:,]*(,title=[^:,]+)?::[^\r\n]+")


def test_github_commands_cannot_be_forged() -> None:
    *commands, total = rendered(Kind.github, *REPORTS, errors=ERRORS, warnings=WARNINGS).split("\n")
    assert all(COMMAND.fullmatch(one) for one in commands), commands
    assert total == "onnxfix: 20 models: 12 errors, 3 warnings, 3 infos"
    levels = [one.split(" ")[0] for one in commands]
    assert levels == sorted(levels, key=["::error", "::warning", "::notice"].index)


def test_a_percent_sign_is_no_escape_in_a_command() -> None:
    (command, _) = render_document(Kind.github, [report(finding(message="100%0A,:"), path="50%.onnx")]).split(
        "\n"
    )
    assert command.startswith("::warning file=50%25.onnx,title=onnxfix CST004")
    assert "100%250A,:" in command


def test_github_gets_one_annotation_for_a_rule() -> None:
    many = report(*(finding(place=Place(node=f"n{i}", op_type="Cast", output=f"t{i}")) for i in range(7)))
    (command, _) = render_document(Kind.github, [many]).split("\n")
    places = command.split("%0A")
    assert places[0] == (
        "::warning file=m.onnx,title=onnxfix CST004 lossy-cast-round-trip::7 places: a message "
        "[fix: remove it (numeric, with --numeric-fixes)]"
    )
    assert places[-1] == "… and 2 more"
    assert len(places) == 7


def test_gitlab_gets_what_it_requires() -> None:
    entries = json.loads(rendered(Kind.gitlab, *REPORTS, errors=ERRORS))
    assert len(entries) == 18
    for one in entries:
        assert set(one) == {"description", "check_name", "fingerprint", "severity", "location"}
        assert one["severity"] in ("info", "minor", "major", "critical", "blocker")
        assert one["location"]["lines"]["begin"] == 1
    named = {one["check_name"]: one for one in json.loads(rendered(Kind.gitlab, "failed", "warning"))}
    assert named["ort-cpu"]["severity"] == "blocker"
    assert named["CST004 lossy-cast-round-trip"]["severity"] == "major"


def test_gitlab_tells_the_same_node_of_two_models_apart() -> None:
    models = [replace(REPORTS["warning"], path=path) for path in ("a/m.onnx", "b/m.onnx", "./a/m.onnx")]
    marks = [one["fingerprint"] for one in json.loads(render_document(Kind.gitlab, models))]
    assert marks[0] != marks[1]
    assert marks[0] == marks[2]  # the same file


# --------------------------------------------------------------------------------------------------------------- JUnit


def junit(*names: str, errors: Any = (), fail_on: str = "warning") -> ET.Element:
    reports = [replace(REPORTS[one], fail_on=fail_on) for one in names]
    text = render_document(Kind.junit, reports, errors)
    assert text.isascii()
    root = ET.fromstring(text)
    for element in (root, *root):
        cases = list(element.iter("testcase"))
        for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(element.get(count, "-1")) == sum(one.find(tag) is not None for one in cases)
        assert int(element.get("tests", "-1")) == len(cases)
    return root


@EACH
def test_a_suite_fails_exactly_where_the_exit_code_is_not_0(name: str) -> None:
    for fail_on in FAIL_ON:
        (suite,) = junit(name, fail_on=fail_on)
        bad = int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
        # A check that broke is an error to look at, although the others prove the result.
        assert (bad > 0) == (REPORTS[name].exit_code_for(fail_on) != 0 or name == "broke"), fail_on
        assert list(suite.iter("testcase"))


def test_skipped_stays_skipped_with_its_reason_unless_it_is_required() -> None:
    def case(name: str) -> ET.Element:
        found = junit(name).find(".//testcase[@name='trt-gpu']")
        assert found is not None
        return found

    skipped, failure = case("clean").find("skipped"), case("required").find("failure")
    assert skipped.get("message") == "no GPU found"
    assert failure.get("message") == "trt-gpu skipped and is required: no GPU found"
    assert case("required, absent").find("failure") is not None


def test_junit_has_a_case_for_each_rule_that_fails() -> None:
    names = [one.get("name") for one in junit("error").iter("testcase")]
    assert names == ["CST004 lossy-cast-round-trip"]
    assert [one.get("name") for one in junit("info").iter("testcase")] == ["rules"]
    suites = [one.get("name") for one in junit("clean", errors=ERRORS[:2])]
    assert suites == ["m.onnx", "gone.onnx", "onnxfix"]


def test_what_is_accepted_is_skipped_with_its_reason_and_reported_nowhere_else() -> None:
    assert sarif("known")["results"] == []
    assert json.loads(rendered(Kind.gitlab, "known")) == []
    assert "::" not in rendered(Kind.github, "known")
    skipped = [one.get("message") for one in junit("known", "accepted").iter("skipped")]
    assert skipped[0] == "2 known to the baseline"
    assert str(skipped[1]).startswith("1 accepted: known | ")
    assert "1 accepted" in rendered(Kind.markdown, "accepted")


# ------------------------------------------------------------------------------------------------------------ Markdown


def test_names_make_nothing_in_markdown() -> None:
    text = rendered(Kind.markdown, "evil", "failed", errors=ERRORS, warnings=WARNINGS)
    html = MarkdownIt("commonmark", {"html": True, "linkify": False}).enable("table").render(text)
    assert "<b>" not in html
    assert "<img" not in html
    assert "<a " not in html
    outside = re.sub(r"<code>.*?</code>", "", html, flags=re.DOTALL)
    assert "@you" not in outside
    assert "\x1b" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    cells = [len(re.findall(r"(?<!\\)\|", row)) - 1 for row in rows]
    assert set(cells) <= {4, 5, 7}


@pytest.mark.parametrize("text", ["a", "`", "a`b", "``", "`a``b`", "a|b", "<b>", "*a*", " a ", "\\", "@a"])
def test_text_in_markdown_is_text(text: str) -> None:
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    (inline,) = [one for one in parser.parse(code(text)) if one.type == "inline"]
    (only,) = inline.children or []
    assert (only.type, only.content.replace("\\|", "|").strip()) == ("code_inline", text.strip())
    html = parser.renderInline(safe(text)).replace("<!-- -->", "")
    assert html == escape(text, quote=False).strip() or html == escape(text, quote=False)


def test_markdown_begins_with_the_outcome_and_its_mark() -> None:
    assert rendered(Kind.markdown, "clean").splitlines()[:2] == [
        "<!-- onnxfix -->",
        "## ✅ onnxfix: `m.onnx`: UNCHANGED; 0 fixed, 0 left",
    ]
    text = rendered(Kind.markdown, "clean", "warning", errors=ERRORS[:1])
    assert text.splitlines()[1] == "## ❌ onnxfix: 2 of 3 models fail"
    rows = [line.split(" | ")[1] for line in text.splitlines() if line.startswith(("| ❌", "| ✅"))]
    assert rows[:3] == ["`gone.onnx`", "`m.onnx`", "`m.onnx`"]
    assert [line[2] for line in text.splitlines() if line.startswith(("| ❌", "| ✅"))] == ["❌", "❌", "✅"]


def test_markdown_fits_into_a_comment() -> None:
    long = finding(message="x" * 900)
    others = [replace(long, code=f"CST{number}", severity="info") for number in range(200)]
    many = [replace(REPORTS["warning"], path=f"{number}.onnx", findings=(long,)) for number in range(100)]
    texts = {
        "models": render_document(Kind.markdown, many),
        "rules": render_document(Kind.markdown, [report(long, *others, command="check")]),
        "errors": render_document(
            Kind.markdown, errors=[(f"{number}.onnx", "x" * 90) for number in range(999)]
        ),
    }
    for what, text in texts.items():
        assert 25_000 < len(text) < 65_536, what
        assert text.count("<details>") == text.count("</details>"), what
        assert "… and " in text.splitlines()[-1], what
    assert "CST0" in texts["rules"]
    assert re.search(r"… and \d+ more models$", texts["models"])


def test_values_that_were_not_compared_are_not_verified() -> None:
    alone = replace(CLEAN, verdict=Verdict((rung("contract"),)), changed=True)
    for kind in (Kind.markdown, Kind.github, Kind.sarif, Kind.junit):
        text = render_document(kind, [alone])
        assert "NOT VERIFIED (values were not compared)" in text.replace("\\", ""), kind
        assert "NOT VERIFIED" not in render_document(kind, [replace(CLEAN, changed=True)])
    assert render_document(Kind.markdown, [alone]).splitlines()[1].startswith("## ⚠️")


# ------------------------------------------------------------------------------------------------------- kinds of files


@pytest.mark.parametrize(
    ("text", "kind", "path"),
    [
        ("r.json", "json", "r.json"),
        ("a.b/r.JSONL", "jsonl", "a.b/r.JSONL"),
        ("r.sarif", "sarif", "r.sarif"),
        ("r.sarif.json", "sarif", "r.sarif.json"),
        ("junit.xml", "junit", "junit.xml"),
        ("r.md", "markdown", "r.md"),
        ("r.htm", "html", "r.htm"),
        ("r.gitlab.json", "gitlab", "r.gitlab.json"),
        ("gl-code-quality-report.json", "gitlab", "gl-code-quality-report.json"),
        ("junit:r.json", "junit", "r.json"),
        ("github:out", "github", "out"),
        ("/dev/null", "json", "/dev/null"),
        ("r.txt", None, "r.txt"),
        ("other:r.txt", None, "other:r.txt"),
        ("json:", None, "json:"),
        ("r", None, "r"),
    ],
)
def test_the_kind_is_that_of_the_name(text: str, kind: str | None, path: str) -> None:
    assert target_of(text) == (kind, Path(path))


def test_an_unknown_kind_is_refused_with_those_there_are() -> None:
    known = r"\.json, \.jsonl, \.sarif, \.gitlab\.json, \.xml \(JUnit\), \.md, \.html"
    with pytest.raises(UsageError, match=rf"r\.txt.*{known}"):
        refuse_unknown_kind(None, Path("r.txt"))
    with pytest.raises(UsageError, match=r"writes no sarif report; end the name in \.json, \.md"):
        refuse_unknown_kind(Kind.sarif, Path("r.sarif"), (Kind.json, Kind.markdown))
