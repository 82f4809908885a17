"""The pages of the other results: mixed precision, a reduced model, an engine's layers, a network, the machine."""

from __future__ import annotations

from onnxfix.examination import Examination
from onnxfix.lowering.records import Lowering
from onnxfix.reduction.records import Reduction
from onnxfix.report.layers import LayerReport
from onnxfix.report.render import doctor, layers, lift, precision, reduction
from onnxfix.report.render.sections import ui
from onnxfix.trt.lift.records import Lifted


def precision_page(plan: Lowering) -> ui.Page:
    """The errors of the outputs, the checks, and the nodes that stay in float32."""
    lead = f"{precision.share_words(plan)}; budget {plan.budget:g}" if plan.nodes else ""
    outputs = tuple(
        (ui.name(one.name), f"{one.error:.3g}", f"{one.mean:.3g}", f"{one.scale:.3g}") for one in plan.outputs
    )
    checks = tuple((ui.name(name), status, reason) for name, status, reason in plan.checks)
    kept = tuple(
        (ui.name(one.place.node or one.place.output), one.place.op_type, precision.reason_of(one))
        for one in plan.kept
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
            f"{len(plan.kept)} nodes stay in float32",
            ui.Table(("Node", "Operator", "Why"), kept, "Nodes in float32"),
        ),
    )
    sections = tuple(
        ui.Section(ident, title, (table,), brief=True, folded=ident == "kept")
        for ident, title, table in tables
        if table.rows
    )
    return _page(plan, precision.outcome(plan), not plan.exit_code, lead, sections)


def reduction_page(result: Reduction) -> ui.Page:
    """How small the model became, the failure, and the command that reproduces it."""
    blocks: list[ui.Block] = []
    if result.failure is not None:
        blocks.append(ui.Paragraph(f"Fails: {result.failure.text}"))
    if result.folder:
        blocks.append(ui.Paragraph(["In ", ui.name(result.folder), ": ", ui.command(result.command)]))
    sections = (ui.Section("failure", "Failure", blocks, brief=True, folded=False),) if blocks else ()
    return _page(result, reduction.outcome(result), result.status == "reduced", "", sections)


def layers_page(report: LayerReport) -> ui.Page:
    """What TensorRT made of each node."""
    head, *rows = layers.rows(report)
    table = ui.Table(head, rows, "The nodes of the model in the engine")
    engine = ui.Section(
        "engine", "Engine", (ui.Items(tuple(layers.facts(report))),), brief=True, folded=False
    )
    nodes = (ui.Section("nodes", "Nodes", (table,), brief=True, folded=False),) if rows else ()
    return _page(
        report, layers.outcome(report), not report.exit_code, "", (engine, *nodes), layers.notes(report)
    )


def lift_page(network: Lifted) -> ui.Page:
    """TensorRT's network as a model, in the words of the command line."""
    head, *rest = (line.plain for line in lift.lifted_lines(network))
    outcome = head.removeprefix(f"{network.model}: ")
    chip = ui.Chip("bad" if network.exit_code else "good", outcome)
    section = ui.Section("network", "Network", [ui.Lines(rest)])
    return ui.Page(network.model, "", chip, network.exit_code, sections=[section])


def doctor_page(machine: Examination) -> ui.Page:
    """What this machine can run, in the words of the command line."""
    lines = [line.plain for line in doctor.examination_lines(machine)]
    chip = ui.Chip("bad" if machine.exit_code else "good", lines[-1] if not machine.problems else "problems")
    section = ui.Section("machine", "Machine", [ui.Lines(lines)])
    return ui.Page("onnxfix doctor", "", chip, machine.exit_code, sections=[section])


def _page(
    result: Lowering | Reduction | LayerReport,
    outcome: str,
    is_good: bool,
    lead: str,
    sections: tuple[ui.Section, ...],
    remarks: tuple[str, ...] | None = None,
) -> ui.Page:
    remarks = result.notes if remarks is None else remarks
    notes = ui.Section("notes", "Notes", (ui.Items(remarks),), brief=True, folded=False)
    chip = ui.Chip("good" if is_good else "bad", outcome)
    paragraphs = (ui.Paragraph(lead),) if lead else ()
    sections = (*sections, notes) if remarks else sections
    return ui.Page(result.path, "", chip, result.exit_code, paragraphs, sections=sections)
