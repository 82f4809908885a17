"""Somebody else owns the folder in which onnxfix works, and does to its names what they like, at every moment.

An audit hook sees each step of a run that opens, makes, renames, deletes, chmods or chowns something. A run is repeated
with an attack before its first step, before its second, and so on until it ends before the attack. As root the folder
belongs to another user, else everybody may write to it. Whatever happens, a file that is not ours stays as it was, and
the run writes what was proven or says in one line that it does not.
"""
# Long because: every way of writing meets every way of interfering.

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import onnxfix
from onnxfix import TrtOptions
from onnxfix.errors import OnnxfixError
from onnxfix.files import atomic, folders, loading, saving, wire
from onnxfix.files.atomic import temporary_beside
from onnxfix.files.folders import Folder
from onnxfix.proof import validity
from onnxfix.proof.checks import builder as saved_engine
from onnxfix.tensorrt.records import TrtBuild
from onnxfix.verbs.fleet.journal import Journal
from support.cli import run
from support.cli_models import CLEAN, FIXABLE, external_model, write
from support.folders import pass_unseen
from test_split_weights import LIMIT, written

pytestmark = pytest.mark.skipif(not folders.PINS, reason="this system cannot hold folders open")
ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
OTHER = 12345
"""A user who is not us, where we can play one."""
SECRET = b"not yours"
STEPS = {
    "open", "os.rename", "os.remove", "os.link", "os.symlink", "os.chmod", "os.chown", "os.truncate", "os.mkdir",
    "os.rmdir", "os.fork", "shutil.rmtree", "shutil.copyfile",
}  # fmt: skip

_spy: Callable[[], None] | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    global _spy
    if _spy is not None and event in STEPS and not str(arguments[:1]).startswith(("('/proc/", "('/sys/")):
        spy, _spy = _spy, None  # what the attack does is no step
        try:
            spy()
        finally:
            _spy = spy


sys.addaudithook(_hook)


@contextlib.contextmanager
def watched(spy: Callable[[], None]) -> Iterator[None]:
    global _spy
    _spy = spy
    try:
        yield
    finally:
        _spy = None


