"""onnxfix on other systems, by its source: what some system lacks is used where it has been found."""

from __future__ import annotations

import ast
import errno
import ntpath
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from onnxfix import _child, system
from onnxfix.files import atomic, lazy
from onnxfix.report.render import doctor
from onnxfix.report.render.stream import Stream
from support.missing_names import MISSING, MODULES
from support.paths import ROOT

WINDOWS_MODULES = {"_winapi", "msvcrt", "winreg", "winsound"}
ELSEWHERE = MODULES | WINDOWS_MODULES
WINDOWS_NAMES = {
    "os": {"O_BINARY", "startfile"},
    "signal": {"CTRL_BREAK_EVENT", "CTRL_C_EVENT", "SIGBREAK"},
    "ctypes": {"WinDLL", "WinError", "windll", "wintypes"},
}
PARTIAL = {
    name: MISSING.get(name, set()) | WINDOWS_NAMES.get(name, set()) for name in {*MISSING, *WINDOWS_NAMES}
}
"""Module -> what it has on some systems only."""
USE = re.compile(
    rf"\b(?:{'|'.join(PARTIAL)})\.(?:{'|'.join(sorted({name for names in PARTIAL.values() for name in names}))})\b"
    rf"|\bimport\s+(?:{'|'.join(ELSEWHERE)})\b|\bfrom\s+(?:{'|'.join(ELSEWHERE | PARTIAL.keys())})\s"
)


def bare_uses(source: str) -> list[str]:
    """Uses of what some system lacks that nothing guards: ``line: name``.

    A guard is ``hasattr(MODULE, NAME)``, a comparison of ``sys.platform`` or ``os.name`` in the test of an ``if``, an
    ``and``, a loop or a conditional expression around the use or, where its branch always leaves, before it in the same
    function; or an ``except ImportError`` around an import.
    """
    if not USE.search(source):
        return []
    found: list[str] = []
    _visit(ast.parse(source), set(), False, found)
    return found


def _guards(test: ast.AST) -> set[str]:
    """The names that an expression asks about; "*" for the system as a whole."""
    names = set()
    for node in ast.walk(test):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "hasattr":
            names.add(f"{ast.unparse(node.args[0])}.{ast.literal_eval(node.args[1])}")
        if isinstance(node, ast.Compare | ast.Call) and re.search(
            r"\b(sys\.platform|os\.name)\b", ast.unparse(node)
        ):
            names.add("*")
    return names


def _leaves(body: list[ast.stmt]) -> bool:
    last = body[-1]
    if isinstance(last, ast.With):
        return _leaves(last.body)
    return isinstance(last, ast.Return | ast.Raise | ast.Continue | ast.Break)


