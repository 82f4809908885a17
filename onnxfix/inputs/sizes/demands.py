"""Demands: conditions that operators require of the symbolic dimensions of their inputs.

A demand is necessary: if it does not hold, an operator fails. All demands together do not prove that a model runs:
dimensions may depend on data, and operators may be unknown.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from onnxfix.shapes.algebra.dim import Atom, text_of
from onnxfix.shapes.symbols import Dim, as_dim, equal, evaluate


class Kind(enum.StrEnum):
    """How the two sides of a demand are related."""

    AT_LEAST = "at least"
    EQUAL = "equal to"
    #: Equal, or one of them is 1.
    BROADCAST = "broadcast with"
    #: Equal, or the left side is 1.
    EXTENDS = "1 or equal to"
    MULTIPLE = "a multiple of"


class Term(NamedTuple):
    """A condition without its node: ``left`` is ``kind`` ``right``."""

    kind: Kind
    left: Dim
    right: Dim

    def gap(self, sizes: Mapping[str, int], memo: dict[Atom, int | None] | None = None) -> int | None:
        """The difference of the two sides when symbols have these sizes, the remainder for a multiple, and 0 if one
        side is a broadcast 1; None if a symbol has no size. ``memo`` goes to ``evaluate``."""
        left, right = evaluate(self.left, sizes, memo), evaluate(self.right, sizes, memo)
        return None if left is None or right is None else self._gap(left, right)

    def _gap(self, left: int, right: int) -> int:
        if self.kind is Kind.MULTIPLE:
            return left % right if right else 1
        extends = self.kind in (Kind.BROADCAST, Kind.EXTENDS) and left == 1
        return 0 if extends or (self.kind is Kind.BROADCAST and right == 1) else left - right

    def met(self, gap: int) -> bool:
        """Whether it holds with this difference."""
        return gap >= 0 if self.kind is Kind.AT_LEAST else gap == 0

    def holds(self, sizes: Mapping[str, int], memo: dict[Atom, int | None] | None = None) -> bool | None:
        """Whether it holds when symbols have these sizes; None if a symbol has no size."""
        gap = self.gap(sizes, memo)
        return None if gap is None else self.met(gap)

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols on either side."""
        return self.left.symbols | self.right.symbols

    @property
    def decided(self) -> bool | None:
        """True if it holds for all sizes, False if it holds for none; None if that depends on the sizes."""
        if self.left.value is not None and self.right.value is not None:
            return self.met(self._gap(self.left.value, self.right.value))
        if self.kind is Kind.AT_LEAST:
            low, high = (self.left - self.right).bounds
            return True if low >= 0 else False if high < 0 else None
        if self.kind is Kind.MULTIPLE:
            return True if self.right.value == 1 else None
        if self.kind in (Kind.BROADCAST, Kind.EXTENDS) and self.left.value == 1:
            return True
        if self.kind is Kind.BROADCAST and self.right.value == 1:
            return True
        equality = equal(self.left, self.right)
        if equality.yes:
            return True
        return False if equality.no and self.kind is Kind.EQUAL else None


@dataclass(frozen=True)
class Demand:
    """A condition on dimensions, with the place and operator of its node. ``about`` names the left side."""

    term: Term
    place: str
    op_type: str
    about: str

    def __str__(self) -> str:
        left, right = text_of(self.term.left), text_of(self.term.right)
        return f"{self.about} {left} must be {self.term.kind} {right}"


def at_least(left: Dim | int, right: Dim | int) -> Term:
    """``left >= right``."""
    return Term(Kind.AT_LEAST, as_dim(left), as_dim(right))


def same(left: Dim | int, right: Dim | int) -> Term:
    """``left == right``."""
    return Term(Kind.EQUAL, as_dim(left), as_dim(right))


def broadcast(left: Dim | int, right: Dim | int) -> Term:
    """``left == right``, or one of them is 1."""
    return Term(Kind.BROADCAST, as_dim(left), as_dim(right))


def extends(left: Dim | int, right: Dim | int) -> Term:
    """``left == right``, or ``left`` is 1."""
    return Term(Kind.EXTENDS, as_dim(left), as_dim(right))


def multiple(left: Dim | int, right: Dim | int) -> Term:
    """``right`` divides ``left``."""
    return Term(Kind.MULTIPLE, as_dim(left), as_dim(right))


def open_ones(demands: Iterable[Demand]) -> list[Demand]:
    """The demands that depend on sizes or never hold. Each condition is listed once, for its first node."""
    first_demands: dict[Term, Demand] = {}
    for demand in demands:
        if demand.term not in first_demands and demand.term.decided is not True:
            first_demands[demand.term] = demand
    return list(first_demands.values())
