"""A progress bar on standard error, for work that takes over a second, on a terminal only."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType

from onnxfix.render.stream import printable

DELAY = 1.0
"""Seconds of work before the bar shows."""


class Steps:
    """Shows which model of how many is at which step. Without a terminal it does nothing at all."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self._live = sys.stderr is not None and sys.stderr.isatty()
        self._progress: object | None = None
        self._timer: threading.Timer | None = None
        self._text = ""
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
        name = printable(name)
        self.done += 1
        number = self.done
        self._arm()

        def say(step: str) -> None:
            with self._lock:
                self._text = (
                    f"{name}: {step}" if self.total == 1 else f"[{number}/{self.total}] {name}: {step}"
                )
                self._update()

        return say

    def pause(self) -> None:
        """Take the bar away, for instance to print."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._progress is not None:
                self._progress.stop()  # type: ignore[attr-defined]
                self._progress = None

    def _arm(self) -> None:
        if self._live and self._timer is None and self._progress is None:
            self._timer = threading.Timer(DELAY, self._show)
            self._timer.daemon = True
            self._timer.start()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._timer is not threading.current_thread():
                return  # taken away in the moment in which it would have shown
            self._timer = None
            columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()]
            if self.total > 1:
                columns.insert(1, BarColumn(bar_width=20))
            progress = Progress(*columns, console=Console(stderr=True), transient=True)
            progress.add_task(
                self._text, total=self.total if self.total > 1 else None, completed=self.done - 1
            )
            progress.start()
            self._progress = progress

    def _update(self) -> None:
        if self._progress is not None:
            self._progress.update(0, description=self._text, completed=self.done - 1)  # type: ignore[attr-defined]
