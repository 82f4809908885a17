"""Which part of many cases of one kind is in which lane."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(count: int, quick: int = 10) -> list[Any]:
    """Parameters 0 to ``count``; all but the first ``quick`` are left to the other lanes."""
    return [
        seed if seed < quick else pytest.param(seed, marks=pytest.mark.corpus, id=str(seed))
        for seed in range(count)
    ]
