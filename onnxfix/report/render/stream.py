"""Standard output and standard error, safe against untrusted text and readers that close the pipe, and the progress bar
that standard error shows on a terminal.

Names in a model are untrusted: they may contain escape sequences that move a terminal's cursor, or line breaks that
forge a line of the report. A reader may close the pipe (``| head``), and an encoding may lack a character.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from onnxfix.errors import OnnxfixError, decoded
from onnxfix.runtime import system

LONGEST = 1000
"""Characters of one name or message that text output shows; JSON holds all of them."""

_CONTROLS = "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
"""A regular expression for characters to escape, all of which ``str.isprintable`` rejects. Few texts need it, so it is
compiled on first use: that takes a millisecond."""
_PLAIN = {"→": "->", "…": "...", "×": "x", "·": "|", "−": "-", "█": "#"}


def printable(text: str | bytes) -> str:
    """``text`` with control and direction characters escaped; very long text is shortened. Protobuf returns names
    that are not UTF-8 as bytes."""
    text = decoded(text)
    if len(text) > LONGEST:
        half = LONGEST // 2
        text = f"{text[:half]}… ({len(text) - 2 * half} characters) …{text[-half:]}"
    return escaped(text)


def escaped(text: str | bytes) -> str:
    """``text`` with control characters, direction characters and invalid Unicode escaped."""
    text = decoded(text)
    if text.isprintable():
        return text
    return re.sub(_CONTROLS, lambda match: match[0].encode("unicode_escape").decode(), text)


def as_json(data: object) -> str:
    """One document, in ASCII: names and paths may not be valid Unicode."""
    import json  # lazy: start-up

    return json.dumps(data, indent=2, allow_nan=False)


class Stream:
    """A text stream that ignores a closed pipe, and escapes characters that its encoding lacks.

    Raises:
        OnnxfixError: ``write`` fails, for example on a full disk.
    """

    def __init__(self, stream: TextIO | None, name: str) -> None:
        self._stream = stream
        self._name = name

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError(f"{self._name} is closed")
        return self._stream.fileno()

    def write(self, text: str) -> int:
        if self._stream is not None:
            try:
                self._stream.write(self._encodable(text))
                self._stream.flush()
            except OSError as error:
                self._drop()
                if system.reader_left(error):
                    return len(text)
                raise OnnxfixError(f"{self._name}: cannot be written: {error.strerror or error}") from None
        return len(text)

    def flush(self) -> None:
        """No-op: ``write`` flushes, so that an error is raised where it can be handled."""

    def _encodable(self, text: str) -> str:
        try:
            text.encode(self.encoding, getattr(self._stream, "errors", None) or "strict")
            return text
        except UnicodeEncodeError:
            for sign, plain in _PLAIN.items():
                text = text.replace(sign, plain)
            return text.encode(self.encoding, "backslashreplace").decode(self.encoding)

    def _drop(self) -> None:
        """Discard further output; otherwise the interpreter's flush at exit would fail again."""
        try:
            number = self.fileno()
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, number)
            os.close(null)
        except (OSError, ValueError):
            self._stream = None


def output() -> Stream:
    """Standard output, as it is now."""
    return Stream(sys.stdout, "standard output")


def stream_at(path: str | os.PathLike[str]) -> Stream | None:
    """The standard stream behind a path such as ``/dev/stdout``, also if the stream is redirected; else None."""
    for number, stream in ((1, output()), (2, Stream(sys.stderr, "standard error"))):
        try:
            if os.path.samestat(os.stat(path), os.fstat(number)):
                return stream
        except OSError:  # the stream is closed, or nothing is there
            continue
    return None


def complain(message: str) -> None:
    """Print one line on standard error."""
    try:
        Stream(sys.stderr, "standard error").write(f"onnxfix: {printable(message)}\n")
    except OnnxfixError:
        return  # nowhere left to report it; the exit code shows it


DELAY = 1.0
"""Seconds of work before the bar shows."""


class Steps:
    """Shows which models are being processed, at which step, and how many are left. Does nothing without a terminal."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self._live = sys.stderr is not None and sys.stderr.isatty()
        self._progress: object | None = None
        self._timer: threading.Timer | None = None
        self._running: dict[str, str] = {}
        self._share = ""
        self._lock = threading.Lock()

    def __enter__(self) -> Steps:
        self._arm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()

    def of(self, name: str) -> Callable[[str], None]:
        """A callback for the steps of one model."""
        return lambda step: self.at(name, step)

    def at(self, name: str, step: str) -> None:
        """Report that a model begins a step. May be called from any thread."""
        with self._lock:
            self._running[name], self._share = step, ""
            self._arm()
            self._update()

    def over(self, name: str) -> None:
        """Report that a model is done, whether or not a step was reported."""
        with self._lock:
            self._running.pop(name, None)
            self.done += 1

    def watch(self, share: str) -> None:
        """Report how far the step is. May be called from any thread."""
        with self._lock:
            self._share = share
            self._update()

    @property
    def text(self) -> str:
        """The running model (the only one has no folder), its step, and how far that is; several by name."""
        if len(self._running) == 1:
            [(name, step)] = self._running.items()
            shown = name.rpartition("/")[2] if self.total == 1 else name
            running = f"{printable(shown)}: {step}{f' ({printable(self._share)})' * bool(self._share)}"
        else:
            running = ", ".join(map(printable, self._running))
        number = min(self.total, self.done + (len(self._running) < 2))
        return running if self.total == 1 else f"[{number}/{self.total}] {running}"

    def pause(self) -> None:
        """Remove the bar, for instance to print."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._progress is not None:
                from onnxfix.runtime import sandbox  # lazy: start-up

                sandbox.WATCHERS.remove(self.watch)
                self._progress.stop()  # type: ignore[attr-defined]
                self._progress = None

    def _arm(self) -> None:
        if self._live and self._timer is None and self._progress is None:
            self._timer = threading.Timer(DELAY, self._show)
            self._timer.daemon = True
            self._timer.start()

    def _show(self) -> None:
        from rich.console import Console  # lazy: start-up
        from rich.progress import (  # lazy: start-up
            BarColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        from onnxfix.runtime import sandbox  # lazy: start-up

        with self._lock:
            if self._timer is not threading.current_thread():
                return  # paused at the moment it would have shown
            self._timer = None
            columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()]
            if self.total > 1:
                columns.insert(1, BarColumn(bar_width=20))
            progress = Progress(*columns, console=Console(stderr=True), transient=True)
            progress.add_task(self.text, total=self.total if self.total > 1 else None, completed=self.done)
            progress.start()
            self._progress = progress
            sandbox.WATCHERS.append(self.watch)

    def _update(self) -> None:
        if self._progress is not None:
            self._progress.update(0, description=self.text, completed=self.done)  # type: ignore[attr-defined]
