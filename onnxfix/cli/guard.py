"""What surrounds every command: errors become one line and an exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import typer

from onnxfix.cli.reports import print_error
from onnxfix.errors import explained, working_directory
from onnxfix.report.render.stream import complain
from onnxfix.rewrite import packs
from onnxfix.runtime.interrupts import exit_code, finish, listen

if TYPE_CHECKING:
    from onnxfix.tensorrt.records import TrtOptions


@contextlib.contextmanager
def guarded(format: str) -> Iterator[None]:
    """Print one line for whatever ends a command early, and exit with 2, or as an interrupted program does. In a format
    that programs read, the line is also the error of a document."""
    code = 2
    try:
        listen()
        working_directory()
        with packs.restored():
            yield
    except KeyboardInterrupt:
        finish()
        code = exit_code()
        message = "interrupted; nothing half-written was left behind"
    except typer.Exit:
        raise
    except Exception as error:
        message = explained(error)
    else:
        return
    complain(message)
    print_error(format, message)
    raise typer.Exit(code) from None


def warn(warnings: Iterable[str]) -> None:
    """Print warnings to standard error."""
    for warning in warnings:
        complain(f"warning: {warning}")


def refuse_missing(trt: TrtOptions) -> None:
    """Refuse to ask a TensorRT that is not there, once and before any work.

    Raises:
        UsageError: it is not.
    """
    from onnxfix.proof.asking import require_tensorrt  # lazy: start-up

    require_tensorrt(trt).close()
