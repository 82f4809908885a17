"""The result of ``diagnose`` as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any

from onnxfix.diagnosis.records import Diagnosis
from onnxfix.report.render.lines import Line, line, print_lines
from onnxfix.report.render.stream import printable


def diagnosis_json(found: Diagnosis) -> str:
    """One document: the fields of ``Diagnosis``; each culprit with its node's fields at its own level. In ASCII."""
    document = _plain(dataclasses.asdict(found))
    for culprit, one in zip(document["culprits"], found.culprits, strict=True):
        error = culprit.pop("error")
        place = one.error.place
        culprit.update(error)
        culprit.update(node=place.node or place.output, op_type=place.op_type, output=place.output)
    document["exit_code"] = found.exit_code
    return json.dumps(document, indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    """Without numbers that JSON has not: infinity and NaN become None."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show_diagnosis(found: Diagnosis, *, quiet: bool = False, verbose: bool = False) -> None:
    """Print it to standard output."""
    print_lines(diagnosis_lines(found, quiet=quiet, verbose=verbose))


def diagnosis_lines(found: Diagnosis, *, quiet: bool = False, verbose: bool = False) -> Iterator[Line]:
    """The outcome, and the culprits, worst first."""
    yield line(printable(f"{found.path}: {found.status}: {found.reason}"), style="bold")
    if quiet:
        return
    for one in found.culprits:
        yield line(
            printable(f"  {one.error.place.text}  {one.error.place.op_type}  {one.cause}: {one.reason}")
        )
    if verbose:
        for note in found.notes:
            yield line(printable(f"  note: {note}"))
