"""What was proven, as lines: the verdict in a few words, the checks in one line, and failures with their reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from onnxfix.report.render.details import (
    describe_outcome,
    describe_reason,
    stop_of,
)
from onnxfix.report.render.lines import GLUE, Line, counted, labeled, percent
from onnxfix.report.render.terminal import STYLES
from onnxfix.report.report import Report
from onnxfix.report.summary import RungFact, TrtFact

if TYPE_CHECKING:
    from onnxfix.proof.verdict import RungResult
    from onnxfix.tensorrt.timing import Latency

NOT_COMPARED = "NOT VERIFIED (values were not compared)"
_PROOFS = {
    "verified": ("VERIFIED", "bold green"),
    "partly": ("NOT VERIFIED with the UNSAFE fixes", "bold yellow"),
    "unchanged": ("UNCHANGED", "green"),
    "not compared": (NOT_COMPARED, "bold yellow"),
}
_LABELS = {"verified": ("VERIFIED:", "bold green"), "unchanged": ("unchanged", "green")}
_AGREEMENTS = {"identical": "bit-identical", "within": "within tolerance"}
_WHY_NOT = {"no-gpu": "no GPU", "not-installed": "not installed"}
_SHORT = 40
"""Characters up to which a reason why a check was not run stands in one line with the others."""
_REFUSALS = {"trt-build": "TensorRT does not build it", "trt-network": "TensorRT reads it differently"}
"""What TensorRT alone objects to. These checks are in a line of TensorRT's."""
_BUILT = {
    "accepted": "builds it",
    "refused": "refuses it",
    "crash": "crashes on it",
    "timeout": "takes too long to build it",
    "memory": "runs out of memory",
    "target-only": "lacks an operator that the target has, and builds nothing",
}
_READ = {
    "differs": "reads it differently",
    "gap": "its network cannot be read back",
    "unknown": "its network could not be compared",
    "broke": "its network could not be compared",
}
_THOROUGH = "--effort thorough"


def describe_status(report: Report) -> tuple[str, str]:
    """The verdict in a few words, with its style; ("", "") where there is none."""
    proof = report.summary.proof
    refuting = [check.name for check in report.checks if check.refutes]
    if proof == "failed":
        refused = _REFUSALS.get(refuting[0]) if len(refuting) == 1 else None
        return (f"NOT VERIFIED: {refused}" if refused else f"FAILED: {', '.join(refuting)}"), "bold red"
    if proof == "unproven":
        return f"NOT VERIFIED: {why_not_proven(report)}", "bold red"
    return _PROOFS.get(proof, ("", ""))


def why_not_proven(report: Report) -> str:
    """Why nothing is proven although no check found a difference: a required one did not pass, or none ran."""
    for name in report.verdict.required if report.verdict is not None else ():
        check = report.check(name)
        if check is None or check.status != "passed":
            if check is not None and check.status in ("failed", "broke"):
                return f"{name} was required and {check.status}"
            return (
                f"{name} was required and could not be run{f': {check.reason}' if check is not None else ''}"
            )
    broken = report.verdict.broken if report.verdict is not None else ()
    if broken:
        return f"no check could run the model, and {', '.join(check.name for check in broken)} broke"
    undecided = [check.name for check in report.checks if check.cause == "undecided"]
    others = [check for check in report.checks if check.compares and check.name not in undecided]
    if undecided and not others:
        return f"{undecided[0]} could not decide"
    if report.stopped is None:
        return "no check could run the model"
    if not report.stopped.loaded:
        return "ONNX Runtime does not load the original"
    return f"the original stops at {stop_of(report.stopped)}"


def proof_lines(report: Report) -> Iterator[Line]:
    """What was proven, in one line for values and one for TensorRT; then the checks of which there is more to say."""
    if report.verdict is None:
        return
    apart = [check for check in report.checks if _needs_own_line(check, report)]
    worst = [check for check in apart if check.status in ("failed", "broke")]
    for check in worst:
        yield check_line(check)
        yield from _other_outputs(check)
    yield from _value_lines(report, apart)
    if report.summary.tensorrt is not None:
        yield tensorrt_line(report.summary.tensorrt)
    yield from (check_line(check) for check in apart if check not in worst)
    for check in report.checks:
        if check.latency is not None:
            yield from latency_lines(check.latency)


