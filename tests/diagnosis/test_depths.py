"""The error along a model: every node of a small one, the worst of each section of a large one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onnxfix.diagnosis import diagnose as module
from onnxfix.diagnosis.diagnose import depths


def row(number: int, own: float | None, whole: float | None) -> Any:
    far = [SimpleNamespace(relative=one) if one is not None else None for one in (own, whole)]
    return SimpleNamespace(name=f"t{number}", number=number, own=far[0], whole=far[1])


GRAPH: Any = SimpleNamespace(nodes=[SimpleNamespace(op_type=f"Op{at}") for at in range(10)])


def test_every_node_that_was_measured_is_there_in_order() -> None:
    rows = [row(4, 0.5, None), row(1, None, 0.25), row(2, None, None)]
    found = depths(rows, GRAPH)
    assert [(one.number, one.output, one.op_type, one.own_error, one.output_error) for one in found] == [
        (1, "t1", "Op1", None, 0.25),
        (4, "t4", "Op4", 0.5, None),
    ]


def test_of_a_section_the_largest_error_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECTIONS", 3)  # of 4 nodes each
    rows = [
        row(0, 0.9, 0.1),
        row(1, 0.1, 0.2),
        row(3, 0.3, 0.2),
        row(5, 0.1, 0.1),
        row(8, 0.1, None),
        row(9, 0.2, None),
    ]
    assert [one.number for one in depths(rows, GRAPH)] == [3, 5, 9]
