"""Models by path, glob and URL: which are meant, where results go, and that stores see whole models or none."""
# Long because: naming files and moving them are tested on the same stores.

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from onnxfix.errors import ModelError, OnnxfixError, UsageError
from onnxfix.options import RunOptions
from onnxfix.runtime import system
from onnxfix.verbs.fleet import contents, remote
from onnxfix.verbs.fleet.drive import expand, targets
from onnxfix.verbs.fleet.paths import Named
from onnxfix.verbs.fleet.work import Outcome, Task, perform
from support import cli, models
from support.fleets import environment, write
from support.models import external
from support.options import run_options

QUICK = run_options(rungs=("reference",))


class Shelf(MemoryFileSystem):
    """A store of which we do not know that it shows whole files only. ``log`` is what was done, in order."""

    protocol = "shelf"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    log: ClassVar[list[tuple[str, ...]]] = []
    refuses = ""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("shelf://").strip("/")

    def unstrip_protocol(self, name: str) -> str:
        return "shelf:/" + name

    def put_file(self, lpath: str, rpath: str, **more: Any) -> None:
        self.log.append(("put", rpath))
        if self.refuses and re.search(self.refuses, rpath):
            super().put_file(os.devnull, rpath)
            raise PermissionError(13, "Permission denied")
        super().put_file(lpath, rpath, **more)

    def mv(self, path1: str, path2: str, **more: Any) -> None:
        self.log.append(("mv", path1, path2))
        if self.exists(path2):
            raise FileExistsError(path2)
        self.store[path2] = self.store.pop(path1)

    def rm_file(self, path: str) -> None:
        self.log.append(("rm", path))
        super().rm_file(path)


@pytest.fixture(autouse=True)
def stores() -> Iterator[None]:
    """Empty ones for each test."""
    fsspec.register_implementation("shelf", Shelf, clobber=True)
    Shelf.log, Shelf.refuses = [], ""
    yield
    for kind in (MemoryFileSystem, Shelf):
        kind.store.clear()
        kind.pseudo_dirs[:] = [""]


def put(url: str, path: Path) -> str:
    system, inner = fsspec.core.url_to_fs(url)
    system.pipe_file(inner, path.read_bytes())
    return url


def files(system: type[MemoryFileSystem] = MemoryFileSystem) -> dict[str, bytes]:
    return {name: file.getvalue() for name, file in system.store.items()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "m.onnx")


@pytest.fixture
def heavy(tmp_path: Path) -> Path:
    """A model with something to fix and with external data, in a folder of its own."""
    folder = tmp_path / "heavy"
    (folder / "parts").mkdir(parents=True)
    (folder / "parts" / "big.bin").write_bytes(bytes(range(8)))
    proto = models.model("g (float[2] x) => (float[2] y) { a = Cast<to=1>(x)  y = Add(a, w) }", 18)
    weight = proto.graph.initializer.add(name="w", data_type=1, dims=[2])
    external(weight, "parts/big.bin", 0, 8)
    return models.write(folder / "big.onnx", proto)


def put_heavy(heavy: Path, folder: str) -> str:
    put(f"{folder}/parts/big.bin", heavy.parent / "parts" / "big.bin")
    return put(f"{folder}/big.onnx", heavy)


def apply(source: object, target: str, options: RunOptions = QUICK) -> Outcome:
    return perform(Task(0, str(source), target, "apply", options))


# ------------------------------------------------------------------------------------------------ which files are meant


def test_a_glob_keeps_the_folders_from_its_root_on_in_one_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b/x.onnx", "a/deep/x.onnx", "a/x.onnx", "a/notes.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).touch()
    (tmp_path / "in" / "folder.onnx").mkdir()
    monkeypatch.chdir(tmp_path)
    inside = ["a/deep/x.onnx", "a/x.onnx", "b/x.onnx"]
    assert expand(["in/**/*.onnx"]) == [Named(f"in/{name}", name) for name in inside]
    assert [one.inside for one in expand([str(tmp_path / "in" / "*" / "*.onnx")])] == ["a/x.onnx", "b/x.onnx"]
    assert [one.inside for one in expand(["**/*.onnx"])] == [f"in/{name}" for name in inside]
    assert expand(["in/b/x.onnx"]) == [Named("in/b/x.onnx", "x.onnx")]


