"""What is diagnosed, with a planted fault or without one, and whether what a diagnosis says of it is right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from command import launched
from onnx import GraphProto, ModelProto

from diagnose import choosing, observing, planting
from diagnose.choosing import Fault
from onnxfix.errors import OnnxfixError
from onnxfix.files import loading, saving
from onnxfix.files.walk import copied

#: What a model without a fault is held against: a copy of its file, a copy whose inner names are others, or one of the
#: ways to execute it that differ by rounding.
Control = Literal["copy", "renamed", "ort-cpu", "fp16", "bf16"]
DISGUISED = "/renamed"
CONTROLS: tuple[Control, ...] = get_args(Control)
WAYS = CONTROLS[2:]


@dataclass(frozen=True)
class Case:
    """One diagnosis: of a ``fault``, or where nothing was planted, with what ``control`` the model is held against.

    ``disguised``: the model with the fault has other names besides, as another exporter gives.
    """

    group: str
    path: Path
    fault: Fault | None = None
    control: Control | None = None
    disguised: bool = False

    @property
    def key(self) -> str:
        """Its name, unique among the cases."""
        name = self.fault.key if self.fault is not None else f"{self.path.stem}/{self.control}"
        return f"{self.group}/{name}{DISGUISED if self.disguised else ''}"


def planted_cases(faults: list[Fault], exports: Path | None, disguised: bool = False) -> list[Case]:
    """Those of which the model is there."""
    folders = {"fixtures": choosing.FIXTURES, "exports": exports}
    cases = []
    for fault in faults:
        folder = folders[fault.group]
        if folder is not None:
            cases.append(Case(fault.group, folder / f"{fault.model}.onnx", fault, disguised=disguised))
    return cases


def control_cases(exports: Path | None) -> list[Case]:
    """Each model without a fault."""
    folders = [("fixtures", choosing.FIXTURES), *([("exports", exports)] if exports is not None else [])]
    return [
        Case(group, path, control=control)
        for group, folder in folders
        for path in sorted(folder.glob("*.onnx"))
        for control in CONTROLS
    ]


def arguments(case: Case, folder: Path, seed: int) -> list[str]:
    """Write the models and inputs of a case into an empty folder: what the command line names of them.

    Raises:
        OnnxfixError: the model is not the one that the fault was chosen for.
    """
    inputs = folder / "inputs.npz"
    np.savez(inputs, **observing.inputs_of(case.path, seed))
    first, second = case.path, folder / "other.onnx"
    words = ["--against", str(case.control)] if case.control in WAYS else [str(second)]
    if case.fault is not None:
        loaded = loading.load(case.path)
        planted = planting.plant(loaded.proto, case.fault.site, case.path.parent)
        if planted is None or planted.output != case.fault.output:
            raise OnnxfixError(f"{case.key}: {case.path} is another model than the fault was chosen for")
        if planted.truth is not loaded.proto:
            first = folder / "truth.onnx"
            saving.save(planted.truth, first)
        saving.save(renamed(planted.other) if case.disguised else planted.other, second)
    elif case.control == "copy":
        shutil.copyfile(case.path, second)
    elif case.control == "renamed":
        loaded = loading.load(case.path)  # weights stay in its file as long as it lives
        saving.save(renamed(loaded.proto), second)
    return [str(first), *words, "--inputs", str(inputs)]


def renamed(model: ModelProto) -> ModelProto:
    """A copy with other names for all nodes and tensors but the inputs and outputs of the model."""
    copy = copied(model)
    kept = {one.name for one in (*copy.graph.input, *copy.graph.output)}
    names: dict[str, str] = {name: name for name in kept}
    _rename(copy.graph, names)
    return copy


def _rename(graph: GraphProto, names: dict[str, str]) -> None:
    """``names`` leads from names of outer graphs to new ones, and gains those of this one."""

    def fresh(name: str) -> str:
        return names.setdefault(name, f"t{len(names)}") if name else ""

    for tensor in graph.initializer:
        tensor.name = fresh(tensor.name)
    for number, node in enumerate(graph.node):
        node.name = f"n{number}"
        node.input[:] = [fresh(name) for name in node.input]
        node.output[:] = [fresh(name) for name in node.output]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, dict(names))
    for info in (*graph.value_info, *graph.input, *graph.output):
        info.name = fresh(info.name)


SHOWN = 5  # culprits that are kept
AMONG = 3


def execute(command: Sequence[str], limit: float, folder: Path) -> dict[str, Any]:
    """What a command in a folder costs, with all that it ``said``; after ``limit`` seconds it is killed."""
    limits = {"timeout": limit, "memory_mb": 1 << 20, "watch": False}
    cost = launched(command, folder / "words", limits, cwd=folder)
    return {**cost, "said": (folder / "words").read_text("utf-8", "replace")}


def is_right(culprit: Mapping[str, Any], fault: Fault) -> bool:
    """Whether it names the changed node, or what was put around it: by its output, or by its name."""
    return culprit.get("output") in fault.outputs or culprit.get("node") in fault.nodes


def place_of(culprits: Sequence[Mapping[str, Any]], fault: Fault) -> int:
    """The place of the first culprit that is right, from 1; 0 for none."""
    return next((place for place, one in enumerate(culprits, 1) if is_right(one, fault)), 0)


def entry(cost: Mapping[str, Any], report: Path, fault: Fault | None) -> dict[str, Any]:
    """What is kept of a run of ``onnxfix diagnose``."""
    found: dict[str, Any] = {
        "exit": cost["code"],
        "seconds": round(cost["wall"], 2),
        "megabytes": round(cost["rss"]),
    }
    try:
        said = json.loads(report.read_text(encoding="utf-8"))
        culprits = said["culprits"]
    except (OSError, ValueError, LookupError, TypeError):
        words = f"no result in {cost['wall']:.0f} s" if cost["status"] == "timeout" else cost["said"][-400:]
        return {
            **found,
            "status": "error",
            "reason": words,
            "culprits": [],
            **({"place": 0} if fault is not None else {}),
        }
    if fault is not None:
        found["place"] = place_of(culprits, fault)
    shown = ("node", "op_type", "output", "own_error", "cause", "reason")
    return {
        **found,
        "status": said["status"],
        "reason": said.get("reason", ""),
        "runs": said.get("runs", 0.0),
        "complete": said.get("complete", True),
        "count": len(culprits),
        "begins": [one.get("output", "") for one in said.get("begins", ())[:AMONG]],
        "culprits": [{key: one.get(key) for key in shown} for one in culprits[:SHOWN]],
    }
