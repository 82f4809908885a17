"""The results of ``precision``, ``reduce`` and ``lift``, and the texts of the folder that ``reduce`` writes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnxfix.lowering.records import Kept, Lowering, Why
from onnxfix.reduction.case import Reduction
from onnxfix.report.render import ui
from onnxfix.report.render.details import PLEASE_REPORT
from onnxfix.report.render.lines import counted
from onnxfix.tensorrt.lift.records import Lifted
from onnxfix.tensorrt.package import product

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
    "unseen": "no sample runs the branch or loop that it is in",
    "refused": "TensorRT refuses the model with nodes inside of others in this type",
    "target": "TensorRT has no such operator in this type",
    "control-flow": "holds graphs, which stay in float32",
    "function": "calls a local function, which stays in float32",
    "domain": "is an operator of another domain",
    "operator": "its type is not that of its inputs",
    "schema": "ONNX has no such operator in this type and opset",
    "kind": "sequences, optionals and maps stay in float32",
    "quantized": "reads quantized tensors whose scales stay in float32",
    "unknown": "its types are not known",
}


def precision_data(plan: Lowering) -> dict[str, Any]:
    """The fields of ``Lowering``, ``share`` and ``exit_code``; each kept node has ``node``, ``op_type``, ``output`` and
    ``reason``. As dicts, lists, strings, numbers and None."""
    document: dict[str, Any] = _finite(dataclasses.asdict(plan))
    for row, kept in zip(document["kept"], plan.kept, strict=True):
        del row["place"]
        names = {"node": _kept_name(kept), "op_type": kept.place.op_type, "output": kept.place.output}
        row.update(names, reason=_reason(kept))
    document["checks"] = [
        dict(zip(("name", "status", "reason"), check, strict=True)) for check in plan.checks
    ]
    document.update(share=plan.share, exit_code=plan.exit_code)
    return document


def _finite(value: Any) -> Any:
    """Without numbers that JSON has not: infinity and NaN become None."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def precision_page(plan: Lowering) -> ui.Page:
    """The errors of the outputs, the checks, and the nodes that stay in float32 with the reason."""
    outputs = [
        (ui.name(one.name), f"{one.error:.3g}", f"{one.mean:.3g}", f"{one.scale:.3g}") for one in plan.outputs
    ]
    checks = [(ui.name(name), status, reason) for name, status, reason in plan.checks]
    errors = ui.Table(("Output", "#Error", "#RMS", "#Scale"), outputs, "Errors of outputs")
    results = ui.Table(("Check", "Result", "Why"), checks, "Checks of the result")
    sections = [*ui.tabled("outputs", "Outputs", errors), *ui.tabled("checks", "Checks", results)]
    if plan.kept:
        title = f"{len(plan.kept)} nodes stay in float32"
        sections.append(ui.Section("kept", title, _kept_blocks(plan), brief=True, titled=True))
    lead = []
    if plan.nodes:
        words = (
            f"{plan.low} of {plan.nodes} computing nodes in {_NAMES[plan.to]} ({plan.share:.0%}), {plan.heavy_low} of "
            f"{plan.heavy} products and convolutions; {plan.casts} Casts added; budget {plan.budget:g}"
        )
        time = f"; time {plan.time:.2f} of float32's by an estimate (flops and bytes)" if plan.time else ""
        lead = [ui.Paragraph(words + time)]
    chip = ui.Chip("bad" if plan.exit_code else "good", _precision_outcome(plan))
    sections += ui.listed("notes", "Notes", plan.notes, "note")
    return ui.Page(plan.path, "", chip, plan.exit_code, lead, sections=sections)


def _precision_outcome(plan: Lowering) -> str:
    name = _NAMES[plan.to]
    if plan.status == "written":
        return f"{name} within the budget → {plan.output}: {plan.reason}"
    if plan.status == "met":
        return f"{name} within the budget; not written: {plan.reason}"
    if plan.status == "unknown":
        return f"could not be measured: {plan.reason}"
    return f"not converted: {plan.reason}"


def _kept_blocks(plan: Lowering) -> list[ui.Block]:
    """The nodes in float32, by reason, the most frequent first."""
    groups: dict[tuple[Why, str], list[Kept]] = {}
    for kept in plan.kept:
        groups.setdefault((kept.why, kept.rule), []).append(kept)
    blocks: list[ui.Block] = []
    for group in sorted(groups.values(), key=len, reverse=True):
        most = max(group, key=lambda kept: kept.seen or 0.0)
        blocks.append(ui.Items([f"{len(group)} {most.why}: {_reason(most)}"]))
        rows = [
            (
                ui.name(_kept_name(kept)),
                kept.place.op_type,
                f"{kept.own_error:.2g}" if kept.own_error is not None else "",
                f"{kept.effect:.1%}" if kept.effect is not None else "",
                f"{kept.seen:.3g}" if kept.seen is not None else "",
            )
            for kept in group
        ]
        head = ("Node", "Operator", "#Own error", "#Of the error", "#Seen")
        blocks.append(ui.Table(head, rows, "Nodes in float32", most=MOST, noun="node"))
    return blocks


def _reason(kept: Kept) -> str:
    text = _WHY[kept.why].format(seen=kept.seen if kept.seen is not None else 0.0)
    return f"{text} ({kept.rule})" if kept.rule else text


def _kept_name(kept: Kept) -> str:
    return kept.place.node or kept.place.output


