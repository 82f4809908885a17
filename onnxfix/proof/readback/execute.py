"""Run a model and the network that was read back on the same inputs, and tell differences from rounding."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.inputs import make_inputs
from onnxfix.inputs.feeds.plan import Feed
from onnxfix.inputs.feeds.profiles import given_profiles
from onnxfix.proof import extents
from onnxfix.proof.budget import Budget
from onnxfix.proof.checks.trials import Finder
from onnxfix.proof.compare.compare import Metrics, different
from onnxfix.proof.compare.rounding import RELATIVE
from onnxfix.proof.readback.bench import (
    Bench,
    Comparison,
    Tried,
    excused,
    is_lost,
    is_overflow,
    is_slight,
    overruled,
    result_of,
)
from onnxfix.proof.readback.child import Reply, has_open_order
from onnxfix.proof.readback.locate import Pair, Search, label_of, layers_of, misread
from onnxfix.proof.readback.refusals import lacks, node_of, place_of, settled
from onnxfix.proof.request import Request, Trial
from onnxfix.proof.verdict import FeedResult, LeftOut
from onnxfix.runtime.backends import ort_messages, reference
from onnxfix.runtime.backends.ort_messages import without_status
from onnxfix.runtime.sandbox import one_line
from onnxfix.tensorrt.reading import Misread

_QUANTIZED = 50  # added to the seed
_FEW = 64  # elements of all inputs, below which one feed would miss most of the edge values
_MANY = 1 << 16  # elements of all inputs, from which the smallest shape has room for them
_LOCATING = 180.0  # seconds
#: Of the effort of a check that runs two models, for the network of each of them.
_PART = 0.25
REFERENCE_STEP = 30.0
"""Seconds for one run of the reference evaluator."""
_WORDS = 400  # characters of ONNX Runtime's message in a record


@dataclass(frozen=True)
class Terms:
    """``outputs`` are the compared outputs: pairs of names, the model's and the network's. ``trials`` are inputs that
    are known to fit (empty: look for some), ``static`` the differences in the declarations, ``folder`` to write to."""

    outputs: Sequence[tuple[str, str]]
    trials: Sequence[Trial]
    static: Sequence[Misread]
    folder: str


def execute(request: Request, bench: Bench, pair: Pair, backend: str, terms: Terms) -> Comparison:
    """Run both models of ``pair`` with one backend, the model first, and compare.

    ``request.known`` is the model's own signature.

    Raises:
        Fault: verification itself failed.
    """
    bench.drop()
    return _Runner(request, bench, pair, backend, terms).run()


class _Runner:
    def __init__(self, request: Request, bench: Bench, pair: Pair, backend: str, terms: Terms) -> None:
        self.request, self.bench, self.pair, self.backend = request, bench, pair, backend
        self.terms, self.graph = terms, pair.model.graph
        # ONNX Runtime's check has run the model already, on inputs that it shares with this one.
        self.sorted = has_open_order(pair.model)
        plain = backend == "ort-cpu" and not self.sorted
        self.known = plain and bench.ask("knows", path=pair.path).value is True
        self.seen = Comparison()

    def run(self) -> Comparison:
        seen = self.seen
        seen.lacking = (self._too_large() or "") if self.backend == "reference" else ""
        if seen.lacking:
            return seen
        loaded = Reply() if self.known else self._load()
        if loaded.error:
            ours = loaded.lacking or loaded.died or self.backend == "reference"
            if ours or lacks(loaded.error, self.graph):
                seen.lacking, seen.cause = without_status(loaded.error), loaded.cause
            else:
                self._refused(loaded.error)
            return seen
        trials = self._find()
        if not trials:
            return seen
        loaded = self.bench.load(self.backend, self.pair.lifted.path)
        if loaded.error:
            seen.lacking = f"the network that was read back does not load: {without_status(loaded.error)}"
            seen.cause = loaded.cause
            return seen
        self._compare_all(trials)
        return seen

    def _load(self) -> Reply:
        """Load the model; where ONNX leaves the order of a TopK open, with the sorted one, which TensorRT computes."""
        if self.sorted:
            outputs = [info.name for info in self.graph.output]
            return self.bench.load_with(self.backend, self.pair.path, outputs, self.terms.folder)
        return self.bench.load(self.backend, self.pair.path, guarded=True)

    def _too_large(self) -> str | None:
        """Why the reference evaluator is not used: it would take too long for one of the two."""
        fed = [one.values for one in self.terms.trials] or self.request.given
        if fed:
            sizes = [sum(map(plan.size, values.values())) for values in fed]
        else:
            sweep = plan.assignments(self.request.known, self.request.shapes)
            sizes = [plan.elements(self.request.known, one) for one in sweep[:2]]
        models = self.pair.model, self.pair.network
        return next(filter(None, (reference.infeasible(one, min(sizes)) for one in models)), None)

    # -- the model alone

    def _find(self) -> dict[str, Trial]:
        """Inputs that the model accepts, whose outputs the sandbox keeps: key -> inputs."""
        tried = Tried(self.bench, self._load, self.pair.path if self.known else "")
        profiles = given_profiles(self.request.trt, self.request.known)
        planned = () if profiles else [*self._planned(), *self._quantized()]
        effort = self.request.effort
        part = replace(effort, multiple=effort.multiple * _PART, floor=effort.floor * _PART)
        budget = Budget(self.request.known, part)
        first = profiles[0] if profiles else None
        ran = self._ran()
        finder = Finder(self.request, tried.expect, first, planned, empty=True, budget=budget, ran=ran)
        if self.terms.trials:
            trials = [one for one in self.terms.trials if not tried.expect(one.values).error]
        else:
            try:
                trials = finder.find()
            except UsageError as error:  # no input can be made for this model
                self.seen.unknown = str(error)
                return {}
        self.seen.results.extend(finder.refused)
        self.seen.left_out = tuple(
            LeftOut(feed.label, feed, budget.predicted(feed.assignment)) for feed in finder.spared
        )
        kept = self.bench.ask("known_keys").value or ()
        found = {key: trial for key, trial in zip(tried.taken, trials, strict=True) if key in kept}
        self.seen.trials = tuple(found.values())
        if not found:
            self._untaken(tried.words, finder.refused)
            self.seen.cause = "memory" if "memory" in tried.causes else self.seen.cause
        return found

    def _planned(self) -> list[Feed]:
        """Plausible values over the planned shapes, and the edges of the types at one of them."""
        known, seed = self.request.known, self.request.seed
        sweep = plan.assignments(known, self.request.shapes)[:3]
        found = [Feed(sizes, "normal", seed + number) for number, sizes in enumerate(sweep)]
        count = plan.elements(known, sweep[-1])
        if count > _MANY and len(sweep) > 1:
            # Images cost seconds each: the smallest batch holds all edge values many times over, the others hold none.
            return self._cheapest([replace(found[0], kind="edge"), *found[1:]])
        edges = 3 if count < _FEW else 1
        found += [Feed(sweep[-1], "edge", seed + len(sweep) + number) for number in range(edges)]
        return self._cheapest(found)

    def _cheapest(self, planned: Sequence[Feed]) -> list[Feed]:
        """Where not all of them may be affordable, those first that ONNX Runtime has run already: with other values of
        the same kind, and the first of all, at the smallest sizes."""
        ran = self._ran()
        if self.request.effort.whole or not ran:
            return [*planned]
        left, found = [*ran], list[Feed]()
        for feed in planned:
            wanted = feed.assignment, feed.kind
            alike = (one for one in left if (one.assignment, one.kind) == wanted and not one.override)
            found.append(next(alike, feed))
            left = [one for one in left if one is not found[-1]]
        first = [one for one in ran[:1] if one.kind == "normal" and not one.override and one not in found]
        return sorted(first + found, key=lambda feed: feed not in ran)

    def _ran(self) -> tuple[Feed, ...]:
        """The feeds that ONNX Runtime's check has run, if its outputs are there."""
        networks = self.request.networks
        return networks.ran if self.known and networks is not None else ()

    def _quantized(self) -> list[Feed]:
        """Values around the limits of what the model quantizes."""
        known, seed = self.request.known, self.request.seed + _QUANTIZED
        sizes = plan.assignments(known, self.request.shapes)[:3][-1]
        found = extents.reach(self.request, Path(self.pair.path), sizes)
        self.seen.notes += [found.missed] if found.missed else []
        return plan.quantized(known, sizes, seed, found.gain)

    def _untaken(self, words: Sequence[str], refused: Sequence[FeedResult]) -> None:
        """The model took no inputs at all: its own fault, the backend's, or that of the inputs."""
        lacking = next((one for one in words if lacks(one, self.graph)), "")
        own = self.backend != "reference" and (
            self.request.given is not None or settled("".join(words[:1]), self.graph)
        )
        if not words:
            self.seen.unknown = refused[0].reason if refused else "no inputs could be made"
        elif lacking:
            self.seen.lacking = without_status(lacking)
        elif own:
            self._refused(words[0])
        else:
            self.seen.unknown = f"the model fails on all inputs tried: {without_status(words[0])}"

    def _refused(self, words: str) -> None:
        """ONNX Runtime rejects the model. If the network that TensorRT imported runs, that is a difference."""
        # Any inputs will do, whether the model accepts them or not.
        ran = Reply("no inputs could be made")
        with suppress(UsageError, MemoryError):
            known, given = self.request.known, self.request.given
            values = (
                given[0] if given else make_inputs(known, self._planned()[0].assignment, self.request.seed)
            )
            ran = self.bench.load(self.backend, self.pair.lifted.path)
            ran = ran if ran.error else self.bench.run("lifted", "refused", values, self.pair.wires)
        said = one_line(without_status(words), _WORDS)
        if ran.error:
            self.seen.unknown = f"ONNX Runtime rejects the model: {said}"
            return
        node = node_of(words, self.graph)
        layers = layers_of(self.pair.network.graph, node) if node is not None else ()
        self.seen.disputed = ort_messages.is_type_error(words)
        self.seen.misreads.append(
            Misread("refused", place_of(node, self.graph), "model", said, layers=layers)
        )

    # -- both

    def _compare_all(self, trials: Mapping[str, Trial]) -> None:
        """Run the network on all inputs, judge, and explain what is out of tolerance."""
        wrong: dict[str, list[str]] = {}
        for key, trial in trials.items():
            names = self._compare(key, trial)
            if self.seen.stuck:
                return
            if names:
                wrong[key] = names
        if wrong:
            self._explain(trials, wrong)

    def _compare(self, key: str, trial: Trial) -> list[str]:
        """Run the network on the inputs of a trial and judge; returns the outputs that are out of tolerance."""
        seen = self.seen
        ran = self.bench.run("lifted", key, trial.values, self.pair.wires)
        seen.cause = ran.cause
        if ran.died:
            seen.unknown = f"the network that was read back cannot be run: {ran.error}"
        elif ran.lacking or (ran.error and lacks(ran.error, self.pair.network.graph)):
            seen.lacking = without_status(ran.error)
        elif ran.error:
            self._failed(trial, ran.error)
        if ran.error:
            return []
        judged = self.bench.judge(key, self.terms.outputs, self.request.coarse)
        if judged.error:
            seen.unknown, seen.cause = f"the outputs could not be compared: {judged.error}", judged.cause
            return []
        metrics: tuple[Metrics, ...] = judged.value
        seen.compared.append(trial)
        seen.blank = ran.blank if seen.blank is None else seen.blank & ran.blank
        seen.results.append(result_of(trial, metrics))
        return list(dict.fromkeys(metric.output for metric in different(metrics)))

    def _failed(self, trial: Trial, words: str) -> None:
        """The network does not take what the model takes. Where it declares other inputs that goes without saying."""
        reason = f"the network fails: {without_status(words)}"
        self.seen.results.append(trial.result("different", reason))
        declared = any(one.subject == "input" and not one.harmless for one in self.terms.static)
        if declared or any(one.kind == "fails" for one in self.seen.misreads):
            return
        inner = node_of(words, self.pair.network.graph)
        by = {entry.key: entry.value for entry in inner.metadata_props} if inner is not None else {}
        node = next((one for one in self.graph.node if label_of(one) == by.get("onnx_node")), None)
        layer = f"{by.get('trt_kind', '')} {by.get('trt_layer', '')}".strip()
        said, layers = one_line(without_status(words), _WORDS), (layer,) if layer else ()
        place = place_of(node, self.graph)
        self.seen.misreads.append(
            Misread("fails", place, "network", tensorrt=said, layers=layers, feed=trial.label)
        )

    # -- what differs

    def _explain(self, trials: Mapping[str, Trial], wrong: Mapping[str, Sequence[str]]) -> None:
        """Is it more than rounding, and where does it begin?"""
        left = self._beyond_noise(trials, wrong)
        if not left or self._only_the_runtime(trials, left):
            return
        key = max(left, key=lambda one: len(left[one]))
        ends = time.monotonic() + min(self.request.total, _LOCATING)
        how = self.backend, self.request.coarse, self.terms.folder, ends
        where = Search(self.bench, self.pair, trials[key], *how).run([one.output for one in left[key]])
        if where.choices and not where.misreads:
            choosing = ", ".join(where.choices)
            self.seen.unknown = f"which elements {choosing} chooses hangs on rounding"
            self.seen.cause = "choice"
            return
        # Infinity or NaN at the edge of the type alone: that it is not a number there need not matter to anybody.
        edge = all(map(is_lost, (metric for metrics in left.values() for metric in metrics)))
        mild = edge and all(getattr(trials[one].feed, "kind", "") == "edge" for one in left)
        found = where.misreads or [self._of_output(metric, trials[key]) for metric in left[key]]
        self.seen.misreads.extend(replace(one, harmless=mild) for one in found)
        self.seen.off = where.off | {metric.output for metrics in left.values() for metric in metrics}
        if where.unsure:
            self.seen.notes.append(f"where it differs inside is not fully known: {where.unsure}")

    def _only_the_runtime(self, trials: Mapping[str, Trial], left: Mapping[str, Sequence[Metrics]]) -> bool:
        """Whether a slight difference, or an infinity of the model's alone, is one of ONNX Runtime's kernels: the
        reference evaluator sees none.

        Some of its kernels approximate (GRU: 2e-4 with inputs of 1e4), some overflow (Softplus of 100 in float16).
        """
        metrics = [metric for parts in left.values() for metric in parts]
        if self.backend == "reference" or not all(is_slight(one) or is_overflow(one) for one in metrics):
            return False
        asked = [trials[key] for key in left]
        step, self.bench.step = self.bench.step, min(self.bench.step, REFERENCE_STEP)
        other = execute(self.request, self.bench, self.pair, "reference", replace(self.terms, trials=asked))
        self.bench.step = step
        agrees = len(other.compared) == len(asked) and not other.stuck and not other.misreads
        if agrees:
            for one in other.results:
                self.seen.results = [overruled(result, one) for result in self.seen.results]
            self.seen.notes.append(
                f"output {metrics[0].output}: {metrics[0].reason} in ONNX Runtime and none in onnx.reference: "
                "its kernels round or overflow differently"
            )
        return agrees

    def _beyond_noise(
        self, trials: Mapping[str, Trial], wrong: Mapping[str, Sequence[str]]
    ) -> dict[str, list[Metrics]]:
        """What is out of tolerance by more than four times what the model makes of inputs that are moved a little."""
        left: dict[str, list[Metrics]] = {}
        loaded = self._load()
        for key, names in wrong.items():
            trial = trials[key]
            moved = loaded if loaded.error else self.bench.run("moved", key, trial.values, moved=True)
            noise = {} if moved.error else self.bench.ask("wobble", key=key, names=tuple(names)).value or {}
            pairs = [one for one in self.terms.outputs if one[0] in names]
            judged = self.bench.judge(key, pairs, self.request.coarse, noise)
            if judged.error:
                self.seen.unknown = f"the outputs could not be compared: {judged.error}"
                self.seen.cause = judged.cause
                return {}
            metrics: tuple[Metrics, ...] = judged.value
            for name, far in noise.items():
                self.seen.noise[name] = max(far, self.seen.noise.get(name, 0.0))
            bad = different(metrics)
            if bad:
                left[key] = bad
            else:
                self.seen.results = [excused(one, trial, metrics) for one in self.seen.results]
        name, far = max(self.seen.noise.items(), key=lambda one: one[1], default=("", 0.0))
        if far:
            self.seen.notes.append(
                f"inputs moved by {RELATIVE:g} of their size move the model's own output {name} by up to "
                f"{far:.2g}; four times that was allowed{', and is enough' if not left else ''}"
            )
        return left

    def _of_output(self, metric: Metrics, trial: Trial) -> Misread:
        """What differs where nothing inside could be compared: an output."""
        node = next((one for one in self.graph.node if metric.output in one.output), None)
        return misread(self.pair, node, metric.output, metric, trial.label)
