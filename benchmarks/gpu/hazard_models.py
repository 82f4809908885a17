"""Examples of rules, before and after their fix, with inputs and true outputs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from acceptance.cases import random_operators
from acceptance.measure import BACKENDS, outputs_of
from onnx import ModelProto, TensorProto, inliner

from gpu.hazard_cases import (
    AFTER,
    BEFORE,
    FIXED,
    TWIN,
    Case,
    Entry,
    Feed,
    Outputs,
    Truth,
    are_numbers,
    fitted,
    typed,
)
from onnxfix.errors import OnnxfixError
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.signature import Signature, signature
from onnxfix.proof.compare.compare import compare
from onnxfix.proof.compare.twin import half_type, widened
from onnxfix.rule import Example, Rule, Safety
from onnxfix.runtime.sandbox import Worker, one_line
from onnxfix.testing import findings, fixed, model_of

TARGET = "rtx"
_FEEDS = 3
_UNSAFE = Safety.UNSAFE.name.lower()
#: Groups of larger sizes that are tried where the model takes none of the usual ones.
_GROUPS = 4
_FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)


def examples_of(rule: Rule, most: int) -> Iterator[tuple[int, Example]]:
    """The first examples that the rule finds, with their place among all; those with a fix come before the others,
    but leave room for one that has none."""
    found = [(n, one) for n, one in enumerate(rule.examples) if one.found]
    repaired = [one for one in found if one[1].after is not None]
    others = [one for one in found if one[1].after is None]
    room = most - min(len(others), max(1, most - len(repaired)))
    yield from sorted([*repaired[:room], *others[: most - len(repaired[:room])]], key=lambda one: one[0])


def repaired(rule: Rule, example: Example, proto: ModelProto) -> tuple[ModelProto | None, str, str]:
    """The model after the rule's fix, with the least safety that fixes it, and the target; None where none does."""
    targets = dict.fromkeys((TARGET, example.target or TARGET, None))
    # Under a target of its own the rule finds what it does not find for TensorRT-RTX.
    for target in targets:
        if not findings(rule, proto, target):
            continue
        for safety in Safety:
            if example.after is not None and safety < example.safety:
                continue
            result, run = fixed([rule], proto, safety=safety, target=target)
            if run.applied:
                return result, safety.name.lower(), target or ""
    return None, "", ""


