"""Where ONNX's own (C++) shape inference hangs or crashes: malformed Einsum, SequenceMap.

Shapes here are never its own. onnx.checker and the backend run it, in a child process with these limits.
"""

from __future__ import annotations

from typing import Any

from onnx import NodeProto

from onnxfix.shapes.ops.base import Unknown
from onnxfix.shapes.ops.linalg import einsum_terms

TIMEOUT_S = 20.0
MEMORY_MB = 2048
SMALL_BYTES = 1024
"""Bytes of a tensor that inference may read, as it may be a shape."""
DANGEROUS = (b"SequenceMap", b"Einsum")
"""Names of the operators for ``dangerous``, as they occur in a model's bytes."""


def dangerous(node: NodeProto) -> bool:
    """Whether shape inference may hang or crash at this node."""
    if node.op_type == "SequenceMap":
        return True
    if node.op_type != "Einsum":
        return False
    equation: Any = next((a.s for a in node.attribute if a.name == "equation"), b"")
    try:
        einsum_terms(equation.decode("utf-8", "replace"))
    except Unknown:
        return True
    return False
