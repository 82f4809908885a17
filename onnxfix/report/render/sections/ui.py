"""What a result shows, as data: a page of sections, which hold paragraphs, lists, facts, tables and pictures.

Text in these records is raw: renderers escape it. A renderer leaves out what it cannot show, such as a chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

from onnxfix.place import Place
from onnxfix.report.neighborhood import Neighborhood

DASH = "–"


# ------------------------------------------------------------------------------------------------- inside a line


@dataclass(frozen=True)
class Chip:
    """A word or two on a colored ground. ``kind`` is "good", "warn", "bad", "note" or "none"."""

    kind: str
    text: str


NOT_REQUESTED = Chip("none", "not requested")
"""The result of a check that no run was asked for."""


@dataclass(frozen=True)
class Text:
    """A piece of a line. ``kind`` is "name" (of a node, value or file), "command" (to copy), "strong" or "small"."""

    text: str
    kind: str


@dataclass(frozen=True)
class Link:
    """The way to another part of the page."""

    text: str
    target: str


@dataclass(frozen=True)
class Mark:
    """The result of a check as a sign; ``text`` says it in words."""

    kind: str
    text: str


@dataclass(frozen=True)
class Delta:
    """The difference between two counts."""

    value: int


@dataclass(frozen=True)
class Shares:
    """Two thin bars, one above the other, as shares of the largest."""

    before: float
    after: float
    most: float


Inline = Chip | Text | Link | Mark | Delta | Shares
Content = Union[str, int, Inline, "Paragraph", "Fold", None, Sequence["Content"]]


# ---------------------------------------------------------------------------------------------------- charts


@dataclass(frozen=True)
class Bars:
    """A bar for each of ``(name, value)``; ``kinds`` are "bar" or "zero". ``label`` says in words what is shown."""

    bars: Sequence[tuple[str, float]]
    label: str
    kinds: Sequence[str]


@dataclass(frozen=True)
class PairBars:
    """Two bars for each of ``(name, truth, other side)``, to one scale."""

    bars: Sequence[tuple[str, float, float]]
    label: str


@dataclass(frozen=True)
class Point:
    """A node by its number: its own error, the error at its output, its name, and whether it is to blame."""

    node: int
    own: float | None
    whole: float | None
    name: str
    blamed: bool = False


@dataclass(frozen=True)
class Depths:
    """The errors of nodes in the order of computation; ``total`` counts the nodes of the model."""

    points: Sequence[Point]
    total: int
    label: str


@dataclass(frozen=True)
class Drawing:
    """The nodes around a finding or a fix (None: nothing of them is left)."""

    title: str
    nodes: Neighborhood | None
    label: str


# ---------------------------------------------------------------------------------------------------- blocks


@dataclass(frozen=True)
class Paragraph:
    """``kind`` is how it looks: "", "heading", "proof", "headline", "muted", "remark", "remedy" or
    "empty"."""

    content: Content
    kind: str = ""


@dataclass(frozen=True)
class Items:
    """A list."""

    entries: Sequence[Content]


@dataclass(frozen=True)
class Lines:
    """Lines as the command line shows them."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Facts:
    """Names with what they are."""

    pairs: Sequence[tuple[str, Content]]


@dataclass(frozen=True)
class Table:
    """``head`` names the columns; a name that begins with ``#`` heads a column of numbers, and one with ``|`` is set
    vertically. The first cell of a row names it, and the first ``totals`` rows are sums. ``kind`` is the style:
    "matrix", "index", "changes" or ""."""

    head: Sequence[str]
    rows: Sequence[Sequence[Content]]
    caption: str
    kind: str = ""
    totals: int = 0


@dataclass(frozen=True)
class Fold:
    """What a reader opens by a click. ``brief``: also shown in Markdown."""

    title: Content
    blocks: Sequence[Block]
    open: bool = False
    brief: bool = False


@dataclass(frozen=True)
class Cards:
    """Blocks side by side, each under its title."""

    cards: Sequence[tuple[Content, Sequence[Block]]]


@dataclass(frozen=True)
class Part:
    """A part of a section, set apart from the others by a line."""

    heading: Content
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Legend:
    """The marks of a picture, with what they mean. ``kind`` is the style of the mark."""

    marks: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Entry:
    """A finding or a fix: its place, what it says, in short what helps or how safe it is, and facts about it."""

    place: Place
    message: str
    remedy: str
    facts: Facts
    drawings: Sequence[Drawing] = ()


@dataclass(frozen=True)
class Group:
    """The findings, or the fixes, of one rule and severity."""

    chip: Chip
    code: str
    name: str
    severity: str
    entries: Sequence[Entry]
    open: bool = False


@dataclass(frozen=True)
class Groups:
    """Findings or fixes by rule. ``noun`` is what they are; ``filters`` are the severities that a reader may hide."""

    groups: Sequence[Group]
    noun: str
    filters: Sequence[tuple[str, str]] = ()


Block = (
    Paragraph
    | Items
    | Lines
    | Facts
    | Table
    | Fold
    | Cards
    | Part
    | Legend
    | Groups
    | Bars
    | PairBars
    | Depths
)


@dataclass(frozen=True)
class Section:
    """A part of a page. ``ident`` is its address; ``aside`` stands beside the title. ``brief``: also shown where there
    is little room, as in Markdown; ``folded`` there."""

    ident: str
    title: str
    blocks: Sequence[Block]
    aside: Content = None
    brief: bool = False
    folded: bool = True


@dataclass(frozen=True)
class Tile:
    """A figure that people look for."""

    value: Content
    name: str
    kind: str


@dataclass(frozen=True)
class Page:
    """A result: the model, what it was held against, what came of it, the figures that people look for, and sections.
    ``problems`` say why the result is incomplete."""

    path: str
    against: str
    outcome: Chip
    exit_code: int
    lead: Sequence[Paragraph] = ()
    tiles: Sequence[Tile] = ()
    problems: Sequence[Content] = ()
    sections: Sequence[Section] = ()


def seconds(number: float) -> str:
    """A duration."""
    return f"{number * 1000:.0f} ms" if number < 1 else f"{number:.1f} s"


def binary_size(number: float) -> str:
    """Bytes in the units of memory: ``812 bytes``, ``1.4 MiB``."""
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.2f} GiB"


def facts(pairs: Sequence[tuple[str, Content]]) -> Facts:
    """Facts without those that are empty."""
    return Facts(tuple((name, content) for name, content in pairs if content not in (None, "", (), [], 0)))


def name(text: str) -> Text | None:
    """The name of a node, a value or a file; None for "", which has none."""
    return Text(text, "name") if text else None


def command(text: str) -> Text:
    """A command to copy."""
    return Text(text, "command")


def strong(text: str) -> Text:
    """What stands out."""
    return Text(text, "strong")


def small(text: str) -> Text:
    """What stands back."""
    return Text(text, "small")
