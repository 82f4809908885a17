"""What a run leaves on the disk: other models' weights as they were, no mode wider than the source's, nothing unneeded,
and nothing under its final name without what belongs to it."""
# Long because: the promises share their models, and a model in one file is one of every kind.

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import onnxfix
from onnxfix import TrtOptions, UsageError
from onnxfix.errors import OnnxfixError
from onnxfix.files import loading, tensors, wire
from onnxfix.files.atomic import Temporary
from onnxfix.proof.checks import builder as saved_engine
from onnxfix.tensorrt.records import TrtBuild
from onnxfix.verbs import layering
from support import models, ort
from support.cli import refused, run
from support.cli_models import CLEAN, FIXABLE, external_model, write
from support.folders import names, pass_unseen, snapshot
from support.models import external
from test_hostile_folder import watched
from test_split_weights import LIMIT, SHORT, assert_split, large_model, written

X = np.linspace(-1, 1, 256, dtype=np.float32)
POSIX = pytest.mark.skipif(os.name != "posix", reason="modes, signals and fork are POSIX's")
TEMPORARY = re.compile(r"\.out\.onnx\.[a-z0-9_]{8}\.tmp(/.*)?")


@pytest.fixture
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PROTOBUF_LIMIT", LIMIT)
    monkeypatch.setattr(loading, "SMALL", 0)


