"""Run a model and the network that was read back on the same inputs, and tell differences from rounding."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.inputs import make_inputs
from onnxfix.inputs.feeds.plan import Feed
from onnxfix.inputs.feeds.profiles import given_profiles
from onnxfix.proof import extents
from onnxfix.proof.checks.sessions import Bench, has_open_order
from onnxfix.proof.checks.trials import Finder
from onnxfix.proof.compare.compare import Metrics, agreement, difference, different
from onnxfix.proof.compare.tolerance import RELATIVE, shaken
from onnxfix.proof.readback.locate import (
    Pair,
    Search,
    lacks,
    layer_of,
    layers_of,
    locate_node,
    misread,
    node_of,
    settled,
)
from onnxfix.proof.readback.values import (
    Values,
    find_undefined,
    is_lost,
    is_overflow,
    is_slight,
    judge,
    measure_noise,
)
from onnxfix.proof.request import Budget, Request, Trial, too_large
from onnxfix.proof.verdict import FeedResult, LeftOut
from onnxfix.runtime.backends import ort_messages
from onnxfix.runtime.backends.ort_messages import without_status
from onnxfix.runtime.causes import Cause
from onnxfix.runtime.sandbox import one_line
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.reading import Misread

_QUANTIZED = 50  # added to the seed
_FEW = 64  # elements of all inputs, below which one feed would miss most of the edge values
_MANY = 1 << 16  # elements of all inputs, from which the smallest shape has room for them
_LOCATING = 180.0  # seconds
#: Of the effort of a check that runs two models, for the network of each of them.
_PART = 0.25
_REFERENCE_STEP = 30.0  # seconds for one run of the reference evaluator
_WORDS = 400  # characters of ONNX Runtime's message in a record
_KEPT = 512 << 20  # bytes of outputs that are kept at once
_DEATHS = 3  # of the child, after which it is not used any more


@dataclass
class _Wrong:
    """A trial for which outputs are out of tolerance, and what the network computed."""

    trial: Trial
    network: Values
    metrics: list[Metrics]


@dataclass
class Comparison:
    """Runs both models of ``pair`` with one backend, the model first, and says what that has shown.

    ``request.known`` is the model's own signature. ``given`` are inputs that are known to fit (empty: look for some).

    ``lacking``: why this backend cannot run it, so that another should; ``unknown``: why the result is unknown;
    ``cause``: either as data. ``disputed``: ONNX Runtime rejects the model for its types, which another backend may
    accept. ``trials`` are the inputs that the model accepts, ``compared`` those that both accept. ``off`` are the
    tensors that differ because of the misreads. ``undefined`` are the network's outputs without a finite value on all
    ``compared``; None before the first. ``left_out`` are inputs that the budget did not allow for.
    """

    request: Request
    bench: Bench
    pair: Pair
    backend: str
    given: Sequence[Trial] = ()
    misreads: list[Misread] = field(default_factory=list)
    results: list[FeedResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    noise: dict[str, float] = field(default_factory=dict)
    off: frozenset[str] = frozenset()
    trials: tuple[Trial, ...] = ()
    compared: list[Trial] = field(default_factory=list)
    undefined: frozenset[str] | None = None
    left_out: tuple[LeftOut, ...] = ()
    lacking: str = ""
    unknown: str = ""
    cause: Cause = ""
    disputed: bool = False
    _failures: list[Ran] = field(default_factory=list)  # of the model, on inputs that it rejects
    _taken: int = 0  # inputs that the model accepts
    _bytes: int = 0  # of its outputs
    _recalls: bool = False  # whether the check ort-cpu left outputs of the model

    @property
    def stuck(self) -> bool:
        """Whether there is no point in going on."""
        return bool(self.lacking or self.unknown)

    def run(self) -> Comparison:
        """Run both and compare.

        Raises:
            Fault: verification itself failed.
        """
        step = self.request.step
        self.bench.limit(min(step, _REFERENCE_STEP) if self.backend == "reference" else step)
        if self.backend == "reference":
            given = [dict(one.values) for one in self.given] or self.request.given
            models = self.pair.model, self.pair.network
            self.lacking = too_large(replace(self.request, given=given), *models) or ""
            if self.lacking:
                return self
        # ONNX Runtime's check has run the model already, on inputs that it shares with this one.
        loaded = self._load(recall=self.backend == "ort-cpu")
        self._recalls = loaded.kept
        if loaded.error:
            ours = loaded.lacking or loaded.died or self.backend == "reference"
            if ours or lacks(loaded.error, self.pair.model.graph):
                self.lacking, self.cause = without_status(loaded.error), loaded.cause
            else:
                self._note_refusal(loaded.error)
            return self
        found = self._find()
        self.trials = tuple(replace(one, expected=None) for one in found)
        if not found:
            return self
        loaded = self.bench.put(self.backend, self.pair.lifted.path)
        if loaded.error:
            self.lacking = f"the network that was read back does not load: {without_status(loaded.error)}"
            self.cause = loaded.cause
            return self
        wrong = []
        for trial in found:
            wrong += self._compare(trial)
            if self.stuck:
                return self
        if wrong:
            self._explain(wrong)
        return self

    def _load(self, *, recall: bool = False) -> Ran:
        """Load the model; where ONNX leaves the order of a TopK open, with the sorted one, which TensorRT computes."""
        if has_open_order(self.pair.model):
            outputs = [info.name for info in self.pair.model.graph.output]
            return self.bench.put(self.backend, self.pair.path, outputs)
        return self.bench.put(self.backend, self.pair.path, guarded=True, recall=recall)

    # -- the model alone

    def _find(self) -> list[Trial]:
        """Inputs that the model accepts, with its outputs."""
        profiles = given_profiles(self.request.trt, self.request.known)
        planned = () if profiles else [*self._planned(), *self._quantized()]
        whole = self.request.effort
        effort = replace(whole, multiple=whole.multiple * _PART, floor=whole.floor * _PART)
        budget = Budget(self.request.known, effort)
        how: dict[str, Any] = {"budget": budget, "ran": self._ran(), "empty": True}
        finder = Finder(self.request, self._expect, profiles[0] if profiles else None, planned, **how)
        if self.given:
            found = [replace(one, expected=self._expect(one.values)) for one in self.given]
            found = [one for one in found if one.expected is not None and not one.expected.error]
        else:
            try:
                found = finder.find()
            except UsageError as error:  # no input can be made for this model
                self.unknown = str(error)
                return []
        self.results.extend(finder.refused)
        self.left_out = tuple(
            LeftOut(one.label, one, budget.predicted(one.assignment)) for one in finder.spared
        )
        if not found:
            self._note_untaken(finder.refused)
        return found

    def _expect(self, values: dict[str, Any]) -> Ran:
        """What the model computes of these inputs, and the seconds of the processor that a comparison on them costs."""
        if self._bytes > _KEPT:
            return Ran(error="no memory for the outputs of more inputs")
        if self.bench.deaths >= _DEATHS:
            return Ran(error="too many runs ended the process")
        ran = self.bench.compute(values)
        if ran.error:
            if ran.cause == "timeout" and not self._taken:
                self.bench.deaths = _DEATHS  # the inputs are not why: others would take as long
            self._failures.append(ran)
            return ran
        self._taken += 1
        self._bytes += sum(getattr(value, "nbytes", 0) for value in ran.outputs.values())
        return ran if ran.kept else replace(ran, seconds=2 * ran.seconds)  # the network runs, too

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
        return networks.ran if self._recalls and networks is not None else ()

    def _quantized(self) -> list[Feed]:
        """Values around the limits of what the model quantizes."""
        known, seed = self.request.known, self.request.seed + _QUANTIZED
        sizes = plan.assignments(known, self.request.shapes)[:3][-1]
        found = extents.reach(self.request, Path(self.pair.path), sizes)
        self.notes += [found.missed] if found.missed else []
        return plan.quantized(known, sizes, seed, found.gain)

    def _note_untaken(self, refused: Sequence[FeedResult]) -> None:
        """The model took no inputs at all: its own fault, the backend's, or that of the inputs."""
        words, graph = [one.error for one in self._failures], self.pair.model.graph
        lacking = next((one for one in words if lacks(one, graph)), "")
        own = self.backend != "reference" and (
            self.request.given is not None or settled("".join(words[:1]), graph)
        )
        if not words:
            self.unknown = refused[0].reason if refused else "no inputs could be made"
        elif lacking:
            self.lacking = without_status(lacking)
        elif own:
            self._note_refusal(words[0])
        else:
            self.unknown = f"the model fails on all inputs tried: {without_status(words[0])}"
        if any(one.cause == "memory" for one in self._failures):
            self.cause = "memory"

    def _note_refusal(self, words: str) -> None:
        """ONNX Runtime rejects the model. If the network that TensorRT imported runs, that is a difference."""
        # Any inputs will do, whether the model accepts them or not.
        ran, graph = Ran(error="no inputs could be made"), self.pair.model.graph
        with suppress(UsageError, MemoryError):
            known, given = self.request.known, self.request.given
            values = (
                given[0] if given else make_inputs(known, self._planned()[0].assignment, self.request.seed)
            )
            ran = self.bench.put(self.backend, self.pair.lifted.path)
            ran = ran if ran.error else self.bench.compute(self.pair.wire(values))
        said = one_line(without_status(words), _WORDS)
        if ran.error:
            self.unknown = f"ONNX Runtime rejects the model: {said}"
            return
        node = node_of(words, graph)
        layers = layers_of(self.pair.network.graph, node) if node is not None else ()
        self.disputed = ort_messages.is_type_error(words)
        self.misreads.append(Misread("refused", locate_node(node, graph), "model", said, layers=layers))

    # -- both

    def _compare(self, trial: Trial) -> list[_Wrong]:
        """Run the network on the inputs of a trial and judge; returns what is out of tolerance, if something is."""
        assert trial.expected is not None
        ran = self.bench.compute(self.pair.wire(trial.values))
        self.cause = ran.cause
        if ran.died:
            self.unknown = f"the network that was read back cannot be run: {ran.error}"
        elif ran.lacking or (ran.error and lacks(ran.error, self.pair.network.graph)):
            self.lacking = without_status(ran.error)
        elif ran.error:
            self._note_failure(trial, ran.error)
        if ran.error:
            return []
        metrics = judge(trial.expected.outputs, ran.outputs, self.pair.outputs, self.request.coarse)
        self.compared.append(trial)
        undefined = find_undefined(ran.outputs)
        self.undefined = undefined if self.undefined is None else self.undefined & undefined
        wrong = different(metrics)
        reason = difference(wrong[0]) if wrong else ""
        self.results.append(trial.result(agreement(metrics), reason, metrics))
        return [_Wrong(trial, ran.outputs, wrong)] if wrong else []

    def _note_failure(self, trial: Trial, words: str) -> None:
        """The network does not take what the model takes. Where it declares other inputs that goes without saying."""
        self.results.append(trial.result("different", f"the network fails: {without_status(words)}"))
        declared = any(one.subject == "input" and not one.harmless for one in self.pair.static)
        if declared or any(one.kind == "fails" for one in self.misreads):
            return
        node, layers = layer_of(words, self.pair)
        said, place = one_line(without_status(words), _WORDS), locate_node(node, self.pair.model.graph)
        self.misreads.append(Misread("fails", place, "network", "", said, layers=layers, feed=trial.label))

    # -- what differs

    def _explain(self, wrong: Sequence[_Wrong]) -> None:
        """Is it more than rounding, and where does it begin?"""
        left = self._beyond_noise(wrong)
        metrics = [metric for one in left for metric in one.metrics]
        if not left or self._only_the_runtime(left, metrics):
            return
        worst = max(left, key=lambda one: len(one.metrics))
        until = time.monotonic() + min(self.request.total, _LOCATING)
        where = Search(self.bench, self.pair, worst.trial, self.backend, self.request.coarse, until)
        where.run([one.output for one in worst.metrics])
        if where.choices and not where.misreads:
            choosing = ", ".join(dict.fromkeys(where.choices.values()))
            self.unknown = f"which elements {choosing} chooses hangs on rounding"
            self.cause = "choice"
            return
        # Infinity or NaN at the edge of the type alone: that it is not a number there need not matter to anybody.
        edge = all(getattr(one.trial.feed, "kind", "") == "edge" for one in left)
        mild, label = edge and all(map(is_lost, metrics)), worst.trial.label
        found = where.misreads or [misread(self.pair, one.output, one, label) for one in worst.metrics]
        self.misreads.extend(replace(one, harmless=mild) for one in found)
        self.off = frozenset({*where.off, *(metric.output for metric in metrics)})
        if where.unsure:
            self.notes.append(f"where it differs inside is not fully known: {where.unsure}")

    def _only_the_runtime(self, left: Sequence[_Wrong], metrics: Sequence[Metrics]) -> bool:
        """Whether a slight difference, or an infinity of the model's alone, is one of ONNX Runtime's kernels: the
        reference evaluator sees none.

        Some of its kernels approximate (GRU: 2e-4 with inputs of 1e4), some overflow (Softplus of 100 in float16).
        """
        if self.backend == "reference" or not all(is_slight(one) or is_overflow(one) for one in metrics):
            return False
        asked = [one.trial for one in left]
        other = Comparison(self.request, self.bench, self.pair, "reference", asked).run()
        self.bench.limit(self.request.step)
        agrees = len(other.compared) == len(asked) and not other.stuck and not other.misreads
        if agrees:
            self.results = [
                next((new for new in other.results if new.fed == result.fed), result)
                for result in self.results
            ]
            self.notes.append(
                f"output {metrics[0].output}: {metrics[0].reason} in ONNX Runtime and none in onnx.reference: "
                "its kernels round or overflow differently"
            )
        return agrees

    def _beyond_noise(self, wrong: Sequence[_Wrong]) -> list[_Wrong]:
        """What is out of tolerance by more than four times what the model makes of inputs that are moved a little."""
        left = []
        loaded = self._load()
        for one in wrong:
            trial, names = one.trial, [*dict.fromkeys(metric.output for metric in one.metrics)]
            assert trial.expected is not None
            moved = loaded if loaded.error else self.bench.compute(shaken(trial.values))
            noise = {} if moved.error else measure_noise(trial.expected.outputs, moved.outputs, names)
            pairs = [pair for pair in self.pair.outputs if pair[0] in names]
            metrics = judge(trial.expected.outputs, one.network, pairs, self.request.coarse, noise)
            for name, far in noise.items():
                self.noise[name] = max(far, self.noise.get(name, 0.0))
            if bad := different(metrics):
                left.append(replace(one, metrics=bad))
                continue
            new = {metric.name: metric for metric in metrics}
            for number, result in enumerate(self.results):
                if result.fed == (trial.given, trial.feed):
                    parts = tuple(new.get(metric.name, metric) for metric in result.metrics)
                    self.results[number] = replace(result, status="within", reason="", metrics=parts)
        name, far = max(self.noise.items(), key=lambda one: one[1], default=("", 0.0))
        if far:
            self.notes.append(
                f"inputs moved by {RELATIVE:g} of their size move the model's own output {name} by up to "
                f"{far:.2g}; four times that was allowed{', and is enough' if not left else ''}"
            )
        return left
