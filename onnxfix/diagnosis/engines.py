"""TensorRT's engines as the other side: of the whole model, of it with inner tensors as outputs, and of parts."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.child import Reply
from onnxfix.diagnosis.graph import OWN, Graph, declared_types
from onnxfix.diagnosis.records import Culprit, Diagnosis
from onnxfix.diagnosis.sides import KERNELS, Prepared
from onnxfix.diagnosis.store import Held, hold
from onnxfix.files import tensors
from onnxfix.trt.layers import layers_by_node
from onnxfix.trt.records import Profile
from onnxfix.verification.rungs.builder import Builder
from onnxfix.verification.rungs.sessions import Sessions

_NAME = "diagnosis"
_HOST = ("bool", "int32", "int64")


class Engines:
    """Builds and executes engines for one sample.

    ``builder`` builds them, ``sessions`` execute them; ``feed`` are the sample's inputs, ``types`` the element types of
    inner tensors (numpy's names): TensorRT's parser takes no output without one."""

    def __init__(self, graph: Graph, builder: Builder, sessions: Sessions, bench: Bench) -> None:
        self.graph, self.builder, self.sessions, self.bench = graph, builder, sessions, bench
        self.feed: dict[str, Held] = {}
        self.types = declared_types(graph)
        self.builds = 0

    def whole(self, marks: Sequence[str]) -> Reply:
        """The model's outputs and those inner tensors on the sample, or why there are none."""
        model = ModelProto()
        model.CopyFrom(self.graph.proto)
        own = {info.name for info in model.graph.output}
        model.graph.output.extend(ValueInfoProto(name=name) for name in marks if name not in own)
        return self._run(model, self.feed)

    def part(self, model: ModelProto, feed: Mapping[str, Held]) -> Reply:
        """Run a part of the model on stored values; shapes and indices become constants."""
        baked = ModelProto()
        baked.CopyFrom(model)
        # A constant of 8 bits would be a quantized one for TensorRT.
        fixed = {name for name, held in feed.items() if held.is_shape and held.dtype in _HOST}
        kept = [info for info in baked.graph.input if info.name not in fixed]
        del baked.graph.input[:]
        for info in kept:
            held = feed.get(info.name)
            if held is not None and held.is_tensor:
                elem = helper.np_dtype_to_tensor_dtype(held.array_dtype)
                info = helper.make_tensor_value_info(info.name, elem, held.shape)
            baked.graph.input.append(info)
        for name in sorted(fixed):
            baked.graph.initializer.append(numpy_helper.from_array(feed[name].load(), name))
        return self._run(baked, {name: held for name, held in feed.items() if name not in fixed})

    def _run(self, model: ModelProto, feed: Mapping[str, Held]) -> Reply:
        self.builds += 1
        folder = self.bench.path()
        folder.mkdir()
        try:
            return self._built(model, feed, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _built(self, model: ModelProto, feed: Mapping[str, Held], folder: Path) -> Reply:
        path, engine = folder / "part.onnx", folder / "part.engine"
        declare(model, self.types)
        tensors.link_data(model, Path(self.graph.folder), folder)
        onnx.save(model, path)
        values = {name: held.load() for name, held in feed.items()}
        profiles = (Profile.of_feeds([values]),) if is_dynamic(model) else None
        build = self.builder.build(path, profiles, save_engine=str(engine))
        if not build.accepted:
            return Reply(error=f"{self.builder.product} builds no engine: {build.reason}", cause="refused")
        error = self.sessions.load(_NAME, str(engine))
        if error:
            return Reply(error=f"the engine does not load: {error}", cause=self.sessions.cause)
        ran = self.sessions.run(_NAME, values)
        if ran.error:
            return Reply(error=ran.error, cause=ran.cause)
        held = {name: hold(value, self.bench.path()) for name, value in ran.outputs.items()}
        return Reply(held, run_seconds=ran.seconds)


def prepared(engines: Engines, like: Prepared, precision: str, where: str) -> Prepared:
    """The engines as the other side. ``like`` is the same graph as the other side of ONNX Runtime. ``precision`` is
    what float32 products are computed in ("float32", "tf32", or ""), ``where`` the GPU, as text."""
    unit = 2.0**-11 if precision == "tf32" else 1e-7
    side = replace(like.side, unit=unit, runner=engines.part, kernels=KERNELS)
    name = f"engines of {engines.builder.product}, executed on {where}"
    return replace(like, side=side, name=name, tools={"engines": engines})


def is_dynamic(model: ModelProto) -> bool:
    """Whether an input has a size that is not declared, so that an engine needs a profile."""
    return any(
        not dim.HasField("dim_value") for info in model.graph.input for dim in info.type.tensor_type.shape.dim
    )


def declare(model: ModelProto, types: Mapping[str, str]) -> None:
    """Declare the element types of outputs that have none. Those of a part apart are known by their names before."""
    for info in model.graph.output:
        dtype = types.get(info.name) or types.get(info.name.partition(OWN)[2])
        if dtype and not info.type.HasField("tensor_type"):
            info.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(Held(dtype).array_dtype)


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
