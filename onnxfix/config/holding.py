"""What a run takes from its configuration: the options of each model, and what becomes of its findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

from onnxfix.config.baseline import Baseline, is_there
from onnxfix.config.records import COMMAND_LINE, DEFAULT, Config, Layer, Settings, Suppression, resolve
from onnxfix.options import RunOptions
from onnxfix.report.findings import Finding, Located, Suppressed, Vanished, fingerprints
from onnxfix.report.render.settings import Setting
from onnxfix.report.report import Report
from onnxfix.rewrite.registry import registry
from onnxfix.targets import choose_target

CONFIGURATION = "configuration"
BASELINE = "baseline"
_OF_FINDINGS = ("target", "select", "ignore", "fail_on")
"""Settings that a command without findings has no use for."""
_SELDOM = ("structure_limit", "timeout", "rung_timeout")
"""Settings that are shown only where something sets them."""


@dataclass
class Holding:
    """A configuration with what the command line gives, which wins.

    ``baseline`` holds known findings; ``renewed``: it is written anew, with what this run finds. ``judges`` False: the
    command has no findings (``verify``). ``matched`` says of each suppression that was tried whether anything matched.
    """

    config: Config = field(default_factory=Config)
    given: Layer = field(default_factory=Layer)
    baseline: Baseline | None = None
    renewed: bool = False
    judges: bool = True
    today: date = field(default_factory=date.today)
    found: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    matched: dict[Suppression, bool] = field(default_factory=dict)

    def settings(self, source: str) -> Settings:
        """What holds for a model, given by path or URL."""
        return resolve((*self.config.about(source), self.given))

    def options(self, source: str, options: RunOptions) -> RunOptions:
        """The options of a run for one model."""
        fields = self.settings(source).fields()
        if not options.verification.enabled:
            for name in ("require", "effort", "rung_timeout"):
                del fields[f"verification.{name}"]
        if options.verification.exact:
            del fields["verification.rtol"], fields["verification.atol"]
        return options.with_fields(fields)

    def judge(self, source: str, report: Report, options: RunOptions) -> Report:
        """The report, with accepted and known findings apart. ``options`` are those of the model's run."""
        if not self.judges:
            return replace(report, fail_on="never")
        report = replace(report, fail_on=self.settings(source).values["fail_on"])
        suppressions = self.config.suppressions_of(source)
        if not suppressions and self.baseline is None:
            return report
        ran = frozenset(rule.code for rule in registry().choose(options.rules.select, options.rules.ignore))
        self._match(report, suppressions, ran)
        report = _suppress(report, [one for one in suppressions if not one.expired(self.today)])
        if self.renewed:
            self.found[source] = report.findings
        if self.baseline is None:
            return report
        known = self.baseline.with_findings(self.found) if self.renewed else self.baseline
        return _compare(report, source, known, ran)

    def _match(self, report: Report, suppressions: Iterable[Suppression], ran: frozenset[str]) -> None:
        """Note which suppressions match a finding, also one that was fixed. One about rules that did not run, or about
        what TensorRT says where it was not asked, is not tried."""
        asked = {code for code in ran if report.builds or not code.startswith("TRT")}
        located: list[Located] = [*report.findings, *report.applied]
        places = [(one.code, one.place) for one in located]
        for one in suppressions:
            if one.codes & asked:
                self.matched[one] = self.matched.get(one, False) or any(one.covers(*each) for each in places)

    def expired(self, sources: Iterable[str]) -> list[str]:
        """A line for each suppression that is about one of the models and expired."""
        if not self.judges:
            return []
        about = {one for source in sources for one in self.config.suppressions_of(source)}
        return [
            f"{one.origin}: the suppression of {one.words} expired on {one.until}: {one.reason}"
            for one in self.config.suppressions
            if one in about and one.expired(self.today)
        ]

    def unmatched(self) -> list[str]:
        """A line for each suppression of this run's models that no finding matched, unless it expired."""
        idle = [one for one, matched in self.matched.items() if not matched and not one.expired(self.today)]
        return [f"{one.origin}: the suppression of {one.words} matches no finding" for one in idle]

    def renewal(self) -> Baseline | None:
        """The baseline with what this run found; None where none is to be written."""
        return self.baseline.with_findings(self.found) if self.baseline is not None and self.renewed else None

    # What ``--show-settings`` shows.

    def rows(self, source: str) -> list[Setting]:
        """The settings of one model and where they come from, for people."""
        config, settings = self.config, self.settings(source)
        listed = [Setting("config", config.name or "none", "" if config.path is not None else DEFAULT)]
        for name, value in self._shown(settings).items():
            listed.append(Setting(name.replace("_", "-"), _value_text(name, value), settings.origin(name)))
        if not self.judges:
            return listed
        path = self.baseline.path if self.baseline is not None else None
        origin = DEFAULT if path is None else config.name if path == config.baseline else COMMAND_LINE
        listed.append(Setting("baseline", str(path) if path is not None else "none", origin))
        for one in config.suppressions_of(source):
            over = one.expired(self.today)
            until = f" ({'expired on' if over else 'until'} {one.until})" if one.until is not None else ""
            listed.append(Setting("suppression", f"{one.words}{until}: {one.reason}", one.origin, over))
        return listed

    def as_data(self, source: str) -> dict[str, Any]:
        """The same as plain dicts, lists, strings, numbers and None."""
        settings = self.settings(source)
        data: dict[str, Any] = {
            "path": source,
            "config": str(self.config.path) if self.config.path is not None else None,
            "settings": {
                name.replace("_", "-"): {
                    "value": list(value) if isinstance(value, tuple) else value,
                    "origin": settings.origin(name),
                }
                for name, value in self._shown(settings).items()
            },
        }
        if self.judges:
            data["baseline"] = str(self.baseline.path) if self.baseline is not None else None
            data["suppressions"] = [
                {
                    "rule": one.rule,
                    "node": one.node,
                    "reason": one.reason,
                    "until": one.until.isoformat() if one.until is not None else None,
                    "expired": one.expired(self.today),
                    "origin": one.origin,
                }
                for one in self.config.suppressions_of(source)
            ]
        return data

    def _shown(self, settings: Settings) -> dict[str, Any]:
        """The settings that the command uses."""
        return {
            name: choose_target(value)[0].name if name == "target" else value
            for name, value in settings.values.items()
            if (self.judges or name not in _OF_FINDINGS) and (value is not None or name not in _SELDOM)
        }


def _value_text(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if value is None:
        return "the default rules" if name == "select" else "by element type"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _suppress(report: Report, suppressions: Sequence[Suppression]) -> Report:
    """The report with the findings that a suppression covers apart: a verdict, a withdrawn fix and a problem fail a run
    as before."""
    left: list[Finding] = []
    apart: list[Suppressed] = []
    for finding in report.findings:
        by = next((one for one in suppressions if one.covers(finding.code, finding.place)), None)
        if by is None:
            left.append(finding)
        else:
            until = by.until.isoformat() if by.until is not None else ""
            apart.append(Suppressed(finding, CONFIGURATION, by.reason, by.origin, until))
    return replace(report, findings=tuple(left), suppressed=(*report.suppressed, *apart)) if apart else report


def _compare(report: Report, source: str, baseline: Baseline, ran: frozenset[str]) -> Report:
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