def _other_outputs(check: RungResult) -> Iterator[Line]:
    """A line for each output that differs on the feed that failed, but the first, which the check's reason is about."""
    from onnxfix.proof.compare.compare import difference, different  # lazy: start-up

    feed = next((one for one in check.feeds if one.status == "different"), None)
    for metric in different(feed.metrics)[1:] if feed is not None else ():
        yield labeled("", difference(metric), style="")


def _value_lines(report: Report, apart: Sequence[RungResult]) -> Iterator[Line]:
    """The line about values, without the checks that have lines of their own, and what was left out."""
    names = {check.name for check in apart}
    facts = [fact for fact in report.summary.rungs if fact.name not in names]
    parts = _values(report, facts)
    label, style = _LABELS.get(report.summary.proof, ("checked", "bold"))
    if report.command == "verify":  # the headline has the verdict
        label, style = "checked", "bold"
    if parts:
        yield labeled(label, " · ".join(parts), style=style)
    if skipped := _skipped(facts):
        yield labeled("not run", skipped, style="")
    for words in filter(None, map(describe_left_out, report.summary.rungs)):
        yield labeled("left out", words.replace(_THOROUGH, _THOROUGH.replace(" ", GLUE)))


def describe_left_out(fact: RungFact) -> str:
    """Which planned inputs a check left out, and how to run them; "" for none."""
    if not fact.left_out:
        return ""
    cost = f"{max(fact.spared, 1):,.0f} s"
    return f"{counted(fact.left_out, 'planned input')} of {fact.name}, about {cost} → {_THOROUGH}"


def _values(report: Report, facts: Sequence[RungFact]) -> list[str]:
    """What compared values, and what else passed: ``for all values at 3 shapes (symbolic), ort-cpu bit-identical
    (4 feeds)``."""
    compared: dict[str, list[str]] = {}
    proven = [
        f"{fact.reason} ({fact.name})"
        for fact in facts
        if fact.name == "symbolic" and fact.status == "passed"
    ]
    for fact in facts:
        if fact.status == "passed" and fact.agreement and fact.name not in _REFUSALS:
            compared.setdefault(_how(fact), []).append(fact.name)
    proven += [f"{', '.join(names)} {how}" for how, names in compared.items()]
    parts = [", ".join(proven)] if proven else []
    contract = next((fact for fact in facts if fact.name == "contract"), None)
    if report.summary.proof == "unchanged":
        but = ", but for what it says of its data files" if report.renamed else ", byte for byte"
        parts.append(f"the output is the input{but}")
    elif not proven and contract is not None and contract.status == "passed":
        parts.append(contract.reason)
    if random := next((check.random for check in report.checks if check.random), ()):
        more = f" and {len(random) - 2} more" if len(random) > 2 else ""
        parts.append(f"the same random numbers in both for {', '.join(random[:2])}{more}")
    parts += [f"{fact.name} undecided ({fact.reason})" for fact in facts if fact.cause == "undecided"]
    return parts


def _skipped(facts: Iterable[RungFact]) -> str:
    """The checks that were not run, by the reason: ``ort-cuda, trt-gpu (no GPU)``."""
    reasons: dict[str, list[str]] = {}
    for fact in facts:
        asked = fact.status == "skipped" and fact.name != "trt-network"
        if fact.cause not in ("undecided", "redundant") and (asked or fact.cause in _WHY_NOT):
            reasons.setdefault(_WHY_NOT.get(fact.cause, fact.reason), []).append(fact.name)
    return ", ".join(f"{', '.join(names)} ({why.replace(' ', GLUE)})" for why, names in reasons.items())


def _how(fact: RungFact) -> str:
    shapes = f", {counted(fact.shapes, 'shape')}" if fact.shapes > 1 else ""
    number = f"({counted(fact.feeds, 'feed')}{shapes})".replace(" ", GLUE)
    how = f"within {fact.tolerance.replace(' ', GLUE)}" if fact.tolerance else _AGREEMENTS[fact.agreement]
    return f"{how} {number}"


