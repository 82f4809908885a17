"""Merges the findings of the rules with those of TensorRT, and marks the rules' findings that TensorRT confirms.

A finding is confirmed if TensorRT objects to the same node for a reason that the rule looks for, or for a reason that
no rule looks for while the rule claims a hazard there. A rule about something else at the same node is not confirmed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from onnxfix.place import Place
from onnxfix.report.findings import finding_of, required_option
from onnxfix.report.report import AppliedFix, Finding, Report
from onnxfix.rewrite import engine
from onnxfix.rewrite.engine import Found
from onnxfix.rule import Rule, Safety, Severity
from onnxfix.runtime.causes import Cause, Problem

if TYPE_CHECKING:
    from onnxfix.proof.verdict import Executed
    from onnxfix.tensorrt.reading import Reading
    from onnxfix.tensorrt.records import Partition, TrtBuild

Item = TypeVar("Item", Finding, AppliedFix)
_STILL_WRONG = ("alike", "wrong")  # outcomes of an execution in which the engine of the result is wrong


def merge_findings(
    own: Sequence[Finding],
    build: TrtBuild | None,
    rules: Sequence[Rule],
    known: Sequence[Rule],
    problems: list[Problem],
    reading: Reading | None = None,
    executed: Executed | None = None,
) -> tuple[Finding, ...]:
    """The findings of the rules and those of TensorRT, ordered by code, with confirmations and pointers.

    What TensorRT says of the node of a rule's finding, for the reason that the rule looks for, is listed once: as that
    finding, which is confirmed by TensorRT's words.

    Args:
        own: the rules' findings about the model that was built.
        build: TensorRT's result on it; None where it did not run.
        rules: those of the run; TensorRT's findings are listed if their rules are among them.
        known: all installed rules: pointers lead to these, and they confirm.
        problems: gets an entry for each rule that fails.
        reading: how TensorRT imports the model; None where that was not compared.
        executed: what its engine computed; None where none was executed.
    """
    if build is None and reading is None and executed is None:
        return tuple(own)
    pairs = _pair(own, _place(engine.check_build(build, known, [], reading=reading), own))
    marked = [item for item, _ in pairs]
    matches = _place(engine.check_build(build, rules, problems, reading=reading, executed=executed), own)
    codes = {rule.code for rule in (*rules, *known)}
    wrong = executed is not None and executed.outcome in _STILL_WRONG and any(map(_is_misread, matches))
    new = []
    for found in matches:
        if wrong and found.rule.per == "execution":
            continue  # One cause, one finding: the engine computes what TensorRT imported.
        on_engine = wrong and _is_misread(found)
        same = [number for number, (item, by) in enumerate(pairs) if _repeats(found, item, by)]
        if not same:
            pointer = pointer_of(found, marked, codes)
            new.append(replace(finding_of(found), pointer=pointer, on_engine=on_engine))
        for number in same:
            marked[number] = replace(marked[number], on_engine=marked[number].on_engine or on_engine)
    return tuple(sorted((*marked, *new), key=lambda item: item.code))


def _is_misread(found: Found) -> bool:
    """Whether TensorRT imports a node differently, so that values are wrong."""
    return found.rule.per == "network" and found.severity == Severity.ERROR


def _place(matches: Sequence[Found], own: Sequence[Finding]) -> list[Found]:
    """The matches; one that names no node is about the node of the only error of a rule that knows its message."""
    placed = []
    for one in matches:
        places = {o.place for o in own if o.severity == "error" and o.code in (one.match.about or ())}
        if one.match.at is None and len(places) == 1:
            one = one._replace(match=replace(one.match, at=places.pop()))
        placed.append(one)
    return placed


def _repeats(found: Found, item: Finding, by: Found | None) -> bool:
    """Whether a match of TensorRT's adds nothing to the rule's finding ``item``, which ``by`` confirms.

    Both are about the same node, for the same reason. A match that is more severe than the finding, or whose subject
    no rule knows, adds something.
    """
    match = found.match
    if by is None or item.place != match.at or Severity[item.severity.upper()] < found.severity:
        return False
    if found.rule.per == "network":
        return _is_misread(found) and item.severity == "error" and by.match.at == match.at
    return item.code in (match.about or ()) and by.match.said == match.said


def confirm(items: Sequence[Item], matches: Sequence[Found]) -> tuple[Item, ...]:
    """The findings or fixes, each with TensorRT's message where one of its matches confirms it."""
    return tuple(item for item, _ in _pair(items, matches))


