"""Whether the original and the fixed model are valid ONNX, by onnx's own checker, and what follows from it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from onnxfix.proof.checker import Checked as Checked
from onnxfix.proof.checker import check, unclaimed, violation
from onnxfix.runtime.forks import forked
from onnxfix.runtime.sandbox import Outcome, Worker

_CHECKER = "onnxfix.proof.checker"


class Judged(NamedTuple):
    """onnx.checker's part of the check ``contract``: its status, and a line."""

    status: Literal["passed", "failed", "skipped"]
    words: str
    notes: tuple[str, ...] = ()


def ask(
    paths: Sequence[Path],
    *,
    timeout: float,
    memory_mb: int | None,
    worker: Worker | None = None,
) -> tuple[Checked, ...]:
    """Run onnx.checker on each model file. ``timeout`` is in seconds, for each run.

    ``worker`` is a child that is needed anyway; without it a fork of this process is made. That copies each page to
    which this process writes then, and takes the longer the larger this process is.

    Crashes and hangs of ONNX's shape inference are not complaints: they happen with valid models.
    """
    with tempfile.TemporaryDirectory(prefix="onnxfix-", ignore_cleanup_errors=True) as folder:
        names = [str(path) for path in paths]
        limits: dict[str, Any] = {"timeout": timeout, "memory_mb": memory_mb}
        checks: list[Checked] = []
        full = Outcome("ok")
        for name in names:
            if full.status != "timeout":  # a hang is not waited for again
                if worker is not None:
                    full = worker.call(f"{_CHECKER}:check", timeout=timeout, path=name, folder=folder)
                else:
                    full = forked(check, name, folder, **limits)
            plain = full if full.ok else forked(check, name, folder, False, **limits)
            if full.ok or (plain.ok and plain.value.refused):
                checks.append(plain.value)
            elif plain.ok:  # shape inference ended it
                checks.append(Checked(skipped=full.message))
            else:
                memory = plain.status == "memory"
                checks.append(Checked(starved=plain.message) if memory else Checked(plain.message))
        first, second = checks[0], checks[-1]
        if not second.inference or not first.complete:
            return tuple(checks)
        # An original that passes only because of the shapes that it declares does not count as passing: inference
        # complains about the fixed model with and without them.
        again = forked(unclaimed, names[0], **limits)
        if again.ok and not again.value:
            return tuple(checks)
        why = again.value if again.ok else again.message
        return (replace(first, skipped=f"without the shapes that it declares: {why}"), second)


def violated(path: Path, *, timeout: float, memory_mb: int | None = None) -> str:
    """How the model violates ONNX's specification, in a line; empty where it does not, or that is not known."""
    with tempfile.TemporaryDirectory(prefix="onnxfix-", ignore_cleanup_errors=True) as folder:
        found = forked(violation, str(path), folder, timeout=timeout, memory_mb=memory_mb)
    return str(found.value) if found.ok else ""


def judge(checks: Sequence[Checked]) -> Judged:
    """The result for the fixed model. ``checks`` are of the original and, unless that is the same, the fixed model.

    A fixed model must pass what the original passes, ``full_check`` included where the original passes that.
    """
    first, second, single = checks[0], checks[-1], len(checks) == 1
    starved = next((one.starved for one in checks if one.starved), "")
    if starved:
        return Judged("skipped", f"onnx.checker did not run: {starved}")
    if single and second.refused:
        return Judged("skipped", f"the model is not valid ONNX: {second.refused}")
    if single and second.inference:
        return Judged("passed", f"onnx.checker passes, but not with full_check: {second.inference}")
    if second.refused and not first.refused:
        return Judged("failed", f"the new model does not pass onnx.checker: {second.refused}")
    if second.inference and first.complete:
        why = f"with full_check, and the original does: {second.inference}"
        return Judged("failed", f"the new model does not pass onnx.checker {why}")
    if first.complaint:
        return Judged("skipped" if second.refused else "passed", invalid(first, second), _unknown(second))
    if second.inference:
        words = f"onnx.checker passes, but not with full_check: {second.inference}"
        return Judged(
            "passed", words, (f"whether the original passes full_check is not known: {first.skipped}",)
        )
    return Judged("passed", "onnx.checker passes", _unknown(second))


def _unknown(one: Checked) -> tuple[str, ...]:
    return (f"onnx.checker ran without full_check: {one.skipped}",) if one.skipped else ()


def invalid(original: Checked, fixed: Checked) -> str:
    """Why the original is not valid ONNX, and whether the fixed model is; in a line.

    What ``full_check`` alone refuses may be valid: ONNX's inference does not know every operator.
    """
    if original.refused:
        first, after = (
            f"is not valid ONNX: {original.refused.rstrip('.')}",
            "passes onnx.checker" if fixed.skipped else "is",
        )
        if fixed.refused:
            after = f"is not, either: {fixed.refused}"
        elif fixed.inference:
            after = f"passes onnx.checker, but not with full_check: {fixed.inference}"
    else:
        first = f"does not pass onnx.checker with full_check: {original.inference.rstrip('.')}"
        after = "passes without it" if fixed.skipped else "does"
        if fixed.complaint:
            after = f"does not, either: {fixed.complaint}"
    return f"the original {first}; the new model {after}"
