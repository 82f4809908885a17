"""What is left to judge of models with nodes that only the TensorRT at hand lacks, and the target has.

Both models are cut at these nodes. What they compute becomes inputs, with the values that ONNX Runtime computes in the
original, and what nothing else reads of their inputs becomes outputs, so that all other nodes stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, ValueInfoProto, helper, numpy_helper

from onnxfix.errors import ModelError, UsageError
from onnxfix.files import loading, saving, tensors, walk
from onnxfix.files.saving import Whole
from onnxfix.graph.overlay import Node
from onnxfix.inputs.feeds.flow import CHOOSING
from onnxfix.inputs.feeds.profiles import given_profiles
from onnxfix.inputs.feeds.signature import signature
from onnxfix.model import Model
from onnxfix.proof.checks.builder import builder
from onnxfix.proof.checks.sessions import Oracle
from onnxfix.proof.checks.trials import Finder
from onnxfix.proof.compare.compare import compare, different
from onnxfix.proof.remote import less
from onnxfix.proof.request import Request, Trial
from onnxfix.proof.verdict import RungResult
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import one_line
from onnxfix.tensorrt.records import Part, TargetOnly, TrtBuild

_CHOICE = "which elements it chooses hangs on rounding"


@dataclass(frozen=True)
class Rest:
    """The rests of both models, or of the one model: what a request for them has otherwise, how much of each they are,
    and the values at the cuts."""

    changes: Mapping[str, Any]
    parts: tuple[Part, ...]
    cut: frozenset[str]
    notes: tuple[str, ...]

    def of(self, request: Request) -> Request:
        """The request of a check, for the rests."""
        return replace(request, **self.changes)

    def marked(self, result: RungResult) -> RungResult | None:
        """A check's result on the rests, which says so; None where it shows nothing about the models."""
        found = map(self.built, result.builds, self.parts[-len(result.builds) :])
        builds = tuple(one for one in found if one is not None)
        if not result.judged or len(builds) < len(result.builds):
            return None
        part = self.parts[-1]
        notes = (*result.notes, *self.notes)
        return replace(
            result, builds=builds, part=part, reason=f"in part, {part.words}: {result.reason}", notes=notes
        )

    def built(self, build: TrtBuild, part: Part | None = None) -> TrtBuild | None:
        """The build of a rest, which says so, without what is about its own inputs; None where it shows nothing about
        the model."""
        if not build.judged or build.stage == "profile":
            return None
        warnings = tuple(one for one in build.warnings if one.place.output not in self.cut)
        return replace(build, part=part or self.parts[-1], warnings=warnings, profiles=())


def make(request: Request, folder: Path, *, choices: bool = False) -> Rest | str:
    """The rests of the models, written to ``folder``, or why the models cannot be cut: "" where the fixed model has no
    node to cut or is to be built as a whole for the user. With ``choices``, nodes that choose elements are cut too, and
    what they choose from is compared.

    Raises:
        OnnxfixError: a file cannot be written.
    """
    found = builder(request.trt)
    if isinstance(found, Missing) or request.trt.save_engine or request.trt.batch_sweep:
        return ""

    def unjudged(name: str) -> str:
        return _CHOICE if choices and name in CHOOSING else found.lacks(name)

    with closing(found):
        names = {node.op_type for node in walk.model_nodes(request.known.model)}
        if any(map(unjudged, names)) and (not choices or names & CHOOSING.keys()):
            paths = dict.fromkeys((request.original, request.fixed))
            try:
                return _rest(request, folder, [_Cut(path, unjudged, fed_too=choices) for path in paths])
            except ModelError as error:
                return f"no part is judged: {one_line(error)}"
    return ""


