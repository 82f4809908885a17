"""Run ``apply`` on a module of PyTorch, or on a program that torch.onnx.export returned, and say which values of it
leave half precision's range."""

from __future__ import annotations

import contextlib
import importlib
import linecache
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfix.errors import UsageError, fault_of
from onnxfix.names import PYTORCH
from onnxfix.options import RunOptions
from onnxfix.proof.verdict import unjudged
from onnxfix.report.findings import describe_source
from onnxfix.runtime import deadline
from onnxfix.source import Frame, source_at
from onnxfix.verbs import applying
from onnxfix.verbs.exporting import pytorch
from onnxfix.verbs.exporting.judge import judge
from onnxfix.verbs.exporting.pytorch import Subject, torch
from onnxfix.verbs.job import Job, Progress
from onnxfix.verbs.proof import allowed_by
from onnxfix.verbs.prove import Proven

if TYPE_CHECKING:
    from onnxfix.report.report import Report


def export(
    module: Any,
    args: Any,
    options: RunOptions,
    torch_kwargs: Mapping[str, Any],
    *,
    against_pytorch: bool = True,
    progress: Progress | None = None,
) -> Report:
    """Export a module, and repair and prove the file; see :func:`onnxfix.export`.

    Raises:
        UsageError, ModelError, OnnxfixError: as there.
    """
    pytorch.check_options(torch_kwargs)
    say = progress or (lambda text: None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytorch.untouched(module))
        path = stack.enter_context(_file(options))
        subject: Subject | str = "the model was exported in training mode"
        mode = torch_kwargs.get("training")
        if mode is None or getattr(mode, "name", str(mode)) == "EVAL":
            subject = pytorch.of_module(module, args, torch_kwargs)
        say("exporting")
        pytorch.write(module, args, path, torch_kwargs)
        return _apply(path, options, subject if against_pytorch else None, progress)


def apply(program: Any, options: RunOptions, progress: Progress | None = None) -> Report:
    """Repair and prove a program that torch.onnx.export returned; see :func:`onnxfix.apply`.

    Raises:
        ModelError, UsageError, OnnxfixError: as there.
    """
    for name, value in (("in-place", options.output.in_place), ("share-data", options.output.share_data)):
        if value:
            raise UsageError(f"{name} needs a model that was read from a file")
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(_file(options))
        try:
            program.save(str(path))  # with its weights beside it if they do not fit into the file
        except Exception as error:
            reason = pytorch.first_line(error)
            raise pytorch.ExportFailed(f"the program cannot be saved: {reason}") from error
        return _apply(path, options, pytorch.of_program(program), progress)


@contextlib.contextmanager
def _file(options: RunOptions) -> Iterator[Path]:
    """A path in a temporary folder to export to, with the name of the output."""
    with tempfile.TemporaryDirectory(prefix="onnxfix-") as folder:
        yield Path(folder) / (Path(options.output.path or "").name or "model.onnx")


def _apply(
    path: Path, options: RunOptions, subject: Subject | str | None, progress: Progress | None
) -> Report:
    """``apply`` on what was exported. ``subject`` is what to compare with, or why there is nothing; None: nothing
    is to be compared."""
    verification = options.verification
    required = PYTORCH in verification.require
    require = tuple(name for name in verification.require if name != PYTORCH)
    wanted = subject is not None and (verification.enabled or required)

    def compare(job: Job, proven: Proven) -> Proven:
        assert subject is not None
        if isinstance(subject, str):
            rung = unjudged(PYTORCH, subject)
        else:
            job.plan.say("comparing with PyTorch")
            result = proven.candidate.path if proven.changed else proven.original
            allowed = allowed_by(verification)
            try:
                rung = judge(subject, proven.original, result, seed=verification.seed, allowed=allowed)
            except deadline.Expired:
                rung = unjudged(PYTORCH, "stopped at the time limit", "timeout")
            except Exception as error:  # that the check fails itself proves nothing about the models
                if not (fault := fault_of(error)):
                    raise
                rung = unjudged(PYTORCH, fault, "fault")
        verdict = proven.verdict
        must = (*verdict.required, *[PYTORCH] * required)
        return replace(proven, verdict=replace(verdict, rungs=(*verdict.rungs, rung), required=must))

    options = replace(options, verification=replace(verification, require=require))
    report = applying.apply(path, options, progress, compare if wanted else None)
    return replace(
        report, path=str(options.output.path or "<program>"), notes=(*report.notes, *_overflows(subject))
    )


def _overflows(subject: Subject | str | None) -> list[str]:
    """What is beyond half precision's range while the module runs; nothing where it cannot run."""
    try:
        return describe_overflows(subject) if isinstance(subject, Subject) else []
    except Exception:  # the check "pytorch" says what the module raises
        return []


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
