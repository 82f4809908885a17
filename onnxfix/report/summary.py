"""The facts about a report that every renderer shows: counts, what was proven, what changed, and what is left.

The facts are data; renderers choose the words. ``Report.summary`` returns them, and the JSON output contains
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from onnxfix.report.findings import OPTIONS, SAFETIES, SEVERITIES
from onnxfix.runtime import system
from onnxfix.runtime.causes import Cause
from onnxfix.targets import TARGETS, together

if TYPE_CHECKING:
    from onnxfix.proof.verdict import RungResult, Status, Verdict
    from onnxfix.report.report import AppliedFix, Finding, NodeCounts, Report

#: "": there was nothing to prove (``check``). "verified": the values of both models agree. "partly": they
#: agree without the result's UNSAFE fixes or steps. "unchanged": the result is the input. "not compared": all
#: checks that ran passed, but none compared values. "failed": a check found a difference. "unproven": a
#: required check did not pass, or no check could run.
Proof = Literal["", "verified", "partly", "unchanged", "not compared", "failed", "unproven"]
Agreement = Literal["", "identical", "within"]
#: May the result be deployed? "open": nothing speaks against it, but not everything was found out.
Ready = Literal["yes", "open", "no"]
#: What speaks against the result (``AGAINST``), then what is open. "only read": ``check``
#: computes nothing. Four are as in ``Proof``.
Doubt = Literal[
    "failed", "unproven", "incomplete", "refused", "misread", "wrong engine", "errors",
    "warnings", "withdrawn", "not compared", "partly", "only read", "cut", "no TensorRT", "in part", "no engine",
    "other TensorRT",
]  # fmt: skip
AGAINST = ("failed", "unproven", "incomplete", "refused", "misread", "wrong engine", "errors")


@dataclass(frozen=True)
class RuleCount:
    """How many findings or fixes of one severity a rule has. ``safety`` is the safest fix's, or ""."""

    code: str
    name: str
    severity: str
    count: int
    safety: str = ""


@dataclass(frozen=True)
class RungFact:
    """A summary of a check. ``agreement`` of the values is "identical" (in every bit), "within" tolerance, or
    "" if none were compared. ``feeds`` and ``shapes`` count the compared inputs. ``reason`` is the check's
    own. ``tolerance`` is the user's (``rtol 0.001``), or "" if the tolerance of the types decided.
    ``left_out`` counts planned inputs that exceeded the effort, and would have taken about ``spared``
    seconds. ``part`` says how much of the models was judged ("": all)."""

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
    """Remaining findings that have a fix, and the command that applies the fixes. ``safety`` is the level of
    the least safe fix, and ``options`` are the options that the command needs. The counts, by severity,
    include the findings that safer commands fix."""

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

    ``target`` is the title of the target that the model is for, if it is another one ("": the same).
    ``builds`` are the results of building the original and the fixed model, or the only model. ``reads``
    says, in the same order, how TensorRT reads them, and ``feeds`` counts the inputs of that comparison.
    ``gpu`` is where engines were executed ("": nowhere). ``part`` says how much of the model was judged ("":
    all).
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

    ``severities`` counts the remaining findings by severity. ``findings`` and ``fixed`` count by rule, worst
    first. ``proof`` is what was proven about values. ``values_compared``: whether a check compared the
    result's values with the original's (None: there was nothing to compare). ``compute`` counts all nodes
    except Constant nodes, ``constants`` the Constant nodes, ``operators`` the nodes of each operator (most
    changed first), and ``layers`` the layers of TensorRT's network (None: unknown). ``tensorrt`` is the
    TensorRT that judged (None: none did). ``remedies`` lists commands, safest first. ``explain`` is the code
    of the rule to read about first ("": none): the rule of the worst remaining finding, or else of the worst
    fixed one. ``ready`` says whether the result may be deployed, ``doubts`` why not, and ``next`` is the command that
    leads on ("": none).
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
    ready: Ready = "open"
    doubts: tuple[Doubt, ...] = ()
    next: str = ""