def _rest(request: Request, folder: Path, models: Sequence[_Cut]) -> Rest | str:
    before, after = models[0], models[-1]
    inputs = [before.model.describe(value) for name, value in before.made.items() if name in before.read]
    names = [info.name for info in inputs]
    others = walk.defined(after.proto.graph) - after.made.keys()
    if after.made and (not others.isdisjoint(names) or not after.made.keys() & after.read <= {*names}):
        raise ModelError("the new model has other values at the cuts")
    if not after.made:
        return ""
    given, labels, trt = request.given, request.labels, request.trt
    ends, notes = before.fed.keys() & after.fed.keys(), []
    unlike = set(ends) if after is not before else set()
    if inputs or unlike:
        wholes = [one.write_whole(folder / f"whole {number}") for number, one in enumerate(models)]
        fed = trials = _find_trials(request, wholes[0], names)
        if after is not before:
            fed, unlike = _keep_alike(request, wholes[1], trials, after.made.keys() & after.read, ends)
        if not fed and inputs:
            words = "differ in the new model" if trials else "are unknown: ONNX Runtime does not compute them"
            raise ModelError(f"the values at the cuts {words}")
        unlike = unlike if fed else set(ends)
        if inputs and len(fed) < len(trials):
            left_out = f"{len(trials) - len(fed)} of {len(trials)} inputs are left out"
            notes.append(f"{left_out}: what is cut differs there")
    if inputs:
        given = [{**one.values, **{name: _outputs(one)[name] for name in names}} for one in fed]
        labels = tuple((one.label, one.feed, one.given) for one in fed)
        trt = replace(trt, min_shapes=(), opt_shapes=(), max_shapes=())
    outputs = [one.cut(inputs) for one in models]
    # Of each model its own: a type that only the fixed model has is none that the original is known to have.
    unknown = next((info.name for info in sum(outputs, inputs) if not _is_typed(info)), "")
    if unknown or not outputs[-1]:
        raise ModelError(f"the type of {unknown} is unknown" if unknown else "nothing is left")
    paths = list(map(_Cut.write, models, (folder / "original", folder / "fixed"), outputs))
    after_outputs = {info.name for info in outputs[-1]}
    shared = after_outputs & {info.name for info in outputs[0]} - unlike  # only these can be compared
    if alone := ", ".join(sorted(after_outputs - shared)):
        notes.append(f"engines are not compared in values that are not the same in both models: {alone}")
    del before.proto.graph.output[:]
    before.proto.graph.output.extend(info for info in outputs[0] if info.name in shared)
    changes = {
        "original": paths[0],
        "fixed": paths[-1],
        "known": replace(signature(before.proto), keep=before.loaded, pinned=request.known.pinned),
        "shapes": request.shapes if given is None else {},
        "given": given,
        "labels": labels,
        "trt": replace(trt, benchmark=False),
        "only": (),
    }
    cut = frozenset(name for one in models for name in (*one.made, *one.fed))
    return Rest(changes, tuple(one.part for one in models), cut, tuple(notes))


