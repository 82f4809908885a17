"""Lines without rich are the lines that rich prints where nothing is styled; with styles, they are rich's."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console
from rich.text import Text

from onnxfix.report.render.lines import Line, line, print_lines, styled

LINES = [
    line("plain"),
    line(("bold", "bold"), " and ", ("red", "bold red"), ("", "")),
    line("all of it", style="dim"),
    line("[bold]no markup[/bold] [link=x]"),
    line(":smile: no emoji"),
    line("x" * 500 + " word" * 100),
    line("  kept spaces   "),
    line(""),
    line("name → … 日本語 \\x1b[31m"),
    line("123 'text' http://example.org /a/path.onnx {'a': None}"),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _no_wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")


def printed(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, lines: list[Line]) -> str:
    monkeypatch.setattr(sys, "stdout", stream)
    print_lines(lines)
    return stream.getvalue()


def by_rich(stream: io.StringIO, lines: list[Line]) -> str:
    target = Console(file=stream, highlight=False, soft_wrap=True, emoji=False)
    for each in lines:
        target.print(Text.assemble(*each.parts))
    return stream.getvalue()


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_lines_are_those_of_rich(monkeypatch: pytest.MonkeyPatch, kind: type[io.StringIO]) -> None:
    out = printed(monkeypatch, kind(), LINES)
    assert out == by_rich(kind(), LINES)
    assert ("\x1b[1m" in out) == (kind is Terminal)
    assert "[bold]no markup[/bold]" in out


def test_parts_and_styles() -> None:
    made = line("a", ("b", "red"), style="dim")
    assert made.plain == "ab"
    assert made.parts == (("a", "dim"), ("b", "red"))


@pytest.mark.parametrize(
    ("environment", "terminal", "wanted"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": ""}, False, False),
        ({"TTY_COMPATIBLE": "1"}, False, True),
        ({"TTY_COMPATIBLE": "0"}, False, False),
    ],
)
def test_who_gets_styles(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], terminal: bool, wanted: bool
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Terminal() if terminal else io.StringIO()
    out = printed(monkeypatch, stream, [line(("x", "bold"))])
    assert styled() is wanted
    assert out in (
        ("\x1b[1mx\x1b[0m\n", "x\n")
        if "TTY_COMPATIBLE" in environment
        else ("\x1b[1mx\x1b[0m\n",)
        if wanted
        else ("x\n",)
    )  # an old rich does not know the former


@pytest.mark.parametrize("name", ["NO_COLOR", "TERM"])
def test_a_terminal_without_colors_gets_none(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "dumb")
    assert printed(monkeypatch, Terminal(), [line(("x", "red"))]) == "x\n"
