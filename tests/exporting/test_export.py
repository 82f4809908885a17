"""Export, repair and the proof against the module itself, with a stand-in for PyTorch (``fake_torch``)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import onnxfix
from onnxfix import OnnxfixError, UsageError
from onnxfix.proof.verdict import Exported, RungResult
from onnxfix.verbs.exporting import judge as judging
from support import fake_torch
from support.fake_torch import Module, ONNXProgram, Tensor
from support.models import model

#: Two Casts that change nothing: CST fixes both.
CASTS = (
    "g (float[batch, 3] x) => (float[batch, 3] y) { a = Cast<to = 1>(x)  b = Cast<to = 1>(a)  y = Exp(b) }"
)
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    return fake_torch.install(monkeypatch)


def exp() -> Module:
    return Module(lambda x: Tensor(np.exp(x.array)), CASTS)


def comparison(report: onnxfix.Report) -> RungResult:
    """What the proof says of PyTorch."""
    assert report.verdict is not None
    rung = report.verdict.rung("pytorch")
    assert rung is not None
    return rung


def exported(
    module: Any, path: Path, *args: Any, **options: Any
) -> tuple[onnxfix.Report, RungResult, Exported]:
    given = args or (Tensor(X),)
    report = onnxfix.export(module, given, path / "m.onnx", **{"rungs": "ort-cpu", **options})
    rung = comparison(report)
    assert rung.exported is not None
    return report, rung, rung.exported


def test_a_module_is_exported_repaired_and_proven(tmp_path: Path, torch: Any) -> None:
    report, rung, found = exported(exp(), tmp_path)
    assert (report.output, report.path) == (str(tmp_path / "m.onnx"),) * 2
    assert [node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node] == ["Exp"]
    assert rung.status == "passed"
    assert found == Exported("9.9.0", "dynamo", "", inputs=6, sizes=4)
    labels = {feed.label for feed in rung.feeds}
    assert labels == {"the given inputs", "other values", "batch=3", "batch=4", "batch=1"}
    assert rung.reason.endswith("on 6 feeds over 4 shapes: PyTorch 9.9.0, the exported model and the result")
    assert torch.calls == [{"dynamo": True, "external_data": False, "verbose": False}]
    assert list(tmp_path.iterdir()) == [tmp_path / "m.onnx"]


def test_a_wrong_export_is_the_exporters(tmp_path: Path) -> None:
    """The size of the batch is frozen into a constant: right for the given inputs only."""
    text = "g (float[batch, 3] x) => (float[batch, 3] y) <float two = {2.0}> { a = Cast<to = 1>(x)  y = Mul(a, two) }"
    module = Module(lambda x: Tensor(x.array * np.float32(x.shape[0])), text)
    report, rung, found = exported(module, tmp_path)
    assert (rung.status, found.blame, found.output) == ("failed", "export", "y")
    assert rung.reason.startswith("the export is wrong, before any fix: output y: 9 of 9 elements")
    assert " in PyTorch, " in rung.reason
    assert rung.reason.endswith("(batch=3)")
    assert report.output == ""
    assert not list(tmp_path.iterdir()), "nothing that is wrong is written"
    assert report.to_json()["exit_code"] == 3


def test_a_size_that_the_exported_model_refuses(tmp_path: Path) -> None:
    text = "g (float[batch, 3] x) => (float[batch, 3] y) <float[2, 1] k = {1.0, 1.0}> { y = Mul(x, k) }"
    _, rung, found = exported(Module(lambda x: x, text), tmp_path)
    assert found.blame == "export"
    assert "the exported model fails where PyTorch does not" in rung.reason
    assert next(feed for feed in rung.feeds if feed.stopped).label == "batch=3"


def test_a_wrong_fix_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only the result computes is no fault of the exporter. No rung compares the two models here."""
    real = judging.judge

    def spoiled(subject: Any, original: Path, result: Path, **told: Any) -> RungResult:
        wrong = onnx.load(result)
        wrong.graph.node[-1].op_type = "Neg"
        onnx.save(wrong, tmp_path / "spoiled.onnx")
        return real(subject, original, tmp_path / "spoiled.onnx", **told)

    monkeypatch.setattr("onnxfix.verbs.exporting.verb.judge", spoiled)
    report, rung, found = exported(exp(), tmp_path, rungs="contract")
    assert (rung.status, found.blame) == ("failed", "fix")
    assert rung.reason.startswith("the export is right and the result is not: output y: ")
    assert not (tmp_path / "m.onnx").exists()
    assert report.output == ""


