"""Which of the engine's layers computed the culprits: from one more build, with a detailed log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from onnxfix.diagnosis.engines import Engines, is_dynamic
from onnxfix.diagnosis.records import Culprit, Diagnosis
from onnxfix.trt.layers import layers_by_node
from onnxfix.trt.records import Profile


def with_layers(found: Diagnosis, engines: Engines, path: Path) -> Diagnosis:
    """The diagnosis with the names of the layers that compute each culprit, in place of those of the nodes.

    ``path`` is the model file of the engine; it is built for the last sample. A note says where that fails.
    """
    feed = {name: held.load() for name, held in engines.feed.items()}
    profiles = (Profile.of_feeds([feed]),) if is_dynamic(engines.graph.proto) else None
    table, _ = engines.builder.layers(path, profiles)
    layers = {place.node or place.output: names for place, names in layers_by_node(table).items()}
    if not any(layers.values()):
        why = table.build.reason or "the build's log names none"
        return replace(found, notes=(*found.notes, f"the engine's layers are not known: {why}"))
    return replace(found, culprits=tuple(_named(one, layers) for one in found.culprits))


def _named(culprit: Culprit, layers: Mapping[str, tuple[str, ...]]) -> Culprit:
    names = dict.fromkeys(layer for node in culprit.error.nodes for layer in layers.get(node, ()))
    return replace(culprit, error=replace(culprit.error, nodes=tuple(names))) if names else culprit
