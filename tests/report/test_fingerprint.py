"""Fingerprints stand while anything but the rule and the place changes, and tell any two findings apart."""

from __future__ import annotations

from dataclasses import replace

from onnxfix.place import Place
from onnxfix.report.findings import LENGTH, fingerprints
from onnxfix.report.report import Finding

ONE = Finding(
    "CST002", "no-op-cast", "info", Place(node="/a/Cast", op_type="Cast", output="c", index=7), "a Cast"
)


def test_only_the_rule_and_the_names_of_the_place_count() -> None:
    same = replace(
        ONE, message="reworded", severity="error", place=replace(ONE.place, index=9, op_type="Sub")
    )
    assert fingerprints([ONE]) == fingerprints([same])
    others = [
        replace(ONE, code="CST003"),
        replace(ONE, place=replace(ONE.place, node="/b/Cast")),
        replace(ONE, place=replace(ONE.place, output="d")),
        replace(ONE, place=replace(ONE.place, graph=("then",))),
        replace(ONE, place=Place(layer="c")),
        replace(ONE, place=Place()),
    ]
    assert len({fingerprints([one])[0] for one in (ONE, *others)}) == 7
    assert len({fingerprints([ONE], path)[0] for path in ("", "a.onnx", "b/a.onnx")}) == 3
    assert fingerprints([ONE], "b\\a.onnx") == fingerprints([ONE], "b/a.onnx")


def test_several_at_one_place_differ_and_the_first_stays() -> None:
    first, second, third = fingerprints([ONE, ONE, replace(ONE, code="X")])
    assert len({first, second, third}) == 3
    assert (first,) == fingerprints([ONE])
    assert {len(first), len(second)} == {LENGTH}


def test_without_a_place_the_message_counts() -> None:
    one, two = (replace(ONE, place=Place(), message=text) for text in ("a", "b"))
    assert fingerprints([two]) == fingerprints([one, two])[1:]


def test_names_may_hold_anything() -> None:
    odd = [Place(output=name) for name in ("\udcff", "\ud800", "a\nb", "12:", "")]
    assert len({*fingerprints([replace(ONE, place=place) for place in odd])}) == 5
    split = [Place(graph=("a", "b")), Place(graph=("ab",)), Place(graph=("a",), output="b")]
    assert len({*fingerprints([replace(ONE, place=place) for place in split])}) == 3
