"""benchmarks/proof: what counts as a fault, and what the table says."""

from __future__ import annotations

from typing import Any

import pytest
from proof import run, tables


def row(**changes: Any) -> dict[str, Any]:
    """A model that took 1.5 times its parts and no more memory than before."""
    return {
        "name": "one",
        "bytes": 2_000_000,
        "proven": True,
        "failed": [],
        "parts": {"build": 1.0},
        "rungs": {"ort-cpu": 0.5, "trt-build": 1.0, "trt-network": 0.25},
        "rungs before": {"ort-cpu": 4.0, "trt-build": 2.0, "trt-network": 3.0},
        "feeds": 6,
        "feeds before": 8,
        "peaks": {"apply": 300.0, "bare": 200.0, "base": 310.0},
        "apply": [3.0, 3.2, 2.9],
        "bare": [2.0, 2.1, 1.9],
        "base": [9.0, 10.0, 11.0],
        **changes,
    }


def test_the_table_has_medians_and_what_was_before() -> None:
    lines = list(tables.table([row(), row(name="two", reason="ort-cpu: skipped: no")]))
    assert (
        lines[2]
        == "| `one` | 2.0 | 2.00 | 3.00 | 10.00 | 1.50 | 5.00 | 0.5 (4.0) | 1.2 (5.0) | 6 (8) | 300 (310) |"
    )
    assert lines[3].startswith("| `two` | ort-cpu: skipped: no |")
    assert lines[3].count("|") == lines[2].count("|")
    assert lines[-1].endswith("median 1.50 (1.50 to 1.50), at most 2 in 1 of 1.")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"apply": [4.2]}, "2.10 times its parts"),
        ({"peaks": {"apply": 330.0, "base": 310.0}}, "330 MB, before 310"),
        ({"proven": False}, "not proven"),
        ({"failed": ["TensorRT does not build it"]}, "does not build"),
        ({"reason": "timeout"}, "timeout"),
    ],
)
def test_what_is_not_as_it_should_be_is_a_fault(changes: dict[str, Any], said: str) -> None:
    found = run.faults(row(**changes))
    assert (len(found) == 1 and said in found[0]) if said else not found