class Field:
    """The folder ``there`` of the other user, and our own one ``ours`` with the files that nobody may touch."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.there, self.ours = folder, folder / "there", folder / "ours"
        self.there.mkdir()
        self.ours.mkdir()
        for name in ("victim", "out.onnx", "out.onnx.data", "w.bin", "m.onnx", "out"):
            (self.ours / name).write_bytes(SECRET)
            (self.ours / name).chmod(0o600)
        self.evil = folder / "evil"
        self.evil.write_bytes(b"evil")
        self.before = self.state()
        self.stolen = 0

    def give(self) -> None:
        """Let the other user have the folder and what is in it."""
        for path in [self.there, *self.there.rglob("*"), self.evil]:
            if ROOT:
                os.chown(path, OTHER, OTHER, follow_symlinks=False)
        if not ROOT:
            self.there.chmod(0o777)

    def state(self) -> list[tuple[object, ...]]:
        found = [(path, path.lstat()) for path in sorted(self.ours.iterdir())]
        return [
            (path.name, path.read_bytes(), at.st_mode, at.st_uid, at.st_gid, at.st_mtime_ns)
            for path, at in found
        ]

    def temporary(self) -> list[Path]:
        return [
            path
            for path in self.there.rglob("*")
            if path.name.endswith(".tmp") and path.name.startswith(".") and not path.is_symlink()
        ]

    def _aside(self, path: Path) -> Path:
        self.stolen += 1
        stolen = self.there / f"stolen{self.stolen}"
        path.rename(stolen)
        return stolen

    def swap(self, kind: str) -> list[tuple[Path, Path]]:
        """Put something else in the place of every temporary name; returns (place, what was there)."""
        swapped = []
        for path in self.temporary():
            folder = path.is_dir()
            swapped.append((path, self._aside(path)))
            if kind == "link":
                path.symlink_to(self.ours if folder else self.ours / "victim")
            elif folder:
                shutil.copytree(
                    self.ours, path, copy_function=os.link if kind == "hard link" else shutil.copy2
                )
            elif kind == "hard link":
                os.link(self.ours / "victim", path)
            else:
                shutil.copy2(self.evil, path)
            if ROOT and (kind != "hard link" or folder):
                os.chown(path, OTHER, OTHER, follow_symlinks=False)
        return swapped

    def swap_back(self, swapped: list[tuple[Path, Path]]) -> None:
        for path, stolen in swapped:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            if stolen.exists():
                stolen.rename(path)

    def plant(self, name: str) -> bool:
        """A link to a file of ours at the destination, once the run is under way."""
        if not self.temporary():
            return False
        place = self.there / name
        place.unlink(missing_ok=True)
        place.symlink_to(self.ours / "victim")
        if ROOT:
            os.chown(place, OTHER, OTHER, follow_symlinks=False)
        return True


@pytest.fixture
def field_of(tmp_path: Path) -> Callable[[], Field]:
    def make() -> Field:
        shutil.rmtree(tmp_path / "field", ignore_errors=True)
        (tmp_path / "field").mkdir()
        return Field(tmp_path / "field")

    return make


# What runs write: (what is there before, the run, the files that it leaves).
Act = Callable[[Field], Any]


def to_output(at: Field) -> Any:
    return onnxfix.apply(at.there / "m.onnx", at.there / "out.onnx", verify=False)


def in_place(at: Field) -> Any:
    return onnxfix.apply(at.there / "m.onnx", in_place=True, verify=False)


def _plain(field: Field, act: Act = to_output, text: str = FIXABLE) -> Act:
    write(field.there / "m.onnx", text)
    return act


def _over_another(field: Field) -> Act:
    (field.there / "out.onnx").write_bytes(b"old")
    return _plain(field)


def _external(field: Field) -> Act:
    external_model(field.folder / "source")
    return lambda at: onnxfix.apply(at.folder / "source/m.onnx", at.there / "out.onnx", verify=False)


def _split(field: Field, act: Act = to_output) -> Act:
    written(field.there)
    return act


def _report(field: Field) -> Act:
    return lambda at: atomic.put(at.there / "out", b"report")


def _engine(field: Field) -> Act:
    def build(model: Path, profiles: Any, *, save_engine: str) -> TrtBuild:
        atomic.hand_over(Path(save_engine), b"engine")  # as the child does
        return TrtBuild("accepted")

    def save(at: Field) -> Any:
        asked = TrtOptions(save_engine=str(at.there / "out"))
        return saved_engine.save_engine(at.there / "m", asked, TrtBuild("accepted"), lambda: None)

    saved_engine.builder = lambda options: SimpleNamespace(
        plain=lambda: SimpleNamespace(build=build, close=lambda: None)
    )
    return save


ACTS: dict[str, Callable[[Field], Act]] = {
    "plain": _plain,
    "over another": _over_another,
    "in place": lambda field: _plain(field, in_place),
    "unchanged": lambda field: _plain(field, text=CLEAN),
    "external": _external,
    "split": _split,
    "split in place": lambda field: _split(field, in_place),
    "report": _report,
    "engine": _engine,
}
LIKE_OTHERS = ("over another", "unchanged", "external", "split in place")
"""Acts that go most of the way with another one, which the quick lane has."""
DESTINATION = {"in place": "m.onnx", "split in place": "m.onnx", "report": "out", "engine": "out"}


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Low limits for models that are split, and no rung but one that passes at once: there are hundreds of runs."""
    monkeypatch.setattr(saved_engine, "builder", saved_engine.builder)  # put back at the end
    pass_unseen(monkeypatch)
    if "split" in request.node.name:
        monkeypatch.setattr(wire, "PROTOBUF_LIMIT", LIMIT)
        monkeypatch.setattr(loading, "SMALL", 0)


