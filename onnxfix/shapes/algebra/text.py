"""Symbolic integers as text, for messages and places of findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxfix.shapes.algebra.dim import Atom, Dim, Mono

TEXT_LIMIT = 400
"""Approximate maximum length of a text in characters; the rest is written as ``(...)``."""


def text_of(dim: Dim) -> str:
    """The polynomial as one would write it, positive terms first."""
    return _text(dim, [TEXT_LIMIT])


def text_of_atom(atom: Atom) -> str:
    """A symbol's name, or an opaque term with its arguments."""
    return _atom_text(atom, [TEXT_LIMIT])


def _text(dim: Dim, budget: list[int]) -> str:
    parts = sorted(
        ((_mono_text(m, budget), c) for m, c in dim.terms), key=lambda p: (p[1] < 0, not p[0], p[0])
    )
    text = ""
    for mono, factor in parts:
        size = mono if abs(factor) == 1 and mono else f"{abs(factor)}*{mono}" if mono else str(abs(factor))
        sign = "-" if factor < 0 else "+"
        text += f" {sign} {size}" if text else f"-{size}" if factor < 0 else size
    return text or "0"


def _mono_text(mono: Mono, budget: list[int]) -> str:
    return "*".join(_atom_text(atom, budget) for atom in mono)


def _atom_text(atom: Atom, budget: list[int]) -> str:
    if atom.op == "symbol":
        budget[0] -= len(atom.name)
        return atom.name
    budget[0] -= 8
    if budget[0] <= 0 or atom.op == "deep":
        return "(...)"
    args = [_text(arg, budget) for arg in atom.args]
    if atom.op == "floordiv":
        return "floor(" + " / ".join(f"({a})" if " " in a or "*" in a else a for a in args) + ")"
    if atom.op == "relu":
        return f"max(0, {args[0]})"
    return f"{atom.op}({', '.join(args)})"
