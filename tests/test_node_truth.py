"""What check says of ONNX's node models, of rules' examples and of exports, against what TensorRT did with them.

fixtures/disagreements.tsv has every model about which they do not agree; benchmarks/gpu/agreement.py writes it anew.
"""

from __future__ import annotations

from functools import cache

import onnx.defs
import pytest
from gpu.agreement import DISAGREEMENTS, FILES, ROOT, Package, judge, models_of, read

TITLES = list(FILES)
FIXTURES = ROOT / "fixtures"
EACH = pytest.mark.parametrize(
    ("title", "place"),
    [(title, package.place) for title in TITLES for package in read(FIXTURES / FILES[title])[0]],
)
pytestmark = [
    pytest.mark.xdist_group("nodes"),
    pytest.mark.skipif(onnx.defs.onnx_opset_version() < 28, reason="the models are those of onnx 1.23"),
]


@cache
def table(title: str) -> tuple[list[Package], dict[str, tuple[str, str]]]:
    return read(FIXTURES / FILES[title])


@cache
def models(title: str) -> dict[str, bytes]:
    return models_of(title)


@cache
def recorded() -> set[tuple[str, str, str]]:
    """Model, package, kind."""
    lines = DISAGREEMENTS.read_text("utf-8").splitlines()
    return {(name, package, kind) for name, package, kind in (line.split("\t") for line in lines[1:])}


def compare(title: str, place: int, stride: int) -> None:
    """Hold each ``stride``-th model of a table to what is recorded of it."""
    packages, rows = table(title)
    package = packages[place]
    names = [name for name in list(rows)[::stride] if name in models(title)]
    found = set()
    for name in names:
        [(_, _, kind)] = judge([package], (name, rows[name][0], models(title)[name]))
        if kind not in ("", "doubted"):
            found.add((name, package.name, kind))
    assert names
    assert found == {one for one in recorded() if one[1] == package.name and one[0] in names}


@EACH
def test_a_sample_is_judged_as_recorded(title: str, place: int) -> None:
    compare(title, place, 48)


@EACH
@pytest.mark.corpus(every=3)
def test_every_model_is_judged_as_recorded(title: str, place: int) -> None:
    compare(title, place, 1)


@pytest.mark.parametrize("package", [one.name for one in table(TITLES[0])[0]])
def test_of_node_models_hardly_one_is_refused_without_an_error_and_none_is_wrong_without_a_word(
    package: str,
) -> None:
    packages, rows = table(TITLES[0])
    (place,) = [one.place for one in packages if one.name == package]
    tried = sum(letters[place] != "-" for letters, _ in rows.values())
    kinds = [kind for name, of, kind in recorded() if of == package and name in rows]
    assert kinds.count("missed") <= tried * 0.0103  # 4 of 392 of TensorRT 8.6.1
    assert kinds.count("silent") == 0


def test_check_and_tensorrt_agree_about_each_export() -> None:
    assert not [row for row in recorded() if row[0] in table("Exports")[1]]


def test_most_examples_are_those_that_were_tried() -> None:
    rows = table(TITLES[1])[1]
    assert sum(name in models(TITLES[1]) for name in rows) > 0.9 * len(rows)
