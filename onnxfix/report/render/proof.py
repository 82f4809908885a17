"""What was proven, as lines: the verdict in a few words, the checks in one line, and failures with their reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxfix.report.render.details import build_lines, network_lines, stop_of
from onnxfix.report.render.lines import GLUE, Line, labeled, line
from onnxfix.report.render.words import counted
from onnxfix.report.report import Report
from onnxfix.report.summary import RungFact, Summary, TrtFact
from onnxfix.system import quoted_path

if TYPE_CHECKING:
    from onnxfix.trt.timing import Latency, Timing
    from onnxfix.verification.verdict import RungResult

PLEASE_REPORT = "a bug in onnxfix, please report it"
"""Added to every rung that broke, whatever the reason."""
_STYLE = {"passed": "green", "failed": "bold red", "broke": "bold red"}
_AGREEMENTS = {"identical": "bit-identical", "within": "within tolerance"}
_WHY_NOT = {"no-gpu": "no GPU", "not-installed": "not installed"}
_SHORT = 40
"""Characters up to which a reason why a check was not run stands in one line with the others."""
_REFUSALS = {"trt-build": "TensorRT does not build it", "trt-network": "TensorRT reads it differently"}
_BY_TENSORRT = ("trt-build", "trt-network")
NOT_COMPARED = "NOT VERIFIED (values were not compared)"


# ---------------------------------------------------------------------------------------------------- in a few words


def status_words(report: Report) -> tuple[str, str]:
    """The verdict in a few words, with its style; ("", "") where there is none."""
    proof = report.summary.proof
    if proof == "failed":
        refuting = refuting_checks(report)
        refused = _refused_by_tensorrt(refuting)
        return (f"NOT VERIFIED: {refused}" if refused else f"FAILED: {', '.join(refuting)}"), "bold red"
    if proof == "unproven":
        return f"NOT VERIFIED: {why_unverified(report)}", "bold red"
    words = {
        "verified": ("VERIFIED", "bold green"),
        "partly": ("NOT VERIFIED with the UNSAFE fixes", "bold yellow"),
        "unchanged": ("UNCHANGED", "green"),
        "not compared": (NOT_COMPARED, "bold yellow"),
    }
    return words.get(proof, ("", ""))


def refuting_checks(report: Report) -> list[str]:
    """The rungs that found a difference."""
    return [rung.name for rung in report.checks if rung.refutes]


def _refused_by_tensorrt(refuting: list[str]) -> str | None:
    """What TensorRT alone objects to, if no other rung found a difference."""
    return _REFUSALS.get(refuting[0]) if len(refuting) == 1 else None


def why_unverified(report: Report) -> str:
    """Why a verdict is not "passed": a rung found a difference, a required rung did not run, or none ran."""
    refuting = refuting_checks(report)
    if refuting:
        return _refused_by_tensorrt(refuting) or "the result did not verify"
    rungs = report.checks
    results = {rung.name: rung for rung in rungs}
    for name in report.verdict.required if report.verdict is not None else ():
        rung = results.get(name)
        if rung is None or rung.status != "passed":
            if rung is not None and rung.status in ("failed", "broke"):
                return f"{name} was required and {rung.status}"
            return f"{name} was required and could not be run{f': {rung.reason}' if rung is not None else ''}"
    broken = report.verdict.broken if report.verdict is not None else ()
    if broken:
        return f"no check could run the model, and {', '.join(rung.name for rung in broken)} broke"
    if report.stopped is None:
        return "no check could run the model"
    if not report.stopped.loaded:
        return "ONNX Runtime does not load the original"
    return f"the original stops at {stop_of(report.stopped)}"


# ------------------------------------------------------------------------------------------------------- in one line


def proof_lines(report: Report) -> Iterator[Line]:
    """What was proven, in one line for values and one for TensorRT; then the checks of which there is more to say."""
    if report.verdict is None:
        return
    summary, apart = report.summary, [rung for rung in report.checks if _needs_own_line(rung, report)]
    worst = [rung for rung in apart if rung.status in ("failed", "broke")]
    for rung in worst:
        yield _check_line(rung)
        yield from _other_outputs(rung)
    yield from _diagnosis(report)
    yield from _verdict(report, [rung.name for rung in apart])
    yield from _left_out(summary)
    if summary.tensorrt is not None:
        yield tensorrt_line(summary.tensorrt)
    yield from (_check_line(rung) for rung in apart if rung not in worst)
    for rung in report.checks:
        if rung.latency is not None:
            yield from latency_lines(rung.latency)


def _other_outputs(rung: RungResult) -> Iterator[Line]:
    """A line for each output that differs on the feed that failed, but the first, which the check's reason is about."""
    from onnxfix.verification.compare.compare import difference, different  # lazy: start-up

    feed = next((one for one in rung.feeds if one.status == "different"), None)
    for metric in different(feed.metrics)[1:] if feed is not None else ():
        yield labeled("", difference(metric), style="")


