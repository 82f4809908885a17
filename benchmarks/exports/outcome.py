"""One model: what onnxfix finds and fixes in it, what TensorRT says, and what was proven. No engine is executed."""

from __future__ import annotations

import re
import statistics
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Rules of severity error about what TensorRT says nothing of: it reads another model. Their pages show how.
MISREAD = {
    "CTL001": "a Loop that may end early is read with all its rounds",
    "IFC001": "an input without a shape is read as a scalar",
    "OPS060": "an operator of another domain is read as the standard one of its name",
}


@dataclass
class Error:
    """A finding of severity error. ``words`` are TensorRT's.

    ``how`` is "confirmed" (TensorRT objects to that place), "pattern" (to another node that the finding is about),
    "quoted" (to no place, in words that the rule's page quotes), "misread" (a rule of MISREAD) or "unconfirmed".
    """

    code: str
    place: str
    message: str
    how: str
    words: str = ""


@dataclass
class Applied:
    """One ``apply``: fixes by code, what each rung said, and what must be empty."""

    fixes: dict[str, int] = field(default_factory=dict)
    nodes: int = 0
    passed: bool = False
    rungs: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class Outcome:
    """One model. Lists of layers, seconds, warnings: before, after the exact fixes, after the numeric ones."""

    name: str
    nodes: int = 0
    megabytes: float = 0.0
    check_seconds: float = 0.0
    found: dict[str, int] = field(default_factory=dict)
    errors: list[Error] = field(default_factory=list)
    exact: Applied = field(default_factory=Applied)
    numeric: Applied | None = None
    accepted: list[bool] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    build_seconds: list[float] = field(default_factory=list)
    parse_seconds: list[float] = field(default_factory=list)
    engine_bytes: list[int] = field(default_factory=list)
    warnings: list[dict[str, int]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    findings_after: dict[str, int] = field(default_factory=dict)
    fault: str = ""


def measure(name: str, path: str, target: str | None, repeat: int) -> Outcome:
    """Everything about one model. Runs in a process of its own."""
    from onnxfix.errors import OnnxfixError

    outcome = Outcome(name, megabytes=Path(path).stat().st_size / 1e6)
    try:
        _measure(outcome, Path(path), target, repeat)
    except OnnxfixError as error:
        outcome.fault = f"refused: {error}"
    except Exception as error:  # a row of the table, and exit code 1
        outcome.fault = f"{type(error).__name__}: {error}"
    return outcome


def _measure(outcome: Outcome, path: Path, target: str | None, repeat: int) -> None:
    import onnxfix
    from onnxfix.files import saving

    seconds = []
    for _ in range(3):  # a report holds its model, and three of them would be large
        checked = onnxfix.check(path, target=target)
        seconds.append(checked.seconds)
        outcome.nodes, outcome.found = checked.nodes_before, _counts(checked)
        del checked
    outcome.check_seconds = statistics.median(seconds)
    exact = onnxfix.apply(path, target=target)
    outcome.exact = applied(exact, exact=True)
    outcome.findings_after = _counts(exact)
    widest = onnxfix.apply(path, target=target, numeric_fixes=True, verify=False)
    more = any(fix.safety == "numeric" for fix in widest.applied)
    if more:
        widest = onnxfix.apply(path, target=target, numeric_fixes=True)
        outcome.numeric = applied(widest, exact=False)
    with tempfile.TemporaryDirectory(prefix="onnxfix-") as folder:
        paths = [path]
        for number, report in enumerate((exact, *([widest] if more else []))):
            if report.changed and report.model is not None:
                file = Path(folder) / f"{number}.onnx"
                file.write_bytes(saving.serialize(report.model))
                paths.append(file)
        del exact, widest
        first = build_all(outcome, paths, repeat)
    outcome.errors = errors(path, target, first)


def _counts(report: Any) -> dict[str, int]:
    return dict(sorted(Counter(f"{f.severity} {f.code}" for f in report.findings).items()))


def applied(report: Any, *, exact: bool) -> Applied:
    """What ``apply`` did and proved, and what is wrong with it."""
    verdict = report.verdict
    faults = [
        *map(str, report.problems),
        *(f"withdrawn: {w.code} at {w.place}: {w.reason}" for w in report.withdrawn),
    ]
    rungs = []
    for rung in verdict.rungs:
        same = sum(feed.status == "identical" for feed in rung.feeds)
        ran = sum(feed.status != "not counted" for feed in rung.feeds)
        runs = f" {same}/{ran}" if ran else ""
        reason = f" ({rung.reason})" if rung.status != "passed" else ""
        rungs.append(f"{rung.name} {rung.status}{runs}{reason}")
        if rung.refutes:
            faults.append(f"{rung.name}: {rung.reason}")
        if exact and rung.exact and same < ran:
            faults.append(f"{rung.name}: {ran - same} of {ran} runs are not bit-identical: {rung.reason}")
    return Applied(
        fixes=dict(sorted(Counter(fix.code for fix in report.applied).items())),
        nodes=report.nodes_after,
        passed=verdict.passed,
        rungs=rungs,
        faults=faults,
        seconds=report.seconds,
    )


def build_all(outcome: Outcome, paths: list[Path], repeat: int) -> Any:
    """Have TensorRT build the files in turn; returns what it said of the first."""
    from onnxfix.errors import UsageError
    from onnxfix.nvidia import Missing
    from onnxfix.sandbox import Worker
    from onnxfix.trt.build import attempt
    from onnxfix.trt.package import choose

    choice = choose()
    if isinstance(choice, Missing):
        raise UsageError(choice.reason)
    with Worker() as worker:
        rounds = [
            [
                attempt(worker, path, package=choice.package, compute_capability=choice.capability)
                for path in paths
            ]
            for _ in range(repeat)
        ]
    for builds in zip(*rounds, strict=True):
        one = builds[0]
        outcome.accepted.append(one.accepted)
        outcome.layers.append(one.layer_count)
        outcome.build_seconds.append(round(statistics.median(b.build_seconds for b in builds), 3))
        outcome.parse_seconds.append(round(statistics.median(b.parse_seconds for b in builds), 3))
        outcome.engine_bytes.append(one.engine_bytes)
        outcome.warnings.append(dict(Counter(_kind(issue.text) for issue in one.warnings)))
        outcome.reasons.append(one.reason)
    return rounds[0][0]


def _kind(text: str) -> str:
    """A warning without the names in it."""
    if match := re.search(r"Make sure (input|output) \S+ has Int64 binding", text):
        return f"{match[1]} has Int64 binding"
    return " ".join(text.split())[:120]


def errors(path: Path, target: str | None, build: Any) -> list[Error]:
    """Each finding of severity error, with what TensorRT said of it; ``build`` is its verdict on the model as it is."""
    from onnxfix import engine
    from onnxfix.files import loading
    from onnxfix.model import Model
    from onnxfix.registry import registry
    from onnxfix.report import confirm
    from onnxfix.report.from_engine import finding_of
    from onnxfix.rule import Severity
    from onnxfix.targets import target_named

    loaded = loading.load(path)
    model = Model(loaded.proto, loaded.base_dir)
    model.target = target_named(target)
    found = [f for f in engine.check(model, registry().choose()) if f.severity == Severity.ERROR]
    marked = confirm.confirmed([finding_of(item) for item in found], build, registry().rules)
    told = engine.check_build(
        build, registry().rules
    )  # what only informs, such as of int64 bindings, confirms nothing
    said = {
        one.match.at.text: one.match.message
        for one in told
        if one.match.at and one.severity >= Severity.WARNING
    }
    unplaced = [issue.words for issue in build.errors if not issue.place.known]
    listed = []
    for item, finding in zip(found, marked, strict=True):
        near = [said[place] for place in relied_on(item.match) if place in said]
        how, words = "unconfirmed", ""
        if finding.confirmed or finding.place.text in said:
            how, words = "confirmed", finding.confirmed or said[finding.place.text]
        elif near:
            how, words = "pattern", near[0]
        elif finding.code in MISREAD:
            how, words = "misread", MISREAD[finding.code]
        elif quote := next((text for text in unplaced if quotes(item.rule.doc, text)), ""):
            how, words = "quoted", quote
        listed.append(Error(finding.code, finding.place.text, finding.message, how, words))
    return listed


def quotes(page: str, words: str) -> bool:
    """Whether a rule's page has the beginning of these words, however its lines are broken."""
    return " ".join(words.split())[:80] in " ".join(page.split())


def relied_on(match: Any) -> list[str]:
    """The places of the nodes that a match is about, and the names of their inputs."""
    from onnxfix.graph.overlay import Node, Value

    read = [*match.reads, *([match.node] if match.node is not None else [])]
    nodes = [item for item in read if isinstance(item, Node)]
    nodes += [item.producer for item in read if isinstance(item, Value) and item.producer is not None]
    names = [value.name for node in nodes for value in node.inputs if value is not None]
    return list(dict.fromkeys([*(node.place for node in nodes), *names]))
