"""For tests of fleets: small models, and a rule pack of a third party whose rule misbehaves on nodes of certain names.

The pack is installed as any other is, by an entry point in the metadata of a distribution on PYTHONPATH, so that worker
processes find it as they find real ones.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support import cli, models
from support.paths import ROOT


@pytest.fixture(scope="module", autouse=True)
def variables_as_before() -> Iterator[None]:
    """Ray sets variables of the process that starts it. With them, no test's child could be one of the nursery."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


PACK = '''"""Misbehaves on Neg nodes by their names, and keeps a log of the models that it has seen."""

import ctypes, os, pathlib, signal, sys, time
from onnxfix.rule import Severity, rule

HERE = pathlib.Path(__file__).parent
LIMBO = []


def _log(name):
    with open(HERE / "seen", "a") as file:
        file.write(f"{name} {os.getpid()}\\n")


@rule("ZZZ001", ops=["Neg"], severity=Severity.INFO)
def misbehaves(node, model):
    """What it does hangs on the name.

    ## Why it matters
    It is for tests.
    ## Fix
    None.
    ## References
    None.
    """
    name = model.proto.graph.name
    _log(name)
    what = node.name
    if what == "abort":
        os.abort()
    if what == "exit":
        os._exit(3)
    if what == "segfault":
        ctypes.string_at(0)
    if what == "sys.exit":
        sys.exit(5)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "kill once" and not (HERE / "killed").exists():
        (HERE / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if what.startswith("eat"):
        LIMBO.append(bytearray(int(what.split()[1]) << 20))
        LIMBO.clear()
    if what == "sleep":
        slept = 0.0
        while slept < float((HERE / "seconds").read_text()):  # which a test may change meanwhile
            time.sleep(0.05)  # Ray interrupts between two instructions of Python, not in a system call
            slept += 0.05
    if what == "environment":
        (HERE / "environment").write_text(repr(dict(os.environ)))
    return
    yield
'''


def install(folder: Path) -> Path:
    """Install the pack; returns the folder for PYTHONPATH."""
    info = folder / "misbehaving_rules-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "misbehaving_rules.py").write_text(PACK)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: misbehaving-rules\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[onnxfix.rules]\nmisbehaving = misbehaving_rules\n")
    return folder


def seen(pack: Path) -> list[str]:
    """The names of the graphs that the pack's rule has looked at, in order."""
    log = pack / "seen"
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


def write(path: Path, node: str = "", *, fixable: bool = True) -> Path:
    """A model of the file's name with a Neg node of this name and, if ``fixable``, Casts that need not be."""
    casts = "b = Cast<to=7>(a) c = Cast<to=7>(b) y = Cast<to=7>(c)" if fixable else "y = Cast<to=7>(a)"
    proto = models.model(f"g (float[N] x) => (int64[N] y) {{ a = Neg(x) {casts} }}", 18)
    proto.graph.name = path.stem
    proto.graph.node[0].name = node
    return models.write(path, proto)


def environment(pack: Path | None = None) -> dict[str, str]:
    """Of a process that runs this source tree, and sees the pack."""
    paths = [str(ROOT), str(ROOT / "rules"), os.environ.get("PYTHONPATH", "")]
    return dict(
        os.environ, PYTHONPATH=os.pathsep.join([*([str(pack)] if pack else []), *filter(None, paths)])
    )


def command(*arguments: object) -> list[str]:
    """The command line of onnxfix with these arguments."""
    return [sys.executable, "-m", "onnxfix", *map(str, arguments)]


@contextmanager
def started(*arguments: object, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """A call of onnxfix in a process of its own, which signals end as they end a user's; it is gone afterwards."""
    process = subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a shell's background jobs ignore it
        **more,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def run(pack: Path | None, *arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """Call onnxfix in a process of its own if it is to see the pack, else in this one, which is quicker."""
    if pack is None:
        return subprocess.CompletedProcess(arguments, *cli.run(*arguments))
    return cli.process(*arguments, env=environment(pack), **more)


def without_times(value: Any) -> Any:
    """A report's JSON without what differs from run to run."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if "seconds" not in key}
    return [without_times(item) for item in value] if isinstance(value, list) else value
