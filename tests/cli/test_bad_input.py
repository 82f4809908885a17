"""Bad input gets one line and exit code 2, in bounded time and memory, and nothing is lost."""
# Long because: each way in which an input can be bad is a case of its own

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

from onnxfix.errors import ModelError
from onnxfix.model import Model
from support import models
from support.cli import errors, process, refused, run, streams
from support.cli_models import write
from support.models import model
from support.paths import FIXTURES, ROOT
from support.patience import PATIENCE

FIXABLE = "g (float[N] x) => (int64[N] y) { a = Cast<to=11>(x) b = Cast<to=7>(a) c = Cast<to=7>(b) y = Identity(c) }"


def of_bytes(data: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "m.onnx").write_bytes(data)
        return folder / "m.onnx"

    return make


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "m.onnx")
    return folder / "m.onnx"


def of_text(body: str) -> Callable[[Path], Path]:
    return of_bytes(model(f"g (float[N] x) => (float[N] y) {{ {body} }}", 18).SerializeToString())


def with_opsets(*imports: tuple[str, int]) -> bytes:
    proto = model(FIXABLE, 18)
    del proto.opset_import[:]
    proto.opset_import.extend(helper.make_opsetid(*one) for one in imports)
    return proto.SerializeToString()


dangling = of_text("y = Add(x, nowhere)")


def external(location: str, size: int | None = 16) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        home = folder / "home"
        home.mkdir()
        proto = model("g (float[4] x) => (float[4] y) { y = Add(x, w) }")
        models.external(proto.graph.initializer.add(name="w", data_type=1, dims=[4]), location)
        (home / "m.onnx").write_bytes(proto.SerializeToString())
        if size is not None:
            (folder / "w.bin").write_bytes(bytes(16))
            (home / "short.bin").write_bytes(bytes(size))
            (home / "link.bin").symlink_to(folder / "w.bin")
        return home / "m.onnx"

    return make


BAD: dict[str, Callable[[Path], Path]] = {
    "ill-typed attribute": of_text("y = Cast<to = [1, 2]>(x)"),
    "missing": lambda folder: folder / "missing.onnx",
    "empty": of_bytes(b""),
    "truncated": of_bytes((FIXTURES / "vit.legacy.op17.onnx").read_bytes()[:20_000]),
    "text": of_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
    "noise": of_bytes(np.random.default_rng(0).bytes(4096)),
    "no graph": of_bytes(ModelProto(ir_version=10).SerializeToString()),
    "directory": lambda folder: folder,
    "pipe": pipe,
    "unknown opset": of_bytes(with_opsets(("", 9999))),
    "two opsets": of_bytes(with_opsets(("", 18), ("", 14))),
    "no opset": of_bytes(with_opsets()),
    "cyclic": of_text("a = Add(x, b) b = Neg(a) y = Neg(b)"),
    "duplicate names": of_text("y = Neg(x) y = Abs(x)"),
    "dangling input": dangling,
    "external missing": external("gone.bin"),
    "external short": external("short.bin", 15),
    "external parent": external("../w.bin"),
    "external absolute": external("/etc/hostname"),
    "external link": external("link.bin"),
}


@pytest.mark.parametrize("command", ["check", "apply", "verify"])
@pytest.mark.parametrize("make", BAD.values(), ids=BAD)
def test_one_line_and_exit_2(tmp_path: Path, make: Callable[[Path], Path], command: str) -> None:
    path = make(tmp_path)
    files = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    start = time.process_time()
    code, out, err = run(command, path)
    assert time.process_time() - start < 10
    assert code == 2
    assert out == ""
    assert err.startswith("onnxfix: ")
    assert len(err.splitlines()) == 1, err
    assert "Traceback" not in err
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == files


