"""ONNX's node models, which cover all of its operators and types, as the onnx package makes them."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np


@cache
def onnx_cases() -> dict[str, Any]:
    """By name, each with its model and data sets. Making them takes 6 s, once in a process."""
    from onnx.backend.test.case.node import collect_testcases  # lazy: start-up

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None) if case.model is not None}
