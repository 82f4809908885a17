"""Which tests a run takes: the lanes of conftest.py, and what stands in .ci/run and noxfile.py about them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import conftest
from support.paths import ROOT

QUICK, REST, LONG = ["a.py::plain", "b.py::plain"], ["a.py::corpus", "b.py::slow"], ["b.py::long"]
EACH = QUICK + REST + LONG


CASES = [f"c.py::corpus[{number}]" for number in range(12)]
IN_THREE = [f"c.py::other[{number}]" for number in range(7)]


def item(name: str) -> Any:
    file, _, mark = name.partition("[")[0].partition("::")
    marks = {
        "other": {"corpus": SimpleNamespace(kwargs={"every": 3})},
        "corpus": {"corpus": SimpleNamespace(kwargs={})},
    }.get(mark, {mark: object()})
    made = SimpleNamespace(name=name, nodeid=name, path=ROOT / "tests" / file, get_closest_marker=marks.get)
    if "[" in name:
        made.callspec = object()
    return made


def taken(
    *args: str, lane: str | None = None, keyword: str = "", markexpr: str = "", names: Sequence[str] = EACH
) -> list[str]:
    """What a run takes of two files with one test in each lane, or of the tests ``names``."""
    left_out: list[Any] = []
    options = {"--lane": lane, "lf": False}
    config: Any = SimpleNamespace(
        args=args or ["tests"],
        option=SimpleNamespace(keyword=keyword, markexpr=markexpr),
        getoption=lambda name, default=None: options[name],
        invocation_params=SimpleNamespace(dir=ROOT),
        hook=SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items)),
    )
    items = [item(name) for name in names]
    conftest.pytest_collection_modifyitems(config, items)
    assert len(items) + len(left_out) == len(names)
    return [one.name for one in items]


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ({}, QUICK),
        ({"lane": "quick"}, QUICK),
        ({"lane": "rest"}, REST),
        ({"lane": "full"}, QUICK + REST + LONG),
        ({"keyword": "x"}, QUICK + REST + LONG),
        ({"markexpr": "slow"}, QUICK + REST + LONG),
        ({"keyword": "x", "lane": "quick"}, QUICK),
    ],
    ids=str,
)
def test_a_run_takes_its_lane(told: dict[str, str], wanted: list[str]) -> None:
    assert taken(**told) == wanted  # type: ignore[arg-type]
    assert taken(".", **told) == wanted  # type: ignore[arg-type]


def test_a_file_that_is_named_is_taken_whole() -> None:
    for argument in ("tests/a.py", "tests/a.py::corpus", "./tests/../tests/a.py"):
        assert taken(argument) == [*QUICK, "a.py::corpus"]
        assert taken(argument, lane="quick") == QUICK


def test_of_a_corpus_the_rest_takes_some_cases_and_the_full_lane_all() -> None:
    names = [one for pair in zip(CASES, IN_THREE + QUICK + REST + LONG, strict=True) for one in pair]
    assert sorted(taken(lane="rest", names=names)) == sorted([*CASES[::5], *IN_THREE[::3], *REST])
    assert taken(lane="full", names=names) == names
    assert taken(names=names) == QUICK
    assert taken("tests/c.py", names=names) == [one for one in names if one in CASES + IN_THREE + QUICK]
    assert taken(keyword="x", names=names) == names


def test_every_test_but_the_long_ones_is_in_one_of_the_two_lanes_of_ci() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    runs = [line for line in script if "bin/pytest" in line and "-n auto" in line]
    assert [line.partition("--lane=")[2] for line in runs] == ["", "rest"]
    assert sorted(taken() + taken(lane="rest") + LONG) == sorted(taken(lane="full"))


def test_the_examples_of_every_rule_are_in_the_quick_lane() -> None:
    text = (ROOT / "tests" / "test_rules.py").read_text().partition("def test_the_table_of_proofs")[0]
    before = text.rpartition("@pytest.mark.corpus")[0]  # the mark is of that test alone
    assert not any(f"mark.{mark}" in before for mark in conftest.LATER)