def attempt(act: Act, field: Field, attack: Callable[[], None]) -> OnnxfixError | None:
    """The run under attack; what it says where it does not write."""
    try:
        with watched(attack):
            act(field)
    except OnnxfixError as error:
        return error
    return None


def results(field: Field) -> dict[str, bytes]:
    """What users look at, by name."""
    return {
        str(path.relative_to(field.there)): path.read_bytes()
        for path in field.there.rglob("*")
        if path.is_file() and not path.is_symlink() and not path.name.startswith(("stolen", "."))
        if not any(part.startswith(("stolen", ".")) for part in path.relative_to(field.there).parts)
    }


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("kind", ["link", "hard link", "file", "away and back", "planted"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LIKE_OTHERS else ()) for name in ACTS]
)
def test_at_every_step(field_of: Callable[[], Field], name: str, kind: str) -> None:
    clean = field_of()
    act = ACTS[name](clean)
    clean.give()
    act(clean)
    expected = results(clean)
    assert not clean.temporary()
    outcomes, step = set(), 0
    while True:
        field, at = field_of(), [0]
        act = ACTS[name](field)
        field.give()
        undo: list[tuple[Path, Path]] = []

        def attack(field: Field = field, at: list[int] = at, undo: Any = undo, step: int = step) -> None:
            at[0] += 1
            if undo:
                field.swap_back(undo)
                undo.clear()
            if at[0] == step + 1 or (kind == "planted" and at[0] > step + 1 and not at[1:]):
                if kind == "planted":
                    at[1:] = [1] if field.plant(DESTINATION.get(name, "out.onnx")) else []
                else:
                    swapped = field.swap("file" if kind == "away and back" else kind)
                    undo[:] = swapped if kind == "away and back" else []

        error = attempt(act, field, attack)
        outcomes.add("refused" if error is not None else "written")
        if error is not None:
            assert len(str(error).splitlines()) == 1
        elif not (kind == "planted" and at[1:]):
            assert results(field) == expected, step
        assert field.state() == field.before, step
        if at[0] <= step:
            break
        step += 1
    assert step > 3
    # A link at the destination, which comes late enough, is replaced and not followed.
    assert outcomes == {"written", "refused"} or (kind == "planted" and outcomes == {"written"}), outcomes