def _diagnosis(report: Report) -> Iterator[Line]:
    """The command that finds the node from which on two models differ, where ``verify`` found that they do."""
    rungs = report.checks
    failed = {rung.name for rung in rungs if any(feed.status == "different" for feed in rung.feeds)}
    if report.command == "verify" and report.output and failed & {"reference", "ort-cpu"}:
        command = f"onnxfix diagnose {quoted_path(report.path)} {quoted_path(report.output)}"
        yield labeled("where", (command, "bold"))


def _verdict(report: Report, apart: list[str]) -> Iterator[Line]:
    """The line about values, without the rungs that have lines of their own."""
    parts = _values(report, apart)
    label, style = _LABELS.get(report.summary.proof, ("checked", "bold"))
    if report.command == "verify":  # the headline has the verdict
        label, style = "checked", "bold"
    if parts:
        yield labeled(label, " · ".join(parts), style=style)


_ALL = "--effort thorough"


def left_out_words(rung: RungFact) -> str:
    """Which planned inputs a check left out, and how to run them; "" for none."""
    if not rung.left_out:
        return ""
    cost = f"{max(rung.spared, 1):,.0f} s"
    return f"{counted(rung.left_out, 'planned input')} of {rung.name}, about {cost} → {_ALL}"


def _left_out(summary: Summary) -> Iterator[Line]:
    for words in filter(None, map(left_out_words, summary.rungs)):
        yield labeled("left out", words.replace(_ALL, _ALL.replace(" ", GLUE)))


def unchanged_words(report: Report) -> str:
    """How the output is the input where no fix applies."""
    if report.renamed:
        return "the output is the input, but for what it says of its data files"
    return "the output is the input, byte for byte"


_LABELS = {"verified": ("VERIFIED:", "bold green"), "unchanged": ("unchanged", "green")}


def _values(report: Report, apart: list[str]) -> list[str]:
    """What compared values, what else passed, and what was not run: ``reference, ort-cpu bit-identical (4 feeds)``."""
    summary = report.summary
    shown = [rung for rung in summary.rungs if rung.name not in apart]
    compared: dict[str, list[str]] = {}
    for rung in shown:
        if rung.status == "passed" and rung.agreement and rung.name not in _BY_TENSORRT:
            compared.setdefault(_how(rung), []).append(rung.name)
    found = [", ".join(f"{', '.join(names)} {how}" for how, names in compared.items())] if compared else []
    contract = next((rung for rung in shown if rung.name == "contract"), None)
    if summary.proof == "unchanged":
        found.append(unchanged_words(report))
    elif not compared and contract is not None and contract.status == "passed":
        found.append(contract.reason)
    rungs = report.checks
    if random := next((rung.random for rung in rungs if rung.random), ()):
        more = f" and {len(random) - 2} more" if len(random) > 2 else ""
        found.append(f"the same random numbers in both for {', '.join(random[:2])}{more}")
    reasons: dict[str, list[str]] = {}
    for rung in shown:
        if (rung.status == "skipped" and rung.name not in _BY_TENSORRT[1:]) or rung.cause in _WHY_NOT:
            reasons.setdefault(_WHY_NOT.get(rung.cause, rung.reason), []).append(rung.name)
    skipped = ", ".join(f"{', '.join(names)} ({why.replace(' ', GLUE)})" for why, names in reasons.items())
    return [*found, *([f"not run: {skipped}"] if skipped else [])]


