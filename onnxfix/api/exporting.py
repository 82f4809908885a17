"""From PyTorch: export, repair, and the proof against the module itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnxfix.api import keywords
from onnxfix.api.keywords import Inputs, Names, PathLike, Progress, Shapes, run_options
from onnxfix.api.signatures import readable
from onnxfix.errors import UsageError
from onnxfix.rewrite import packs as rule_packs

if TYPE_CHECKING:
    from onnxfix.report.report import Report
    from onnxfix.tensorrt.records import TrtOptions


# Long because: the public keywords are declared and described here, and nowhere else.
@readable
def export(
    module: Any,
    args: Any,
    output: PathLike,
    *,
    select: Names | None = None,
    ignore: Names | None = None,
    target: str | None = None,
    packs: Names | None = None,
    numeric_fixes: bool = False,
    unsafe_fixes: bool = False,
    verify: bool = True,
    against_pytorch: bool = True,
    require: Names = (),
    inputs: Inputs | None = None,
    input_shapes: Shapes = (),
    seed: int = 0,
    rungs: Names | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    effort: str | float = "default",
    trt: TrtOptions | None = None,
    memory_mb: int | None = None,
    timeout: float | None = None,
    rung_timeout: float | None = None,
    structure_mb: int | None = None,
    progress: Progress | None = None,
    **torch_kwargs: Any,
) -> Report:
    """Export a PyTorch module to ONNX, repair the model, and prove the result against PyTorch's own outputs.

    The module runs in this process, in evaluation mode: on ``args``, on other values like them, and on other sizes of
    dynamic dimensions. The check ``pytorch`` compares its outputs with the outputs of the exported model and
    of the result. If they differ, nothing is written. ``report.verdict.rung("pytorch").exported.blame`` is
    "export" if the exported model already differs, "fix" if only the fixed model does. If they cannot be
    compared, the check is skipped with a reason. The module keeps its modes, parameters and buffers.

    Args:
        module: a ``torch.nn.Module``, or anything else that torch.onnx.export accepts.
        args: its arguments, as for torch.onnx.export.
        output: file to write. External weights of the exported model go into the same folder.
        against_pytorch: False skips the check ``pytorch``.
        require: checks that must pass, ``"pytorch"`` among them.
        **torch_kwargs: for torch.onnx.export: ``dynamo``, ``dynamic_shapes``, ``dynamic_axes``, ``input_names``,
            ``opset_version``, ``external_data`` ... ``verify`` is not among them: it turns off all checks of onnxfix.
        select, ignore, target, packs, numeric_fixes, unsafe_fixes, verify, inputs, input_shapes, seed, rungs, rtol,
            atol, effort, trt, memory_mb, timeout, rung_timeout, structure_mb, progress: as for ``apply``; ``timeout``
            begins after the export.

    Raises:
        UsageError: PyTorch is not installed, its exporter fails (``__cause__`` is its exception), or a keyword does
            not exist.
        ModelError: the exported model is not valid.
        OnnxfixError: the output cannot be written. Nothing half-written is left behind.
    """
    options = run_options(locals(), exported=True)
    path, enabled = keywords.path("output", output), keywords.flag("verify", verify)
    if path is None:
        raise UsageError("output must be a path")
    options = options.with_fields({"output.path": path, "verification.enabled": enabled})
    compares, say = keywords.flag("against_pytorch", against_pytorch), keywords.progress(progress)
    from onnxfix.verbs.exporting import verb  # lazy: start-up

    with rule_packs.chosen(keywords.names("packs", packs)):
        return verb.export(module, args, options, torch_kwargs, against_pytorch=compares, progress=say)
