"""What onnxfix does with one model, as plain data that two versions of onnxfix can be compared by.

Only the public interface is used (``onnxfix.check``, ``onnxfix.apply``, ``Report``), and no wording is recorded: this
file runs unchanged before and after a refactoring.
"""

from __future__ import annotations

import enum
import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Entry = dict[str, Any]

RUNGS = ("contract", "reference", "ort-cpu")
FIXES: dict[str, Entry] = {"exact": {}, "numeric": {"numeric_fixes": True}}

#: What is recorded of every model, and of fixtures besides. A name says which fixes ``apply`` may use.
PLAIN = ("check", "exact", "numeric")
VERIFIED = ("exact verified", "numeric verified")


def act(path: Path, action: str) -> Entry:
    """What ``action`` gives for the model at ``path``. Whatever is raised is part of the record."""
    import onnxfix

    try:
        if action == "check":
            report = onnxfix.check(path)
            return {
                "exit": report.exit_code,
                "findings": listed(report.findings),
                "problems": len(report.problems),
            }
        fixes, _, verified = action.partition(" ")
        with tempfile.TemporaryDirectory(prefix="behavior-") as folder:
            how: Entry = {"verify": True, "rungs": RUNGS} if verified else {"verify": False}
            report = onnxfix.apply(path, output=Path(folder) / "fixed.onnx", **FIXES[fixes], **how)
            return applied(report, Path(folder))
    except Exception as error:  # the command line ends with 2 for all of them
        return {"exit": 2, "raised": type(error).__name__}


def applied(report: Any, folder: Path) -> Entry:
    """What a run of ``apply`` did, which wrote into ``folder``."""
    verdict = report.verdict
    return {
        "exit": report.exit_code,
        "changed": report.changed,
        "files": {str(file.relative_to(folder)): sha256(file) for file in files(folder)},
        "applied": dict(sorted(Counter(fix.code for fix in report.applied).items())),
        "findings": listed(report.findings),
        "withdrawn": sorted([fix.code, str(fix.place)] for fix in report.withdrawn),
        "rungs": [[rung.name, word(rung.status)] for rung in verdict.rungs] if verdict is not None else [],
        "passed": verdict is None or verdict.passed,
        "problems": len(report.problems),
    }


def listed(findings: Iterable[Any]) -> list[list[str]]:
    """Findings in the order of the report: code, place, severity, safety of the fix ("" where there is none)."""
    return [[one.code, str(one.place), word(one.severity), word(one.safety)] for one in findings]


def word(value: Any) -> str:
    """A severity, a safety or a status as the reports spell it, whether it is text, an enumeration or None."""
    return value.name.lower() if isinstance(value, enum.Enum) else str(value or "")


def files(folder: Path) -> list[Path]:
    """All files below a folder: the model and its external data."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def sha256(path: Path) -> str:
    """Of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
