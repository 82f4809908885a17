"""What TensorRT's parser takes and its builder refuses is not lost by a fix that the parser refuses for the same."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest

from onnxfix.place import Place
from onnxfix.tensorrt.records import Issue, Stage, Status, TrtBuild

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from random_models import judge

UINT8 = "Loop tensor y_12 has type UINT8, which loops lack"


def _ended(status: Status, stage: Stage, *texts: str, operator: str = "Loop") -> TrtBuild:
    errors = tuple(Issue(stage, "error", text, Place(op_type=operator)) for text in texts)
    return TrtBuild(status, stage, errors)


ACCEPTED = TrtBuild("accepted")
PARSER = _ended("refused", "parse", UINT8)


@pytest.mark.parametrize(
    ("built", "parsed", "lost"),
    [
        (ACCEPTED, PARSER, True),
        (_ended("refused", "build", UINT8), PARSER, False),
        (_ended("refused", "build", "another cause", UINT8.replace("12", "9")), PARSER, False),
        (_ended("refused", "build", UINT8), _ended("refused", "parse", UINT8, "a new cause"), True),
        (_ended("refused", "build", "another cause"), PARSER, True),
        (_ended("refused", "build", UINT8.replace("UINT8", "INT64")), PARSER, True),
        (_ended("refused", "build", UINT8, operator="Scan"), PARSER, True),
        (_ended("timeout", "build", UINT8), PARSER, True),
        (_ended("crash", "build", UINT8), PARSER, True),
        (_ended("memory", "build", UINT8), PARSER, True),
        (_ended("refused", "build", UINT8), _ended("timeout", "parse", UINT8), True),
        (_ended("refused", "build"), _ended("refused", "parse"), True),
        (_ended("refused", "build", "7"), _ended("refused", "parse", "8"), True),
    ],
)
def test_only_the_same_refusal_excuses(
    built: TrtBuild, parsed: TrtBuild, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, fixed = onnx.ModelProto(ir_version=8), onnx.ModelProto(ir_version=9)

    def tried(proto: onnx.ModelProto, *, build: bool) -> TrtBuild:
        return parsed if proto is fixed else built if build else ACCEPTED

    monkeypatch.setattr(judge, "_tried", tried)
    monkeypatch.setattr(judge, "_codes", lambda one: [])
    assert ("lost" in judge.compared(original, fixed, build=False)) == lost