class _Cut:
    """A model file, to be cut at the nodes of which ``lacks`` says why TensorRT does not judge them; where they are in
    a branch or a loop, at the whole node of the main graph, but not for one that chooses: the rest would not show what
    else is in there. ``made`` are the values that the cut nodes compute, ``fed`` those that only they read (with
    ``fed_too`` all that they read), and ``read`` what the others read."""

    def __init__(self, path: Path, lacks: Callable[[str], str], *, fed_too: bool) -> None:
        self.loaded = loading.open_model(path)
        self.proto, self.folder = self.loaded.proto, path.parent
        self.model = model = Model(self.proto, path.parent)
        self.outputs = [*self.proto.graph.output]
        why = {name: lacks(name) for name in {one.op_type for one in model.nodes()}}

        def is_cut(one: Node | NodeProto) -> bool:
            return bool(why[one.op_type]) and (one.domain, one.op_type) not in model.function_names

        nodes = list(filter(is_cut, model.nodes()))
        issues = tuple(TargetOnly("parse", "error", why[one.op_type], one.at) for one in nodes)
        for one in nodes:
            if (one.scope if one.op_type in CHOOSING else one.scope.root) is not model.main:
                raise ModelError(f"{one.op_type} is inside of {one.at.graph[0]}")
        count, stored = model.node_count, self.proto.graph.node
        tops = [one for one in stored if any(map(is_cut, walk.nodes([one])))]
        self.part = Part(count - sum(1 for _ in walk.nodes(tops)), count, issues)
        self.made = {name: model.main.values[name] for one in tops for name in one.output if name}
        cut = self.made.keys()
        self.kept = [_void(one) if cut & set(one.output) else one for one in stored]
        self.read = {name for one in self.kept for name in walk.reads(one)}
        names = dict.fromkeys(name for one in tops for name in walk.captures(one))
        fed = {name: value for name in names if (value := model.main.values.get(name)) is not None}
        known = cut if fed_too else self.read | cut
        self.fed = {name: value for name, value in fed.items() if name not in known}

    def cut(self, inputs: Sequence[ValueInfoProto]) -> list[ValueInfoProto]:
        """Leave the rest, with these inputs too. Its outputs, which are to be written with it."""
        graph = self.proto.graph
        outputs = [info for info in self.outputs if info.name not in self.made]
        ends = [value for value in self.fed.values() if value.producer is not None and not value.is_output]
        outputs += map(self.model.describe, ends)
        del graph.node[:], graph.value_info[:]
        graph.node.extend(self.kept)
        graph.input.extend(inputs)
        return outputs

    def write_whole(self, folder: Path) -> Path:
        """Write the model with the values at the cuts as outputs besides."""
        there = {info.name for info in self.outputs}
        more = [value for value in (*self.made.values(), *self.fed.values()) if value.producer is not None]
        return self.write(
            folder, [*self.outputs, *(self.model.describe(one) for one in more if one.name not in there)]
        )

    def write(self, folder: Path, outputs: Sequence[ValueInfoProto]) -> Path:
        """Write the model with these outputs."""
        folder.mkdir()
        path, data, own = folder / "model.onnx", folder / "model.data", {}
        for name in tensors.external_files(self.proto):  # ONNX Runtime follows no links to them
            there = (self.folder / name).resolve()
            if not there.is_file() or not there.is_relative_to(self.folder.resolve()):
                raise ModelError(f"{there}: no data of this model")
            own[name] = Whole(there, there.stat().st_size)
        del self.proto.graph.output[:]
        self.proto.graph.output.extend(outputs)
        layout = saving.laid_out(self.proto, data.name, own)
        layout.write(path, data if layout.moved else None)
        return path


def _is_typed(info: ValueInfoProto) -> bool:
    kind = info.type.tensor_type
    return bool(kind.elem_type) and kind.HasField("shape")


def _void(node: NodeProto) -> NodeProto:
    """What stands for a cut node, so that the others keep their positions."""
    nothing, name = numpy_helper.from_array(np.zeros(1, np.float32)), next(filter(None, node.output))
    return helper.make_node("Constant", [], [f"{name} (not judged)"], value=nothing)


def _outputs(trial: Trial) -> Mapping[str, Any]:
    """What the original computes at the cuts and elsewhere."""
    return trial.expected.outputs if trial.expected is not None else {}


def _find_trials(request: Request, path: Path, names: Sequence[str]) -> list[Trial]:
    """Inputs of the original, with the values of these names, which the model file ``path`` has as outputs."""
    given = given_profiles(request.trt, request.known)
    trials: list[Trial] = []
    with Oracle(replace(request, original=path)) as oracle, suppress(UsageError):
        trials = Finder(request, oracle.run, given[0] if given else None).find()
    trials = [one for one in trials if all(isinstance(_outputs(one).get(name), np.ndarray) for name in names)]
    full = [one for one in trials if all(_outputs(one)[name].size for name in names)]
    return full or trials  # TensorRT builds for empty inputs, and no engine is run on them


def _keep_alike(
    request: Request, path: Path, trials: Sequence[Trial], made: Collection[str], ends: Collection[str]
) -> tuple[list[Trial], set[str]]:
    """Those for which the fixed model, in the file ``path``, computes the same at the cuts as the original does, and
    the ``ends`` in which it does not."""
    kept, unlike = [], set[str]()
    with Oracle(replace(request, original=path)) as oracle:
        for one in trials:
            ran = oracle.run(less(one.values, request.without))
            if ran is None or ran.error:
                continue
            differ = {name for name in {*made, *ends} if not _is_alike(_outputs(one), ran.outputs, name)}
            if differ.isdisjoint(made):
                kept.append(one)
                unlike |= differ & set(ends)
    return kept, unlike


def _is_alike(outputs: Mapping[str, Any], others: Mapping[str, Any], name: str) -> bool:
    """Whether both have the value, and it is the same up to rounding."""
    one, other = outputs.get(name), others.get(name)
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray) or one.dtype != other.dtype:
        return False
    return not different(compare(name, one, other, exact=False))
