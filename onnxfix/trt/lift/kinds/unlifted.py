"""Layers that are known and not read back, with what a reader should know of each."""

from __future__ import annotations

import sys
from typing import Any

from onnxfix.trt.lift.emit import Emit
from onnxfix.trt.lift.kinds import lifts
from onnxfix.trt.lift.network import Layer, Unliftable

#: A plugin's own names: of the core of the third generation, and of the second.
_NAMES = ("plugin_name", "plugin_type")


@lifts("PLUGIN", "PLUGIN_V2", "PLUGIN_V3")
def _plugin(e: Emit, layer: Layer) -> str:
    """The network contains a plugin's name and fields, not what it computes."""
    plugin = getattr(layer.native, "plugin", None)
    named = next((one for one in (plugin, _core(plugin)) if _name(one)), None)
    if named is None:
        raise Unliftable("a plugin without a name: compiled code, which cannot be read back")
    version, namespace = (
        str(getattr(named, "plugin_version", "")),
        str(getattr(named, "plugin_namespace", "")),
    )
    known = [f"version {version}" if version else "", f"namespace {namespace}" if namespace else ""]
    named_plugin = ", ".join(filter(None, (_name(named), *known)))
    raise Unliftable(f"the plugin {named_plugin}: compiled code, which cannot be read back")


@lifts("DYNAMIC_QUANTIZE")
def _dynamic_quantize(e: Emit, layer: Layer) -> str:
    """Quantization with scales that are made from the data, block by block. TensorRT documents that there are such
    scales, not how it rounds them, nor what becomes of a block of zeros (operators/DynamicQuantize; NvInfer.h,
    IDynamicQuantizeLayer), and ONNX has no operator of which it could be the reading."""
    data, scale = layer.outputs[0].dtype, layer.outputs[1].dtype
    raise Unliftable(
        f"{data} with {scale} scales that are not constant: TensorRT does not document how it rounds the scales"
    )


@lifts("MOE")
def _mixture(e: Emit, layer: Layer) -> str:
    raise Unliftable("TensorRT does not document what its mixture of experts computes")


@lifts("DIST_COLLECTIVE")
def _collective(e: Emit, layer: Layer) -> str:
    raise Unliftable("an exchange between GPUs, for which ONNX has no operator")


def _name(plugin: Any) -> str:
    return next((str(getattr(plugin, word)) for word in _NAMES if getattr(plugin, word, "")), "")


def _core(plugin: Any) -> Any:
    """The part of a plugin of the third generation that knows its name; None for others."""
    ask = getattr(plugin, "get_capability_interface", None)
    kinds = getattr(sys.modules[type(plugin).__module__], "PluginCapabilityType", None)
    return None if ask is None or kinds is None else ask(kinds.CORE)
