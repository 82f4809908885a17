"""Applies a configuration to a run: the options of each model, and which findings are suppressed or known. A baseline
is a file of fingerprints of known findings: only new ones fail a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from onnxfix.config.records import COMMAND_LINE, DEFAULT, Config, Layer, Settings, Suppression, resolve
from onnxfix.errors import UsageError
from onnxfix.options import RunOptions
from onnxfix.report.findings import Finding, Located, Suppressed, Vanished, fingerprints, move_sources
from onnxfix.report.render.settings import Setting
from onnxfix.report.report import Report
from onnxfix.rewrite.registry import registry
from onnxfix.runtime import system
from onnxfix.targets import choose_target

FORMAT = "onnxfix-baseline"
"""The key by which a baseline is recognized, and its version."""
VERSION = 1


@dataclass(frozen=True)
class Known:
    """A finding of an earlier run. ``place`` is for people."""

    fingerprint: str
    code: str
    place: str


@dataclass(frozen=True)
class Baseline:
    """The known findings of models, by path relative to the folder of the file, or by URL."""

    path: Path
    models: Mapping[str, tuple[Known, ...]] = field(default_factory=dict)

    def of(self, source: str) -> tuple[Known, ...]:
        """The known findings of a model."""
        return self.models.get(self.key(source), ())

    def key(self, source: str) -> str:
        """A model's name in the file."""
        return source if "://" in source else Path(system.relative(source, self.path.parent)).as_posix()

    def with_findings(self, found: Mapping[str, Sequence[Finding]]) -> Baseline:
        """The baseline with the findings of these models (by source) instead of what it had for them.

        Others stay as long as their files are there.
        """
        models = {
            name: known
            for name, known in self.models.items()
            if "://" in name or (self.path.parent / name).is_file()
        }
        models.update({self.key(source): known_of(findings) for source, findings in found.items()})
        return Baseline(self.path, {name: known for name, known in models.items() if known})

    def text(self) -> str:
        """The file's content: sorted, so that versions can be compared."""
        models = {
            name: [
                {"fingerprint": one.fingerprint, "code": one.code, "place": one.place}
                for one in sorted(known, key=lambda one: (one.code, one.place, one.fingerprint))
            ]
            for name, known in sorted(self.models.items())
        }
        return json.dumps({FORMAT: VERSION, "models": models}, indent=2) + "\n"


def known_of(findings: Sequence[Finding]) -> tuple[Known, ...]:
    """What a baseline keeps of the findings of one model."""
    marks = zip(findings, fingerprints(findings), strict=True)
    return tuple(Known(mark, finding.code, finding.place.text) for finding, mark in marks)


def load_baseline(path: Path, named: str = "--baseline") -> Baseline:
    """The baseline in a file, which ``named`` names in messages.

    Raises:
        UsageError: it does not exist, cannot be read, or is no baseline.
    """
    if not path.is_file():
        raise UsageError(f"{named} {path}: no such file; --write-baseline {path} makes one")
    return _read_baseline(path)


def load_or_new_baseline(path: Path) -> Baseline:
    """The baseline in a file that will be written; an empty one where there is none yet.

    Raises:
        UsageError: something else is there.
    """
    return _read_baseline(path) if path.exists() else Baseline(path)


def _read_baseline(path: Path) -> Baseline:
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise UsageError(f"{path}: is not a baseline of onnxfix; name another file") from None
    if not isinstance(data, dict) or FORMAT not in data:
        raise UsageError(f"{path}: is not a baseline of onnxfix; name another file")
    if data[FORMAT] != VERSION:
        raise UsageError(f"{path}: is a baseline of another version ({data[FORMAT]}); write it again")
    try:
        models = {
            str(name): tuple(
                Known(*(str(one[key]) for key in ("fingerprint", "code", "place"))) for one in known
            )
            for name, known in data["models"].items()
        }
    except (KeyError, TypeError, AttributeError):
        raise UsageError(f"{path}: is a damaged baseline; write it again") from None
    return Baseline(path, models)


CONFIGURATION = "configuration"
BASELINE = "baseline"
_FOR_FINDINGS = ("target", "select", "ignore", "fail_on", "source_root")
"""Settings that affect findings only."""
_OPTIONAL = ("timeout", "rung_timeout", "source_root")
"""Settings that are shown only if something sets them."""


