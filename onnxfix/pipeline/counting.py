"""What a report counts of a model: its nodes by operator, and the bytes of its files."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from onnx import ModelProto

from onnxfix import walk
from onnxfix.files import loading
from onnxfix.report.report import NodeCounts

_ONNX = ("", "ai.onnx")


def node_counts(proto: ModelProto) -> NodeCounts:
    """The nodes of a model by operator, at any depth; Constant nodes apart."""
    counts = Counter((node.domain, node.op_type) for node in walk.model_nodes(proto))
    constants = sum(counts.pop((domain, "Constant"), 0) for domain in _ONNX)
    named: Counter[str] = Counter()
    for (domain, name), count in counts.items():
        named[name if domain in _ONNX else f"{domain}.{name}"] += count
    ordered = sorted(named.items(), key=lambda one: (-one[1], one[0]))
    return NodeCounts(dict(ordered), constants)


def bytes_read(loaded: loading.Loaded) -> int:
    """Bytes of the files of a model that was read, with external data."""
    return loaded.size + sum(bytes_of((loaded.base_dir or Path()) / name) for name in loaded.external)


def bytes_of(path: Path) -> int:
    """Bytes of a file; 0 where it is gone again, or not readable: a size is not worth an error."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
