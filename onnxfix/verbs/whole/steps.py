"""Whole-model steps: each runs a foreign tool, or a user's script, on a model in the sandbox."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from onnx import ModelProto

from onnxfix.errors import ModelError, UsageError
from onnxfix.files import loading, tensors, walk, wire
from onnxfix.inputs.specialize import ResolvedSpecialization
from onnxfix.runtime import confinement
from onnxfix.runtime.sandbox import Worker, one_line
from onnxfix.verbs import contract
from onnxfix.verbs.whole.adopt import adopt

FUNCTION = "fix"
"""The function that a GraphSurgeon script defines: ``def fix(graph)``."""

_SKIPPED = (("fuse_qkv",), ("fuse_qkv", "eliminate_nop_with_unit"))
"""Passes of onnxsim to skip, first alone, then together. The first one writes an operator of ONNX Runtime, which
TensorRT does not have; in onnxsim 0.8.1 it runs despite being skipped where the second one has run."""

_ROUNDS = 5

_FOLDED = "64KB"
"""The largest constant that onnxsim folds: Expand of one number can have any size."""


Failure = UsageError | str
"""Why nothing was written: a fault of the script, or what the tool says; "" where all is well."""


def simplify(source: str, output: str) -> Failure:
    """Run onnxsim on a model file and write its result, all weights embedded."""
    import onnx  # lazy: loaded in the child
    import onnxsim  # lazy: an optional package

    result = model = onnx.load(source)
    # onnxsim turns constants into initializers, which up to IR version 3 must be inputs too. The version is restored
    # later.
    model.ir_version = max(model.ir_version, 4)
    try:
        for _ in range(_ROUNDS):  # a second run may simplify more
            before, result = result, _simplify_once(onnxsim.simplify, result)
            if len(result.graph.node) >= len(before.graph.node):
                break
    except Exception as error:
        return one_line(error, 200)
    onnx.save(result, output)
    return ""


def _simplify_once(tool: Callable[..., Any], model: ModelProto) -> ModelProto:
    """One run of onnxsim. Inputs with a default stay inputs: a caller may set other values."""
    domains = {node.domain for node in model.graph.node} | {"", "ai.onnx"}
    known = inspect.signature(tool).parameters
    result = model
    for skipped in _SKIPPED:
        wanted = {
            "mutable_initializer": True,
            "tensor_size_threshold": _FOLDED,
            "skipped_optimizers": [*skipped],
            "certify": False,
        }
        result, _ = tool(model, **{key: wanted[key] for key in wanted if key in known})
        if domains.issuperset(node.domain for node in result.graph.node):
            break
    return result


def graphsurgeon(source: str, script: str, output: str, unchanged: str, embed: bool) -> Failure:
    """Run a GraphSurgeon script on a model file and write the result.

    ``unchanged`` is the file of the model as graphsurgeon writes it unchanged. ``embed``: load external data, so that
    the script can read weights from any working directory; without it the directory is the model's.
    """
    import onnx  # lazy: loaded in the child
    import onnx_graphsurgeon as gs  # lazy: an optional package

    try:
        onnx.save(gs.export_onnx(gs.import_onnx(onnx.load(source, load_external_data=embed))), unchanged)
        graph = gs.import_onnx(onnx.load(source, load_external_data=embed))
    except Exception as error:
        return f"it cannot represent the model: {one_line(error, 200)}"
    path = os.path.abspath(script)
    if not embed:
        os.chdir(Path(source).parent)
    try:
        module = ModuleType("onnxfix_graphsurgeon_script")
        module.__file__ = path
        sys.modules[module.__name__] = module  # dataclasses and pickle look it up there
        sys.path.insert(0, os.path.dirname(path))  # as for a started script: it may import modules beside it
        exec(compile(Path(path).read_bytes(), path, "exec"), module.__dict__)
        function = getattr(module, FUNCTION, None)
        if not callable(function):
            return UsageError(f"{script}: defines no function {FUNCTION}(graph) that takes a gs.Graph")
        changed = function(graph)
    # Even SystemExit and KeyboardInterrupt: only the script can have raised it.
    except BaseException as error:
        return UsageError(_explain(error, path, script))
    graph = graph if changed is None else changed
    if not isinstance(graph, gs.Graph):
        what = type(graph).__name__
        return UsageError(f"{script}: {FUNCTION} returns {what}; return a gs.Graph, or change the given one")
    try:
        onnx.save(gs.export_onnx(graph), output)
    except Exception as error:
        return UsageError(f"{script}: the graph from {FUNCTION} cannot be exported: {one_line(error, 200)}")
    return ""


def _explain(error: BaseException, path: str, script: str) -> str:
    """A script's exception, with the line of the script that it came from."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == path else None
    line = lines[-1] if lines and line is None else line
    where = f"{script}:{line}" if line else script
    if isinstance(error, SystemExit):
        return f"{where}: the script ended itself (SystemExit: {error.code})"
    if isinstance(error, SyntaxError):
        return f"{where}: SyntaxError: {error.msg}"
    try:
        return f"{where}: {one_line(error, 200)}"
    except Exception:  # __str__ of the script's own exception may raise
        return f"{where}: {type(error).__name__}"


REMOTE = __name__
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
