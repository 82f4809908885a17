"""benchmarks/mutations: what is mutated, that mutants are found again in code that was moved, and what kills them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from mutations import run
from mutations.sample import PACKAGES, Index, Mutant, recorded
from mutations.sites import sites, walked

TINY = '''
"""A module with one function that is tested well and one that is not."""

class Basket:
    """Has a method."""

    def has_room(self, count):
        """Whether more goes in."""
        limit = 10
        return count < limit

def price(count):
    total = count * 3
    if total > 20:
        total -= 2
    return total
'''
TESTS = """
import subprocess, sys
import pytest
from onnxfix.tiny import Basket, price

def test_price():
    assert price(2) == 6

@pytest.mark.parametrize("count", [1, 5])
def test_room(count):
    assert Basket().has_room(count)

def test_room_in_another_process():
    code = "from onnxfix.tiny import Basket; print(Basket().has_room(10))"
    assert subprocess.check_output([sys.executable, "-c", code]) == b"False\\n"
"""


def checkout(root: Path, **modules: str) -> Path:
    """A folder with a package of some modules; ``__`` in a name stands for a folder."""
    for name, text in modules.items():
        path = root / "onnxfix" / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text, encoding="utf-8")
    return root


def every(root: Path) -> list[Mutant]:
    """All mutants of a checkout."""
    found = []
    for function in walked(root, PACKAGES)[1]:
        for place, statement in enumerate(function.statements):
            found += [recorded(str(len(found)), function, place, site) for site in sites(statement)]
    return [Mutant(**{**vars(mutant), "id": str(number)}) for number, mutant in enumerate(found)]


def mutant(root: Path, mutated: str) -> Mutant:
    """The only one with that result."""
    (found,) = [one for one in every(root) if one.mutated == mutated]
    return found


@pytest.mark.parametrize(
    ("statement", "results"),
    [
        ("x = a < b", {"a <= b"}),
        ("x = a in b and c", {"a in b or c", "a not in b"}),
        ("x = a[1]", {"2", "0"}),
        ("x = a // b", {"a * b"}),
        ("x: Literal[1] = a", set()),
        ("x = cast(Literal[1], a - b)", {"a + b"}),
        ("raise ValueError(a - 1)", set()),
        ("'a docstring'", set()),
        ("return a == b", {"None", "not a == b", "a != b"}),
        ("f(a)", {"None"}),
        ("if a:\n    return b", {"False", "True"}),
        ("if not a:\n    continue", {"False", "True", "a"}),
    ],
)
def test_what_is_mutated(statement: str, results: set[str]) -> None:
    assert {site.result for site in sites(ast.parse(statement).body[0])} == results


def test_a_mutant_is_found_where_it_was_drawn(tmp_path: Path) -> None:
    root = checkout(tmp_path, tiny=TINY, other__tiny=TINY)
    index = Index(walked(root, PACKAGES)[1])
    for one in every(root):
        place = index.find(one)
        assert place is not None
        assert (place.how, place.function.module, place.site.result) == ("same", one.module, one.mutated)


@pytest.mark.parametrize(
    ("modules", "how"),
    [
        ({"shop__boxes": TINY.replace("class Basket", "class Box").replace("has_room", "fits")}, "statement"),
        ({"tiny": TINY.replace("return count < limit", "room = count < limit")}, "expression"),
        ({"tiny": TINY.replace("count < limit", "bool(count)")}, "gone"),
        ({"first": TINY, "second": TINY}, "gone"),  # two places fit equally well
    ],
)
def test_a_mutant_is_found_after_its_code_changed(modules: dict[str, str], how: str, tmp_path: Path) -> None:
    one = mutant(checkout(tmp_path / "before", tiny=TINY), "count <= limit")
    place = Index(walked(checkout(tmp_path / "after", **modules), PACKAGES)[1]).find(one)
    assert (place.how if place is not None else "gone") == how


@pytest.mark.slow
def test_killed_survived_not_covered_and_gone(tmp_path: Path) -> None:
    root = checkout(tmp_path, tiny=TINY)
    (root / "tests").mkdir()
    (root / "tests" / "test_tiny.py").write_text(TESTS, encoding="utf-8")
    (root / "pytest.ini").write_text("[pytest]\nmarkers =\n    corpus:\n    slow:\n", encoding="utf-8")
    wanted = ["count <= limit", "count // 3", "total >= 20", "3", "9"]
    mutants = [mutant(root, text) for text in wanted]
    mutants += [Mutant(**{**vars(mutants[0]), "id": "gone", "statement": "return 1", "expression": "1"})]
    options = run.parsed(["run", "unused.json", "--jobs", "2", "--limit", "60", "--", "-p", "no:randomly"])
    results = run.run(root, mutants, options)
    entries = [results["mutants"][one.id] for one in mutants]
    assert [entry["status"] for entry in entries] == [
        "killed",
        "killed",
        "survived",
        "not covered",  # the reduction of a price that no test asks for
        "survived",
        "gone",
    ]
    assert entries[0]["by"] == "tests/test_tiny.py::test_room_in_another_process"
    assert entries[0]["of"] == 3
    assert entries[1]["by"] == "tests/test_tiny.py::test_price"
    assert results["tests"] == 4
    assert results["failing"] == []


def test_comparison_counts_what_is_killed_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    def result(*states: str) -> dict[str, object]:
        return {"commit": "c", "mutants": {str(at): {"status": state} for at, state in enumerate(states)}}

    before = result("killed", "timeout", "survived", "killed", "killed", "not covered")
    assert run.compare(before, result("timeout", "killed", "killed", "killed", "killed", "gone")) == 0
    assert run.compare(before, result("survived", "killed", "survived", "gone", "not covered")) == 3
    text = capsys.readouterr().out
    assert "WORSE: 3 killed → gone" in text
    assert "3 of 4 that were killed are so no more" in text
