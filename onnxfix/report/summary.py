"""The facts about a report that every renderer shows: counts, what was proven, what changed, and what is left.

Only data: the words are the renderers'. ``Report.summary`` is the summary of a report, and JSON has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from onnxfix.report.findings import OPTIONS, SAFETIES, SEVERITIES
from onnxfix.runtime import system
from onnxfix.runtime.causes import Cause
from onnxfix.targets import TARGETS, mismatch

if TYPE_CHECKING:
    from onnxfix.proof.verdict import RungResult, Status, Verdict
    from onnxfix.report.report import AppliedFix, Finding, NodeCounts, Report

#: "": nothing was to be proven (``check``). "verified": the values of both models were compared and agree; "partly":
#: those of the result without its UNSAFE fixes or steps. "unchanged": the result is the input. "not compared": all
#: that ran passed, but nothing compared values. "failed": a check found a difference. "unproven": a required check did
#: not pass, or none could run.
Proof = Literal["", "verified", "partly", "unchanged", "not compared", "failed", "unproven"]
Agreement = Literal["", "identical", "within"]


@dataclass(frozen=True)
class RuleCount:
    """How many findings or fixes of one severity a rule has. ``safety`` is that of the safest fix, "" without one."""

    code: str
    name: str
    severity: str
    count: int
    safety: str = ""


@dataclass(frozen=True)
class RungFact:
    """A check in short. ``agreement`` of the values is "identical" (in every bit) or "within" tolerance, "" where the
    check compared none; ``feeds`` and ``shapes`` count the inputs that were compared. ``reason`` is the check's own,
    and ``tolerance`` the user's (``rtol 0.001``), "" where that of the types decided. ``left_out`` counts planned
    inputs that its effort did not allow for, which would have taken about ``spared`` seconds. ``part`` says how much
    of the models it judged ("": all of them)."""

    name: str
    status: Status
    agreement: Agreement = ""
    feeds: int = 0
    shapes: int = 0
    cause: Cause = ""
    reason: str = ""
    tolerance: str = ""
    left_out: int = 0
    spared: float = 0.0
    part: str = ""


@dataclass(frozen=True)
class Change:
    """A count before and after."""

    name: str
    before: int
    after: int

    @property
    def changed(self) -> bool:
        """Whether the two differ."""
        return self.before != self.after


@dataclass(frozen=True)
class Remedy:
    """Findings that are left and have a fix, and the command that applies it. ``safety`` is the least safe of the
    fixes that it applies, and ``options`` those that it needs; the counts are by severity and include what safer
    commands fix."""

    safety: str
    options: tuple[str, ...]
    command: str
    errors: int
    warnings: int
    notes: int

    @property
    def severities(self) -> dict[str, int]:
        """The counts by the names of severities."""
        return {"error": self.errors, "warning": self.warnings, "info": self.notes}


@dataclass(frozen=True)
class TrtFact:
    """The TensorRT that judged a model.

    ``target`` is the title of the product line that the model is for, where that is another one ("": it is this one).
    ``builds`` are the results of building the original and the fixed model, or the one model, and ``reads`` how it
    reads them, in that order; ``feeds`` counts the inputs on which that was compared. ``gpu`` is where engines were
    executed ("": nowhere). ``part`` says how much of the model was judged ("": all of it).
    """

    package: str
    version: str
    target: str = ""
    compute_capability: str = ""
    builds: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    feeds: int = 0
    gpu: str = ""
    part: str = ""


@dataclass(frozen=True)
class Summary:
    """The facts about a report.

    ``severities`` counts the findings that are left, by severity. ``findings`` and ``fixed`` count by rule, the worst
    first. ``proof`` is what was proven about values. ``values_compared``: a check that passed or failed has compared
    those of the result with the original's (None: there was nothing to compare). ``compute`` counts the nodes that
    compute (all but Constant), ``constants`` the Constant nodes, ``operators`` the nodes of each operator, the most
    changed first; ``layers`` counts those of TensorRT's network (None: unknown). ``tensorrt`` is the TensorRT that
    judged (None: none did). ``remedies`` lists commands, the safest first. ``explain`` is the code of the rule to read
    about first, "" for none: of the worst finding that is left, or else of the worst that was fixed.
    """

    severities: Mapping[str, int]
    findings: tuple[RuleCount, ...] = ()
    fixed: tuple[RuleCount, ...] = ()
    proof: Proof = ""
    values_compared: bool | None = None
    rungs: tuple[RungFact, ...] = ()
    compute: Change | None = None
    constants: Change | None = None
    operators: tuple[Change, ...] = ()
    layers: Change | None = None
    tensorrt: TrtFact | None = None
    remedies: tuple[Remedy, ...] = ()
    explain: str = ""

    @property
    def passed(self) -> tuple[RungFact, ...]:
        """The checks that passed."""
        return tuple(rung for rung in self.rungs if rung.status == "passed")

    @property
    def not_run(self) -> tuple[RungFact, ...]:
        """The checks that gave no result, with the reasons."""
        return tuple(rung for rung in self.rungs if rung.status in ("skipped", "broke"))


def summarize(report: Report) -> Summary:
    """The summary of a report."""
    severities = Counter(item.severity for item in report.findings)
    findings, fixed = tuple(_by_rule(report.findings)), tuple(_by_rule(report.applied))
    # The rule to read about first is the worst, and what is left comes before what was fixed.
    ranked = sorted((*findings, *fixed), key=lambda one: SEVERITIES.index(one.severity))
    proof = _proof(report)
    compared = any(check.judged and check.compares for check in report.checks)
    compute, constants, operators = _nodes(report.operators_before, report.operators_after)
    return Summary(
        severities={name: severities[name] for name in SEVERITIES},
        findings=findings,
        fixed=fixed,
        proof=proof,
        values_compared=compared if proof not in ("", "unchanged", "partly") else None,
        rungs=tuple(_rung(check, report.verdict) for check in report.checks),
        compute=compute,
        constants=constants,
        operators=operators,
        layers=_layers(report),
        tensorrt=_tensorrt(report),
        remedies=tuple(_remedies(report)),
        explain=ranked[0].code if ranked else "",
    )


def _by_rule(items: Iterable[Finding | AppliedFix]) -> Iterator[RuleCount]:
    """Counts by severity and rule, the worst and within a severity the most frequent first."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for item in items:
        groups.setdefault((item.severity, item.code, item.name), []).append(item.safety)
    ordered = sorted(groups.items(), key=lambda one: (SEVERITIES.index(one[0][0]), -len(one[1]), one[0][1]))
    for (severity, code, name), safeties in ordered:
        safest = next((safety for safety in SAFETIES if safety in safeties), "")
        yield RuleCount(code, name, severity, len(safeties), safest)


