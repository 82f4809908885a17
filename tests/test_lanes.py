"""Which tests a run takes: the lanes of conftest.py, and what stands in .ci/run and noxfile.py about them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import conftest
from support.paths import ROOT

QUICK, REST, LONG = ["a.py::plain", "b.py::plain"], ["a.py::corpus", "b.py::slow"], ["b.py::long"]


def item(name: str) -> Any:
    file, _, mark = name.partition("::")
    marks = {mark: object()}
    return SimpleNamespace(name=name, path=ROOT / "tests" / file, get_closest_marker=marks.get)


def taken(*args: str, lane: str | None = None, keyword: str = "", markexpr: str = "") -> list[str]:
    """What a run takes of two files with one test in each lane."""
    left_out: list[Any] = []
    options = {"--lane": lane, "lf": False}
    config: Any = SimpleNamespace(
        args=args or ["tests"],
        option=SimpleNamespace(keyword=keyword, markexpr=markexpr),
        getoption=lambda name, default=None: options[name],
        invocation_params=SimpleNamespace(dir=ROOT),
        hook=SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items)),
    )
    items = [item(name) for name in QUICK + REST + LONG]
    conftest.pytest_collection_modifyitems(config, items)
    assert len(items) + len(left_out) == len(QUICK + REST + LONG)
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


@pytest.mark.parametrize("argument", ["tests/a.py", "tests/a.py::corpus", "./tests/../tests/a.py"])
def test_a_file_that_is_named_is_taken_whole(argument: str) -> None:
    assert taken(argument) == [*QUICK, "a.py::corpus"]
    assert taken(argument, lane="quick") == QUICK
    assert taken(argument, lane="rest") == REST


def test_every_test_but_the_long_ones_is_in_one_of_the_two_lanes_of_ci() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    runs = [line for line in script if "bin/pytest" in line]
    assert [line.partition("--lane=")[2] for line in runs] == ["", "rest"]
    assert sorted(taken() + taken(lane="rest") + LONG) == sorted(taken(lane="full"))


def test_the_examples_of_every_rule_are_in_the_quick_lane() -> None:
    assert not any(
        f"mark.{mark}" in (ROOT / "tests" / "test_rules.py").read_text() for mark in conftest.LATER
    )
