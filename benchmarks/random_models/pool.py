"""Judges numbers in forked processes, any of which may crash or hang on a model without harm to the others."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from behavior.workers import FORK, results

from random_models.judge import CRASHES, Judged, Settings, judge
from random_models.pieces import examples


def _judge_quietly(settings: Settings, number: int, first: int) -> dict[str, Any]:
    """Judge in a process of the pool; what libraries print goes nowhere."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
    return judge(settings, number, first)


def judged(
    settings: Settings, numbers: Iterable[int], jobs: int, timeout: float = 180.0
) -> Iterator[dict[str, Any]]:
    """A row for each number, as they come.

    A model that crashes ONNX Runtime, or does not end within ``timeout`` seconds, before anything was fixed is
    discarded, and the next attempt of its number is made. Later it is a fault.
    """
    examples()
    gc.collect()
    gc.freeze()  # collections in the processes leave out what is there already
    discarded: dict[int, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        settings = replace(settings, folder=folder)
        waiting = [(settings, number, 0) for number in numbers]
        while waiting:
            again = []
            for (_, number, first), found in results(_judge_quietly, waiting, jobs, timeout, FORK):
                row: dict[str, Any] = found
                if "ended" in row:
                    note = Path(folder, str(number))
                    stage = note.read_text(encoding="ascii") if note.exists() else ""
                    if stage.startswith("original") and first <= CRASHES:
                        known = discarded.setdefault(number, [])
                        attempt = int(stage.split()[1])
                        # Whose examples crash each time are soon judged without execution.
                        again.append((settings, number, attempt + 1 + 8 * len(known)))
                        known.append(row["ended"])
                        continue
                    row = vars(Judged(number, status="run", faults=[(row["ended"], stage)]))
                row["discarded"] = [*discarded.get(number, ()), *row["discarded"]]
                yield row
            waiting = again
