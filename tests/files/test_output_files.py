"""What is written never replaces anything but the file that was named: no pipe, no link, no other file of the run.

Pipes stand for all special files: a test that went wrong on a device would take it away from the whole machine.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import onnxfix
from onnxfix import TrtOptions, UsageError
from onnxfix.errors import OnnxfixError
from onnxfix.files import atomic, folders
from onnxfix.files.atomic import temporary_beside
from support.cli import output, refused, run, shell
from support.cli_models import CLEAN, FIXABLE, external_model, write
from support.folders import snapshot

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
WRITTEN = ["--save-engine", "--timing-cache", "--report"]


class Pipe:
    """A named pipe with a reader, so that nobody waits for one."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self.handle = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def read(self) -> bytes:
        return os.read(self.handle, 1 << 16)

    @property
    def stands(self) -> bool:
        return stat.S_ISFIFO(os.lstat(self.path).st_mode)


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    (tmp_path / "p").mkdir()
    made = Pipe(tmp_path / "p" / "pipe")
    yield made
    os.close(made.handle)


@pytest.fixture
def renames_stay_in_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As between file systems, where no file can be renamed to another folder, but to and from those in it."""
    real = os.replace

    def rename(old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        source, target = (Path(os.readlink(f"/proc/self/fd/{fd}")) for fd in (src_dir_fd, dst_dir_fd))
        assert target in (source, source.parent)
        real(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "replace", rename)


# ------------------------------------------------------------------------------------------------------ special files


@pytest.mark.parametrize("option", ["-o", "--save-engine", "--timing-cache"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_is_not_replaced(tmp_path: Path, pipe: Pipe, option: str, linked: bool) -> None:
    path, place = write(tmp_path / "m.onnx", FIXABLE), pipe.path
    if linked:
        place = tmp_path / "link"
        place.symlink_to(pipe.path)
    told = refused("apply", path, option, place)
    assert f"{place}: is a named pipe" in told
    assert pipe.stands
    assert place.is_symlink() == linked
    assert [p.name for p in pipe.path.parent.iterdir()] == ["pipe"]
    assert not (tmp_path / "m.fixed.onnx").exists()


def test_python_does_not_replace_a_pipe(tmp_path: Path, pipe: Pipe) -> None:
    with pytest.raises(OnnxfixError, match="named pipe"):
        onnxfix.apply(write(tmp_path / "m.onnx", FIXABLE), pipe.path, verify=False)
    with temporary_beside(tmp_path / "late") as file:
        pipe.path.rename(tmp_path / "late")
        with pytest.raises(OnnxfixError, match="named pipe"):
            atomic.install([file])
    (tmp_path / "late").rename(pipe.path)
    assert pipe.stands


def test_a_report_goes_into_a_pipe(tmp_path: Path, pipe: Pipe) -> None:
    path = write(tmp_path / "m.onnx", FIXABLE)
    code, out, err = run("check", path, "--report", pipe.path, "--format", "json")
    assert (code, err) == (0, "")
    assert pipe.stands
    assert json.loads(pipe.read()) == json.loads(out)


def test_a_pipe_whose_reader_went_away_is_told(
    tmp_path: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(os, "write", gone)
    with pytest.raises(OnnxfixError, match="pipe: cannot be written: Broken pipe"):
        folders.pour(b"data", pipe.path)


def test_a_report_does_not_go_into_a_socket(tmp_path: Path) -> None:
    import socket

    path, place = write(tmp_path / "m.onnx", FIXABLE), tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
        assert "no regular file" in refused("check", path, "--report", place)
    assert place.is_socket()


@pytest.mark.parametrize("where", ["| cat", "> log; cat log"])
def test_a_report_to_standard_output_is_added_to_it(tmp_path: Path, where: str) -> None:
    write(tmp_path / "m.onnx", FIXABLE)
    result = shell(f"$onnxfix check -q m.onnx --report /dev/fd/1 {where}", tmp_path)
    first, _, rest = result.stdout.decode().partition("\n")
    assert first.startswith("m.onnx"), result
    assert json.loads(rest)["reports"][0]["command"] == "check"


# --------------------------------------------------------------------------------------------------------------- links


@pytest.mark.usefixtures("renames_stay_in_a_folder")
@pytest.mark.parametrize("there", [False, True])
def test_links_are_written_through(tmp_path: Path, there: bool) -> None:
    """The model and the report; the link may stand in another folder, and what it names need not be there yet."""
    path = write(tmp_path / "m.onnx", FIXABLE)
    (tmp_path / "real").mkdir()
    (tmp_path / "links").mkdir()
    links = {}
    for name in ("out.onnx", "r.json"):
        if there:
            (tmp_path / "real" / name).write_bytes(b"old")
        links[name] = tmp_path / "links" / name
        links[name].symlink_to(Path("..") / "real" / name)
    code, _, err = run("apply", path, "-o", links["out.onnx"], "--report", links["r.json"])
    assert (code, err) == (0, "")
    assert all(link.is_symlink() for link in links.values())
    assert [n.op_type for n in onnx.load(tmp_path / "real/out.onnx").graph.node].count("Cast") < 3
    assert json.loads((tmp_path / "real/r.json").read_text())["reports"]
    assert sorted(p.name for p in (tmp_path / "real").iterdir()) == ["out.onnx", "r.json"]
    assert sorted(p.name for p in (tmp_path / "links").iterdir()) == ["out.onnx", "r.json"]


@pytest.mark.parametrize("option", ["-o", "--report", "--save-engine", "--timing-cache"])
def test_a_link_in_a_circle_is_refused(tmp_path: Path, option: str) -> None:
    path, loop = write(tmp_path / "m.onnx", FIXABLE), tmp_path / "loop.json"
    loop.symlink_to(loop)
    code, _, err = run("apply", path, option, loop)
    assert (code, len(err.splitlines())) == (2, 1), err
    assert "leads in a circle" in err
    assert loop.is_symlink()


def test_a_model_with_external_data_is_not_written_through_a_link(tmp_path: Path) -> None:
    """Whoever reads it by the link would look for the data beside the link."""
    path = external_model(tmp_path / "a")
    (tmp_path / "real.onnx").write_bytes(b"old")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/link.onnx").symlink_to(tmp_path / "real.onnx")
    assert "symbolic link" in refused("apply", path, "-o", tmp_path / "b/link.onnx")
    assert (tmp_path / "real.onnx").read_bytes() == b"old"


def test_two_models_are_not_written_through_links_to_one_file(tmp_path: Path) -> None:
    models = [write(tmp_path / name, CLEAN) for name in ("a.onnx", "b.onnx")]
    (tmp_path / "out").mkdir()
    (tmp_path / "out/b.onnx").symlink_to("a.onnx")
    assert "two models" in refused("apply", *models, "--output-dir", tmp_path / "out")


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_external_data_is_not_copied_over_pipes_and_links(tmp_path: Path, kind: str) -> None:
    path, moved = external_model(tmp_path / "a"), tmp_path / "b/m.onnx.data"
    moved.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(moved)
    else:
        moved.symlink_to("nowhere")
    before = os.lstat(moved)
    assert "is in the way of the weights" in refused("apply", path, "--output-dir", tmp_path / "b")
    assert os.path.samestat(os.lstat(moved), before)
    assert [p.name for p in moved.parent.iterdir()] == ["m.onnx.data"]


# ------------------------------------------------------------------------------------------------------- external data


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("check", "--report"),
        ("apply", "-o"),
        *itertools.product(["apply", "verify", "verify second", "apply bad"], WRITTEN),
    ],
)
@pytest.mark.parametrize("linked", [False, True])
def test_external_data_is_not_replaced(tmp_path: Path, option: str, command: str, linked: bool) -> None:
    path = external_model(tmp_path / "a")
    weights = tmp_path / "a/weights/w.bin"
    if linked:
        (tmp_path / "link").symlink_to(weights)
    before = snapshot(tmp_path)
    verb, *how = command.split()
    arguments: list[object] = [verb, path]
    if how == ["second"]:
        arguments = [verb, write(tmp_path / "m.onnx", CLEAN), path]
        before = snapshot(tmp_path)
    elif how == ["bad"]:  # a run that fails reports too
        arguments += ["--input-shapes", "nope:1"]
    told = refused(*arguments, option, tmp_path / "link" if linked else weights)
    expected = "is a symbolic link" if linked and option == "-o" else f"is also external data of {path}"
    assert expected in told
    assert snapshot(tmp_path) == before


def test_python_is_kept_from_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = external_model(tmp_path / "a")
    weights = tmp_path / "a/weights/w.bin"
    before = snapshot(tmp_path)
    monkeypatch.setattr(
        "onnxfix.proof.asking.require_tensorrt", lambda asked: SimpleNamespace(close=lambda: None)
    )
    cache, engine = TrtOptions(timing_cache=str(weights)), TrtOptions(save_engine=str(weights))
    other = onnx.load(path)
    calls: list[Any] = [lambda: onnxfix.check(path, trt=cache)]
    for asked in (cache, engine):
        calls += [
            lambda asked=asked: onnxfix.apply(path, trt=asked),
            lambda asked=asked: onnxfix.verify(path, trt=asked),
            lambda asked=asked: onnxfix.verify(other, path, trt=asked),
        ]
    for call in calls:
        with pytest.raises(UsageError, match="is also external data"):
            call()
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("option", WRITTEN)
def test_external_data_that_moves_with_the_model_is_not_replaced(
    tmp_path: Path, option: str, there: bool
) -> None:
    path = external_model(tmp_path / "a")
    moved = tmp_path / "b/m.onnx.data"
    moved.parent.mkdir(parents=True)
    if there:
        moved.write_bytes((tmp_path / "a/weights/w.bin").read_bytes())
    report = option == "--report"
    code, _, err = run("apply", path, "--output-dir", tmp_path / "b", "--no-verify" if report else "-v",
                       option, f"json:{moved}" if report else moved)  # fmt: skip
    assert (code, len(err.splitlines())) == (2, 1), err
    assert option in err
    assert "is also the output's data" in err
    if there:
        assert moved.read_bytes() == (tmp_path / "a/weights/w.bin").read_bytes()


@pytest.mark.parametrize("option", ["--plugins", "--graphsurgeon"])
def test_code_that_a_run_loads_is_not_replaced(tmp_path: Path, option: str) -> None:
    path, code = write(tmp_path / "m.onnx", FIXABLE), tmp_path / "code.py"
    code.write_text("def fix(graph):\n    pass\n")
    told = refused("apply", path, option, code, "--report", f"json:{code}")
    assert f"--report {code}: is also a " in told
    assert code.read_text().startswith("def fix")


def test_a_report_is_replaced_by_the_next_one(tmp_path: Path) -> None:
    """What is forbidden above is not forbidden to the usual case."""
    path, report = external_model(tmp_path / "a"), tmp_path / "a/r.json"
    for _ in range(2):
        assert run("apply", path, "--report", report)[0] == 0
        assert json.loads(report.read_text())["reports"]


# ------------------------------------------------------------------------------------------ the files of one command


@pytest.mark.parametrize(
    ("first", "second"),
    [(a, b) for number, a in enumerate(WRITTEN) for b in [*WRITTEN[number + 1 :], "-o", "--inputs"]],
)
@pytest.mark.parametrize("linked", [False, True])
def test_two_options_do_not_name_one_file(tmp_path: Path, first: str, second: str, linked: bool) -> None:
    path, place, other = write(tmp_path / "m.onnx", FIXABLE), tmp_path / "f.npz", tmp_path / "f.npz"
    if second == "--inputs":
        np.savez(place, x=np.ones(4, np.float32))
    if linked:
        other = tmp_path / "link"
        other.symlink_to("f.npz")
    before = snapshot(tmp_path)
    told = refused("apply", path, first, place, second, other)
    assert "is also" in told
    assert first in told
    assert snapshot(tmp_path) == before
    if second != "-o":
        refused("verify", path, first, place, second, other)
        assert snapshot(tmp_path) == before


def test_the_output_is_not_the_inputs(tmp_path: Path) -> None:
    path, data = write(tmp_path / "m.onnx", FIXABLE), tmp_path / "in.npz"
    np.savez(data, x=np.ones(4, np.float32))
    before = snapshot(tmp_path)
    assert "is also what --inputs names" in refused("apply", path, "--inputs", data, "-o", data)
    with pytest.raises(UsageError, match="is also what --inputs names"):
        onnxfix.apply(path, data, inputs=data)
    for call in (onnxfix.apply, onnxfix.verify):
        with pytest.raises(UsageError, match=r"--save-engine .*is also what --inputs names"):
            call(path, inputs=data, trt=TrtOptions(save_engine=str(data)))
        with pytest.raises(UsageError, match=r"--timing-cache .*is also --save-engine"):
            call(path, trt=TrtOptions(save_engine="x", timing_cache="x"))
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["x.npy", "0/x.npy", "feeds.json"])
def test_files_in_the_folder_of_inputs_are_inputs(tmp_path: Path, name: str) -> None:
    path, data = write(tmp_path / "m.onnx", FIXABLE), tmp_path / "in" / name
    data.parent.mkdir(parents=True)
    data.write_bytes(b"data")
    assert "is also read for --inputs" in refused(
        "verify", path, "--inputs", tmp_path / "in", "--report", data
    )
    assert data.read_bytes() == b"data"


# --------------------------------------------------------------------------------------- options that would do nothing


@pytest.mark.parametrize(
    ("option", "value", "name"),
    [
        ("--minShapes", "x:4", "--trt-min-shapes"),
        ("--trt-package", "tensorrt", "--trt-package"),
        ("--timingCacheFile", "cache", "--timing-cache"),
        ("--plugins", "plugin.so", "--plugins"),
        ("--inputs", "x.npz", "--inputs"),
        ("--shapes", "x:4", "--input-shapes"),
    ],
)
def test_check_takes_options_about_tensorrt_with_trt_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, value: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    told = refused("check", write(tmp_path / "m.onnx", CLEAN), option, value)
    assert told == f"onnxfix: {name}: has no effect without --trt\n"


def test_max_batch_needs_a_sweep_and_is_a_dimension(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", CLEAN)
    assert "--batch-sweep" in refused("verify", path, "--max-batch", 5)
    for size in (1, -2, 2**31):
        with pytest.raises(UsageError, match=f"not {size}"):
            onnxfix.verify(path, batch_sweep=size)


def test_a_tensorrt_that_is_not_there_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [write(tmp_path / name, CLEAN) for name in ("a.onnx", "b.onnx")]
    monkeypatch.setattr("onnxfix.tensorrt.package.importlib.util.find_spec", lambda name: None)
    assert "neither tensorrt nor tensorrt-rtx is installed" in refused("check", "--trt", *models)
    out = output(2, "check", "--trt", *models, "--format", "json")
    (error,) = json.loads(out)["errors"]
    assert error["path"] == ""