def summarize(report: Report) -> Summary:
    """The summary of a report."""
    severities = Counter(item.severity for item in report.findings)
    findings, fixed = tuple(_by_rule(report.findings)), tuple(_by_rule(report.applied))
    # The rule to read about first is the worst. Remaining findings come before fixed ones.
    ranked = sorted((*findings, *fixed), key=lambda count: SEVERITIES.index(count.severity))
    proof = _proof(report)
    compared = any(check.judged and check.compares for check in report.checks)
    compute, constants, operators = _nodes(report.operators_before, report.operators_after)
    tensorrt, remedies = _tensorrt(report), tuple(_remedies(report))
    doubts = tuple(_doubts(report, proof, tensorrt))
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
        tensorrt=tensorrt,
        remedies=remedies,
        explain=ranked[0].code if ranked else "",
        ready="no" if any(one in AGAINST for one in doubts) else "open" if doubts else "yes",
        doubts=doubts,
        next=_next(report, doubts, remedies),
    )


def _by_rule(items: Iterable[Finding | AppliedFix]) -> Iterator[RuleCount]:
    """Counts by severity and rule: worst severity first, then most frequent rule first."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for item in items:
        groups.setdefault((item.severity, item.code, item.name), []).append(item.safety)
    ordered = sorted(
        groups.items(), key=lambda group: (SEVERITIES.index(group[0][0]), -len(group[1]), group[0][1])
    )
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
    sizes = {tuple(sorted(assignment.items())) for assignment in assignments if 0 not in assignment.values()}
    feeds, shapes = len(counted), len(sizes)
    if check.networks:
        feeds, shapes = check.networks[-1].feeds, check.networks[-1].shapes
    if check.exported is not None:
        feeds, shapes = check.exported.inputs, check.exported.sizes
    agreement: Agreement = ""
    if check.status == "passed" and counted:
        agreement = "identical" if all(feed.status == "identical" for feed in counted) else "within"
    # The check of TensorRT's network has its own tolerance, regardless of the user's.
    uses_tolerance = verdict is not None and agreement == "within" and check.name != "trt-network"
    allowed = verdict.allowed if verdict is not None and uses_tolerance else None
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
        spared=sum(item.seconds for item in check.left_out),
        part=check.part.words if check.part is not None else "",
    )


def _nodes(
    before: NodeCounts | None, after: NodeCounts | None
) -> tuple[Change | None, Change | None, tuple[Change, ...]]:
    """Changes of compute nodes, of Constant nodes, and of each operator's nodes, most changed first."""
    if before is None or after is None:
        return None, None, ()
    names = dict.fromkeys((*before.operators, *after.operators))
    changes = [Change(name, before.operators.get(name, 0), after.operators.get(name, 0)) for name in names]
    return (
        Change("compute nodes", before.compute, after.compute),
        Change("Constant", before.constants, after.constants),
        tuple(sorted(changes, key=lambda change: (-abs(change.after - change.before), change.name))),
    )


def _layers(report: Report) -> Change | None:
    """Layers of TensorRT's network, if the parser accepted both models as a whole."""
    if not report.builds or not all(build.accepted and build.part is None for build in report.builds):
        return None
    return Change("TensorRT layers", report.builds[0].layer_count, report.builds[-1].layer_count)


def _tensorrt(report: Report) -> TrtFact | None:
    judges = [(build.package, build.version) for build in report.builds if build.version]
    judges += [(network.package, network.version) for network in report.networks if network.version]
    if not judges:
        return None
    package, version = judges[-1]
    target = TARGETS.get(report.target)
    releases = target.releases if target is not None else ()
    others = [release for release in releases if not release.includes(package, version)]
    all_parts = [*(check.part for check in report.checks), *(build.part for build in report.builds)]
    parts = [part for part in all_parts if part is not None]
    capabilities = [build.compute_capability for build in report.builds if build.compute_capability]
    return TrtFact(
        package,
        version,
        target=together(others).title if others else "",
        compute_capability=capabilities[0] if capabilities else "",
        builds=tuple("target-only" if build.target_only else build.status for build in report.builds),
        reads=tuple(network.status for network in report.networks),
        feeds=report.networks[-1].feeds if report.networks else 0,
        gpu=report.executed.gpu if report.executed is not None else "",
        part=parts[0].words if parts else "",
    )