def _proof(report: Report) -> Proof:
    verdict = report.verdict
    if verdict is None:
        return ""
    if any(rung.refutes for rung in verdict.rungs):
        return "failed"
    if not verdict.passed:
        return "unproven"
    if report.command == "apply" and not report.changed:
        return "unchanged"
    if not verdict.compared:
        return "not compared"
    return "partly" if verdict.without_unsafe else "verified"


def _rung(check: RungResult, verdict: Verdict | None) -> RungFact:
    counted = [feed for feed in check.feeds if feed.status in ("identical", "within", "different")]
    assignments = [feed.feed.assignment for feed in counted if feed.feed is not None]
    sizes = {tuple(sorted(one.items())) for one in assignments if 0 not in one.values()}
    feeds, shapes = len(counted), len(sizes)
    if check.networks:
        feeds, shapes = check.networks[-1].feeds, check.networks[-1].shapes
    if check.exported is not None:
        feeds, shapes = check.exported.inputs, check.exported.sizes
    agreement: Agreement = ""
    if check.status == "passed" and counted:
        agreement = "identical" if all(feed.status == "identical" for feed in counted) else "within"
    # TensorRT's network is held to its own rounding, whatever the user allows.
    is_given = verdict is not None and agreement == "within" and check.name != "trt-network"
    allowed = verdict.allowed if verdict is not None and is_given else None
    return RungFact(
        check.name,
        check.status,
        agreement,
        feeds,
        shapes,
        check.cause,
        check.reason,
        tolerance=allowed.words if allowed is not None else "",
        left_out=len(check.left_out),
        spared=sum(one.seconds for one in check.left_out),
        part=check.part.words if check.part is not None else "",
    )


