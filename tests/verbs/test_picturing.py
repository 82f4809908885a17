"""The nodes around findings and fixes: gathered where a report draws them, before and after."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from onnx import ModelProto, parser

from onnxfix.model import Model
from onnxfix.options import RunOptions, Verification
from onnxfix.place import Place
from onnxfix.report.findings import Box, Neighborhood
from onnxfix.report.report import AppliedFix, Finding, Report
from onnxfix.verbs import picturing
from onnxfix.verbs.applying import apply
from onnxfix.verbs.picturing import LINES, WIDE, neighborhood

CHAIN = """<ir_version: 10, opset_import: ["" : 18]> g (float[N,4] x) => (float[N,4] y)
<float[4] w = {1.0, 2.0, 3.0, 4.0}> {
    a = Relu(x)
    b = Cast<to=1>(a)
    c = Mul(b, w)
    d = Neg(c)
    y = Add(d, a)
}"""
UNVERIFIED = RunOptions(pictures=True, verification=Verification(enabled=False))


def parsed(text: str) -> ModelProto:
    return parser.parse_model(text)


def drawn(text: str, output: str, graph: Sequence[str] = ()) -> Neighborhood:
    """What a finding at this output shows."""
    place = Place(tuple(graph), "", "", output)
    report = Report("m.onnx", "check", "trt11", findings=(Finding("X", "x", "info", place, ""),))
    (picture,) = picturing.with_pictures(report, parsed(text)).pictures
    assert picture.place == place
    assert picture.after is None
    assert picture.before is not None
    return picture.before


def titles(found: Neighborhood | None) -> list[str]:
    return [box.title for box in found.boxes] if found is not None else []


def test_what_is_near_is_shown_with_types_and_constants() -> None:
    found = drawn(CHAIN, "b")
    assert titles(found) == ["x", "Relu", "Cast", "Mul", "Neg", "Add", "y"]
    cast, mul = found.boxes[2], found.boxes[3]
    assert cast == Box("node", "Cast", "b", ("to = float",), focus=True)
    assert mul.lines == ("B: float [1,2,3,4]",)
    wires = {(found.boxes[one.source].title, found.boxes[one.target].title, one.label) for one in found.wires}
    assert ("Cast", "Mul", "float[N,4]") in wires
    assert ("Add", "y", "float[N,4]") in wires
    assert all(one.source < one.target or found.boxes[one.target].kind == "output" for one in found.wires)


def test_what_is_far_is_counted() -> None:
    many = "".join(f"r{at} = Relu(a) " for at in range(20))
    found = drawn(
        f'<ir_version: 10, opset_import: ["" : 18]> g (float[N] x) => () {{ a = Neg(x) {many} }}', "a"
    )
    assert titles(found) == ["x", "Neg", "Relu", "Relu", "Relu"]
    assert found.boxes[1].below == 17
    end = drawn(CHAIN.replace("y = Add(d, a)", "e = Neg(d) f = Neg(e) y = Neg(f)"), "y")
    assert titles(end) == ["Neg", "Neg", "Neg", "y"]
    assert end.boxes[0].above == 1


def test_a_value_that_no_node_computes_shows_its_readers() -> None:
    found = drawn(CHAIN, "x")
    assert [box.title for box in found.boxes if box.focus] == ["Relu"]


def test_a_node_in_a_branch_is_shown_among_its_own() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]> g (bool c, float[N] x) => (float[N] y) {
        y = If (c) <then_branch = t () => (float[N] p) { q = Neg(x) p = Neg(q) },
                    else_branch = e () => (float[N] r) { r = Identity(x) }>
    }"""
    trail = next(scope.trail for scope in Model(parsed(text)).scopes if scope.trail and "q" in scope.values)
    found = drawn(text, "q", trail)
    assert titles(found) == ["x", "Neg", "Neg", "p"]
    assert found.boxes[0].kind == "input"


def test_an_unknown_place_has_no_picture() -> None:
    items = [
        Finding("X", "x", "info", place, "") for place in (Place(), Place(output="no"), Place(layer="l"))
    ]
    report = Report("m.onnx", "check", "trt11", findings=tuple(items))
    assert picturing.with_pictures(report, parsed(CHAIN)).pictures == ()
    circle = parsed(CHAIN.replace("a = Relu(x)", "a = Add(x, d)"))
    assert picturing.with_pictures(report, circle) is report


def test_the_worst_get_pictures_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picturing, "MOST_PICTURES", 2)
    kinds = {"a": "info", "b": "warning", "c": "error", "d": "info"}
    items = [Finding("X", "x", kind, Place(output=name), "") for name, kind in kinds.items()]
    report = Report("m.onnx", "check", "trt11", findings=tuple(items))
    assert [one.place.output for one in picturing.with_pictures(report, parsed(CHAIN)).pictures] == ["c", "b"]


def test_a_fix_is_shown_before_and_after() -> None:
    report = apply(parsed(CHAIN), UNVERIFIED)
    picture = next(one for one in report.pictures if one.code == "CST002")
    marks = {box.title: box.mark for box in picture.before.boxes}
    assert (marks["Cast"], marks["Mul"], marks["Neg"]) == ("removed", "changed", "")
    assert titles(picture.after) == ["x", "Relu", "Mul", "Neg", "Add", "y"]
    assert {box.title: box.mark for box in picture.after.boxes}["Mul"] == "changed"


def test_what_is_new_is_marked_and_shown() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]> g (float[1,3,8,8] x, float[1,4] i) => (float[1,4] y) {
        a = Softmax<axis=1>(i) y = Neg(a) }"""
    changed = text.replace("a = Softmax", "n = Relu(i) a = Softmax").replace("(i) y", "(n) y")
    original, result = parsed(text), parsed(changed)
    place = Place(output="a")
    fix = AppliedFix("X", "x", "info", place, "", "fix", "exact", 1)
    report = Report("m.onnx", "apply", "trt11", applied=(fix,))
    (picture,) = picturing.with_pictures(report, original, result).pictures
    assert [(box.title, box.mark) for box in picture.after.boxes if box.kind == "node"] == [
        ("Relu", "added"), ("Softmax", "changed"), ("Neg", ""),
    ]  # fmt: skip


def test_lines_are_few_and_short() -> None:
    names = ", ".join(f"k{at} = {at}" for at in range(9))
    head = '<ir_version: 10, opset_import: ["" : 18, "d" : 1]> g (float x) => (float y)'
    text = f'{head} {{ y = d.F<{names}, z = "{"w" * 90}">(x) }}'
    model = Model(parsed(text))
    node = model.main.nodes[0]
    (box,) = [one for one in neighborhood(model, [node], [node]).boxes if one.kind == "node"]
    assert len(box.lines) == LINES
    assert box.lines[-1] == "… 7 more"
    assert all(len(line) <= WIDE for line in box.lines)
