"""TensorRT's builds beside other rungs, with the network read back from the same parse."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onnxfix.proof.checks import build as trt_build
from onnxfix.proof.checks.builder import Builder
from onnxfix.proof.readback import network
from onnxfix.proof.request import networks
from onnxfix.proof.verdict import RungResult
from onnxfix.proof.verify import verify
from onnxfix.runtime import allowance
from onnxfix.runtime.sandbox import Outcome, Posted, Worker
from onnxfix.tensorrt import lift
from onnxfix.tensorrt.build import attempt
from onnxfix.tensorrt.package import Choice
from onnxfix.tensorrt.records import TrtOptions
from support.models import write
from support.patience import PATIENCE
from support.real_tensorrt import REAL

BEFORE = "g (float[N,3] x) => (float[N,3] y) { a = Neg(x)  b = Neg(a)  c = Exp(b)  y = Identity(c) }"
AFTER = "g (float[N,3] x) => (float[N,3] y) { y = Exp(x) }"
WRONG = AFTER.replace("Exp", "Sin")
PACKAGE = "tensorrt-rtx"
CHECKS = ("contract", "ort-cpu", "trt-build", "trt-network")


def written(folder: Path, **texts: str) -> list[Path]:
    return [write(folder / f"{name}.onnx", text, 17) for name, text in texts.items()]


def timeless(rung: RungResult) -> RungResult:
    builds = tuple(replace(one, parse_seconds=0.0, build_seconds=0.0) for one in rung.builds)
    read = tuple(replace(one, seconds=(0.0, 0.0, 0.0)) for one in rung.networks)
    return replace(rung, seconds=0.0, builds=builds, networks=read)


@REAL
@pytest.mark.slow
def test_builds_beside_other_rungs_show_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, verdicts = written(tmp_path, before=BEFORE, after=AFTER), []
    for cores in ("1", "2"):
        trt_build._LAST.clear()
        network._LAST.clear()
        monkeypatch.setenv(allowance.CORES, cores)
        verdicts.append(verify(*paths, exact=False, rungs=CHECKS))
    late, ahead = verdicts
    assert ahead.passed
    assert [*map(timeless, ahead.rungs)] == [*map(timeless, late.rungs)]
    assert [rung.name for rung in ahead.rungs] == [*CHECKS]
    assert [one.layer_count for one in ahead.rungs[2].builds] == [4, 1]
    (wrong,) = written(
        tmp_path, wrong=WRONG
    )  # the original's build is known: the next candidate's alone is begun
    refuted = verify(paths[0], wrong, exact=False, rungs=CHECKS)
    assert [rung.status for rung in refuted.rungs] == ["passed", "failed", "passed", "passed"]


@REAL
@pytest.mark.slow
def test_a_model_parsed_once_is_built_and_read_as_if_parsed_twice(tmp_path: Path) -> None:
    (path,) = written(tmp_path, model=BEFORE)
    how: dict[str, Any] = {"package": PACKAGE, "timeout": PATIENCE}
    child = f"{lift.__name__}:build_and_lift"
    with Worker() as worker:
        apart = attempt(worker, path, **how), lift.attempt(worker, path, tmp_path / "apart.onnx", **how)
        outcome = worker.call(child, path=str(path), out=str(tmp_path / "once.onnx"), **how)
        again = worker.call(child, path=str(path), out=str(tmp_path / "again.onnx"), follow=True, **how)
    done, network = outcome.value
    assert (done.status, done.layers, done.profiles) == ("accepted", apart[0].layers, apart[0].profiles)
    assert done.engine_bytes == apart[0].engine_bytes
    assert network.names == apart[1].names
    assert (tmp_path / "once.onnx").read_bytes() == (tmp_path / "apart.onnx").read_bytes()
    assert done.profiles[0].derived
    assert again.value[0].profiles == done.profiles


@pytest.mark.parametrize(("note", "status"), [("lift", None), ("build", "crash")])
def test_where_a_build_died_decides_what_is_known(note: str, status: str | None) -> None:
    outcome = Outcome("crash", message="killed by SIGSEGV", died=True, note=note)
    worker = SimpleNamespace(collect=lambda posted: outcome, limit_mb=None)
    found = Builder(Choice(PACKAGE, "1.7.1", "8.9"), TrtOptions(), worker)  # type: ignore[arg-type]
    built = found.collect(Posted(PATIENCE), Path("m.onnx"))
    assert (built and built[0].status) == status


def test_a_build_that_nobody_waits_for_is_ended(worker: Worker) -> None:
    with suppress(KeyboardInterrupt), networks() as place:
        place.worker = worker
        place.begun[Path("m.onnx")] = worker.post("signal:pause", timeout=PATIENCE)
        raise KeyboardInterrupt
    assert worker.pid is None
    with networks() as place:  # what has ended does not cost the child
        place.worker = worker
        place.begun[Path("m.onnx")] = posted = worker.post("os:getpid", timeout=PATIENCE)
        worker.collect(posted)
    assert worker.pid is not None
