"""Differences that are known: which entry of docs/hazards.md and which rule of onnxfix speak of them."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from misimports.child import Said
from misimports.measure import Row


@dataclass(frozen=True)
class Cause:
    """One way in which TensorRT reads a model differently.

    A row is of it where ``rule`` (the code of one of onnxfix's rules) speaks of the model, and ``operators``,
    ``changes`` (a regular expression for the change that the difference goes back to), ``model`` (one for its text)
    and ``what`` differs fit; empty ones fit all. ``hazard`` is an entry of docs/hazards.md, 0 for none. ``shows`` is a
    regular expression for the layers that give it away. ``alone``: ONNX Runtime or the evaluator shares the mistake, so
    that who is alone is right, by ONNX's text. ``mild``: a finding of severity info will do, where
    the rule cannot know.
    """

    title: str
    onnx: str
    tensorrt: str
    hazard: int = 0
    rule: str = ""
    operators: tuple[str, ...] = ()
    changes: str = ""
    model: str = ""
    what: tuple[str, ...] = ()
    shows: str = ""
    alone: bool = False
    mild: bool = False

    def fits(self, row: Row) -> bool:
        """Whether it is the cause of a row's difference."""
        found = row.found.judgment.difference
        return (
            (not self.operators or row.operator in self.operators)
            and (self.alone or row.differs)
            and re.search(self.changes, row.origin) is not None
            and re.search(self.model, row.found.text) is not None
            and (not self.what or (found is not None and found.what in self.what))
            and (not self.rule or any(self._is_said(one) for one in row.found.said))
        )

    def _is_said(self, one: Said) -> bool:
        return one.code == self.rule and (self.mild or one.severity != "info")


def _cause(fields: dict[str, Any]) -> Cause:
    return Cause(**{key: tuple(one) if isinstance(one, list) else one for key, one in fields.items()})


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
#: What a rule speaks of; what no rule speaks of yet; what was looked at by hand and is no fault of TensorRT's reading.
KNOWN, OPEN, EXCUSED = (tuple(map(_cause, _TABLE[kind])) for kind in ("known", "open", "excused"))
ALL = (*KNOWN, *OPEN, *EXCUSED)


def cause_of(row: Row) -> Cause | None:
    """The first cause that fits."""
    return next((one for one in ALL if one.fits(row)), None)
