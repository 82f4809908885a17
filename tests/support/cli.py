"""The command line, in this process and in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from onnxfix.cli.app import app
from support.patience import PATIENCE


def run(*arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``onnxfix`` with these arguments."""
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def streams(code: int, *arguments: object) -> tuple[str, str]:
    """Standard output and standard error of a command that ends with this code."""
    found, *both = run(*arguments)
    assert found == code, both
    return both[0], both[1]


def output(code: int, *arguments: object) -> str:
    return streams(code, *arguments)[0]


def errors(code: int, *arguments: object) -> str:
    return streams(code, *arguments)[1]


def told(*arguments: object) -> tuple[int, Any]:
    """Exit code, and what is printed with ``--format json``."""
    code, out, _ = run(*arguments, "--format", "json")
    return code, json.loads(out)


def reported(*arguments: object) -> tuple[int, dict[str, Any]]:
    """Exit code, and the only report."""
    code, document = told(*arguments)
    (report,) = document["reports"]
    return code, report


def refused(*arguments: object) -> str:
    """The one line that a refused command says; it prints nothing else and ends with 2."""
    code, out, err = run(*arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1), (code, out, err)
    return err


def process(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """``onnxfix`` with these arguments in a process of its own; ``more`` is for subprocess.run."""
    command = [sys.executable, "-m", "onnxfix", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, **more)


def shell(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A shell line in ``folder``; ``$onnxfix`` is the command line in a process of its own."""
    program = f"{sys.executable} -m onnxfix"
    env = {**os.environ, "onnxfix": program, **environment}
    return subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, env=env, timeout=PATIENCE)
