"""benchmarks/gpu/latency.py: what its tables make of a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu import latency

from onnxfix.report.report import plain
from onnxfix.trt.timing import Latency, Timing, compared

SIDE = Timing(1.5, 1.4, 1.6, 500, 20, 0.012, 0.5, 0.25, 3.0, 3 << 20)


def told(original: float, fixed: float) -> dict[str, Any]:
    found = compared(replace(SIDE, median_ms=original), replace(SIDE, median_ms=fixed, load_seconds=0.1))
    return dict(plain(replace(found, launch="cuda-graph")))


ONE = {
    "name": "bert",
    "results": {
        "exact fixes": told(1.5, 1.506),
        "numeric fixes": told(1.52, 1.2),
        "onnxsim": plain(Latency(reason="the fixed model's engine is wrong")),
        "onnxslim": {"reason": "no such file"},
    },
}


def test_the_table_of_medians() -> None:
    assert latency.header(["a"]) == "| model | launch | original | a |\n|---|---|---|---|"
    assert latency.row(ONE) == (
        "| bert | cuda-graph | 1.500 to 1.520 | 1.506 (1.00x ± 1.2 %) | 1.200 (0.79x ± 1.2 %, faster) | – | – |"
    )


def test_slower_is_said_and_one_engine_has_no_ratio() -> None:
    assert latency.cell(told(1.0, 1.1)) == "1.100 (1.10x ± 1.2 %, slower)"
    assert latency.cell(dict(plain(compared(None, SIDE)))) == "1.500"


def test_the_table_of_loading() -> None:
    assert latency.costs(ONE) == (
        "| bert | 0.75 → 0.35 s, 3.0 → 3.0 MiB | 0.75 → 0.35 s, 3.0 → 3.0 MiB | – | – |"
    )


def test_a_command_that_fails_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    assert latency.fixed(tmp_path / "m.onnx", tmp_path, [])[1].startswith("apply: ")
    found = latency.timed(tmp_path / "m.onnx", tmp_path / "m.onnx", [])
    assert list(found) == ["reason"]
    assert found["reason"].startswith("verify: ")