class Maker:
    """Makes cases; the models run in a child."""

    def __init__(self, stack: ExitStack) -> None:
        self._worker = stack.enter_context(Worker(memory_mb=4096))
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))

    def make(self, rule: Rule, number: int, example: Example) -> tuple[Entry, Case]:
        """An example with all that belongs to it. Never raises for what an example is."""
        names = (rule.code, number, example.why)
        try:
            proto = model_of(example)
            result, safety, target = repaired(rule, example, proto)
        except Exception as error:  # of one example: the others are still of use
            return Entry(*names, skipped=_words(error)), Case({})
        models = {BEFORE: proto.SerializeToString()}
        if result is not None:
            models[AFTER] = result.SerializeToString()
        told: dict[str, Any] = {"safety": safety, "target": target}
        try:
            feeds, truths, untrue = self._truths(proto)
            if result is not None and safety == _UNSAFE:
                kept = self._kept(result, feeds)
                feeds = [feeds[one] for one in kept]
                truths = [Truth(one.source, [one.outputs[n] for n in kept]) for one in truths]
            if not are_numbers([list(feed.values()) for feed in feeds]):
                return Entry(*names, **told, unfed="inputs are no tensors of numbers"), Case(models)
            truths = [one for one in truths if one.outputs and are_numbers(one.outputs)]
            if not truths:
                untrue = untrue or "outputs are no tensors of numbers"
            # An unsafe fix may change what comes out, and of others onnx.reference may be wrong where it is alone.
            alone = not truths or truths[0].source != BACKENDS[0] or safety == _UNSAFE
            if result is not None and feeds and alone:
                truths += self._own(result, feeds, truths)
            told.update(truths=tuple(one.source for one in truths), untrue=untrue)
            if result is not None and truths and not untrue:
                told["agrees"] = self._agrees(result, feeds, truths)
            return Entry(*names, **told), Case(models, feeds, tuple(truths))
        except Exception as error:
            return Entry(*names, **told, unfed=_words(error)), Case(models)

    def _truths(self, proto: ModelProto) -> tuple[list[Feed], list[Truth], str]:
        """Feeds, the true outputs, and why there are none."""
        known = signature(proto)
        first: list[Feed] = []
        reason = ""
        for wanted in candidates(known):
            first = first or wanted[:1]  # where nothing runs, there is still something to feed
            for backend in BACKENDS:
                feeds, outputs, words = self._runnable(backend, proto, wanted)
                reason = reason or words
                if feeds:
                    if drawn := random_operators(proto):
                        return feeds, [], f"draws: {', '.join(drawn)}"
                    return feeds, self._all(feeds, proto, Truth(backend, outputs)), ""
        return first, [], reason or "no inputs can be made"

    def _runnable(
        self, backend: str, proto: ModelProto, wanted: Sequence[Feed]
    ) -> tuple[list[Feed], Outputs, str]:
        """Of the feeds the first few that a backend takes, with the outputs, or why it takes none."""
        path = self._written(proto)
        few = list(wanted[:_FEEDS])
        done = outputs_of(self._worker, backend, path, few)
        if done.ok:
            return few, done.value, ""
        feeds: list[Feed] = []
        outputs: Outputs = []
        for feed in wanted:
            one = outputs_of(self._worker, backend, path, [feed])
            if one.ok and len(feeds) < _FEEDS:
                feeds.append(feed)
                outputs.append(one.value[0])
        return feeds, outputs, f"{backend}: {one_line(done.message)}"

    def _all(self, feeds: list[Feed], proto: ModelProto, first: Truth) -> list[Truth]:
        """All who say something else about the model's outputs. In half precision the one of more digits decides."""
        truths, half = [first], half_type(proto)
        if first.source == BACKENDS[0]:
            other = outputs_of(self._worker, "reference", self._written(proto), feeds)
            if other.ok and not meets(other.value, first.outputs, half):
                truths.append(Truth("reference", other.value))
        twin = self._twin(feeds, proto) if half else None
        if twin is not None and not all(meets(twin.outputs, one.outputs, half) for one in truths):
            truths = [twin, *(one for one in truths if not meets(twin.outputs, one.outputs, half))]
        return truths

    def _twin(self, feeds: Sequence[Feed], proto: ModelProto) -> Truth | None:
        """What the model computes with float32 in the place of half precision, in the original's types."""
        try:
            wide = widened(inliner.inline_local_functions(proto), TensorProto.FLOAT)
            own = [fitted(feed, wide) for feed in feeds]
        except Exception:  # a model that is no valid one has no twin
            return None
        for backend in BACKENDS:
            done = outputs_of(self._worker, backend, self._written(wide), own)
            if done.ok:
                return Truth(TWIN, [typed(one, proto) for one in done.value])
        return None

    def _agrees(self, result: ModelProto, feeds: Sequence[Feed], truths: Sequence[Truth]) -> bool | None:
        """Whether the fixed model meets a truth on each feed."""
        ran = False
        for backend in BACKENDS:
            done = self._outputs(backend, result, feeds)
            ran = ran or done is not None
            if done is not None and all(
                any(meets([typed(one.outputs[n], result)], [row], half_type(result)) for one in truths)
                for n, row in enumerate(done)
            ):
                return True
        return False if ran else None

    def _own(self, result: ModelProto, feeds: Sequence[Feed], known: Sequence[Truth]) -> list[Truth]:
        """What the fixed model computes, if it is none of the known outputs."""
        if random_operators(result):
            return []
        for backend in BACKENDS[:1] if known else BACKENDS:
            found = self._outputs(backend, result, feeds)
            if found and are_numbers(found):
                said = ([typed(row, result) for row in one.outputs] for one in known)
                return [] if any(meets(one, found, "") for one in said) else [Truth(FIXED, found)]
        return []

    def _kept(self, result: ModelProto, feeds: Sequence[Feed]) -> list[int]:
        """The feeds that the fixed model takes, all where it takes none: an unsafe fix may make it refuse some."""
        taken = [
            number
            for number, one in enumerate(feeds)
            if any(self._outputs(backend, result, [one]) is not None for backend in BACKENDS)
        ]
        return taken or [*range(len(feeds))]

    def _outputs(self, backend: str, proto: ModelProto, feeds: Sequence[Feed]) -> Outputs | None:
        own = [fitted(feed, proto) for feed in feeds]
        done = outputs_of(self._worker, backend, self._written(proto), own)
        return done.value if done.ok else None

    def _written(self, proto: ModelProto) -> Path:
        path = self._folder / "model.onnx"
        path.write_bytes(proto.SerializeToString())
        return path


def _words(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}")[:200]


def candidates(known: Signature) -> Iterator[list[Feed]]:
    """Groups of feeds as the proof plans them; no dimension is 0 if it need not be."""
    for group in islice((plan.assignments(known, {}), *([one] for one in plan.grown(known, {}))), _GROUPS):
        sweep = [one for one in group if 0 not in one.values()] or group
        if not sweep:
            continue
        mixed = sweep[min(2, len(sweep) - 1)]
        planned = [plan.Feed(mixed, "normal", 0)]
        if known.inputs:
            planned += plan.quantized(known, mixed, 1)[:1]
            if any(one.elem in _FLOATS for one in known.inputs):
                planned.append(plan.Feed(mixed, "large", 2))
            planned += [plan.Feed(sweep[0], "edge", 3), plan.Feed(mixed, "small", 4)]
        found = []
        for feed in planned:
            try:
                found.append(feed.values(known))
            except (OnnxfixError, MemoryError):
                continue
        if found:
            yield found


def meets(wanted: Outputs, found: Outputs, half: str) -> bool:
    """Whether outputs are the same within the tolerances of ``onnxfix verify``."""
    try:
        with np.errstate(all="ignore"):
            return all(
                one.agreement != "different"
                for a, b in zip(wanted, found, strict=True)
                for one in compare("", a, b, exact=False, coarse=half)
            )
    except (TypeError, ValueError, AttributeError):  # other structures
        return False
