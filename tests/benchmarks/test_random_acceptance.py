"""What TensorRT's parser takes and its builder refuses is not lost by a fix."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from random_models import acceptance


@pytest.mark.parametrize(("builds", "lost"), [(True, True), (False, False)])
def test_lost_is_what_was_built(builds: bool, lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    original, fixed = onnx.ModelProto(ir_version=8), onnx.ModelProto(ir_version=9)

    def tried(proto: onnx.ModelProto, *, build: bool) -> Any:
        accepted = proto is original and (builds or not build)
        return SimpleNamespace(accepted=accepted, status="refused", stage="parse", reason="why")

    monkeypatch.setattr(acceptance, "_tried", tried)
    monkeypatch.setattr(acceptance, "_codes", lambda one: [])
    assert ("lost" in acceptance.compared(original, fixed, build=False)) == lost
