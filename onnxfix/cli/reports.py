"""The files of ``--report``: which they are, what goes into each, and writing them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from onnxfix.config.table import FORMATS
from onnxfix.errors import OnnxfixError, explained
from onnxfix.report.render.documents import Kind, refuse_unknown_kind, render_document, target_of
from onnxfix.report.render.stream import complain, output, stream_at

OWN = (Kind.json, Kind.markdown)
"""What commands write that have a result of their own, not reports on models."""


class Destination(NamedTuple):
    """A file to write. ``kind`` is None where its name says none; ``new``: it did not exist when the run began."""

    kind: Kind | None
    path: Path
    new: bool


def destinations(texts: Sequence[str] | None) -> tuple[Destination, ...]:
    """The files that ``--report`` names, each ``FILE`` or ``KIND:FILE``."""
    return tuple(
        Destination(kind, path, not path.exists()) for kind, path in (target_of(text) for text in texts or ())
    )


def refuse_unknown_kinds(reports: Sequence[Destination], known: Sequence[Kind] = tuple(Kind)) -> None:
    """Refuse files whose names do not say what to write, and kinds that the command does not write.

    Raises:
        UsageError: there is one.
    """
    for one in reports:
        refuse_unknown_kind(one.kind, one.path, known)


def write_reports(reports: Sequence[Destination], render: Callable[[Kind], str]) -> bool:
    """Write all files; whether that went well. What fails is reported, and does not keep the others from being written.

    ``render`` gives the document of a kind.
    """
    well = True
    for one in reports:
        try:
            _write(one, render(refuse_unknown_kind(one.kind, one.path)))
        except Exception as error:  # whatever it is, the other files still have to be written
            complain(explained(error))
            well = False
    return well


def _write(report: Destination, text: str) -> None:
    """Write one file, complete or not at all.

    Raises:
        OnnxfixError: it cannot be written, or somebody else has made the file since the run began.
    """
    from onnxfix.files import atomic, folders  # lazy: start-up

    path = report.path
    data = f"{text}\n".encode("utf-8", "backslashreplace")  # paths may hold bytes that are no text
    stream = stream_at(path)
    if stream is not None:
        stream.write(data.decode())
    elif folders.special(path):
        folders.pour(data, path)
    elif report.new and path.exists():
        raise OnnxfixError(
            f"--report {path}: something was written there since the run began; nothing is replaced"
        )
    else:
        atomic.put(path, data)


def print_error(format: str, message: str) -> None:
    """Print an error as a document of a format that programs read; nothing for text and for unknown formats.

    Commands print their own document as the last thing that may fail, so that there is none yet.
    """
    if format == "text" or format not in FORMATS:
        return
    with contextlib.suppress(OnnxfixError):  # standard output is what failed
        output().write(render_document(Kind(format), errors=[("", message)]) + "\n")


def format_in(words: Sequence[str]) -> str:
    """The format that a command line asks for that could not be parsed; "text" where it asks for none."""
    found = "text"
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--format":
            found = following
        elif word.startswith("--format="):
            found = word.partition("=")[2]
    return found
