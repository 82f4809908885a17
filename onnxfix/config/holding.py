"""What a run takes from its configuration: the options of each model, and what becomes of its findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

from onnxfix.config.baseline import Baseline, is_there
from onnxfix.config.records import Config, Settings, Suppression, Values, resolved
from onnxfix.effort import effort_of
from onnxfix.options import Rules, RunOptions
from onnxfix.registry import registry
from onnxfix.report.findings import Finding, Suppressed, Vanished
from onnxfix.report.fingerprint import Located, fingerprints
from onnxfix.report.report import Report


@dataclass
class Holding:
    """A configuration with what the command line gives, which wins.

    ``baseline`` holds known findings; ``renewed``: it is written anew, with what this run finds. ``judges`` False: the
    command has no findings (``verify``). ``matched`` says of each suppression that was tried whether anything matched.
    """

    config: Config = field(default_factory=Config)
    given: Values = field(default_factory=Values)
    baseline: Baseline | None = None
    renewed: bool = False
    judges: bool = True
    today: date = field(default_factory=date.today)
    found: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    matched: dict[Suppression, bool] = field(default_factory=dict)

    def settings(self, source: str) -> Settings:
        """What holds for a model, given by path or URL."""
        return resolved((*self.config.about(source), self.given))

    def options(self, source: str, options: RunOptions) -> RunOptions:
        """The options of a run for one model."""
        own = self.settings(source)
        verification = options.verification
        if verification.enabled:
            effort, limit = effort_of(own.effort), own.rung_timeout
            verification = replace(verification, require=own.require, effort=effort, rung_timeout=limit)
        if not verification.exact:
            verification = replace(verification, rtol=own.rtol, atol=own.atol)
        return replace(
            options,
            rules=Rules(own.select, own.ignore or None, own.target),
            verification=verification,
            structure_mb=own.structure_limit,
            timeout=own.timeout,
        )

    def judged(self, source: str, report: Report, options: RunOptions) -> Report:
        """The report, with accepted and known findings apart. ``options`` are those of the model's run."""
        report = replace(report, fail_on=self.settings(source).fail_on)
        if not self.judges:
            return report
        suppressions = self.config.suppressions_of(source)
        if not suppressions and self.baseline is None:
            return report
        ran = frozenset(rule.code for rule in registry().choose(options.rules.select, options.rules.ignore))
        self._match(report, suppressions, ran)
        report = suppressed(report, suppressions, self.today)
        if self.renewed:
            self.found[source] = report.findings
        if self.baseline is None:
            return report
        known = self.baseline.with_findings(self.found) if self.renewed else self.baseline
        return compared(report, source, known, ran)

    def _match(self, report: Report, suppressions: Iterable[Suppression], ran: frozenset[str]) -> None:
        """Note which suppressions match a finding, also one that was fixed. One about rules that did not run, or about
        what TensorRT says where it was not asked, is not tried."""
        asked = {code for code in ran if report.builds or not code.startswith("TRT")}
        places = [(one.code, one.place) for one in report.findings]
        places += [(one.code, one.place) for one in report.applied]
        for one in suppressions:
            if one.codes & asked:
                self.matched[one] = self.matched.get(one, False) or any(one.covers(*each) for each in places)

    def expired(self, sources: Iterable[str]) -> list[str]:
        """A line for each suppression that is about one of the models and holds no more."""
        if not self.judges:
            return []
        about = {one for source in sources for one in self.config.suppressions_of(source)}
        return expiries([one for one in self.config.suppressions if one in about], self.today)

    def unmatched(self) -> list[str]:
        """A line for each suppression of this run's models that no finding matched, unless it expired."""
        idle = [one for one, matched in self.matched.items() if not matched and not one.expired(self.today)]
        return [f"{one.origin}: the suppression of {one.words} matches no finding" for one in idle]

    def renewal(self) -> Baseline | None:
        """The baseline with what this run found; None where none is to be written."""
        return self.baseline.with_findings(self.found) if self.baseline is not None and self.renewed else None


CONFIGURATION = "configuration"
BASELINE = "baseline"


def suppressed(report: Report, suppressions: Sequence[Suppression], today: date) -> Report:
    """The report with the findings that a suppression covers apart: a verdict, a withdrawn fix and a problem fail a run
    as before. Expired ones cover nothing."""
    active = [one for one in suppressions if not one.expired(today)]
    left: list[Finding] = []
    apart: list[Suppressed] = []
    for finding in report.findings:
        by = next((one for one in active if one.covers(finding.code, finding.place)), None)
        if by is None:
            left.append(finding)
        else:
            until = by.until.isoformat() if by.until is not None else ""
            apart.append(Suppressed(finding, CONFIGURATION, by.reason, by.origin, until))
    return replace(report, findings=tuple(left), suppressed=(*report.suppressed, *apart)) if apart else report


def compared(report: Report, source: str, baseline: Baseline, ran: frozenset[str]) -> Report:
    """The report with the findings that the baseline knows apart, and those named that are gone.

    ``ran`` are the codes of the rules that the run was about: what others found once is not gone.
    """
    known = baseline.of(source)
    names = {one.fingerprint for one in known}
    origin = str(baseline.path)
    marks = fingerprints(report.findings)
    pairs = list(zip(report.findings, marks, strict=True))
    apart = tuple(Suppressed(one, BASELINE, "known", origin) for one, mark in pairs if mark in names)
    # A suppressed finding is there, and so is one that was fixed just now.
    others: list[Located] = [*(one.finding for one in report.suppressed), *report.applied]
    there = frozenset((*marks, *fingerprints(others)))
    gone = tuple(
        Vanished(one.code, one.place, one.fingerprint, origin)
        for one in known
        if not is_there(one, report, there, ran)
    )
    left = tuple(one for one, mark in pairs if mark not in names)
    return replace(report, findings=left, suppressed=(*report.suppressed, *apart), vanished=gone)


def expiries(suppressions: Sequence[Suppression], today: date) -> list[str]:
    """A line for each suppression that holds no more."""
    return [
        f"{one.origin}: the suppression of {one.words} expired on {one.until}: {one.reason}"
        for one in suppressions
        if one.expired(today)
    ]
