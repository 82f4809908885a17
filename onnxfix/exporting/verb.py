"""``export``, and ``apply`` of a program that torch.onnx.export returned."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfix.exporting import pytorch
from onnxfix.exporting.judge import judge
from onnxfix.exporting.subject import Subject
from onnxfix.options import Fixes, Output, Rules, RunOptions, Verification
from onnxfix.pipeline import applying
from onnxfix.pipeline.applying import Beyond
from onnxfix.pipeline.job import Job
from onnxfix.pipeline.prove import Proven
from onnxfix.verification.verdict import PYTORCH

if TYPE_CHECKING:
    from onnxfix.report.report import Report
    from onnxfix.trt.records import TrtOptions

Progress = Callable[[str], None]


# Long because: the public keywords are declared and described here, and nowhere else.
def export(
    module: Any,
    args: Any,
    output: str | os.PathLike[str],
    *,
    target: str | None = None,
    select: str | Sequence[str] | None = None,
    ignore: str | Sequence[str] | None = None,
    numeric_fixes: bool = False,
    unsafe_fixes: bool = False,
    verify: bool = True,
    against_pytorch: bool = True,
    require: Sequence[str] = (),
    rungs: Sequence[str] | None = None,
    seed: int = 0,
    trt: TrtOptions | None = None,
    memory_mb: int | None = None,
    progress: Progress | None = None,
    **torch_kwargs: Any,
) -> Report:
    """Export a PyTorch module to ONNX, repair the file, and prove the result against PyTorch's own outputs.

    The module runs as it is, in evaluation mode, in this process: on ``args``, on other values like them, and where
    dimensions are dynamic on other sizes. The check ``pytorch`` of the report says whether the exported model and the
    result compute the same; ``RungResult.exported.blame`` says whether the exporter or a fix is to blame if not. Then,
    as whenever something is not proven, nothing is written. Where the two cannot be compared, the check is skipped and
    says why. The module is left as it was: mode, parameters, buffers.

    Args:
        module: a ``torch.nn.Module``, or what else torch.onnx.export takes.
        args: its arguments, as for torch.onnx.export.
        output: file to write. Weights that torch.onnx.export puts beside the model are put beside this file.
        against_pytorch: False: do not compare with PyTorch.
        **torch_kwargs: for torch.onnx.export, such as ``dynamo``, ``dynamic_shapes``, ``dynamic_axes``, ``input_names``,
            ``opset_version``, ``external_data``. ``verify`` is onnxfix's, and of all checks.
        target, select, ignore, numeric_fixes, unsafe_fixes, verify, require, rungs, seed, trt, memory_mb, progress: as
            for ``apply``.

    Raises:
        UsageError: PyTorch is not installed, its exporter fails (its exception is the cause), or a keyword does not
            exist.
        ModelError: what it exported is not a valid model.
        OnnxfixError: the output cannot be written.
    """
    options = RunOptions(
        rules=Rules(select, ignore, target),  # type: ignore[arg-type]
        fixes=Fixes(numeric_fixes, unsafe_fixes),
        verification=Verification(
            enabled=verify, require=tuple(name for name in require if name != PYTORCH), seed=seed, rungs=rungs
        ),
        trt=trt,
        output=Output(output),
        memory_mb=memory_mb,
    )
    say = progress or (lambda text: None)
    pytorch.check_options(torch_kwargs)
    training = str(torch_kwargs.get("training", "EVAL")).rpartition(".")[2]
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytorch.untouched(module))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))
        path = folder / (Path(output).name or "model.onnx")
        say("exporting")
        pytorch.write(module, args, path, torch_kwargs)
        beyond = None
        if against_pytorch and verify and training == "EVAL":
            subject = _subject(module, args, torch_kwargs)
            beyond = against(subject, seed, required=PYTORCH in require)
        report = applying.apply(path, options, progress, beyond)
    return replace(report, path=str(output))


def _subject(module: Any, args: Any, options: Mapping[str, Any]) -> Subject:
    positional, keywords = pytorch.arguments_of(args, options.get("kwargs"))
    call = module.module() if hasattr(module, "module") and hasattr(module, "graph_signature") else module
    return pytorch.TorchSubject(
        call,
        positional,
        keywords,
        exporter=pytorch.exporter_of(options),
        bounds=pytorch.bounds_of(options.get("dynamic_shapes")),
        names=pytorch.names_of(module),
    )


def against(subject: Subject, seed: int, *, required: bool = False) -> Beyond:
    """The comparison with a module, for a run of ``apply``; ``required``: it must pass."""

    def compared(job: Job, proven: Proven) -> Proven:
        job.plan.say("comparing with PyTorch")
        result = proven.candidate.path if proven.changed else proven.original
        rung = judge(subject, proven.original, result, seed=seed)
        verdict = proven.verdict
        must = (*verdict.required, *[PYTORCH] * required)
        return replace(proven, verdict=replace(verdict, rungs=(*verdict.rungs, rung), required=must))

    return compared
