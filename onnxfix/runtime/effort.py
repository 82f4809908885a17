"""How much a proof may cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnxfix.errors import UsageError

LEVELS = ("quick", "default", "thorough")


@dataclass(frozen=True)
class Effort:
    """What share of its work a check that runs models does. ``name`` is one of ``LEVELS``, or "" for ``seconds``.

    The price of a check is what it costs to load both models and to run each of them once. What it spends on more
    inputs is ``multiple`` times that, and at least ``floor`` seconds. So models that run fast get all of their inputs.
    With ``essential``, a second shape and the hardest values run whatever they cost; with
    ``whole``, nothing is left out.
    """

    name: str = "default"
    multiple: float = 1.5
    floor: float = 2.0
    whole: bool = False
    essential: bool = True

    def budget(self, price: float) -> float:
        """The seconds that all inputs after the first may take, if loading and the first run took ``price`` seconds."""
        return math.inf if self.whole else max(self.floor, self.multiple * price)

    def __str__(self) -> str:
        return self.name or f"{self.floor:g}"


DEFAULT = Effort()
QUICK = Effort("quick", 1.0, 0.25, essential=False)
THOROUGH = Effort("thorough", whole=True)
_NAMED = {one.name: one for one in (QUICK, DEFAULT, THOROUGH)}


def effort_of(given: str | float) -> Effort:
    """The effort of that name, or the one that spends so many seconds, as a number or as text.

    Raises:
        UsageError: there is none.
    """
    named = _NAMED.get(given) if isinstance(given, str) else None
    if named is not None:
        return named
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not (0 <= seconds < math.inf):
        raise UsageError(f"unknown effort {given!r}; choose from {', '.join(LEVELS)}, or a number of seconds")
    return Effort("", 0.0, seconds, essential=False)
