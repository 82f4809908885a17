"""Reports as text: findings by rule, applied and withdrawn fixes, rungs, and the files written.

Names of nodes may contain escape sequences and line breaks, so all text is made printable first.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from onnxfix.report.render.builds import build_lines
from onnxfix.report.render.intake import intake_lines
from onnxfix.report.render.latency import latency_lines
from onnxfix.report.render.lines import Line, line
from onnxfix.report.render.networks import network_lines
from onnxfix.report.render.pointers import required_option
from onnxfix.report.render.stopped import stopped_lines
from onnxfix.report.render.stream import printable
from onnxfix.report.report import AppliedFix, Finding, Report, StepDone

if TYPE_CHECKING:
    from onnxfix.verification.verdict import RungResult

SHOWN = 5
"""Findings of one rule that are listed without ``--verbose``."""

_STYLE = {
    "error": "bold red",
    "warning": "yellow",
    "info": "cyan",
    "passed": "green",
    "failed": "bold red",
    "broke": "bold red",
}
PLEASE_REPORT = "a bug in onnxfix, please report it"
"""Added to every rung that broke, whatever the reason."""


def render_report(report: Report, *, quiet: bool = False, verbose: bool = False) -> Iterator[Line]:
    """The lines of one report. ``quiet`` keeps the summary only; ``verbose`` lists every finding and metric."""
    # There may be tens of thousands of these, and few are shown.
    many = {"findings": report.findings, "applied": report.applied}
    report = replace(_printable(replace(report, findings=(), applied=())), **many)
    if report.command == "verify":
        title = report.path if not report.output else f"{report.path} against {report.output}"
        yield line((title, "bold"), "  ", _outcome(report))
    else:
        yield line((report.path, "bold"), f"  {_headline(report)}")
    if report.won and report.headline:
        yield line(f"  before: {report.builds[0].reason}")
    elif report.righted and report.headline:
        yield line(f"  before: {report.networks[0].grave[0]}")
    if not quiet:
        yield from _steps(report.steps)
        yield from _findings(report.findings, verbose)
        yield from _applied(report.applied, verbose)
        for item in report.withdrawn:
            yield line(
                ("  withdrawn ", "bold red"),
                f"{item.code} at {printable(str(item.place))}: {item.fix}: {item.reason}",
            )
        if report.build is not None and verbose:
            yield from (line(f"  {each}") for each in build_lines([report.build]))
        if report.network is not None and verbose:
            yield from (line(f"  {each}") for each in network_lines([report.network]))
        if report.intake is not None:
            yield from (line(f"  {each}") for each in intake_lines(report.intake, verbose))
        yield from _rungs(report, verbose)
    if quiet:  # rungs are not listed, but broken ones are more than a detail
        for rung in report.verdict.broken if report.verdict is not None else ():
            yield line(("  warning ", "yellow"), f"{rung.name} broke: {rung.reason} ({PLEASE_REPORT})")
    for problem in report.problems:
        blame = " (a bug in onnxfix or in the rule)" if problem.source == "onnxfix" else ""
        yield line(("  problem ", "bold red"), f"{problem}{blame}")
    for note in report.notes if not quiet else ():
        yield line(f"  note: {note}")
    yield from _ending(report)


def _printable(value: Any) -> Any:
    """The same record with every string in it made safe to print."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, tuple):
        items = tuple(map(_printable, value))
        return value if all(map(operator.is_, items, value)) else items
    if hasattr(value, "on_one_line"):  # TensorRT's own line breaks do not forge lines
        value = value.on_one_line()
    if isinstance(value, Mapping):
        return {_printable(key): _printable(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        current = [(f.name, getattr(value, f.name)) for f in fields(value) if f.init]
        changed = {name: safe for name, item in current if (safe := _printable(item)) is not item}
        return replace(value, **changed) if changed else value
    return value


def _outcome(report: Report) -> tuple[str, str]:
    """A verdict in a word or two, with its style."""
    if report.verdict is not None and report.verdict.passed:
        return ("verified" if report.verdict.compared else "passed; no values were compared"), "green"
    refuting = _refuting(report)
    failed = bool(refuting) and _refused_by_tensorrt(refuting) is None
    return ("failed" if failed else f"not verified: {_unverified(report)}"), "bold red"


#: The status of a rung that ran and did not pass.
_NOT_PASSED = ("failed", "broke")
_REFUSALS = {"trt-build": "TensorRT does not build it", "trt-network": "TensorRT reads it differently"}


def _refuting(report: Report) -> list[str]:
    """The rungs that found a difference."""
    return [rung.name for rung in report.verdict.rungs if rung.refutes] if report.verdict is not None else []


def _refused_by_tensorrt(refuting: list[str]) -> str | None:
    """What TensorRT alone objects to, if no other rung found a difference."""
    return _REFUSALS.get(refuting[0]) if len(refuting) == 1 else None


def _unverified(report: Report) -> str:
    """Why a verdict is not "passed": a rung found a difference, a required rung did not run, or none ran."""
    refuting = _refuting(report)
    if refuting:
        return _refused_by_tensorrt(refuting) or "the result did not verify"
    rungs = report.verdict.rungs if report.verdict is not None else ()
    results = {rung.name: rung for rung in rungs}
    for name in report.verdict.required if report.verdict is not None else ():
        rung = results.get(name)
        if rung is None or rung.status != "passed":
            if rung is not None and rung.status in _NOT_PASSED:
                return f"{name} was required and {rung.status}"
            return f"{name} was required and could not be run{f': {rung.reason}' if rung is not None else ''}"
    broken = report.verdict.broken if report.verdict is not None else ()
    if broken:
        return f"no rung could run the model, and {', '.join(rung.name for rung in broken)} broke"
    return "no rung could run the model"


def _headline(report: Report) -> str:
    counts = Counter(item.severity for item in report.findings)
    kinds = ", ".join(f"{counts[name]} {name}" for name in ("error", "warning", "info") if counts[name])
    parts = [f"{len(report.findings)} finding{_s(report.findings)}{f' ({kinds})' if kinds else ''}"]
    if report.command == "apply":
        parts = [
            f"{len(report.applied)} fixed",
            f"{len(report.findings)} left",
            *([f"{len(report.withdrawn)} withdrawn"] if report.withdrawn else []),
            *([f"{dropped} dropped"] if (dropped := _dropped(report)) else []),
            f"{report.nodes_before} → {report.nodes_after} nodes",
        ]
    headline = f"{report.headline}; " if report.headline else ""
    reused = "unchanged, skipped: " if report.reused else ""
    return f"{reused}{headline}{', '.join(parts)}  (target {report.target}, {report.seconds:.1f} s)"


def _dropped(report: Report) -> int:
    return sum(step.status == "dropped" for step in report.steps)


def _s(items: Sequence[object]) -> str:
    return "" if len(items) == 1 else "s"


def _steps(steps: Sequence[StepDone]) -> Iterator[Line]:
    """The whole-model steps: the effect of each, or why its result was dropped."""
    for step in steps:
        style = "bold red" if step.status == "dropped" else "yellow" if step.safety == "unsafe" else "green"
        nodes = f", {step.nodes_before} → {step.nodes_after} nodes" if step.status == "taken" else ""
        level = f", {step.safety}" if step.safety else ""
        text = f" {step.name} ({step.tool}{level}{nodes}): {step.reason}"
        yield line((f"  {step.status}", style), text)


def _findings(findings: Sequence[Finding], verbose: bool) -> Iterator[Line]:
    for (code, name), group in groupby(findings, key=lambda f: (f.code, f.name)):
        items = list(group)
        yield line(("  ", ""), (printable(code), "bold"), f" {printable(name)} ({len(items)})")
        for item in map(_printable, items if verbose else items[:SHOWN]):
            yield line(
                "    ",
                (item.severity, _STYLE.get(item.severity, "")),
                f" {printable(str(item.place))}: {item.message}{_confirmed(item, verbose)}{_remedy(item)}",
            )
        yield from _more(len(items), verbose)


def _confirmed(item: Finding | AppliedFix, verbose: bool) -> str:
    if not item.confirmed and not item.on_engine:
        return ""
    message = (
        f": {item.confirmed}" if verbose and item.confirmed and item.confirmed not in item.message else ""
    )
    return f" (confirmed {'on the engine' if item.on_engine else 'by TensorRT'}{message})"


def _remedy(item: Finding) -> str:
    if item.pointer:
        return f" [{item.pointer}]"
    return f" [fix: {item.fix} ({item.safety}{required_option(item.safety)})]" if item.fix else ""


def _more(count: int, verbose: bool) -> Iterator[Line]:
    if not verbose and count > SHOWN:
        yield line(f"    … and {count - SHOWN} more (--verbose lists them)", style="dim")


def _applied(applied: Sequence[AppliedFix], verbose: bool) -> Iterator[Line]:
    by_rule = sorted(applied, key=lambda item: item.code)
    for (code, name), group in groupby(by_rule, key=lambda item: (item.code, item.name)):
        items = list(group)
        yield line(("  fixed ", "green"), (printable(code), "bold"), f" {printable(name)} ({len(items)})")
        for item in map(_printable, items if verbose else items[:SHOWN]):
            level = "" if item.safety == "exact" else f" ({item.safety})"
            yield line(f"    {printable(str(item.place))}: {item.fix}{level}{_confirmed(item, verbose)}")
        yield from _more(len(items), verbose)


def _rungs(report: Report, verbose: bool) -> Iterator[Line]:
    for rung in report.verdict.rungs if report.verdict is not None else ():
        style = _STYLE.get(rung.status, "dim")
        blame = f" ({PLEASE_REPORT})" if rung.status == "broke" else ""
        reason = f"  {rung.reason}{blame}" if rung.reason or blame else ""
        yield line(f"  {rung.name:<12}", (rung.status, style), reason)
        if rung.latency is not None:
            yield from latency_lines(rung.latency)
        if verbose:
            yield from (line(f"    {each}") for each in _details(rung))


def _details(rung: RungResult) -> Iterator[str]:
    seen: set[str] = set()
    for feed in rung.feeds:
        reason = "as above" if feed.reason in seen else feed.reason
        seen.add(feed.reason)
        yield f"{feed.label}: {feed.status}{f': {reason}' if feed.reason else ''}"
    yield from build_lines(rung.builds)
    yield from network_lines(rung.networks)
    if rung.excluded:
        yield f"not compared, the original is not deterministic: {', '.join(rung.excluded)}"
    yield from rung.notes
    yield f"{rung.seconds:.2f} s, seed {rung.seed}"


def _ending(report: Report) -> Iterator[Line]:
    if report.command == "verify":
        yield from _stopped(report)
    if report.command != "apply":
        return
    if report.output:
        what = "written" if report.changed else "written unchanged, byte for byte"
        yield line("  ", (what, "bold"), f": {report.output}")
    elif report.verdict is not None and not report.verdict.passed:
        yield line(f"  nothing was written: {_unverified(report)}", style="bold red")
        if not report.verdict.failed:
            yield from _stopped(report)
            begin = (
                ""
                if report.stopped is not None
                else "pass inputs that the model accepts by --inputs or --input-shapes; "
            )
            yield line(
                f"  ({begin}onnxfix check --inputs-help shows what is known about them. "
                "--no-verify writes the result unverified: only its interface is checked)"
            )


def _stopped(report: Report) -> Iterator[Line]:
    if report.stopped is not None:
        yield from (line(f"  {each}") for each in stopped_lines(report.stopped, report.path, report.command))


def render_summary(
    reports: Sequence[Report], errors: Sequence[tuple[str, str]], crashed: int = 0
) -> Iterator[Line]:
    """One line over several models. Of the errors, ``crashed`` ended their process or lacked memory."""
    fixed = sum(len(report.applied) for report in reports)
    left = sum(len(report.findings) for report in reports)
    failed = [r for r in reports if r.verdict is not None and not r.verdict.passed]
    parts = [f"{len(reports) + len(errors)} models", f"{fixed} fixed", f"{left} findings left"]
    won = sum(report.won for report in reports)
    parts += [f"{won} that TensorRT refused and now accepts"] if won else []
    righted = sum(report.righted for report in reports)
    parts += [f"{righted} that TensorRT read differently and now imports correctly"] if righted else []
    parts += [f"{len(failed)} not verified"] if failed else []
    broke = sum(r.verdict is not None and bool(r.verdict.broken) for r in reports)
    parts += [f"{broke} with a broken rung"] if broke else []
    parts += [f"{len(errors) - crashed} unreadable"] if len(errors) > crashed else []
    parts += [f"{crashed} crashed or out of memory"] if crashed else []
    again = sum(report.reused for report in reports)
    parts += [f"{again} unchanged and skipped"] if again else []
    yield line(", ".join(parts), style="bold")