def _how(rung: RungFact) -> str:
    shapes = f", {counted(rung.shapes, 'shape')}" if rung.shapes > 1 else ""
    number = f"({counted(rung.feeds, 'feed')}{shapes})".replace(" ", GLUE)
    how = f"within {rung.tolerance.replace(' ', GLUE)}" if rung.tolerance else _AGREEMENTS[rung.agreement]
    return f"{how} {number}"


def tensorrt_line(found: TrtFact) -> Line:
    """Which TensorRT judged, and what it made of the result; failures have lines of their own."""
    from onnxfix.trt.package import product  # lazy: start-up

    did = [_BUILT.get(found.builds[-1], "gave no result")] if found.builds else []
    if found.reads and found.reads[-1] == "agrees":
        feeds = f"({counted(found.feeds, 'feed')})".replace(" ", GLUE)
        did.append(f"its imported network computes the same {feeds}")
    elif found.reads and found.reads[-1] in _READ:
        did.append(_READ[found.reads[-1]])
    if found.gpu:
        did.append(f"engines executed on {found.gpu}")
    elif not found.builds or found.builds[-1] == "accepted":
        did.append("no engine was executed")
    name = product(found.package, found.version).removeprefix("TensorRT").lstrip("- ")
    other = f", not the target {found.target}" if found.target else ""
    capability = f", for compute capability {found.compute_capability}" if found.compute_capability else ""
    part = f", in part ({found.part})" if found.part else ""
    return labeled("TensorRT", f"{name}{other}{capability}{part}: {'; '.join(did)}")


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


def _is_in_findings(rung: RungResult, report: Report) -> bool:
    """Whether findings say already what TensorRT refuses, which is no fault of the fixes."""
    messages = " ".join(
        item.message if item.code.startswith("TRT") else item.confirmed for item in report.findings
    )
    if rung.name == "trt-build" and rung.builds and rung.builds[-1].errors:
        return not rung.refutes and " ".join(rung.builds[-1].errors[0].text.split()) in messages
    refused = bool(rung.networks) and rung.networks[-1].status == "refused"
    return refused and bool(report.builds) and not report.builds[-1].accepted


def _needs_own_line(rung: RungResult, report: Report) -> bool:
    """Whether a rung needs a line of its own: it failed or broke, could not run for a reason that takes more words, or
    found something besides."""
    if rung.name in _BY_TENSORRT and _is_in_findings(rung, report):
        return False
    if rung.status in ("failed", "broke"):
        return True
    if rung.status == "skipped":
        return rung.cause not in _WHY_NOT and len(rung.reason) > _SHORT
    if rung.name == "contract":
        return bool(rung.notes)
    if rung.executed is not None and rung.executed.outcome != "agree":
        return True
    partly = report.verdict is not None and report.verdict.without_unsafe
    return rung.sweep is not None or (partly and rung.compares)


def _check_line(rung: RungResult) -> Line:
    blame = f" ({PLEASE_REPORT})" if rung.status == "broke" else ""
    word = "not run" if rung.status == "skipped" else rung.status
    return labeled(word, f"{rung.name}: {rung.reason}{blame}", style=_STYLE.get(rung.status, "dim"))


# ------------------------------------------------------------------------------------------------------------ in full


def check_lines(report: Report) -> Iterator[Line]:
    """The line about values, then every rung with its reason and its details."""
    rungs = report.checks
    yield from _verdict(report, [rung.name for rung in rungs if rung.status in ("failed", "broke")])
    yield from _left_out(report.summary)
    shown_notes: set[str] = set()
    for rung in rungs:
        blame = f" ({PLEASE_REPORT})" if rung.status == "broke" else ""
        reason = f"  {rung.reason}{blame}" if rung.reason or blame else ""
        yield line(f"  {rung.name:<12}", (rung.status, _STYLE.get(rung.status, "dim")), reason, hang=14)
        if rung.latency is not None:
            yield from latency_lines(rung.latency)
        yield from map(_detail, _details(rung))
        yield from map(_detail, (note for note in rung.notes if note not in shown_notes))
        shown_notes.update(rung.notes)
        yield _detail(f"{rung.seconds:.2f} s, seed {rung.seed}")