def _remedies(report: Report) -> Iterator[Remedy]:
    """A command for each safety level that fixes more than safer levels and than this run."""
    withdrawn = {(item.code, item.place) for item in report.withdrawn}
    fixable = [item for item in report.findings if item.fix and (item.code, item.place) not in withdrawn]
    allowed_level = SAFETIES.index(report.safety) if report.safety in SAFETIES else -1
    for level, safety in enumerate(SAFETIES):
        if level <= allowed_level or report.command not in ("check", "apply"):
            continue
        if not any(item.safety == safety for item in fixable):
            continue
        fixed = [item for item in fixable if allowed_level < SAFETIES.index(item.safety) <= level]
        counts = Counter(item.severity for item in fixed)
        options = [OPTIONS[name] for name in SAFETIES[1 : level + 1] if any(i.safety == name for i in fixed)]
        if report.safety in SAFETIES[1:]:  # the run's own option stays
            options = [OPTIONS[report.safety], *options]
        options = list(dict.fromkeys(options))
        command = " ".join(["onnxfix apply", system.quoted_path(report.path), *options])
        yield Remedy(safety, tuple(options), command, counts["error"], counts["warning"], counts["info"])


def _doubts(report: Report, proof: Proof, tensorrt: TrtFact | None) -> Iterator[Doubt]:
    """What speaks against deploying the result, and what is open."""
    if proof == "failed" or proof == "unproven":
        yield proof
        return
    cut = report.partition_after or report.partition
    executed = report.executed.outcome if report.executed is not None else ""
    build = tensorrt.builds[-1] if tensorrt is not None and tensorrt.builds else ""
    facts: dict[Doubt, object] = {
        "incomplete": report.problems,
        "refused": build in ("refused", "crash", "timeout", "memory"),
        "misread": tensorrt is not None and "differs" in tensorrt.reads[-1:],
        "wrong engine": executed in ("alike", "wrong"),
        "errors": report.errors,
        "warnings": report.warnings,
        "withdrawn": report.withdrawn,
        "not compared": proof == "not compared",
        "partly": proof == "partly",
        "only read": report.command == "check",
        "cut": cut is not None and cut.outside,
        "no TensorRT": tensorrt is None,
        "in part": tensorrt is not None and tensorrt.part,
        "no engine": tensorrt is not None and not tensorrt.gpu,
        "other TensorRT": tensorrt is not None and tensorrt.target,
    }
    yield from (doubt for doubt, holds in facts.items() if holds)


def _next(report: Report, doubts: tuple[Doubt, ...], remedies: tuple[Remedy, ...]) -> str:
    """The command that leads on: it fixes the worst finding that has a fix, explains an error that has none, or
    finds out what is open. "" for none."""
    path, new = system.quoted_path(report.path), system.quoted_path(report.output)
    if report.path.startswith("<"):
        return ""
    if "unproven" in doubts and report.verdict is not None:
        ran = [check.name for check in report.checks if check.status != "skipped"]
        absent = [name for name in report.verdict.required if name not in ran]
        helps = report.stopped is None or report.stopped.loaded
        return "onnxfix doctor" if absent else f"onnxfix check {path} --inputs-help" if helps else ""
    if "failed" in doubts:
        differ = [
            check.name for check in report.checks if any(one.status == "different" for one in check.feeds)
        ]
        found = report.output and {"reference", "ort-cpu"}.intersection(differ)
        return f"onnxfix diagnose {path} {new}" if found else ""
    helpful = [one for one in remedies if one.errors] or [one for one in remedies if one.warnings]
    if helpful or (remedies and report.command == "check"):
        return (helpful or remedies)[0].command
    if report.errors:
        return f"onnxfix explain {report.errors[0].code}"
    if "not compared" in doubts and report.output and report.check("ort-cpu") is None:
        return f"onnxfix verify {path} {new}"
    if "no TensorRT" in doubts:
        return f"onnxfix check {path} --trt" if report.command == "check" else "onnxfix doctor"
    if report.command == "check" or "no engine" not in doubts or any(one in AGAINST for one in doubts):
        return ""
    return " ".join(["onnxfix verify", path, *[new][: len(report.output)], "--require trt-gpu"])
