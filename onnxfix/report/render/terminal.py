"""Pages as lines of a terminal: the outcome, then the sections that are shown there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from onnxfix.report.render import ui
from onnxfix.report.render.findings import group_lines
from onnxfix.report.render.lines import GLUE, LABEL, Line, columns, labeled, line, make_printable
from onnxfix.report.render.stream import printable

STYLES = {"good": "green", "warn": "yellow", "bad": "bold red", "note": "cyan", "none": "dim"}
"""The colors of chips."""
_TEXTS = {"command": "bold", "strong": "bold", "small": "dim", "up": "yellow", "down": "green"}
_LAST = 30
"""Columns below which the last column of a table is not wrapped."""
_BAR, _BINS = 40, 10
"""Characters of the longest bar, or of two side by side, and bins of errors."""
_POWER = re.compile("10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
_PLAIN_DIGITS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
Piece = tuple[str, str]


def page_lines(page: ui.Page, *, quiet: bool = False, verbose: bool = False) -> Iterator[Line]:
    """The lines of a result. ``quiet``: its outcome, and what was written; ``verbose`` adds details."""
    between = f" against {page.against}  " if page.against else ": "
    yield line((page.path, "bold"), between, *pieces(page.outcome), hang=None if page.against else 2)
    for paragraph in page.lead:
        if not quiet or paragraph.kind == "written":
            yield from block_lines([paragraph], verbose)
    if not quiet:
        yield from section_lines(page.sections, verbose)


def section_lines(sections: Iterable[ui.Section], verbose: bool) -> Iterator[Line]:
    """The sections that a terminal shows."""
    for section in sections:
        if section.shown == "always" or (section.shown == "verbose" and verbose):
            if section.titled:
                yield line(section.title.lower(), style="bold")
            yield from block_lines(section.blocks, verbose)


def block_lines(blocks: Iterable[ui.Block], verbose: bool, indent: int = 2) -> Iterator[Line]:
    """The lines of blocks; drawings are left out."""
    margin = " " * indent
    for block in blocks:
        match block:
            case ui.Paragraph(content, kind) if kind != "remark":
                style = "dim" if kind == "muted" else ""
                yield line(margin, *pieces(content, style), hang=indent + 2)
            case ui.Lines(texts):
                yield from (line(margin, text) for text in texts)  # commands among them can be copied
            case ui.Items():
                yield from _item_lines(block, verbose, indent)
            case ui.Facts(pairs, brief):
                wide = max([LABEL, *(len(name) + 2 for name, _ in pairs[:brief])])
                for name, content in pairs[:brief]:
                    yield labeled(printable(name), *pieces(content), columns=wide)
            case ui.Table():
                yield from table_lines(block, verbose, indent)
            case ui.Part(heading, inner):
                yield from [line(margin, *pieces(heading), hang=indent + 2)] if heading else []
                yield from block_lines(inner, verbose, indent + 2)
            case ui.Fold(title, inner, shown="always"):
                hint = () if verbose else (*pieces(title), (" (-v lists them)", ""))
                yield from [line(margin, *((text, "dim") for text, _ in hint))] if hint else []
                yield from block_lines(inner, verbose, indent) if verbose else ()
            case ui.Fold(_, inner, shown="verbose") if verbose:
                yield from block_lines(inner, verbose, indent + 2)
            case ui.Groups():
                yield from group_lines(block, verbose)
            case ui.Cards(cards, worst) if verbose or worst:
                for card in cards if verbose else cards[:1]:
                    yield line(margin, *pieces(card.heading))
                    yield from block_lines(card.blocks, verbose, indent)
            case ui.Bars():
                yield from (line(margin, text) for text in _bar_lines(block))


def pieces(content: ui.Content, style: str = "") -> Iterator[Piece]:
    """Content as pieces of a line, with their styles."""
    match content:
        case ui.Chip(kind, text):
            yield text, STYLES[kind]
        case ui.Text(_, "extra"):
            yield "", ""
        case ui.Text(text, "small"):
            yield f" {text}" if text else "", "dim"
        case ui.Text(text, kind):
            yield text.replace(" ", GLUE) if kind == "command" else text, _TEXTS.get(kind, style)
        case ui.Paragraph(inner):
            yield "; ", style
            yield from pieces(inner, style)
        case str():
            yield content, style
        case int():
            yield f"{content:,}", style
        case tuple() | list():
            for part in content:
                yield from pieces(part, style)


def more(number: int, noun: str) -> Line:
    """How many are left out."""
    ending = "" if number == 1 else "s"
    return line(f"  … and {number:,} more {noun}{ending} (-v lists them)", style="dim")


def _item_lines(block: ui.Items, verbose: bool, indent: int) -> Iterator[Line]:
    shown = block.entries if verbose or block.most is None else block.entries[: block.most]
    for entry in shown:
        match entry:
            case [ui.Chip(kind, text), *rest]:
                (first, style), *others = pieces(rest)
                yield labeled(text, (first.lstrip(), style), *others, style=STYLES[kind])
            case _ if block.label:
                yield labeled(block.label, *pieces(entry), style="")
            case _:
                yield line(" " * indent, *pieces(entry), hang=indent + 2)
    if len(shown) < len(block.entries):
        yield more(len(block.entries) - len(shown), block.noun)


def table_lines(table: ui.Table, verbose: bool, indent: int = 2) -> Iterator[Line]:
    """A table in columns, without those that are empty; the last one is wrapped. Where the terminal is too narrow, the
    numbers of each row stay in columns, before its name, and its other cells follow with the names of their columns."""
    shown = table.rows if verbose or table.most is None else table.rows[: table.most]
    rows = [[_cell(cell) for cell in row] for row in shown if ui.NOT_REQUESTED not in row]
    kept = [at for at in range(len(table.head)) if any(_width(row[at]) for row in rows)]
    names = [table.head[at] for at in kept]
    cells = [[row[at] for at in kept] for row in rows]
    heads = [name.lstrip("#").lower() for name in names]
    if any(heads):
        cells.insert(0, [[(head, "dim")] for head in heads])
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    terminal, last = columns(), indent + sum(widths[:-1]) + 2 * len(widths[:-1])
    if terminal is not None and last + min(widths[-1], _LAST) > terminal:
        yield from _narrow_lines(names, cells, widths, indent, any(heads))
    else:
        yield from (line(" " * indent, *_columns(names, row, widths), hang=last) for row in cells)
    if len(shown) < len(table.rows):
        yield more(len(table.rows) - len(shown), table.noun)


def _narrow_lines(
    names: Sequence[str],
    cells: Sequence[Sequence[list[Piece]]],
    widths: Sequence[int],
    indent: int,
    has_head: bool,
) -> Iterator[Line]:
    """The rows of a table that is wider than the terminal; the first is its head where it has one."""
    numbers = [at for at, name in enumerate(names) if name.startswith("#")]
    title, *others = (at for at in range(len(names)) if at not in numbers)
    first = [*numbers, title]
    for row in cells:
        is_head = has_head and row is cells[0]
        named = (f"{names[at].lstrip('#').lower()} {_plain(row[at])}".strip() for at in others if row[at])
        rest = "; ".join(named)
        name = [(text, style or "bold") for text, style in row[title]]
        if not numbers and not is_head:
            yield line(" " * indent, *name, f"  {rest}", hang=indent + 2)
        elif numbers:
            figures = [*(row[at] for at in numbers), name]
            columns_of_row = _columns([names[at] for at in first], figures, [widths[at] for at in first])
            yield line(" " * indent, *columns_of_row, hang=indent + 2)
            if rest and not is_head:
                yield line(" " * (indent + 4), (rest, "dim"), hang=indent + 6)


def _cell(content: ui.Content) -> list[Piece]:
    found = [(make_printable(text), style) for text, style in pieces(content) if text]
    return [(found[0][0].lstrip(" "), found[0][1]), *found[1:]] if found else []


def _plain(cell: Sequence[Piece]) -> str:
    return "".join(text for text, _ in cell)


def _width(cell: Sequence[Piece]) -> int:
    return len(_plain(cell))


def _columns(
    names: Sequence[str], cells: Sequence[Sequence[Piece]], widths: Sequence[int]
) -> Iterator[Piece]:
    """The cells of a row in columns, those of numbers to the right."""
    filled = [number for number, cell in enumerate(cells) if cell]
    pad = ""
    for number in range(max(filled, default=-1) + 1):
        gap = " " * (widths[number] - _width(cells[number]))
        is_number = names[number].startswith("#")
        yield pad + gap * is_number, ""  # one piece: spaces side by side would be wrapped as one
        yield from cells[number]
        pad = "  " if is_number else f"{gap}  "


def _bar_lines(chart: ui.Bars) -> Iterator[str]:
    """A histogram as bars of text; at least one sign for what is not nothing. Of errors, the smallest are joined."""
    bars = [*chart.bars]
    first = 1 if bars[0][0] == "0" else 0
    if len(bars[0]) == 2 and (extra := len(bars) - first - _BINS) > 0:
        joined = bars[first : first + extra + 1]
        total = sum(values[0] for _, *values in joined)
        bars[first : first + extra + 1] = [(f"to {bars[first + extra + 1][0]}", total)]
    names = [_POWER.sub(lambda match: f"1e{match[1].translate(_PLAIN_DIGITS)}", name) for name, *_ in bars]
    most = max((value for _, *values in bars for value in values), default=1) or 1
    wide, longest = max(map(len, names)), _BAR // max(len(values) for _, *values in bars)
    for name, (_, *values) in zip(names, bars, strict=True):
        signs = ["█" * (max(round(longest * value / most), 1) if value else 0) for value in values]
        cells = [f"{sign} {value:,.0f}" if value else "" for sign, value in zip(signs, values, strict=True)]
        yield f"{name:>{wide}}  {'  '.join(f'{cell:<{longest + LABEL}}' for cell in cells)}".rstrip()
