"""What TensorRT made of each ONNX node: the layers of an engine, by node.

Three sources say it. The imported network has the parser's stamp of a node in each layer's metadata, and the element
types. The verbose log of a build with detailed profiling verbosity ends with all layers of the engine, each with the
stamps of the nodes that it computes; that needs no GPU. TensorRT's engine inspector says the same of an engine that can
be loaded, which needs a GPU.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from onnxfix.place import Place
from onnxfix.runtime.sandbox import Worker, note, one_line
from onnxfix.tensorrt import files, messages
from onnxfix.tensorrt.build import Run, failed
from onnxfix.tensorrt.files import Tactics
from onnxfix.tensorrt.log import BuildLog, text_of
from onnxfix.tensorrt.package import DEFAULT_CAPABILITY, load
from onnxfix.tensorrt.places import Places
from onnxfix.tensorrt.reading import (
    EngineLayer,
    Fate,
    ImportedLayer,
    LayerTable,
    LayerTensor,
    NodeLayers,
    Source,
)

_INSPECTING = "inspect"  # what the child does once it has built
#: Kinds of layers that have no kernel of several to choose from: control flow, and copies.
_PLAIN = ("shape_call", "cjmp", "jmp", "memset", "copy")


def attempt(
    worker: Worker,
    path: Path | str,
    *,
    package: str,
    compute_capability: str = DEFAULT_CAPABILITY,
    timeout: float = 300.0,
    inspect: bool = False,
    **how: Any,
) -> tuple[LayerTable, Tactics | None]:
    """Build the model file in a sandbox, and read what became of its nodes; the tactics that were chosen too.

    The arguments are those of ``trt.build.attempt`` and of ``read`` here. Where no engine was built, the table has the
    build alone.

    Raises:
        UsageError: the options do not fit the model or this TensorRT.
        OnnxfixError: a file cannot be written.
    """
    how |= {"path": str(path), "package": package, "compute_capability": compute_capability}
    outcome = worker.call(f"{__name__}:read", timeout=timeout, inspect=inspect, **how)
    reason = ""
    # It was built, and what has the log is worth a second build.
    if not outcome.ok and outcome.note == _INSPECTING:
        reason = f"TensorRT's inspector does not read the engine: {outcome.message}"
        outcome = worker.call(f"{__name__}:read", timeout=timeout, **how)
    if not outcome.ok:
        return LayerTable(failed(outcome, package, compute_capability)), None
    table, chosen = outcome.value
    return replace(table, unknown=tuple(filter(None, (reason, *table.unknown)))), chosen


def read(
    path: str,
    *,
    package: str,
    compute_capability: str = DEFAULT_CAPABILITY,
    tf32: bool = False,
    inspect: bool = False,
    edit: bool = False,
    given: Tactics | None = None,
    **how: Any,
) -> tuple[LayerTable, Tactics | None]:
    """Build an engine and read its layers. Call it in a sandbox.

    Args:
        path: the ONNX file; for this and what is not named here see ``trt.build.build``.
        inspect: also ask TensorRT's inspector, which loads the engine and needs a GPU.
        edit: record the tactics in an editable timing cache. ``given`` are tactics to use, from an earlier build.

    Raises:
        UsageError: also, this package has no editable timing cache, or does not take the tactics.
        Exception: as for ``trt.build.build``.
    """
    with messages.memory_errors():
        trt = load(package)
        editor = None
        if edit or given is not None:
            editor = files.Editor(trt, package, compute_capability, given)

        def prepare(config: Any) -> None:
            """Ask for all details of the engine, and listen; this begins anew for each configuration that is tried."""
            config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
            run.received.detail = BuildLog()
            if editor is not None:
                editor.attach(config)

        run = Run(trt, path, package, compute_capability, tf32, prepare)
        try:
            build = run.run(**how)
            log = run.received.detail or BuildLog()
        finally:
            run.received.detail = None
        nodes = imported(run.network)
        places = run.places
        if not build.accepted:
            complete = build.stage != "parse"
            return LayerTable(build, tuple(table(places, nodes, None, complete=complete))), None
        chosen = editor.collect(log.autotuning) if editor is not None else None
        (source, listed), unknown = _engine(run, log, inspect)
        layers = _stamped(listed, log.regions, nodes)
        rows = table(places, nodes, layers if source else None)
        return LayerTable(build, tuple(rows), layers, source, tuple(log.autotuning), unknown), chosen


def _engine(
    run: Run, log: BuildLog, inspect: bool
) -> tuple[tuple[Source, tuple[EngineLayer, ...]], tuple[str, ...]]:
    """The engine's layers with their source, and what is not known about them."""
    listed = log.layers or ()
    unknown = []
    if inspect:
        note(_INSPECTING)
        inspected, reason = _inspect(run.trt, run.log, run.engine)
        if reason:
            unknown.append(f"TensorRT's inspector does not read the engine: {reason}")
        elif not listed:
            return ("inspector", inspected), ()
        else:
            listed = _filled(listed, inspected)
    if not listed:
        unknown.append("the build's log does not list the engine's layers")
        return ("", ()), tuple(unknown)
    late = sum(not one.tactic and not one.tactic_id and one.kind not in _PLAIN for one in listed)
    if late:
        unknown.append(
            f"{late} of {len(listed)} layers have no tactic yet: it is chosen when the engine is loaded"
        )
    return ("log", listed), tuple(unknown)


