"""A journal that somebody else wrote: what was not checked is not believed, and nothing in it does harm."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onnxfix.report.render.text import render_report
from onnxfix.verbs.fleet import contents
from onnxfix.verbs.fleet.drive import tasks_of
from onnxfix.verbs.fleet.journal import Journal
from onnxfix.verbs.fleet.work import Task, perform
from support import cli
from support.fleets import write
from support.options import run_options

pytestmark = pytest.mark.slow

EVIL = "\x1b]0;title\x07\x1b[2Jforged\nline\x9b31m\u202e\ud800"
"""What a terminal would obey, a line break, and what is no Unicode."""


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """A task that is done and in the journal."""
    path = write(tmp_path / "m.onnx")
    options = run_options(verify=False)
    (found,) = tasks_of([str(path)], "apply", options, output_dir=str(tmp_path / "out"), stamped=True)
    with Journal(tmp_path / "journal") as journal:
        journal.note(perform(found))
    assert reused(found)
    return found


def journal_of(task: Task) -> Path:
    return Path(task.source).parent / "journal"


def reused(task: Task) -> bool:
    with Journal(journal_of(task)) as journal:
        return journal.done(task) is not None


def entry_of(task: Task) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(journal_of(task).read_bytes().split(b"\n")[1])
    return found


def forge(task: Task, entry: dict[str, Any]) -> None:
    path = journal_of(task)
    path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n" + json.dumps(entry).encode() + b"\n")


def test_what_is_no_file_is_not_waited_for(task: Task, tmp_path: Path) -> None:
    """A named pipe blocks whoever opens it, and a device may have no end."""
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/tty"), tmp_path):
        assert contents.hash_file(str(place)) == ""
        entry = entry_of(task)
        entry["files"][str(place)] = ""
        forge(task, entry)
        assert not reused(task), place


def test_a_changed_result_is_found(task: Task) -> None:
    result = Path(task.target)
    result.write_bytes(result.read_bytes() + b"\x08\x08")
    assert not reused(task)
    entry = entry_of(task)
    del entry["files"][str(result)]
    forge(task, entry)
    assert not reused(task)


def test_a_line_names_the_files_of_its_task_and_no_others(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.onnx"
    other.write_bytes(Path(task.source).read_bytes())
    good, read = entry_of(task), []
    files = good["files"]
    digest = contents.digest
    monkeypatch.setattr(contents, "digest", lambda path: read.append(path) or digest(path))
    for change in (
        {"files": {}},
        {"files": {str(other): files[task.source]}},
        {"files": files | {str(other): files[task.source]}},
    ):
        forge(task, good | change)
        assert not reused(task), change
    forge(task, good)
    assert reused(task)
    assert set(read) == {task.source, task.target}


def texts(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the texts of a record are, once for each field of its tuples' items."""
    if isinstance(value, str):
        yield place
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from texts(getattr(value, field.name), (*place, field.name))
    elif isinstance(value, tuple) and value:
        yield from texts(value[0], (*place, 0))


def with_text(value: Any, place: tuple[Any, ...]) -> Any:
    """A record with another text at this place."""
    if not place:
        return EVIL
    if isinstance(value, tuple):
        return (with_text(value[0], place[1:]), *value[1:])
    return dataclasses.replace(value, **{place[0]: with_text(getattr(value, place[0]), place[1:])})


def test_no_text_of_a_line_reaches_the_terminal_as_it_is(task: Task) -> None:
    good, shown = entry_of(task), 0
    with Journal(journal_of(task)) as journal:
        report = journal.done(task).report
    for place in texts(report):
        data = pickle.dumps(with_text(report, place))
        forge(task, good | {"report": base64.b64encode(data).decode()})
        with Journal(journal_of(task)) as journal:
            forged = journal.done(task).report
        try:
            lines = ["".join(text for text, _ in line.pieces) for line in render_report(forged, verbose=True)]
        except (KeyError, ValueError):
            continue  # no report could be so
        shown += any("forged" in line for line in lines)
        assert not [line for line in lines if set(line) & set("\x1b\x07\n\x9b\u202e\ud800")], place
    assert shown > 3  # some of it is printed, escaped


def test_a_line_is_read_as_data(task: Task, tmp_path: Path) -> None:
    """A pickle can name any function, and have it called."""

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "made"),)

    for value in (Evil(), {"path": "no report"}):
        forge(task, entry_of(task) | {"report": base64.b64encode(pickle.dumps(value)).decode()})
        assert not reused(task)
    assert not (tmp_path / "made").exists()


def test_a_forged_line_ends_in_no_traceback(task: Task, tmp_path: Path) -> None:
    """Deep nesting, huge numbers, text that is no Unicode, and half a line."""
    good = json.dumps(entry_of(task))
    lines = (
        "[" * 100_000,
        good.replace('"report": "', '"report": "AAAA', 1),
        good.replace(task.source, "\\u0000"),
        good[:100],
    )
    for line in lines:
        path = journal_of(task)
        path.write_bytes(b'{"onnxfix-journal": 1}\n' + line.encode() + b"\n")
        assert not reused(task)
    given = ("apply", tmp_path / "m.onnx", "--output-dir", tmp_path / "out", "--no-verify")
    journal_of(task).write_bytes(b'{"onnxfix-journal": 1}\n' + lines[0].encode() + b"\n")
    code, _, err = cli.run(*given, "--resume", "--journal", journal_of(task))
    assert (code, err) == (0, "")
