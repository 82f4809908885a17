"""How far two values of an output are from each other: the figures that people ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxfix.diagnosis.records import OutputComparison


def compare_output(name: str, pairs: Sequence[tuple[Any, Any]], *, noise: float = 0.0) -> OutputComparison:
    """Compare an output over samples; each pair is the true value and that of the other side.

    Values are arrays, lists (sequences), dicts (maps) or None (an empty optional). ``noise`` is how far rounding alone
    moves the truth, in the output's unit.
    """
    raise NotImplementedError