def test_a_folder_stands_for_the_models_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hidden = ("b/.h/x.onnx", ".x.onnx", "b/t.txt")
    for name in ("a.onnx", "a.fixed.onnx", "b/c.ONNX", "b/d.fixed.onnx", "out/a.onnx", *hidden):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).touch()
    seen = ["a.fixed.onnx", "a.onnx", "b/c.ONNX", "b/d.fixed.onnx", "out/a.onnx"]
    assert expand(["in"]) == [Named(f"in/{name}", name) for name in seen]
    assert [one.inside for one in expand(["in/"], skip_results=True)] == seen[1:]
    outside = expand(["in"], skip_results=True, output_dir=str(tmp_path / "in" / "out"))
    assert [one.inside for one in outside] == seen[1:-1]
    assert [one.source for one in expand(["in/b", "in"])][:2] == ["in/b/c.ONNX", "in/b/d.fixed.onnx"]
    assert len(expand(["in/b", "in", "in/a.onnx"])) == len(seen)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"^empty: no \.onnx file in this folder or below it"):
        expand(["empty"])


def test_urls_are_expanded_as_paths_are(model: Path) -> None:
    for name in ("b/x.onnx", "a/deep/x.onnx", "a/x.onnx", "a/notes.txt"):
        put(f"memory://bucket/in/{name}", model)
    put("memory://bucket/in/folder.onnx/readme", model)
    found = expand(["memory://bucket/in/**/*.onnx"])
    assert [one.inside for one in found] == ["a/deep/x.onnx", "a/x.onnx", "b/x.onnx"]
    assert [one.source for one in found] == [f"memory:///bucket/in/{one.inside}" for one in found]
    assert expand(["memory://bucket/in/a/x.onnx"]) == [Named("memory://bucket/in/a/x.onnx", "x.onnx")]


