"""What children cannot do: each thing is tried in a child, and without the confinement it works."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from onnxfix.runtime import confinement
from onnxfix.runtime.confinement import InForce
from onnxfix.runtime.sandbox import Worker, forked
from support.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("new_children")

HERE = __name__
PARENT = os.getpid()
_IO_URING_SETUP, _PROCESS_VM_READV = 425, {"x86_64": 310, "aarch64": 270}
_PTRACE_ATTACH = 16


def tried(action: Callable[[], object]) -> str:
    """The name of the error that an action ends with, "" where it works."""
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def called(number: int, *arguments: int) -> None:
    """A system call by its number.

    Raises:
        OSError: it failed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *(ctypes.c_long(argument) for argument in arguments)) < 0:
        raise OSError(ctypes.get_errno(), "")


def family(kind: int) -> str:
    return tried(lambda: socket.socket(kind, socket.SOCK_STREAM).close())


def sockets() -> dict[str, str]:
    pair = tried(lambda: [end.close() for end in socket.socketpair()])
    kinds = {"IPv4": socket.AF_INET, "IPv6": socket.AF_INET6, "local": socket.AF_UNIX}
    return {name: family(kind) for name, kind in kinds.items()} | {"pair": pair}


def ring() -> str:
    room = ctypes.create_string_buffer(256)
    return tried(lambda: called(_IO_URING_SETUP, 1, ctypes.addressof(room)))


def reach(parent: int) -> dict[str, str]:
    libc = ctypes.CDLL(None, use_errno=True)

    def attach() -> None:
        if libc.ptrace(_PTRACE_ATTACH, parent, None, None) < 0:
            raise OSError(ctypes.get_errno(), "")

    here = ctypes.create_string_buffer(16)
    vector = ctypes.create_string_buffer(struct.pack("PL", ctypes.addressof(here), 8))
    there = ctypes.addressof(vector)
    number = _PROCESS_VM_READV[os.uname().machine]
    return {
        "signal": tried(lambda: os.kill(parent, 0)),
        "ptrace": tried(attach),
        "memory": tried(lambda: called(number, parent, there, 1, there, 1, 0)),
        "environment": tried(lambda: known(Path(f"/proc/{parent}/environ").read_bytes())),
        "itself": tried(lambda: os.kill(os.getpid(), 0)),
    }


def known(content: bytes) -> None:
    """An error where a file of the system is shown empty instead of being refused."""
    if not content:
        raise OSError(errno.EACCES, "")


def in_a_program() -> str:
    code = "import socket, sys\ntry: socket.socket()\nexcept OSError as error: sys.exit(str(error.errno))"
    done = subprocess.run([sys.executable, "-S", "-c", code], stderr=subprocess.PIPE, check=False)
    return done.stderr.decode().strip()


def shares() -> bool:
    found = confinement.policy()
    assert found is not None
    return found.local_sockets


def in_force() -> InForce:
    return confinement.in_force()


@pytest.fixture(scope="module")
def available() -> None:
    """Skips where this system cannot confine children, and says why."""
    found = forked(in_force, timeout=PATIENCE)
    if not (found.ok and not found.value.reason):
        pytest.skip(f"children cannot be confined here: {found.value or found.message}")


needs = pytest.mark.usefixtures("available")


@needs
def test_a_fork_has_no_sockets_but_pairs() -> None:
    refused = {"IPv4": "EACCES", "IPv6": "EACCES", "local": "EACCES", "pair": ""}
    assert forked(sockets, timeout=PATIENCE).value == refused
    assert forked(ring, timeout=PATIENCE).value == "EACCES"
    assert set(sockets().values()) == {""}  # this process itself keeps them


@needs
def test_a_fork_does_not_reach_this_process() -> None:
    found = forked(reach, os.getpid(), timeout=PATIENCE).value
    assert found.pop("itself") == ""
    assert set(found) == {"signal", "ptrace", "memory", "environment"}
    assert set(found.values()) <= {"EACCES", "EPERM"}


@needs
def test_a_program_that_a_fork_starts_has_no_network_either() -> None:
    assert forked(in_a_program, timeout=PATIENCE).value == str(errno.EACCES)


