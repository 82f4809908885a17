"""What check says of ONNX's node models, of rules' examples and of exports, against what TensorRT did with them.

fixtures/disagreements.tsv has every model about which they do not agree; benchmarks/gpu/agreement.py writes it anew.
"""

from __future__ import annotations

from functools import cache

import onnx.defs
import pytest
from gpu.agreement import DISAGREEMENTS, FILES, ROOT, judge, models_of, read

TABLES = {title: read(ROOT / "fixtures" / file) for title, file in FILES.items()}
TITLES = list(FILES)
EACH = pytest.mark.parametrize(
    ("title", "target"),
    dict.fromkeys((title, package.target) for title in TITLES for package in TABLES[title][0]),
)
pytestmark = [
    pytest.mark.xdist_group("nodes"),
    pytest.mark.skipif(onnx.defs.onnx_opset_version() < 28, reason="the models are those of onnx 1.23"),
]


models = cache(models_of)


@cache
def recorded() -> set[tuple[str, str, str]]:
    """Model, package, kind."""
    lines = DISAGREEMENTS.read_text("utf-8").splitlines()
    return {(name, package, kind) for name, package, kind in (line.split("\t") for line in lines[1:])}


def compare(title: str, target: str, stride: int) -> None:
    """Hold each ``stride``-th model of a table to what is recorded of it for the packages of a target."""
    packages = [package for package in TABLES[title][0] if package.target == target]
    rows = {name: row for name, row in list(TABLES[title][1].items())[::stride] if name in models(title)}
    found = set()
    for name, (letters, _) in rows.items():
        judged = judge(packages, (name, letters, models(title)[name]))
        for package, (_, _, kind) in zip(packages, judged, strict=True):
            if kind not in ("", "doubted"):
                found.add((name, package.name, kind))
    assert rows
    of = {package.name for package in packages}
    assert found == {one for one in recorded() if one[1] in of and one[0] in rows}


@EACH
def test_a_sample_is_judged_as_recorded(title: str, target: str) -> None:
    compare(title, target, 48)


@EACH
@pytest.mark.corpus(every=3)
def test_every_model_is_judged_as_recorded(title: str, target: str) -> None:
    compare(title, target, 1)


@pytest.mark.parametrize("package", [one.name for one in TABLES[TITLES[0]][0]])
def test_of_node_models_hardly_one_is_refused_without_an_error_and_none_is_wrong_without_a_word(
    package: str,
) -> None:
    packages, rows = TABLES[TITLES[0]]
    (place,) = [one.place for one in packages if one.name == package]
    tried = sum(letters[place] != "-" for letters, _ in rows.values())
    kinds = [kind for name, of, kind in recorded() if of == package and name in rows]
    assert kinds.count("missed") <= tried * 0.0103  # 4 of 392 of TensorRT 8.6.1
    assert kinds.count("silent") == 0


def test_check_and_tensorrt_agree_about_each_export() -> None:
    assert not [row for row in recorded() if row[0] in TABLES["Exports"][1]]


def test_most_examples_are_those_that_were_tried() -> None:
    rows = TABLES[TITLES[1]][1]
    assert sum(name in models(TITLES[1]) for name in rows) > 0.9 * len(rows)
