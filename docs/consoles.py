"""Runs the commands that pages show, and writes what they print: ``python docs/consoles.py [PAGE...]``.

A block of the language ``console`` holds commands (``$ onnxfix ...``, ``$ cat FILE``, ``$ python FILE``), each with its
output. The commands of a section (a heading of level 2) run one after another in a folder of their own, which has a
link to ``fixtures``. A line of the output that is only ``…`` stands for any number of lines. tests/test_tutorials.py
runs all commands again and compares. Pages are README.md, and those in docs/ and
docs/tutorials/ that have such a block.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGES = [
    page
    for page in (DOCS.parent / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("tutorials/*.md")))
    if "\n```console\n" in page.read_text(encoding="utf-8")
]
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^## ", re.MULTILINE)
_EFFORT = re.compile(r"\b[\d.,]+ (?=s\b|runs? of the model|parts? checked)|(?<=time=\")[\d.]+")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
_PROGRAMS = {"onnxfix": ("-m", "onnxfix"), "python": ()}
_LEFT_OUT = re.compile(r"^\s*…\n", re.MULTILINE)
_HOLE = "\0"
_NEAR, _TINY = 0.05, 1e-5


@dataclass(frozen=True)
class Shown:
    """A command and the output that a page shows below it."""

    command: str
    output: str


def sections(text: str) -> dict[str, list[Shown]]:
    """The commands of each section that has some, by its heading."""
    found = {}
    for part in _HEADING.split(_FENCE.sub(lambda block: block[0].replace("\n## ", f"\n{_HOLE}## "), text))[
        1:
    ]:
        part = part.replace(_HOLE, "")  # a heading in a block is output
        shown = [one for block in _BLOCK.findall(part) for one in commands(block)]
        if shown:
            found[part.partition("\n")[0].strip()] = shown
    return found


def commands(block: str) -> Iterator[Shown]:
    """The commands of a block."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield Shown(command, output)


def run(command: str, folder: Path) -> str:
    """What a command prints to standard output in a folder."""
    name, *arguments = shlex.split(command)
    if name == "cat":
        return "".join((folder / path).read_text(encoding="utf-8") for path in arguments)
    if name not in _PROGRAMS:
        raise ValueError(f"tutorials run {', '.join(_PROGRAMS)} and cat only, not {name!r}")
    root = str(DOCS.parent)
    paths = os.pathsep.join([root, os.path.join(root, "rules"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *_PROGRAMS[name], *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "NO_COLOR": "1", "PYTHONUTF8": "1", "COLUMNS": "100"},
        capture_output=True,
        encoding="utf-8",
    )
    if done.returncode > 1 or not done.stdout:
        raise RuntimeError(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def outputs(shown: list[Shown]) -> list[str]:
    """What the commands of a section print now."""
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(DOCS.parent / "fixtures", Path(folder) / "fixtures")
        return [run(one.command, Path(folder)) for one in shown]


def alike(shown: str, printed: str) -> bool:
    """Whether two outputs say the same: words are equal, times and effort are not compared, and numbers may be off as
    other processors round. What is left out of ``shown`` (a line ``…``) may be anything."""
    words = _words(printed)
    numbers = _NUMBER.findall(words)
    parts = [_words(part) for part in _LEFT_OUT.split(shown)]
    pattern = r"\s*.*?\s*".join(f"({re.escape(_NUMBER.sub(_HOLE, part))})" for part in parts)
    found = re.fullmatch(pattern, _NUMBER.sub(_HOLE, words), re.DOTALL)
    if found is None:
        return False
    for part, group in zip(parts, range(1, len(parts) + 1), strict=True):
        before = found.string.count(_HOLE, 0, found.start(group))
        for one, other in zip(_NUMBER.findall(part), numbers[before:], strict=False):
            if not _near(float(one.replace(",", "")), float(other.replace(",", ""))):
                return False
    return True


def _words(text: str) -> str:
    """Without times, and on one line: where lines are wrapped depends on the digits."""
    return _EFFORT.sub("", " ".join(text.split()))


def _near(one: float, two: float) -> bool:
    return abs(one - two) <= _NEAR * max(abs(one), abs(two)) or max(abs(one), abs(two)) < _TINY


def written(text: str, printed: Callable[[list[Shown]], list[str]] = outputs) -> str:
    """The page with the outputs of now, where they are not like those it has."""
    for shown in sections(text).values():
        for one, output in zip(shown, printed(shown), strict=True):
            if not alike(one.output, output):
                text = text.replace(f"$ {one.command}\n{one.output}", f"$ {one.command}\n{output}", 1)
    return text


def main() -> None:
    """Write the pages that are named, or all."""
    for page in [Path(name) for name in sys.argv[1:]] or PAGES:
        text = page.read_text(encoding="utf-8")
        now = written(text)
        if now != text:
            page.write_text(now, encoding="utf-8")
            sys.stdout.write(f"{page}: written\n")


if __name__ == "__main__":
    main()