def test_nothing_is_meant_twice(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put("memory://b/m.onnx", model)
    local = ["m.onnx", str(model), "./m.onnx", f"file://{model}", "*.onnx"]
    assert [one.source for one in expand(local)] == ["m.onnx"]
    assert [one.source for one in expand(["memory://b/m.onnx", "memory:///b/*.onnx"])] == [
        "memory://b/m.onnx"
    ]


def test_two_ways_to_one_file_are_one_and_two_links_are_two(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "folder").symlink_to(tmp_path)
    (tmp_path / "link.onnx").symlink_to(model)
    ways = ["m.onnx", "a/../m.onnx", "folder/m.onnx", "*/../m.onnx", "link.onnx"]
    assert [one.source for one in expand(ways)] == ["m.onnx", "link.onnx"]


def test_a_name_with_brackets_is_a_name_where_it_is_one(tmp_path: Path, model: Path) -> None:
    odd = model.rename(tmp_path / "m[1].onnx")
    put("memory://b/m[1].onnx", odd)
    write(tmp_path / "m1.onnx")
    assert expand([str(odd)]) == [Named(str(odd), "m[1].onnx")]
    assert expand(["memory://b/m[1].onnx"]) == [Named("memory://b/m[1].onnx", "m[1].onnx")]


def test_a_file_url_is_a_local_path(model: Path) -> None:
    assert expand([f"file://{model}"]) == [Named(str(model), "m.onnx")]
    assert targets([Named(str(model), "m.onnx")], None, f"file://{model.parent}/out", False) == {
        str(model): str(model.parent / "out" / "m.onnx")
    }


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("nowhere/**/*.onnx", "nowhere/**/*.onnx: no file matches"),
        ("memory://nowhere/*.onnx", "memory://nowhere/*.onnx: no file matches"),
        ("wat://b/x.onnx", "knows no such protocol"),
        ("oci://bucket@n/x.onnx", "oci:// needs another package: Install ocifs"),
        ("zip://a.onnx::memory://b.zip", "chained URLs are not supported"),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_line(pattern: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        expand([pattern])
    assert words in str(caught.value)
    assert pattern in str(caught.value)


@pytest.mark.slow
def test_local_paths_never_load_the_optional_parts(tmp_path: Path, model: Path) -> None:
    (tmp_path / "n.onnx").write_bytes(model.read_bytes())
    code = f"""
import sys
from pathlib import Path
from onnxfix.verbs.fleet import drive
from onnxfix.options import RunOptions, Verification
options = RunOptions(verification=Verification(rungs=("reference",)))
tasks = drive.tasks_of([{str(tmp_path)!r} + "/*.onnx"], "apply", options, stamped=True)
executor = drive.executor_of("2", None, tasks)
for outcome in drive.drive(tasks, executor, Path({str(tmp_path)!r}, "journal"), resume=True):
    assert outcome.report.output
optional = ("fsspec", "ray", "onnxfix.verbs.fleet.remote", "onnxfix.verbs.fleet.ray")
print([name for name in optional if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True
    )
    assert done.stdout.strip() == "[]"


def test_without_fsspec_a_url_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(
        UsageError, match=r"memory://b/x\.onnx: needs fsspec: pip install 'onnxfix\[remote\]'"
    ):
        expand(["memory://b/x.onnx"])


# ------------------------------------------------------------------------------------------------ where results go


def test_a_result_stays_in_the_output_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here/a/c").mkdir(parents=True)
    (tmp_path / "here/m.onnx").touch()
    monkeypatch.chdir(tmp_path / "here/a")
    (up,) = expand(["../*.onnx"])
    assert targets([up], None, "out", False) == {"../m.onnx": "out/m.onnx"}
    models = expand(["../*/../m.onnx"])
    assert targets(models, None, "out", False) == {
        models[0].source: "out/m.onnx"
    }  # its root is the folder above
    models = expand(["?/../../m.onnx"])
    with pytest.raises(UsageError, match=r"'\.\.' after a wildcard.* leads out of out;"):
        targets(models, None, "out", False)
    assert list(targets(models, None, None, False)) == [models[0].source]


def test_targets() -> None:
    models = [Named("in/a/x.onnx", "a/x.onnx"), Named("memory://b/c/y.onnx", "c/y.onnx")]
    assert list(targets(models, None, "out", False).values()) == ["out/a/x.onnx", "out/c/y.onnx"]
    far = targets(models, None, "memory://o/p/", False)
    assert list(far.values()) == ["memory://o/p/a/x.onnx", "memory://o/p/c/y.onnx"]
    beside = targets(models, None, None, False)
    assert list(beside.values()) == ["in/a/x.fixed.onnx", "memory://b/c/y.fixed.onnx"]
    assert targets(models[:1], None, None, True) == {}


@pytest.mark.parametrize(
    ("sources", "options", "words"),
    [
        (["memory://b/x.onnx"], (None, None, True), "--in-place takes local files"),
        (["a/x.onnx", "memory://b/x.onnx"], (None, "memory://o", False), "two models would be written to memory://o/x.onnx"),
        (
            ["memory://b/x.onnx", "memory:///o/x.onnx"],
            ("memory://o/x.onnx", None, False),
            "--output takes one model",
        ),
        (["memory://b/x.onnx", "memory:///o/y.onnx"], (None, "memory://o", False), None),
        (["memory://b/x.onnx", "memory:///o/x.onnx"], (None, "memory://o", False), "would replace memory:///o/x.onnx"),
        (["x.onnx"], (None, "wat://o", False), "knows no such protocol"),
    ],
)  # fmt: skip
def test_results_that_would_go_wrong_are_refused(
    sources: list[str], options: tuple[str | None, str | None, bool], words: str | None
) -> None:
    models = [Named(source, source.rpartition("/")[2]) for source in sources]
    if words is None:
        assert targets(models, *options)
        return
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        targets(models, *options)


@pytest.mark.parametrize("source", ["memory://b/x.onnx", ""], ids=["from a URL", "to a URL"])
def test_data_is_not_shared_with_urls(model: Path, source: str) -> None:
    put("memory://b/x.onnx", model)
    options = ["-o", "memory://b/y.onnx", "--share-data"]
    err = cli.refused("apply", source or model, *options)
    assert f"{source or 'memory://b/y.onnx'}: --share-data takes local files" in err


# ------------------------------------------------------------------------------------------------ there and back


def test_the_result_is_what_the_local_run_writes(tmp_path: Path, model: Path) -> None:
    expected = apply(model, str(tmp_path / "out.onnx"))
    put("memory://b/m.onnx", model)
    outcome = apply("memory://b/m.onnx", "memory://o/deep/m.onnx")
    assert files()["/o/deep/m.onnx"] == (tmp_path / "out.onnx").read_bytes()
    assert (outcome.report.path, outcome.report.output) == ("memory://b/m.onnx", "memory://o/deep/m.onnx")
    assert outcome.report.findings == expected.report.findings
    assert outcome.report.applied == expected.report.applied
    assert files()["/b/m.onnx"] == model.read_bytes()
    assert set(files()) == {"/b/m.onnx", "/o/deep/m.onnx"}
    assert list(Path(remote.tempfile.gettempdir()).glob("onnxfix-*/target/m.onnx")) == []


def test_check_reads_a_url(model: Path) -> None:
    put("memory://b/m.onnx", model)
    far, local = perform(Task(0, "memory://b/m.onnx")), perform(Task(0, str(model)))
    assert far.report.path == "memory://b/m.onnx"
    assert far.report.findings == local.report.findings != ()


def test_external_data_comes_along_and_goes_up_before_the_model(tmp_path: Path, heavy: Path) -> None:
    expected = apply(heavy, str(tmp_path / "out" / "big.onnx"))
    assert expected.error  # the folder is missing: nobody makes it for a local path here
    (tmp_path / "out").mkdir()
    assert apply(heavy, str(tmp_path / "out" / "big.onnx")).report is not None
    outcome = apply(put_heavy(heavy, "memory://b/in"), "shelf://o/out/big.onnx")
    assert outcome.report is not None, outcome.error
    assert outcome.report.output == "shelf://o/out/big.onnx"
    assert files(Shelf) == {
        "/o/out/big.onnx": (tmp_path / "out" / "big.onnx").read_bytes(),
        "/o/out/big.onnx.data": (heavy.parent / "parts" / "big.bin").read_bytes(),
    }
    moved = [entry[2] for entry in Shelf.log if entry[0] == "mv"]
    assert moved == ["/o/out/big.onnx.data", "/o/out/big.onnx"]
    names = {os.path.basename(entry[1]) for entry in Shelf.log if entry[0] == "put"}
    assert all(name.startswith(".big.") and name.endswith(".tmp") for name in names)


def test_a_local_model_goes_up_with_its_data_too(heavy: Path) -> None:
    before = {path: path.read_bytes() for path in heavy.parent.rglob("*") if path.is_file()}
    assert apply(heavy, "memory://o/big.onnx").report is not None
    assert set(files()) == {"/o/big.onnx", "/o/big.onnx.data"}
    assert {path: path.read_bytes() for path in heavy.parent.rglob("*") if path.is_file()} == before


def test_a_remote_model_may_be_written_here(tmp_path: Path, heavy: Path) -> None:
    outcome = apply(put_heavy(heavy, "memory://b"), str(tmp_path / "here.onnx"))
    assert outcome.report.output == str(tmp_path / "here.onnx")
    assert (tmp_path / "here.onnx.data").read_bytes() == (heavy.parent / "parts" / "big.bin").read_bytes()


def test_data_that_is_there_already_is_left_alone_or_refused(heavy: Path) -> None:
    url = put_heavy(heavy, "memory://b")
    assert apply(url, "shelf://o/big.onnx").report is not None
    Shelf.log.clear()
    assert apply(url, "shelf://o/big.onnx").report is not None  # again, as after a worker that was lost
    assert [entry for entry in Shelf.log if "big.onnx.data" in entry[-1]] == []
    for other in (b"longer than it was", b"01234567"):
        Shelf.store["/o/big.onnx.data"].seek(0)
        Shelf.store["/o/big.onnx.data"].truncate()
        Shelf.store["/o/big.onnx.data"].write(other)
        kept = files(Shelf)
        outcome = apply(url, "shelf://o/big.onnx")
        assert "shelf://o/big.onnx.data: another file has the name of the model's external" in outcome.error
        assert files(Shelf) == kept


def test_what_does_not_verify_is_not_put(model: Path) -> None:
    put("memory://b/m.onnx", model)
    options = run_options(require=("trt-gpu",), rungs=("reference", "trt-gpu"))
    outcome = apply("memory://b/m.onnx", "memory://o/m.onnx", options)
    assert outcome.report.exit_code == 3
    assert set(files()) == {"/b/m.onnx"}


@pytest.mark.parametrize(
    ("name", "refused"), [("big.onnx.data", r"\.big\.onnx\.data\."), ("big.onnx", r"\.big\.onnx\.(?!data)")]
)
def test_a_store_that_takes_nothing_is_left_without_a_model(heavy: Path, name: str, refused: str) -> None:
    url = put_heavy(heavy, "memory://b")
    Shelf.refuses = refused
    outcome = apply(url, "shelf://o/big.onnx")
    assert outcome.error == f"memory://b/big.onnx: shelf://o/{name}: cannot be written: permission denied"
    assert not [path for path in files(Shelf) if not path.endswith("/big.onnx.data")]  # whole, and harmless


def test_an_old_result_is_replaced(model: Path) -> None:
    put("memory://b/m.onnx", model)
    Shelf().pipe_file("/o/m.onnx", b"old")
    assert apply("memory://b/m.onnx", "shelf://o/m.onnx").report is not None
    assert set(files(Shelf)) == {"/o/m.onnx"}
    assert files(Shelf)["/o/m.onnx"] != b"old"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "memory://b/m.onnx: no such file"),
        (b"", "memory://b/m.onnx: is empty"),
        (b"\xffjunk", "memory://b/m.onnx: not an ONNX model"),
    ],
)
def test_errors_name_the_url(content: bytes | None, words: str) -> None:
    if content is not None:
        MemoryFileSystem().pipe_file("/b/m.onnx", content)
    for task in (Task(0, "memory://b/m.onnx"), Task(0, "memory://b/m.onnx", "memory://o/m.onnx", "apply")):
        outcome = perform(task)
        assert outcome.error.startswith(words)
        assert remote.tempfile.gettempdir() not in outcome.error
    assert not [name for name in files() if name.startswith("/o")]


def test_missing_data_is_said_as_for_local_files(heavy: Path) -> None:
    put("memory://b/big.onnx", heavy)
    outcome = perform(Task(0, "memory://b/big.onnx"))
    assert "parts/big.bin: no such file (tensor" in outcome.error
    assert outcome.error.startswith("memory://b/big.onnx: ")


def test_data_outside_of_the_folder_is_not_fetched(heavy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heavy.write_bytes(heavy.read_bytes().replace(b"parts/big.bin", b"../secret.bin"))
    put("memory://b/in/big.onnx", heavy)
    fetched: list[str] = []
    get_file = MemoryFileSystem.get_file
    isfile = MemoryFileSystem.isfile
    monkeypatch.setattr(MemoryFileSystem, "isfile", lambda self, it: "secret" in it or isfile(self, it))
    monkeypatch.setattr(
        MemoryFileSystem, "get_file", lambda self, *to: fetched.append(to[0]) or get_file(self, *to)
    )
    outcome = perform(Task(0, "memory://b/in/big.onnx"))
    assert "outside the model's folder" in outcome.error
    assert fetched == ["/b/in/big.onnx"]


def test_whatever_a_store_raises_is_one_line(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(Exception):
        pass

    def broken(*_: object, **__: object) -> None:
        raise Odd("the token\nhas expired")

    for name in ("get_file", "glob", "ukey"):
        monkeypatch.setattr(MemoryFileSystem, name, broken)
    assert perform(Task(0, "memory://b/m.onnx")).error == (
        "memory://b/m.onnx: cannot be read: Odd: the token has expired"
    )
    with pytest.raises(OnnxfixError, match=r"cannot be listed: Odd: the token has expired"):
        expand(["memory://b/*.onnx"])
    with pytest.raises(OnnxfixError, match="cannot be read: Odd"):
        remote.fingerprint("memory://b/m.onnx")


def test_a_fingerprint_changes_with_the_file(model: Path) -> None:
    put("memory://b/m.onnx", model)
    before = remote.fingerprint("memory://b/m.onnx")
    assert remote.fingerprint("memory://b/m.onnx") == before
    MemoryFileSystem().pipe_file("/b/m.onnx", model.read_bytes() + b"\0")
    assert remote.fingerprint("memory://b/m.onnx") != before
    with pytest.raises(ModelError, match="no such file"):
        remote.fingerprint("memory://b/gone.onnx")


def test_a_model_that_is_replaced_after_it_was_fetched_is_done_again(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put("memory://b/m.onnx", model)
    task = Task(0, url, str(tmp_path / "out.onnx"), "apply", QUICK, stamped=True)
    assert perform(task).files == {url: remote.fingerprint(url), task.target: contents.hash_file(task.target)}
    real = remote._get

    def meddled(url: str, path: Path) -> None:
        real(url, path)
        put(url, write(tmp_path / "another.onnx", "another"))

    monkeypatch.setattr(remote, "_get", meddled)
    outcome = perform(task)
    assert outcome.report is not None
    assert {path: contents.hash_file(path) for path in outcome.files} != outcome.files


# ---- Results whose names are one name, or none, on some file systems: refused before anything is written


def without_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file system looks for names without regard to case, as those of Windows and macOS do."""
    real = os.lstat

    def lstat(path: str) -> os.stat_result:
        folder, name = os.path.split(path)
        found = [one for one in os.listdir(folder) if one.casefold() == name.casefold()]
        return real(os.path.join(folder, found[0] if found else name))

    monkeypatch.setattr(system.os, "lstat", lstat)


NEAR = [
    ("A.onnx", "a.onnx"),
    ("x/m.onnx", "X/m.onnx"),
    ("caf\u00e9.onnx", "cafe\u0301.onnx"),
    ("STRASSE.onnx", "stra\u00dfe.onnx"),
]


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("pair", NEAR)
def test_two_results_that_differ_by_case_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[str, str], there: bool
) -> None:
    models = [Named(f"in/{name}", name) for name in pair]
    out = tmp_path / "out"
    if there:
        out.mkdir()
        (out / "Earlier.onnx").touch()
    assert len(targets(models, None, str(out), False)) == 2
    without_case(monkeypatch)
    with pytest.raises(
        UsageError, match=r"two models would be written to .*: the file system takes it and"
    ) as refused:
        targets(models, None, str(out), False)
    assert "\n" not in str(refused.value)
    assert sorted(os.listdir(tmp_path)) == (["out"] if there else [])
    assert len(targets([models[0], Named("in/b.onnx", "b.onnx")], None, str(out), False)) == 2


def test_names_that_windows_has_for_something_else() -> None:
    devices = ["NUL.onnx", "con", "Com1.fixed.onnx", "lpt\u00b2.onnx", "aux .onnx"]
    names = [*devices, "model.onnx.", "a:b.onnx", "console.onnx", "com10.onnx", ".hidden.onnx", ".."]
    assert [name for name in names if system.unusable(name, windows=True)] == names[:7]
    assert not any(system.unusable(name, windows=False) for name in names)
