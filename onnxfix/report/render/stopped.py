"""Where a model stops, in lines, and the command to continue with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxfix import system
from onnxfix.report.render.sizes import range_text

if TYPE_CHECKING:
    from onnxfix.pipeline.intake import InputKind
    from onnxfix.pipeline.stopped import Needed, Stopped

_FILE = "inputs.npz"


_EXPORT_AGAIN = (
    "the fault is in the original: export it again, with PyTorch's other exporter or another opset"
)


def stopped_lines(found: Stopped, path: str, command: str) -> Iterator[str]:
    """Lines for a run of ``command`` on the model at ``path``."""
    if not found.loaded:
        yield f"ONNX Runtime does not load the original, with any inputs: {found.said}"
        if not found.gap:
            yield _EXPORT_AGAIN
        return
    sizes = ", ".join(f"{name}={size}" for name, size in found.fed.items())
    fed = f" with {sizes}" if sizes else ""
    yield f"it stops at {stop_of(found)}{fed}: {found.said}"
    yield from (f"this {found.op_type} requires: {_needed(one)}" for one in found.needed)
    for one in found.sizes:
        if one.least is None or one.most is not None or one.least > 1 or one.step > 1:
            yield f"{one.symbol}: {range_text(one)}"
    if found.shapes:
        unknown = any(one.least is None for one in found.sizes)
        begin = "this was tried" if unknown else "replace the question mark by a size"
        yield f"{begin}: {_command(command, path, '--input-shapes', found.shapes)}"
    if found.inputs:
        begin = "or pass" if found.shapes else "pass"
        inputs = ", ".join(map(_input, found.inputs))
        yield f"{begin} the values in {_FILE} ({inputs}): {_command(command, path, '--inputs', _FILE)}"
    if found.needed and not (found.sizes or found.shapes or found.inputs):
        yield f"no inputs change that: {_EXPORT_AGAIN}"


def stop_of(found: Stopped) -> str:
    """The node at which the original stops."""
    return f"{found.place} ({found.op_type})" if found.place.known else "an unknown node"


def _needed(one: Needed) -> str:
    depends = f", which depends on the values of {', '.join(one.inputs)}" if one.inputs else ""
    return f"{one.words}{depends}"


def _input(one: InputKind) -> str:
    dims = "" if one.dims is None else f" [{', '.join(map(str, one.dims))}]"
    return f"{one.name}: {one.type}{dims}"


def _command(command: str, path: str, option: str, value: str) -> str:
    model = system.quoted_path(path)
    return f"onnxfix {command} {model} {option} {system.quoted(value)}"
