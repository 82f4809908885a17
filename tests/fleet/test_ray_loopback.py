"""``--ray local``: whoever reaches Ray's ports can run code, so that they are this machine's alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="the extra 'ray' is not installed")

from onnxfix.errors import OnnxfixError
from onnxfix.verbs.fleet import ray as fleet
from support.fleets import variables_as_before

__all__ = ["variables_as_before"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

_LISTENING = "0A"


def family(pid: int) -> Iterator[int]:
    """A process and all that it started."""
    yield pid
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            yield from family(int(child))


def sockets(pid: int) -> Iterator[str]:
    """The numbers of a process's sockets."""
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        try:
            kind, _, number = os.readlink(handle).partition("[")
        except OSError:  # closed meanwhile
            continue
        if kind == "socket:":
            yield number.removesuffix("]")


def listening(pid: int) -> list[str]:
    """The addresses at which a process and all that it started can be reached, as the kernel writes them."""
    own = {number for one in family(pid) for number in sockets(one)}
    tables = [Path("/proc/net", name).read_text(encoding="ascii").splitlines() for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table]
    return [line[1].partition(":")[0] for line in lines if line[3] == _LISTENING and line[9] in own]


def test_a_local_instance_listens_on_the_loopback_only() -> None:
    variable = os.environ.get(fleet._CLUSTERS)
    with fleet.connected("local") as ray:

        @ray.remote
        def one() -> int:
            return 1

        assert ray.get(one.remote()) == 1  # a worker runs, which listens too
        found = listening(os.getpid())
    assert len(found) > 3
    assert set(found) <= {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1, alone and in IPv6
    assert os.environ.get(fleet._CLUSTERS) == variable  # another cluster of this process is another matter


def test_an_instance_that_others_could_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of Ray that does not know the setting."""
    import ray

    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.2")
    with pytest.raises(OnnxfixError, match=r"--ray local: Ray would listen at 192\.0\.2\.2"):
        fleet._connect(ray, "local")
