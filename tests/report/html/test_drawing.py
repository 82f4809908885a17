"""The layout of neighborhoods, and the pictures made of it."""

from __future__ import annotations

import re
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from onnxfix.place import Place
from onnxfix.report.neighborhood import Box, Neighborhood, Picture, Wire
from onnxfix.report.render.html.pictures import lay_out
from onnxfix.report.render.html.render import render_html
from onnxfix.report.report import Finding, Report


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
