"""Lines on a terminal and in a pipe: wrapped between words, with the styles that rich gives them, or plain."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console
from rich.text import Text

from onnxfix.report.render.lines import GLUE, Line, columns, line, print_lines, wrapped


def rows(one: Line, width: int | None) -> list[str]:
    return [row.plain for row in wrapped(one, width)]


def test_lines_are_wrapped_between_words() -> None:
    one = line("  ", ("label   ", "bold"), "some words that ", ("are", "red"), " too long for it", hang=10)
    assert rows(one, 40) == ["  label   some words that are too long", "          for it"]
    assert rows(one, None) == [one.plain]
    assert rows(line("no hang " * 20), 40) == ["no hang " * 20]
    assert next(row.parts for row in wrapped(one, 40)).count(("are", "red")) == 1
    assert rows(one, 5) == rows(one, 40), "a terminal of five columns gets what one of forty gets"
    wide = line("文" * 10, " ", "文" * 11, " end", hang=2)
    assert rows(wide, 42) == ["文" * 10, "  " + "文" * 11 + " end"]


def test_names_are_never_broken_and_what_belongs_together_stays() -> None:
    name = "/model/layers.0/" + "x" * 60
    assert rows(line(f"    {name}: it is long", hang=6), 40) == [f"    {name}:", "      it is long"]
    counts = line("  notes  " + "  ".join(f"AAA{n:03}{GLUE}×{n}" for n in range(1, 9)), hang=9)
    found = rows(counts, 40)
    assert found[0] == "  notes  AAA001 ×1  AAA002 ×2  AAA003 ×3"
    assert all("×" in row.split()[-1] and row.split()[-2].startswith("AAA") for row in found)


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
LONG = [line("word " * 30, ("end", "red"), hang=2)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, lines: list[Line] = LONG, **environment: str
) -> str:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", stream)
    print_lines(lines)
    return stream.getvalue()


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_lines_are_those_of_rich(monkeypatch: pytest.MonkeyPatch, kind: type[io.StringIO]) -> None:
    out = printed(monkeypatch, kind(), LINES, COLUMNS="80")
    target = Console(file=kind(), highlight=False, soft_wrap=True, emoji=False)
    for each in LINES:
        target.print(Text.assemble(*each.parts))
    assert out == target.file.getvalue()
    assert ("\x1b[1m" in out) == (kind is Terminal)
    assert "[bold]no markup[/bold]" in out


@pytest.mark.parametrize(
    ("environment", "terminal", "wanted"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": ""}, False, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_who_gets_styles(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], terminal: bool, wanted: bool
) -> None:
    stream = Terminal() if terminal else io.StringIO()
    out = printed(monkeypatch, stream, [line(("x", "bold"))], **environment)
    assert out == ("\x1b[1mx\x1b[0m\n" if wanted else "x\n")


def test_pipes_terminals_and_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch, io.StringIO()) == "word " * 30 + "end\n", "lines of a pipe can be searched"
    assert columns() is None
    narrow = printed(monkeypatch, io.StringIO(), COLUMNS="60")
    assert max(map(len, narrow.splitlines())) <= 60
    assert narrow.split() == ["word"] * 30 + ["end"]
    assert "\x1b[31mend" in printed(monkeypatch, Terminal(), COLUMNS="60")
    assert printed(monkeypatch, Terminal(), COLUMNS="60", NO_COLOR="1") == narrow
