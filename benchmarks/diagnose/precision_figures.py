"""Figures of a model in mixed precision, the same for every tool's result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxfix.files import loading
from onnxfix.lowering.bench import Bench, Failed
from onnxfix.lowering.lowered import ELEMENT, MOVES, is_heavy
from onnxfix.lowering.records import OutputError
from onnxfix.model import Model

_FLOATS = {1, *ELEMENT.values()}
_NOT_COMPUTING = MOVES | {"Cast", "Constant", "ConstantOfShape", "Shape", "Size"}


def shares(path: Path) -> dict[str, int]:
    """How many nodes compute (``nodes``) and are products (``heavy``), how many of them write half precision, and how
    many Casts there are."""
    loaded = loading.load(path)
    overlay = Model(loaded.proto, loaded.base_dir)
    found = dict.fromkeys(("nodes", "low", "heavy", "heavy_low", "casts"), 0)
    for node in overlay.main.nodes:
        found["casts"] += node.op_type == "Cast"
        kinds = {overlay.shapes.elem_type(value) for value in node.outputs if value is not None}
        if node.op_type in _NOT_COMPUTING or kinds.isdisjoint(_FLOATS):
            continue
        low = not kinds.isdisjoint(ELEMENT.values())
        found["nodes"] += 1
        found["low"] += low
        found["heavy"] += is_heavy(node.op_type)
        found["heavy_low"] += low and is_heavy(node.op_type)
    return found


def worst(errors: Sequence[OutputError]) -> dict[str, float]:
    """The largest error of the outputs, as a share of their scale, and the largest root mean square."""
    return {"error": max(one.error for one in errors), "rms": max(one.rms for one in errors)}


def on_cpu(original: Path, results: Mapping[str, Path], feeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By name of a result: its errors against the original in float32, with every tensor rounded as its type says."""
    found: dict[str, Any] = {}
    with Bench() as bench:
        bench.open(original, "fp16", feeds, len(feeds))
        for name, path in results.items():
            try:
                found[name] = worst(bench.result_errors(path, wide=True))
            except Failed as error:
                found[name] = {"reason": str(error)[:300]}
    return found
