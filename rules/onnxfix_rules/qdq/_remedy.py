"""Fixes for QuantizeLinear rules: the shift if it changes no value, else floats."""

from __future__ import annotations

from collections.abc import Iterable

from onnxfix.rule import Fix, Model, Node, Safety, Value

from ._common import Linear
from ._float import in_floats
from ._recentre import recentered
from ._region import Region, region_of

IN_FLOATS = "quantize in floats, which loses INT8 execution"


def remedies(region: Region, model: Model) -> Fix | None:
    """Shift to a signed type around 0 if no value can change, else write the same integers in floats."""
    if "" not in region.fixes:
        shifted = recentered(region, model)
        region.fixes[""] = (
            floats(region, model) if shifted is None else Fix(shifted.text, shifted.edits, shifted.safety)
        )
    return region.fixes[""]


def floats(region: Region, model: Model, title: str = IN_FLOATS) -> Fix | None:
    """The region in floats, None if that is not possible."""
    if title not in region.fixes:
        found = in_floats(region, model)
        region.fixes[title] = None if found is None else Fix(title, *found)
    return region.fixes[title]


def around(linear: Linear, model: Model) -> Region:
    """The region of a QuantizeLinear's output, or around a DequantizeLinear."""
    start: Iterable[Value | Node] = [linear.node]
    if linear.quantizes:
        start = [value for value in (linear.inner,) if value is not None]
    return region_of(start, model)


def lossless(fix: Fix | None) -> bool:
    """Whether the fix preserves all values except NaN and keeps quantized execution."""
    return fix is not None and fix.title != IN_FLOATS and fix.safety <= Safety.NUMERIC
