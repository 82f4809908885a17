"""Where TensorRT and the rules meet: what it said becomes findings, and the rules' findings that it bears out say so.

A finding is confirmed where TensorRT objects to the same node for a reason that the rule is known to look for, or for
one that nobody knows while the rule claims a hazard there. A rule about something else at the same node is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from onnx import ModelProto

from onnxfix import engine
from onnxfix.causes import Problem
from onnxfix.engine import Found
from onnxfix.errors import UsageError
from onnxfix.place import Place
from onnxfix.report.headline import headline
from onnxfix.report.report import AppliedFix, Finding, Report, finding_of
from onnxfix.rule import Rule, Safety, Severity

if TYPE_CHECKING:
    from onnxfix.trt.reading import Reading
    from onnxfix.trt.records import TrtBuild, TrtOptions
    from onnxfix.verification.rungs.builder import Builder
    from onnxfix.verification.verdict import Executed

Item = TypeVar("Item", Finding, AppliedFix)
#: The rule whose findings are TensorRT's warnings. What it refuses is listed in any case.
_WARNING = "TRT003"
#: What an execution showed where the engine of the result is wrong.
OFF = ("alike", "wrong")


def insist(options: TrtOptions) -> Builder:
    """TensorRT, where a user asked for it. To be closed.

    Raises:
        UsageError: it cannot be asked here, with what to do; or the package or compute capability does not exist.
    """
    from onnxfix.nvidia import Missing
    from onnxfix.verification.rungs import builder as trt

    found = trt.builder(options)
    if isinstance(found, Missing):
        raise UsageError(found.reason)
    return found


def ask(builder: Builder, path: Path, model: ModelProto) -> TrtBuild:
    """Have TensorRT build the model file; ``model`` is what it holds.

    Raises:
        UsageError: what the user asked for does not fit the model.
        OnnxfixError: a file cannot be written.
    """
    from onnxfix.verification.feeds.profiles import given_profiles
    from onnxfix.verification.feeds.signature import signature
    from onnxfix.verification.rungs import builder as trt

    known = signature(model)
    trt.check(builder.options, known)
    build = builder.build(path, given_profiles(builder.options, known))
    # A child that died told no version.
    return replace(build, version=build.version or builder.choice.version)


def reads(builder: Builder, path: Path, model: ModelProto) -> Reading:
    """How TensorRT reads the model file, whose contents ``model`` is. What the model computes is executed."""
    from onnxfix.sandbox import shared
    from onnxfix.verification.feeds.signature import signature
    from onnxfix.verification.ladder import Limits, half_type
    from onnxfix.verification.readback import network
    from onnxfix.verification.request import Request

    limits = Limits()
    request = Request(
        original=path.absolute(),
        fixed=path.absolute(),
        known=signature(model),
        worker=shared(),
        exact=False,
        seed=0,
        noise={},
        shapes={},
        given=None,
        coarse=half_type(model),
        step=limits.step,
        total=limits.total,
        trt=builder.options,
    )
    return network.reading(request, builder)


def together(
    own: Sequence[Finding],
    build: TrtBuild | None,
    rules: Sequence[Rule],
    known: Sequence[Rule],
    problems: list[Problem],
    reading: Reading | None = None,
    executed: Executed | None = None,
) -> tuple[Finding, ...]:
    """The rules' own findings and TensorRT's, each told of the other, ordered by code.

    A warning of TensorRT's that a rule's finding at its place already says is listed once: as that finding, which is
    confirmed in TensorRT's words.

    Args:
        own: findings about the model that was built.
        build: what TensorRT made of it; None where it was not asked.
        rules: those of the run; TensorRT's findings are listed as far as their rules are among them.
        known: all rules that there are: pointers lead to these, and they confirm.
        problems: takes a line for every rule that fails.
        reading: how TensorRT reads it; None where that was not asked.
        executed: what its engine computed; None where none was executed.
    """
    if build is None and reading is None and executed is None:
        return tuple(own)
    pairs = _confirmed(own, build, known, reading)
    marked = [item for item, _ in pairs]
    said = _said(build, rules, marked, known, problems, reading, executed)
    if executed is not None and executed.outcome in OFF and any(_misreads(*one) for one in said):
        # One cause, one finding: the engine computes what TensorRT read.
        said = [
            (found, replace(item, on_engine=_misreads(found, item)))
            for found, item in said
            if found.rule.per != "execution"
        ]
    news = [item for found, item in said if not any(_repeats(found, item, one, by) for one, by in pairs)]
    return tuple(sorted((*marked, *news), key=lambda item: item.code))


def _misreads(found: Found, item: Finding) -> bool:
    """Whether a finding says that TensorRT reads a node differently, so that values are wrong."""
    return found.rule.per == "network" and item.severity == Severity.ERROR.name.lower()


def findings(
    build: TrtBuild | None,
    rules: Sequence[Rule],
    own: Sequence[Finding] = (),
    known: Sequence[Rule] = (),
    problems: list[Problem] | None = None,
    reading: Reading | None = None,
) -> list[Finding]:
    """What TensorRT said, by the rules about that among ``rules``, with pointers to ``own`` and ``known``."""
    return [item for _, item in _said(build, rules, own, known, problems, reading)]


def _said(
    build: TrtBuild | None,
    rules: Sequence[Rule],
    own: Sequence[Finding],
    known: Sequence[Rule],
    problems: list[Problem] | None,
    reading: Reading | None,
    executed: Executed | None = None,
) -> list[tuple[Found, Finding]]:
    codes = {rule.code for rule in (*rules, *known)}
    return [
        (found, replace(finding_of(found), pointer=_pointer(found, own, codes)))
        for found in engine.check_build(build, rules, problems, reading=reading, executed=executed)
    ]


def _repeats(found: Found, said: Finding, item: Finding, by: Found | None) -> bool:
    """Whether a warning of TensorRT's tells nothing beyond the rule's finding ``item``, which has its words: ``by`` is
    what confirms that.

    One that is graver than the finding, or whose subject nobody knows, does.
    """
    match = found.match
    return (
        said.code == _WARNING
        and item.code in (match.about or ())
        and item.place == match.at
        and by is not None
        and by.match.said == match.said
        and Severity[item.severity.upper()] >= Severity[said.severity.upper()]
    )


def confirmed(
    items: Sequence[Item], build: TrtBuild | None, rules: Sequence[Rule], reading: Reading | None = None
) -> tuple[Item, ...]:
    """The findings or fixes, with TensorRT's words where it confirms them.

    ``build`` and ``reading`` are of the model that the findings are about; for fixes, of the model before them.
    """
    return tuple(item for item, _ in _confirmed(items, build, rules, reading))


def _confirmed(
    items: Sequence[Item], build: TrtBuild | None, rules: Sequence[Rule], reading: Reading | None
) -> list[tuple[Item, Found | None]]:
    """The same with what confirms each."""
    said: list[Problem] = []  # a rule that fails is reported where its findings are listed
    told = engine.check_build(build, rules, said, reading=reading)
    pairs = [(item, _confirming(item, told)) for item in items]
    return [(replace(item, confirmed=by.match.message if by is not None else ""), by) for item, by in pairs]


def _confirming(item: Finding | AppliedFix, told: Sequence[Found]) -> Found | None:
    return next((found for found in told if _same(found, item)), None)


def _same(found: Found, item: Finding | AppliedFix) -> bool:
    """Whether TensorRT's match is about what the rule found."""
    match = found.match
    if match.at is None:
        return False
    if found.rule.per == "network":
        return _bears_out(match.at, item)
    if match.about is not None:
        return item.code in match.about and item.place in (match.at, match.at.around)
    return item.place == match.at and Severity[item.severity.upper()] >= Severity.WARNING


