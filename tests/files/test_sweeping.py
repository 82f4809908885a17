"""What killed processes left is deleted by later runs, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import onnxfix
from onnxfix.files import marks, sweeping
from onnxfix.files.folders import Folder, temporary_name
from support import models
from support.patience import PATIENCE

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses /proc")

MODEL = "g (float[2] x) => (float[2] y) { a = Identity(x) y = Abs(a) }"


@pytest.fixture(scope="module")
def dead() -> int:
    """The id of a process that ended. Nobody else gets it while this one is not reaped; then it is only unlikely."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(PATIENCE)
    return process.pid


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    sweeping._sweep_scratch.cache_clear()
    yield folder
    sweeping._sweep_scratch.cache_clear()


def mark_of(pid: int, machine: str = "", started: str = "1") -> str:
    return f"{machine or marks._machine(os.getpid())}-{pid}-{started}"


def test_folders_of_dead_processes_are_deleted_and_no_others(scratch: Path, dead: int) -> None:
    ours = mark_of(dead)
    left = [scratch / f"onnxfix-{ours}-abcdefgh", scratch / f"onnxfix-{mark_of(os.getpid())}-reusedid"]
    kept = [
        scratch / f"onnxfix-{mark_of(dead, '0123456789')}-abcdefgh",  # another machine's, or of another boot
        scratch / f"onnxfix-{marks.mark()}-abcdefgh",  # of a process that runs: this one
        scratch / f"onnxfix-{mark_of(1, started=marks._started(1) or '')}-abcdefgh",
        scratch / "onnxfix-abcdefgh",
        scratch / f"onnxfix-{ours}-abcdefgh.bak",
        scratch / f"my-onnxfix-{ours}-abcdefgh",
        scratch / f"onnxfix-{ours}-sharedxx",
    ]
    for folder in (*left, *kept):
        folder.mkdir(0o700)
        (folder / "model.onnx").write_bytes(b"m")
    kept[-1].chmod(0o755)  # none that onnxfix makes
    outside = scratch.parent / "precious"
    outside.write_text("p")
    (left[0] / "link").symlink_to(outside)
    link = scratch / f"onnxfix-{ours}-linkxxxx"
    link.symlink_to(scratch.parent, target_is_directory=True)
    file = scratch / f"onnxfix-{ours}-filexxxx"
    file.write_text("f")
    assert sweeping.prefix() == f"onnxfix-{marks.mark()}-"
    assert {*scratch.iterdir()} == {*kept, link, file}
    assert outside.read_text() == "p"


def test_a_folder_in_which_others_may_rename_is_left_alone(scratch: Path, dead: int) -> None:
    (scratch / f"onnxfix-{mark_of(dead)}-abcdefgh").mkdir(0o700)
    scratch.chmod(0o777)
    sweeping.prefix()
    assert len([*scratch.iterdir()]) == 1
    sweeping._sweep_scratch.cache_clear()
    scratch.chmod(0o1777)  # as /tmp is
    sweeping.prefix()
    assert [*scratch.iterdir()] == []


@pytest.mark.parametrize("shared", [False, True])
def test_files_beside_the_result(tmp_path: Path, dead: int, shared: bool) -> None:
    home = tmp_path / "out"
    home.mkdir()
    ours = mark_of(dead)
    file, folder = home / f".m.onnx.{ours}.abcdefgh.tmp", home / f".m.onnx.{ours}.hgfedcba.tmp"
    file.write_bytes(b"m")
    folder.mkdir(0o700)
    (folder / "m.onnx.data").write_bytes(b"w")
    linked = home / f".n.onnx.{ours}.abcdefgh.tmp"
    linked.write_bytes(b"n")
    os.link(linked, home / "n.onnx")
    kept = {linked, home / "n.onnx", home / ".m.onnx.abcdefgh.tmp", home / temporary_name("m.onnx")}
    kept |= {home / f".m.onnx.{mark_of(dead, 'f' * 10)}.abcdefgh.tmp", home / f"m.onnx.{ours}.abcdefgh.tmp"}
    for one in kept:
        one.touch()
    home.chmod(0o777 if shared else 0o755)
    for _ in range(2):
        with Folder(home) as opened:
            sweeping.sweep(opened)
    assert {*home.iterdir()} == (kept | {file, folder} if shared else kept)


@pytest.mark.slow
def test_the_next_run_deletes_what_a_killed_one_left(scratch: Path, tmp_path: Path) -> None:
    model = models.write(tmp_path / "m.onnx", MODEL)
    program = (
        "import os, signal, sys, tempfile, onnxfix\n"
        "from onnxfix.pipeline import prove\n"
        "def climb(*arguments, **more):\n"
        "    from onnxfix.files.sweeping import prefix\n"
        "    tempfile.mkdtemp(prefix=prefix())\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "prove.climb = climb\n"
        f"onnxfix.apply({str(model)!r}, {str(tmp_path / 'out.onnx')!r})\n"
    )
    environment = {**os.environ, "TMPDIR": str(scratch)}
    killed = subprocess.run([sys.executable, "-c", program], env=environment, timeout=PATIENCE, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".out.onnx.")]
    assert [one.name for one in scratch.iterdir() if one.name.startswith("onnxfix-")]
    assert onnxfix.apply(model, tmp_path / "out.onnx", rungs="ort-cpu").ok
    assert {one.name for one in tmp_path.iterdir()} == {"m.onnx", "out.onnx", "tmp"}
    assert [one.name for one in scratch.iterdir() if one.name.startswith("onnxfix-")] == []
