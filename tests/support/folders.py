"""What lies in a folder, and proofs that pass without a look, for tests of files that are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onnxfix.proof.verdict import RungResult, Verdict

Meanwhile = Callable[[Path, Path], object]


def snapshot(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def names(folder: Path) -> list[str]:
    """All files and folders below a folder."""
    return sorted(item.name for item in folder.rglob("*"))


def pass_unseen(monkeypatch: pytest.MonkeyPatch, meanwhile: Meanwhile = lambda *_: None) -> None:
    """Let proofs of ``apply`` pass; ``meanwhile`` gets the files of the original and of the fixed model."""

    def run_checks(original: Path, fixed: Path, *_: object, **__: object) -> Verdict:
        meanwhile(original, fixed)
        return Verdict((RungResult("contract", "passed", "said without a look"),))

    monkeypatch.setattr("onnxfix.verbs.prove.run_checks", run_checks)
