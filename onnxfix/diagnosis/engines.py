"""TensorRT's engines as the other side: of the whole model, possibly with more outputs, and of parts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.child import Kind, Reply, Values, kind_of
from onnxfix.diagnosis.distance import Distance, distance
from onnxfix.diagnosis.evidence import Collector
from onnxfix.diagnosis.graph import OWN, Graph, Region, declared_types
from onnxfix.diagnosis.lockstep import Lockstep, walk_alone
from onnxfix.diagnosis.marking import Bisection
from onnxfix.diagnosis.records import Diagnosis, Marking
from onnxfix.diagnosis.rows import FLOOR, Row, Side, Walk, fitting, is_beyond
from onnxfix.diagnosis.sides import KERNELS
from onnxfix.files import tensors, walk
from onnxfix.proof.checks import judge
from onnxfix.proof.checks.builder import Builder
from onnxfix.proof.checks.noise import Noise
from onnxfix.proof.checks.sessions import Sessions
from onnxfix.proof.compare.compare import different
from onnxfix.proof.compare.tolerance import TOLERANCES, tolerance_for
from onnxfix.proof.compare.twin import half_type
from onnxfix.proof.request import Trial
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.records import Profile

_NAME = "diagnosis"
_HOST = ("bool", "int32", "int64")


class Engines:
    """Builds and executes engines for one sample.

    ``builder`` builds them, ``sessions`` execute them; ``feed`` are the sample's inputs, ``types`` the element types of
    inner tensors (numpy's names): TensorRT's parser takes no output without one."""

    def __init__(self, graph: Graph, builder: Builder, sessions: Sessions, bench: Bench) -> None:
        self.graph, self.builder, self.sessions, self.bench = graph, builder, sessions, bench
        self.feed: dict[str, Any] = {}
        self.types = declared_types(graph)
        self.builds = 0

    def whole(self, marks: Sequence[str]) -> Reply:
        """The outputs and the inner tensors ``marks`` on the sample, or why there are none."""
        model = walk.copied(self.graph.proto)
        output_names = {info.name for info in model.graph.output}
        model.graph.output.extend(ValueInfoProto(name=name) for name in marks if name not in output_names)
        return self._run(model, self.feed)

    def part(self, model: ModelProto, feed: Values) -> Reply:
        """Run a part of the model on stored values; shapes and indices become constants."""
        baked = walk.copied(model)
        # TensorRT would treat a constant of 8 bits as quantized.
        kinds = {name: kind_of(value) for name, value in feed.items()}
        fixed = {name for name, kind in kinds.items() if kind.is_shape and kind.dtype in _HOST}
        kept = [info for info in baked.graph.input if info.name not in fixed]
        del baked.graph.input[:]
        for info in kept:
            kind = kinds.get(info.name, Kind())
            if kind.dtype:
                elem = helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype))
                info = helper.make_tensor_value_info(info.name, elem, kind.shape)
            baked.graph.input.append(info)
        for name in sorted(fixed):
            baked.graph.initializer.append(numpy_helper.from_array(feed[name], name))
        return self._run(baked, {name: value for name, value in feed.items() if name not in fixed})

    def _run(self, model: ModelProto, feed: Values) -> Reply:
        """Build an engine of a model, and execute it."""
        self.builds += 1
        declare(model, self.types)
        profiles = (Profile.of_feeds([feed]),) if is_dynamic(model) else None
        with tempfile.TemporaryDirectory(dir=self.bench.scratch, ignore_cleanup_errors=True) as scratch:
            path, engine = Path(scratch, "part.onnx"), Path(scratch, "part.engine")
            tensors.link_data(model, Path(self.graph.folder), path.parent)
            onnx.save(model, path)
            build = self.builder.build(path, profiles, save_engine=str(engine))
            if not build.accepted:
                return Reply(
                    error=f"{self.builder.product} builds no engine: {build.reason}", cause="refused"
                )
            error = self.sessions.load(_NAME, str(engine))
            if error:
                return Reply(error=f"the engine does not load: {error}", cause=self.sessions.last.cause)
            ran = self.sessions.run(_NAME, feed)
        if ran.error:
            return Reply(error=ran.error, cause=ran.cause)
        return Reply(dict(ran.outputs))


def prepared(engines: Engines, like: Side, precision: str, where: str) -> Side:
    """The engines as the other side. ``like`` is the same graph with ONNX Runtime as the other side.
    ``precision`` is the precision of float32 products ("float32", "tf32", or ""), and ``where`` names the
    GPU."""
    unit = 2.0**-11 if precision == "tf32" else 1e-7
    name = f"engines of {engines.builder.product}, executed on {where}"
    return replace(like, unit=unit, runner=engines.part, kernels=KERNELS, name=name, engines=engines)


def is_dynamic(model: ModelProto) -> bool:
    """Whether an input has a size that is not declared, so that an engine needs a profile."""
    return any(
        not dim.HasField("dim_value") for info in model.graph.input for dim in info.type.tensor_type.shape.dim
    )


def declare(model: ModelProto, types: Mapping[str, str]) -> None:
    """Declare the element types of outputs that have none. In a part, names may have a prefix."""
    for info in model.graph.output:
        dtype = types.get(info.name) or types.get(info.name.partition(OWN)[2])
        if dtype and not info.type.HasField("tensor_type"):
            info.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def with_layers(diagnosis: Diagnosis, engines: Engines, path: Path) -> Diagnosis:
    """The diagnosis with names of layers, instead of nodes, that compute each culprit.

    ``path`` is the model file of the engine, which is built for the last sample. If that fails, a note says
    so.
    """
    profiles = (Profile.of_feeds([engines.feed]),) if is_dynamic(engines.graph.proto) else None
    table, _ = engines.builder.layers(path, profiles)
    layers = {row.place.node or row.place.output: row.layers for row in table.nodes}
    if not any(layers.values()):
        why = table.build.reason or "the build's log names none"
        return replace(diagnosis, notes=(*diagnosis.notes, f"the engine's layers are not known: {why}"))
    culprits = []
    for culprit in diagnosis.culprits:
        names = dict.fromkeys(layer for node in culprit.error.nodes for layer in layers.get(node, ()))
        culprits.append(
            replace(culprit, error=replace(culprit.error, nodes=tuple(names))) if names else culprit
        )
    return replace(diagnosis, culprits=tuple(culprits))


GROWN = 8
"""Maximum number of preceding nodes that are measured with a node that builds no engine alone."""
_HALVES = ("bfloat16", "float16")


def is_off(kind: Kind, far: Distance, coarse: str = "") -> bool:
    """Whether an engine's tensor differs more than different kernels explain. ``coarse`` is a type of lower
    precision in which intermediate values are stored."""
    if far.special or far.shape:
        return True
    if kind.dtype not in TOLERANCES:
        return far.largest > 0
    tolerance = tolerance_for(kind.dtype, coarse)
    share = tolerance.rtol + tolerance.atol if coarse or kind.dtype in _HALVES else judge.ALIKE
    return far.largest > share * far.scale


class Execution:
    """Walks through samples with engines. ``markings`` are all builds with inner tensors as outputs.

    An engine fuses nodes, and marking inner tensors changes it. Therefore the engine of the whole model is
    compared by its outputs. If an output differs too much, bisection (:mod:`onnxfix.diagnosis.marking`)
    narrows the cause down to a few nodes. Each of them is measured in its own engine. If no node differs
    alone, one engine of all is measured.
    """

    def __init__(self, bench: Bench, truth: Graph, side: Side, say: Callable[[str], None]) -> None:
        self.bench, self.truth, self.side, self.say = bench, truth, side, say
        self.engines: Engines = side.engines
        self.markings: list[Marking] = []
        self.notes: list[str] = []
        self.walk = Walk()
        self.half = half_type(truth.proto)
        # TF32 keeps as many digits as half precision.
        self.coarse = self.half or ("float16" if side.unit > 1e-5 else "")

    def run(self, feed: Values, their_feed: Values) -> Walk:
        """Walk through one sample. ``their_feed`` has the inputs by the other side's names."""
        self.feed, self.their_feed = feed, their_feed
        self.collector = Collector(self.bench, self.truth, self.side, feed)
        self.say("running the truth")
        walk = self.walk = walk_alone(self.bench, self.truth, feed).walk
        if walk.failed or not walk.complete:
            return walk
        names = list(walk.truth)
        self.engines.feed = dict(their_feed)
        kinds = {name: walk.kinds[ours].dtype for name, ours in self.side.pairs.items() if ours in walk.kinds}
        self.engines.types = {**kinds, **self.engines.types}
        self.say("building the engine")
        plain = self.engines.whole(())
        if plain.error:
            walk.stopped = plain.error
            return walk
        walk.other = {self.side.pairs.get(name, name): value for name, value in plain.values.items()}
        walk.other = {name: walk.other[name] for name in names if name in walk.other}
        walk.off = tuple(self._wrong_outputs(walk))
        if walk.off:
            far = {name: distance(walk.truth[name], walk.other[name]) for name in walk.off}
            self._narrow(walk, max(far, key=lambda name: far[name].relative))
        return walk

    def _wrong_outputs(self, walk: Walk) -> list[str]:
        """The outputs that are wrong by the same judgment as in the check trt-gpu, on these inputs."""
        ours = {name: walk.truth[name] for name in walk.other}
        theirs = {name: fitting(value, walk.truth[name]) for name, value in walk.other.items()}
        terms = judge.Terms([*theirs], coarse=self.coarse)
        trial = Trial("", None, dict(self.feed), Ran(ours))
        trials, step = [trial] if self.truth.path is not None else [], self.bench.timeout
        path = self.truth.path or self.bench.scratch
        noise = Noise(self.bench.worker, path, trials, "ort-cpu", step=step, half=bool(self.half))
        judgment = noise.judge(terms, trial, None, Ran(theirs))
        wrong = [metric for result in judgment.results for metric in different(result.metrics)]
        return [] if judgment.finding == "agree" else list(dict.fromkeys(metric.output for metric in wrong))

    def _narrow(self, walk: Walk, wrong: str) -> None:
        pairs = self.side.pairs
        theirs = {ours: name for name, ours in pairs.items()}

        def values(names: Sequence[str]) -> Values:
            stored = self.collector.values([pairs[name] for name in names if name in pairs])
            return {name: stored[pairs[name]] for name in names if pairs.get(name) in stored}

        search = Bisection(
            self.side.graph,
            self.engines.whole,
            {theirs[name]: value for name, value in walk.other.items()},
            values,
            partial(is_off, coarse=self.coarse),
            {name: walk.kinds[ours] for name, ours in pairs.items() if ours in walk.kinds},
            self.say,
        )
        walk.left = tuple(search.run(theirs[wrong], walk.truth[wrong], lambda: self.bench.clock.over))
        self.markings += search.markings
        if search.reason:
            self.notes.append(f"the search for the first difference ended early: {search.reason}")
        self.say(f"measuring {len(walk.left)} nodes apart")
        self._measure_own(walk)
        for their_name, far in search.seen.items():
            name = pairs[their_name]
            row = walk.rows.get(name, Row(name, self.truth.producer[name]))
            walk.rows[name] = replace(row, whole=far)

    def _measure_own(self, walk: Walk) -> None:
        """Measure the own error of each node that is left, and of all together if no node differs alone."""
        lockstep = Lockstep(self.bench, self.truth, self.side)
        members, producer = set(walk.left), self.side.graph.producer
        regions = [
            region for region in lockstep.regions if any(producer[name] in members for name in region.targets)
        ]
        measured = self._measure(regions)
        walk.rows.update(measured.rows)
        for region in [
            region for region in regions if measured.refused.keys() & set(region.targets.values())
        ]:
            larger = self._with_producers(region, lockstep.regions)
            while larger is not None and len(larger.nodes) <= len(region.nodes) + GROWN:
                remeasured = self._measure([larger])
                if not remeasured.refused:
                    walk.rows.update(
                        (name, row) for name, row in remeasured.rows.items() if row.own is not None
                    )
                    for name in region.targets.values():
                        measured.refused.pop(name, None)
                    break
                larger = self._with_producers(larger, lockstep.regions)
        walk.refused.update(measured.refused)
        if any(is_beyond(row) for row in walk.rows.values()) or len(members) < 2:
            return
        together = self._joined_region(walk.left)
        if not together.targets:
            return
        rows = self._measure([together]).rows
        walk.rows.update({name: row for name, row in rows.items() if is_beyond(row)})
        self.notes.append("no node of those that are left differs alone: they were measured together")

    def _measure(self, regions: Sequence[Region]) -> Walk:
        """The own errors of the regions whose inputs and outputs have known values."""
        names = [(*region.inputs.values(), *region.targets.values()) for region in regions]
        wanted = dict.fromkeys(name for some in names for name in some if name not in self.feed)
        values = {**self.feed, **self.collector.values(list(wanted))}
        has_values = [all(name in values for name in some) for some in names]
        ready = [region for region, usable in zip(regions, has_values, strict=True) if usable]
        for region in ready:  # the truth's own walk does not tell outputs that nothing reads
            self.engines.types.update(
                (name, kind_of(values[ours]).dtype) for name, ours in region.targets.items()
            )
        walk = Lockstep(self.bench, self.truth, self.side).measure(ready, values, self.their_feed)
        for name, row in walk.rows.items() if self.half else ():
            if row.region is not None and len(row.region.nodes) > 1:
                walk.rows[name] = replace(row, kernels=max(row.kernels, FLOOR[self.half]))
        return walk

    def _with_producers(self, region: Region, regions: Sequence[Region]) -> Region | None:
        """The region, extended by the nodes that compute its inputs: TensorRT may accept these inputs only
        from them. None if no node computes them."""
        by_target = {name: member for member in regions for name in member.targets}
        producers = [by_target[name] for name in region.inputs if name in by_target]
        nodes = sorted({*region.nodes, *(number for member in producers for number in member.nodes)})
        outputs = {name for number in nodes for name in self.side.graph.nodes[number].output}
        inputs = {
            name: ours
            for member in (region, *producers)
            for name, ours in member.inputs.items()
            if name not in outputs
        }
        if not producers:
            return None
        return Region(tuple(nodes), region.targets, inputs, region.at)

    def _joined_region(self, numbers: Sequence[int]) -> Region:
        """All nodes of the window as one region."""
        graph, members, pairs = self.side.graph, set(numbers), self.side.pairs
        computed = {name for number in numbers for name in graph.nodes[number].output if name}
        read = {name for number in numbers for name in graph.reads[number]} - computed
        outside = {
            name for number, names in enumerate(graph.reads) if number not in members for name in names
        }
        wanted = [name for name in computed if name in outside or name in graph.outputs]
        targets = {name: pairs[name] for name in wanted if name in pairs}
        needed = [name for name in read if not graph.is_constant(name)]
        if any(name not in pairs for name in needed):
            targets = {}
        inputs = {name: pairs[name] for name in needed if name in pairs}
        at = max((self.truth.producer.get(name, -1) for name in targets.values()), default=-1)
        return Region(tuple(numbers), targets, inputs, at)