_OPERATORS = 8
"""Operators that are named."""
_REDUCED = Path(__file__).parent / "reduced"
"""What the texts of a reduced model's folder are made from."""


def reduction_data(reduction: Reduction) -> dict[str, Any]:
    """The fields of ``Reduction`` and the exit code, as dicts, lists, strings and numbers."""
    return {**dataclasses.asdict(reduction), "exit_code": reduction.exit_code}


def reduction_page(reduction: Reduction) -> ui.Page:
    """How small the model became, the failure, and the command that reproduces it."""
    pairs: list[tuple[str, ui.Content]] = []
    if reduction.status == "reduced":
        early = "stopped early: this is the smallest part so far; reducing its model.onnx goes on"
        pairs = [
            ("fails", reduction.failure.text if reduction.failure is not None else ""),
            ("note", "" if reduction.complete else early),
            *(("note", note) for note in reduction.notes),
            ("folder", [ui.name(reduction.folder), ": ", ui.command(reduction.command)]),
        ]
    sections = (
        [ui.Section("failure", "Failure", (ui.facts(pairs),), brief=True, folded=False)] if pairs else []
    )
    kind = {"passes": "good", "unknown": "warn"}.get(reduction.status, "bad")
    chip = ui.Chip(kind, _reduction_outcome(reduction))
    return ui.Page(reduction.path, "", chip, reduction.exit_code, sections=sections)


def _reduction_outcome(reduction: Reduction) -> str:
    """How small the model became, or why it did not, in one phrase."""
    if reduction.status == "passes":
        return f"nothing fails with {reduction.check}"
    if reduction.status == "unknown":
        return f"{reduction.check} could not be run: {reduction.reason}"
    operators = reduction.operators
    names = ", ".join(operators[:_OPERATORS]) + ", ..." * (len(operators) > _OPERATORS)
    nodes = counted(reduction.nodes_after, "node")
    what = f"{nodes} of {reduction.nodes_before} still fail{'s' * (reduction.nodes_after == 1)}"
    checked = f"{counted(reduction.tries, 'part')} checked"
    return f"{what} ({names}; {checked})" if names else f"{what} ({checked})"


def script() -> str:
    """The program that reproduces the failure of the folder that it is in."""
    return (_REDUCED / "reproduce.py.j2").read_text("utf-8")


def readme(reduction: Reduction, files: Sequence[str]) -> str:
    """The README of the folder: what fails, how to reproduce it, what is in the folder, and the versions."""
    from jinja2 import Template  # lazy: start-up

    template = Template((_REDUCED / "README.md.j2").read_text("utf-8"), trim_blocks=True)
    commands = _stock_commands(reduction.check)
    check = json.dumps(reduction.check)
    return str(template.render(it=reduction, check=check, files=files, commands=commands))


def _stock_commands(check: str) -> tuple[str, ...]:
    """Commands that show the failure without reproduce.py; none where there are none."""
    verify = f"onnxfix verify model.onnx --rungs {check} --inputs inputs.npz"
    if check == "trt-build":
        return verify, "trtexec --onnx=model.onnx"
    if check in ("trt-network", "trt-gpu"):
        return (verify,)
    if check in ("ort-cpu", "ort-cuda"):
        return ()
    return (check.replace("{inputs}", "inputs.npz").replace("{}", "model.onnx"),)


GAPS = 10
"""Gaps that are listed."""


def lift_data(lifted: Lifted) -> dict[str, Any]:
    """The fields of ``Lifted``, the path of the model first, as dicts, lists, strings and numbers."""
    return {"model": lifted.model, **dataclasses.asdict(lifted)}


def lift_page(lifted: Lifted) -> ui.Page:
    """The outcome, the network's inputs and outputs, notes, and the layers that were not read back."""
    entries: list[ui.Content] = []
    for what, tensors in (("input", lifted.inputs), ("output", lifted.outputs)):
        for tensor in tensors:
            dims = ", ".join("?" if size == -1 else str(size) for size in tensor.dims)
            entries.append([ui.Chip("none", what), f" {tensor.name}  {tensor.dtype} [{dims}]"])
    entries += [[ui.Chip("note", "note"), f" {note}"] for note in lifted.notes]
    entries += [[ui.Chip("bad", "missing"), f" {gap}"] for gap in lifted.gaps[:GAPS]]
    if len(lifted.gaps) > GAPS:
        entries.append(f"and {len(lifted.gaps) - GAPS} more")
    section = ui.Section("network", "Network", [ui.Items(entries)], brief=True, folded=False)
    chip = ui.Chip("bad" if lifted.exit_code else "good", _lift_outcome(lifted))
    return ui.Page(lifted.model, "", chip, lifted.exit_code, sections=[section] if entries else [])


def _lift_outcome(lifted: Lifted) -> str:
    name = product(lifted.package, lifted.version) if lifted.package and lifted.version else "TensorRT"
    layers = counted(sum(number for _, number in lifted.layers), "layer")
    if lifted.status == "lifted":
        return f"{name} imports it as {layers} → {lifted.path}"
    if lifted.status == "unlifted":
        missing = f"{len(lifted.gaps)} of them {'are' if len(lifted.gaps) > 1 else 'is'} not read back"
        return f"{name} imports it as {layers} → {lifted.path}, which cannot be run: {missing}"
    if lifted.status == "refused":
        return f"{name} refuses it: {lifted.reason}"
    if lifted.status == "error":
        return f"reading its network failed: {lifted.reason} ({PLEASE_REPORT})"
    return f"its network could not be read: {lifted.reason}"
