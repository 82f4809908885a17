"""benchmarks/conformance: one test at every level on the CPU, the record, and the page that is made of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conformance import record, run

from onnxfix.errors import OnnxfixError
from onnxfix.sandbox import Worker
from support.paths import ROOT
from support.patience import PATIENCE
from support.real_tensorrt import REAL

sys.path.insert(0, str(ROOT / "docs"))
from making.conformance import conformance_page

SETTING = {
    "device": "CUDA",
    "TensorRT": "tensorrt-rtx 1.6.1",
    "GPU": "L4, 8.9",
    "onnxruntime": "1.32.0",
    "onnx": "1.23.1",
}
MEASURED: dict[str, Any] = {
    "setting": SETTING,
    "results": {
        "test_triu": {
            "operator": "Trilu",
            "as-is": {
                "status": "wrong",
                "reason": "AssertionError: Not equal. Mismatched elements: 3 / 4 (75%)",
            },
            "exact": {"status": "right"},
            "numeric": {"status": "same", "as": "exact"},
        },
        "test_abs": {
            "operator": "Abs",
            "as-is": {"status": "right"},
            "exact": {"status": "same", "as": "as-is"},
            "numeric": {"status": "same", "as": "as-is"},
        },
        "test_mod": {
            "operator": "Mod",
            "as-is": {"status": "refused", "stage": "build", "reason": "no kernel"},
            "exact": {"status": "same", "as": "as-is"},
            "numeric": {"status": "wrong", "reason": "AssertionError: Output 0 has incorrect shape"},
        },
    },
}


def test_the_record_has_a_result_for_every_level() -> None:
    found = record.compact(MEASURED)
    assert found["tests"] == {
        "test_abs": ["Abs", "right", "right", "right"],
        "test_mod": ["Mod", "refused:build", "refused:build", "wrong"],
        "test_triu": ["Trilu", "wrong", "right", "right"],
    }
    assert found["reasons"] == {
        "test_mod": {"numeric": "Output 0 has incorrect shape"},
        "test_triu": {"as-is": "Not equal. Mismatched elements: 3 / 4 (75%)"},
    }
    assert json.loads(record.written({"engines": found})) == {"engines": found}


def page(**changed: list[str]) -> str:
    found = record.compact(MEASURED)
    found["tests"].update(changed)
    return conformance_page(
        {"engines": found, "networks": {**found, "setting": {**SETTING, "device": "CPU"}}}
    )


def test_the_page() -> None:
    text = page()
    assert "| pass on engines | 1 (33 %) | 2 (67 %) | 2 (67 %) |" in text
    assert "| CUDA | as it is | 1 | 1 | 1 |" in text
    assert "| `test_mod` | refused | refused | wrong | another shape |" in text
    assert "| Mod | 1 | 0 · 0 · 1 | 0 · 1 · 0 | 0 · 0 · 1 | 0 · 1 · 0 |" in text
    assert "both devices: Abs.\n" in text
    assert "On engines, none that passes as it is fails afterwards. With numeric fixes, 1 tests" in text
    assert "TensorRT-RTX 1.6.1 on one L4." in text


def test_the_page_names_what_a_repair_loses() -> None:
    text = page(test_abs=["Abs", "right", "right", "near"])
    assert "1 that pass as they are do not afterwards: test_abs." in text


@REAL
@pytest.mark.long
def test_a_test_at_every_level(worker: Worker) -> None:
    """By onnx's own BackendTest on TensorRT's network. What a repair leaves alone is not measured again."""
    name, found = run.measure(worker, ("test_triu", "CPU", PATIENCE))
    assert name == "test_triu"
    assert found["operator"] == "Trilu"
    assert [found[level]["status"] for level in record.LEVELS] == ["wrong", "right", "same"]
    assert found["numeric"]["as"] == "exact"
    assert found["exact"]["fixes"] == {"OPS010": 1}
    _, found = run.measure(worker, ("test_abs", "CUDA", PATIENCE))
    assert found["as-is"] == {
        "status": "skipped", "reason": "Backend doesn't support device CUDA", "seconds": found["as-is"]["seconds"]
    }  # fmt: skip
    _, found = run.measure(worker, ("test_unique_sorted_without_axis", "CPU", PATIENCE))
    assert {found[level]["status"] for level in record.LEVELS} <= {"refused", "same"}


def test_a_worker_that_dies_is_a_result(monkeypatch: pytest.MonkeyPatch, worker: Worker) -> None:
    monkeypatch.setattr(run, "MEASURE", "os:abort")
    name, found = run.measure(worker, ("test_abs", "CPU", 1.0))
    assert (name, found["operator"]) == ("test_abs", "")
    assert {found[level]["status"] for level in record.LEVELS} == {"failed"}


@REAL
def test_without_a_gpu_the_reason_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--device", "CUDA", "--json", str(tmp_path / "out.json")]) == 2
    assert "no NVIDIA GPU found" in capsys.readouterr().err
    with pytest.raises(OnnxfixError):
        run.facts("CUDA")
