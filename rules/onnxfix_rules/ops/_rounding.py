"""Shared by the rules about Resize: which element is the nearest, by ``nearest_mode``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

ROUNDED: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
