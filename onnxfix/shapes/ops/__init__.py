"""Transfer functions: from the descriptions of an operator's inputs to those of its outputs."""

from __future__ import annotations

from onnxfix.shapes.ops import (
    contrib,
    conv,
    elementwise,
    generate,
    indexing,
    layout,
    linalg,
    nn,
    reduce,
    reshape,
    sequence,
    spatial,
)
from onnxfix.shapes.ops.base import ABSENT, TABLE, UNKNOWN, Call, Info, Unknown

FAMILIES = (
    contrib,
    conv,
    elementwise,
    generate,
    indexing,
    layout,
    linalg,
    nn,
    reduce,
    reshape,
    sequence,
    spatial,
)
"""Transfer functions by operator, filled by the imports above."""

__all__ = ["ABSENT", "FAMILIES", "TABLE", "UNKNOWN", "Call", "Info", "Unknown"]
