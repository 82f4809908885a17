"""Which part of many cases of one kind is in which lane."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def seeds(count: int, quick: int = 10) -> list[Any]:
    """Parameters 0 to ``count``; all but the first ``quick`` are left to the other lanes."""
    return [
        seed if seed < quick else pytest.param(seed, marks=pytest.mark.corpus, id=str(seed))
        for seed in range(count)
    ]


def some(values: Iterable[Any], every: int, *marks: Any) -> list[Any]:
    """Parameters with these marks; all but one of ``every`` are left to the full lane."""
    return [
        pytest.param(value, marks=[*marks, *([pytest.mark.long] if number % every else [])])
        for number, value in enumerate(values)
    ]
