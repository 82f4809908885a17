"""How far TensorRT's builder is, in the line that a terminal shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from support.fleets import command, environment
from support.paths import FIXTURES
from support.real_tensorrt import REAL

pytestmark = [
    pytest.mark.slow,
    REAL,
    pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal of POSIX"),
]


def test_a_terminal_shows_how_far_a_build_is() -> None:
    """Its share and its phase, in the line of the step; other output has neither."""
    line = command("layers", FIXTURES / "segformer.dynamo.op20.onnx", "--builds", "2")
    ours, theirs = os.openpty()
    environ = environment() | {"COLUMNS": "200"}
    with subprocess.Popen(line, env=environ, stdout=subprocess.DEVNULL, stderr=theirs) as run:
        os.close(theirs)
        shown = b""
        while data := _read(ours):
            shown += data
    os.close(ours)
    assert run.returncode == 0
    assert re.search(rb"segformer.dynamo.op20.onnx: building engine \d of 2 \(TensorRT: \d+ %, \w", shown), (
        shown
    )
    line = command("layers", FIXTURES / "vit.legacy.op17.onnx", "--builds", "2")
    assert subprocess.run(line, env=environ, capture_output=True, check=True).stderr == b""


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""
