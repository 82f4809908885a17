"""A second model as a check: the same part of both, on the same inputs, computes something else."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx import ValueInfoProto

from onnxfix.diagnosis.bench import Bench
from onnxfix.reduction import case as cases
from onnxfix.reduction.case import Case, Failure, Seen
from onnxfix.reduction.checks import Check, differing, ended
from onnxfix.reduction.values import differences, write
from onnxfix.runtime.sandbox import shared

OTHER = "other.onnx"
"""Name of the second model's part, beside the first one's."""


class AgainstCheck(Check):
    """The model, whose values are the truth, against ``other``, both in ONNX Runtime on the CPU.

    A part of the model is compared with the part of the other that computes the same outputs from the same inputs; the
    tensors in between may be others. ``names`` leads from the model's tensors to the other's (None: those of one name).
    ``step`` is the time limit of both runs in seconds.
    """

    name, alters = "ort-cpu", False

    def __init__(self, other: Case, names: Mapping[str, str] | None = None, step: float = 600.0) -> None:
        self.other, self.step = other, step
        self.names = dict(names) if names is not None else None
        self.worker = shared("reduction against")
        graph = other.model.graph
        self._known = {*cases.producers(graph), *(info.name for info in graph.input)}
        self._known |= {tensor.name for tensor in graph.initializer}

    def seen(self, case: Case, path: Path) -> dict[str, Any]:
        """What the second model's part computes, by the names of the first one's outputs."""
        other = self.part(case)
        if other is None:
            return {}
        with tempfile.TemporaryDirectory(prefix="onnxfix-reduce-", ignore_cleanup_errors=True) as folder:
            file = Path(folder) / OTHER
            write(other.model, file)
            values = Bench(self.worker, Path(folder), self.step).run_file(file, other.inputs).values
        return {name: values[self._partner(name)] for name in case.outputs if self._partner(name) in values}

    def examine(self, case: Case, path: Path) -> Seen:
        other = self.part(case)
        if other is None:
            return Seen(unknown="the second model has no such part")
        file = path.with_name(OTHER)
        write(other.model, file)
        bench = Bench(self.worker, path.parent, self.step)
        truth = bench.run_file(path, case.inputs)
        if truth.error:
            text = f"ONNX Runtime does not run the model: {truth.error}"
            return ended(truth) or Seen(unknown=text)
        reply = bench.run_file(file, other.inputs)
        if reply.error:
            failure = Failure(
                "error", reply.stage, code=reply.status, text=f"the second model fails: {reply.error}"
            )
            return ended(reply) or Seen((failure,))
        pairs = [(name, self._partner(name)) for name in case.outputs]
        return Seen(differing(differences(bench, path, case.inputs, truth.values, reply.values, pairs)))

    def _partner(self, name: str) -> str:
        """What the other model calls a tensor; "" where it has no such tensor."""
        return name if self.names is None else self.names.get(name, "")

    def part(self, case: Case) -> Case | None:
        """The part of the other model between the inputs and the outputs of ``case``; None where it has none, or reads
        something else."""
        stored = {tensor.name for tensor in case.model.graph.initializer}
        given = {name: value for name, value in case.cut.items() if name in stored} | dict(case.inputs)
        feed = {self._partner(name): value for name, value in given.items() if self._partner(name)}
        outputs = [self._partner(name) for name in case.outputs]
        graph = self.other.model.graph
        if not self._known.issuperset(self._partner(name) for name in (*case.inputs, *case.outputs)):
            return None  # the other would compute from elsewhere what this part is given
        stops = {name for name in feed if name not in outputs}
        kept = cases.upstream(graph, outputs, stops)
        made = {name for number in kept for name in graph.node[number].output}
        if not set(outputs) <= made:
            return None
        model = cases.part(self.other.model, kept, [ValueInfoProto(name=name) for name in outputs])
        del model.graph.value_info[:]
        read = {name for node in model.graph.node for name in cases.reads_of(node)}
        kept_inputs = {info.name for info in model.graph.input}
        for name in stops & read - kept_inputs:
            others = [one for one in model.graph.initializer if one.name != name]
            cases.refill(model.graph.initializer, others)
            model.graph.input.append(cases.info_of(name, feed[name]))
        needed = {info.name for info in model.graph.input}
        if not needed <= set(feed):
            return None
        return Case(model, {name: feed[name] for name in needed}, keep=self.other.keep)
