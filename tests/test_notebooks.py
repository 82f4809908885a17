"""The notebooks run from top to bottom and hold what their cells give now, and so does the Python of the pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT
from support.scripts import script

RUNNER = script(ROOT / "docs" / "notebooks.py")
COMMAND = "run `python docs/notebooks.py`, and read what changed"


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", RUNNER.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_what_its_cells_give(path: Path) -> None:
    for number, before, after in RUNNER.stale(document(path)):
        pytest.fail(f"cell {number} gives\n{after}\nand the notebook has\n{before}\n{COMMAND}")


@pytest.mark.slow
@pytest.mark.parametrize("path", RUNNER.PAGES, ids=lambda path: path.stem)
def test_a_page_shows_what_its_code_gives(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert RUNNER.page_now(text) == text, COMMAND


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
