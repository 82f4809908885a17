"""What was done is not done again, unless something that the result hangs on has changed."""
# Long because: one test for each thing that a result hangs on, and for each way in which a journal may be damaged.

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.options import RunOptions
from onnxfix.report.report import Report
from onnxfix.runtime.causes import Problem
from onnxfix.tensorrt.records import TrtOptions
from onnxfix.verbs import applying
from onnxfix.verbs.fleet import contents, work
from onnxfix.verbs.fleet import journal as journals
from onnxfix.verbs.fleet.drive import drive, tasks_of
from onnxfix.verbs.fleet.journal import NAME, Journal
from onnxfix.verbs.fleet.work import Outcome, Task, here
from support.fleets import run, without_times, write
from support.models import model
from support.options import run_options

pytestmark = pytest.mark.slow

LIGHT = run_options(verify=False)


def go(
    folder: Path,
    options: RunOptions = LIGHT,
    *,
    out: str | None = "out",
    resume: bool = True,
    command: str = "apply",
) -> tuple[list[str], list[Outcome]]:
    """Work through the models of a folder; what was done, and all outcomes."""
    place = folder / "journal"
    tasks = tasks_of(
        [str(folder / "*.onnx")],
        command,
        options,
        output_dir=str(folder / out) if out else None,
        stamped=True,
    )
    given: list[str] = []

    def counting(tasks: Sequence[Task], progress: object = None) -> Iterator[Outcome]:
        for task in tasks:
            given.append(Path(task.source).name)
            yield work.perform(task)

    outcomes = list(drive(tasks, counting, place, resume=resume))
    return given, outcomes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(3):
        write(tmp_path / f"m{i}.onnx")
    return tmp_path


ALL = ["m0.onnx", "m1.onnx", "m2.onnx"]


def test_nothing_is_done_twice_and_reports_are_the_same(folder: Path) -> None:
    given, first = go(folder)
    assert given == ALL
    size = (folder / "journal").stat().st_size
    given, second = go(folder)
    assert given == []
    assert [outcome.task.index for outcome in second] == [0, 1, 2]
    for old, new in zip(first, second, strict=True):
        assert new.reused
        assert new.report == replace(old.report, reused=True)
        assert new.report.to_json() == old.report.to_json() | {"reused": True}
    assert (folder / "journal").stat().st_size == size


def test_without_resume_all_is_done_and_noted(folder: Path) -> None:
    go(folder)
    given, outcomes = go(folder, resume=False)
    assert given == ALL
    assert not any(outcome.reused for outcome in outcomes)
    assert go(folder)[0] == []


def test_a_changed_model_is_done_again_and_the_others_not(folder: Path) -> None:
    go(folder)
    write(folder / "m1.onnx", "another")
    assert go(folder)[0] == ["m1.onnx"]
    assert go(folder)[0] == []


def test_same_bytes_under_another_time_or_inode_are_the_same_model(folder: Path) -> None:
    go(folder)
    copy = folder / "copy"
    for path in folder.glob("*.onnx"):
        shutil.copyfile(path, copy)
        os.replace(copy, path)
    assert go(folder)[0] == []


