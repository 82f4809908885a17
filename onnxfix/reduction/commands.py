"""A command of the user's as a check: it fails where it ends with the same exit code as on the whole model."""

from __future__ import annotations

import io
import re
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onnxfix.errors import UsageError
from onnxfix.reduction.case import Case
from onnxfix.reduction.checks import Check
from onnxfix.reduction.records import Failure, Seen
from onnxfix.runtime import system


def npz(values: Mapping[str, Any]) -> bytes:
    """The tensors among values as an .npz file: texts in numpy's own type; no sequences."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                plain = value.astype(str) if value.dtype.kind == "O" else value
                # Its size is known when it was written, and may be more than a plain entry holds.
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, plain, allow_pickle=False)
    return stream.getvalue()


MODEL, INPUTS = "{}", "{inputs}"
_NOT_STARTED = (126, 127)  # exit codes of a shell that cannot execute the command


class CommandCheck(Check):
    """``command`` with the path of the model in place of ``{}``, and that of its inputs (.npz) for ``{inputs}``, run by
    the shell in the folder where onnxfix was started.

    Exit code 0 passes. ``match`` is a regular expression that the output must contain too. ``timeout`` is in seconds;
    a command that takes longer fails with the kind "timeout". Only the user knows what it computes and runs.

    Raises:
        UsageError: the command has no ``{}``, or ``match`` is no regular expression.
    """

    def __init__(self, command: str, match: str = "", timeout: float = 300.0) -> None:
        if MODEL not in command:
            raise UsageError(f"--check {command!r}: the command needs {{}} where the model's path goes")
        try:
            self.pattern = re.compile(match) if match else None
        except re.error as error:
            raise UsageError(f"--match {match!r}: not a regular expression: {error}") from None
        self.command, self.timeout, self.name = command, timeout, command
        self.feeds = INPUTS in command

    def examine(self, case: Case, path: Path) -> Seen:
        inputs = path.with_name("inputs.npz")
        if self.feeds:
            inputs.write_bytes(npz(case.inputs))
        code, output = self._run(filled(self.command, path, inputs))
        if code is None:
            return Seen((Failure("timeout", text=f"the command took more than {self.timeout:g} s"),))
        tail = " ".join(output.split()[-60:])
        if code in _NOT_STARTED:
            return Seen(unknown=f"the command cannot be executed: {tail}")
        if code == 0 or (self.pattern is not None and not self.pattern.search(output)):
            return Seen()
        text = f"exit code {code}{f': {tail}' if tail else ''}"
        return Seen((Failure("exit", code=str(code), text=text),))

    def _run(self, line: str) -> tuple[int | None, str]:
        """Exit code (None: the time limit) and output of a shell command; what it started ends with it."""
        process = subprocess.Popen(
            line, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, creationflags=system.NEW_GROUP,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=self.timeout)
            return process.returncode, output.decode(errors="replace")
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            system.kill(process)
            process.wait()


def filled(command: str, model: Path | str, inputs: Path | str) -> str:
    """The command with both paths, quoted for the shell."""
    return command.replace(INPUTS, system.quoted(str(inputs))).replace(MODEL, system.quoted(str(model)))
