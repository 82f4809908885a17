"""What a result shows, as data: a page of sections, which hold paragraphs, lists, facts, tables and pictures.

Text in these records is raw: renderers escape it. A renderer leaves out what it cannot show, such as a chart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, Union

if TYPE_CHECKING:
    from onnxfix.diagnosis.records import DepthError
    from onnxfix.report.findings import AppliedFix, Finding, Picture

DASH = "–"
#: Where a terminal shows something; pages always have it.
Shown = Literal["always", "verbose", "never"]


@dataclass(frozen=True)
class Chip:
    """A word or two on a colored ground. ``kind`` is "good", "warn", "bad", "note" or "none"."""

    kind: str
    text: str


NOT_REQUESTED = Chip("none", "not requested")
"""The result of a check that no run was asked for."""


@dataclass(frozen=True)
class Text:
    """A piece of a line. ``kind`` is "name" (of a node, value or file), "command" (to copy), "strong", "small",
    "extra" (small, and not on a terminal), or for the difference of two counts "up", "down" or "even"."""

    text: str
    kind: str


@dataclass(frozen=True)
class Shares:
    """Two thin bars, one above the other, as shares of the largest."""

    before: float
    after: float
    most: float


Content = Union[str, int, Chip, Text, Shares, "Paragraph", "Fold", None, Sequence["Content"]]


@dataclass(frozen=True)
class Bars:
    """A bar for each of ``(name, value)``, the first one for 0 if it has that name; or of ``(name, truth, other side)``
    two bars, to one scale. ``label`` says in words what is shown."""

    bars: Sequence[tuple[str, *tuple[float, ...]]]
    label: str


@dataclass(frozen=True)
class Depths:
    """The errors of nodes in the order of computation; ``total`` counts the nodes of the model, and ``blamed`` are the
    outputs of those to blame."""

    points: Sequence[DepthError]
    total: int
    blamed: Collection[str]
    label: str


@dataclass(frozen=True)
class Paragraph:
    """``kind`` is how it looks: "", "heading", "proof", "headline", "muted", "remark", "remedy" or "empty"; a "written"
    one says what was written, also where a terminal shows little."""

    content: Content
    kind: str = ""


@dataclass(frozen=True)
class Items:
    """A list; on a terminal with a ``label`` before each entry. An entry that begins with a chip has that as label.
    ``most`` entries are shown on a terminal, which counts the others by ``noun``."""

    entries: Sequence[Content]
    label: str = ""
    most: int | None = None
    noun: str = "line"


@dataclass(frozen=True)
class Lines:
    """Lines as the command line shows them."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Facts:
    """Names with what they are. A terminal shows the first ``brief`` of them (None: all)."""

    pairs: Sequence[tuple[str, Content]]
    brief: int | None = None


@dataclass(frozen=True)
class Table:
    """``head`` names the columns; a name that begins with ``#`` heads a column of numbers. The first cell of a row
    names it, and the first ``totals`` rows are sums. ``kind`` is the style: "matrix", "changes" or "". ``most`` rows
    are shown on a terminal, which counts the others by ``noun``."""

    head: Sequence[str]
    rows: Sequence[Sequence[Content]]
    caption: str
    kind: str = ""
    totals: int = 0
    most: int | None = None
    noun: str = "row"


@dataclass(frozen=True)
class Fold:
    """What a reader opens by a click. ``brief``: also shown in Markdown. A terminal shows it, without its title, if it
    is verbose; where ``shown`` is "always", the title stands for it otherwise."""

    title: Content
    blocks: Sequence[Block]
    brief: bool = False
    shown: Shown = "verbose"


@dataclass(frozen=True)
class Part:
    """A part of a section under a heading, set apart from the others by a line."""

    heading: Content
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Cards:
    """Parts side by side. A terminal shows them if it is verbose, and of the ``worst`` always the first."""

    cards: Sequence[Part]
    worst: bool = False


@dataclass(frozen=True)
class Group:
    """The findings, or the fixes, of one rule and severity."""

    chip: Chip
    items: Sequence[Finding | AppliedFix]
    pictures: Sequence[Picture | None]

    @property
    def first(self) -> Finding | AppliedFix:
        """An item; all have its code, name and severity."""
        return self.items[0]


@dataclass(frozen=True)
class Groups:
    """Findings or fixes by rule. ``noun`` is what they are: "finding" or "fix"."""

    groups: Sequence[Group]
    noun: str


Chart = Bars | Depths
Block = Paragraph | Items | Lines | Facts | Table | Fold | Cards | Part | Groups | Chart


@dataclass(frozen=True)
class Section:
    """A part of a page. ``ident`` is its address; ``aside`` stands beside the title. ``brief``: also shown where there
    is little room, as in Markdown; ``folded`` there. ``shown`` says where a terminal shows it, under its title if it is
    ``titled`` there."""

    ident: str
    title: str
    blocks: Sequence[Block]
    aside: Content = None
    brief: bool = False
    folded: bool = True
    shown: Shown = "always"
    titled: bool = False


@dataclass(frozen=True)
class Tile:
    """A figure that people look for."""

    value: Content
    name: str
    kind: str


@dataclass(frozen=True)
class Page:
    """A result: the model, what it was held against, what came of it, the figures that people look for, and sections.
    ``problems`` say why the result is incomplete, ``answer`` whether it may be used."""

    path: str
    against: str
    outcome: Chip
    exit_code: int
    lead: Sequence[Paragraph] = ()
    tiles: Sequence[Tile] = ()
    problems: Sequence[Content] = ()
    sections: Sequence[Section] = ()
    answer: Facts | None = None


def facts(pairs: Sequence[tuple[str, Content]], brief: int | None = None) -> Facts:
    """Facts without those that are empty."""
    kept = [number for number, (_, content) in enumerate(pairs) if content not in (None, "", (), [], 0)]
    shown = None if brief is None else sum(number < brief for number in kept)
    return Facts([pairs[number] for number in kept], shown)


def listed(ident: str, title: str, entries: Sequence[Content], label: str = "") -> tuple[Section, ...]:
    """A section that is a list; none without entries."""
    blocks = (Items(entries, label),)
    return (Section(ident, title, blocks, brief=True, folded=False),) if entries else ()


def tabled(ident: str, title: str, table: Table, titled: bool = False) -> tuple[Section, ...]:
    """A section that is a table; none without rows."""
    return (Section(ident, title, (table,), brief=True, folded=False, titled=titled),) if table.rows else ()


def name(text: str) -> Text | None:
    """The name of a node, a value or a file; None for "", which has none."""
    return Text(text, "name") if text else None


command = partial(Text, kind="command")
strong = partial(Text, kind="strong")
small = partial(Text, kind="small")
extra = partial(Text, kind="extra")