def _bears_out(at: Place, item: Finding | AppliedFix) -> bool:
    """Whether what TensorRT reads differently is at the place of a rule's finding: at the same tensor, or at the node
    of the main graph around it."""
    if Severity[item.severity.upper()] < Severity.WARNING:
        return False
    return item.place.around == at or (not item.place.graph and item.place.label == at.label)


def _pointer(found: Found, own: Sequence[Finding], codes: set[str]) -> str:
    """Which rule helps with what TensorRT said: one that found it there, one that found its like, one to read."""
    about = found.match.about or ()
    there = [item for item in own if _same(found, item)]
    alike = [item for code in about for item in own if item.code == code]
    sure = bool(about) or (found.rule.per == "network" and any(item.severity == "error" for item in there))
    for items, verb in ((there, "fixes it" if sure else "may fix it"), (alike, "may fix it")):
        fixes = sorted((item for item in items if item.fix), key=lambda item: Safety[item.safety.upper()])
        if fixes:
            return f"{fixes[0].code} {verb}{flag(fixes[0].safety)}"
        if items:
            return f"see {items[0].code}"
    # An engine that is wrong does not say why: what helps elsewhere may have nothing to do with it.
    named = [code for code in about if code in codes and found.rule.per != "execution"]
    return f"see {named[0]}" if named else ""


