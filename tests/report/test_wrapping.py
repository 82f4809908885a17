"""Lines are wrapped between words on a terminal, and stay as they are in a pipe."""

from __future__ import annotations

import io
import sys

import pytest

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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, **environment: str) -> str:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", stream)
    print_lines([line("word " * 30, ("end", "red"), hang=2)])
    return stream.getvalue()


def test_pipes_terminals_and_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch, io.StringIO()) == "word " * 30 + "end\n", "lines of a pipe can be searched"
    assert columns() is None
    narrow = printed(monkeypatch, io.StringIO(), COLUMNS="60")
    assert max(map(len, narrow.splitlines())) <= 60
    assert narrow.split() == ["word"] * 30 + ["end"]
    terminal = {"COLUMNS": "60", "TERM": "xterm-256color"}
    assert "\x1b[31mend" in printed(monkeypatch, Terminal(), **terminal)
    assert printed(monkeypatch, Terminal(), **terminal, NO_COLOR="1") == narrow