def test_a_change_under_the_same_time_is_a_change(folder: Path) -> None:
    """Who copies or unpacks a file sets its time, and inodes are used again."""
    go(folder)
    path = folder / "m1.onnx"
    then = path.stat()
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(data.replace(b"m1", b"M1") if b"m1" in data else data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert path.read_bytes() != data
    now = path.stat()
    assert (now.st_size, now.st_mtime_ns, now.st_ino) == (then.st_size, then.st_mtime_ns, then.st_ino)
    assert go(folder)[0] == ["m1.onnx"]


@pytest.mark.parametrize("damage", ["gone", "other bytes", "longer"])
def test_an_output_that_is_not_there_as_it_was_is_made_again(folder: Path, damage: str) -> None:
    go(folder)
    path = folder / "out" / "m2.onnx"
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(whole + b"x" if damage == "longer" else bytes([whole[0] ^ 1]) + whole[1:])
    assert go(folder)[0] == ["m2.onnx"]
    assert path.read_bytes() == whole


def test_external_data_is_part_of_the_model_and_of_the_output(tmp_path: Path) -> None:
    text = "g (float[N,4096] x) => (float[N,4096] y) { a = Add(x, w)  y = Identity(a) }"
    proto = model(text, 18, w=np.arange(4096, dtype=np.float32))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert go(tmp_path)[0] == ["m.onnx"]
    assert (tmp_path / "out" / "m.onnx.data").is_file()
    assert go(tmp_path)[0] == []
    (tmp_path / "out" / "m.onnx.data").unlink()
    assert go(tmp_path)[0] == ["m.onnx"]
    for path in (tmp_path / "w.bin", tmp_path / "out" / "m.onnx.data"):
        with path.open("r+b") as file:
            file.write(b"\1\2\3\4")
    assert go(tmp_path)[0] == ["m.onnx"]


def test_other_options_are_other_work(folder: Path) -> None:
    go(folder)
    for options in (
        run_options(verify=False, target="rtx"),
        run_options(verify=False, select=("CST",)),
        run_options(verify=False, ignore=("CST",)),
        run_options(verify=False, numeric_fixes=True),
        run_options(verify=False, seed=1),
        run_options(verify=False, trt=TrtOptions(tf32=True)),
        LIGHT,
    ):
        assert go(folder, options)[0] == ALL, options
        assert go(folder, options)[0] == []


def test_check_and_apply_and_other_places_are_apart(folder: Path) -> None:
    go(folder)
    assert go(folder, run_options(), command="check", out=None)[0] == ALL
    assert go(folder, out="elsewhere")[0] == ALL
    assert go(folder)[0] == go(folder, run_options(), command="check", out=None)[0] == []


def test_other_versions_are_other_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go(folder)
    known = contents.versions()
    for name in ("onnx", "onnxfix", "GPUs", "source of onnxfix_rules", "source of onnxfix"):
        assert name in known
        monkeypatch.setattr(contents, "versions", lambda name=name: known | {name: "another"})
        assert go(folder)[0] == ALL, name


def test_a_rule_pack_is_known_by_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "some_pack"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__", "_helper", "inner/rule"):
        (package / f"{name}.py").write_text("x = 1\n")
    (tmp_path / "some_module.py").write_text("x = 1\n")
    (tmp_path / "stranger.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    hashes = [contents._hash_sources("some_pack.inner"), contents._hash_sources("no_such_module")]
    (package / "_helper.py").write_text("x = 2\n")
    hashes.append(contents._hash_sources("some_pack.inner"))
    (package / "_helper.py").rename(package / "_other.py")
    hashes.append(contents._hash_sources("some_pack.inner"))
    assert len(set(hashes)) == len(hashes)
    module = contents._hash_sources("some_module")
    (tmp_path / "stranger.py").write_text("x = 2\n")
    assert contents._hash_sources("some_module") == module


def test_files_that_options_name_count_by_content(tmp_path: Path) -> None:
    write(tmp_path / "m.onnx")
    script, inputs = tmp_path / "script.py", tmp_path / "feeds"
    script.write_text("def fix(graph): pass\n")
    inputs.mkdir()
    np.save(inputs / "x.npy", np.zeros(3, np.float32))
    task = Task(0, "m.onnx", "", "apply", run_options(graphsurgeon=(str(script),), inputs=str(inputs)))

    def key() -> str:
        with Journal(tmp_path / "journal") as journal:
            return journal._key(task)

    first = key()
    assert key() == first
    script.write_text("def fix(graph): return\n")
    second = key()
    np.save(inputs / "x.npy", np.ones(3, np.float32))
    third = key()
    np.save(inputs / "z.npy", np.ones(3, np.float32))
    assert len({first, second, third, key()}) == 4


def test_in_place_the_result_is_what_need_not_be_done_again(folder: Path) -> None:
    options = run_options(verify=False, in_place=True)
    assert go(folder, options, out=None)[0] == ALL
    fixed = [path.read_bytes() for path in sorted(folder.glob("*.onnx"))]
    assert go(folder, options, out=None)[0] == []
    assert [path.read_bytes() for path in sorted(folder.glob("*.onnx"))] == fixed
    write(folder / "m0.onnx")
    assert go(folder, options, out=None)[0] == ["m0.onnx"]


def test_errors_and_lacks_of_memory_are_tried_again(folder: Path) -> None:
    (folder / "m1.onnx").write_bytes(b"no model")
    given, outcomes = go(folder)
    assert given == ALL
    assert outcomes[1].error
    assert go(folder)[0] == ["m1.onnx"]
    with Journal(folder / "other") as journal:
        journal.note(replace(outcomes[0], memory=True))
        assert journal.done(outcomes[0].task) is None
        journal.note(outcomes[0])
        assert journal.done(outcomes[0].task) is not None


def test_a_failed_verification_is_known_too(tmp_path: Path) -> None:
    """What was not verified stays not verified: its report is given again, with its exit code."""
    path = write(tmp_path / "m.onnx")
    call = (
        "apply",
        path,
        "--require",
        "ort-cuda",
        "--rungs",
        "ort-cpu",
        "--resume",
        "--output-dir",
        tmp_path / "o",
    )
    results = [run(None, *call, "--format", "json") for _ in range(2)]
    assert [result.returncode for result in results] == [3, 3], results[0].stderr
    first, second = (json.loads(result.stdout)["reports"][0] for result in results)
    assert not first["reused"]
    assert second == first | {"reused": True}
    assert [one.name for one in (tmp_path / "o").iterdir()] == [NAME]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_model_that_changes_meanwhile_is_done_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    real = applying.apply

    def meddled(source: Path, *arguments: object, **options: object) -> Report:
        """Somebody writes the model while it is worked on; in place, of a run that writes nothing."""
        report = Report(str(source), "apply", "trt11") if in_place else real(source, *arguments, **options)
        if source.name == "m1.onnx":
            write(source, "written to meanwhile")
        return report

    monkeypatch.setattr(applying, "apply", meddled)
    options, out = run_options(verify=False, in_place=in_place), None if in_place else "out"
    go(folder, options, out=out)
    monkeypatch.setattr(applying, "apply", real)
    assert go(folder, options, out=out)[0] == ["m1.onnx"]


def test_a_result_that_changes_while_it_is_hashed_is_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file takes a while to be read: what is read must not be taken for what was written."""
    real = contents.digest

    def meddled(path: str) -> str:
        if Path(path) == folder / "m1.onnx":
            write(folder / "m1.onnx", "written to meanwhile")
        return real(path)

    monkeypatch.setattr(contents, "digest", meddled)
    options = run_options(verify=False, in_place=True)
    go(folder, options, out=None)
    monkeypatch.setattr(contents, "digest", real)
    assert go(folder, options, out=None)[0] == ["m1.onnx"]


def test_a_report_with_problems_is_tried_again(folder: Path) -> None:
    _, outcomes = go(folder)
    report = outcomes[0].report
    assert report is not None
    with Journal(folder / "other") as journal:
        journal.note(replace(outcomes[0], report=replace(report, problems=(Problem("a rule failed"),))))
        assert journal.done(outcomes[0].task) is None


@pytest.mark.parametrize("cut", [1, 40, 400])
def test_a_torn_last_line_is_ignored_and_the_next_is_whole(folder: Path, cut: int) -> None:
    go(folder)
    path = folder / "journal"
    path.write_bytes(path.read_bytes()[:-cut])
    assert go(folder)[0] == (["m2.onnx"] if cut > 1 else [])
    assert go(folder)[0] == []


@pytest.mark.parametrize("there", [b"", b"{", b'{"onnxfix-journal": 1}', b'{"onnxfix-journal": 1}\n'])
def test_a_beginning_that_is_torn_begins_anew(folder: Path, there: bytes) -> None:
    (folder / "journal").write_bytes(there)
    assert go(folder)[0] == ALL
    assert go(folder)[0] == []


@pytest.mark.parametrize("there", [b"no journal\n", b"{}\n", b"\0\1\2", b'{\n "reports": []\n}\n'])
def test_another_file_is_refused_and_left_alone(folder: Path, there: bytes) -> None:
    path = folder / "journal"
    path.write_bytes(there)
    with pytest.raises(UsageError, match="is not a journal of onnxfix"):
        go(folder)
    assert path.read_bytes() == there


def test_two_runs_do_not_share_a_journal(folder: Path) -> None:
    with Journal(folder / "journal"), pytest.raises(UsageError, match="another run uses this journal"):
        go(folder)
    assert go(folder)[0] == ALL


@pytest.mark.parametrize("place", ["missing/journal", ".", "m0.onnx/journal"])
def test_a_journal_that_cannot_be_written(folder: Path, place: str) -> None:
    models = sorted(folder.glob("*.onnx"))
    result = run(None, "check", *models, "--journal", folder / place)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert str(folder / place) in result.stderr


def test_a_journal_does_not_replace_a_file_of_the_run(folder: Path) -> None:
    models = sorted(folder.glob("*.onnx"))
    report = folder / "report.json"
    before = models[0].read_bytes()
    for journal, more in ((models[0], ()), (report, ("--report", report))):
        result = run(None, "check", *models, "--journal", journal, *more)
        assert result.returncode == 2
        assert "name another file" in result.stderr
    assert models[0].read_bytes() == before
    assert not report.exists()


def test_a_journal_that_cannot_be_written_to_ends_the_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    def long(tasks: Sequence[Task], progress: object = None) -> Iterator[Outcome]:
        try:
            yield from here(tasks)
        finally:
            ended.append(True)

    def full(fd: int, data: bytes) -> None:
        if b"report" in data:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(journals, "_write", full)
    tasks = tasks_of([str(folder / "*.onnx")], "check", LIGHT, stamped=True)
    with pytest.raises(OnnxfixError, match="journal: cannot be written: No space left"):
        list(drive(tasks, long, folder / "journal"))
    assert ended == [True]


@pytest.mark.parametrize("more", [(), ("--output-dir", "s3://bucket/out")])
def test_without_a_local_folder_the_journal_needs_a_name(tmp_path: Path, more: tuple[str, ...]) -> None:
    result = run(None, "apply", write(tmp_path / "m.onnx"), "--resume", *more)
    assert result.returncode == 2
    assert "name a file by --journal" in result.stderr


@pytest.mark.slow
def test_the_summary_tells_what_was_left_out(folder: Path) -> None:
    models = sorted(folder.glob("*.onnx"))
    call = ("apply", *models, "--no-verify", "--resume", "--output-dir", folder / "out")
    first, second = run(None, *call), run(None, *call)
    assert "skipped" not in first.stdout
    assert second.stdout.splitlines()[-1].endswith("3 unchanged and skipped")
    assert second.stdout.count("unchanged, skipped:") == 3
    assert "  fixed     CST" in first.stdout
    assert "  fixed     CST" not in second.stdout  # told in full already
    assert "  fixed     CST" in run(None, *call, "--verbose").stdout
    document = json.loads(run(None, *call, "--format", "json").stdout)
    assert [report["reused"] for report in document["reports"]] == [True] * 3
    assert without_times(document)["errors"] == []
