"""Values that leave half precision's range while the module runs, with the lines of code that compute them."""

from __future__ import annotations

import importlib
import linecache
import sys
from typing import Any

from onnxfix.report.sources import describe_source
from onnxfix.source import Frame, source_at
from onnxfix.verbs.exporting.pytorch import Subject, torch

LARGEST = 65504.0
"""The largest finite float16."""
_MOST = 10
"""Lines that are told."""


def describe_overflows(subject: Subject) -> list[str]:
    """A sentence for each line of the module that makes a float16 infinite out of finite values, in the order in which
    they run. The module runs once more, on the inputs that it was exported with.

    Raises:
        Exception: whatever the module raises.
    """
    library, trees = torch(), importlib.import_module("torch.utils._pytree")
    tree_leaves, tree_map = trees.tree_leaves, trees.tree_map
    mode: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
    found: dict[str, float] = {}

    def is_float(value: Any) -> bool:
        return isinstance(value, library.Tensor) and value.is_floating_point()

    def widened(value: Any) -> Any:
        """The same in float32."""
        half = is_float(value) and value.dtype == library.float16
        return value.float() if half else library.float32 if value is library.float16 else value

    class Watch(mode):  # type: ignore[misc]  # a class that is not known without torch
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            outputs = [one for one in tree_leaves(result) if is_float(one) and one.dtype == library.float16]
            if any(one.isinf().any() for one in outputs):
                inputs = [one for one in tree_leaves((args, kwargs)) if is_float(one)]
                if all(one.isfinite().all() for one in inputs):
                    wide = tree_leaves(func(*tree_map(widened, args), **tree_map(widened, kwargs or {})))
                    value = max(float(one.abs().max()) for one in wide if is_float(one) and one.numel())
                    if (
                        LARGEST < value < float("inf")
                    ):  # not a number that is infinite on purpose, as in masks
                        line = f"{_here()}: {func} reaches"
                        found[line] = max(value, found.get(line, 0.0))
            return result

    with Watch():
        subject.run([given.array for given in subject.given])
    return [f"{line} {value:.3g}, beyond float16's {LARGEST:.0f}" for line, value in found.items()][:_MOST]


def _here() -> str:
    """The line of the module that runs."""
    frames, types = [], []
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code is not Subject.run.__code__:
        name, line = frame.f_code.co_filename, frame.f_lineno
        frames.append(Frame(name, line, frame.f_code.co_name, linecache.getline(name, line).strip()))
        if isinstance(owner := frame.f_locals.get("self"), torch().nn.Module):
            types.append(f"{type(owner).__module__}.{type(owner).__name__}")
        frame = frame.f_back
    return describe_source(source_at(frames[::-1], "", types[::-1]))
