"""The pages of the other results: mixed precision, a reduced model, an engine's layers, a network, the machine."""

from __future__ import annotations

from onnxfix.examination import Examination
from onnxfix.lowering.records import Lowering
from onnxfix.reduction.records import Reduction
from onnxfix.report.layers import LayerReport
from onnxfix.report.render import doctor, layers, lift, precision, reduction
from onnxfix.report.render.sections import ui
from onnxfix.trt.lift.records import Lifted


def precision_page(found: Lowering) -> ui.Page:
    """The errors of the outputs, the checks, and the nodes that stay in float32."""
    lead = f"{precision.share_words(found)}; budget {found.budget:g}" if found.nodes else ""
    outputs = tuple(
        (ui.name(one.name), f"{one.error:.3g}", f"{one.mean:.3g}", f"{one.scale:.3g}")
        for one in found.outputs
    )
    checks = tuple((ui.name(name), status, reason) for name, status, reason in found.checks)
    kept = tuple(
        (ui.name(one.place.node or one.place.output), one.place.op_type, precision.reason_of(one))
        for one in found.kept
    )
    tables = (
        (
            "outputs",
            "Outputs",
            ui.Table(("Output", "#Error", "#RMS", "#Scale"), outputs, "Errors of outputs"),
        ),
        ("checks", "Checks", ui.Table(("Check", "Result", "Why"), checks, "Checks of the result")),
        (
            "kept",
            f"{len(found.kept)} nodes stay in float32",
            ui.Table(("Node", "Operator", "Why"), kept, "Nodes in float32"),
        ),
    )
    sections = tuple(
        ui.Section(ident, title, (table,), brief=True, folded=ident == "kept")
        for ident, title, table in tables
        if table.rows
    )
    return _page(found, precision.outcome(found), not found.exit_code, lead, sections)


def reduction_page(found: Reduction) -> ui.Page:
    """How small the model became, the failure, and the command that reproduces it."""
    blocks: list[ui.Block] = []
    if found.failure is not None:
        blocks.append(ui.Paragraph(f"Fails: {found.failure.text}"))
    if found.folder:
        blocks.append(ui.Paragraph(["In ", ui.name(found.folder), ": ", ui.command(found.command)]))
    sections = (ui.Section("failure", "Failure", blocks, brief=True, folded=False),) if blocks else ()
    return _page(found, reduction.outcome(found), found.status == "reduced", "", sections)


def layers_page(report: LayerReport) -> ui.Page:
    """What TensorRT made of each node."""
    head, *rows = layers.rows(report)
    table = ui.Table(head, rows, "The nodes of the model in the engine")
    sections = (ui.Section("nodes", "Nodes", (table,), brief=True, folded=False),) if rows else ()
    return _page(report, layers.outcome(report), not report.exit_code, "", sections)


def lift_page(found: Lifted) -> ui.Page:
    """TensorRT's network as a model, in the words of the command line."""
    head, *rest = (line.plain for line in lift.lifted_lines(found))
    outcome = head.removeprefix(f"{found.model}: ")
    chip = ui.Chip("bad" if found.exit_code else "good", outcome)
    section = ui.Section("network", "Network", [ui.Lines(rest)])
    return ui.Page(found.model, "", chip, found.exit_code, sections=[section])


def doctor_page(found: Examination) -> ui.Page:
    """What this machine can run, in the words of the command line."""
    lines = [line.plain for line in doctor.examination_lines(found)]
    chip = ui.Chip("bad" if found.exit_code else "good", lines[-1] if not found.problems else "problems")
    section = ui.Section("machine", "Machine", [ui.Lines(lines)])
    return ui.Page("onnxfix doctor", "", chip, found.exit_code, sections=[section])


def _page(
    found: Lowering | Reduction | LayerReport,
    outcome: str,
    is_good: bool,
    lead: str,
    sections: tuple[ui.Section, ...],
) -> ui.Page:
    notes = ui.Section("notes", "Notes", (ui.Items(found.notes),), brief=True, folded=False)
    chip = ui.Chip("good" if is_good else "bad", outcome)
    paragraphs = (ui.Paragraph(lead),) if lead else ()
    sections = (*sections, notes) if found.notes else sections
    return ui.Page(found.path, "", chip, found.exit_code, paragraphs, sections=sections)
