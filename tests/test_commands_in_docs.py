"""Command lines that pages show are such that the program accepts them: commands, options and their values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from onnxfix.cli.app import app
from support.paths import ROOT

PROGRAM: Any = typer.main.get_command(app)
PAGES = [*ROOT.glob("README*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/tutorials/*.md")]
_FENCE = re.compile(r"^ *```(sh|yaml|console)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:^|run: |&& |bin/)onnxfix ([a-z]+ .*)$")
_SHOWN = re.compile(r"^\$ onnxfix ([a-z]+ .*)$")
_PLACEHOLDER = re.compile(r"\$\{\{|\$\(|<<")


def commands(text: str) -> Iterator[str]:
    """What follows ``onnxfix`` on the lines of code blocks, up to a pipe, a comment or another command."""
    for language, block in _FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            found = (_SHOWN if language == "console" else _COMMAND).search(line.strip())
            if found and not _PLACEHOLDER.search(line):
                yield re.split(r" (?:\||#|&&|>|\|\|) ?", found[1])[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_program_accepts_the_commands_of_a_page(page: Path) -> None:
    for command in commands(page.read_text(encoding="utf-8")):
        name, *arguments = shlex.split(command)
        with PROGRAM.commands[name].make_context(name, arguments) as context:
            assert context.params, command


def test_commands_are_found_in_code() -> None:
    text = (
        "onnxfix no\n\n```sh\nonnxfix check a.onnx | jq .  # b\nx && .venv/bin/onnxfix apply b.onnx \\\n -q\n```\n\n"
        "```yaml\n- run: onnxfix check 'm/*.onnx' > out\n- run: onnxfix check ${{ x }}\n```\n"
        "```python\nonnxfix check c\n```\n"
    )
    assert list(commands(text)) == ["check a.onnx", "apply b.onnx   -q", "check 'm/*.onnx'"]
    shown = [one for page in PAGES for one in commands(page.read_text(encoding="utf-8"))]
    assert len(shown) > 30
    with pytest.raises(Exception, match="--no-such-option"):
        PROGRAM.commands["check"].make_context("check", ["a.onnx", "--no-such-option"])
