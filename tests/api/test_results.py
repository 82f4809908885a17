"""What results show of themselves in Python, and what they give to other programs."""

from __future__ import annotations

import inspect
import json
import pickle
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

import onnxfix
from onnxfix.diagnosis.records import Culprit, Diagnosis, NodeError
from onnxfix.lowering.records import Lowering
from onnxfix.place import Place
from onnxfix.reduction.case import Reduction
from onnxfix.report.findings import COLUMNS, Suppressed
from onnxfix.report.report import AppliedFix, Finding, Report, Withdrawn
from onnxfix.rule import Severity
from onnxfix.runtime.causes import Problem
from onnxfix.shown import Shown
from onnxfix.tensorrt.lift.records import Lifted
from onnxfix.tensorrt.reading import LayerTable
from onnxfix.tensorrt.records import TrtBuild
from onnxfix.verbs.examination.judge import judged
from onnxfix.verbs.layering import LayerReport
from support.cli import reported, run
from support.doctor_cases import SOUND
from support.paths import FIXTURES

MIXED = FIXTURES / "mixed_precision.legacy.op17.onnx"
BAD = "</span><script>alert(1)</script>\x1b[31m"
NODE = Place(("then_branch of If i",), BAD, "Add", "y", 3)


def finding(code: str = "CST002", severity: str = "info", place: Place = NODE, **more: Any) -> Finding:
    return Finding(code, "some-rule", severity, place, f"about {BAD}", **more)


FOUND = Report(
    path=f"m{BAD}.onnx",
    command="apply",
    target="trt11",
    findings=(
        finding(),
        finding("BRC001"),
        finding("PRC001", "warning", fix="compute in float32", safety="numeric"),
        finding("PRC001", "warning"),
        finding("TRT001", "error", confirmed="Assertion failed", on_engine=True),
    ),
    applied=(AppliedFix("CST001", "chain", "info", NODE, "a chain", "merge", "exact", 1),),
    withdrawn=(Withdrawn("INT001", NODE, "fold", f"reference: {BAD}"),),
    notes=(BAD,),
    problems=(Problem(BAD, "onnxfix"),),
)
ERROR = NodeError(Place((), BAD, "Pow", "p"), 1.0)
RESULTS: list[Shown] = [
    FOUND,
    Diagnosis(BAD, "fp16", "", "differ", culprits=(Culprit(ERROR, "overflow", BAD),)),
    Lowering(BAD, "fp16", 0.01, "met", error=0.001, nodes=4, low=3, reason=BAD),
    Reduction(BAD, "trt-build", "reduced", folder=BAD, nodes_before=9, nodes_after=1, operators=(BAD,)),
    Lifted("refused", reason=BAD, model=BAD),
    LayerReport(BAD, LayerTable(TrtBuild("accepted")), "TensorRT 11.0"),
    judged(SOUND),
]
EACH = pytest.mark.parametrize("result", RESULTS, ids=lambda one: type(one).__name__)


@pytest.fixture(scope="module")
def report() -> Report:
    return onnxfix.apply(MIXED, rungs="reference")


