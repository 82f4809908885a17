"""Functions that run a foreign tool, or a user's script, in the sandbox's child."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from onnx import ModelProto

from onnxfix.errors import UsageError
from onnxfix.runtime.sandbox import one_line

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
