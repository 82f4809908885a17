"""The notebooks run from top to bottom and hold what their cells give now, and so does the Python of the pages."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.paths import ROOT

DOCS = ROOT / "docs"
COMMAND = "run `python docs/notebooks.py`, and read what changed"


@cache
def runner() -> ModuleType:
    """docs/notebooks.py, which is no module of a package."""
    spec = importlib.util.spec_from_file_location("docs_notebooks", DOCS / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_notebooks"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", runner().NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_what_its_cells_give(path: Path) -> None:
    for number, before, after in runner().stale(document(path)):
        pytest.fail(f"cell {number} gives\n{after}\nand the notebook has\n{before}\n{COMMAND}")


@pytest.mark.slow
@pytest.mark.parametrize("path", runner().PAGES, ids=lambda path: path.stem)
def test_a_page_shows_what_its_code_gives(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert runner().page_now(text) == text, COMMAND


@pytest.mark.parametrize("path", runner().NOTEBOOKS, ids=lambda path: path.stem)
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
    for page in runner().PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = [block for some in runner().sections(text).values() for block in some]
        assert len(blocks) == text.count("```python")
        assert sum(block["shown"] is not None for block in blocks) == text.count("```text")


class Table:
    def _repr_html_(self) -> str:
        return "<b>3</b>"

    def __repr__(self) -> str:
        return "Table(3)"


def test_a_cell_gives_what_it_prints_and_its_last_value() -> None:
    first, second, third, fourth = runner().execute(
        ["a = 1", "print(a)\na + 1", "a;", "import os\nsorted(os.listdir())"]
    )
    assert (first.text, second.text, third.text) == ("", "1\n2\n", "")
    assert second.value == {"text/plain": "2"}
    assert fourth.text == "['fixtures']\n"
    assert dict(runner()._forms(Table())) == {"text/html": "<b>3</b>", "text/plain": "Table(3)"}
    with pytest.raises(ZeroDivisionError):
        runner().execute(["1 / 0"])


def test_a_stale_cell_is_written(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "code", "source": ["print('a')\n", "2"], "outputs": [], "execution_count": None},
        {"cell_type": "markdown", "source": ["text"]},
    ]
    found: dict[str, Any] = {"cells": cells}
    ((number, before, after),) = runner().stale(found)
    assert (number, before.text, after.text) == (1, "", "a\n2\n")
    runner().put(found, {number: after})
    assert runner().kept(cells[0]) == after
    assert runner().stale(found) == []


def test_a_stale_page_is_written() -> None:
    block = "```python\n{}\n```\n"
    shown = block.format("print(x)") + "\n```text\n2\n```\n"
    page = f"# A\n\n## B\n\n{block.format('x = 1')}\n{shown}\n## C\n\n{block.format('y = 1')}"
    now = runner().page_now(page)
    assert now == page.replace("text\n2\n", "text\n1\n")
    assert runner().page_now(now) == now