def _pair(items: Sequence[Item], matches: Sequence[Found]) -> list[tuple[Item, Found | None]]:
    """The same, with the match that confirms each."""
    pairs = [(item, next((one for one in matches if _confirms(one, item)), None)) for item in items]
    return [(replace(item, confirmed=by.match.message if by is not None else ""), by) for item, by in pairs]


def _confirms(found: Found, item: Finding | AppliedFix) -> bool:
    """Whether TensorRT's match is about the rule's finding."""
    match = found.match
    if match.at is None:
        return False
    if found.rule.per == "network":
        return _misread_at(match.at, item)
    if match.about is not None:
        return item.code in match.about and item.place in (match.at, match.at.around)
    return item.place == match.at and Severity[item.severity.upper()] >= Severity.WARNING


def _misread_at(at: Place, item: Finding | AppliedFix) -> bool:
    """Whether TensorRT imports something differently at the place of a rule's finding: at the same tensor, or at the
    node of the main graph that contains it."""
    if Severity[item.severity.upper()] < Severity.WARNING:
        return False
    return item.place.around == at or (not item.place.graph and item.place.label == at.label)


def pointer_of(found: Found, own: Sequence[Finding], codes: set[str]) -> str:
    """The rule that helps: one with a finding at this place, one with a finding of the same kind, or one to read."""
    about = found.match.about or ()
    here = [item for item in own if _confirms(found, item)]
    same_kind = [item for code in about for item in own if item.code == code]
    sure = bool(about) or (found.rule.per == "network" and any(item.severity == "error" for item in here))
    for items, certain in ((here, sure), (same_kind, False)):
        fixes = sorted((item for item in items if item.fix), key=lambda item: Safety[item.safety.upper()])
        if fixes:
            verb = "fixes it" if certain else "may fix it"
            return f"{fixes[0].code} {verb}{required_option(fixes[0].safety)}"
        if items:
            return f"see {items[0].code}"
    # A wrong engine does not show the cause: a rule that helps elsewhere may have nothing to do with it.
    named = [code for code in about if code in codes and found.rule.per != "execution"]
    return f"see {named[0]}" if named else ""


def name_remedies(cut: Partition, own: Sequence[Finding], known: Sequence[Rule]) -> Partition:
    """The cut of a model, with the rule of the findings ``own`` that brings each node in."""
    from onnxfix.tensorrt.records import TrtBuild  # lazy: start-up

    matches = engine.check_build(TrtBuild("refused", "parse", cut.outside), known, [])
    remedies = {id(one.match.said): pointer_of(one, own, {rule.code for rule in known}) for one in matches}
    return replace(cut, outside=tuple(replace(one, remedy=remedies.get(id(one), "")) for one in cut.outside))


def add_judgments(report: Report, rules: Sequence[Rule], known: Sequence[Rule]) -> Report:
    """The report of an ``apply`` with the results of onnx.checker and TensorRT on the original and on the fixed model,
    where they ran."""
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
    before = engine.check_build(builds[0], known, [], reading=networks[0])  # faults are listed below
    applied = confirm(report.applied, before)
    if executed is not None and executed.outcome == "repaired":
        applied = _mark_repairs(applied, [one for one in before if one.rule.per == "network"])
    return replace(
        report,
        headline=headline(report.builds, report.networks),
        findings=merge_findings(report.findings, builds[-1], rules, known, problems, networks[-1], executed),
        applied=applied,
        problems=tuple(dict.fromkeys(problems)),
    )


