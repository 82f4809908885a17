"""Who may use how much memory, and who waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfix.causes import Problem
from onnxfix.fleet import budget
from onnxfix.fleet.budget import Budget, Closed, Size, more_helps, need_mb, size_of
from onnxfix.fleet.work import Outcome, Task
from onnxfix.report.report import Report
from onnxfix.trt.records import TrtOptions
from support.options import run_options
from support.patience import PATIENCE

MB = 1 << 20


def waiting(wanted: Callable[[], bool]) -> None:
    """Wait until something holds that another thread brings about."""
    for _ in range(1000):
        if wanted():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it never happened")


class Holder:
    """A thread that asks for memory and keeps it until it is told to go."""

    def __init__(self, whole: Budget, need: int, claims: frozenset[str] = frozenset()) -> None:
        self.granted: int | None = None
        self.holds = threading.Event()
        self.closed = threading.Event()
        self._go = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(whole, need, claims), daemon=True)
        before = len(whole._waiting) + len(whole._granted)
        self.thread.start()
        waiting(lambda: len(whole._waiting) + len(whole._granted) > before or self.closed.is_set())

    def _run(self, whole: Budget, need: int, claims: frozenset[str]) -> None:
        try:
            with whole.grant(need, claims) as self.granted:
                self.holds.set()
                self._go.wait(PATIENCE)
        except Closed:
            self.closed.set()

    def leave(self) -> None:
        self._go.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


def test_the_share_is_even_and_no_less_than_a_process_needs() -> None:
    assert Budget(8192, 4).share_mb == 2048
    assert Budget(8192, 16).share_mb == budget.MINIMUM_MB
    assert Budget(300, 4).share_mb == 300  # one at a time, with what there is


def test_more_for_who_needs_more_and_no_more_than_there_is() -> None:
    whole = Budget(8192, 4)
    assert [whole.amount(need) for need in (0, 2048, 3000, 99999)] == [2048, 2048, 3000, 8192]


def test_without_a_known_limit_nothing_is_limited() -> None:
    whole = Budget(None, 2)
    first, second = Holder(whole, 10**9), Holder(whole, 10**9)
    assert first.holds.wait(PATIENCE)
    assert second.holds.wait(PATIENCE)
    assert first.granted is None
    first.leave()
    second.leave()


def test_the_total_is_never_exceeded_and_nobody_overtakes() -> None:
    whole = Budget(8192, 4)
    small = Holder(whole, 0)
    large = Holder(whole, 7000)
    late = Holder(whole, 0)  # would fit beside the first, but the large one asked before
    assert small.holds.wait(PATIENCE)
    assert not large.holds.is_set()
    assert not late.holds.is_set()
    small.leave()
    assert large.holds.wait(PATIENCE)
    assert not late.holds.is_set()
    large.leave()
    assert late.holds.wait(PATIENCE)
    late.leave()


def test_those_that_fit_together_run_together() -> None:
    whole = Budget(8192, 4)
    holders = [Holder(whole, 0) for _ in range(5)]
    for holder in holders[:4]:
        assert holder.holds.wait(PATIENCE)
    assert not holders[4].holds.is_set()
    for holder in holders:
        holder.leave()


def test_one_that_needs_more_than_there_is_runs_alone() -> None:
    whole = Budget(2048, 2)
    giant = Holder(whole, 10**6)
    assert giant.holds.wait(PATIENCE)
    assert giant.granted == 2048
    giant.leave()


def test_models_that_bring_the_same_data_file_do_not_meet() -> None:
    whole = Budget(8192, 4)
    first = Holder(whole, 0, frozenset({"/out/w.bin"}))
    second = Holder(whole, 0, frozenset({"/out/w.bin", "/out/v.bin"}))
    assert first.holds.wait(PATIENCE)
    assert not second.holds.is_set()
    first.leave()
    assert second.holds.wait(PATIENCE)
    second.leave()


def test_a_place_in_the_line_is_kept() -> None:
    whole = Budget(2048, 2)
    ticket = whole.queue()
    late = Holder(whole, 0)
    assert not late.holds.wait(0.1)
    with whole.grant(0, ticket=ticket) as granted:
        assert granted == 1024
        assert late.holds.wait(PATIENCE)
    late.leave()


def test_closed_wakes_who_waits() -> None:
    whole = Budget(2048, 2)
    first, second = Holder(whole, 2048), Holder(whole, 2048)
    assert first.holds.wait(PATIENCE)
    whole.close()
    assert second.closed.wait(PATIENCE)
    first.leave()
    assert Holder(whole, 0).closed.wait(PATIENCE)


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
    (tmp_path / "out").mkdir()
    there = size_of(Task(0, str(path), str(tmp_path / "out" / "m.onnx"), "apply"))
    assert there.data_mb == pytest.approx(8, abs=0.1)
    assert there.claims == frozenset()
    assert size_of(Task(0, str(path))).claims == frozenset()  # check brings nothing anywhere


def test_size_of_what_cannot_be_read_is_no_error(tmp_path: Path) -> None:
    broken = tmp_path / "m.onnx"
    broken.write_bytes(b"\x0a\xff\xff")
    assert size_of(Task(0, str(broken))) == Size()
    assert size_of(Task(0, str(tmp_path / "missing.onnx"))) == Size()
    path = external(tmp_path / "in", 1)
    (tmp_path / "in" / "w.bin").unlink()
    assert size_of(Task(0, str(path))).data_mb < 0.1


def test_whatever_is_wrong_with_a_file_is_told_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxfix.files import loading

    def starved(path: Path) -> None:
        raise MemoryError

    monkeypatch.setattr(loading, "open_model", starved)
    assert size_of(Task(0, str(external(tmp_path / "in", 1)))) == Size()


def test_two_links_to_a_file_that_is_replaced_do_not_meet(tmp_path: Path) -> None:
    path = external(tmp_path / "in", 1)
    link = tmp_path / "link.onnx"
    link.symlink_to(path)
    first, second = (
        size_of(Task(0, str(one), "", "apply", run_options(in_place=True))) for one in (path, link)
    )
    assert first.claims == second.claims == {str(path.resolve())}


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
    size = Size(1000.0)

    def need(command: str, **options: object) -> int:
        return need_mb(Task(0, "m.onnx", "", command, run_options(**options)), size)

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
    assert need_mb(Task(0, "m.onnx"), Size()) < budget.MINIMUM_MB  # a small model needs nothing special