def test_a_candidate_that_is_swapped_while_a_rung_reads_it(
    field_of: Callable[[], Field], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is back when the rung ends, but what was proven is another model."""
    field = field_of()
    write(field.there / "m.onnx", FIXABLE)
    write(field.evil, FIXABLE)
    field.give()
    real = validity.ask

    def checker(*given: Any, **how: Any) -> Any:
        swapped = field.swap("file")
        assert swapped
        found = real(*given, **how)
        field.swap_back(swapped)
        return found

    monkeypatch.setattr(validity, "ask", checker)
    with pytest.raises(OnnxfixError, match=r"not written: another process changes files in this folder"):
        onnxfix.apply(field.there / "m.onnx", field.there / "out.onnx", verify=False)
    assert sorted(results(field)) == ["m.onnx"]
    monkeypatch.setattr(validity, "ask", real)
    assert onnxfix.apply(field.there / "m.onnx", field.there / "out.onnx", verify=False).output


@pytest.mark.usefixtures("limits")
def test_what_lies_around_a_split_candidate_is_swapped_while_a_rung_reads_it(
    field_of: Callable[[], Field], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The private folder of a split model: back when the rung ends, too."""
    field = field_of()
    act = _split(field)
    field.give()

    def meanwhile(original: Path, fixed: Path) -> None:
        stolen = field._aside(fixed.parent)
        assert not fixed.exists()
        stolen.rename(fixed.parent)

    pass_unseen(monkeypatch, meanwhile)
    with pytest.raises(OnnxfixError, match="another process changes files in this folder"):
        act(field)
    assert [name for name in results(field) if name.startswith("out.onnx")] == []


def test_a_candidate_that_is_written_to(field_of: Callable[[], Field]) -> None:
    """Its times are put back."""
    field = field_of()
    field.give()
    with temporary_beside(field.there / "out") as file:
        saving.write(b"proven", file)
        before = file.path.stat()
        file.path.write_bytes(b"others")
        os.utime(file.path, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(OnnxfixError, match="another process"):
            atomic.install([file])
    assert list(field.there.iterdir()) == []


def test_a_second_name_for_what_will_be_installed(field_of: Callable[[], Field]) -> None:
    field = field_of()
    field.give()
    with temporary_beside(field.there / "out") as file:
        os.link(file.path, field.there / "kept")
        saving.write(b"proven", file)
        with pytest.raises(OnnxfixError, match="another process"):
            atomic.install([file])


@pytest.mark.usefixtures("limits")
def test_in_place_another_file_is_not_replaced(
    field_of: Callable[[], Field], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder's name leads to another folder, with a model of that name, when the candidate is made."""
    field = field_of()
    path, model = field.there / "m.onnx", write(field.there / "m.onnx", FIXABLE).read_bytes()
    real = Folder.__init__

    def moved(self: Folder, path: Path, **more: Any) -> None:
        if path.name == "there" and not field.stolen:
            field.stolen = 1
            path.rename(field.folder / "elsewhere")
            path.symlink_to(field.ours)
            real(self, path, **more)
            path.unlink()
            (field.folder / "elsewhere").rename(path)
        else:
            real(self, path, **more)

    monkeypatch.setattr(Folder, "__init__", moved)
    with pytest.raises(OnnxfixError, match="its folder was moved, replaced or deleted meanwhile"):
        onnxfix.apply(path, in_place=True, verify=False)
    assert field.stolen
    assert field.state() == field.before
    assert path.read_bytes() == model


@pytest.mark.skipif(not ROOT, reason="a link of another user needs another user")
@pytest.mark.parametrize("option", ["-o", "--report", "--journal"])
@pytest.mark.parametrize("there", [False, True])
def test_another_users_link(field_of: Callable[[], Field], option: str, there: bool) -> None:
    """It leads to where that user may not write, or to a folder of the user's, where it is followed."""
    field = field_of()
    path, place = write(field.ours / "source.onnx", CLEAN), field.there / "link.json"
    target = field.ours / "victim" if there else field.ours / "new"
    before = field.state()
    place.symlink_to(target)
    field.give()
    code, _, err = run("apply", path, "--no-verify", option, place)
    assert (code, len(err.splitlines())) == (2, 1), err
    assert "another user's symbolic link" in err
    assert [one for one in field.state() if one[0] != "source.fixed.onnx"] == before
    place.unlink()
    place.symlink_to(field.there / "real")
    os.chown(place, OTHER, OTHER, follow_symlinks=False)
    assert run("apply", path, "--no-verify", option, place)[0] == 0
    assert place.is_symlink()
    assert (field.there / "real").is_file()


def test_a_journal_is_begun_in_no_file_of_others(field_of: Callable[[], Field]) -> None:
    """An empty file by another name, and nothing at all where a link leads to that came late."""
    field = field_of()
    (field.ours / "empty").write_bytes(b"")
    os.link(field.ours / "empty", field.there / "j")
    with pytest.raises(OnnxfixError, match="has hard links"), Journal(field.there / "j"):
        pass
    assert (field.ours / "empty").read_bytes() == b""
    (field.there / "k").symlink_to(field.ours / "empty2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "destination", lambda path: path)  # when it was asked, there was no link
        with pytest.raises(OnnxfixError, match="cannot be used as the journal"), Journal(field.there / "k"):
            pass
    assert not (field.ours / "empty2").exists()


def test_what_was_a_pipe_is_not_written_to(field_of: Callable[[], Field]) -> None:
    field = field_of()
    (field.there / "pipe").symlink_to(field.ours / "victim")
    with pytest.raises(OnnxfixError, match="was a pipe or a device"):
        folders.pour(b"report", field.there / "pipe")
    assert field.state() == field.before
