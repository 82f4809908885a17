"""The result of ``reduce`` as text and as JSON, and the texts of the folder that it writes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

from onnxfix.reduction.records import Reduction
from onnxfix.report.render.lines import Line, line

_SHOWN = 8  # operators that are named

_FILES = {
    "model.onnx": "the reduced model, with its weights",
    "other.onnx": "the same part of the second model",
    "inputs.npz": "the inputs on which it fails: real values of the whole model, as far as it was not made smaller",
    "expected.npz": "what ONNX Runtime computes on the CPU, without optimizations",
    "seen.npz": "what the other side computes",
    "error.txt": "the failure in the tool's words",
    "versions.json": "the versions of all that takes part",
    "reproduce.py": "exits with 1 if the failure reproduces, and with 0 if it does not",
    "README.md": "this page",
    "reduction.json": "what `onnxfix reduce --resume` and reproduce.py read",
}


def reduction_data(found: Reduction) -> dict[str, Any]:
    """The fields of ``Reduction`` and the exit code, as dicts, lists, strings and numbers."""
    return {**dataclasses.asdict(found), "exit_code": found.exit_code}


def reduction_lines(found: Reduction) -> Iterator[Line]:
    """The outcome, the failure, and where the folder is."""
    style = {"passes": "green", "unknown": "yellow"}.get(found.status, "bold")
    yield line(f"{found.path}: {outcome(found)}", style=style, hang=2)
    if found.status in ("passes", "unknown"):
        return
    if found.failure is not None:
        yield line(f"  fails   {found.failure.text}", style="red", hang=10)
    if not found.complete:
        yield line("  note    stopped early: this is the smallest part so far; --resume goes on", hang=10)
    for note in found.notes:
        yield line(f"  note    {note}", hang=10)
    yield line(f"  folder  {found.folder}: {found.command}", hang=10)


def outcome(found: Reduction) -> str:
    """How small the model became, or why it did not, in one phrase."""
    if found.status == "passes":
        return f"nothing fails with {found.check}"
    if found.status == "unknown":
        return f"{found.check} could not be run: {found.reason}"
    names = ", ".join(found.operators[:_SHOWN]) + ", ..." * (len(found.operators) > _SHOWN)
    plural = "s" * (found.nodes_after != 1)
    what = f"{found.nodes_after} node{plural} of {found.nodes_before} still fail{'s' * (not plural)}"
    checked = f"{found.tries} part{'s' * (found.tries != 1)} checked"
    return f"{what} ({names}; {checked})" if names else f"{what} ({checked})"


def script() -> str:
    """The program that reproduces the failure of the folder that it is in."""
    return '''"""Exits with 1 if the failure of this folder reproduces, and with 0 if it does not."""

import sys
from pathlib import Path

import onnxfix

try:
    failure = onnxfix.reproduce(Path(__file__).resolve().parent)
except onnxfix.OnnxfixError as error:
    print(error, file=sys.stderr)
    sys.exit(0)
print(f"reproduced: {failure.text}" if failure else "it does not fail in this way any more")
sys.exit(1 if failure else 0)
'''


def readme(found: Reduction, files: Sequence[str]) -> str:
    """The README of the folder: what fails, how to reproduce it, what is in the folder, and the versions."""
    text = found.failure.text if found.failure is not None else ""
    operators = ", ".join(found.operators)
    rows = [f"- `{name}`: {_FILES[name]}" for name in files if name in _FILES]
    alone = [f"    {command}" for command in stock_commands(found.check)]
    return "\n".join(
        [
            "# Reduced model",
            "",
            f"`onnxfix reduce --check {json.dumps(found.check)}` found the smallest part that fails for the same "
            f"reason: {found.nodes_after} of {found.nodes_before} nodes ({operators}).",
            "",
            "```",
            text,
            "```",
            "",
            "## Reproduce",
            "",
            "```sh",
            "pip install onnxfix",
            found.command,
            "```",
            "",
            *(["Without reproduce.py:", "", *alone, ""] if alone else []),
            "## Files",
            "",
            *rows,
            "",
            "## Versions",
            "",
            *(f"- {name}: {version}" for name, version in found.environment.items()),
            "",
        ]
    )


def stock_commands(check: str) -> tuple[str, ...]:
    """Commands that show the failure without reproduce.py; none where there are none."""
    verify = f"onnxfix verify model.onnx --rungs {check} --inputs inputs.npz"
    if check == "trt-build":
        return verify, "trtexec --onnx=model.onnx"
    if check in ("trt-network", "trt-gpu"):
        return (verify,)
    if check in ("ort-cpu", "ort-cuda"):
        return ()
    return (check.replace("{inputs}", "inputs.npz").replace("{}", "model.onnx"),)
