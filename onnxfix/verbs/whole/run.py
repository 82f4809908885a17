"""The whole-model steps of a run: each is judged on its own before the rules see its result.

The specialization, which makes symbols numbers and inputs constants, is one: it changes declarations and the readers of
a fixed input; folding the rest is for the rules. Weights are not read: the model keeps their stand-ins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TensorShapeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from onnxfix._version import __version__
from onnxfix.errors import UsageError
from onnxfix.files import lazy, loading, saving, tensors, walk
from onnxfix.graph.overlay import Value
from onnxfix.inputs.feeds.signature import signature
from onnxfix.inputs.specialize import ResolvedSpecialization, shown
from onnxfix.model import Model
from onnxfix.proof.verdict import CPU_RUNGS
from onnxfix.proof.verify import DEFAULT_RUNGS, Verdict
from onnxfix.report.report import Fixed, StepDone
from onnxfix.rule import Safety
from onnxfix.shapes import dimnames
from onnxfix.verbs.candidate import Candidate
from onnxfix.verbs.contract import find_tensor_type
from onnxfix.verbs.job import Job
from onnxfix.verbs.proof import Comparison, explain_unjudged, is_refuted, reason_of, run_checks
from onnxfix.verbs.whole.steps import Made, Step, make

_IR_WITH_CONSTANTS = 4
"""The IR version since which an initializer need not be a graph input."""


def specialize(proto: ModelProto, special: ResolvedSpecialization, base_dir: Path | None = None) -> None:
    """Apply ``special`` to ``proto``, in place.

    Raises:
        ModelError: the model makes no sense as a graph.
    """
    model = Model(proto, base_dir)
    for info in [*proto.graph.input]:
        if info.name in special.values:
            _fix_input(model, info, special.values[info.name], special.keep)
    inputs = {info.name for info in proto.graph.input}
    for graph in walk.graphs(proto.graph):  # in local functions, names of dimensions are their own
        for info in (*graph.input, *graph.output, *graph.value_info):
            of_main = graph is proto.graph and info.name in inputs
            tensor = find_tensor_type(info.type)
            if tensor is not None:
                _size_dims(tensor, info.name if of_main else "", special.sizes)


def declare_outputs(proto: ModelProto, base_dir: Path | None = None) -> dict[str, tuple[int | None, ...]]:
    """Declare the sizes that follow for open dimensions of the outputs of a specialized model. Returns them by output.

    Declarations of inner values are ignored: tools leave the sizes there that they traced the model with.

    Raises:
        ModelError: the model makes no sense as a graph.
    """
    found: dict[str, tuple[int | None, ...]] = {}
    infos = [info for info in proto.graph.output if any(map(_is_open, info.type.tensor_type.shape.dim))]
    if not infos:
        return found
    declared = [(graph, [*graph.value_info]) for graph in walk.graphs(proto.graph)]
    for graph, _ in declared:
        del graph.value_info[:]
    model = Model(proto, base_dir)
    for info in infos:
        dims, shape = info.type.tensor_type.shape.dim, model.shapes.shape(model.main.values[info.name])
        if shape is None or len(shape) != len(dims):
            continue
        sizes = [one.value if _is_open(dim) else None for dim, one in zip(dims, shape, strict=True)]
        found[info.name] = tuple(size if size is not None and size >= 0 else None for size in sizes)
    for graph, infos_inside in declared:
        graph.value_info.extend(infos_inside)
    for info in infos:
        for dim, size in zip(info.type.tensor_type.shape.dim, found.get(info.name, ()), strict=False):
            if size is not None:
                dim.dim_value = size
    return found


def _is_open(dim: TensorShapeProto.Dimension) -> bool:
    return not dim.HasField("dim_value") or dim.dim_value < 0


def _size_dims(kind: Any, name: str, sizes: Mapping[str, int]) -> None:
    """Put numbers for symbols into a tensor type. ``name`` is the graph input that it belongs to, "" for others:
    only a graph input's unnamed dimensions have names."""
    if not kind.HasField("shape"):
        rank = sizes.get(f"{name}.rank") if name else None
        if rank is None:
            return
        kind.shape.SetInParent()
        for _ in range(rank):
            kind.shape.dim.add()
    for axis, dim in enumerate(kind.shape.dim):
        if dimnames.own(dim.dim_param):
            found = dimnames.replace(dim.dim_param, sizes)
        elif name and (not dim.HasField("dim_value") or dim.dim_value < 0):
            found = sizes.get(f"{name}.{axis}", "")
        else:
            continue
        if isinstance(found, int):
            dim.dim_value = found
        elif found:
            dim.dim_param = found


