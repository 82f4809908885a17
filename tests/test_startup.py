"""What a command loads: nothing that it does not use, and of the rules those that the model is about."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from onnx import parser

from support.paths import ROOT
from support.patience import PATIENCE

pytestmark = pytest.mark.slow

MODEL = """<ir_version: 10, opset_import: ["" : 18]>
g (float[N] x) => (int64[N] y) { a = Cast<to=11>(x) b = Cast<to=7>(a) c = Cast<to=7>(b) y = Identity(c) }"""

PROGRAM = """
import json, os, sys
sys.argv[0] = "onnxfix"
from onnxfix.cli.app import main
try:
    main()
except SystemExit as end:
    code = end.code
blas = os.environ.get("OPENBLAS_NUM_THREADS")
seen = {"modules": sorted(sys.modules), "code": code, "blas": blas}
print(json.dumps(seen), file=sys.stderr)
"""
FOREIGN = {
    "onnxruntime",
    "onnx.reference",
    "onnx.backend",
    "polygraphy",
    "tensorrt",
    "tensorrt_rtx",
    "torch",
    "ray",
}
"""What only verification and fleets use."""
TERMINAL = {"rich", "jinja2"}
"""What only a terminal and HTML need; old versions of typer load rich themselves."""


def within(modules: list[str], names: set[str]) -> set[str]:
    """The modules that are one of ``names``, or in one."""
    found = {module for module in modules for name in names if f"{module}.".startswith(f"{name}.")}
    return found - loaded_by("typer")


@functools.cache
def loaded_by(library: str) -> frozenset[str]:
    """What the import of a library loads."""
    code = f"import json, sys, {library}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    return frozenset(json.loads(done.stdout))


def run(*given: object, program: str = PROGRAM, **environment: str) -> tuple[dict[str, Any], str]:
    """The program as it is started by a user without a terminal: what it had loaded at its end, and what it said."""
    kept = {
        k: v
        for k, v in os.environ.items()
        if k not in ("FORCE_COLOR", "OPENBLAS_NUM_THREADS", "TTY_COMPATIBLE")
    }
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, given)],
        capture_output=True, text=True, cwd=ROOT, env=kept | environment, timeout=PATIENCE, check=True,
    )  # fmt: skip
    return json.loads(done.stderr.splitlines()[-1]), done.stdout


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(parser.parse_model(MODEL).SerializeToString())
    return path


@pytest.mark.parametrize(
    "more", [[], ["--format", "json"], ["--verbose", "--fail-on", "error", "--select", "CST"]]
)
def test_check_loads_neither_verification_nor_a_terminal(model: Path, more: list[str]) -> None:
    seen, out = run("check", model, *more)
    assert seen["code"] == 0
    assert "CST00" in out
    assert within(seen["modules"], FOREIGN | TERMINAL) == set()
    assert within(seen["modules"], {"onnxfix.rewrite.engine", "onnx"}), (
        "the list of loaded modules is not what it is taken for"
    )


SIZES = """g (float[65] x) => (int64[2,65] y) <int64 zero = {0}, int64 one = {1}, int64 many = {65},
    int64[2] shape = {2, 65}> { r = Range(zero, many, one)  s = Add(r, one)  e = Expand(s, shape)  d = Div(e, one)
    i = Cast<to = 7>(x)  y = Add(d, i) }"""


def test_integers_are_computed_without_the_reference_evaluator(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(parser.parse_model(MODEL.partition("g (")[0] + SIZES).SerializeToString())
    seen, out = run("check", path)
    assert "INT001" in out
    assert within(seen["modules"], FOREIGN) == set()


COMPLETIONS = {"COMP_WORDS": "onnxfix ch", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "onnxfix ch"}


def ending(words: str) -> dict[str, str]:
    """What a shell sets to complete the end of ``onnxfix check m.onnx`` and these words."""
    line = f"onnxfix check m.onnx {words}"
    return {
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }


@pytest.mark.parametrize(
    ("given", "environment", "said"),
    [
        (["--help"], {}, "apply"),
        (["--version"], {}, "onnxfix "),
        (["check", "--help"], {}, "--fail-on"),
        (["apply", "--help"], {}, "--in-place"),
        ([], {"_ONNXFIX_COMPLETE": "complete_bash", **COMPLETIONS}, "check"),
        ([], {"_ONNXFIX_COMPLETE": "complete_zsh", **COMPLETIONS}, "check"),
        ([], {"_ONNXFIX_COMPLETE": "complete_bash", **ending("--select CST,INT00")}, "CST,INT005"),
        ([], {"_ONNXFIX_COMPLETE": "complete_fish", **ending("--target trt8")}, "TensorRT 8.6"),
        ([], {"_ONNXFIX_COMPLETE": "source_bash"}, "_onnxfix_completion"),
    ],
)
def test_help_version_and_completion_load_no_model_library(
    given: list[str], environment: dict[str, str], said: str
) -> None:
    seen, out = run(*given, **environment)
    assert said in out
    libraries = {"onnx", "numpy", "ml_dtypes", "google", "onnxfix_rules"} | FOREIGN
    assert within(seen["modules"], libraries) == set()


def test_a_terminal_gets_its_styles(model: Path) -> None:
    assert "\x1b[" not in run("check", model)[1]
    seen, out = run("check", model, FORCE_COLOR="1", TERM="xterm-256color")
    assert "\x1b[1m" in out
    assert "rich.text" in seen["modules"]


def test_the_users_choice_of_threads_stands(model: Path) -> None:
    assert run("check", model)[0]["blas"] == "1"
    assert run("check", model, OPENBLAS_NUM_THREADS="3")[0]["blas"] == "3"