class Page(HTMLParser):
    """The elements of a page, what it loads, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str | None] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value for name, value in attrs if name in ("src", "href", "srcset", "onclick")]

    def handle_data(self, data: str) -> None:
        self.text += data


@EACH
def test_every_result_is_one_line_a_text_a_cell_and_data(result: Shown) -> None:
    assert repr(result).startswith(f"{type(result).__name__}(")
    assert "\n" not in repr(result)
    assert "\x1b" not in repr(result)
    assert len(repr(result)) < 400
    assert str(result)
    assert "\x1b" not in str(result)
    assert json.loads(json.dumps(result.to_dict()))
    assert result.ok is (result.exit_code == 0)
    assert pickle.loads(pickle.dumps(result)).to_dict() == result.to_dict()


@EACH
def test_names_in_a_model_are_text_in_a_cell_and_in_a_page(result: Shown) -> None:
    cell, page = Page(result._repr_html_()), Page(result.to_html())
    assert set(cell.tags) <= {"div", "span", "strong", "code", "details", "summary", "ul", "li", "pre"}
    assert not [one for one in (*cell.loaded, *page.loaded) if one and not one.startswith("#")]
    assert "\x1b" not in cell.text + page.text
    if type(result) is not type(judged(SOUND)):
        assert "<script>alert(1)</script>" in cell.text
        assert "alert(1)" in page.text
    assert result.to_html().startswith("<!doctype html>")


def test_what_a_line_says(report: Report) -> None:
    assert repr(report) == (
        f"Report(path={str(MIXED)!r}, command='apply', ok=True, verified=True, fixed=8, errors=0, warnings=0, infos=0)"
    )
    assert "ok=False, fixed=1, errors=1, warnings=2, infos=2, withdrawn=1, problems=1)" in repr(FOUND)
    assert repr(RESULTS[1]).endswith(f"against='fp16', status='differ', culprits=({BAD!r},))")
    assert "status='met', budget=0.01, error=0.001, share=0.75" in repr(RESULTS[2])
    assert "nodes_before=9, nodes_after=1" in repr(RESULTS[3])
    assert "available=('contract'" in repr(RESULTS[-1])


def test_a_printed_report_is_what_the_command_prints() -> None:
    code, out, _ = run("check", MIXED)
    report = onnxfix.check(MIXED)
    assert code == report.exit_code
    assert seconds(f"{report}\n") == seconds(out)
    _, document = reported("check", MIXED)
    assert {**report.to_dict(), "seconds": 0} == {**document, "seconds": 0}


def seconds(text: str) -> str:
    return re.sub(r"\d+\.\d+ s\b", "0.0 s", text)


def test_the_exit_code_for_a_severity() -> None:
    warned = Report("m", "check", "trt11", findings=(finding(severity="warning"), finding()))
    assert (warned.exit_code, warned.ok) == (1, False)
    codes = {level: warned.exit_code_for(level) for level in ("info", "warning", "error", "never", None)}
    assert codes == {"info": 1, "warning": 1, "error": 0, "never": 0, None: 0}
    assert warned.exit_code_for(Severity.ERROR) == 0
    with pytest.raises(onnxfix.UsageError, match=r"one of info, warning, error and never, not 'bad'"):
        warned.exit_code_for("bad")
    assert FOUND.exit_code_for("never") == 2  # a problem is one whatever fails a run


def test_rows_are_flat() -> None:
    rows = FOUND.rows()
    assert [row["status"] for row in rows] == ["left"] * 5 + ["fixed", "withdrawn"]
    assert all(tuple(row) == COLUMNS for row in rows)
    assert rows[2] == {
        "status": "left", "code": "PRC001", "name": "some-rule", "severity": "warning",
        "graph": "then_branch of If i", "node": BAD, "op_type": "Add", "output": "y", "message": f"about {BAD}",
        "fix": "compute in float32", "safety": "numeric", "confirmed": "", "on_engine": False, "source": "",
    }  # fmt: skip
    assert (rows[4]["confirmed"], rows[4]["on_engine"]) == ("Assertion failed", True)
    assert (rows[6]["code"], rows[6]["fix"], rows[6]["message"]) == ("INT001", "fold", f"reference: {BAD}")


def test_a_data_frame_holds_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        onnxfix.UsageError, match=r"^to_dataframe needs pandas, which .*: pip install pandas$"
    ):
        FOUND.to_dataframe()


@pytest.mark.slow
def test_a_data_frame_of_pandas() -> None:
    frame = FOUND.to_dataframe()
    assert frame.to_dict("records") == FOUND.rows()
    empty = Report("m", "check", "trt11").to_dataframe()
    assert (len(empty), tuple(empty.columns)) == (0, COLUMNS)


def test_a_cell_shows_what_matters(report: Report) -> None:
    text = Page(report._repr_html_()).text
    for part in (
        "Verified",
        "No rule has a finding",
        "8 fixed",
        "✓ reference",
        "CST003 exact-cast-round-trip ×2",
    ):
        assert part in text
    assert Page(FOUND._repr_html_()).text.count("about ") == 5
    accepted = replace(FOUND, suppressed=(Suppressed(finding(), "baseline"),) * 2)
    assert "2 known" in Page(accepted._repr_html_()).text
    many = Report(
        "m", "check", "trt11", findings=tuple(finding(place=Place((), f"n{n}")) for n in range(500))
    )
    assert "and 490 more" in Page(many._repr_html_()).text
    assert len(many._repr_html_()) < 5000
    failing = onnxfix.verify(MIXED, FIXTURES / "vit.legacy.op17.onnx", rungs="contract")
    assert "✗ contract" in Page(failing._repr_html_()).text
    assert failing.verdict.rungs[0].reason in Page(failing._repr_html_()).text


def test_rules_and_their_pages() -> None:
    some = onnxfix.rules("CST,BRC001")
    assert [rule.code for rule in some] == ["BRC001", *(f"CST00{n}" for n in range(1, 6))]
    assert repr(some[1]) == "Rule('CST001', 'redundant-cast-chain', severity='info', fix='exact')"
    assert repr(some).startswith("RuleList(BRC001, CST001")
    assert f"{some}\n" == run("rules", "--select", "CST,BRC001")[1]
    assert set(Page(some._repr_html_()).tags) == {"table", "thead", "tbody", "tr", "th", "td", "code"}
    said = "Your ONNX model has been generated with INT64 weights"
    assert next(iter(onnxfix.rules("INT", search=said))).code.startswith("INT")
    assert onnxfix.rules(search="xyzzy") == ()
    page = onnxfix.explain("no-op-cast")
    assert page.startswith("# CST002 no-op-cast")
    assert page == onnxfix.explain(some[2]) == page._repr_markdown_()
    assert "## Why it matters" in page
    assert page.count("### ") == 2
    assert onnxfix.explain("CST002", None).count("### ") == len(some[2].examples)
    assert "### " not in onnxfix.explain("CST002", examples=0)
    with pytest.raises(onnxfix.UsageError):
        onnxfix.explain("CST999")


def test_everything_public_is_listed_and_documented() -> None:
    assert dir(onnxfix) == sorted(onnxfix.__all__)
    for name in onnxfix.__all__:
        value = getattr(onnxfix, name)
        if name == "__version__":
            continue
        assert inspect.getdoc(value), name
        if inspect.isfunction(value):
            signature = inspect.signature(value)
            assert signature.return_annotation is not inspect.Signature.empty
            assert all(one.annotation is not one.empty for one in signature.parameters.values()), name
            for parameter in signature.parameters:
                assert parameter in (inspect.getdoc(value) or ""), f"{name} says nothing about {parameter}"
    with pytest.raises(AttributeError):
        onnxfix.nothing  # noqa: B018
