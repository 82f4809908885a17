"""The sections of a model's page, from records: what stands in them, and that absent results leave no empty section."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html import unescape
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxfix.place import Place
from onnxfix.proof.compare.compare import Metrics
from onnxfix.proof.compare.tolerance import ErrorHistogram
from onnxfix.proof.verdict import Executed, FeedResult, RungResult, Verdict
from onnxfix.report.findings import Box, Neighborhood, Picture, Wire
from onnxfix.report.render.html.render import lay_out, render_html
from onnxfix.report.report import AppliedFix, Finding, Fixed, NodeCounts, Report, StepDone, Withdrawn
from onnxfix.runtime.causes import Problem
from onnxfix.tensorrt.reading import Reading
from onnxfix.tensorrt.records import Issue, TrtBuild
from onnxfix.tensorrt.timing import Latency, Timing
from onnxfix.verbs.intake import Stopped


def words(page: str, ident: str) -> str:
    """The text of a section, words apart by one space."""
    found = re.search(f'<section id="{ident}".*?</section>', page, re.DOTALL)
    assert found is not None, ident
    return " ".join(unescape(re.sub("<[^>]+>", " ", found[0])).split())


def sections(page: str) -> list[str]:
    return re.findall(r'<section id="m\d+-([a-z]+)"', page)


def finding(code: str, severity: str, node: str = "n", **more: str) -> Finding:
    return Finding(
        code, f"name-of-{code}", severity, Place((), node, "Mul", f"{node}_out"), f"about {node}", **more
    )


def build(layers: int, **more: object) -> TrtBuild:
    kinds = (("SHUFFLE", layers), ("CONVOLUTION", 2))
    return TrtBuild("accepted", layers=kinds, package="tensorrt", version="11.2", parse_seconds=0.25, build_seconds=2.5,
                    engine_bytes=3 << 20, compute_capability="8.9", **more)  # fmt: skip


@pytest.fixture(scope="module")
def page() -> str:
    """A run that has everything."""
    errors = ErrorHistogram((1e-6, 1e-5, 1e-4), (3, 7), 90)
    near = Metrics("y", "within", dtype="float32", shape=(2, 50), elements=100, mismatches=10, max_abs=5e-5,
                   max_rel=0.25, scale=2.0, at=(0, 3), values=("1.0", "1.1"), output="y", errors=errors)  # fmt: skip
    same = Metrics("y", "identical", dtype="float32", shape=(2, 50), elements=100, output="y")
    feeds = (
        FeedResult("batch=2", None, "within", metrics=(near,)),
        FeedResult("ones", None, "identical", metrics=(same,)),
    )
    timings = [Timing(ms, ms * 0.9, ms * 1.1, 500, 20, 0.01, 0.2, 0.1) for ms in (2.0, 1.0)]
    latency = Latency(timings[0], timings[1], 0.5, 0.01, "faster", "cuda-graph", "tensorrt")
    ran = Executed(
        "tensorrt", "11.2", "NVIDIA T4", "7.5", True, "float32", "repaired", "the original was wrong"
    )
    issue = Issue("parse", "warning", "TensorRT's own words", count=3)
    rungs = (
        RungResult("contract", "passed", "the interface is unchanged"),
        RungResult("reference", "passed", "within tolerance", feeds),
        RungResult("ort-cuda", "skipped", "no NVIDIA driver found", cause="no-gpu"),
        RungResult("trt-build", "passed", "accepted", builds=(build(9, warnings=(issue,)), build(4))),
        RungResult(
            "trt-network", "passed", "agrees", networks=(Reading("differs", "read wrong"), Reading("agrees"))
        ),
        RungResult("trt-gpu", "passed", "repaired", executed=ran, latency=latency),
    )
    report = Report(
        "a.onnx",
        "apply",
        "trt11",
        headline="TensorRT 11.2 read it differently",
        findings=(
            finding("AAA001", "info"),
            finding("BBB002", "error", "bad", fix="do it", safety="numeric", confirmed="TensorRT agrees"),
            finding("CCC003", "warning", "odd", pointer="see DDD004"),
        ),
        applied=(AppliedFix("EEE005", "e", "warning", Place(output="z"), "why", "remove it", "exact", 1),),
        withdrawn=(Withdrawn("FFF006", Place(output="w"), "fold", "it differs"),),
        steps=(
            StepDone(
                "simplify",
                "onnxsim",
                "taken",
                "identical",
                "exact",
                9,
                7,
                fixed=(Fixed("dimension", "n", "1"),),
            ),
        ),
        verdict=Verdict(rungs, ("trt-gpu",)),
        output="a.fixed.onnx",
        changed=True,
        operators_before=NodeCounts({"Mul": 7, "Cast": 3}, 12),
        operators_after=NodeCounts({"Mul": 7, "Div": 1}, 2),
        bytes_before=2048,
        problems=(Problem("a rule raised"),),
        notes=("a note",),
    )
    return render_html([replace(report, fail_on="error")])


def test_everything_has_its_section_in_order(page: str) -> None:
    assert sections(page) == [
        "findings", "withdrawn", "fixed", "checks", "operators", "steps", "outputs", "tensorrt", "notes", "environment",
    ]  # fmt: skip


def test_the_worst_findings_come_first_with_what_helps(page: str) -> None:
    text = words(page, "m0-findings")
    assert text.index("BBB002") < text.index("CCC003") < text.index("AAA001")
    assert "Fix do it numeric, needs --numeric-fixes" in text
    assert "Confirmed by TensorRT TensorRT agrees" in text
    assert "Help see DDD004" in text
    assert "withdrawn FFF006 at w : fold: it differs" in words(page, "m0-withdrawn")
    assert "remove it exact" in words(page, "m0-fixed")


def test_the_head_says_what_was_proven_and_what_was_not(page: str) -> None:
    (head,) = re.findall(
        r'<div class="card hero bad"><p class="outcome">(.*?)</ul>\s*</div>', page, re.DOTALL
    )
    text = " ".join(unescape(re.sub("<[^>]+>", " ", head)).split())
    assert "✗ Verified exit code 2" in text, "nothing is green where the run fails: here by a problem"
    assert text.index(
        "Ship it? no: the report is incomplete; 1 error is left Verified reference within tolerance (2 feeds)"
    )
    assert "Not run ort-cuda (no GPU) TensorRT 11.2, for compute capability 8.9: builds it" in text
    assert "Written a.fixed.onnx" in text
    assert "Left 1 error → rerun with --numeric-fixes" in text
    assert "Next onnxfix apply a.onnx --numeric-fixes" in text
    assert "Latency original 2.000 ms, new 1.000 ms (0.50x, CUDA graphs, 500 runs each; noise 1 %)" in text
    assert "10 → 8 compute nodes" in text
    assert "11 → 6 TensorRT layers" in text


def test_checks_and_operators(page: str) -> None:
    text = words(page, "m0-checks")
    assert "required: trt-gpu" in text
    assert "✓ passed within tolerance 2 5e-05" in text
    assert "ort-cpu ONNX Runtime on the CPU – not requested" in text
    assert "[0, 3] 1.0 → 1.1" in text
    operators = words(page, "m0-operators")
    assert "Constant 12 2 −10 TensorRT layers 11 6 −5 Cast 3 0 −3 Div 0 1 +1 1 unchanged" in operators


def test_errors_of_outputs_are_counted_over_all_feeds(page: str) -> None:
    text = words(page, "m0-outputs")
    assert "Differing 10 of 200 elements" in text
    assert "190 equal, 3 from 10⁻⁶, 7 from 10⁻⁵" in text


def test_identical_outputs_share_a_line() -> None:
    def metrics(name: str, off: int = 0) -> Metrics:
        return Metrics(name, "within" if off else "identical", elements=8, mismatches=off, output=name)

    ones = tuple(metrics(f"o{number}") for number in range(41))
    feed = FeedResult("ones", None, "identical", metrics=(*ones, metrics("odd", 3)))
    verdict = Verdict(tuple(RungResult(name, "passed", feeds=(feed,)) for name in ("reference", "ort-cpu")))
    page = render_html([Report("a.onnx", "apply", "trt11", verdict=verdict)])
    text = words(page, "m0-outputs")
    assert "41 outputs bit-identical in every check o0, o1, o2" in text
    assert "o39 and 1 more" in text
    assert text.count("3 of 8 elements") == 2, "one for each check"
    assert text.count("within tolerance") == 2
    assert len(re.findall('class="check"', page)) == 2, "no card for what is identical"


def test_tensorrt(page: str) -> None:
    text = words(page, "m0-tensorrt")
    assert "original: accepted, 11 layers (9 SHUFFLE, 2 CONVOLUTION), 1 warning, 0.25 s to parse" in text
    assert "2.50 s to build for compute capability 8.9, engine of 3,145,728 bytes" in text
    assert "TensorRT's own words (3 times)" in text
    assert "SHUFFLE 9 4 −5" in text
    assert "original: read differently, read wrong" in text
    assert "new: read correctly" in text
    assert "repaired the original was wrong GPU NVIDIA T4, compute capability 7.5" in text


def test_fixes_of_a_result_that_did_not_verify_are_not_shown_as_done() -> None:
    failed = Verdict((RungResult("ort-cpu", "failed", "differs"),))
    fixed = AppliedFix("EEE005", "e", "warning", Place(output="z"), "why", "remove it", "exact", 1)
    report = Report("a.onnx", "apply", "trt11", verdict=failed, applied=(fixed,), changed=True)
    page = render_html([report])
    text = " ".join(unescape(re.sub("<[^>]+>", " ", page)).split())
    assert "✗ Failed: the models differ exit code 3 Ship it? no: nothing was written: ort-cpu failed" in text
    assert "Findings 0 findings in the result, which was not written" in text
    assert re.search("Not written 1 fix .*– tried EEE005", text)
    assert 'class="tile' not in page
    stopped = Stopped(Place(output="z"), "Mul", "it stops", shapes="x:1")
    skipped = Verdict((RungResult("ort-cpu", "skipped", "no inputs"),))
    page = render_html([replace(report, verdict=skipped, stopped=stopped)])
    assert "it stops at z (Mul): it stops" in page
    assert "<code>onnxfix check a.onnx --inputs-help</code>" in page


def test_what_was_not_done_leaves_nothing() -> None:
    assert sections(render_html([Report("b.onnx", "check", "trt11")])) == ["findings", "environment"]
    verified = Report(
        "a.onnx", "verify", "", output="b.onnx", verdict=Verdict((RungResult("contract", "failed", "x"),))
    )
    page = render_html([verified])
    assert sections(page) == ["checks", "environment"]
    assert "Failed: the models differ" in page
    assert "against" in page


def test_several_models_have_an_index() -> None:
    good = Report(
        "good.onnx",
        "check",
        "trt11",
        operators_before=NodeCounts({"Mul": 2}),
        operators_after=NodeCounts({"Mul": 2}),
    )
    bad = Report("bad.onnx", "check", "trt11", findings=(finding("AAA001", "error"),))
    page = render_html([good, bad], [("gone.onnx", "gone.onnx: no such file")], ["a broken pack"])
    text = words(page, "index")
    assert "3 models" in text
    assert "good.onnx ✓ No errors or warnings 0 0 0 0 2" in text
    assert "bad.onnx ✗ 1 error 1 0 0 0 –" in text
    assert "gone.onnx ✗ no report" in text
    assert re.findall(r'href="#(m\d)"', page) == ["m0", "m1"]
    assert page.count('<details class="several">') == 2
    assert "a broken pack" in page
    assert "index" not in re.findall(r'<section id="(.*?)"', render_html([good]))


# ---- Markup: what a model's names hold stays text

NASTY = "</script><img src=x onerror=alert(1)>\"'&\x1b[2J\u202e\udcff"


def test_control_and_direction_characters_and_lone_surrogates_are_spelled_out() -> None:
    page = render_html([Report("\x1b\u202e\udcff", "check", "trt11")])
    assert "<h1>\\x1b\\u202e\\xff</h1>" in page


def test_names_of_a_model_cannot_leave_their_place() -> None:
    finding = Finding(NASTY, NASTY, "warning", Place((NASTY,), NASTY, "Conv", NASTY), NASTY, NASTY)
    page = render_html([Report(NASTY, "check", "trt11", findings=(finding,))], [(NASTY, NASTY)], [NASTY])
    page.encode("utf-8")
    assert "<img" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert page.count("</script>") == page.count("<script>") == 1


def test_the_policy_allows_this_style_and_script_and_no_other() -> None:
    page = render_html([])
    policy = unescape(re.findall('Content-Security-Policy" content="(.*?)"', page)[0])
    assert policy.startswith("default-src 'none'; ")
    for kind in ("style", "script"):
        (inside,) = re.findall(f"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    links = re.findall(r"<[^>]+\s(?:src|srcset|href|action|data|poster)=\"([^\"]*)", page)
    assert links
    assert all(link.startswith("#") for link in links)


# ---- The layout of neighborhoods, and the pictures made of it


def node(name: str, **more: object) -> Box:
    return Box("node", "Add", name, **more)


@st.composite
def neighborhoods(draw: st.DrawFn) -> Neighborhood:
    count = draw(st.integers(1, 11))
    pairs = draw(
        st.lists(st.sampled_from([*combinations(range(count), 2)] or [(0, 0)]), max_size=16, unique=True)
    )
    boxes = [
        node("n" * draw(st.integers(0, 60)), lines=("a = 1",) * draw(st.integers(0, 4))) for _ in range(count)
    ]
    return Neighborhood(tuple(boxes), tuple(Wire(a, b, f"{a}{b}", "float[N]") for a, b in pairs if a != b))


@given(neighborhoods())
def test_boxes_do_not_overlap_and_wires_run_down(found: Neighborhood) -> None:
    layout = lay_out(found)
    assert len(layout.spots) == len(found.boxes)
    for spot in layout.spots:
        assert spot.x >= 0
        assert spot.y >= 0
        assert spot.x + spot.width <= layout.width
        assert spot.y + spot.height <= layout.height
    for one, other in combinations(layout.spots, 2):
        aside = one.x + one.width <= other.x + 0.01 or other.x + other.width <= one.x + 0.01
        assert aside or one.y + one.height <= other.y or other.y + other.height <= one.y
    for way, wire in zip(layout.ways, found.wires, strict=True):
        heights = [y for _, y in way]
        assert heights == sorted(heights)
        source, target = layout.spots[wire.source], layout.spots[wire.target]
        assert way[0] == (source.middle, source.y + source.height)
        assert way[-1] == (target.middle, target.y)


def test_a_picture_says_what_is_where() -> None:
    boxes = (
        Box("input", "x"),
        node("first", lines=("axis = 1",), mark="removed"),
        node("second", focus=True, above=2, below=3),
    )
    nodes = Neighborhood(boxes, (Wire(0, 1, "x", "float[N]"), Wire(1, 2, "y")))
    place = Place((), "second", "Add", "second")
    finding = Finding("AAA001", "name", "error", place, "a message")
    page = render_html(
        [Report("m", "check", "", findings=(finding,), pictures=(Picture("AAA001", place, nodes),))]
    )
    (made,) = re.findall('<svg class="graph".*?</svg>', page, re.DOTALL)
    assert "<title>Nodes around second</title>" in made
    assert re.findall(r'<g class="(.*?)">', made) == ["box input", "box node removed", "box node focus"]
    assert re.findall(r"<text[^>]*>(.*?)</text>", made) == [
        "x", "Add", "first", "axis = 1", "+2", "+3", "Add", "second", "float[N]",
    ]  # fmt: skip
