"""An example of a rule on the engine, before and after its fix: what became of it on each of its feeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import onnx
from acceptance.cases import NodeCase, half_type
from acceptance.judging import Miss, misses

from gpu.engines import Bench, Executed
from gpu.hazard_cases import AFTER, FIXED, Case, Entry, Truth, fitted, typed
from onnxfix.proof.compare.compare import Metrics, compare, largest
from onnxfix.runtime.sandbox import one_line
from onnxfix.tensorrt.records import Profile

#: right: within the tolerance of the type. parser to unfed: as in ``engines.How``. other: does not meet the truth that
#: decides, but another one: half precision that leaves its range. unknown: it ran, and nobody knows what is right.
#: error: of what measures here.
Status = Literal[
    "right", "other", "wrong", "parser", "builder", "timeout", "crash", "failed", "unfed", "unknown",
    "error", "not measured",
]  # fmt: skip


@dataclass(frozen=True)
class Fed:
    """One feed of an engine that ran. ``largest`` and ``relative`` as in ``Judged``."""

    status: Status
    reason: str = ""
    largest: float = 0.0
    relative: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """One model on the engine. ``status`` is the worst of its feeds'; ``reason`` is TensorRT's, or that feed's."""

    status: Status
    reason: str = ""
    stage: str = ""
    operator: str = ""
    feeds: tuple[Fed, ...] = ()
    seconds: Sequence[float] = ()


@dataclass(frozen=True)
class Judged:
    """What an engine's outputs are worth for one truth: right within the tolerance of their type, wrong, or unfed.

    ``reason`` is the first element that is not the expected one. ``largest`` and ``relative`` are the largest error,
    and as a share of the output's largest magnitude, over pairs of finite values.
    """

    status: Literal["right", "wrong", "unfed"]
    reason: str = ""
    largest: float = 0.0
    relative: float = 0.0


def judge(case: NodeCase, executed: Executed) -> Judged:
    """Hold what the engine gave against a truth: bit for bit, or within the tolerances of ``onnxfix verify``."""
    model = onnx.load_model_from_string(case.data)
    names = [one.name for one in model.graph.output]
    missing = [name for name in names if any(name not in one for one in executed.outputs)]
    if missing:
        return Judged("unfed", executed.unread.get(missing[0], f"the engine has no output {missing[0]}"))
    found = [[one[name] for name in names] for one in executed.outputs]
    missed = compared(case.expected, found, case.rtol, case.atol)
    metrics = measured(case, found, half_type(model))
    most, share = largest(metrics), largest(metrics, relative=True)
    right = not missed or all(one.agreement != "different" for one in metrics)
    number, first = missed[0] if missed else (0, None)
    return Judged(
        "right" if right else "wrong",
        first.text.replace("output 0", f"output {number}") if first is not None else "",
        most.max_abs if most is not None else 0.0,
        share.relative if share is not None else 0.0,
    )


def measured(case: NodeCase, found: Sequence[Sequence[Any]], half: str) -> list[Metrics]:
    """Every output by the tolerances of ``onnxfix verify``; ``half`` is the half-precision type of the model."""
    pairs = [
        (a, b)
        for wanted, have in zip(case.expected, found, strict=True)
        for a, b in zip(due(wanted, have), have, strict=False)
    ]
    with np.errstate(all="ignore"):
        return [one for a, b in pairs for one in compare("", a, b, exact=False, coarse=half)]


def due(expected: Sequence[Any], found: Sequence[Any]) -> list[Any]:
    """What ONNX expects, with float64 rounded to float32 where TensorRT computed that: it has no wider type."""
    pairs = zip(expected, found, strict=True)
    return [
        a.astype(np.float32)
        if isinstance(a, np.ndarray) and a.dtype == np.float64 and getattr(b, "dtype", None) == np.float32
        else a
        for a, b in pairs
    ]


def compared(
    expected: Sequence[Sequence[Any]], found: Sequence[Sequence[Any]], rtol: float, atol: float
) -> tuple[tuple[int, Miss], ...]:
    """Every output of every data set that is not the expected one, with its number; -1: there are more, or fewer."""
    missed: list[tuple[int, Miss]] = []
    for wanted, have in zip(expected, found, strict=True):
        if len(wanted) != len(have):
            missed += [(-1, one) for one in misses(wanted, have, rtol, atol)]
            continue
        for number, (a, b) in enumerate(zip(due(wanted, have), have, strict=True)):
            missed += [(number, one) for one in misses([a], [b], rtol, atol)]
    return tuple(missed)


def run(bench: Bench, entry: Entry, case: Case, side: str) -> dict[str, Any]:
    """Build and run the model of one side; as JSON can hold it. Never raises for one example."""
    try:
        return asdict(_run(bench, entry, case, side))
    except Exception as error:  # the others must be measured all the same
        return asdict(Outcome("error", one_line(f"{type(error).__name__}: {error}"), "judge"))


def _run(bench: Bench, entry: Entry, case: Case, side: str) -> Outcome:
    data = case.models[side]
    proto = onnx.load_model_from_string(data)
    feeds = [fitted(feed, proto) for feed in case.feeds]
    # Without inputs the builder still says whether it takes the model.
    executed = bench.execute(data, feeds, Profile.of_feeds(feeds) if feeds else None)
    told = Outcome("right", executed.reason, executed.stage, executed.operator, (), executed.seconds)
    if executed.how != "ran":
        return replace(told, status=executed.how)
    if not feeds:
        return replace(told, status="unfed", reason=entry.unfed or entry.untrue)
    truths = [one for one in case.truths if side == AFTER or one.source != FIXED]
    found = tuple(fed(proto, data, executed, number, truths, entry) for number in range(len(feeds)))
    worst = max(found, key=lambda one: _ORDER.index(one.status))
    return replace(told, status=worst.status, reason=worst.reason, feeds=found)


_ORDER: tuple[Status, ...] = ("right", "other", "unknown", "unfed", "wrong")


def fed(
    proto: onnx.ModelProto,
    data: bytes,
    executed: Executed,
    number: int,
    truths: Sequence[Truth],
    entry: Entry,
) -> Fed:
    """What the engine gave for one feed."""
    outputs = executed.outputs[number]
    names = [one.name for one in proto.graph.output]
    if not truths:
        return Fed("unknown", entry.untrue)
    own = replace(executed, outputs=(outputs,))
    # No tolerance of a case of its own: that of the type decides.
    cases = [
        NodeCase(entry.key, data, ({},), (typed(one.outputs[number], proto),), 0.0, 0.0) for one in truths
    ]
    results = [judge(one, own) for one in cases]
    first = results[0]
    if first.status == "right":
        return Fed("right", "", first.largest, first.relative)
    if first.status != "wrong":
        return Fed("unfed", first.reason)
    status: Status = "other" if any(one.status == "right" for one in results) else "wrong"
    metrics = measured(cases[0], [[outputs[name] for name in names]], half_type(proto))
    reason = next(
        (f"{names[n]}: {said(one)}" for n, one in enumerate(metrics) if one.agreement == "different"), ""
    )
    return Fed(status, reason or first.reason, first.largest, first.relative)


def said(one: Metrics) -> str:
    """Where an output is wrong, and by how much."""
    values = f", {' expected, '.join(one.values)} found" if one.values else ""
    return f"{one.reason}{values}"
