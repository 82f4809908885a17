"""The results of commands that make no report on models, as JSON or as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxfix.report.render.documents import Kind
from onnxfix.report.render.marks import code, folded, safe, table
from onnxfix.report.render.numbers import count, number, share
from onnxfix.report.render.stream import as_json

if TYPE_CHECKING:
    from onnxfix.diagnosis.records import Diagnosis, NodeError
    from onnxfix.lowering.records import Lowering
    from onnxfix.reduction.records import Reduction
    from onnxfix.report.layers import LayerReport

SHOWN = 20
"""Nodes and outputs of a table; JSON has all."""


def render_diagnosis(kind: Kind, found: Diagnosis) -> str:
    """A diagnosis: the nodes that differ with reason and advice, the outputs, and the nodes with the largest errors."""
    from onnxfix.report.render.diagnosis import diagnosis_data, outcome  # lazy: one of these modules is used

    if kind is Kind.html:
        return found.to_html()
    if kind is not Kind.markdown:
        return as_json(diagnosis_data(found))
    lines = _title(
        f"{code(found.path)} against {code(found.other or found.against)}",
        outcome(found),
        not found.exit_code,
    )
    for one in found.culprits[:SHOWN]:
        lines.append(f"- **{code(_node(one.error))}** ({safe(one.error.place.op_type)}): {safe(one.reason)}")
        if one.advice:
            lines.append(f"  - {safe(one.advice)}")
    lines += [
        "",
        *table(
            ("output", "type", ">differ", ">max abs", ">mean abs", ">max rel", ">cosine"), _outputs(found)
        ),
    ]
    lines += folded(
        "Nodes with the largest errors of their own",
        table(
            ("node", "operator", ">own error", ">rounding", ">at its inputs", ">at its output"),
            (
                (
                    code(_node(one)),
                    safe(one.place.op_type),
                    *map(share, (one.own_error, one.noise, one.input_error, one.output_error)),
                )
                for one in found.table[:SHOWN]
            ),
        ),
    )
    return _joined([*lines, *(f"- {safe(note)}" for note in found.notes)])


def _outputs(found: Diagnosis) -> Iterator[tuple[str, ...]]:
    for one in found.outputs[:SHOWN]:
        figures = (one.max_abs, one.mean_abs, one.max_rel)
        cosine = f"{one.cosine:.6f}" if one.cosine is not None else "–"
        differ = "identical" if one.same else f"{count(one.differing)} of {count(one.elements)}"
        shape = "" if one.shape is None else f" [{', '.join(map(str, one.shape))}]"
        yield code(one.name), safe(one.dtype + shape), differ, *map(number, figures), cosine


def _node(one: NodeError) -> str:
    return " / ".join((*one.place.graph, one.place.node or one.place.output or one.place.text))


def render_precision(kind: Kind, found: Lowering) -> str:
    """A mixed-precision plan: the errors of the outputs, the checks, and the nodes that stay in float32."""
    from onnxfix.report.render.precision import (  # lazy: one of these is used
        outcome,
        precision_data,
        reason_of,
    )

    if kind is not Kind.markdown:
        return as_json(precision_data(found))
    lines = _title(code(found.path), outcome(found), not found.exit_code)
    if found.nodes:
        lines += [
            f"{found.low} of {found.nodes} computing nodes in {found.to} ({found.share:.0%}), {found.heavy_low} of "
            f"{found.heavy} products and convolutions; {found.casts} Casts added; budget {found.budget:g}",
            "",
        ]
    rows = (
        (code(one.name), f"{one.error:.3g}", f"{one.mean:.3g}", f"{one.scale:.3g}")
        for one in found.outputs[:SHOWN]
    )
    lines += table(("output", ">error", ">rms", ">scale"), rows)
    lines += table(
        ("check", "", ""), ((code(name), status, safe(reason)) for name, status, reason in found.checks)
    )
    kept = (
        (code(one.place.node or one.place.output), safe(one.place.op_type), safe(reason_of(one)))
        for one in found.kept[:SHOWN]
    )
    more = [f"… and {len(found.kept) - SHOWN} more", ""] if len(found.kept) > SHOWN else []
    lines += folded(
        f"{len(found.kept)} nodes stay in float32", [*table(("node", "operator", "reason"), kept), *more]
    )
    return _joined([*lines, *(f"- {safe(note)}" for note in found.notes)])


def render_reduction(kind: Kind, found: Reduction) -> str:
    """A reduced model: how small it became, the failure, and the command that reproduces it."""
    from onnxfix.report.render.reduction import reduction_data, size  # lazy: one of these is used

    if kind is not Kind.markdown:
        return as_json(reduction_data(found))
    outcomes = {
        "passes": f"nothing fails with {found.check}",
        "unknown": f"{found.check} could not be run: {found.reason}",
    }
    lines = _title(code(found.path), outcomes.get(found.status) or size(found), found.status == "reduced")
    if found.failure is not None:
        lines += [f"Fails: {safe(found.failure.text)}", ""]
    if found.folder:
        lines += [f"In {code(found.folder)}: {code(found.command)}", ""]
    return _joined([*lines, *(f"- {safe(note)}" for note in found.notes)])


def render_layers(kind: Kind, report: LayerReport) -> str:
    """What TensorRT made of each node, as a table of all nodes."""
    from onnxfix.report.render.layers import layers_data, outcome, rows  # lazy: one of these is used

    if kind is not Kind.markdown:
        return as_json(layers_data(report))
    lines = _title(code(report.path), outcome(report), not report.exit_code)
    head, *cells = rows(report)
    lines += table(head, (tuple(safe(cell) for cell in row) for row in cells))
    return _joined([*lines, *(f"- {safe(note)}" for note in report.notes)])


def _title(subject: str, outcome: str, well: bool) -> list[str]:
    return [f"## {'✅' if well else '❌'} {subject}: {safe(outcome)}", ""]


def _joined(lines: list[str]) -> str:
    return "\n".join(lines).rstrip()
