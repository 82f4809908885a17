"""The child's side: what runs a foreign tool, or a user's script. Called through the sandbox."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Literal

from onnx import ModelProto

from onnxfix.sandbox import one_line

FUNCTION = "fix"
"""What a GraphSurgeon script defines: ``def fix(graph)``."""

_SKIPPED = (("fuse_qkv",), ("fuse_qkv", "eliminate_nop_with_unit"))
"""Passes of onnxsim to leave out, and to leave out when that was not enough: the first makes an operator of ONNX
Runtime's own, which TensorRT does not have; in 0.8.1 it runs all the same where the second has been at work."""

_ROUNDS = 5

_FOLDED = "64KB"
"""A constant that is larger than that is not folded by onnxsim: Expand of one number can be any size."""


@dataclass(frozen=True)
class Said:
    """How it went. ``fault`` names who is to blame where nothing was written: the tool, or the user's script."""

    fault: Literal["", "tool", "script"] = ""
    message: str = ""


def simplify(source: str, output: str) -> Said:
    """Run onnxsim on a model file and write its result, all weights embedded."""
    import onnx
    import onnxsim

    result = model = onnx.load(source)
    # onnxsim makes weights of constants, which up to IR version 3 would have to be inputs too. The version is put
    # back later.
    model.ir_version = max(model.ir_version, 4)
    try:
        for _ in range(_ROUNDS):  # what it leaves, it may simplify once more
            before, result = result, _simplified(onnxsim.simplify, result)
            if len(result.graph.node) >= len(before.graph.node):
                break
    except Exception as error:
        return Said("tool", one_line(error, 200))
    onnx.save(result, output)
    return Said()


def _simplified(tool: Callable[..., Any], model: ModelProto) -> ModelProto:
    """One run of onnxsim. Inputs that have a default stay inputs: a caller may give others."""
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


def graphsurgeon(source: str, script: str, output: str, faithful: str, embed: bool) -> Said:
    """Let a script change a model file by onnx-graphsurgeon and write the result.

    ``faithful`` gets what graphsurgeon writes when nothing is changed. ``embed``: load external data, so that the
    script may read weights from any working directory; without it the directory is the model's.
    """
    import onnx
    import onnx_graphsurgeon as gs

    try:
        onnx.save(gs.export_onnx(gs.import_onnx(onnx.load(source, load_external_data=embed))), faithful)
        graph = gs.import_onnx(onnx.load(source, load_external_data=embed))
    except Exception as error:
        return Said("tool", f"it cannot carry the model: {one_line(error, 200)}")
    path = os.path.abspath(script)
    if not embed:
        os.chdir(Path(source).parent)
    try:
        function = _function(path, script)
        changed = function(graph)
    except _Unusable as error:
        return Said("script", str(error))
    # Whatever it is, SystemExit and KeyboardInterrupt among it: only the script can have raised it.
    except BaseException as error:
        return Said("script", _explained(error, path, script))
    graph = graph if changed is None else changed
    if not isinstance(graph, gs.Graph):
        what = type(graph).__name__
        return Said(
            "script", f"{script}: {FUNCTION} returns {what}; it returns a gs.Graph, or changes the given one"
        )
    try:
        onnx.save(gs.export_onnx(graph), output)
    except Exception as error:
        return Said(
            "script",
            f"{script}: what {FUNCTION} made of the graph cannot be exported: {one_line(error, 200)}",
        )
    return Said()


class _Unusable(Exception):
    """The script has no function to call."""


def _function(path: str, script: str) -> Any:
    """Run the script as a module of its own and take the function out of it."""
    module = ModuleType("onnxfix_graphsurgeon_script")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses and pickle look it up there
    sys.path.insert(0, os.path.dirname(path))  # as if it had been started: it may have helpers beside it
    code: CodeType = compile(Path(path).read_bytes(), path, "exec")
    exec(code, module.__dict__)
    function = getattr(module, FUNCTION, None)
    if not callable(function):
        raise _Unusable(f"{script}: defines no function {FUNCTION}(graph), which would be given the gs.Graph")
    return function


def _explained(error: BaseException, path: str, script: str) -> str:
    """A script's exception with the line of the script that raised or called what did."""
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
    except Exception:  # its text is made by the script, too
        return f"{where}: {type(error).__name__}"
