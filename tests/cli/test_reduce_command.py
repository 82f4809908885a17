"""``onnxfix reduce``: exit codes, text and JSON, and Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest

from support import models
from support.cli import refused, run, told
from support.paths import FIXTURES
from support.patience import PATIENCE
from support.real_tensorrt import REAL

TANH = "g (float[4] x) => (float[4] y) { a = Exp(x)  t = Tanh(a)  y = Neg(t) }"
FAILS = "! grep -q Tanh {}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return models.write(tmp_path / "whole.onnx", TANH)


def test_a_reduction_as_text_and_as_json(model: Path, tmp_path: Path) -> None:
    code, out, err = run("reduce", model, "--check", FAILS, "-o", tmp_path / "a")
    assert (code, err) == (0, "")
    assert "1 node of 3 still fails (Tanh" in out
    assert str(tmp_path / "a") in out
    code, document = told("reduce", model, "--check", FAILS, "-o", tmp_path / "b")
    assert code == document["exit_code"] == 0
    assert (document["status"], document["nodes_before"], document["nodes_after"]) == ("reduced", 3, 1)
    assert document["failure"]["kind"] == "exit"
    assert document["operators"] == ["Tanh"]
    assert document["complete"]


def test_the_folder_is_beside_the_model_by_default(model: Path) -> None:
    assert run("reduce", model, "--check", FAILS)[0] == 0
    assert (model.parent / "whole.reduced" / "model.onnx").is_file()


def test_nothing_fails(model: Path, tmp_path: Path) -> None:
    code, out, _ = run("reduce", model, "--check", "true {}", "-o", tmp_path / "a")
    assert (code, "nothing fails" in out) == (1, True)
    code, out, _ = run("reduce", model, "--check", "ort-cpu", "-o", tmp_path / "a", "--format", "json")
    assert (code, json.loads(out)["status"]) == (1, "passes")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "given",
    [
        ["--check", "trt-bild"],
        ["--check", "ort-cpu", "--match", "x"],
        ["--check", "true {}", "--match", "("],
        ["--check", "trt-build", "--against", "whole.onnx"],
        ["--check", "true {}", "-o", "no/such/folder"],
        ["--check", "true {}", "--inputs", "whole.onnx"],
    ],
)
def test_mistakes(model: Path, monkeypatch: pytest.MonkeyPatch, given: list[str]) -> None:
    monkeypatch.chdir(model.parent)
    refused("reduce", "whole.onnx", *given)


@pytest.mark.slow
def test_ctrl_c_says_so_and_leaves_the_folder(tmp_path: Path) -> None:
    both = {5: "Tanh", 16: "Exp"}  # a failure of one node alone is found in the first step
    chain = "  ".join(f"t{n + 1} = {both.get(n, 'Neg')}(t{n})" for n in range(24))
    path = models.write(tmp_path / "whole.onnx", f"g (float[4] t0) => (float[4] t24) {{ {chain} }}")
    folder, failures = tmp_path / "out", tmp_path / "failures"
    check = f"sleep 0.2; ! (grep -q Tanh {{}} && grep -q Exp {{}} && echo >> {failures})"
    command = [sys.executable, "-m", "onnxfix", "reduce", path, "--check", check, "-o", folder]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + PATIENCE
    while not (failures.exists() and failures.stat().st_size > 3) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (130, "")
    assert "smallest part so far" in out
    left = len(onnx.load(folder / "model.onnx").graph.node)
    assert 1 < left < 24
    code, out, _ = run("reduce", folder / "model.onnx", "--check", check, "-o", tmp_path / "on")
    assert (code, f"2 nodes of {left} still fail" in out) == (0, True)
    done = subprocess.run([sys.executable, folder / "reproduce.py"], timeout=PATIENCE, capture_output=True)
    assert done.returncode == 1


@REAL
def test_tensorrt(tmp_path: Path) -> None:
    path = FIXTURES / "trt" / "unknown_operator.onnx"
    code, out, _ = run("reduce", path, "--check", "trt-build", "-o", tmp_path / "a")
    assert (code, "Mystery" in out) == (0, True)
