"""Runs notebooks and the Python that pages show, and writes what they give: ``python docs/notebooks.py [FILE...]``.

The code of a notebook in docs/notebooks/ runs from top to bottom in one namespace, and so does that of a page's section
(a heading of level 2): blocks of the language ``python``, each of which may be followed by a block ``text`` with what
it shows. Shown is what is printed, and the value of the last expression. Everything runs in a folder with a link to
``fixtures`` (for notebooks as deep as in the checkout), so that files that are written are not in the checkout.
tests/test_tutorials.py compares; ``consoles.py`` says what counts as alike.

Nothing of Jupyter is needed, and no kernel is started: what is shown is what Jupyter would show of these values.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import pprint
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
if str(DOCS) not in sys.path:
    sys.path.insert(0, str(DOCS))

from consoles import alike  # noqa: E402

NOTEBOOKS = sorted(DOCS.glob("notebooks/*.ipynb"))
_BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
PAGES = [DOCS / "python.md"]
"""Pages whose Python is run."""
_REPRESENTATIONS = {"text/html": "_repr_html_", "text/markdown": "_repr_markdown_"}
_ROWS = (dict, list, tuple)
"""What Jupyter writes on several lines where one is too short."""
WIDTH = 100
"""Columns of what pandas and others fit to the terminal."""


@dataclass(frozen=True)
class Given:
    """What a cell gives: what it prints, and its value by media types (empty: none)."""

    printed: str = ""
    value: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What a page shows of it."""
        value = f"{self.value['text/plain']}\n" if self.value else ""
        return f"{self.printed}{value}"

    def like(self, other: Given) -> bool:
        """Whether two runs of a cell gave the same, up to times and rounding."""
        return (
            alike(self.printed, other.printed)
            and self.value.keys() == other.value.keys()
            and all(alike(text, other.value[kind]) for kind, text in self.value.items())
        )


def execute(codes: Sequence[str], depth: Sequence[str] = ()) -> list[Given]:
    """Run code in one namespace, in a folder of its own with a link to ``fixtures``, or in one ``depth`` below it."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(DOCS.parent / "fixtures", Path(folder) / "fixtures")
        inside = Path(folder).joinpath(*depth)
        inside.mkdir(parents=True, exist_ok=True)
        columns = os.environ.get("COLUMNS")
        os.environ["COLUMNS"] = str(WIDTH)
        try:
            with contextlib.chdir(inside):
                return [_cell(code, number, namespace) for number, code in enumerate(codes, 1)]
        finally:
            os.environ.pop("COLUMNS")
            if columns is not None:
                os.environ["COLUMNS"] = columns


def _cell(code: str, number: int, namespace: dict[str, Any]) -> Given:
    tree, name = ast.parse(code), f"<cell {number}>"
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, name, "exec", dont_inherit=True), namespace)
        value = None
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), namespace)
    shown = value is not None and not code.rstrip().endswith(";")
    return Given(printed.getvalue(), dict(_forms(value)) if shown else {})


def _forms(value: Any) -> Iterator[tuple[str, str]]:
    for kind, method in _REPRESENTATIONS.items():
        if hasattr(value, method) and not isinstance(value, type):
            yield kind, str(getattr(value, method)())
    yield (
        "text/plain",
        pprint.pformat(value, width=79, sort_dicts=False) if type(value) in _ROWS else repr(value),
    )


# ---- notebooks


def code_of(cell: dict[str, Any]) -> str:
    """The source of a notebook's cell."""
    return "".join(cell["source"])


def kept(cell: dict[str, Any]) -> Given:
    """What a notebook has as the output of a cell."""
    printed = "".join("".join(one["text"]) for one in cell["outputs"] if one["output_type"] == "stream")
    values = [one["data"] for one in cell["outputs"] if one["output_type"] == "execute_result"]
    return Given(printed, {kind: "".join(text) for kind, text in values[0].items()} if values else {})


def stale(document: dict[str, Any]) -> list[tuple[int, Given, Given]]:
    """The cells of code whose outputs are others than now: number, what the notebook has, what it gives."""
    cells = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    now = execute([code_of(cell) for cell in cells], ("docs", "notebooks"))
    pairs = enumerate(zip(map(kept, cells), now, strict=True), 1)
    return [(number, before, after) for number, (before, after) in pairs if not before.like(after)]


def put(document: dict[str, Any], given: dict[int, Given]) -> None:
    """Give cells of code other outputs."""
    cells = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        cell["execution_count"] = number
        if number in given:
            cell["outputs"] = list(_outputs(given[number], number))


def _outputs(given: Given, number: int) -> Iterator[dict[str, Any]]:
    if given.printed:
        yield {"name": "stdout", "output_type": "stream", "text": given.printed.splitlines(keepends=True)}
    if given.value:
        data = {kind: text.splitlines(keepends=True) for kind, text in given.value.items()}
        yield {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}


# ---- pages


def sections(text: str) -> dict[str, list[re.Match[str]]]:
    """The blocks of Python of each section that has some, by its heading."""
    found = {}
    for part in re.finditer(r"^## (.*)\n((?:(?!## ).*\n)*)", text, flags=re.MULTILINE):
        blocks = list(_BLOCK.finditer(text, part.start(2), part.end(2)))
        if blocks:
            found[part[1].strip()] = blocks
    return found


def page_now(text: str) -> str:
    """The page with what its code shows now, where that is not like what it has."""
    for blocks in reversed(sections(text).values()):
        now = execute([block["code"] for block in blocks])
        for block, given in reversed(list(zip(blocks, now, strict=True))):
            shown = block["shown"]
            if shown is not None and not alike(shown, given.text):
                text = f"{text[: block.start('shown')]}{given.text}{text[block.end('shown') :]}"
    return text


def main() -> None:
    """Write the files that are named, or all."""
    for path in [Path(name) for name in sys.argv[1:]] or [*NOTEBOOKS, *PAGES]:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            document = json.loads(text)
            put(document, {number: after for number, _, after in stale(document)})
            now = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        else:
            now = page_now(text)
        if now != text:
            path.write_text(now, encoding="utf-8")
            sys.stdout.write(f"{path}: written\n")


if __name__ == "__main__":
    main()
