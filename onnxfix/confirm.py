"""Where TensorRT and the rules meet: what it said becomes findings, and the rules' findings that it bears out say so.

A finding is confirmed where TensorRT objects to the same node for a reason that the rule is known to look for, or for
one that nobody knows while the rule claims a hazard there. A rule about something else at the same node is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from onnx import ModelProto

from onnxfix import engine
from onnxfix.engine import Found
from onnxfix.errors import UsageError
from onnxfix.report import AppliedFix, Finding, Report, finding_of
from onnxfix.rule import Match, Rule, Safety, Severity

if TYPE_CHECKING:
    from onnxfix.backends.trt_types import TrtBuild, TrtOptions
    from onnxfix.verification.trt_build import Builder

Item = TypeVar("Item", Finding, AppliedFix)
#: The rule whose findings are TensorRT's warnings. What it refuses is listed in any case.
_WARNING = "TRT003"


def insist(options: TrtOptions) -> Builder:
    """TensorRT, where a user asked for it. To be closed.

    Raises:
        UsageError: it cannot be asked here, with what to do; or the package or compute capability does not exist.
    """
    from onnxfix.verification import trt_build

    found = trt_build.builder(options)
    if isinstance(found, str):
        raise UsageError(found)
    return found


def ask(builder: Builder, path: Path, model: ModelProto) -> TrtBuild:
    """Have TensorRT build the model file; ``model`` is what it holds.

    Raises:
        UsageError: what the user asked for does not fit the model.
        OnnxfixError: a file cannot be written.
    """
    from onnxfix.verification import trt_build
    from onnxfix.verification.signature import signature
    from onnxfix.verification.trt_shapes import given_profiles

    known = signature(model)
    trt_build.check(builder.options, known)
    build = builder.build(path, given_profiles(builder.options, known))
    # A child that died told no version.
    return replace(build, version=build.version or builder.choice.version)


def together(
    own: Sequence[Finding],
    build: TrtBuild | None,
    rules: Sequence[Rule],
    known: Sequence[Rule],
    problems: list[str],
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
    """
    if build is None:
        return tuple(own)
    marked = confirmed(own, build, known)
    said = _said(build, rules, marked, known, problems)
    news = [found for match, found in said if not any(_repeats(match, found, item) for item in marked)]
    return tuple(sorted((*marked, *news), key=lambda item: item.code))


def findings(
    build: TrtBuild,
    rules: Sequence[Rule],
    own: Sequence[Finding] = (),
    known: Sequence[Rule] = (),
    problems: list[str] | None = None,
) -> list[Finding]:
    """What TensorRT said, by the rules about builds among ``rules``, with pointers to ``own`` and ``known``."""
    return [found for _, found in _said(build, rules, own, known, problems)]


def _said(
    build: TrtBuild,
    rules: Sequence[Rule],
    own: Sequence[Finding],
    known: Sequence[Rule],
    problems: list[str] | None,
) -> list[tuple[Match, Finding]]:
    codes = {rule.code for rule in (*rules, *known)}
    return [
        (found.match, replace(finding_of(found), pointer=_pointer(found.match, own, codes)))
        for found in engine.check_build(build, rules, problems)
    ]


def _repeats(match: Match, said: Finding, item: Finding) -> bool:
    """Whether a warning of TensorRT's tells nothing beyond the rule's finding ``item``, which has its words.

    One that is graver than the finding, or whose subject nobody knows, does.
    """
    return (
        said.code == _WARNING
        and item.code in (match.about or ())
        and item.place == match.at
        and item.confirmed == match.message
        and Severity[item.severity.upper()] >= Severity[said.severity.upper()]
    )


def confirmed(items: Sequence[Item], build: TrtBuild, rules: Sequence[Rule]) -> tuple[Item, ...]:
    """The findings or fixes, with TensorRT's words where it confirms them.

    ``build`` is of the model that the findings are about; for fixes, of the model before them.
    """
    said: list[str] = []
    told = engine.check_build(
        build, rules, said
    )  # a rule that fails is reported where its findings are listed
    return tuple(replace(item, confirmed=_words(item, told)) for item in items)


def _words(item: Finding | AppliedFix, told: Sequence[Found]) -> str:
    return next((found.match.message for found in told if _same(found.match, item)), "")


def _same(match: Match, item: Finding | AppliedFix) -> bool:
    """Whether TensorRT's match is about what the rule found."""
    if not match.at:
        return False
    if match.about is not None:
        return item.code in match.about and item.place in (match.at, match.around)
    return item.place == match.at and Severity[item.severity.upper()] >= Severity.WARNING


def _pointer(match: Match, own: Sequence[Finding], codes: set[str]) -> str:
    """Which rule helps with what TensorRT said: one that found it there, one that found its like, one to read."""
    about = match.about or ()
    there = [item for item in own if _same(match, item)]
    alike = [item for code in about for item in own if item.code == code]
    for items, verb in ((there, "fixes it" if about else "may fix it"), (alike, "may fix it")):
        fixes = sorted((item for item in items if item.fix), key=lambda item: Safety[item.safety.upper()])
        if fixes:
            return f"{fixes[0].code} {verb}{flag(fixes[0].safety)}"
        if items:
            return f"see {items[0].code}"
    named = [code for code in about if code in codes]
    return f"see {named[0]}" if named else ""


def flag(safety: str) -> str:
    """What a user has to add for a fix of this safety, as the end of a sentence."""
    return {"numeric": ", with --numeric-fixes", "unsafe": ", with --unsafe-fixes"}.get(safety, "")


def heard(report: Report, rules: Sequence[Rule], known: Sequence[Rule]) -> Report:
    """The report of an ``apply`` with what TensorRT said of the original and of the result, where it was asked."""
    builds = report.builds
    if not builds:
        return report
    problems = list(report.problems)
    return replace(
        report,
        headline=headline(builds),
        findings=together(report.findings, builds[-1], rules, known, problems),
        applied=confirmed(report.applied, builds[0], known),
        problems=tuple(dict.fromkeys(problems)),
    )


def headline(builds: Sequence[TrtBuild], *, asked: bool = False) -> str:
    """TensorRT's word on a model, where that is news: it was refused and is not any more, or it still is.

    ``builds`` are of the original and, where there is one, of the result; ``asked`` says that its word is what the
    user wanted, so that it is news in any case.
    """
    if not builds or not all(build.judged for build in builds):
        return ""
    from onnxfix.verification.trt_build import product

    before, after = builds[0], builds[-1]
    name = product(
        after.package, after.version or before.version
    ).strip()  # a child that died told no version
    if after.accepted and before.accepted:
        return f"{name} accepts it" if asked else ""
    if after.accepted:
        return f"{name} {'refused' if before.status == 'refused' else 'failed on'} it and accepts the result"
    if before.accepted:
        return ""  # a rung that failed, which says so
    verb = "refuses" if after.status == "refused" else "fails on"
    return f"{name} {'still ' if len(builds) > 1 else ''}{verb} it"


def trouble(build: TrtBuild | None) -> Iterator[str]:
    """Why TensorRT said nothing about a model: a fault of its installation or of onnxfix, not of the model."""
    if build is not None and not build.judged:
        yield f"TensorRT could not be asked: {build.reason or 'no reason was given'}"