def _filled(listed: Sequence[EngineLayer], inspected: Sequence[EngineLayer]) -> tuple[EngineLayer, ...]:
    """The layers of the log, with tactics that only the inspector knows."""
    known = {one.name: one for one in inspected}
    return tuple(
        replace(one, tactic=one.tactic or other.tactic, tactic_id=one.tactic_id or other.tactic_id)
        if (other := known.get(one.name)) is not None
        else one
        for one in listed
    )


def imported(network: Any) -> list[ImportedLayer]:
    """The layers of a network that the parser made for nodes, in order, without constants."""
    found = []
    for number in range(network.num_layers):
        layer = network.get_layer(number)
        stamps = messages.stamps_in(text_of(partial(getattr, layer, "metadata")))
        if stamps and layer.type.name != "CONSTANT":
            name = text_of(partial(getattr, layer, "name"))
            read_ = [layer.get_input(place) for place in range(layer.num_inputs)]
            written = [layer.get_output(place) for place in range(layer.num_outputs)]
            found.append(ImportedLayer(stamps[0], name, layer.type.name, _types(read_), _types(written)))
    return found


def _types(tensors: Iterable[Any]) -> tuple[str, ...]:
    """The element types of tensors, each once; a tensor that is omitted is None."""
    return tuple(dict.fromkeys(messages.dtype_of(one.dtype.name) for one in tensors if one is not None))


def _stamped(
    layers: Iterable[EngineLayer], regions: Mapping[str, tuple[str, ...]], nodes: Sequence[ImportedLayer]
) -> tuple[EngineLayer, ...]:
    """The layers, those without stamps with what their names say: the log of a region of many nodes, or the names of
    the network's layers of which they are made."""
    stamps = {one.name: one.stamp for one in nodes}
    found = []
    for layer in layers:
        said = layer.stamps or regions.get(layer.name, ())
        if not said and layer.kind != "Reformat":
            said = tuple(stamps[name] for name in messages.joined_in(layer.name, stamps))
        found.append(replace(layer, stamps=said))
    return tuple(found)


def _reformats(layer: EngineLayer) -> bool:
    """Whether a layer that TensorRT added writes the tensor that it reads in another layout or type. Before
    TensorRT-RTX 1.5, layouts are not logged: there, a copy counts as well."""
    if layer.stamps or layer.kind in _PLAIN or len(layer.inputs) != 1 or len(layer.outputs) != 1:
        return False
    (before,), (after,) = layer.inputs, layer.outputs
    same = (before.dtype, before.layout) == (after.dtype, after.layout)
    described = " " in before.layout and " " in after.layout
    return layer.kind == "Reformat" or (before.dims == after.dims and (not same or not described))


