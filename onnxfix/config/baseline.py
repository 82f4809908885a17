"""Known findings: a file of fingerprints, against which only new findings fail a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onnxfix.errors import UsageError
from onnxfix.report.findings import fingerprints
from onnxfix.report.report import Finding
from onnxfix.runtime import system

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


def load(path: Path, named: str = "--baseline") -> Baseline:
    """The baseline in a file, which ``named`` names in messages.

    Raises:
        UsageError: it does not exist, cannot be read, or is no baseline.
    """
    if not path.is_file():
        raise UsageError(f"{named} {path}: no such file; --write-baseline {path} makes one")
    return _read(path)


def load_or_new(path: Path) -> Baseline:
    """The baseline in a file that will be written; an empty one where there is none yet.

    Raises:
        UsageError: something else is there.
    """
    return _read(path) if path.exists() else Baseline(path)


def _read(path: Path) -> Baseline:
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