def tensorrt_line(fact: TrtFact) -> Line:
    """Which TensorRT judged, and what it made of the result; failures have lines of their own."""
    from onnxfix.tensorrt.package import product  # lazy: start-up

    did = [_BUILT.get(fact.builds[-1], "gave no result")] if fact.builds else []
    if fact.reads and fact.reads[-1] == "agrees":
        feeds = f"({counted(fact.feeds, 'feed')})".replace(" ", GLUE)
        did.append(f"its imported network computes the same {feeds}")
    elif fact.reads and fact.reads[-1] in _READ:
        did.append(_READ[fact.reads[-1]])
    if fact.gpu:
        did.append(f"engines executed on {fact.gpu}")
    elif not fact.builds or fact.builds[-1] == "accepted":
        did.append("no engine was executed")
    name = product(fact.package, fact.version).removeprefix("TensorRT").lstrip("- ")
    other = f", not the target {fact.target}" if fact.target else ""
    capability = f", for compute capability {fact.compute_capability}" if fact.compute_capability else ""
    part = f", in part ({fact.part})" if fact.part else ""
    return labeled("TensorRT", f"{name}{other}{capability}{part}: {'; '.join(did)}")


def _needs_own_line(check: RungResult, report: Report) -> bool:
    """Whether a check needs a line of its own: it failed or broke, could not run for a reason that takes more words, or
    found something besides."""
    if check.name in _REFUSALS and _is_in_findings(check, report):
        return False
    if check.status in ("failed", "broke"):
        return True
    if check.status == "skipped":
        return check.cause not in _WHY_NOT and len(check.reason) > _SHORT
    if check.name == "contract":
        return bool(check.notes)
    if check.executed is not None and check.executed.outcome != "agree":
        return True
    partly = report.verdict is not None and report.verdict.without_unsafe
    return check.sweep is not None or (partly and check.compares)


def _is_in_findings(check: RungResult, report: Report) -> bool:
    """Whether findings say already what TensorRT refuses, which is no fault of the fixes."""
    if check.name == "trt-build" and check.builds and check.builds[-1].errors:
        messages = " ".join(
            item.message if item.code.startswith("TRT") else item.confirmed for item in report.findings
        )
        return not check.refutes and " ".join(check.builds[-1].errors[0].text.split()) in messages
    refused = bool(check.networks) and check.networks[-1].status == "refused"
    return refused and bool(report.builds) and not report.builds[-1].accepted


def check_line(check: RungResult) -> Line:
    """What came of a check, and why."""
    outcome = describe_outcome(check)
    return labeled(outcome.text, f"{check.name}: {describe_reason(check)}", style=STYLES[outcome.kind])


_LAUNCHES = {"cuda-graph": "CUDA graphs", "stream": "stream launches"}


def latency_lines(latency: Latency) -> Iterator[Line]:
    """The medians, then the times of loading and building; or why nothing was measured."""
    original, fixed = latency.original, latency.fixed
    if fixed is None:
        yield labeled("latency", ("not measured", "dim"), f": {latency.reason}", style="")
        return
    sides = [fixed] if original is None else [original, fixed]
    names = [""] if original is None else ["original ", "new "]
    medians = ", ".join(
        f"{name}{one.median_ms:.{3 if one.median_ms >= 0.1 else 4}f} ms"
        for name, one in zip(names, sides, strict=True)
    )
    ratio = "" if latency.ratio is None else f"{latency.ratio:.2f}x, "
    slower = "slower, " if latency.comparison == "slower" else ""
    runs = min(one.runs for one in sides)
    count = f"{runs} run{'s' * (runs > 1)}{'' if original is None else ' each'}"
    launched = f"{_LAUNCHES.get(latency.launch, '')}, {count}; noise {percent(latency.noise or 0.0)})"
    yield labeled("latency", f"{medians} ({ratio}", (slower, "yellow"), launched, style="")
    if latency.fallback:
        yield labeled("", f"no CUDA graphs: {latency.fallback}", style="")
    costs = (
        f"loaded in {_pair(one.load_seconds for one in sides)} s",
        f"first run {_pair(one.jit_seconds for one in sides)} s more",
        f"built in {_pair(one.build_seconds for one in sides)} s",
        f"engine {_pair(one.engine_bytes / (1 << 20) for one in sides)} MiB",
    )
    yield labeled("", "; ".join(costs), style="")


def _pair(values: Iterable[float]) -> str:
    return " → ".join(f"{value:.2f}" for value in values)