def _fix_input(model: Model, info: ValueInfoProto, array: np.ndarray[Any, Any], keep: bool) -> None:
    """Make all readers of an input read a constant instead."""
    graph, value = model.proto.graph, model.main.values[info.name]
    apart = keep or value.is_output
    name, number = f"{info.name}_fixed" if apart else info.name, 1
    while apart and name in model.names:
        number += 1
        name = f"{info.name}_fixed_{number}"
    model.names.add(name)
    if info.type.tensor_type.elem_type == TensorProto.STRING:
        texts = [str(text).encode() for text in array.reshape(-1)]
        tensor = TensorProto(name=name, data_type=TensorProto.STRING, dims=array.shape, string_data=texts)
    else:
        tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
    if not keep:  # else the input keeps them
        tensor.doc_string = info.doc_string
        for entry in getattr(info, "metadata_props", ()):
            if hasattr(tensor, "metadata_props"):
                tensor.metadata_props.add().CopyFrom(entry)
    if keep:
        _redirect(model, value, name)
    else:
        graph.input.remove(info)
        for default in [one for one in graph.initializer if one.name == info.name]:
            graph.initializer.remove(default)
        for sparse in [one for one in graph.sparse_initializer if one.values.name == info.name]:
            graph.sparse_initializer.remove(sparse)
        if apart:
            graph.node.insert(0, helper.make_node("Identity", [name], [info.name]))
    if model.ir_version < _IR_WITH_CONSTANTS:
        attribute = helper.make_attribute("value", tensor)
        graph.node.insert(0, NodeProto(op_type="Constant", output=[name], attribute=[attribute]))
    else:
        graph.initializer.append(tensor)


def _redirect(model: Model, value: Value, name: str) -> None:
    """Make the nodes that read ``value``, and the branches that return it, name another value."""
    for use in value.uses:
        use.node.proto.input[use.index] = name
    for scope in model.main.walk():
        if isinstance(scope.proto, GraphProto) and scope is not model.main:
            for info, result in zip(scope.proto.output, scope.outputs, strict=True):
                if result is value:
                    info.name = name


@dataclass(frozen=True)
class _Taken:
    """A step and the model after it. ``proven``: it computes the same as the model before, within tolerance."""

    index: int
    after: loading.Loaded
    proven: bool


