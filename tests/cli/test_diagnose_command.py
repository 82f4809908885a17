"""``onnxfix diagnose`` and ``onnxfix reduce`` on the command line: text, JSON, files, exit codes, interruptions and
limits."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfix.diagnosis import bench, lockstep
from onnxfix.diagnosis.bench import Bench
from support import models
from support.cli import errors, process, refused, run, told
from support.models import model, write
from support.paths import FIXTURES
from support.patience import PATIENCE
from support.real_tensorrt import FACT, REAL, RELEASE

NET = """g (float[2,4] x) => (float[2,4] y) {
    a = Tanh(x)
    b = Mul(a, w)
    y = Exp(b)
}"""


@pytest.fixture
def right(tmp_path: Path) -> Path:
    return write(tmp_path / "right.onnx", model(NET, w=np.float32(2)))


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    return write(tmp_path / "wrong.onnx", model(NET, w=np.float32(2.5)))


def document(*arguments: object) -> tuple[int, dict[str, Any]]:
    return told("diagnose", *arguments)


def test_the_node_that_differs_is_named(right: Path, wrong: Path) -> None:
    code, found = document(right, wrong)
    assert (code, found["status"], found["exit_code"]) == (1, "differ", 1)
    (culprit,) = found["culprits"]
    assert (culprit["node"], culprit["op_type"], culprit["output"]) == ("b", "Mul", "b")
    assert culprit["own_error"] == pytest.approx(0.25, rel=1e-3)
    assert culprit["reason"]
    assert found["samples"] == 2
    assert found["complete"]
    assert not found["interrupted"]


def test_the_answer_comes_first(right: Path, wrong: Path) -> None:
    code, text, _ = run("diagnose", right, wrong)
    lines = text.splitlines()
    assert code == 1
    assert lines[0] == f"{right} against {wrong}  differs: b (weight)"
    assert lines[1].startswith("  node      b (Mul): own error 0.")
    assert [line[:8] for line in lines if line.startswith(("  why", "  do"))] == ["  why   ", "  do    "]
    assert run("diagnose", right, wrong, "-q")[1] == lines[0] + "\n"
    assert "values" in run("diagnose", right, wrong, "-v")[1]


def test_json_and_the_report_are_the_same(right: Path, wrong: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    code, found = document(right, wrong, "--report", report, "--input-shapes", "x:[2,4]")
    assert json.loads(report.read_text()) == found
    assert (code, found["outputs"][0]["shape"]) == (1, [2, 4])


def test_models_that_agree(right: Path) -> None:
    code, found = document(right, right)
    assert (code, found["status"], found["culprits"]) == (0, "agree", [])
    code, found = document(right, "--against", "fp16")
    assert (code, found["status"]) == (0, "rounding")
    assert 0 < found["tolerance"] < 0.01
    assert run("diagnose", right, "--against", "ort-cpu")[0] == 0


def test_inputs_of_the_user(right: Path, wrong: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "zero.npz", x=np.zeros((2, 4), np.float32))
    assert document(right, wrong, "--inputs", tmp_path / "zero.npz")[1]["status"] == "agree"
    np.savez(tmp_path / "wrong.npz", x=np.zeros((3, 4), np.float32))
    err = errors(2, "diagnose", right, wrong, "--inputs", tmp_path / "wrong.npz")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("A",), "name a second model"),
        (("A", "B", "--against", "fp16"), "is for one model"),
        (("absent.onnx", "--against", "fp16"), "absent.onnx"),
        (("A", "absent.onnx"), "absent.onnx"),
        (("text.onnx", "--against", "fp16"), "text.onnx"),
        (("A", "text.onnx"), "text.onnx"),
        (("A", "two.onnx"), "same interface"),
        (("A", "B", "--inputs", "absent.npz"), "absent.npz"),
        (("A", "B", "--input-shapes", "z:[1]"), "z"),
        (("A", "B", "--report", "A"), "is also"),
        (("A", "B", "--report", "B"), "is also"),
        (("A", "B", "--keep-fp32", "B"), "is also"),
        (("A", "B", "--report", "r.json", "--keep-fp32", "r.json"), "is also"),
        (("A", "B", "--report", "no/r.json"), "does not exist"),
    ],
)
@pytest.mark.usefixtures("right", "wrong")
def test_what_is_refused(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.onnx").write_text("this is no model")
    write(tmp_path / "two.onnx", model(NET.replace("(float[2,4] y)", "(float[2,4] y, float[2,4] a)"), w=1.0))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    names = {"A": "right.onnx", "B": "wrong.onnx"}
    code, out, err = run("diagnose", *(names.get(one, one) for one in arguments))
    assert code == 2, out
    assert out == ""
    assert words in err
    assert len(err.splitlines()) == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_nodes_to_keep_are_written(tmp_path: Path) -> None:
    keep = tmp_path / "keep_fp32.txt"
    code, data = told(
        "diagnose", FIXTURES / "diagnose" / "encoder_outlier.onnx", "--against", "fp16", "--keep-fp32", keep
    )
    assert code == 1
    lines = keep.read_text().splitlines()
    assert lines == data["keep_fp32"]
    for one in data["culprits"]:
        assert [line for line in lines if re.match(line, one["node"])]
    assert not [line for line in lines if re.match(line, "/embed/MatMul") or line.split() != [line]]


def test_external_data_is_not_replaced_by_the_report(tmp_path: Path) -> None:
    weight = np.ones((64, 64), np.float32)
    proto = model("g (float[1,64] x) => (float[1,64] y) { y = MatMul(x, w) }", w=weight)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    before = (tmp_path / "m.data").read_bytes()
    code, _, err = run("diagnose", tmp_path / "m.onnx", "--against", "fp16", "--report", tmp_path / "m.data")
    assert (code, (tmp_path / "m.data").read_bytes()) == (2, before)
    assert "is also" in err
    assert run("diagnose", tmp_path / "m.onnx", tmp_path / "m.onnx")[0] == 0


def products(tmp_path: Path, size: int) -> tuple[Path, Path]:
    """Two models of 400 products, the first of which is wrong in the second."""
    body = " ".join(f"v{i + 1} = MatMul(v{i}, w)" for i in range(400))
    text = f"g (float[{size},{size}] v0) => (float[{size},{size}] v400) {{ {body} }}"
    weight = np.eye(size, dtype=np.float32)
    right = model(text, w=weight)
    wrong = model(text.replace("v1 = MatMul(v0, w)", "v1 = MatMul(v0, u)"), w=weight, u=weight * 2)
    return write(tmp_path / "a.onnx", right), write(tmp_path / "b.onnx", wrong)


def seconds_of(process: str) -> float:
    """Seconds of the processor that a process has used; 0 if it has ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


