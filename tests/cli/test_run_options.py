"""The command line and the keywords of Python make the same record of a run's options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import onnxfix
from onnxfix.errors import UsageError
from onnxfix.options import RunOptions, Specialization
from onnxfix.report.report import Report
from onnxfix.tensorrt.records import TrtOptions
from support.cli import run
from support.cli_models import CLEAN, write

APPLY = {
    "select": "CST", "ignore": "CST002", "target": "trt10", "memory-limit": "512", "numeric-fixes": None,
    "unsafe-fixes": None, "fix-dim": "N=2", "fix-input": "x=1", "static": None, "keep-inputs": None,
    "require": "ort-cpu", "rungs": "ort-cpu,reference", "input-shapes": "x:2", "seed": "7", "benchmark": None,
    "tf32": None, "trt-package": "tensorrt", "compute-capability": "8.6", "minShapes": "x:1",
    "trt-opt-shapes": "x:2", "trt-max-shapes": "x:4", "share-data": None,
}  # fmt: skip
KEYWORDS: dict[str, Any] = {
    "select": ("CST",), "ignore": ("CST002",), "target": "trt10", "memory_mb": 512, "numeric_fixes": True,
    "unsafe_fixes": True, "fix_dims": {"N": 2}, "fix_inputs": {"x": "1"}, "static": True, "keep_inputs": True,
    "require": ("ort-cpu",), "rungs": ("ort-cpu", "reference"), "input_shapes": ("x:2",), "seed": 7,
    "benchmark": True, "trt": TrtOptions("tensorrt", "8.6", ("x:1",), ("x:2",), ("x:4",), tf32=True),
    "share_data": True,
}  # fmt: skip


def given(**options: str | None) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", value) if word is not None]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[RunOptions]:
    """The options of the runs; nothing runs."""
    found: list[RunOptions] = []

    def kept(index: int) -> Callable[..., Report]:
        def instead(*arguments: Any) -> Report:
            found.append(arguments[index])
            return Report("m.onnx", "apply", "trt11")

        return instead

    monkeypatch.setattr("onnxfix.verbs.checking.check", kept(1))
    monkeypatch.setattr("onnxfix.verbs.applying.apply", kept(1))
    monkeypatch.setattr("onnxfix.verbs.verifying.verify", kept(2))
    return found


def test_apply(tmp_path: Path, seen: list[RunOptions]) -> None:
    model, out = write(tmp_path / "m.onnx", CLEAN), tmp_path / "o.onnx"
    code, _, err = run("apply", model, "-o", out, *given(**APPLY))
    assert (code, err) == (0, "")
    onnxfix.apply(model, str(out), **KEYWORDS)
    assert seen[0] == seen[1]


def test_nothing_but_the_defaults(tmp_path: Path, seen: list[RunOptions]) -> None:
    model = write(tmp_path / "m.onnx", CLEAN)
    run("check", model)
    onnxfix.check(model)
    run("verify", model)
    onnxfix.verify(model)
    run("apply", model, "--in-place")
    onnxfix.apply(model, in_place=True)
    assert seen[0] == seen[1] == RunOptions()
    assert seen[2] == seen[3] == RunOptions(trt=TrtOptions())
    assert seen[4] == seen[5] == replace(seen[2], output=seen[4].output)


def test_verify(tmp_path: Path, seen: list[RunOptions]) -> None:
    model = write(tmp_path / "m.onnx", CLEAN)
    names = (
        "memory-limit",
        "require",
        "rungs",
        "input-shapes",
        "seed",
        "benchmark",
        "tf32",
        "trt-opt-shapes",
    )
    wanted = given(**{name: APPLY[name] for name in names})
    run("verify", model, "--exact", "--batch-sweep", "--max-batch", "4", *wanted)
    shared = ("memory_mb", "require", "rungs", "input_shapes", "seed", "benchmark")
    trt = TrtOptions(opt_shapes=("x:2",), tf32=True)
    onnxfix.verify(model, exact=True, batch_sweep=4, trt=trt, **{name: KEYWORDS[name] for name in shared})
    assert seen[0] == seen[1]


def test_each_option_of_apply_is_another_record(tmp_path: Path, seen: list[RunOptions]) -> None:
    model = write(tmp_path / "m.onnx", CLEAN)
    for name in KEYWORDS:
        if name != "keep_inputs":  # which has no effect alone
            onnxfix.apply(model, **{name: KEYWORDS[name]})
    onnxfix.apply(model)
    assert all(one != other for place, one in enumerate(seen) for other in seen[:place])


def test_inputs_are_kept_only_where_some_are_fixed() -> None:
    with pytest.raises(UsageError, match="--keep-inputs has no effect without --fix-input"):
        Specialization(keep=True)


def test_no_engine_is_built_of_a_model_that_is_not_verified(tmp_path: Path) -> None:
    model, engine = write(tmp_path / "m.onnx", CLEAN), tmp_path / "m.engine"
    with pytest.raises(UsageError, match="save_engine requires verify=True"):
        onnxfix.apply(model, verify=False, trt=TrtOptions(save_engine=str(engine)))
    assert not engine.exists()