def test_nothing_to_fix_is_still_compared(tmp_path: Path) -> None:
    plain = Module(lambda x: Tensor(np.exp(x.array)), "g (float[2, 3] x) => (float[2, 3] y) { y = Exp(x) }")
    report, rung, found = exported(plain, tmp_path)
    assert not report.changed
    assert (rung.status, found.inputs, found.sizes) == ("passed", 3, 1)
    assert {feed.sides for feed in rung.feeds} == {"export"}
    assert rung.reason.endswith("on 3 feeds: PyTorch 9.9.0, the exported model")
    assert (tmp_path / "m.onnx").exists()


# --------------------------------------------------------------------------------------------- not comparable


DRAWN = Module(lambda x: Tensor(np.random.default_rng().random(x.shape, np.float32)), CASTS)
TWO = Module(lambda x: {"a": x, "b": [x, None]}, CASTS)
FAILS = Module(lambda x: 1 / 0, CASTS)
LESS = Module(
    lambda *all: all[0],
    "g (float[2, 3] p, float[2, 3] x) => (float[2, 3] y) { a = Cast<to = 1>(x)  y = Add(p, a) }",
)


@pytest.mark.parametrize(
    ("module", "args", "words"),
    [
        (DRAWN, (), "gives other values each time"),
        (TWO, (), r"gives 2 tensors, and the exported model has 1 output \(y\)"),
        (FAILS, (), "the module fails on the given inputs: ZeroDivisionError"),
        (LESS, (Tensor(X),) * 3, r"3 tensors were given and the exported model has 2 inputs \(p, x\)"),
        (exp(), (Tensor(X[0]),), r"input x is declared \['batch', 3\], and was given with shape \[3\]"),
    ],
)
def test_what_cannot_be_compared_is_skipped_and_says_why(
    tmp_path: Path, module: Any, args: tuple[Any, ...], words: str
) -> None:
    report, rung, found = exported(module, tmp_path, *args)
    assert rung.status == "skipped"
    assert re.search(words, rung.reason), rung.reason
    assert found.inputs == 0
    assert report.output, "the fixes are proven all the same"
    required = onnxfix.export(
        module, args or (Tensor(X),), tmp_path / "m.onnx", rungs="ort-cpu", require="pytorch"
    )
    assert required.output == ""
    assert not required.ok


def test_outputs_that_are_drawn_are_left_out(tmp_path: Path) -> None:
    text = "g (float[2, 3] x) => (float[2, 3] y, float[2, 3] z) { y = Exp(x)  z = RandomNormalLike(x) }"
    draws = np.random.default_rng()
    module = Module(lambda x: (Tensor(np.exp(x.array)), Tensor(draws.random(x.shape, np.float32))), text)
    _, rung, _ = exported(module, tmp_path)
    assert (rung.status, rung.excluded) == ("passed", ("z",))
    assert {metric.output for feed in rung.feeds for metric in feed.metrics} == {"y"}


def test_sizes_that_the_module_refuses_do_not_count(tmp_path: Path) -> None:
    def even(x: Tensor) -> Tensor:
        if x.shape[0] % 2:
            raise ValueError("halves are wanted")
        return Tensor(np.exp(x.array))

    _, rung, found = exported(Module(even, CASTS), tmp_path)
    assert (rung.status, found.sizes) == ("passed", 2)
    refused = {feed.label: feed.reason for feed in rung.feeds if feed.status == "not counted"}
    words = "the module does not take it: ValueError: halves are wanted"
    assert refused == {"batch=3": words, "batch=1": words}


def test_ranges_of_dynamic_shapes_are_kept(tmp_path: Path) -> None:
    batch = SimpleNamespace(__name__="batch", min=2, max=3)
    _, rung, _ = exported(exp(), tmp_path, dynamic_shapes=({0: batch},))
    assert {feed.label for feed in rung.feeds} == {"the given inputs", "other values", "batch=3"}


