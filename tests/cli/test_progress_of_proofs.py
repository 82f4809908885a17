"""What a terminal shows while a long proof runs."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.models import write

pty = pytest.importorskip("pty")
SLOW = " ".join(f"a{n + 1} = MatMul(a{n}, a{n})" for n in range(24))
TEXT = f"g (float[1024,1024] a0) => (float[1024,1024] y) {{ {SLOW} y = Tanh(a24) }}"


@pytest.mark.slow
def test_a_long_proof_says_on_a_terminal_which_check_runs_and_how_far_it_is(tmp_path: Path) -> None:
    model = str(write(tmp_path / "a.onnx", TEXT, 17))
    words = [sys.executable, "-m", "onnxfix", "verify", model, model, "--rungs", "ort-cpu"]
    ours, theirs = pty.openpty()
    shown = ""
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # the other end was closed
            while text := os.read(ours, 4096):
                shown += text.decode(errors="replace")
    os.close(ours)
    assert process.returncode == 0, shown
    assert re.search(r"verifying, \d+ %: ort-cpu, feed \d of \d", shown), shown
    assert re.search(r"about \d+ s left", shown), shown
    piped = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert (piped.returncode, piped.stderr) == (0, "")