class StepRun:
    """The steps of one run.

    ``base`` is the model after them, from which the rules start; ``against`` the one that the run's result is
    compared with: the original, or what an UNSAFE step made of it. ``candidate`` has temporary files beside which
    external data are found. The steps see the model as the job specializes it; their results are still compared with
    the ``original``, never with the specialized model.
    """

    def __init__(self, job: Job, original: Path, candidate: Candidate) -> None:
        self.job, self.original, self.candidate = job, original, candidate
        self.unsafe = job.plan.safety == Safety.UNSAFE
        verification = job.comparison.verification
        rungs = DEFAULT_RUNGS if verification.rungs is None else verification.rungs
        # Required checks judge the result at the end; for a step, those of the CPU are enough.
        verification = replace(verification, require=(), rungs=tuple(r for r in rungs if r in CPU_RUNGS))
        self._comparison = replace(job.comparison, verification=verification)
        self.special, self.start = job.comparison.special, job.loaded
        self._first_done: tuple[StepDone, ...] = ()
        if self.special is not None:
            self._first_done = (self._specialize(self.special),)
        self._dropped: dict[int, str] = {}
        self.run()

    def _specialize(self, special: ResolvedSpecialization) -> StepDone:
        """Specialize the model that the steps start from, and find the sizes of outputs that follow. Weights stay where
        they are."""
        began, loaded = time.perf_counter(), self.job.loaded
        self.job.plan.say("specializing")
        proto = loaded.fresh()
        specialize(proto, special, loaded.base_dir)
        outputs = declare_outputs(proto, loaded.base_dir)
        self.special = replace(special, outputs=outputs)
        self.start = loading.Loaded(proto, proto.SerializeToString(deterministic=True), loaded.path)
        dims = [Fixed("dimension", name, str(size)) for name, size in special.sizes.items()]
        inputs = [
            Fixed("input", name, shown(value), value.dtype.name, tuple(value.shape), special.keep)
            for name, value in special.values.items()
        ]
        return StepDone(
            name="specialize",
            tool=f"onnxfix {__version__}",
            status="taken",
            reason=f"fixed: {self.special.words}",
            safety="unsafe",
            nodes_before=_count(loaded.proto, loaded),
            nodes_after=_count(proto, loaded),
            fixed=(*dims, *inputs),
            seconds=time.perf_counter() - began,
        )

    def run(self) -> None:
        """Run the steps, except those that were dropped before."""
        self.base, self.against = self.start, self.job.loaded
        self.against_path = self.original
        self._taken: list[_Taken] = []
        self.done = self._first_done
        for index, step in enumerate(self.job.steps):
            began = time.perf_counter()
            nodes = _count(self.base.proto, self.base)
            if index in self._dropped:
                done = StepDone(step.name, step.tool, "dropped", self._dropped[index])
            else:
                self.job.plan.say(f"running {step.package}")
                done = self._take(index, step)
            done = replace(
                done,
                nodes_before=nodes,
                nodes_after=_count(self.base.proto, self.base),
                seconds=time.perf_counter() - began,
            )
            self.done += (done,)

    @property
    def changed(self) -> bool:
        """Whether the rules start from another model than the original."""
        return self.base is not self.job.loaded

    @property
    def bitwise(self) -> bool:
        """Whether ``base`` must compute the same bits as ``against``."""
        if self.base is self.against:
            return True
        return self.proven and self.base is self.start and self.special is not None and self.special.exact

    def compared(self, comparison: Comparison) -> Comparison:
        """How to compare a model with ``against``, which is specialized already where a step made it."""
        return replace(comparison, special=self.special if self.proven else None)

    @property
    def proven(self) -> bool:
        """Whether ``base`` has to compute the same as the original."""
        return self.against is self.job.loaded

    def blame(self, refutes: Callable[[ModelProto], bool], reason: str) -> bool:
        """Drop the first step whose result ``refutes``, and run the others again; False where there is none."""
        for taken in self._taken:
            if taken.proven and refutes(taken.after.proto):
                self._dropped[taken.index] = reason
                self.run()
                return True
        return False

    def _take(self, index: int, step: Step) -> StepDone:
        """Run one step; ``base`` is its result if that can stand."""
        random = []
        if self._comparison.verification.enabled and (drawn := signature(self.against.proto).drawn):
            # A tool that folds or merges random draws would go unnoticed.
            random = [f"random operators decide {', '.join(drawn)}, which can therefore not be compared"]
        if random and step.script is None:  # no result of it could be proven
            return StepDone(step.name, step.tool, "dropped", "; ".join(random))
        source = self.original
        if self.changed:
            self.base.copy_to(self.candidate.scratch)
            source = self.candidate.scratch.path
        made = self._make(step, source)
        dropped = StepDone(step.name, step.tool, "dropped", made.refused)
        if made.proto is None:
            return dropped
        data = saving.serialize(made.proto)
        if data == saving.serialize(self.base.proto):
            return replace(dropped, status="taken", reason="it changes nothing", safety="exact")
        if step.script is None and _count(made.proto, self.base) >= _count(self.base.proto, self.base):
            # It renames shared constants, for instance; with that, every run would differ from the last.
            return replace(dropped, status="taken", reason="it removes no node", safety="exact")
        may_change = self.unsafe and step.script is not None
        why = [*made.broken, *random]
        if why and not may_change:
            return replace(dropped, reason="; ".join(why))
        saving.write(data, self.candidate.scratch)
        verdict = self._judge(made)
        if made.broken and not is_refuted(verdict):
            why.append(_values(verdict) or "values were not compared")
        if not verdict.passed:
            unjudged = explain_unjudged(verdict) or "no check could run it"
            why.append(reason_of(verdict) or f"not proven: {unjudged}")
        after = loading.Loaded(made.proto, data, self.job.loaded.path)
        if not why:
            self._taken.append(_Taken(index, after, True))
            self.base = after
            proof = _values(verdict) or "the interface is unchanged; no values were compared"
            return replace(dropped, status="taken", reason=proof, safety="numeric")
        contract = verdict.rung("contract")
        if not may_change or (contract is not None and contract.refutes):
            return replace(dropped, reason="; ".join(why))
        self._taken = [replace(taken, proven=False) for taken in self._taken] + [_Taken(index, after, False)]
        self.base = self.against = after
        against = self.candidate.spare()
        saving.write(data, against)
        self.against_path = against.path
        return replace(dropped, status="taken", reason="; ".join(why), safety="unsafe")

    def _make(self, step: Step, source: Path) -> Made:
        """What the step makes of ``source``.

        Raises:
            UsageError: a script is at fault, or overwrites the original, which its result is compared with.
        """
        external = tensors.external_files(self.job.loaded.proto)
        files = [self.original, *(self.original.parent / name for name in external)]
        before = [lazy.stamp(file) for file in files]
        special = self.compared(self._comparison).special
        made = make(step, source, self.base.proto, self.against.proto, special)
        for file, stamp in zip(files, before, strict=True):
            if step.script is not None and lazy.stamp(file) != stamp:
                raise UsageError(f"{step.script}: the script changed {file}; it may change only the graph")
        return made

    def _judge(self, made: Made) -> Verdict:
        """The verdict of the CPU's checks; where inputs or outputs changed, of the contract alone."""
        assert made.proto is not None
        comparison = self.compared(self._comparison)
        # The specialized interface itself was checked when the step ran.
        old = self.against.proto.graph if comparison.special is None else self.start.proto.graph
        new = made.proto.graph
        if (old.input, old.output) != (new.input, new.output):
            verification = replace(comparison.verification, rungs=("contract",))
            comparison = replace(comparison, verification=verification)
        return run_checks(
            self.against_path,
            self.candidate.scratch.path,
            self.against.proto,
            made.proto,
            comparison,
            exact=False,
            interface=not made.broken,
        )