def test_dimensions_that_only_have_different_names_grow_together(tmp_path: Path) -> None:
    """torch.export calls one dimension s72 in one input and s43 in another."""
    text = "g (float[s72] x, float[s43] z) => (float[n] y) { y = Add(x, z) }"
    module = Module(lambda x, z: Tensor(x.array + z.array), text)
    _, rung, found = exported(module, tmp_path, Tensor(X[0]), Tensor(X[1]))
    assert rung.status == "passed"
    assert [feed.label for feed in rung.feeds if feed.status == "not counted"] == ["s72=4, s43=5"]
    assert found.sizes == 4
    assert {feed.label for feed in rung.feeds} >= {"s72=4, s43=4", "s72=6, s43=6", "s72=1, s43=1"}


def test_indices_stay_within_what_was_given(tmp_path: Path) -> None:
    text = "g (int64[n] i) => (float[n] y) <float[3] t = {1.0, 2.0, 3.0}> { y = Gather(t, i) }"
    seen: list[int] = []

    def look(i: Tensor) -> Tensor:
        seen.extend(i.array.tolist())
        return Tensor(np.float32([1, 2, 3])[i.array])

    _, rung, found = exported(Module(look, text), tmp_path, Tensor(np.array([0, 2])))
    assert (rung.status, found.sizes) == ("passed", 4)
    assert set(seen) == {0, 2}


# --------------------------------------------------------------------------------------------- the module is left alone


def test_modes_and_buffers_are_restored(tmp_path: Path) -> None:
    inner, outer = exp(), exp()
    inner.training = False
    outer.parts = (inner,)

    def counted(x: Tensor) -> Tensor:
        outer.state.array += 1
        found = Tensor(np.exp(x.array))
        x.array += 1  # in place
        return found

    outer.call = counted
    given = Tensor(X.copy())
    exported(outer, tmp_path, given)
    assert outer.seen
    assert not any(outer.seen), "it runs in evaluation mode"
    assert (outer.training, inner.training) == (True, False)
    assert outer.state.array.tolist() == [0, 0]
    assert np.array_equal(given.array, X)


def test_the_exporters_failure_leaves_it_alone_too(tmp_path: Path) -> None:
    module = exp()
    module.text = ""
    with pytest.raises(
        UsageError, match=r"^torch.onnx.export failed: ValueError: no such operator$"
    ) as caught:
        exported(module, tmp_path)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert module.training


# ------------------------------------------------------------------------------------------------------- options


def test_keywords_of_torch(tmp_path: Path, torch: Any) -> None:
    _, _, found = exported(exp(), tmp_path, dynamo=False, verbose=True)
    assert found.exporter == "legacy"
    assert torch.calls == [{"dynamo": False, "external_data": True, "verbose": True}]
    for odd in ("dynamics", "f"):
        with pytest.raises(UsageError, match=f"takes {odd} as a keyword"):
            exported(exp(), tmp_path, **{odd: 1})


def test_keywords_of_the_module(tmp_path: Path) -> None:
    text = "g (float[2, 3] x, float[2, 3] z) => (float[2, 3] y) { y = Sub(x, z) }"
    module = Module(lambda x, z: Tensor(x.array - z.array), text)
    z = Tensor(X * 3)
    for args, options in (((Tensor(X),), {"kwargs": {"z": z}}), ((Tensor(X), {"z": z}), {})):
        assert exported(module, tmp_path, *args, **options)[1].status == "passed"
    assert exported(module, tmp_path, Tensor(X), z)[1].status == "passed"


def test_without_a_comparison(tmp_path: Path) -> None:
    for options in ({"against_pytorch": False}, {"verify": False}):
        report = onnxfix.export(exp(), (Tensor(X),), tmp_path / "m.onnx", rungs="ort-cpu", **options)
        assert report.output
        assert report.verdict.rung("pytorch") is None
    assert exported(exp(), tmp_path, training=SimpleNamespace(name="EVAL"))[1].status == "passed"
    training = SimpleNamespace(name="TRAINING")
    report = onnxfix.export(exp(), (Tensor(X),), tmp_path / "m.onnx", rungs="ort-cpu", training=training)
    assert comparison(report).reason == "the model was exported in training mode"


def test_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        UsageError, match=r"^onnxfix.export needs PyTorch \(.*\): pip install torch onnxscript$"
    ):
        onnxfix.export(exp(), (Tensor(X),), tmp_path / "m.onnx")


# ------------------------------------------------------------------------------------------------------ a program


EXAMPLE = (Tensor(X),), dict[str, Any]()


def program(example: Any = EXAMPLE) -> ONNXProgram:
    kept = SimpleNamespace(example_inputs=example, module=lambda: exp().call)
    return ONNXProgram(CASTS, kept)


def test_a_program_is_repaired_and_proven(tmp_path: Path) -> None:
    report = onnxfix.apply(program(), tmp_path / "m.onnx", rungs="ort-cpu")
    rung = comparison(report)
    assert (rung.status, rung.exported) == ("passed", Exported("9.9.0", "dynamo", "", 6, 4))
    assert [node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node] == ["Exp"]
    found = onnxfix.apply(program(), rungs="ort-cpu")
    assert found.model is not None
    assert found.model.graph.node[0].op_type == "Exp"
    assert found.path == "<program>"


def test_a_program_that_keeps_nothing(tmp_path: Path) -> None:
    for kept, words in (
        (program(None), "the inputs"),
        (ONNXProgram(CASTS, None), "what it was exported from"),
    ):
        report = onnxfix.apply(kept, tmp_path / "m.onnx", rungs="ort-cpu")
        assert report.output
        rung = comparison(report)
        assert rung.status == "skipped"
        assert f"the program does not keep {words}" in rung.reason
    with pytest.raises(UsageError, match="in-place needs a model that was read from a file"):
        onnxfix.apply(program(), in_place=True)


def test_other_commands_take_a_program() -> None:
    assert {one.code for one in onnxfix.check(program()).findings} & {"CST001", "CST002"}
    with pytest.raises(UsageError, match=r"or a torch.onnx.ONNXProgram, not a SimpleNamespace"):
        onnxfix.check(SimpleNamespace(model_proto=1))  # type: ignore[arg-type]


def test_weights_beside_an_earlier_export_are_not_mixed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch writes weights beside the model: those of an earlier export are replaced together with it."""
    values = iter((1.0, 2.0))

    def beside(module: Any, args: Any, path: Path, options: Any) -> None:
        big = np.full((64, 64), next(values), np.float32)
        text = "g (float[2, 64] x) => (float[2, 64] y) { y = MatMul(x, w) }"
        made = model(text, 18, w=big)
        onnx.save(made, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)

    monkeypatch.setattr("onnxfix.verbs.exporting.pytorch.write", beside)
    x = Tensor(np.ones((2, 64), np.float32))
    for value in (1.0, 2.0):
        module = Module(lambda x, value=value: Tensor(x.array @ np.full((64, 64), value, np.float32)), "")
        report, rung, _ = exported(module, tmp_path, x)
        assert (report.output, rung.status) == (str(tmp_path / "m.onnx"), "passed")
        assert sorted(one.name for one in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
        assert onnx.numpy_helper.to_array(onnx.load(tmp_path / "m.onnx").graph.initializer[0]).max() == value


def test_a_path_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sandboxes are shared, and stay in the folder that they were started in."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert exported(exp(), Path(), rungs="contract")[1].status == "passed"


def test_a_missing_folder_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(OnnxfixError, match="no such directory"):
        onnxfix.export(exp(), (Tensor(X),), tmp_path / "none" / "m.onnx")


def test_the_users_tolerance_is_the_rungs_too(tmp_path: Path) -> None:
    """An export that is off by a thousandth, and a user who allows that."""
    module = Module(lambda x: Tensor(np.exp(x.array) * np.float32(1.001)), CASTS)
    assert exported(module, tmp_path)[1].status == "failed"
    assert exported(module, tmp_path, rtol=2e-3)[1].status == "passed"