@pytest.mark.slow
def test_an_interrupt_prints_what_was_found(tmp_path: Path) -> None:
    """Also while a child runs. No file and no process is left."""
    one, two = products(tmp_path, 1024)
    report, scratch = tmp_path / "report.json", tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "onnxfix", "diagnose", str(one), str(two), "--format", "json"]
    child = subprocess.Popen(
        [*command, "--report", str(report)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    deadline = time.monotonic() + PATIENCE
    list_of_children, children = Path(f"/proc/{child.pid}/task/{child.pid}/children"), list[str]()
    while child.poll() is None and time.monotonic() < deadline:  # until the walk is some products further
        children = list_of_children.read_text(encoding="utf-8").split()
        if any(seconds_of(one) > 2 for one in children):
            break
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 128 + signal.SIGINT, err
    assert err.splitlines() == ["onnxfix: interrupted; this is what was found until then"]
    found = json.loads(out)
    assert (found["status"], found["interrupted"], found["complete"]) == ("differ", True, False)
    assert found["culprits"][0]["output"] == "v1"
    assert 0 < found["compared"] < 400
    assert json.loads(report.read_text()) == found
    assert not list(scratch.glob("onnxfix*"))
    assert children
    assert not any(Path(f"/proc/{one}").exists() for one in children)


def test_an_interrupt_before_anything_was_compared(
    right: Path, wrong: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "call", interrupted)
    code, found = document(right, wrong)
    assert (code, found["status"], found["interrupted"]) == (130, "unknown", True)
    assert "interrupted" in found["reason"]


def test_time_that_is_over_leaves_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "_MOST", 8)
    one, two = products(tmp_path, 8)
    asked = itertools.count()  # a clock that is over after some questions, on any machine
    monkeypatch.setattr(bench.Clock, "over", property(lambda self: next(asked) > 5))
    code, found = document(one, two, "--timeout", "60")
    assert (code, found["status"], found["complete"]) == (1, "differ", False)
    assert found["culprits"][0]["output"] == "v1"
    assert 0 < found["compared"] < 400


def test_a_model_that_is_changed_meanwhile(right: Path, wrong: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Bench.run

    def changing(self: Bench, *arguments: Any, **more: Any) -> Any:
        right.write_bytes(right.read_bytes() + b"\x00")
        return plain(self, *arguments, **more)

    monkeypatch.setattr(Bench, "run", changing)
    err = refused("diagnose", right, wrong)
    assert "right.onnx" in err


def test_memory_is_limited(tmp_path: Path) -> None:
    text = "g (float[1,n] x) => (float[n,n] y) { t = Transpose(x)  a = Mul(t, x)  y = Neg(a) }"
    path = write(tmp_path / "m.onnx", model(text))
    done = process(
        *("diagnose", path, path, "--input-shapes", "x:[1,12000]", "--memory-limit", 400, "--format", "json")
    )
    assert done.returncode == 3, done.stderr
    found = json.loads(done.stdout)
    assert (found["status"], found["cause"]) == ("unknown", "memory")
    assert "400 MiB" in found["reason"]


def test_a_thread_that_is_not_the_main_one_may_diagnose(right: Path, wrong: Path) -> None:
    import onnxfix

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(onnxfix.diagnose(right, wrong)))
    thread.start()
    thread.join(PATIENCE)
    assert [one.status for one in found] == ["differ"]


@REAL
@FACT
def test_the_rule_that_repairs_an_import_is_named() -> None:
    code, data = told("diagnose", FIXTURES / "misread" / "decoder.onnx", "--against", "trt-network")
    (culprit,) = data["culprits"]
    assert code == 1
    assert (culprit["node"], culprit["cause"], culprit["rule"], culprit["fix"]) == (
        "decode",
        "hazard",
        "OPS013",
        "exact",
    )
    assert culprit["advice"].startswith("onnxfix apply ")
    assert data["versions"]["tensorrt-rtx"].split(".")[:2] == RELEASE.split(".")[:2]


TANH = "g (float[4] x) => (float[4] y) { a = Exp(x)  t = Tanh(a)  y = Neg(t) }"
FAILS = "! grep -q Tanh {}"


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return models.write(tmp_path / "whole.onnx", TANH)


def test_a_reduction_as_text_and_as_json(whole: Path, tmp_path: Path) -> None:
    code, out, err = run("reduce", whole, "--check", FAILS, "-o", tmp_path / "a")
    assert (code, err) == (0, "")
    assert "1 node of 3 still fails (Tanh" in out
    assert str(tmp_path / "a") in out
    code, document = told("reduce", whole, "--check", FAILS, "-o", tmp_path / "b")
    assert code == document["exit_code"] == 0
    assert (document["status"], document["nodes_before"], document["nodes_after"]) == ("reduced", 3, 1)
    assert document["failure"]["kind"] == "exit"
    assert document["operators"] == ["Tanh"]
    assert document["complete"]


def test_the_folder_is_beside_the_model_by_default(whole: Path) -> None:
    assert run("reduce", whole, "--check", FAILS)[0] == 0
    assert (whole.parent / "whole.reduced" / "model.onnx").is_file()


def test_nothing_fails(whole: Path, tmp_path: Path) -> None:
    code, out, _ = run("reduce", whole, "--check", "true {}", "-o", tmp_path / "a")
    assert (code, "nothing fails" in out) == (1, True)
    code, out, _ = run("reduce", whole, "--check", "ort-cpu", "-o", tmp_path / "a", "--format", "json")
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
def test_mistakes(whole: Path, monkeypatch: pytest.MonkeyPatch, given: list[str]) -> None:
    monkeypatch.chdir(whole.parent)
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
