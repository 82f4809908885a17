"""How much memory and processor time a process and all that it starts take while something runs."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

_MB = 1 << 10  # of /proc's kilobytes
_EVERY = 0.05  # seconds


def tree(root: int) -> list[int]:
    """The process and its descendants."""
    found, stack = [], [root]
    while stack:
        one = stack.pop()
        found.append(one)
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                stack += map(int, (task / "children").read_text().split())
    return found


def field_of(process: int, file: str, name: str) -> int:
    """A field of a file in /proc in megabytes; 0 where the process has gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{process}/{file}").read_text(encoding="utf-8").splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) // _MB
    return 0


def processor_seconds() -> float:
    """Of this process and all that it started, those that ended included, since they began."""
    total = 0
    for one in tree(os.getpid()):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return total / os.sysconf("SC_CLK_TCK")


@dataclass
class Watch:
    """Watches this process and its children from a thread, while it is entered.

    ``largest`` is the greatest peak of one process: VmHWM, which the kernel keeps and which counts pages of files that
    are mapped, such as weights. ``together`` is the greatest sum of all, each page once: Pss, twenty times a second.
    Both in megabytes.
    """

    together: int = 0
    peaks: dict[int, int] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def largest(self) -> int:
        return max(self.peaks.values(), default=0)

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            self._look()
            time.sleep(_EVERY)
        self._look()

    def _look(self) -> None:
        processes = tree(os.getpid())
        for one in processes:
            self.peaks[one] = max(self.peaks.get(one, 0), field_of(one, "status", "VmHWM"))
        self.together = max(self.together, sum(field_of(one, "smaps_rollup", "Pss") for one in processes))
