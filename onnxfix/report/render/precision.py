"""The result of ``precision`` as text and as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from onnxfix.lowering.records import Kept, Lowering, Why
from onnxfix.report.render.lines import Line, line

MOST = 3
"""Nodes that are named for each reason, without --verbose."""

_NAMES = {"fp16": "float16", "bf16": "bfloat16"}
_WHY: dict[Why, str] = {
    "user": "named by --keep",
    "overflow": "values up to {seen:.3g} leave the type's range",
    "underflow": "{seen:.2%} of the values that it divides by, or takes a root or logarithm of, become 0",
    "constant": "a constant becomes 0",
    "norm": "part of a decomposed norm, whose squares and means leave the type's range",
    "softmax": "part of a decomposed softmax, whose exponentials leave the type's range",
    "reduction": "sums may reach {seen:.3g}",
    "integers": "whole numbers up to {seen:.6g} are not represented",
    "choice": "{seen:.2%} of what it chooses changes",
    "not-finite": "gives NaN or infinity",
    "error": "its error is more than the budget allows",
    "neighbor": "Casts around it would cost more than it gains",
    "target": "TensorRT has no such operator in this type",
    "control-flow": "holds graphs, which stay in float32",
    "function": "calls a local function, which stays in float32",
    "domain": "is an operator of another domain",
    "operator": "its type is not that of its inputs",
    "schema": "ONNX has no such operator in this type and opset",
    "kind": "sequences, optionals and maps stay in float32",
    "unknown": "its types are not known",
}


def reason_of(kept: Kept) -> str:
    """Why a node is kept, in one sentence."""
    text = _WHY[kept.why].format(seen=kept.seen if kept.seen is not None else 0.0)
    return f"{text} ({kept.rule})" if kept.rule else text


def precision_data(found: Lowering) -> dict[str, Any]:
    """The fields of ``Lowering``, ``share`` and ``exit_code``; each kept node has ``node``, ``op_type``, ``output`` and
    ``reason``. As dicts, lists, strings, numbers and None."""
    document: dict[str, Any] = _plain(dataclasses.asdict(found))
    for row, one in zip(document["kept"], found.kept, strict=True):
        del row["place"]
        place = one.place
        row.update(
            node=place.node or place.output,
            op_type=place.op_type,
            output=place.output,
            reason=reason_of(one),
        )
    document["checks"] = [
        {"name": name, "status": status, "reason": reason} for name, status, reason in found.checks
    ]
    document.update(share=found.share, exit_code=found.exit_code)
    return document


def _plain(value: Any) -> Any:
    """Without numbers that JSON has not: infinity and NaN become None."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def precision_lines(found: Lowering, *, quiet: bool = False, verbose: bool = False) -> Iterator[Line]:
    """The outcome, errors by output, checks, and the nodes in float32 with the reason."""
    yield line(
        f"{found.path}: {outcome(found)}",
        style="bold" if not found.exit_code else "bold red",
        hang=2,
    )
    if quiet:
        return
    if found.nodes:
        yield line(f"  {share_words(found)}", hang=4)
    for one in found.outputs:
        numbers = f"error {one.error:.3g} (rms {one.mean:.3g}) of the largest magnitude {one.scale:.3g}"
        yield line(f"  output {one.name}  {numbers}", hang=4)
    for name, status, reason in found.checks:
        yield line(f"  {name:<9} {status}: {reason}", hang=12)
    yield from _kept_lines(found, verbose)
    for note in found.notes:
        yield line(f"  note: {note}", hang=8)


def share_words(found: Lowering) -> str:
    """How much of the model computes in fewer bits."""
    return (
        f"{found.low} of {found.nodes} computing nodes in {_NAMES[found.to]} ({found.share:.0%}), {found.heavy_low} of "
        f"{found.heavy} products and convolutions; {found.casts} Casts added"
    )


def _kept_lines(found: Lowering, verbose: bool) -> Iterator[Line]:
    """The nodes in float32, by reason; with ``verbose`` one a line."""
    groups: dict[tuple[Why, str], list[Kept]] = {}
    for one in found.kept:
        groups.setdefault((one.why, one.rule), []).append(one)
    for rows in sorted(groups.values(), key=len, reverse=True):
        most = max(rows, key=lambda row: row.seen or 0.0)
        yield line(f"  float32   {len(rows)} {most.why}: {reason_of(most)}", hang=12)
        if verbose:
            yield from (line(f"    {_name(row)}{_figures(row)}") for row in rows)
        else:
            more = f" and {len(rows) - MOST} more" if len(rows) > MOST else ""
            yield line(f"    {', '.join(map(_name, rows[:MOST]))}{more}", hang=6)


def _name(kept: Kept) -> str:
    return kept.place.node or kept.place.output


def _figures(kept: Kept) -> str:
    own = f"  own error {kept.own_error:.2g}" if kept.own_error is not None else ""
    effect = f"  {kept.effect:.1%} of the error" if kept.effect is not None else ""
    seen = f"  {kept.seen:.3g}" if kept.seen is not None else ""
    return f" ({kept.place.op_type}){own}{effect}{seen}"


def outcome(found: Lowering) -> str:
    """The outcome in one sentence."""
    name = _NAMES[found.to]
    if found.status == "written":
        return f"{name} within the budget → {found.output}: {found.reason}"
    if found.status == "met":
        return f"{name} within the budget; not written: {found.reason}"
    if found.status == "unknown":
        return f"could not be measured: {found.reason}"
    return f"not converted: {found.reason}"
