"""docs/recipes.md: its code runs with PyTorch, optimum and Olive where they are installed, and everywhere with
stand-ins for what a recipe uses of them."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxfix
from support import fake_torch
from support.models import write
from support.paths import ROOT

PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
CASTS = "g (float[batch, 3] image) => (float[batch, 3] y) { a = Cast<to = 1>(image)  y = Exp(a) }"


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def real(*names: str) -> Any:
    """The marks of a test that needs these packages."""
    missing = [name for name in names if not installed(name)]
    reason = f"{', '.join(missing)} not installed"
    return lambda test: pytest.mark.slow(pytest.mark.skipif(bool(missing), reason=reason)(test))


def run(name: str, **known: Any) -> dict[str, Any]:
    """Run a block of the page; what it defines."""
    found = dict(known)
    exec(compile(BLOCKS[name], name, "exec"), found)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_block_is_run_here() -> None:
    assert set(BLOCKS) == {
        "pytorch.py", "scaled.py", "program.py", "optimum_export.py", "onnxfix_olive.py", "workflow.py"
    }  # fmt: skip
    assert PAGE.count("```python") == len(BLOCKS)


# ------------------------------------------------------------------------------------------------------- PyTorch


def test_pytorch(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake_torch.install(monkeypatch)
    module = fake_torch.Module(lambda x: fake_torch.Tensor(np.exp(x.array)), CASTS)
    found = run("pytorch.py", model=module, image=fake_torch.Tensor(np.ones((2, 3), np.float32)))
    assert found["report"].verdict.rung("pytorch").status == "passed"
    assert "pytorch" in capsys.readouterr().out
    assert [node.op_type for node in onnx.load("model.onnx").graph.node] == ["Exp"]


@real("torch", "onnxscript")
@pytest.mark.filterwarnings("ignore")
def test_pytorch_itself(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    class Net(torch.nn.Module):
        def forward(self, image: Any) -> Any:
            return torch.relu(image)

    for name in ("pytorch.py", "program.py"):
        found = run(name, model=Net().eval(), image=torch.randn(2, 3))
        assert found["report"].verdict.rung("pytorch").status == "passed"
        onnx.checker.check_model("model.onnx")
    capsys.readouterr()
    run("scaled.py")
    shown = re.search(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert capsys.readouterr().out == shown[1]
    assert not Path("scaled.onnx").exists()


# ------------------------------------------------------------------------------------------------------- optimum


def package(patch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """A stand-in for a package of that name, with the packages around it."""
    parts = name.split(".")
    for count in range(1, len(parts)):
        outer = ".".join(parts[:count])
        if outer not in sys.modules:
            patch.setitem(sys.modules, outer, types.ModuleType(outer))
    made = types.ModuleType(name)
    made.__dict__.update(members)
    patch.setitem(sys.modules, name, made)


def test_optimum(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def main_export(model: str, output: str, task: str) -> None:
        assert (model, task) == ("tiny", "feature-extraction")
        for name in ("encoder.onnx", "onnx/decoder.onnx"):
            (Path(output) / name).parent.mkdir(parents=True, exist_ok=True)
            write(Path(output) / name, CASTS, 18)

    package(monkeypatch, "optimum.exporters.onnx", main_export=main_export)
    reports = run("optimum_export.py")["export"]("tiny", "made", target="rtx", task="feature-extraction")
    assert [(Path(one.output).name, one.target, one.ok) for one in reports] == [
        ("encoder.onnx", "rtx", True), ("decoder.onnx", "rtx", True)
    ]  # fmt: skip
    for name in ("encoder.onnx", "onnx/decoder.onnx"):
        assert [node.op_type for node in onnx.load(Path("made", name)).graph.node] == ["Exp"]


@real("optimum.exporters" if installed("optimum") else "optimum", "transformers", "torch")
@pytest.mark.filterwarnings("ignore")
def test_optimum_itself(folder: Path) -> None:
    from transformers import BertConfig, BertModel

    small = BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=99
    )
    BertModel(small).save_pretrained("tiny")
    (report,) = run("optimum_export.py")["export"]("tiny", "made", task="feature-extraction", opset=18)
    assert report.ok
    assert report.output
    assert report.applied


# --------------------------------------------------------------------------------------------------------- Olive


class Config:
    """What Olive makes of a pass's parameters."""

    def __init__(self, parameters: Any, **given: Any) -> None:
        for name, parameter in parameters.items():
            setattr(self, name, given.get(name, parameter["default_value"]))


def olive_pass(patch: pytest.MonkeyPatch) -> Any:
    handler = type("ONNXModelHandler", (), {"__init__": lambda self, **given: self.__dict__.update(given)})
    package(patch, "olive.hardware", AcceleratorSpec=object)
    package(patch, "olive.model", ONNXModelHandler=handler)
    package(patch, "olive.model.utils", resolve_onnx_path=lambda path: f"{path}/model.onnx")
    package(patch, "olive.passes", Pass=object)
    package(patch, "olive.passes.pass_config", BasePassConfig=object, PassConfigParam=dict)
    return run("onnxfix_olive.py")["Onnxfix"]


def test_olive(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = olive_pass(monkeypatch)
    config = Config(kind._default_config(None), target="rtx")
    model = types.SimpleNamespace(model_path=str(write(folder / "in.onnx", CASTS, 18)))
    found = kind()._run_for_config(model, config, str(folder / "out"))
    assert (found.model_path, found.onnx_file_name) == (str(folder / "out"), "model.onnx")
    assert [node.op_type for node in onnx.load("out/model.onnx").graph.node] == ["Exp"]
    monkeypatch.setattr(onnxfix, "apply", lambda *_, **__: types.SimpleNamespace(output=""))
    with pytest.raises(RuntimeError, match="not proven, so not written"):
        kind()._run_for_config(model, config, str(folder / "out"))


@real("olive")
@pytest.mark.filterwarnings("ignore")
def test_olive_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = re.search(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert packages is not None
    Path("packages.json").write_text(json.dumps(json.loads(packages[1])), encoding="utf-8")
    Path("onnxfix_olive.py").write_text(BLOCKS["onnxfix_olive.py"], encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    write(folder / "model.onnx", CASTS, 18)
    run("workflow.py")
    assert [node.op_type for node in onnx.load("repaired/model.onnx").graph.node] == ["Exp"]
