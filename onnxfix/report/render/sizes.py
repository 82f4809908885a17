"""A range of sizes as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxfix.sizes.ranges import Range


def range_text(found: Range) -> str:
    """``from 512, in steps of 32``; ``any size``; ``the same as N``."""
    if found.least is None:
        return "no valid size is known"
    if found.tied:
        return f"the same as {found.tied[0]}" if found.always_same else f"depends on {', '.join(found.tied)}"
    if found.least == found.most:
        return f"{found.least} only"
    unbounded = found.least <= 1 and found.most is None and found.step == 1
    begin = "any size" if unbounded else f"from {found.least}"
    end = f" to {found.most}" if found.most is not None else ""
    steps = f", in steps of {found.step}" if found.step > 1 else ""
    return f"{begin}{end}{steps}"
