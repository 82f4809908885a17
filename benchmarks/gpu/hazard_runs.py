"""An example of a rule on the engine, before and after its fix: what became of it on each of its feeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import onnx

from gpu.engines import Bench, Executed
from gpu.hazard_cases import AFTER, FIXED, Case, Entry, Truth, fitted, typed
from onnxfix.proof.compare.compare import Metrics, compare, largest
from onnxfix.proof.compare.twin import half_type
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
    """One feed of an engine that ran. ``largest`` is the largest error over pairs of finite values, ``relative`` the
    largest as a share of its output's largest magnitude."""

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


def compare_outputs(expected: Sequence[Any], found: Sequence[Any], half: str) -> list[Metrics]:
    """Every output by the tolerances of ``onnxfix verify``; ``half`` is the half-precision type of the model."""
    pairs = zip(_as_computed(expected, found), found, strict=True)
    with np.errstate(all="ignore"):
        return [one for a, b in pairs for one in compare("", a, b, exact=False, coarse=half)]


def _as_computed(expected: Sequence[Any], found: Sequence[Any]) -> list[Any]:
    """What is expected, with float64 rounded to float32 where TensorRT computed that: it has no wider type."""
    pairs = zip(expected, found, strict=True)
    return [
        a.astype(np.float32)
        if isinstance(a, np.ndarray) and a.dtype == np.float64 and getattr(b, "dtype", None) == np.float32
        else a
        for a, b in pairs
    ]


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
    told = Outcome("right", executed.reason, executed.stage, executed.operator)
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
    missing = [name for name in names if name not in outputs]
    if missing:
        return Fed("unfed", executed.unread.get(missing[0], f"the engine has no output {missing[0]}"))
    found = [outputs[name] for name in names]
    half = half_type(proto)
    results = [compare_outputs(typed(one.outputs[number], proto), found, half) for one in truths]
    first = results[0]
    most, share = largest(first), largest(first, relative=True)
    sizes = (most.max_abs if most is not None else 0.0, share.relative if share is not None else 0.0)
    right = [all(one.agreement != "different" for one in result) for result in results]
    if right[0]:
        return Fed("right", "", *sizes)
    reason = next(
        f"{names[n]}: {describe(one)}" for n, one in enumerate(first) if one.agreement == "different"
    )
    return Fed("other" if any(right) else "wrong", reason, *sizes)


def describe(one: Metrics) -> str:
    """Where an output is wrong, and by how much."""
    values = f", {' expected, '.join(one.values)} found" if one.values else ""
    return f"{one.reason}{values}"
