"""Command lines that pages show are such that the program accepts them: commands, options and their values. The two
READMEs are in step: the same sections, code, tables, links and figures; and the English one is short."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
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


MOST_LINES = 130
ENGLISH, CHINESE = (ROOT / "README.md", ROOT / "README.zh-CN.md")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`]+`")
LINK = re.compile(r"\]\(([^)]*)\)")
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)*")


def sections(text: str) -> list[str]:
    """The parts of a page, one for each heading, without code blocks."""
    return re.split(r"^(?=#+ )", FENCE.sub("", text), flags=re.MULTILINE)[1:]


def differences(one: str, other: str) -> list[str]:
    """Where two pages are not in step."""
    found = ["code blocks"] if FENCE.findall(one) != FENCE.findall(other) else []
    for left, right in zip_longest(sections(one), sections(other), fillvalue=""):
        place = left.partition("\n")[0]
        if len(left.split(" ")[0]) != len(right.split(" ")[0]):
            found.append(f"{place}: headings")
        facts = {
            "code": lambda text: Counter(CODE.findall(text)),
            "links": lambda text: Counter(LINK.findall(text)) - Counter(dict.fromkeys(READMES, 1)),
            "figures": lambda text: Counter(NUMBER.findall(LINK.sub("]", CODE.sub("", text)))),
            "rows": lambda text: re.findall(r"^(?:\||\d+\.|-|>) ?", text, re.MULTILINE),
        }
        found += [f"{place}: {name}" for name, fact in facts.items() if fact(left) != fact(right)]
    return found


READMES = ("README.md", "README.zh-CN.md")


def test_the_readmes_are_in_step() -> None:
    assert differences(ENGLISH.read_text(encoding="utf-8"), CHINESE.read_text(encoding="utf-8")) == []


def test_the_readme_is_short() -> None:
    assert len(ENGLISH.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_the_set_up_commands_are_near_the_top() -> None:
    lines = ENGLISH.read_text(encoding="utf-8").splitlines()
    assert lines.index("```sh") < 12
    assert lines[lines.index("```sh") + 3] == "```"
