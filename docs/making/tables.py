"""Cells of Markdown tables."""

from __future__ import annotations


def cell(text: str) -> str:
    """A text in a cell of a table."""
    return text.replace("|", "\\|")


def code(text: str) -> str:
    """A text as code in a cell of a table."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{cell(text)}{fence}"
