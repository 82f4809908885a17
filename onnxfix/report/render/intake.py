"""The inputs that a model accepts, in lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxfix.report.render.sizes import range_text

if TYPE_CHECKING:
    from onnxfix.pipeline.intake import Example, InputKind, Intake, Way

_SHOWN = 8  # examples


def intake_lines(intake: Intake, verbose: bool) -> Iterator[str]:
    """Lines about inputs, sizes and examples; ``verbose`` adds the operators that require the sizes."""
    for one in intake.inputs:
        yield f"input {one.name}: {_kind(one)}"
    for way in intake.ways:
        yield from _way(way, verbose)
    yield from map(_example, intake.examples if verbose else intake.examples[:_SHOWN])


def _kind(one: InputKind) -> str:
    dims = "of unknown rank" if one.dims is None else f"[{', '.join(map(str, one.dims))}]"
    values = f"; the model distinguishes the values {', '.join(map(str, one.values))}" if one.values else ""
    limits = "".join(f"; {limit}" for limit in one.limits)
    return f"{one.type} {dims}{', optional' if one.optional else ''}{values}{limits}"


def _way(way: Way, verbose: bool) -> Iterator[str]:
    values = ", ".join(f"{name}={value}" for name, value in way.values.items())
    indent = ""
    if values:
        yield f"where {values}:"
        indent = "  "
    for one in way.sizes:
        yield f"{indent}{one.symbol}: {range_text(one)}"
        if verbose:
            yield from (f"{indent}  {reason}" for reason in one.because)
    yield from (f"{indent}{one}" for one in way.conditions)


def _example(one: Example) -> str:
    if one.ran is None:
        return f"not tried: {one.words} (ONNX Runtime is not installed)"
    return f"runs: {one.words}" if one.ran else f"fails: {one.words}: {one.reason}"