@pytest.fixture
def unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rung but one that passes at once, where there are dozens of runs."""
    pass_unseen(monkeypatch)


def model_with_data(path: Path, location: str) -> Path:
    """A Cast to remove, and a weight of 256 floats from byte 4096 on of a file, which may be the model's own: there is
    text at that place."""
    model = models.model("g (float[256] x) => (float[256] y) { a = Cast<to=1>(x)  y = Mul(a, w) }", 18)
    external(model.graph.initializer.add(name="w", data_type=1, dims=[256]), location, 4096, 1024)
    model.doc_string = "?" * 8192
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def outputs(path: Path) -> np.ndarray[Any, Any]:
    return np.asarray(ort.run(path, {"x": X})[0])


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ------------------------------------------------------------------------------------- models that are weights as well


def test_a_model_that_holds_its_own_external_data_is_not_replaced(tmp_path: Path) -> None:
    """The new file would have other bytes at the place of the weights."""
    path = model_with_data(tmp_path / "m.onnx", "m.onnx")
    other = write(tmp_path / "other.onnx", FIXABLE)
    wanted, before = outputs(path), snapshot(tmp_path)
    words = f"{path}: is also external data of {path}, which --in-place would change"
    assert words in refused("apply", path, "--in-place")
    for jobs in (1, 2):
        assert words in refused("apply", other, path, "--in-place", "--jobs", jobs)
    with pytest.raises(UsageError, match="external data"):
        onnxfix.apply(path, in_place=True)
    assert snapshot(tmp_path) == before
    (tmp_path / "out").mkdir()
    assert run("apply", path, "--output-dir", tmp_path / "out")[0] == 0
    assert np.array_equal(outputs(tmp_path / "out/m.onnx"), wanted)
    assert snapshot(tmp_path)["m.onnx"] == before["m.onnx"]


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("first", [True, False])
def test_a_model_that_holds_another_ones_external_data_is_not_replaced(
    tmp_path: Path, jobs: int, first: bool
) -> None:
    holder = model_with_data(tmp_path / "a.onnx", "w.bin")
    (tmp_path / "w.bin").write_bytes(bytes(4096) + X.tobytes())
    reader = model_with_data(tmp_path / "b.onnx", "a.onnx")
    before = snapshot(tmp_path)
    models = (holder, reader) if first else (reader, holder)
    told = refused("apply", *models, "--in-place", "--jobs", jobs)
    assert f"{holder}: is also external data of {reader}" in told
    assert snapshot(tmp_path) == before
    assert run("apply", holder, reader, "--no-verify")[0] == 0  # to other names


@pytest.mark.parametrize("jobs", [1, 2])
def test_no_result_goes_where_the_data_of_another_one_goes(tmp_path: Path, jobs: int) -> None:
    """The one that comes second would replace the other, or fail half-way through the list."""
    (tmp_path / "y").mkdir()
    (tmp_path / "y/w.bin").write_bytes(bytes(4096) + X.tobytes())
    models = write_in(tmp_path / "x/b.onnx.data"), model_with_data(tmp_path / "y/b.onnx", "w.bin")
    told = refused("apply", *models, "--output-dir", tmp_path / "out", "--jobs", jobs)
    assert f"the output's data {tmp_path / 'out/b.onnx.data'}: is also the output" in told
    assert snapshot(tmp_path / "out") == {}


def write_in(path: Path) -> Path:
    path.parent.mkdir()
    return write(path, FIXABLE)


def test_no_result_goes_where_another_ones_external_data_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.fixed.onnx").write_bytes(bytes(4096) + X.tobytes())
    models = write(tmp_path / "a.onnx", FIXABLE), model_with_data(tmp_path / "b.onnx", "a.fixed.onnx")
    before = snapshot(tmp_path)
    assert "is also external data" in refused("apply", *models)
    assert snapshot(tmp_path) == before


def test_models_that_share_their_external_data_are_fixed_in_place(tmp_path: Path) -> None:
    """What is forbidden above is not forbidden to the usual case."""
    (tmp_path / "w.bin").write_bytes(bytes(4096) + X.tobytes())
    models = [model_with_data(tmp_path / name, "w.bin") for name in ("a.onnx", "b.onnx")]
    models.append(write(tmp_path / "broken.onnx", CLEAN))
    models[-1].write_bytes(b"location")
    wanted = outputs(models[0])
    code, _, err = run("apply", *models, "--in-place")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "broken.onnx" in err
    for path in models[:2]:
        assert not [node for node in onnx.load(path).graph.node if node.op_type == "Cast"]
        assert np.array_equal(outputs(path), wanted)


# ------------------------------------------------------------------------------------------------------------- modes


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@POSIX
@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(
    ("model", "data", "model_out", "data_out"),
    [
        (0o600, 0o600, 0o600, 0o600),
        (0o644, 0o644, 0o644, 0o644),
        (0o666, 0o777, 0o644, 0o644),
        (0o640, 0o644, 0o640, 0o640),
        (0o644, 0o600, 0o600, 0o600),  # folded into the model, weights are as secret as before
    ],
)
def test_nobody_may_read_more_than_before(
    tmp_path: Path, model: int, data: int, model_out: int, data_out: int
) -> None:
    path, out = external_model(tmp_path / "a"), tmp_path / "b"
    out.mkdir()
    path.chmod(model)
    (tmp_path / "a/weights/w.bin").chmod(data)
    assert onnxfix.apply(path, out / "m.onnx", verify=False).output
    assert (mode(out / "m.onnx"), mode(out / "m.onnx.data")) == (model_out, data_out)


@POSIX
@pytest.mark.usefixtures("umask")
def test_nor_of_a_model_that_is_unchanged(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", CLEAN)
    path.chmod(0o600)
    assert onnxfix.apply(path, tmp_path / "out.onnx", verify=False).output
    assert mode(tmp_path / "out.onnx") == 0o600
    os.umask(0o077)
    path.chmod(0o644)
    assert onnxfix.apply(path, tmp_path / "out2.onnx", verify=False).output
    assert mode(tmp_path / "out2.onnx") == 0o600


@POSIX
@pytest.mark.usefixtures("umask")
def test_a_file_that_is_there_keeps_its_mode_and_new_ones_beside_it_are_as_secret_as_their_source(
    tmp_path: Path,
) -> None:
    path, out = external_model(tmp_path / "a"), tmp_path / "b"
    out.mkdir()
    path.chmod(0o600)
    (tmp_path / "a/weights/w.bin").chmod(0o600)
    (out / "m.onnx").write_bytes(b"old")
    (out / "m.onnx").chmod(0o664)
    assert onnxfix.apply(path, out / "m.onnx", verify=False).output
    assert (mode(out / "m.onnx"), mode(out / "m.onnx.data")) == (0o664, 0o600)


@POSIX
@pytest.mark.usefixtures("umask", "low_limit", "unproven")
@pytest.mark.parametrize("there", [False, True])
def test_nor_of_weights_that_are_moved_out_of_the_model(tmp_path: Path, there: bool) -> None:
    path, out = written(tmp_path), tmp_path / "out.onnx"
    path.chmod(0o640)
    if there:
        out.write_bytes(b"old")
        out.chmod(0o666)
    assert onnxfix.apply(path, out).output
    assert (mode(out), mode(tmp_path / "out.onnx.data")) == (0o666 if there else 0o640, 0o640)


@POSIX
@pytest.mark.usefixtures("umask")
def test_engines_and_lifted_models_hold_the_weights_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(model: Path, profiles: Any, *, save_engine: str) -> TrtBuild:
        Path(save_engine).write_bytes(b"engine")
        return TrtBuild("accepted")

    fake = SimpleNamespace(plain=lambda: SimpleNamespace(build=build, close=lambda: None))
    monkeypatch.setattr(saved_engine, "builder", lambda options: fake)
    path = write(tmp_path / "m.onnx", CLEAN)
    path.chmod(0o600)
    asked = TrtOptions(save_engine=str(tmp_path / "engine"))
    loaded = loading.load(path)
    saved_engine.save_engine(path, asked, TrtBuild("accepted"), lambda: None, loaded.mode)
    layering._install(path, tmp_path / "lifted.onnx", loaded.mode)
    assert (mode(tmp_path / "engine"), mode(tmp_path / "lifted.onnx")) == (0o600, 0o600)


# ---------------------------------------------------------------------------------------------------- what is needed


def folded(folder: Path) -> Path:
    """A model of which fixes fold what is in one file, and leave what is in another."""
    model = models.model(
        "g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}, float[4] v = {1, 2, 3, 4}> "
        "{ c = Add(w, w) d = Mul(x, c) y = Add(d, v) }",
        18,
    )
    (folder / "sub").mkdir(parents=True)
    for tensor, name in zip(model.graph.initializer, ("sub/w.bin", "v.bin"), strict=True):
        (folder / name).write_bytes(np.arange(4, dtype=np.float32).tobytes())
        tensor.ClearField("float_data")
        external(tensor, name, 0, 16)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


def test_only_data_that_the_fixed_model_refers_to_is_copied(tmp_path: Path) -> None:
    path, out = folded(tmp_path / "a"), tmp_path / "b"
    out.mkdir()
    assert onnxfix.apply(path, out / "m.onnx").output
    assert tensors.external_files(onnx.load(out / "m.onnx", load_external_data=False)) == ["m.onnx.data"]
    assert snapshot(out)["m.onnx.data"] == snapshot(tmp_path / "a")["v.bin"]
    assert sorted(snapshot(out)) == ["m.onnx", "m.onnx.data"]
    assert sorted(snapshot(tmp_path / "a")) == ["m.onnx", "sub/w.bin", "v.bin"]
    onnx.checker.check_model(out / "m.onnx")


def test_data_of_several_names_is_not_kept(tmp_path: Path) -> None:
    """onnx reads no such file, and a hard link is a common backup."""
    path, out = folded(tmp_path / "a"), tmp_path / "b"
    out.mkdir()
    assert onnxfix.apply(path, out / "m.onnx", verify=False).output
    os.link(out / "m.onnx.data", tmp_path / "backup")
    with pytest.raises(OnnxfixError, match=r"m\.onnx\.data: is in the way"):
        onnxfix.apply(path, out / "m.onnx", verify=False)


@pytest.mark.parametrize("name", ["..m.onnx", "a:m.onnx", "a\\m.onnx"])
def test_names_whose_data_onnx_does_not_read_are_refused(tmp_path: Path, name: str) -> None:
    path = folded(tmp_path / "a")
    with pytest.raises(UsageError, match="onnx reads no data file"):
        onnxfix.apply(path, tmp_path / name)
    assert onnxfix.apply(
        write(tmp_path / "small.onnx", FIXABLE), tmp_path / name
    ).output  # without a data file


@POSIX
def test_a_process_that_is_killed_leaves_the_old_pair_under_names_that_nobody_deletes(tmp_path: Path) -> None:
    path, out = folded(tmp_path / "a"), tmp_path / "b"
    out.mkdir()
    assert onnxfix.apply(path, out / "m.onnx", verify=False).output
    before = snapshot(out)
    (tmp_path / "a/v.bin").write_bytes(np.full(4, 7, np.float32).tobytes())
    child = os.fork()
    if child == 0:
        try:
            Temporary.place = lambda _: os._exit(9)
            onnxfix.apply(path, out / "m.onnx", verify=False)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert onnxfix.apply(path, out / "m.onnx", verify=False).output
    after = snapshot(out)
    assert {name: after[f"{name}.bak"] for name in before} == before


def test_data_is_compared_until_the_end(tmp_path: Path) -> None:
    """Data that was found is what was proven, or nothing is written."""
    path, out = folded(tmp_path / "a"), tmp_path / "b"
    out.mkdir()
    assert onnxfix.apply(path, out / "m.onnx", verify=False).output
    before = snapshot(out)["m.onnx"]

    def say(words: str) -> None:
        if words == "writing":
            (out / "m.onnx.data").write_bytes(bytes(16))

    with pytest.raises(OnnxfixError, match=r"m\.onnx\.data: was changed or replaced"):
        onnxfix.apply(path, out / "m.onnx", verify=False, progress=say)
    assert snapshot(out)["m.onnx"] == before


# ------------------------------------------------------------------------------------------ ended before its time


@pytest.mark.usefixtures("low_limit")
def test_a_split_model_is_proven_as_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the names that it will have, in a folder of its own: byte for byte what the rungs have read."""
    path, seen = written(tmp_path), dict[str, bytes]()

    def meanwhile(original: Path, fixed: Path) -> None:
        assert names(tmp_path) == sorted(
            ["m.onnx", "out.onnx", "out.onnx.data", fixed.parent.name, *ours(tmp_path)]
        )
        assert_split(fixed, path)
        seen.update(snapshot(fixed.parent))

    pass_unseen(monkeypatch, meanwhile)
    assert onnxfix.apply(path, tmp_path / "out.onnx").output
    assert {name: data for name, data in snapshot(tmp_path).items() if name != "m.onnx"} == seen
    assert sorted(seen) == ["out.onnx", "out.onnx.data"]


