"""How much memory a model needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfix.causes import Problem
from onnxfix.fleet import budget
from onnxfix.fleet.budget import more_helps, need_mb, replaced_file, size_mb
from onnxfix.fleet.work import Outcome, Task
from onnxfix.report.report import Report
from onnxfix.trt.records import TrtOptions
from support.options import run_options

MB = 1 << 20


def external(folder: Path, megabytes: int) -> Path:
    """A model whose weights of this size lie beside it, in a folder of their own."""
    folder.mkdir(exist_ok=True)
    weights = numpy_helper.from_array(np.zeros(megabytes * MB // 4, np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])],
        [weights],
    )
    path = folder / "m.onnx"
    onnx.save(helper.make_model(graph), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def test_size_counts_external_data(tmp_path: Path) -> None:
    path = external(tmp_path / "in", 8)
    assert size_mb(Task(0, str(path))) == pytest.approx(8, abs=0.1)


def test_size_of_what_cannot_be_read_is_no_error(tmp_path: Path) -> None:
    broken = tmp_path / "m.onnx"
    broken.write_bytes(b"\x0a\xff\xff")
    assert size_mb(Task(0, str(broken))) == 0
    assert size_mb(Task(0, str(tmp_path / "missing.onnx"))) == 0
    path = external(tmp_path / "in", 1)
    (tmp_path / "in" / "w.bin").unlink()
    assert size_mb(Task(0, str(path))) < 0.1


def test_two_links_to_a_file_that_is_replaced_are_known(tmp_path: Path) -> None:
    path = external(tmp_path / "in", 1)
    link = tmp_path / "link.onnx"
    link.symlink_to(path)
    in_place = [Task(0, str(one), "", "apply", run_options(in_place=True)) for one in (path, link)]
    assert {replaced_file(task) for task in in_place} == {str(path.resolve())}
    assert replaced_file(Task(0, str(path), str(tmp_path / "out.onnx"), "apply")) == ""


def test_whatever_is_wrong_with_a_file_is_told_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxfix.files import loading

    def starved(path: Path) -> None:
        raise MemoryError

    monkeypatch.setattr(loading, "open_model", starved)
    assert size_mb(Task(0, str(external(tmp_path / "in", 1)))) == 0


def test_more_memory_is_tried_where_it_may_help() -> None:
    def helps(report: Report | None, granted: int = 1024, **options: object) -> bool:
        task = Task(0, "m.onnx", "", "apply", run_options(**options))
        return more_helps(Outcome(task, report, memory=True), granted)

    report = Report("m.onnx", "apply", "trt11")
    assert helps(report)
    assert helps(report, memory_mb=2048)
    assert not helps(report, memory_mb=1024)  # its children may not have more anyway
    assert helps(None, memory_mb=64)  # its worker died
    starved_rule = replace(report, problems=(Problem("MemoryError"),))  # in the worker itself
    assert helps(starved_rule, memory_mb=64)
    assert helps(replace(report, output="m.onnx"))
    assert not helps(replace(report, output="m.onnx"), in_place=True)


def test_need_follows_what_is_asked() -> None:
    def need(command: str, **options: object) -> int:
        return need_mb(Task(0, "m.onnx", "", command, run_options(**options)), 1000.0)

    light = need("check")
    assert need("apply", verify=False) == light
    on_cpu = need("apply", rungs=("ort-cpu",))
    assert light < on_cpu == 512 + 2200 < need("apply") == need("check", trt=TrtOptions())
    # backends.tensorrt.need_mb says 256 + 3500 of weights in the model's own file.
    assert need("apply") == 512 + 3500
    assert need("apply", rungs=("ort-cpu",), require=("trt-build",)) == need("apply")
    assert need("apply", verify=False, simplify=True) > light
    assert need("apply", memory_mb=700) == 512 + 700  # nobody uses more than he may
    assert need("apply", memory_mb=10**6) == need("apply")
    assert need_mb(Task(0, "m.onnx"), 0.0) < budget.MINIMUM_MB  # a small model needs nothing special
