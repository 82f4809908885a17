"""The search: candidates are checked one after the other, and each that fails for the same reason replaces the case."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import ValueInfoProto

from onnxfix.errors import OnnxfixError
from onnxfix.reduction import case as cases
from onnxfix.reduction.case import Case, Failure, Step
from onnxfix.reduction.checks import Check
from onnxfix.reduction.values import Facts, Values, declared, write

Progress = Callable[[str], None]
Kept = Callable[["Reducer"], None]


class OutOfTime(Exception):
    """The time limit of the search was reached."""


@dataclass(frozen=True)
class Terms:
    """The surroundings of a search: the ``check``, the ``failure`` to keep, a ``scratch`` folder, what to call with
    progress and after each change (``kept``), and when to stop (of ``time.monotonic``)."""

    check: Check
    failure: Failure
    scratch: Path
    say: Progress = lambda text: None
    kept: Kept = lambda reducer: None
    deadline: float = float("inf")


class Reducer:
    """The smallest case so far, and how to try smaller ones.

    ``failure`` is what every part must show, ``seen`` how the present case shows it. ``runs`` says whether ONNX Runtime
    runs the case: then it must run every part too. ``dynamic``: inputs keep their symbolic sizes, since the failure
    needs them. ``made``: some values are made up, since a node before them cannot be run.
    """

    def __init__(self, case: Case, terms: Terms, values: Values, facts: Facts, *, runs: bool) -> None:
        self.case, self.terms, self.values, self.facts, self.runs = case, terms, values, facts, runs
        self.failure = self.seen = terms.failure
        self.dynamic = False
        self.made = False
        self.tries = 0
        self.steps: list[Step] = []
        self._tried: set[bytes] = set()

    @property
    def alters(self) -> bool:
        """Whether parts may be changed in more than what is cut away."""
        return self.terms.check.alters

    @property
    def place(self) -> str:
        """The tensor that names the place of the failure, "" for none."""
        return self.failure.place.label if self.failure.kind != "differs" else ""

    def attempt(self, candidate: Case | None, what: str, inside: Collection[str] = ()) -> bool:
        """Check a candidate, and take it if it fails for the same reason. Where a node was inlined, ``inside`` are the
        outputs of the nodes that were in it, one of which may be the place from here on.

        Raises:
            OutOfTime: the time limit was reached.
        """
        if candidate is None or not candidate.model.graph.output:
            return False
        if time.monotonic() > self.terms.deadline:
            raise OutOfTime
        data = candidate.model.SerializeToString(deterministic=True)
        key = hashlib.blake2b(data, digest_size=16).digest()
        if key in self._tried:
            return False
        self._tried.add(key)
        self.terms.say(f"{self.case.count} nodes left: {what}")
        self.tries += 1
        found = self.examine(candidate, inside)
        if found is None or (self.runs and not self.values.runs(candidate)):
            return False
        self.case, self.seen = candidate, found
        if not self.failure.same(found):
            self.failure = found
        self.steps.append(Step(what, candidate.count))
        self.terms.kept(self)
        return True

    def examine(self, candidate: Case, inside: Collection[str] = ()) -> Failure | None:
        """The failure of a candidate, if it is the same; None where it passes, or fails for another reason."""
        path = self.terms.scratch / "candidate.onnx"
        try:
            write(candidate.model, path)
            seen = self.terms.check.examine(candidate, path)
        except OnnxfixError:  # what was cut is no model that can be judged
            return None
        wanted = self.failure
        same = [one for one in seen.failures if wanted.same(one)]
        same += [one for one in seen.failures if wanted.inside(one, inside)]
        return next(iter(same), None)

    # ---- parts

    def part(
        self, kept: Collection[int], *, outputs: Collection[str] = (), loose: bool = False
    ) -> Case | None:
        """The case of these nodes of the main graph alone. What other nodes computed becomes an initializer where it
        depends on no input or makes up shapes (``loose``: an input then, too), else an input with its real value.

        ``outputs`` are those to keep (by default what others read, and the case's own). None where a value that is
        needed cannot be computed.
        """
        case, graph = self.case, self.case.model.graph
        nodes = [graph.node[number] for number in sorted(kept)]
        made = {name for node in nodes for name in node.output if name}
        read = {name for node in nodes for name in cases.reads_of(node)}
        everything = set(cases.producers(graph))
        missing = sorted((read & everything) - made)
        values = self.known(missing)
        if values is None:
            return None
        model = cases.part(case.model, kept, self._outputs(kept, made, read, outputs), {self.place})
        fixed = cases.fixed_values(graph)
        inputs, cut = dict(case.inputs), dict(case.cut)
        for name in missing:
            value = values[name]
            if name in fixed or (cases.makes_shapes(value) and not loose):
                model.graph.initializer.append(cases.tensor_of(name, value))
            else:
                model.graph.input.append(self.facts.info(name, value, dynamic=self.dynamic))
                inputs[name] = value
            cut[name] = value
        return case.with_model(model, inputs=inputs, cut=cut)

    def known(self, names: list[str]) -> dict[str, Any] | None:
        """The real values; where a node cannot be run, made ones if the check computes nothing with them."""
        found = self.values.of(self.case, names) if names else {}
        if found is not None or self.terms.check.feeds:
            usable = found is not None and all(hasattr(value, "dtype") for value in found.values())
            return found if usable else None
        made = {}
        for name in names:
            one = (self.values.of(self.case, [name]) or {}).get(name)
            value = self.facts.made(name) if one is None else one
            if value is None or not hasattr(value, "dtype"):
                return None
            made[name] = value
        self.made = True
        return made

    def _outputs(
        self, kept: Collection[int], made: set[str], read: set[str], wanted: Collection[str]
    ) -> list[ValueInfoProto]:
        """The declarations of a part's outputs."""
        graph = self.case.model.graph
        chosen = set(wanted)
        if not chosen:
            others = (node for number, node in enumerate(graph.node) if number not in kept)
            chosen = {name for node in others for name in cases.reads_of(node)} | set(self.case.outputs)
        names = [
            name for number in sorted(kept) for name in graph.node[number].output if name in made & chosen
        ]
        known = declared(self.case.model)
        infos = []
        for name in names or sorted(made - read) or sorted(made):
            if name in known:
                infos.append(known[name])
                continue
            values = self.values.of(self.case, [name]) if self.runs else None
            infos.append(self.facts.info(name, (values or {}).get(name), dynamic=self.dynamic))
        return infos
