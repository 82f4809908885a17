"""How each kind of layer reads as ONNX nodes: one small function a kind, in one table.

A function takes the model being written and the layer, and returns the values of the layer's outputs, in order. What
it writes is what TensorRT documents for the layer, not what the ONNX node meant: comments name the source. A form that
is not known raises ``Unliftable``; nothing is guessed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from onnxfix.tensorrt.lift.emit import Emit
from onnxfix.tensorrt.lift.network import Layer, Unliftable

Lift = Callable[[Emit, Layer], "str | tuple[str, ...]"]
_TABLE: dict[str, Lift] = {}
_FAMILIES: tuple[str, ...] = ("arithmetic", "attention", "indexing", "moving", "quantized")
_FAMILIES += ("reductions", "resampling", "slicing", "spatial")


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


# -- layers that are known and not read back, with what a reader should know of each

#: A plugin's own names: of the core of the third generation, and of the second.
_NAMES = ("plugin_name", "plugin_type")


@lifts("PLUGIN", "PLUGIN_V2", "PLUGIN_V3")
def _plugin(e: Emit, layer: Layer) -> str:
    """The network contains a plugin's name and fields, not what it computes."""
    plugin = getattr(layer.native, "plugin", None)
    named = next((one for one in (plugin, _core(plugin)) if _name(one)), None)
    if named is None:
        raise Unliftable("a plugin without a name: compiled code, which cannot be read back")
    values = {word: str(getattr(named, f"plugin_{word}", "")) for word in ("version", "namespace")}
    known = ", ".join([_name(named), *(f"{word} {value}" for word, value in values.items() if value)])
    raise Unliftable(f"the plugin {known}: compiled code, which cannot be read back")


@lifts("DYNAMIC_QUANTIZE")
def _dynamic_quantize(e: Emit, layer: Layer) -> str:
    """Quantization with scales that are made from the data, block by block. TensorRT documents that there are such
    scales, not how it rounds them, nor what becomes of a block of zeros (operators/DynamicQuantize; NvInfer.h,
    IDynamicQuantizeLayer), and ONNX has no operator of which it could be the reading."""
    data, scale = layer.outputs[0].dtype, layer.outputs[1].dtype
    raise Unliftable(
        f"{data} with {scale} scales that are not constant: TensorRT does not document how it rounds the scales"
    )


_REASONS = {
    "MOE": "TensorRT does not document what its mixture of experts computes",
    "DIST_COLLECTIVE": "an exchange between GPUs, for which ONNX has no operator",
}


@lifts(*_REASONS)
def _unknown(e: Emit, layer: Layer) -> str:
    raise Unliftable(_REASONS[layer.kind])


def _name(plugin: Any) -> str:
    return next((str(getattr(plugin, word)) for word in _NAMES if getattr(plugin, word, "")), "")


def _core(plugin: Any) -> Any:
    """The part of a plugin of the third generation that knows its name; None for others."""
    ask = getattr(plugin, "get_capability_interface", None)
    kinds = getattr(sys.modules[type(plugin).__module__], "PluginCapabilityType", None)
    return None if ask is None or kinds is None else ask(kinds.CORE)
