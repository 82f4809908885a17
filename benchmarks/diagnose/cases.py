"""What is diagnosed: models with a planted fault, and models in which nothing was planted."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from onnx import GraphProto, ModelProto

from diagnose import choosing, copies, feeding, planting
from diagnose.choosing import Fault
from onnxfix.errors import OnnxfixError
from onnxfix.files import loading, saving

#: What a model without a fault is held against: a copy of its file, a copy whose inner names are others, or one of the
#: ways to execute it that differ by rounding.
Control = Literal["copy", "renamed", "ort-cpu", "fp16", "bf16"]
DISGUISED = "/renamed"
CONTROLS: tuple[Control, ...] = get_args(Control)


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


def control_cases(exports: Path | None, controls: tuple[Control, ...]) -> list[Case]:
    """Each model without a fault."""
    folders = [("fixtures", choosing.FIXTURES), *([("exports", exports)] if exports is not None else [])]
    return [
        Case(group, path, control=control)
        for group, folder in folders
        for path in sorted(folder.glob("*.onnx"))
        for control in controls
    ]


def arguments(case: Case, folder: Path, seed: int) -> list[str]:
    """Write the models and inputs of a case into an empty folder: what the command line names of them.

    Raises:
        OnnxfixError: the model is not the one that the fault was chosen for.
    """
    inputs = folder / "inputs.npz"
    np.savez(inputs, **feeding.inputs_of(case.path, seed))
    first, second = case.path, folder / "other.onnx"
    words: list[str] = []
    if case.fault is not None:
        loaded = loading.load(case.path)
        planted = planting.plant(loaded.proto, case.fault.site, case.path.parent)
        if planted is None or planted.output != case.fault.output:
            raise OnnxfixError(f"{case.key}: {case.path} is another model than the fault was chosen for")
        if planted.truth is not loaded.proto:
            first = folder / "truth.onnx"
            saving.save(planted.truth, first)
        saving.save(renamed(planted.other) if case.disguised else planted.other, second)
        words = [str(second)]
    elif case.control == "copy":
        shutil.copyfile(case.path, second)
        words = [str(second)]
    elif case.control == "renamed":
        loaded = loading.load(case.path)
        saving.save(renamed(loaded.proto), second)
        words = [str(second)]
    else:
        words = ["--against", str(case.control)]
    return [str(first), *words, "--inputs", str(inputs)]


def renamed(model: ModelProto) -> ModelProto:
    """A copy with other names for all nodes and tensors but the inputs and outputs of the model."""
    copy = copies.copy_of(model)
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