def _nodes(
    before: NodeCounts | None, after: NodeCounts | None
) -> tuple[Change | None, Change | None, tuple[Change, ...]]:
    """The nodes that compute, the Constant nodes, and those of each operator, the most changed first."""
    if before is None or after is None:
        return None, None, ()
    names = dict.fromkeys((*before.operators, *after.operators))
    changes = [Change(name, before.operators.get(name, 0), after.operators.get(name, 0)) for name in names]
    return (
        Change("compute nodes", before.compute, after.compute),
        Change("Constant", before.constants, after.constants),
        tuple(sorted(changes, key=lambda one: (-abs(one.after - one.before), one.name))),
    )


def _layers(report: Report) -> Change | None:
    """Layers of TensorRT's network, where the parser took both models as a whole."""
    if not report.builds or not all(one.accepted and one.part is None for one in report.builds):
        return None
    return Change("TensorRT layers", report.builds[0].layer_count, report.builds[-1].layer_count)


def _tensorrt(report: Report) -> TrtFact | None:
    judges = [(one.package, one.version) for one in report.builds if one.version]
    judges += [(one.package, one.version) for one in report.networks if one.version]
    if not judges:
        return None
    package, version = judges[-1]
    target = TARGETS.get(report.target)
    is_other = target is not None and bool(mismatch(target, package, version))
    every = [*(check.part for check in report.checks), *(build.part for build in report.builds)]
    parts = [part for part in every if part is not None]
    capabilities = [build.compute_capability for build in report.builds if build.compute_capability]
    return TrtFact(
        package,
        version,
        target=target.title if target is not None and is_other else "",
        compute_capability=capabilities[0] if capabilities else "",
        builds=tuple("target-only" if build.target_only else build.status for build in report.builds),
        reads=tuple(network.status for network in report.networks),
        feeds=report.networks[-1].feeds if report.networks else 0,
        gpu=report.executed.gpu if report.executed is not None else "",
        part=parts[0].words if parts else "",
    )


def _remedies(report: Report) -> Iterator[Remedy]:
    """A command for each safety that fixes more than the safer ones, and more than this run was allowed to."""
    withdrawn = {(item.code, item.place) for item in report.withdrawn}
    open_ = [item for item in report.findings if item.fix and (item.code, item.place) not in withdrawn]
    done = SAFETIES.index(report.safety) if report.safety in SAFETIES else -1
    for level, safety in enumerate(SAFETIES):
        if level <= done or report.command not in ("check", "apply"):
            continue
        if not any(item.safety == safety for item in open_):
            continue
        fixed = [item for item in open_ if done < SAFETIES.index(item.safety) <= level]
        counts = Counter(item.severity for item in fixed)
        options = [OPTIONS[name] for name in SAFETIES[1 : level + 1] if any(i.safety == name for i in fixed)]
        if report.safety in SAFETIES[1:]:  # the run's own option stays
            options = [OPTIONS[report.safety], *options]
        options = list(dict.fromkeys(options))
        command = " ".join(["onnxfix apply", system.quoted_path(report.path), *options])
        yield Remedy(safety, tuple(options), command, counts["error"], counts["warning"], counts["info"])
