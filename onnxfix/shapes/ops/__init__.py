"""Transfer functions: from what is known of an operator's inputs to what is known of its outputs."""

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
"""Importing a family fills the table."""

__all__ = ["ABSENT", "FAMILIES", "TABLE", "UNKNOWN", "Call", "Info", "Unknown"]