@pytest.mark.slow
@needs
def test_a_worker_is_confined() -> None:
    with Worker() as worker:
        found = worker.call("onnxfix.runtime.confinement:in_force", timeout=PATIENCE)
    assert found.value == InForce(True, True, True)


def test_the_switch_turns_it_off_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(confinement.SWITCH, "off")
    assert forked(in_force, timeout=PATIENCE).value == InForce(reason="ONNXFIX_CONFINEMENT=off")
    monkeypatch.setenv(confinement.SWITCH, "of")  # not a word that it knows: nothing is weakened
    assert confinement.policy() is not None


def test_a_service_that_shares_the_gpu_stays_reachable(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")
    monkeypatch.setattr(confinement, "nvidia_devices", lambda: [])
    assert shares() is False
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path_factory.getbasetemp()))
    assert shares() is True


def test_cuda_starts_and_another_driver_gets_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured on an H200: without local sockets cuInit is error 304; the files of WSL and Jetson are not known."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")
    for devices, local, files in (
        (["nvidia0", "nvidiactl"], True, True),
        (["dxg"], True, False),
        ([], False, True),
    ):
        monkeypatch.setattr(confinement, "nvidia_devices", lambda devices=devices: devices)
        found = confinement.policy()
        assert found is not None
        assert (found.local_sockets, found.files) == (local, files)


# ---- files


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home directory with secrets and a model in it, outside of the folder for temporary files."""
    root = tmp_path_factory.mktemp("users")
    temporary = tmp_path_factory.mktemp("temporary")
    found = root / "somebody"
    for name in (".ssh/id", ".config/token", ".hub/model.onnx", "models/model.onnx", "model.onnx"):
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_text(name, encoding="ascii")
    monkeypatch.setenv("HOME", str(found))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(confinement, "_named", {})
    confinement._homes.cache_clear()
    yield found
    confinement._homes.cache_clear()


def opened(paths: Sequence[Path]) -> list[str]:
    return [tried(lambda path=path: path.read_bytes()) for path in paths]


def written(paths: Sequence[Path]) -> list[str]:
    return [tried(lambda path=path: path.write_bytes(b"changed")) for path in paths]


def used(action: Callable[[Sequence[Path]], list[str]], *paths: Path) -> list[str]:
    found: list[str] = forked(action, paths, timeout=PATIENCE).value
    return found


@pytest.mark.slow
@needs
def test_hidden_files_of_a_home_can_neither_be_read_nor_written(home: Path) -> None:
    secrets = home / ".ssh" / "id", home / ".config" / "token", home / ".hub" / "model.onnx"
    assert used(opened, *secrets) == ["EACCES"] * 3
    assert used(written, *secrets, home / ".bashrc", home / "new") == ["EACCES"] * 5
    assert used(opened, home / "models" / "model.onnx", home / "model.onnx") == ["", ""]
    assert secrets[0].read_text(encoding="ascii") == ".ssh/id"


@pytest.mark.slow
@needs
def test_what_is_named_is_open_and_its_neighbors_are_not(home: Path) -> None:
    model, link = home / ".hub" / "model.onnx", home / ".hub" / "snapshot" / "model.onnx"
    link.parent.mkdir()
    link.symlink_to(model)
    confinement.name(link)  # as in a cache of downloads: the file is elsewhere
    assert used(opened, link, model, home / ".ssh" / "id") == ["", "", "EACCES"]
    temporary = home / ".model.onnx.abcdefgh.tmp"
    temporary.touch()
    assert used(opened, temporary) == ["EACCES"]
    confinement.name(temporary)  # in the home itself: the file alone
    assert used(opened, temporary, home / ".ssh" / "id") == ["", "EACCES"]


@pytest.mark.slow
@needs
def test_the_system_is_read_only_and_temporary_files_are_not(home: Path) -> None:
    scratch = Path(tempfile.gettempdir()) / "scratch"
    system = (
        Path("/etc/onnxfix-test"),
        Path(sys.base_prefix) / "onnxfix-test",
        Path(f"/proc/{os.getpid()}/comm"),
    )
    assert used(written, scratch, Path("/proc/self/comm"), *system) == ["", "", *["EACCES"] * 3]
    assert (
        used(opened, scratch, Path("/etc/passwd"), Path(os.__file__), Path("/proc/self/status")) == [""] * 4
    )


def opened_by_a_child(paths: Sequence[Path]) -> list[str]:
    return used(opened, *paths)


def list_root(_: object) -> list[str]:
    return [tried(lambda: os.listdir("/"))]


@needs
def test_a_child_of_a_child_opens_the_system(home: Path) -> None:
    """It cannot list the root, where others find the system's folders; without them its libraries do not load."""
    scratch = Path(tempfile.gettempdir()) / "scratch"
    scratch.touch()
    paths = Path("/etc/passwd"), scratch, home / ".ssh" / "id"
    assert used(list_root) == ["EACCES"]
    assert used(opened_by_a_child, *paths) == ["", "", "EACCES"]