def _visit(node: ast.AST, known: set[str], inside: bool, found: list[str]) -> None:
    """Collect uses in ``node``; ``inside`` a function, ``known`` is what has been asked about so far."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        for name in names:
            if name in ELSEWHERE and not (inside and known & {"*", "ImportError"}):
                found.append(f"{node.lineno}: {name}")
            if isinstance(node, ast.ImportFrom) and name in PARTIAL:
                found += [f"{node.lineno}: {name}.{a.name}" for a in node.names if a.name in PARTIAL[name]]
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        name = f"{node.value.id}.{node.attr}"
        if node.attr in PARTIAL.get(node.value.id, ()) and not known & {name, "*"}:
            found.append(f"{node.lineno}: {name}")
    function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for _, value in ast.iter_fields(node):
        own = set(known)
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            own |= _guards(node.test)
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            own |= _guards(node)
        if isinstance(node, ast.Try) and any(
            "ImportError" in ast.unparse(one.type or node) for one in node.handlers
        ):
            own.add("ImportError")
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            default = function and child in (node.args, *node.decorator_list)  # evaluated at import
            _visit(child, own, inside or (function and not default), found)
            if isinstance(child, ast.If) and _leaves(child.body):
                own |= _guards(child.test)


def sources() -> Iterator[Path]:
    for folder in (ROOT / "onnxfix", ROOT / "rules" / "onnxfix_rules"):
        yield from folder.rglob("*.py")


def test_what_some_system_lacks_is_used_where_it_has_been_found() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{use}"
        for path in sources()
        for use in bare_uses(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "uses"),
    [
        ("import fcntl", ["1: fcntl"]),
        ("try:\n    import fcntl\nexcept ImportError:\n    pass", ["2: fcntl"]),
        ("def f():\n    import resource", ["2: resource"]),
        ("def f():\n    try:\n        import fcntl\n    except ImportError:\n        pass", []),
        ("from os import fork", ["1: os.fork"]),
        ("def f(number=signal.SIGKILL): pass", ["1: signal.SIGKILL"]),
        ("def f():\n    os.killpg(1, 2)", ["2: os.killpg"]),
        ("def f():\n    if hasattr(os, 'killpg'):\n        os.killpg(1, 2)", []),
        ("def f():\n    if hasattr(os, 'fork'):\n        os.killpg(1, 2)", ["3: os.killpg"]),
        ("def f():\n    if not hasattr(os, 'fork'):\n        return\n    os.fork()", []),
        ("def f():\n    if not hasattr(os, 'fork'):\n        print()\n    os.fork()", ["4: os.fork"]),
        ("def f():\n    if sys.platform == 'win32':\n        return\n    os.getegid()", []),
        ("x = getattr(os, 'O_PATH', 0)", []),
        ("while n and hasattr(os, 'pread'): os.pread(1, 2, 3)", []),
    ],
)
def test_the_guards_are_understood(source: str, uses: list[str]) -> None:
    assert bare_uses(source) == uses


def test_every_lack_is_explained() -> None:
    assert set(doctor._LACKS) == set(system.Lack)


def test_what_is_taken_away_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(system.lacks())
    monkeypatch.delattr(os, "fork", raising=False)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert set(system.lacks()) == before | {system.Lack.FORK, system.Lack.FILE_LOCKS}


def test_bytes_are_read_at_an_offset_without_pread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"0123456789")
    monkeypatch.delattr(os, "pread", raising=False)
    fd = os.open(path, system.READ)
    try:
        assert [system.read_at(fd, 3, at) for at in (7, 2, 9, 10)] == [b"789", b"234", b"9", b""]
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("error", "free"), [(None, True), (PermissionError(13, ""), False), (OSError(22, ""), True)]
)
def test_a_lock_by_the_means_of_windows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: OSError | None, free: bool
) -> None:
    calls = []

    def locking(fd: int, mode: int, count: int) -> None:
        calls.append((os.lseek(fd, 0, os.SEEK_CUR), mode, count))
        if error is not None:
            raise error

    monkeypatch.setattr(system, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(LK_NBLCK=2, locking=locking))
    with (tmp_path / "journal").open("w+b") as file:
        file.write(b"lines")
        file.flush()
        assert system.lock(file.fileno()) is free
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 5
        ((at, *rest),) = calls
        assert at > 1 << 30
        assert rest == [2, 1]


@pytest.mark.parametrize(("system_name", "silent"), [("win32", True), ("linux", False)])
def test_a_pipe_that_windows_calls_invalid_is_a_reader_that_left(
    monkeypatch: pytest.MonkeyPatch, system_name: str, silent: bool
) -> None:
    monkeypatch.setattr(system, "sys", SimpleNamespace(platform=system_name))
    stream = Stream(None, "standard output")
    assert system.reader_left(OSError(errno.EINVAL, "Invalid argument")) is silent
    assert system.reader_left(BrokenPipeError())
    assert stream.write("text") == 4


def test_windows_exit_codes_are_crashes() -> None:
    ended = _child.obituary(0xC0000005, "")
    assert (ended.status, ended.killed, ended.message) == ("crash", True, "ended by an access violation")
    assert not _child.obituary(3, "").killed


def test_the_strongest_signal_is_one_that_exists() -> None:
    assert signal.Signals(system.KILL)


@pytest.mark.parametrize(
    ("system_name", "text", "quoted"),
    [
        ("linux", "a b", "'a b'"),
        ("linux", "a.onnx", "a.onnx"),
        ("win32", "C:\\models\\a.onnx", "C:\\models\\a.onnx"),
        ("win32", "C:\\my models\\a&b.onnx", '"C:\\my models\\a&b.onnx"'),
        ("win32", "", '""'),
    ],
)
def test_arguments_are_quoted_for_the_shell(
    monkeypatch: pytest.MonkeyPatch, system_name: str, text: str, quoted: str
) -> None:
    monkeypatch.setattr(system, "sys", SimpleNamespace(platform=system_name))
    assert system.quoted(text) == quoted


def test_another_drive_has_no_relative_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "path", ntpath)
    assert system.relative("D:\\models\\a.onnx", "D:\\models\\b") == "..\\a.onnx"
    assert system.relative("D:\\models\\a.onnx", "C:\\work") == "D:\\models\\a.onnx"


def test_a_file_that_is_in_use_goes_on_as_a_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where open files cannot be replaced, none is open when one is replaced."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old" * 1000)
    source = lazy.Source(path)
    held = os.stat(path)
    monkeypatch.setattr(system, "OPEN_FILES_CAN_BE_REPLACED", False)
    place = os.replace

    def replace(*paths: str, **folders: int) -> None:
        assert not os.path.samestat(os.fstat(source.fd), held), "it is still open"
        place(*paths, **folders)

    monkeypatch.setattr(os, "replace", replace)
    atomic.put(path, b"new")
    assert path.read_bytes() == b"new"
    assert source.read(2997, 3) == b"old"
    source.check()
