"""The result of ``inspect``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from onnxfix.report.render.findings import count_severities
from onnxfix.report.render.lines import Line, labeled, line
from onnxfix.report.render.words import counted, size

if TYPE_CHECKING:
    from onnxfix.verbs.inspecting import Inspection

_OPERATORS = 12
"""Operators that are named, the most frequent first."""


def inspection_lines(found: Inspection, **_: bool) -> Iterator[Line]:
    """One screen: interface, weights, operators, and what onnxfix finds."""
    opsets = ", ".join(f"{domain or 'opset'} {version}" for domain, version in found.opsets.items())
    origin = f"{found.producer}, " if found.producer else ""
    yield line(
        (found.path, "bold"), f"  {size(found.bytes)}  ({origin}IR {found.ir_version}, {opsets})", hang=2
    )
    yield from _tensors("inputs", found.inputs)
    yield from _tensors("outputs", found.outputs)
    types = ", ".join(f"{name} {size(count)}" for name, count in found.weights.items())
    yield labeled(
        "weights", f"{counted(found.elements, 'number')} in {counted(found.tensors, 'tensor')}: {types}"
    )
    operators = [*found.operators.operators.items()]
    named = ", ".join(f"{name} {count:,}" for name, count in operators[:_OPERATORS])
    more = len(operators) - _OPERATORS
    rest = f" and {counted(more, 'more operator')}" if more > 0 else ""
    inside = ((found.subgraphs, "subgraph"), (found.functions, "function"))
    where = "".join(f", {counted(count, noun)}" for count, noun in inside if count)
    yield labeled("nodes", f"{found.operators.compute:,}{where}: {named}{rest}")
    hazards = count_severities(found.findings) or "nothing found"
    yield labeled("hazards", f"{hazards} for {found.target} (onnxfix check lists them)")


def _tensors(label: str, them: Mapping[str, str]) -> Iterator[Line]:
    for number, (name, kind) in enumerate(them.items()):
        yield labeled("" if number else label, (name, "cyan"), f"  {kind}")
