"""One model after another in this process: a run without ``--jobs``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from onnxfix.fleet import work
from onnxfix.fleet.work import Outcome, Task

Progress = Callable[[Task, str], None]
"""Called with a task and a short description of its step."""


class Here:
    """Runs tasks one after another in this process."""

    def run(self, tasks: Sequence[Task], progress: Progress | None = None) -> Iterator[Outcome]:
        for task in tasks:
            yield work.perform(task, _steps_of(task, progress))


def _steps_of(task: Task, progress: Progress | None) -> work.Step | None:
    if progress is None:
        return None
    return lambda step: progress(task, step)
