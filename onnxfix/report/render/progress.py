"""A progress bar on standard error, for work that takes over a second, on a terminal only."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType

from onnxfix.report.render.stream import printable

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
