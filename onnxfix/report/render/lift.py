"""The result of ``lift`` as text and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from onnxfix.report.render.lines import Line, line
from onnxfix.report.render.proof import PLEASE_REPORT
from onnxfix.trt.lift.records import Lifted
from onnxfix.trt.package import product

MOST = 10
"""Gaps that are listed as text."""


def lifted_data(found: Lifted) -> dict[str, Any]:
    """The fields of ``Lifted``, the path of the model first, as dicts, lists, strings and numbers."""
    return {"model": found.model, **dataclasses.asdict(found)}


def lifted_lines(found: Lifted) -> Iterator[Line]:
    """The outcome, the network's inputs and outputs, notes, and the layers that were not read back."""
    name = product(found.package, found.version) if found.package and found.version else "TensorRT"
    yield line(f"{found.model}: {_outcome(name, found)}", style="bold", hang=2)
    for what, tensors in (("input", found.inputs), ("output", found.outputs)):
        for tensor in tensors:
            dims = ", ".join("?" if d == -1 else str(d) for d in tensor.dims)
            yield line(f"  {what:<7} {tensor.name}  {tensor.dtype} [{dims}]")
    for note in found.notes:
        yield line(f"  note    {note}", hang=10)
    for gap in found.gaps[:MOST]:
        yield line(f"  missing {gap}", style="red", hang=10)
    if len(found.gaps) > MOST:
        yield line(f"  and {len(found.gaps) - MOST} more")


def _outcome(name: str, found: Lifted) -> str:
    count = sum(number for _, number in found.layers)
    layers = f"{count} layer{'s' * (count != 1)}"
    if found.status == "lifted":
        return f"{name} imports it as {layers} → {found.path}"
    if found.status == "unlifted":
        missing = f"{len(found.gaps)} of them {'are' if len(found.gaps) > 1 else 'is'} not read back"
        return f"{name} imports it as {layers} → {found.path}, which cannot be run: {missing}"
    if found.status == "refused":
        return f"{name} refuses it: {found.reason}"
    if found.status == "error":
        return f"reading its network failed: {found.reason} ({PLEASE_REPORT})"
    return f"its network could not be read: {found.reason}"
