"""The tutorials show what the commands print: each section's commands are run again, in order. The notebooks run from
top to bottom and hold what their cells give now, and so does the Python of the pages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT
from support.real_tensorrt import FACT, REAL
from support.scripts import script

CONSOLES = script(ROOT / "docs" / "consoles.py")
TENSORRT = re.compile(r"TensorRT-RTX|^ +TensorRT ", re.MULTILINE)
"""An output that shows what the installed TensorRT did."""
COMMAND = "run `python docs/consoles.py`, and read what changed"


def sections() -> list[Any]:
    """Each section with commands; those that show TensorRT need the one that they show."""
    found = []
    for page in CONSOLES.PAGES:
        for title, shown in CONSOLES.sections(page.read_text(encoding="utf-8")).items():
            needs = any(TENSORRT.search(one.output) or "trt-" in one.command for one in shown)
            marks = [pytest.mark.corpus(every=3), *([REAL, FACT] if needs else [])]
            found.append(pytest.param(shown, id=f"{page.stem}: {title}", marks=marks))
    return found


@pytest.mark.parametrize("shown", sections())
def test_the_outputs_are_those_of_the_commands(shown: list[Any]) -> None:
    for one, printed in zip(shown, CONSOLES.outputs(shown), strict=True):
        assert CONSOLES.alike(one.output, printed), f"$ {one.command}\n{printed}\n{COMMAND}"


def test_every_console_of_a_tutorial_is_run() -> None:
    """None is outside of a section, and none has another language."""
    for page in CONSOLES.PAGES:
        text = page.read_text(encoding="utf-8")
        shown = [one for some in CONSOLES.sections(text).values() for one in some]
        assert len(shown) == sum(line.startswith("$ ") for line in text.splitlines())
        assert all(one.output for one in shown)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("12 of 34 nodes, 1.2 s", "12 of 34 nodes, 99.9 s", True),
        ("3.2 runs of the model, 40 parts checked", "9.9 runs of the model, 28 parts checked", True),
        ("a, 1.5\n  s) b", "a, 3.25 s) b", True),
        ("error 0.0441 of\n  its scale", "error 0.0450\n of its scale", True),
        ("error 0.0441", "error 0.0541", False),
        ("rounding 1.7e-07", "rounding 3.4e-07", True),
        ("1,024 elements", "1,025 elements", True),
        ("1,024 elements", "2,024 elements", False),
        ("node a", "node b", False),
        ("node a", "node a and more", False),
        ("inf 1", "1 inf", False),
        ('<testcase time="0.123">', '<testcase time="45.6">', True),
        ("one 1\n  …\nlast 3\n", "one 1\ntwo 2\nlast 3\n", True),
        ("one 1\n…\nlast 3\n", "one 1\ntwo 2\nlast 4\n", False),
        ("one 1\n…\n", "one 1\ntwo 2\n", True),
        ("one 1\n… and 2 more\n", "one 1\ntwo 2\n", False),
        ("one 1\n", "one 1\ntwo 2\n", False),
    ],
)
def test_what_counts_as_alike(shown: str, printed: str, same: bool) -> None:
    assert CONSOLES.alike(shown, printed) is same


def test_tutorials_run_no_other_programs(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="onnxfix, python and cat only"):
        CONSOLES.run("rm -rf x", tmp_path)
    with pytest.raises(RuntimeError, match="exit code 2"):
        CONSOLES.run("onnxfix check missing.onnx", tmp_path)


RUNNER = script(ROOT / "docs" / "notebooks.py")
NOTEBOOKS_COMMAND = "run `python docs/notebooks.py`, and read what changed"


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", RUNNER.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_what_its_cells_give(path: Path) -> None:
    for number, before, after in RUNNER.stale(document(path)):
        pytest.fail(f"cell {number} gives\n{after}\nand the notebook has\n{before}\n{NOTEBOOKS_COMMAND}")


@pytest.mark.slow
@pytest.mark.parametrize("path", RUNNER.PAGES, ids=lambda path: path.stem)
def test_a_page_shows_what_its_code_gives(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert RUNNER.page_now(text) == text, NOTEBOOKS_COMMAND


@pytest.mark.parametrize("path", RUNNER.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_one_that_jupyter_opens(path: Path) -> None:
    """The form of nbformat 4.5, and cells in the order in which they ran."""
    found = document(path)
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in found["cells"]}) == len(found["cells"])
    code = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = {kind for cell in code for one in cell["outputs"] for kind in one.get("data", {})}
    assert kinds <= {"text/plain", "text/html", "text/markdown"}
    assert "Traceback" not in json.dumps(found)


def test_every_block_of_python_is_run() -> None:
    for page in RUNNER.PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = [block for some in RUNNER.sections(text).values() for block in some]
        assert len(blocks) == text.count("```python")
        assert sum(block["shown"] is not None for block in blocks) == text.count("```text")