@pytest.mark.slow
@needs
def test_a_worker_that_cannot_open_what_was_named_is_replaced(home: Path) -> None:
    late = home / "late" / "model.onnx"
    with Worker() as worker:
        worker.call(f"{HERE}:opened", timeout=PATIENCE, paths=[])
        first = worker.generation
        confinement.name(home / "models" / "model.onnx")  # open already
        assert worker.call(f"{HERE}:opened", timeout=PATIENCE, paths=[home / ".ssh" / "id"]).value == [
            "EACCES"
        ]
        assert worker.generation == first
        late.parent.mkdir()
        late.touch()
        confinement.name(late)
        assert worker.call(f"{HERE}:opened", timeout=PATIENCE, paths=[late]).value == [""]
        assert worker.generation == first + 1
        shutil.rmtree(late.parent)
        late.parent.mkdir()
        late.touch()  # at the same place, but another folder
        assert worker.call(f"{HERE}:opened", timeout=PATIENCE, paths=[late]).value == [""]
        assert worker.generation == first + 2


@pytest.mark.slow
def test_the_switch_can_leave_files_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(confinement.SWITCH, "network")
    assert used(opened, home / ".ssh" / "id") == [""]
    found = forked(in_force, timeout=PATIENCE).value
    assert (found.files, found.reason) == (False, "ONNXFIX_CONFINEMENT=network")


# ---- the filter, as the kernel runs it: for each processor, on any

_NAMES = {
    "x86_64": {"socket": 41, "kill": 62, "read": 0},
    "aarch64": {"socket": 198, "kill": 129, "read": 63},
}


def verdict(program: bytes, arch: int, number: int, first: int = 0) -> str:
    """What a filter says to a call."""
    call = struct.pack("<iIQQQQQQQ", number, arch, 0, first, 0, 0, 0, 0, 0)
    lines = list(struct.iter_unpack("=HBBI", program))
    at, loaded = 0, 0
    while True:
        code, yes, no, value = lines[at]
        at += 1
        if code == 0x20:
            loaded = struct.unpack_from("<I", call, value)[0]
        elif code == 0x06:
            return {0x7FFF0000: "allowed", 0x00050000 | errno.EACCES: "denied"}[value]
        else:
            holds = loaded == value if code == 0x15 else loaded >= value
            at += yes if holds else no


@pytest.mark.parametrize("processor", sorted(_NAMES))
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("signals", [False, True])
def test_the_filter_denies_what_it_says(processor: str, local: bool, signals: bool) -> None:
    machine, names = confinement._MACHINES[processor], _NAMES[processor]
    program = confinement._make_program(machine, local, signals)

    def says(number: int, first: int = 0, arch: int = machine.arch) -> str:
        return verdict(program, arch, number, first)

    assert says(names["read"]) == "allowed"
    assert says(names["read"], arch=0x40000003) == "denied"  # by the numbers of 32 bits
    assert says(names["socket"], socket.AF_INET) == "denied"
    assert says(names["socket"], socket.AF_INET6) == "denied"
    assert says(names["socket"], socket.AF_UNIX) == ("allowed" if local else "denied")
    assert says(names["kill"], PARENT) == "allowed"  # the test's own process: the one that made the filter
    for other in (1, PARENT + 1, (1 << 32) - 1):
        assert says(names["kill"], other) == ("allowed" if signals else "denied")
    assert {says(number) for number in machine.denied} == {"denied"}
    assert {says(number) for number in machine.queued} == {"allowed" if signals else "denied"}
    if processor == "x86_64":
        assert says(0x40000000 | names["socket"]) == "denied"
        assert says(0x40000000 | names["read"]) == "denied"