def _detail(text: str) -> Line:
    """A line below a rung; commands are not wrapped, so that they can be copied."""
    indent = 4 + len(text) - len(text.lstrip(" "))
    command = text.lstrip(" ").startswith(("trtexec ", "polygraphy "))
    return line(f"    {text}", hang=None if command else indent + 2)


def random_words(rung: RungResult) -> str:
    """What was done with the random nodes."""
    return f"random nodes gave both models the same numbers, and were not compared: {', '.join(rung.random)}"


def _details(rung: RungResult) -> Iterator[str]:
    seen: set[str] = set()
    for feed in rung.feeds:
        reason = "as above" if feed.reason in seen else feed.reason
        seen.add(feed.reason)
        yield f"{feed.label}: {feed.status}{f': {reason}' if feed.reason else ''}"
    for one in rung.left_out:
        yield f"{one.label}: left out, about {one.seconds:,.1f} s"
    yield from build_lines(rung.builds)
    yield from network_lines(rung.networks)
    if rung.random:
        yield random_words(rung)
    if rung.excluded:
        yield f"not compared, the original is not deterministic: {', '.join(rung.excluded)}"


# ---------------------------------------------------------------------------------------------------- latency


LAUNCHES = {"cuda-graph": "CUDA graphs", "stream": "stream launches"}
_MIB = 1 << 20


def latency_lines(found: Latency) -> Iterator[Line]:
    """The medians, then the times of loading and building; or why nothing was measured."""
    if found.fixed is None:
        yield line(f"  {'latency':<10}", ("not measured", "dim"), f": {found.reason}")
        return
    sides = [("original ", found.original), ("new ", found.fixed)]
    there = [(name if found.original is not None else "", one) for name, one in sides if one is not None]
    medians = ", ".join(f"{name}{milliseconds(one.median_ms)}" for name, one in there)
    style = "yellow" if found.comparison == "slower" else ""
    yield line(f"  {'latency':<10}", f"{medians} ({_ratio(found)}", (_slower(found), style), _launched(found))
    if found.fallback:
        yield line(f"  {'':<10}no CUDA graphs: {found.fallback}")
    yield line(f"  {'':<10}{'; '.join(_costs([one for _, one in there]))}")


def _ratio(found: Latency) -> str:
    return "" if found.ratio is None else f"{found.ratio:.2f}x, "


def _slower(found: Latency) -> str:
    return "slower, " if found.comparison == "slower" else ""


def _launched(found: Latency) -> str:
    assert found.fixed is not None
    runs = {one.runs for one in (found.original, found.fixed) if one is not None}
    each = " each" if found.original is not None else ""
    count = f"{min(runs)} run{'s' * (min(runs) > 1)}{each}"
    return f"{LAUNCHES.get(found.launch, '')}, {count}; noise {_percent(found.noise or 0.0)})"


def milliseconds(value: float) -> str:
    """A time of an engine."""
    return f"{value:.3f} ms" if value >= 0.1 else f"{value:.4f} ms"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}".removesuffix(".0") + " %"


def _costs(sides: list[Timing]) -> Iterator[str]:
    """Original and fixed, in this order."""
    yield f"loaded in {_pair(one.load_seconds for one in sides)} s"
    yield f"first run {_pair(one.jit_seconds for one in sides)} s more"
    yield f"built in {_pair(one.build_seconds for one in sides)} s"
    yield f"engine {_pair(one.engine_bytes / _MIB for one in sides)} MiB"


def _pair(values: Iterator[float]) -> str:
    return " → ".join(f"{value:.2f}" for value in values)
