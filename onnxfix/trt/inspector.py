"""TensorRT's engine inspector: the layers of an engine that can be loaded, which needs a GPU."""

from __future__ import annotations

import json
from typing import Any

from onnxfix.sandbox import one_line
from onnxfix.trt import messages
from onnxfix.trt.layer_records import EngineLayer, LayerTensor


def layers(trt: Any, log: Any, engine: Any) -> tuple[tuple[EngineLayer, ...], str]:
    """The layers of a serialized engine, and why they cannot be read ("" where they can)."""
    try:
        text = document(trt, log, engine)
        return layers_of(text), ""
    except Exception as error:  # whatever NVIDIA's bindings raise
        return (), one_line(error, 300)


def document(trt: Any, log: Any, engine: Any) -> str:
    """The inspector's JSON for a serialized engine.

    Raises:
        RuntimeError: the engine does not load here.
    """
    runtime = trt.Runtime(log)
    loaded = runtime.deserialize_cuda_engine(engine)
    if loaded is None:
        raise RuntimeError("the engine does not load on this machine")
    text: str = loaded.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    return text


def layers_of(text: str) -> tuple[EngineLayer, ...]:
    """The layers in the inspector's JSON. A layer is a name alone where the engine was built without details.

    Up to TensorRT 10 a tensor has one field for layout and type; later ones have two.

    Raises:
        ValueError: it is no such document.
    """
    document = json.loads(text)
    if not isinstance(document, dict) or not isinstance(document.get("Layers"), list):
        raise ValueError("the inspector's document has no list of layers")
    return messages.of_profiles([_layer(one) for one in document["Layers"]])


def _layer(entry: Any) -> EngineLayer:
    if not isinstance(entry, dict):
        return EngineLayer(str(entry), "")
    return EngineLayer(
        str(entry.get("Name", "")),
        str(entry.get("LayerType", "")),
        messages.kernel_in(str(entry.get("TacticName", ""))),
        str(entry.get("TacticValue", "")),
        _tensors(entry.get("Inputs")),
        _tensors(entry.get("Constants")),
        _tensors(entry.get("Outputs")),
        messages.stamps_in(str(entry.get("Metadata", ""))),
    )


def _tensors(entries: Any) -> tuple[LayerTensor, ...]:
    return tuple(_tensor(one) for one in entries or () if isinstance(one, dict))


def _tensor(entry: dict[str, Any]) -> LayerTensor:
    both = str(entry.get("Format/Datatype", ""))
    word = str(entry.get("Datatype", ""))
    return LayerTensor(
        str(entry.get("Name", "")),
        messages.dtype_of(word) if word else messages.type_in(both),
        tuple(int(size) for size in entry.get("Dimensions") or ()),
        str(entry.get("Format", "")) or both,
    )