def _count(proto: ModelProto, near: loading.Loaded) -> int:
    return Model(proto, near.base_dir).node_count


def _values(verdict: Verdict) -> str:
    """The reasons of the checks that compared values and passed."""
    ran = [rung for rung in verdict.rungs if rung.status == "passed" and rung.compares]
    return "; ".join(f"{rung.name}: {rung.reason}" for rung in ran)


def after_unsafe(verdict: Verdict, steps: StepRun) -> Verdict:
    """The verdict on a model whose interface or values an UNSAFE step changed: each check says what it compared."""
    names = " and ".join(done.name for done in steps.done if done.safety == "unsafe" and not done.fixed)
    rungs = []
    for rung in verdict.rungs:
        if rung.name == "contract" and rung.status == "passed":
            rung = replace(rung, reason=f"as {names} (UNSAFE) left it: {rung.reason}")
        elif rung.name not in ("trt-build", "trt-network") and rung.judged:
            rung = replace(rung, reason=f"against the model after {names} (UNSAFE): {rung.reason}")
        rungs.append(rung)
    return replace(verdict, rungs=tuple(rungs), without_unsafe=True)


def unsafe_notes(steps: StepRun) -> list[str]:
    """What the UNSAFE steps changed, one line each."""
    return [
        f"{done.name} (UNSAFE) gives another model: {done.reason}"
        for done in steps.done
        if done.safety == "unsafe" and not done.fixed
    ]
