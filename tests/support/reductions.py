"""Reducing a model, and running what that writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto

import onnxfix
from onnxfix.reduction.case import Reduction
from support.patience import PATIENCE

#: Names of operators stand in a model's file as they are.
COMMAND = (
    "grep -q Softmax {} && grep -q Erf {} && exit 7;"
    " grep -q Tanh {} && echo the tanh is wrong && exit 3;"
    " grep -q Sqrt {} && exit 4; exit 0"
)
"""Fails with 7 for a model with Softmax and Erf, with 3 for one with Tanh, and with 4 for one with Sqrt."""


def reduced(tmp_path: Path, model: ModelProto | Path, **options: Any) -> tuple[Reduction, ModelProto]:
    """Reduce a model; the result and the reduced model, which onnx.checker takes and whose folder reproduces it."""
    path = model if isinstance(model, Path) else tmp_path / "whole.onnx"
    if isinstance(model, ModelProto):
        onnx.save(model, path)
    folder = tmp_path / "out"
    found = onnxfix.reduce(path, folder, **options)
    assert found.status == "reduced", found.reason
    assert found.complete
    assert onnxfix.reproduce(folder) is not None
    return found, onnx.load(folder / "model.onnx")


def operators(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def fresh(folder: Path) -> int:
    """Exit code of the folder's program in a process of its own."""
    done = subprocess.run([sys.executable, folder / "reproduce.py"], timeout=PATIENCE, cwd=folder.parent)
    return done.returncode