def _mark_repairs(applied: Sequence[AppliedFix], misread: Sequence[Found]) -> tuple[AppliedFix, ...]:
    """The fixes; marked are those that repaired the engine: the original's was wrong, and the result's is right.

    Those are the fixes at places that TensorRT imports differently (``misread``). If it imports none differently, they
    are the fixes of the only rule that claims more than a cost; with several such rules, the cause is unknown.
    """
    causes = {item for item in applied if any(_confirms(one, item) for one in misread)}
    if not causes:
        claims = {item for item in applied if Severity[item.severity.upper()] >= Severity.WARNING}
        causes = claims if len({item.code for item in claims}) == 1 else set()
    return tuple(replace(item, on_engine=item in causes) for item in applied)


def _invalid(report: Report, rules: Sequence[Rule], problems: list[Problem]) -> list[Finding]:
    rung = report.check("contract")
    if rung is None or not rung.checks:
        return []
    checks = rung.checks[0], rung.checks[-1]
    return [finding_of(found) for found in engine.check_build(None, rules, problems, checks=checks)]


_NO_REASON = "no reason was given"


def headline(builds: Sequence[TrtBuild], networks: Sequence[Reading] = (), *, always: bool = False) -> str:
    """TensorRT's result on a model: refused or not, before and after the fixes; or accepted and read differently.

    Args:
        builds: of the original and, if it is another model, of the result.
        networks: the same, of the imported networks.
        always: also say that TensorRT accepts a model that it accepted before; "" otherwise.
    """
    part = builds[-1].part if builds else None
    extent = f" in part ({part.words})" if part is not None else ""
    misread = _misread(networks, extent)
    if misread and all(build.accepted for build in builds):
        return misread
    if not builds or not all(build.judged for build in builds):
        return ""
    before, after = builds[0], builds[-1]
    name = _product(after.package, after.version or before.version)  # a child that died reports no version
    if after.accepted and before.accepted:
        return f"{name} accepts it{extent}" if always else ""
    if after.accepted:
        did = "refused" if before.status == "refused" else "failed on"
        return f"{name} {did} it and accepts the result{extent}"
    if before.accepted:
        return ""  # a failed rung, which reports that itself
    verb = "refuses" if after.status == "refused" else "fails on"
    return f"{name} {'still ' if len(builds) > 1 else ''}{verb} it"


def _misread(networks: Sequence[Reading], extent: str) -> str:
    """That TensorRT reads the model as something else, or did so before the fixes; "" where neither holds.
    ``extent`` says how much of the model it read."""
    if not networks or "differs" not in (networks[0].status, networks[-1].status):
        return ""
    before, after = networks[0], networks[-1]
    name = _product(after.package, after.version)
    if after.status == "agrees":
        return f"{name} read it differently and imports the new model correctly{extent}"
    if after.status != "differs" or (len(networks) > 1 and before.status == "agrees"):
        return ""
    return f"{name} accepts it{extent} and {'still ' if len(networks) > 1 else ''}reads it differently"


def _product(package: str, version: str) -> str:
    from onnxfix.tensorrt.package import product  # lazy: start-up

    return product(package, version).strip()


def import_notes(reading: Reading | None) -> Iterator[str]:
    """Why it is unknown how TensorRT imports a model that it accepts."""
    if reading is not None and not reading.judged and reading.status not in ("refused", "broke"):
        why = "cannot be read back" if reading.status == "gap" else "could not be compared with the model"
        yield f"TensorRT's network {why}: {reading.reason or _NO_REASON}"


def build_problems(build: TrtBuild | None, reading: Reading | None = None) -> Iterator[Problem]:
    """Why there is no result of TensorRT, where that is no fault of the model: memory, a broken installation, or a
    failure of onnxfix as it read TensorRT's network back."""
    if build is not None and not build.judged and not build.target_only:
        cause: Cause = "memory" if build.status == "memory" else "not-loadable"
        yield Problem(f"TensorRT could not run: {build.reason or _NO_REASON}", cause, "tensorrt")
    if reading is not None and reading.status == "broke":
        text = f"reading TensorRT's network back failed: {reading.reason or _NO_REASON}"
        yield Problem(text, reading.cause or "fault")
