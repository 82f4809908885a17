"""benchmarks/gpu/engines.py: every way in which a model can end on an engine has a name, and harms no other model.

No engine of TensorRT is executed: ``fake_engines`` runs ONNX models in their place.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ledger
import numpy as np
import onnx
import pytest
from acceptance import values
from gpu import engines
from gpu.engines import Bench, Executed

from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.nvidia import Gpu, Missing
from onnxfix.place import Place
from onnxfix.sandbox import Worker
from onnxfix.trt.package import Choice
from onnxfix.trt.records import Issue, TrtBuild
from onnxfix.verification.rungs.probe import Probe
from support.models import model
from support.patience import PATIENCE

CHOICE = Choice("tensorrt", "10.0", "8.9", Gpu("NVIDIA Test", "8.9"))
ADD = "g (float[3] x) => (float[3] y) { y = Add(x, x) }"


def tricky(text: str, **tricks: Any) -> bytes:
    """A model that the fakes do something with: ``build`` is what becomes of the build."""
    made = model(text)
    onnx.helper.set_model_props(made, {"fake": json.dumps(tricks)})
    return made.SerializeToString()


def build(worker: Worker, path: Path, *, save_engine: str, timeout: float, **rest: Any) -> TrtBuild:
    """In the place of TensorRT's: the engine is the model, unless its metadata say otherwise."""
    said = {one.key: one.value for one in onnx.load(path).metadata_props}
    status, stage = json.loads(said.get("fake", "{}")).get("build", ("accepted", ""))
    if status == "unfit":
        raise UsageError("the profile does not fit")
    if status == "accepted":
        shutil.copy(path, save_engine)
        return TrtBuild("accepted")
    place = Place(op_type="Add")
    return TrtBuild(status, stage, (Issue(stage or "build", "error", "no such thing", place),))


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench(CHOICE, PATIENCE, build=build, module="support.fake_engines") as found:
        yield found


def executed(bench: Bench, data: bytes, **feed: Any) -> Executed:
    return bench.execute(data, [feed or {"x": np.array([1, 2, 3], np.float32)}], None)


# ---------------------------------------------------------------------------------------------------- executing


def test_an_engine_is_built_and_run_on_every_feed(bench: Bench) -> None:
    feeds = [{"x": np.full(3, number, np.float32)} for number in (1, 2)]
    found = bench.execute(tricky(ADD), feeds, None)
    assert (found.how, found.stage) == ("ran", "")
    assert [one["y"].tolist() for one in found.outputs] == [[2, 2, 2], [4, 4, 4]]
    assert len(found.seconds) == 3


@pytest.mark.parametrize(
    ("tricks", "how", "stage", "reason"),
    [
        ({"build": ("refused", "parse")}, "parser", "parse", "no such thing"),
        ({"build": ("refused", "profile")}, "builder", "profile", "no such thing"),
        ({"build": ("refused", "build")}, "builder", "build", "no such thing"),
        ({"build": ("timeout", "build")}, "timeout", "build", "no such thing"),
        ({"build": ("crash", "parse")}, "crash", "parse", "no such thing"),
        ({"build": ("memory", "build")}, "crash", "build", "no such thing"),
        ({"build": ("error", "")}, "failed", "build", "no such thing"),
        ({"build": ("unfit", "")}, "unfed", "profile", "does not fit"),
        ({"refused": "no kernel"}, "failed", "load", "no kernel"),
        ({"fails": "illegal address"}, "failed", "run", "illegal address"),
        ({"dies": True}, "crash", "run", "SIGABRT"),
    ],
)
def test_everything_that_can_go_wrong_has_a_name(
    bench: Bench, tricks: dict[str, Any], how: str, stage: str, reason: str
) -> None:
    found = executed(bench, tricky(ADD, **tricks))
    assert (found.how, found.stage) == (how, stage)
    assert reason in found.reason
    assert executed(bench, tricky(ADD)).how == "ran", "what one model did must not be the next one's fault"


def test_a_process_in_which_something_failed_is_not_used_again(bench: Bench) -> None:
    assert executed(bench, tricky(ADD)).how == "ran"
    assert bench._runner.pid is not None
    assert executed(bench, tricky(ADD, refused="no kernel")).how == "failed"
    assert bench._runner.pid is None


@pytest.mark.slow
def test_what_hangs_is_stopped() -> None:
    with Bench(CHOICE, 3.0, build=build, module="support.fake_engines") as short:
        found = executed(short, tricky(ADD, hangs=True))
        assert (found.how, found.stage) == ("timeout", "run")
        assert "took more than" in found.reason


def test_tasks_are_spread_until_the_time_is_up() -> None:
    done: list[int] = []
    assert engines.spread(range(5), 2, lambda: nullcontext(0), lambda _, n: done.append(n), budget=60.0) == 0
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert engines.spread(range(5), 2, lambda: nullcontext(0), lambda _, n: done.append(n), budget=0.0) == 5
    with pytest.raises(OnnxfixError, match="broken"):
        engines.spread(range(5), 2, lambda: nullcontext(0), _raise, budget=60.0)


def _raise(*_: object) -> None:
    raise OnnxfixError("broken")


@pytest.mark.parametrize(
    ("chosen", "told", "words"),
    [
        (Missing("neither is installed"), Probe(), "neither is installed"),
        (None, Probe("no NVIDIA GPU found", "no-gpu"), "no NVIDIA GPU"),
        (None, Probe(precision="tf32"), "tf32"),
        (None, Probe(precision=""), "no known precision"),
    ],
)
def test_a_machine_that_cannot_measure_says_so_at_once(
    monkeypatch: pytest.MonkeyPatch, chosen: Any, told: Probe, words: str
) -> None:
    builder = SimpleNamespace(choice=CHOICE, close=lambda: None)
    monkeypatch.setattr(engines, "builder", lambda _: chosen or builder)
    monkeypatch.setattr(engines, "probe", lambda _: told)
    with pytest.raises(OnnxfixError, match=words):
        engines.ready("tensorrt")


# ---------------------------------------------------------------------------------------------------- judging


def ran(*outputs: Any, unread: dict[str, str] | None = None) -> Executed:
    return Executed("ran", outputs=tuple({"y": value} for value in outputs), unread=unread or {})


def test_values_cross_json() -> None:
    import ml_dtypes

    given = [[np.arange(6, dtype=np.int8).reshape(2, 3), np.array(1.5, ml_dtypes.bfloat16)], [np.zeros(0)]]
    back = values.unpack(json.loads(json.dumps(values.pack(given))))
    for one, other in zip(given, back, strict=True):
        for a, b in zip(one, other, strict=True):
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    assert values.pack([[np.zeros(values.MOST + 1, np.int8)]]) == []
    assert values.pack([["text"]]) == values.pack([[np.array(["text"])]]) == []


# ---------------------------------------------------------------------------------------------------- the ledger


def test_a_ledger_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    with ledger.Ledger(path, {"setting": {"GPU": "A"}}) as book:
        book.record("a", {"x": 1})
        assert ledger.load(path)["results"] == {}, "within the pause nothing is written"
    assert ledger.load(path) == {"setting": {"GPU": "A"}, "results": {"a": {"x": 1}}}
    with ledger.Ledger(path, {"setting": {"GPU": "A"}}, pause=0.0) as book:
        assert "a" in book
        book.record("b", None)
        assert set(ledger.load(path)["results"]) == {"a", "b"}, "written at once, for a process may be killed"
    with pytest.raises(OnnxfixError, match="another run"):
        ledger.Ledger(path, {"setting": {"GPU": "B"}})