def ours(folder: Path) -> list[str]:
    return [item.name for item in folder.iterdir() if TEMPORARY.fullmatch(item.name) and item.is_file()]


@pytest.mark.usefixtures("low_limit", "unproven")
def test_external_data_that_has_the_weights_name(tmp_path: Path) -> None:
    model = large_model()
    (tmp_path / "out.onnx.data").write_bytes(SHORT.tobytes())
    external(model.graph.initializer[-1], "out.onnx.data", 0, SHORT.nbytes)
    path = written(tmp_path, model)
    before = snapshot(tmp_path)
    with pytest.raises(OnnxfixError, match=r"out\.onnx\.data: is also external data of .*m\.onnx"):
        onnxfix.apply(path, tmp_path / "out.onnx")
    assert snapshot(tmp_path) == before


def split(folder: Path) -> Any:
    return onnxfix.apply(folder / "m.onnx", folder / "out.onnx")


def at_every_step(
    folder: Path, end: Callable[[], None], run: Callable[[Path], Any] = split
) -> Iterator[tuple[Path, bool]]:
    """Split a model in a process of its own that comes to its end before its first step, its second, and so on; yields
    the folder, and whether the run came through."""
    (folder / "warm").mkdir()
    run(written(folder / "warm").parent)  # no step is an import
    for step in range(200):
        there, scratch = folder / str(step), folder / f"scratch{step}"
        there.mkdir()
        scratch.mkdir()
        written(there)
        at = [0]

        def spy(at: list[int] = at, step: int = step) -> None:
            at[0] += 1
            if at[0] == step + 1:
                end()

        child = os.fork()
        if child == 0:
            code = 1
            try:
                # In one that others use, what these leave is deleted, and the number of steps would vary.
                tempfile.tempdir = str(scratch)
                signal.signal(signal.SIGTERM, signal.default_int_handler)
                gc.disable()  # the files that garbage of other tests removes are no steps
                with watched(spy), contextlib.suppress(KeyboardInterrupt):
                    run(there)
                    code = 0 if at[0] <= step else 1
            finally:
                os._exit(code)
        done = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        yield there, done
        if done:
            return
    pytest.fail("the run never ended")


