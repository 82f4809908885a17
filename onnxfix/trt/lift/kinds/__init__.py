"""How each kind of layer reads as ONNX nodes: one small function a kind, in one table.

A function takes the model being written and the layer, and returns the values of the layer's outputs, in order. What
it writes is what TensorRT documents for the layer, not what the ONNX node meant: comments name the source. A form that
is not known raises ``Unliftable``; nothing is guessed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from onnxfix.trt.lift.emit import Emit
from onnxfix.trt.lift.network import Layer

Lift = Callable[[Emit, Layer], "str | tuple[str, ...]"]
_TABLE: dict[str, Lift] = {}
_FAMILIES = (
    "arithmetic",
    "reductions",
    "moving",
    "slicing",
    "indexing",
    "spatial",
    "resampling",
    "boxes",
    "quantized",
    "attention",
    "normalization",
    "unlifted",
)


def lifts(*kinds: str) -> Callable[[Lift], Lift]:
    """Enter a function into the table, for these kinds of layers (TensorRT's LayerType by name)."""

    def enter(function: Lift) -> Lift:
        for kind in kinds:
            if kind in _TABLE:
                raise ValueError(f"{kind} has a function already")
            _TABLE[kind] = function
        return function

    return enter


def table() -> dict[str, Lift]:
    """Every kind that can be read back, with its function."""
    for family in _FAMILIES:
        importlib.import_module(f"{__name__}.{family}")
    return _TABLE