def flag(safety: str) -> str:
    """What a user has to add for a fix of this safety, as the end of a sentence."""
    return {"numeric": ", with --numeric-fixes", "unsafe": ", with --unsafe-fixes"}.get(safety, "")


def heard(report: Report, rules: Sequence[Rule], known: Sequence[Rule]) -> Report:
    """The report of an ``apply`` with what onnx.checker and TensorRT said of the original and of the result, where they
    were asked."""
    problems = list(report.problems)
    invalid = _invalid(report, rules, problems)
    if invalid:
        found = sorted((*report.findings, *invalid), key=lambda item: item.code)
        report = replace(report, findings=tuple(found), problems=tuple(problems))
    executed = report.executed
    if not report.builds and not report.networks and executed is None:
        return report
    builds: tuple[TrtBuild | None, ...] = report.builds or (None,)
    networks: tuple[Reading | None, ...] = report.networks or (None,)
    return replace(
        report,
        headline=headline(report.builds, report.networks),
        findings=together(report.findings, builds[-1], rules, known, problems, networks[-1], executed),
        applied=_repaired(
            confirmed(report.applied, builds[0], known, networks[0]), executed, networks[0], known
        ),
        problems=tuple(dict.fromkeys(problems)),
    )


def _repaired(
    applied: tuple[AppliedFix, ...], executed: Executed | None, reading: Reading | None, known: Sequence[Rule]
) -> tuple[AppliedFix, ...]:
    """The fixes, with those marked for which the original's engine was wrong where the result's is right.

    Those are the fixes at places that TensorRT reads differently; where it reads none differently, those of the only
    rule that claimed more than a cost. Which of several rules it was, nobody knows.
    """
    if executed is None or executed.outcome != "repaired":
        return applied
    misread = engine.check_build(None, known, [], reading=reading)
    guilty = {item for item in applied if _confirming(item, misread) is not None}
    if not guilty:
        claims = {item for item in applied if Severity[item.severity.upper()] >= Severity.WARNING}
        guilty = claims if len({item.code for item in claims}) == 1 else set()
    return tuple(replace(item, on_engine=item in guilty) for item in applied)


def _invalid(report: Report, rules: Sequence[Rule], problems: list[Problem]) -> list[Finding]:
    rung = report.verdict.rung("contract") if report.verdict is not None else None
    if rung is None or not rung.checks:
        return []
    checks = rung.checks[0], rung.checks[-1]
    return [finding_of(found) for found in engine.check_build(None, rules, problems, checks=checks)]
