"""The command line, in this process."""

from __future__ import annotations

from typer.testing import CliRunner

from onnxfix.cli.app import app


def run(*arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``onnxfix`` with these arguments."""
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr
