"""Export with the real PyTorch, by both of its exporters. CI has none: these tests are skipped there."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxfix
from support.ended import ended
from support.paths import FIXTURES
from support.scripts import script

MISSING = [name for name in ("torch", "onnxscript") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING), reason=f"{', '.join(MISSING)} not installed: pip install torch onnxscript"
    ),
    pytest.mark.filterwarnings("ignore"),  # torch's, which are many
]
if not MISSING:
    import torch
    from torch import nn

RUNGS = ("reference", "ort-cpu")


def batch(dynamo: bool, name: str, size: int = 64) -> dict[str, Any]:
    """Keywords for a dynamic batch of the parameter ``name``."""
    if dynamo:
        return {"dynamo": True, "dynamic_shapes": {name: {0: torch.export.Dim("batch", max=size)}}}
    return {"dynamo": False, "input_names": [name], "dynamic_axes": {name: {0: "batch"}}}


def rung_of(report: onnxfix.Report) -> Any:
    assert report.verdict is not None
    return report.verdict.rung("pytorch")


@pytest.mark.parametrize("dynamo", [True, False])
def test_a_network_with_norms_and_dropout(tmp_path: Path, dynamo: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
            self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 2)

        def forward(self, image: Any) -> Any:
            return self.head(self.drop(torch.relu(self.norm(self.conv(image))).mean((2, 3))))

    net = Net().train()
    net.norm.eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    drawn = torch.get_rng_state()
    image = torch.rand(2, 3, 8, 8)
    report = onnxfix.export(net, (image,), tmp_path / "m.onnx", rungs=RUNGS, **batch(dynamo, "image"))
    rung = rung_of(report)
    assert (rung.status, rung.exported.blame) == ("passed", ""), rung.reason
    assert rung.exported.sizes == 4
    assert rung.exported.exporter == ("dynamo" if dynamo else "legacy")
    assert (net.training, net.norm.training, net.drop.training) == (True, False, True)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state()[:8], drawn[:8])
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    (found,) = session.run(None, {"image": image.numpy()})
    with torch.no_grad():
        net.eval()
        assert np.allclose(found, net(image).numpy(), atol=1e-5)


@pytest.mark.parametrize("dynamo", [True, False])
def test_indices_keywords_and_named_outputs(tmp_path: Path, dynamo: bool) -> None:
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.lstm = nn.Embedding(11, 4), nn.LSTM(4, 5, batch_first=True)

        def forward(self, ids: Any, mask: Any = None) -> Any:
            found, _ = self.lstm(self.words(ids))
            return {"tokens": found, "mean": (found * mask[..., None]).mean(1)}

    axes = {name: {0: "batch", 1: "length"} for name in ("ids", "mask")}
    options: dict[str, Any] = (
        {"dynamic_shapes": axes} if dynamo else {"dynamic_axes": axes, "input_names": [*axes]}
    )
    report = onnxfix.export(
        Text(), (torch.randint(0, 11, (2, 5)),), tmp_path / "m.onnx", rungs=RUNGS, dynamo=dynamo,
        kwargs={"mask": torch.ones(2, 5)}, **options,
    )  # fmt: skip
    rung = ended("passed", rung_of(report))
    assert {feed.label for feed in rung.feeds} >= {"batch=3, length=7", "batch=1, length=5"}


def test_a_batch_that_tracing_froze(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * torch.tensor(float(x.shape[0]))

    report = onnxfix.export(
        Scaled(), (torch.ones(3, 4),), tmp_path / "m.onnx", rungs=RUNGS, **batch(False, "x")
    )
    rung = rung_of(report)
    assert (rung.status, rung.exported.blame) == ("failed", "export")
    assert rung.reason.endswith("first at [0, 0]: 4.0 in PyTorch, 3.0 in ONNX (batch=4)")
    assert report.exit_code == 3
    assert not list(tmp_path.iterdir())


def test_half_precision_and_bfloat16(tmp_path: Path) -> None:
    for kind in (torch.float16, torch.bfloat16):
        report = onnxfix.export(
            nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to(kind), (torch.randn(2, 8).to(kind),), tmp_path / "m.onnx",
            rungs=RUNGS,
        )  # fmt: skip
        assert rung_of(report).status == "passed", rung_of(report).reason


def test_programs(tmp_path: Path) -> None:
    net = nn.Linear(4, 4).eval()
    shapes = ({0: torch.export.Dim("batch", max=5)},)
    program = torch.onnx.export(net, (torch.randn(3, 4),), dynamo=True, verbose=False, dynamic_shapes=shapes)
    report = onnxfix.apply(program, tmp_path / "m.onnx", rungs=RUNGS)
    rung = ended("passed", rung_of(report))
    assert rung.exported.sizes == 3, "the program refuses a batch of 6 and takes 4 and 1"
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"))
    exported = torch.export.export(net, (torch.randn(3, 4),), dynamic_shapes=shapes)
    report = onnxfix.export(exported, (torch.randn(3, 4),), tmp_path / "n.onnx", rungs=RUNGS)
    assert rung_of(report).status == "passed", rung_of(report).reason


def test_weights_beside_the_model(tmp_path: Path) -> None:
    for _ in range(2):
        report = onnxfix.export(
            nn.Linear(64, 64), (torch.randn(3, 64),), tmp_path / "m.onnx", rungs=RUNGS, external_data=True
        )
        assert rung_of(report).status == "passed"
        onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m-2.onnx.data", "m.onnx", "m.onnx.data"]


class Attention(nn.Module if not MISSING else object):  # type: ignore[misc]
    """Products beyond half precision's range; and masked scores, which are infinite on purpose."""

    def forward(self, q: Any, k: Any, mask: Any) -> Any:
        scores = q @ k.transpose(-1, -2) / 64
        return scores.masked_fill(mask, float("-inf")).softmax(-1)


@pytest.mark.parametrize("factor", [1.0, 100.0])
def test_values_beyond_half_precision_are_told_with_their_line(tmp_path: Path, factor: float) -> None:
    q = factor * torch.ones(2, 4, 8, dtype=torch.float16)
    mask = torch.ones(4, 4, dtype=torch.bool).triu(1)
    report = onnxfix.export(Attention(), (q, q, mask), tmp_path / "m.onnx", rungs=RUNGS)
    told = [note for note in report.notes if "float16" in note]
    if factor == 1.0:
        assert not told
    else:
        assert len(told) == 1
        assert "test_with_torch.py:" in told[0]
        assert "(Attention.forward): scores = q @ k.transpose(-1, -2) / 64: " in told[0]
        assert told[0].endswith(" reaches 8e+04, beyond float16's 65504")


def test_the_tutorial_about_a_better_model() -> None:
    """Its exports are as PyTorch makes them, and at batch 1 both modules compute the same."""
    folder, lines, outputs = FIXTURES / "better-model", {}, {}
    for side in ("before", "after"):
        torch.manual_seed(0)
        ranker = script(folder / side / "model.py").Ranker().half().eval()
        mask = torch.arange(8) > 4
        values = (
            torch.randn(2, 16).half(),
            torch.randn(2, 8, 16).half(),
            mask.repeat(2, 1),
            ~mask.repeat(2, 1),
        )
        given = dict(zip(("query", "items", "missing", "banned", "threshold"),
                         (*values, torch.ones(2).half()), strict=True))  # fmt: skip
        outputs[side] = ranker(**{name: value[:1] for name, value in given.items()})
        axes = {name: {0: "batch"} for name in given}
        program = torch.onnx.export(
            ranker, kwargs=given, dynamic_shapes=axes, verbose=False, opset_version=20
        )
        lines[side] = {
            (finding.code, finding.source.line)
            for finding in onnxfix.check(program, target="rtx").findings
            if finding.severity != "info" and finding.source is not None
        }
    assert {line for _, line in lines["before"]} == {16, 18, 19}
    assert not lines["after"]
    assert all(map(torch.equal, outputs["before"], outputs["after"]))