def test_the_file_that_is_wrong_is_named_and_not_its_neighbor(tmp_path: Path) -> None:
    good = write(tmp_path / "good.onnx", FIXABLE)
    data = external("gone.bin", None)(tmp_path)
    gone = f"{data}: external data {data.parent / 'gone.bin'}: no such file (tensor 'w' keeps its data there)"
    html = tmp_path / "page.onnx"
    html.write_text("<html>")
    cut = dangling(tmp_path)
    for wrong, words in (
        (tmp_path / "no.onnx", f"{tmp_path / 'no.onnx'}: no such file"),
        (data, gone),
        (html, f"{html}: not an ONNX model (looks like an HTML page): the download failed, or needs a login"),
        (cut, f"{cut}: input 'nowhere' of node y (Add) is produced by no node, input or initializer"),
    ):
        assert run("verify", good, wrong, "--rungs", "contract") == (2, "", f"onnxfix: {words}\n")
    assert run("check", data) == (2, "", f"onnxfix: {gone}\n")
    inputs = tmp_path / "no.npz"
    assert run("apply", good, "--inputs", inputs) == (2, "", f"onnxfix: {inputs}: no such file of inputs\n")


IMPORTED_TWICE = [
    ([("", 7), ("", 14)], "(domain '') in different versions, 7, 14: readers differ"),
    ([("", 14), ("", 7)], "(domain '') in different versions, 14, 7: readers differ"),
    ([("ai.onnx", 7), ("ai.onnx", 14)], "(domain 'ai.onnx') in different versions, 7, 14: readers differ"),
    ([("ai.onnx", 7), ("", 14)], "(domain 'ai.onnx' and '') in different versions, 7, 14: readers differ"),
    ([("", 7), ("ai.onnx", 14)], "(domain '' and 'ai.onnx') in different versions, 7, 14: readers differ"),
    ([("", 7), ("", 9999)], "(domain '') in different versions, 7, 9999: readers differ"),
]


@pytest.mark.parametrize(("imports", "words"), IMPORTED_TWICE, ids=lambda one: str(one)[:40])
def test_an_operator_set_in_two_versions(tmp_path: Path, imports: list[tuple[str, int]], words: str) -> None:
    code, _, err = run("check", of_bytes(with_opsets(*imports))(tmp_path))
    assert (code, words in err) == (2, True), err
    assert err.endswith("; keep the one that the nodes are written for\n")
    assert "install" not in err


