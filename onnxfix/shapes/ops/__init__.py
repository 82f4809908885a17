"""Transfer functions: from the descriptions of an operator's inputs to those of its outputs."""

from __future__ import annotations

from onnxfix.shapes.ops import (  # noqa: F401 - each fills TABLE by its decorators
    conv,
    elementwise,
    indexing,
    layout,
    linalg,
    nn,
    sequence,
)
from onnxfix.shapes.ops.base import ABSENT, TABLE, UNKNOWN, Call, Info, Unknown

__all__ = ["ABSENT", "TABLE", "UNKNOWN", "Call", "Info", "Unknown"]