@dataclass
class Holding:
    """A configuration, and the settings of the command line (``given``), which take precedence.

    ``baseline`` lists known findings. ``renewed``: this run's findings replace it. ``judges`` is False for a
    command without findings (``verify``). ``matched`` says whether each tried suppression matched a finding.
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
        """The settings for a model, which is named by path or URL."""
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
        """Move accepted and known findings to ``suppressed``. ``options`` are the model's."""
        if not self.judges:
            return replace(report, fail_on="never")
        values = self.settings(source).values
        report = move_sources(replace(report, fail_on=values["fail_on"]), tuple(values["source_root"]))
        suppressions = self.config.suppressions_of(source)
        if not suppressions and self.baseline is None:
            return report
        codes = frozenset(rule.code for rule in registry().choose(options.rules.select, options.rules.ignore))
        self._match(report, suppressions, codes)
        report = _suppress(report, [item for item in suppressions if not item.expired(self.today)])
        if self.renewed:
            self.found[source] = report.findings
        if self.baseline is None:
            return report
        baseline = self.baseline.with_findings(self.found) if self.renewed else self.baseline
        return _compare(report, source, baseline, codes)

    def _match(self, report: Report, suppressions: Iterable[Suppression], codes: frozenset[str]) -> None:
        """Note which suppressions match a finding or a fixed finding. Skip suppressions whose rules did not
        run, and suppressions of TensorRT's messages if TensorRT was not asked."""
        tried_codes = _tried(codes, report)
        located: list[Located] = [*report.findings, *report.applied]
        places = [(finding.code, finding.place) for finding in located]
        for item in suppressions:
            if item.codes & tried_codes:
                matches = any(item.covers(*place) for place in places)
                self.matched[item] = self.matched.get(item, False) or matches

    def expired(self, sources: Iterable[str]) -> list[str]:
        """A line for each expired suppression that applies to one of the models."""
        if not self.judges:
            return []
        relevant = {item for source in sources for item in self.config.suppressions_of(source)}
        return [
            f"{item.origin}: the suppression of {item.words} expired on {item.until}: {item.reason}"
            for item in self.config.suppressions
            if item in relevant and item.expired(self.today)
        ]

    def unmatched(self) -> list[str]:
        """A line for each suppression of this run's models that matched no finding and has not expired."""
        unused = [item for item, hit in self.matched.items() if not hit and not item.expired(self.today)]
        return [f"{item.origin}: the suppression of {item.words} matches no finding" for item in unused]

    def renewal(self) -> Baseline | None:
        """The baseline with this run's findings; None if no baseline is to be written."""
        return self.baseline.with_findings(self.found) if self.baseline is not None and self.renewed else None

    # What ``--show-settings`` shows.

    def rows(self, source: str) -> list[Setting]:
        """The settings of one model and where they come from."""
        config, settings = self.config, self.settings(source)
        rows = [Setting("config", config.name or "none", "" if config.path is not None else DEFAULT)]
        for name, value in self._used_settings(settings).items():
            rows.append(Setting(name.replace("_", "-"), _value_text(name, value), settings.origin(name)))
        if not self.judges:
            return rows
        path = self.baseline.path if self.baseline is not None else None
        origin = DEFAULT if path is None else config.name if path == config.baseline else COMMAND_LINE
        rows.append(Setting("baseline", str(path) if path is not None else "none", origin))
        for item in config.suppressions_of(source):
            end, expired = item.until, item.expired(self.today)
            until = f" ({'expired on' if expired else 'until'} {end})" if end is not None else ""
            rows.append(Setting("suppression", f"{item.words}{until}: {item.reason}", item.origin, expired))
        return rows

    def _used_settings(self, settings: Settings) -> dict[str, Any]:
        return {
            name: choose_target(value)[0].name if name == "target" else value
            for name, value in settings.values.items()
            if (self.judges or name not in _FOR_FINDINGS)
            and (value not in (None, ()) or name not in _OPTIONAL)
        }


def _tried(codes: frozenset[str], report: Report) -> set[str]:
    """The rules of a run, without those about TensorRT's messages if TensorRT was not asked."""
    return {code for code in codes if report.builds or not code.startswith("TRT")}


def _value_text(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if value is None:
        return "the default rules" if name == "select" else "by element type"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _suppress(report: Report, suppressions: Sequence[Suppression]) -> Report:
    """Move the findings that a suppression covers to ``suppressed``. Verdicts, withdrawn fixes and problems
    still fail the run."""
    kept, hidden = list[Finding](), list[Suppressed]()
    for finding in report.findings:
        match = next((item for item in suppressions if item.covers(finding.code, finding.place)), None)
        if match is None:
            kept.append(finding)
        else:
            until = match.until.isoformat() if match.until is not None else ""
            hidden.append(Suppressed(finding, CONFIGURATION, match.reason, match.origin, until))
    return (
        replace(report, findings=tuple(kept), suppressed=(*report.suppressed, *hidden)) if hidden else report
    )


def _compare(report: Report, source: str, baseline: Baseline, codes: frozenset[str]) -> Report:
    """Move the findings that the baseline lists to ``suppressed``, and name the listed ones that are gone.

    ``codes`` are the codes of the rules that ran. Listed findings of other rules are not gone.
    """
    listed = baseline.of(source)
    old_marks = {entry.fingerprint for entry in listed}
    origin = str(baseline.path)
    marks = fingerprints(report.findings)
    pairs = list(zip(report.findings, marks, strict=True))
    hidden = tuple(Suppressed(item, BASELINE, "known", origin) for item, mark in pairs if mark in old_marks)
    # Suppressed findings, and findings that this run fixed, are not gone.
    others: list[Located] = [*(item.finding for item in report.suppressed), *report.applied]
    present_marks, tried = {*marks, *fingerprints(others)}, _tried(codes, report)
    gone = tuple(
        Vanished(entry.code, entry.place, entry.fingerprint, origin)
        for entry in listed
        if entry.fingerprint not in present_marks and entry.code in tried
    )
    kept = tuple(finding for finding, mark in pairs if mark not in old_marks)
    return replace(report, findings=kept, suppressed=(*report.suppressed, *hidden), vanished=gone)
