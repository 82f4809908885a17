"""``onnxfix apply``."""

from __future__ import annotations

from onnxfix.cli.commands import COMMANDS
from onnxfix.cli.given import Given
from onnxfix.cli.runs import configure, run_models
from onnxfix.errors import UsageError
from onnxfix.options import RunOptions, Verification
from onnxfix.pipeline.whole.steps import steps_of
from onnxfix.trt.records import TrtOptions

_OF_PROOF = ("require", "rungs", "rtol", "atol", "save_engine", "benchmark", "model_check")
_OF_INPUTS = ("inputs", "input_shapes")
_WRITTEN = ("output", "output_dir", "in_place", "save_engine", "resume", "journal")


def apply(given: Given) -> None:
    """Repair models."""
    holding = configure(given)
    if given.no_verify and _given(given, _OF_PROOF):
        raise UsageError(
            "--no-verify contradicts --require, --rungs, --rtol, --atol, --save-engine, --benchmark and --model-check"
        )
    if given.no_verify and not given.static and _given(given, _OF_INPUTS):
        raise UsageError("--inputs and --input-shapes have no effect with --no-verify")
    if given.diff and (written := _given(given, _WRITTEN)):
        raise UsageError(f"--diff writes no model; it contradicts {', '.join(written)}")
    options = RunOptions(verification=Verification(enabled=not given.no_verify), trt=TrtOptions())
    options = options.with_fields(given.fields())
    steps_of(given.simplify, given.graphsurgeon or ())  # steps that cannot run are refused before any work
    run_models(given, holding, "apply", options)


def _given(given: Given, names: tuple[str, ...]) -> list[str]:
    """The flags of those options that were given."""
    return given.flags_given(option for option in COMMANDS["apply"].options if option.name in names)
