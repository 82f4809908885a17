"""Lines and rules in a notebook's cell: small, without a script, and legible on light and on dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from onnxfix.report.render.lines import Line
from onnxfix.report.render.stream import escaped

if TYPE_CHECKING:
    from onnxfix.rule import Rule

#: Colors that have a contrast of 3.9 and more on white and on #111.
_COLORS = {"red": "#d64545", "yellow": "#a8761a", "green": "#2f8f4e", "cyan": "#2586a8"}
_PRE = "margin:0; white-space:pre-wrap; overflow-wrap:anywhere; line-height:1.4"
_CELL = ' style="text-align:left; vertical-align:top"'


def lines_cell(lines: Iterable[Line]) -> str:
    """Lines of text as in a terminal."""
    text = "\n".join("".join(_piece(*part) for part in line.parts) for line in lines)
    return f'<pre style="{_PRE}">{text}</pre>'


def _piece(text: str, style: str) -> str:
    """Text in a style as rich names it."""
    shown = escape(escaped(text))
    rules = ["font-weight:600"] if "bold" in style else []
    rules += ["opacity:.7"] if "dim" in style else []
    rules += [f"color:{color}" for name, color in _COLORS.items() if name in style]
    return f'<span style="{"; ".join(rules)}">{shown}</span>' if rules else shown


def rules_cell(rules: Sequence[Rule]) -> str:
    """A table of rules."""
    rows: list[tuple[str, tuple[str, ...]]] = [("th", ("code", "name", "severity", "fix", "what it finds"))]
    for rule in rules:
        safety = rule.safety.name.lower() if rule.safety is not None else "–"
        off = "" if rule.default else " (off by default)"
        cells = (rule.code, rule.name, rule.severity.name.lower(), safety, f"{rule.summary}{off}")
        code, *rest = (escape(escaped(cell)) for cell in cells)
        rows.append(("td", (f"<code>{code}</code>", *rest)))
    head, *body = (
        f"<tr>{''.join(f'<{kind}{_CELL}>{cell}</{kind}>' for cell in cells)}</tr>" for kind, cells in rows
    )
    return f"<table><thead>{head}</thead><tbody>{''.join(body)}</tbody></table>"
