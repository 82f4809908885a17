"""Run ``apply`` on a module of PyTorch, or on a program that torch.onnx.export returned."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfix.errors import UsageError, fault_of
from onnxfix.names import PYTORCH
from onnxfix.options import RunOptions
from onnxfix.proof.verdict import unjudged
from onnxfix.runtime import deadline
from onnxfix.verbs import applying
from onnxfix.verbs.exporting import pytorch
from onnxfix.verbs.exporting.judge import judge
from onnxfix.verbs.exporting.pytorch import Subject
from onnxfix.verbs.exporting.ranges import describe_overflows
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