def table(
    places: Places,
    nodes: Iterable[ImportedLayer],
    layers: Sequence[EngineLayer] | None,
    *,
    complete: bool = True,
) -> list[NodeLayers]:
    """Every node of the model once, with what became of it. ``layers`` None: those of the engine are not known;
    ``complete`` False: the parser did not come to the end."""
    made: dict[Place, list[ImportedLayer]] = defaultdict(list)
    for one in nodes:
        for place in places.of_stamp(one.stamp):
            made[place].append(one)
    computed: dict[Place, list[EngineLayer]] = defaultdict(list)
    nodes_of: dict[str, tuple[Place, ...]] = {}
    for layer in layers or ():
        found = [place for stamp in layer.stamps for place in places.of_stamp(stamp)]
        nodes_of[layer.name] = tuple(dict.fromkeys(found))
        for place in nodes_of[layer.name]:
            computed[place].append(layer)
    added = [layer for layer in layers or () if _reformats(layer)]
    rows = []
    for place, holds_nodes in places.every_node():
        own, here = made[place], computed[place]
        fate: Fate = "engine" if here else "merged" if layers is not None else "unknown"
        if not own and not here:
            fate = "inside" if holds_nodes else "folded" if complete else "unknown"
        read = {tensor.name for layer in here for tensor in layer.inputs}
        written = {tensor.name for layer in here for tensor in layer.outputs}
        others = [other for layer in here for other in nodes_of[layer.name] if other != place]
        row = NodeLayers(
            place,
            fate,
            imported=tuple(one.kind for one in own),
            inputs=own[0].inputs if own else (),
            outputs=own[-1].outputs if own else (),
            layers=tuple(layer.name for layer in here),
            fused_with=tuple(dict.fromkeys(others)),
            tactics=tuple(dict.fromkeys(filter(None, (one.tactic or one.tactic_id for one in here)))),
            # Reformats that write what one of the layers reads, or read what one writes.
            reformats=tuple(
                dict.fromkeys(
                    one.name for one in added if one.outputs[0].name in read or one.inputs[0].name in written
                )
            ),
        )
        rows.append(row)
    return rows


def differing(first: LayerTable, second: LayerTable) -> tuple[Place, ...]:
    """The nodes for which two engines of one model have other layers: of another kind, with other tactics, fused with
    other nodes, or with other reformats around them."""
    ours, theirs = ({layer.name: layer.kind for layer in one.layers} for one in (first, second))
    other = {row.place: _choice(row, theirs) for row in second.nodes}
    return tuple(row.place for row in first.nodes if _choice(row, ours) != other.get(row.place))


def _choice(row: NodeLayers, kinds: Mapping[str, str]) -> tuple[object, ...]:
    """What a build chose for a node, given the kinds of layers by name. Names are left out: they count up."""
    return (
        row.fate,
        sorted(kinds.get(name, "") for name in row.layers),
        sorted(row.tactics),
        frozenset(row.fused_with),
        len(row.reformats),
    )


# -- TensorRT's engine inspector, which reads the layers of an engine that can be loaded


def _inspect(trt: Any, log: Any, engine: Any) -> tuple[tuple[EngineLayer, ...], str]:
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
    words = ("Name", "LayerType", "TacticName", "TacticValue", "Metadata")
    name, kind, tactic, identity, metadata = (str(entry.get(word, "")) for word in words)
    inputs, constants, outputs = (_tensors(entry.get(word)) for word in ("Inputs", "Constants", "Outputs"))
    tensors = inputs, constants, outputs
    return EngineLayer(
        name, kind, messages.kernel_in(tactic), identity, *tensors, messages.stamps_in(metadata)
    )


def _tensors(entries: Any) -> tuple[LayerTensor, ...]:
    found = []
    for entry in filter(lambda one: isinstance(one, dict), entries or ()):
        word, both = str(entry.get("Datatype", "")), str(entry.get("Format/Datatype", ""))
        dtype = messages.dtype_of(word) if word else messages.type_in(both)
        dims = tuple(int(size) for size in entry.get("Dimensions") or ())
        found.append(
            LayerTensor(str(entry.get("Name", "")), dtype, dims, str(entry.get("Format", "")) or both)
        )
    return tuple(found)
