"""May it be shipped? What was proven, what TensorRT makes of it, what was not checked, what was written, what is
left, and what to do next: the last lines on a terminal, and the head of a page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from onnxfix.report.findings import SEVERITIES
from onnxfix.report.render import ui
from onnxfix.report.render.details import partition_lines, stopped_lines
from onnxfix.report.render.findings import count_severities
from onnxfix.report.render.lines import GLUE, Line, labeled, line
from onnxfix.report.render.proof import proof_lines, tensorrt_line, why_not_proven
from onnxfix.report.render.words import counted, size
from onnxfix.report.report import Report
from onnxfix.report.summary import AGAINST, Doubt

_ANSWERS = {"yes": ("yes", "bold green"), "open": ("not yet", "bold yellow"), "no": ("no", "bold red")}
_DOUBTS: dict[Doubt, str] = {
    "incomplete": "the report is incomplete",
    "refused": "TensorRT does not build it",
    "misread": "TensorRT reads it differently",
    "wrong engine": "its engine is wrong",
    "not compared": "values were not compared",
    "partly": "the unsafe changes are not proven",
    "only read": "the model was only read",
    "cut": "TensorRT does not take all of it",
    "no TensorRT": "TensorRT was not asked",
    "in part": "TensorRT judged it in part",
    "no engine": "no engine was executed",
    "other TensorRT": "the target's TensorRT was not asked",
}
_PLACES = 8
"""Nodes outside of TensorRT that are named for a reason."""


def answer_lines(report: Report, verbose: bool = False) -> Iterator[Line]:
    """What was proven, what was written, and what is left."""
    yield from proof_lines(report)
    if report.summary.tensorrt is not None and report.verdict is None:
        yield tensorrt_line(report.summary.tensorrt)
    parts = partition_lines(report.partition, report.partition_after, 1_000 if verbose else _PLACES)
    yield from (labeled("" if number else "parts", each, style="") for number, each in enumerate(parts))
    yield from _outcome_lines(report)
    yield from _left_lines(report)


def ship_line(report: Report) -> Line:
    """Whether it may be deployed, and what speaks against it."""
    summary = report.summary
    answer, style = _ANSWERS[summary.ready]
    named = [one for one in summary.doubts if summary.ready == "open" or one in AGAINST]
    words = "; ".join(_doubt(report, doubt) for doubt in named) or "nothing is open"
    return labeled("ship it?", (answer, style), f": {words}", style="")


def _doubt(report: Report, doubt: Doubt) -> str:
    if doubt in ("failed", "unproven"):
        refuting = ", ".join(check.name for check in report.checks if check.refutes)
        words = f"{refuting} failed" if doubt == "failed" else why_not_proven(report)
        return f"{'nothing was written: ' if report.command == 'apply' else ''}{words}"
    if doubt in ("errors", "warnings"):
        count = report.summary.severities[doubt.removesuffix("s")]
        return f"{counted(count, doubt.removesuffix('s'))} {'is' if count == 1 else 'are'} left"
    if doubt == "withdrawn":
        return f"{counted(len(report.withdrawn), 'fix')} withdrawn"
    return _DOUBTS[doubt]


def page_facts(report: Report) -> ui.Facts:
    """The same for the head of a page, the answer first; lines without a label belong to the line before."""
    pairs: list[tuple[str, list[ui.Content]]] = []
    for each in (ship_line(report), *answer_lines(report, verbose=True), *next_line(report)):
        parts = each.parts if len(each.parts) > 1 else (("", ""), ("", ""), *each.parts)
        content: list[ui.Content] = [
            ui.command(text) if text.startswith("onnxfix ") else text for text, _ in parts[2:]
        ]
        name = parts[1][0].strip().rstrip(":")
        if name:
            pairs.append((name if name == "TensorRT" else name.capitalize(), content))
        elif pairs:
            pairs[-1][1].append(ui.Paragraph(content))
    return ui.Facts(pairs)


def next_line(report: Report) -> Iterator[Line]:
    """The command that leads on, where there is one."""
    if command := report.summary.next:
        where = "  on the GPU that it is for" if command.endswith("trt-gpu") else ""
        yield labeled("next", (command.replace(" ", GLUE), "bold"), where, style="")


# ------------------------------------------------------------------------------------------------ what was written

_UNVERIFIED = "--no-verify writes the result unverified: only its interface is checked"


def _outcome_lines(report: Report) -> Iterator[Line]:
    """What was written, or why nothing was and what to do about it."""
    if report.command == "verify":
        yield from _stopped(report)
    if report.engine:
        yield labeled("engine", report.engine)
    if report.command != "apply":
        return
    if report.output:
        was = f" (was {size(report.bytes_before)})" if report.bytes_before != report.bytes_after else ""
        weight = f"  {size(report.bytes_after)}{was}" if report.bytes_after else ""
        yield labeled("written", (report.output, "bold"), weight, *_weights(report))
        yield from _data(report)
    elif report.verdict is not None and not report.verdict.passed:
        yield labeled("written", ("nothing", "bold red"))
        if not report.verdict.failed:
            yield from _stopped(report)
            yield labeled("help", f"{_help(report)}{_UNVERIFIED}", style="")


def _weights(report: Report) -> Iterator[str]:
    """The weights by type, without types of less than a hundredth of their bytes."""
    weights = report.operators_after.weights if report.operators_after is not None else {}
    least = sum(weights.values()) / 100
    if named := [f"{name} {size(count)}" for name, count in weights.items() if count > least]:
        yield f"; weights: {', '.join(named)}"


def _data(report: Report) -> Iterator[Line]:
    """The files that the result needs beside it."""
    for label in ("data", "shared"):
        files = [one for one in report.data if (one.kind == "shared") == (label == "shared")]
        if files:
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            total = size(sum(one.bytes for one in files))
            warning = f" with {report.path}: a change there changes the result" if label == "shared" else ""
            yield labeled(label, (files[0].path, "bold"), f"{more}  {total}{warning}")


def _help(report: Report) -> str:
    """What may make a check run."""
    if any(check.cause == "timeout" for check in report.checks):
        return "time ran out: --timeout and --rung-timeout allow more. "
    if report.stopped is not None and not report.stopped.loaded:
        return ""
    known = "onnxfix check --inputs-help shows what is known about them. "
    if report.stopped is None:
        return f"pass inputs that the model accepts by --inputs or --input-shapes; {known}"
    return known


def _stopped(report: Report) -> Iterator[Line]:
    if report.stopped is not None:
        lines = stopped_lines(report.stopped, report.path, report.command)
        yield from (line(f"  {each}", hang=4) for each in lines)


def _left_lines(report: Report) -> Iterator[Line]:
    """What is left, and the commands that fix it."""
    before = dict.fromkeys(SEVERITIES, 0)
    for remedy in report.summary.remedies:
        counts = remedy.severities
        words = count_severities({name: counts[name] - before[name] for name in SEVERITIES})
        before = counts
        label, command = "fix", remedy.command
        if report.command == "apply":
            label, command = "left", " ".join(["rerun with", *remedy.options])
        yield labeled(label, f"{words} → ", (command.replace(" ", GLUE), "bold"))
    stuck = Counter(item.severity for item in report.findings if not item.fix and not item.pointer)
    del stuck["info"]
    if stuck:
        yield labeled("left", f"{count_severities(stuck)} without an automatic fix")
