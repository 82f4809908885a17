"""What a run takes from its configuration: the options of each model, and what becomes of its findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import date

from onnxfix.config.baseline import Baseline
from onnxfix.config.judging import compared, expiries, suppressed
from onnxfix.config.records import Config, Settings, Suppression, Values, resolved
from onnxfix.effort import effort_of
from onnxfix.options import Rules, RunOptions
from onnxfix.registry import registry
from onnxfix.report.report import Finding, Report


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
