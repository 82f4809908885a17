"""Numbers and other small words as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

FEW = 3


def number(value: float | None) -> str:
    """Three significant digits; "-" for what was not measured."""
    if value is None:
        return "-"
    return f"{value:.3g}"


def bound(value: float) -> str:
    """Three significant digits, rounded up: what the value passes."""
    text = f"{value:.3g}"
    if float(text) < value:
        text = f"{value + 10.0 ** (math.floor(math.log10(value)) - 2) / 2:.3g}"
    return text


def share(value: float | None) -> str:
    """Two significant digits: errors are no more exact than that. "-" for what is not known."""
    return "-" if value is None or math.isnan(value) else f"{value:.2g}"


def cosine(value: float) -> str:
    """A cosine similarity; near 1 by what is lacking."""
    return f"1 - {1.0 - value:.2g}" if 0.999 < value < 1.0 else f"{value:.4g}"


def percent(value: float) -> str:
    """A share as a percentage. Only what is all is 100 %, and only what is none 0 %."""
    if 0.0 < value < 1.0:
        value = min(max(value, 0.001), 0.999)
    return f"{100 * value:.1f}".removesuffix(".0") + " %"


def counted(value: int, noun: str) -> str:
    """``1 node``, ``1,204 nodes``, ``2 fixes``."""
    ending = "" if value == 1 else "es" if noun.endswith("x") else "s"
    return f"{value:,} {noun}{ending}"


def size(value: int) -> str:
    """Bytes, in the decimal units of disks: ``812 bytes``, ``226 kB``, ``1.43 GB``."""
    if value < 1000:
        return counted(value, "byte")
    number, unit = float(value), ""
    for unit in ("kB", "MB", "GB", "TB"):
        number /= 1000
        if number < 999.5 or unit == "TB":
            break
    return f"{number:.3g} {unit}"


def places(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return f"{', '.join(names[:FEW])}{more}"


def seconds(value: float) -> str:
    """A duration."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