def test_a_version_that_is_imported_twice_is_one() -> None:
    proto = model(FIXABLE, 18)
    proto.opset_import.extend([helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx", 18)])
    proto.opset_import.extend([helper.make_opsetid("d", 3), helper.make_opsetid("d", 2)])
    onnx.checker.check_model(proto)
    assert Model(proto).main.imports() == {"": 18, "d": 2}  # the last entry counts, as for others


def test_a_function_with_two_versions() -> None:
    proto = model(
        """<ir_version: 9, opset_import: ["" : 18, "d" : 1]> g (float[N] x) => (float[N] y) { y = d.f(x) }
        <domain: "d", opset_import: ["" : 18]> f (u) => (w) { w = Neg(u) }"""
    )
    proto.functions[0].opset_import.append(helper.make_opsetid("", 17))
    with pytest.raises(ModelError, match=r"^function d::f imports .* in different versions, 18, 17: "):
        Model(proto)


def test_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.onnx", FIXABLE)

    really = os.open

    def refuse(name: Any, *more: Any, **named: Any) -> int:
        if Path(name) == path:  # root reads everything, so the mode alone shows nothing
            raise PermissionError(13, "Permission denied")
        return really(name, *more, **named)

    monkeypatch.setattr(os, "open", refuse)
    err = errors(2, "check", path)
    assert err == f"onnxfix: {path}: cannot be read: Permission denied\n"


def test_name_too_long_for_the_output(tmp_path: Path) -> None:
    path = write(tmp_path / ("m" * 248 + ".onnx"), FIXABLE)
    err = refused("apply", path)
    assert "too long" in err
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert run("apply", path, "-o", tmp_path / ("o" * 250 + ".onnx"))[0] == 0
    assert run("apply", path, "--in-place", "--no-verify")[0] == 0


def test_internal_error_is_one_line_and_exit_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback would exit with 1, which means that findings remain."""
    good, bad = write(tmp_path / "good.onnx", FIXABLE), write(tmp_path / "bad.onnx", FIXABLE)

    def broken(path: Path, *_: object) -> None:
        if path == bad:
            raise KeyError("x\ny")
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr("onnxfix.verbs.checking.check", broken)
    err = errors(2, "check", bad, good)
    first, second = err.splitlines()
    assert first.startswith(f"onnxfix: {bad}: internal error of onnxfix, please report it: KeyError")
    assert second == f"onnxfix: {good}: Input/output error"


def test_one_bad_model_does_not_stop_the_others(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "good.onnx", FIXABLE), dangling(tmp_path)
    out, err = streams(2, "apply", bad, good)
    assert "nowhere" in err
    assert (tmp_path / "good.fixed.onnx").is_file()
    assert "1 unreadable" in out


BOMB = """g () => (float[M] y) <int64[1] n = {274877906944}> {
    big = ConstantOfShape<value = float[1] {1.0}>(n) y = Identity(big) }"""
HANG = 'g (float[2, 2] x, float[2, 2] z) => (float[M] y) { y = Einsum<equation = "......ii,...jj->...ij">(x, z) }'


RANK = "g (float[4] x, int64[1099511627776] s) => (float[A] y) { y = Reshape(x, s) }"


def bounded() -> None:
    """Limits of this process and of each that it starts: it dies where it needs more."""
    resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))


@pytest.mark.parametrize("text", [BOMB, HANG, RANK], ids=["2^38 elements", "malformed Einsum", "2^40 axes"])
@pytest.mark.parametrize("command", ["check", pytest.param("apply", marks=pytest.mark.slow)])
def test_bounded_time_and_memory(tmp_path: Path, text: str, command: str) -> None:
    path = write(tmp_path / "m.onnx", text)
    result = process(command, path, preexec_fn=bounded)
    assert result.returncode in (0, 1, 2, 3)
    assert result.returncode >= 0, "killed"
    assert "Traceback" not in result.stderr
    assert (tmp_path / "m.onnx").is_file()


def test_output_folder_that_is_not_there(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", FIXABLE)
    err = refused("apply", path, "-o", tmp_path / "no" / "out.onnx")
    assert "no such directory" in err


@pytest.mark.parametrize("target", ["", "m.onnx"])
def test_output_that_would_lose_something(tmp_path: Path, target: str) -> None:
    path = write(tmp_path / "m.onnx", FIXABLE)
    before = path.read_bytes()
    err = errors(2, "apply", path, "-o", tmp_path / target)
    assert len(err.splitlines()) == 1
    assert path.read_bytes() == before


def test_disk_full(tmp_path: Path) -> None:
    """A limit on file size fails a write halfway, as a full disk does."""
    text = "g (float[2000] x) => (float[2000] y) { a = Cast<to=1>(x) y = Add(a, w) }"
    before = model(text, 18, w=np.ones(2000, np.float32)).SerializeToString()
    (tmp_path / "m.onnx").write_bytes(before)
    result = process(
        *("apply", "--in-place", "--no-verify", tmp_path / "m.onnx"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "cannot be written" in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    assert (tmp_path / "m.onnx").read_bytes() == before


def test_interrupted_while_it_loads() -> None:
    """Ctrl-C before there is a command: one line and 130, no traceback."""
    program = """
import sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "onnxfix.cli.commands":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
from onnxfix.__main__ import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "onnxfix: interrupted\n")


@pytest.mark.slow
def test_a_working_directory_that_was_deleted(tmp_path: Path) -> None:
    """Is named, and no model is said to be missing."""
    gone = tmp_path / "gone"
    gone.mkdir()
    model_path = tmp_path / "m.onnx"
    model_path.write_bytes(model("g (float[2] x) => (float[2] y) { y = Abs(x) }").SerializeToString())
    done = subprocess.run(
        ["bash", "-c", 'rmdir "$PWD" && exec "$0" -m onnxfix check "$1" m.onnx', sys.executable, model_path],
        capture_output=True, text=True, cwd=gone, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "working directory" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_terminal_ends_a_run_unless_it_is_ignored(tmp_path: Path, ignored: bool) -> None:
    """As nohup ignores it. A child prints when it has begun, and no further signal ends it."""
    program = (
        "import os, signal\n"
        "from onnxfix.runtime import interrupts\n"
        f"signal.signal(signal.SIGHUP, signal.{'SIG_IGN' if ignored else 'SIG_DFL'})\n"
        "interrupts.listen()\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "except KeyboardInterrupt:\n"
        "    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):\n"
        "        os.kill(os.getpid(), number)\n"
        "    interrupts.finish()\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    interrupts.leave()\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print(interrupts.exit_code())\n"
        "else:\n"
        "    print('goes on')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stdout, done.stderr) == ("goes on\n" if ignored else "129\n", "")
    assert done.returncode == 0


@pytest.mark.parametrize(
    "line",
    [
        "apply m.onnx -o -",
        "apply m.onnx --output-dir -",
        "apply m.onnx -o y.onnx --save-engine -",
        "check m.onnx --report json:-",
        "check m.onnx --write-baseline -",
        "view m.onnx --rule CST002 -o -",
        "reduce m.onnx --check trt-build -o -",
        "precision m.onnx --to fp16 --max-error 0.1 -o -",
        "lift m.onnx -o -",
        "layers m.onnx --save-tactics -",
    ],
)
def test_dash_for_standard_output(tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command writes a file whose name is a dash."""
    write(tmp_path / "m.onnx", FIXABLE)
    monkeypatch.chdir(tmp_path)
    err = refused(*line.split())
    assert "files are not written to standard output; name a file" in err
    assert [one.name for one in tmp_path.iterdir()] == ["m.onnx"]


WITHOUT_RUNTIME = """
import importlib.util as util
find = util.find_spec
util.find_spec = lambda name, *rest: None if name == "onnxruntime" else find(name, *rest)
from support.cli import refused, run
for line in (
    "diagnose m.onnx m.onnx",
    "diagnose m.onnx --against fp16",
    "precision m.onnx --to fp16 --max-error 0.1",
    "reduce m.onnx --check ort-cpu",
):
    code, out, err = run(*line.split())
    print(code, repr(out), err.count("\\n"), err.partition(" needs ")[2], end="")
"""


def test_without_onnx_runtime(tmp_path: Path) -> None:
    """A command that cannot do without ONNX Runtime says how to install it, before any work."""
    write(tmp_path / "m.onnx", FIXABLE)
    paths = os.pathsep.join([str(ROOT / "tests"), str(ROOT), str(ROOT / "rules")])
    command, environment = [sys.executable, "-c", WITHOUT_RUNTIME], {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    said = "2 '' 1 ONNX Runtime: onnxruntime is not installed: pip install \"onnxfix[cpu]\"\n"
    assert (done.stdout, done.stderr) == (said * 4, "")
    assert [one.name for one in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    """A signal in the middle of a verification leaves the model, no temporary file, one line, and the exit code
    of a program that the signal ended."""
    path = tmp_path / "m.onnx"
    weights = numpy_helper.from_array(np.ones((1024, 1024), np.float32), "w")
    body = " ".join(f"v{i + 1} = MatMul(v{i}, w)" for i in range(300))
    proto = model(f"g (float[1024, 1024] v0) => (int64[1024, 1024] y) {{ {body} "
                               "a = Cast<to=7>(v300) y = Cast<to=7>(a) }", 18)  # fmt: skip
    proto.graph.initializer.append(weights)
    path.write_bytes(proto.SerializeToString())
    before = path.read_bytes()
    process = subprocess.Popen(
        [sys.executable, "-m", "onnxfix", "apply", "--in-place", "--require", "ort-cpu", str(path)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    deadline = time.monotonic() + PATIENCE
    while len(list(tmp_path.iterdir())) == 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number, err
    assert err.splitlines() == ["onnxfix: interrupted; nothing half-written was left behind"]
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    assert path.read_bytes() == before
