"""The result of the rung trt-gpu, from what its engines showed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from onnxfix.causes import Cause
from onnxfix.verification.rungs.gpu_state import REPEATS, Evidence, State
from onnxfix.verification.rungs.judge import ORACLES
from onnxfix.verification.rungs.trials import shapes
from onnxfix.verification.verdict import Executed, FeedResult, Outcome, RungResult, Status

NAME = "trt-gpu"


def done(
    state: State, status: Status, reason: str, cause: Cause = "", *, inherited: bool = False
) -> RungResult:
    """The result, with notes on what was not compared. ``inherited``: the original fails in the same way."""
    seen = state.seen
    if seen.excluded:
        names = ", ".join(sorted(seen.excluded))
        seen.notes.append(f"not compared, since the original is not deterministic there: {names}")
    unsteady = sorted(seen.unsteady - seen.excluded)
    if unsteady:
        seen.notes.append(f"not the same bits in {REPEATS} runs on the same inputs: {', '.join(unsteady)}")
    if seen.unread:
        seen.notes.append(f"not compared: output {'; output '.join(seen.unread.values())}")
    return RungResult(
        NAME,
        status,
        reason,
        tuple(seen.results),
        tuple(sorted(seen.excluded)),
        tuple(seen.notes),
        builds=tuple(state.builds.values()),
        inherited=inherited and state.request.inherit,
        executed=_executed(state),
        cause=cause,
    )


def _executed(state: State) -> Executed | None:
    """What engines did, as data; None where none was run."""
    if not state.seen.judged:
        return None
    choice, card = state.builder.choice, state.probe.card
    outcome = next(
        (one for one in ("wrong", "unsteady", "alike", "repaired") if one in state.seen.findings), "agree"
    )
    evidence = state.seen.findings.get(outcome, Evidence("", ""))
    return Executed(
        package=choice.package,
        version=choice.version,
        gpu=card.name if card is not None else "",
        compute_capability=card.capability if card is not None else "",
        listed=state.probe.listed,
        precision=state.probe.precision,
        outcome=cast("Outcome", outcome),
        reason=evidence.reason,
        output=evidence.output,
        noise=tuple(state.noise.shares.items()),
    )


def conclude(state: State) -> RungResult:
    """The result of all trials, none of which refutes the fixed model."""
    seen = state.seen
    if not seen.judged and seen.refused:
        return done(state, "skipped", seen.refused[0].reason, seen.refused[0].cause)
    if not seen.judged:
        return done(state, "skipped", "no run finished within the time limit")
    counted = [one for one in seen.results if one.status in ("identical", "within")]
    if not any(part.elements for one in seen.results for part in one.metrics):
        return done(state, "skipped", "every output is empty, so no value was compared")
    _add_notes(state)
    for finding, words in (
        ("unsteady", "no fix is to blame"),
        ("alike", "the new model's engine is no worse"),
    ):
        if finding in seen.findings:
            reason = seen.findings[finding].reason
            if state.single or not state.request.inherit:
                return done(state, "failed", reason, inherited=state.single and finding == "unsteady")
            return done(state, "passed", f"{words}: {reason}")
    allowed = state.request.allowed
    how = f"within {allowed.words}" if allowed is not None else "within tolerance"
    how = "identical" if all(one.status == "identical" for one in counted) else how
    count, sizes = len(seen.judged), len(shapes(seen.judged))
    over = f" over {sizes} shapes" if sizes > 1 else ""
    reason = f"{_agreement(state, counted)}: {how} on {count} feed{'s' * (count > 1)}{over}"
    no_reference = state.original.silent
    more = [state.original.lacking, f"there is no reference result: {no_reference}" if no_reference else ""]
    if "repaired" in seen.findings:
        more.insert(0, seen.findings["repaired"].reason)
    return done(state, "passed", "; ".join([reason, *filter(None, more)]))


def _agreement(state: State, counted: Sequence[FeedResult]) -> str:
    """Which of the engines and the reference agree, as text."""
    engines = any(one.sides == "engines" for one in counted) and "repaired" not in state.seen.findings
    oracle = any(one.sides != "engines" for one in counted)
    if engines:
        also = f" and with {ORACLES[state.original.oracle]}" if oracle else ""
        return f"the engines of the original and of the new model agree with each other{also}"
    return f"{state.engine_name} agrees with {ORACLES[state.original.oracle]}"


def _add_notes(state: State) -> None:
    seen = state.seen
    if seen.refused:
        many = f"{len(seen.refused)} feeds do" if len(seen.refused) > 1 else "1 feed does"
        seen.notes.append(f"{many} not count: {seen.refused[0].reason}")
    if state.request.trt.tf32:
        seen.notes.append("TF32 was allowed, and outputs were compared within half precision's tolerance")
    elif state.probe.precision == "tf32":
        seen.notes.append(
            "TF32 could not be turned off here, and outputs were compared within half precision's tolerance"
        )
    seen.notes.extend(seen.graces[:1])
    seen.notes.extend(state.noise.notes())
    values = [value for one in seen.judged if one.expected for value in one.expected.outputs.values()]
    if any(isinstance(value, np.ndarray) and value.dtype == np.float64 for value in values):
        seen.notes.append("TensorRT computes float64 as float32, and was compared as such")
    seen.notes.append(f"executed by {state.builder.product} on {state.probe.where}")
