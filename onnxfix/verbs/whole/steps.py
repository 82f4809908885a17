"""Whole-model steps: each runs a foreign tool on a model in the sandbox."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from onnxfix.errors import ModelError, UsageError
from onnxfix.files import loading, tensors, walk, wire
from onnxfix.inputs.specialize import ResolvedSpecialization
from onnxfix.runtime import confinement
from onnxfix.runtime.sandbox import Worker
from onnxfix.verbs import contract
from onnxfix.verbs.whole.adopt import adopt
from onnxfix.verbs.whole.remote import FUNCTION

REMOTE = "onnxfix.verbs.whole.remote"
TIMEOUT = 600.0
"""Time limit of a tool, in seconds."""

_MORE = 4096
"""Bytes by which a simplified model may always grow; a tenth of the model, where that is more."""


@dataclass(frozen=True)
class Step:
    """One whole-model edit: onnxsim, or (with ``script``) a GraphSurgeon script."""

    script: Path | None = None

    @property
    def option(self) -> str:
        """Its command-line option."""
        return "--graphsurgeon" if self.script is not None else "--simplify"

    @property
    def name(self) -> str:
        """Its option, with the script."""
        return f"{self.option} {self.script}" if self.script is not None else self.option

    @property
    def package(self) -> str:
        """The package that it needs."""
        return "onnx-graphsurgeon" if self.script is not None else "onnxsim"

    @property
    def tool(self) -> str:
        """The package and its version."""
        return f"{self.package} {importlib.metadata.version(self.package)}"


@dataclass(frozen=True)
class Made:
    """A step's result. ``broken`` are changes of the interface and losses, one line each.
    ``refused`` is why there is no result, if so."""

    proto: ModelProto | None = None
    broken: tuple[str, ...] = ()
    refused: str = ""


def steps_of(simplify: bool, scripts: Sequence[str | os.PathLike[str]]) -> tuple[Step, ...]:
    """The requested steps: onnxsim first, then the scripts in their order.

    Raises:
        UsageError: a package that one of them needs is not installed, or a script does not exist.
    """
    found = ([Step()] if simplify else []) + [Step(Path(script)) for script in scripts]
    for step in found:
        module = step.package.replace("-", "_")
        if importlib.util.find_spec(module) is None:
            extra = "simplify" if step.script is None else "graphsurgeon"
            raise UsageError(
                f"{step.option} needs {step.package}, which is not installed: pip install 'onnxfix[{extra}]'"
            )
        if step.script is not None and not step.script.is_file():
            raise UsageError(
                f"{step.script}: no such script; name a Python file that defines {FUNCTION}(graph)"
            )
    return tuple(found)


def make(
    step: Step,
    source: Path,
    before: ModelProto,
    original: ModelProto,
    special: ResolvedSpecialization | None = None,
) -> Made:
    """Run ``step`` on the model file ``source``, which holds ``before``.

    The interface of ``original`` must be preserved, except for the changes of ``special``. External data are beside
    ``source``.

    Raises:
        UsageError: the user's script is at fault.
    """
    size = wire_size(before, source)
    if step.script is None and size > wire.PROTOBUF_LIMIT:
        return Made(refused=f"onnxsim handles models of up to 2 GB, and this one has {size / 1e9:.1f} GB")
    with tempfile.TemporaryDirectory(prefix="onnxfix-") as folder:
        output, plain = Path(folder) / "result.onnx", Path(folder) / "unchanged.onnx"
        where = {"source": str(source.absolute()), "output": str(output)}
        with Worker() as worker:
            if step.script is None:
                outcome = worker.call(f"{REMOTE}:simplify", timeout=TIMEOUT, **where)
            else:
                confinement.name(step.script)
                script = {"script": str(step.script), "unchanged": str(plain)}
                embed = size <= wire.PROTOBUF_LIMIT
                outcome = worker.call(
                    f"{REMOTE}:graphsurgeon", timeout=TIMEOUT, embed=embed, **script, **where
                )
        if outcome.ok and isinstance(outcome.value, UsageError):
            raise outcome.value
        if outcome.ok and outcome.value:
            return Made(refused=str(outcome.value))
        if outcome.status == "error":
            return Made(refused=outcome.message)
        if not outcome.ok and step.script is not None:
            raise UsageError(f"{step.script}: the script {outcome.message}")
        if not outcome.ok:
            return Made(refused=f"{step.package} {outcome.message}")
        try:
            result = loading.parse(loading.read(output), "the result")
            unchanged = loading.parse(loading.read(plain), "the result") if step.script is not None else None
        except ModelError as error:
            return Made(refused=str(error))
    merged, broken = adopt(before, result, unchanged, source.parent)
    if step.script is None and (grown := wire_size(merged, source) - size) > max(_MORE, size // 10):
        return Made(refused=f"its result is {grown:,} bytes larger")
    broken += [line for line in contract.interface_changes(original, merged, special) if line not in broken]
    return Made(merged, tuple(broken))


def wire_size(proto: ModelProto, source: Path) -> int:
    """Bytes of a model with its external data, which are beside ``source``.

    Raises:
        ModelError: the external data are not there.
    """
    external = (tensor for tensor in walk.model_tensors(proto) if tensors.is_external(tensor))
    return proto.ByteSize() + sum(tensors.external_range(tensor, source.parent)[2] for tensor in external)