@POSIX
@pytest.mark.usefixtures("low_limit", "unproven")
def test_a_run_that_is_killed_leaves_no_weights_without_their_model(tmp_path: Path) -> None:
    """But between the two renames, which nothing comes between."""
    steps = alone = 0
    for there, _ in at_every_step(tmp_path, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        steps += 1
        left = {name for name in snapshot(there) if not TEMPORARY.fullmatch(name)}
        if left == {"m.onnx", "out.onnx.data"}:
            alone += 1
        elif left != {"m.onnx"}:
            assert left == {"m.onnx", "out.onnx", "out.onnx.data"}
            assert_split(there / "out.onnx", there / "m.onnx")
    assert steps > 10
    assert alone <= 1


@POSIX
@pytest.mark.usefixtures("unproven")
def test_a_run_in_place_that_is_killed_leaves_the_old_or_the_new_model(tmp_path: Path) -> None:
    def in_place(folder: Path) -> Any:
        return onnxfix.apply(folder / "m.onnx", in_place=True)

    seen = []
    for there, _ in at_every_step(tmp_path, lambda: os.kill(os.getpid(), signal.SIGKILL), in_place):
        seen.append((there / "m.onnx").read_bytes())
    assert len(seen) > 6
    assert {seen[0], seen[-1]} == {*seen}
    assert (seen[0], len({*seen})) == (large_model().SerializeToString(), 2)


@POSIX
@pytest.mark.usefixtures("low_limit", "unproven")
def test_a_run_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    steps = 0
    for there, _ in at_every_step(tmp_path, lambda: os.kill(os.getpid(), signal.SIGTERM)):
        steps += 1
        left = set(names(there))
        assert left in ({"m.onnx"}, {"m.onnx", "out.onnx", "out.onnx.data"}), (steps, left)
        if len(left) > 1:
            assert_split(there / "out.onnx", there / "m.onnx")
    assert steps > 10
