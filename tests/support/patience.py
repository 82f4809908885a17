"""How long tests wait, and how they measure what something costs: a busy machine decides neither.

A limit in seconds of the clock is only ever there for what would never end, and then it is ``PATIENCE``. What must be
cheap is measured in seconds of the processor, which others do not take away.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 600.0
"""Seconds to wait for what comes within a few, and that a test may take (``timeout`` in pyproject.toml)."""


def processor_seconds(work: Callable[[], Any], times: int = 3) -> float:
    """The least that ``work`` took of ``times``, in seconds of this process's threads on a processor."""
    spent = []
    for _ in range(times):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return min(spent)
