"""The garbage collector, paused while a model is processed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collection() -> Iterator[None]:
    """Pause the garbage collector: many objects are made in here, and hardly any becomes garbage.

    Building the overlay of 20,000 nodes and checking it takes 0.38 s of processor time instead of 0.55 s; for usual
    exports (2,000 nodes) the difference is too small to measure. ``pipeline.checking`` and
    ``pipeline.applying`` use it, and nothing inside them does.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
