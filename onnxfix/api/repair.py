"""Find hazards in a model, repair it, compare two models, or export from PyTorch and repair the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnxfix.api import keywords
from onnxfix.api.keywords import Inputs, Names, PathLike, Progress, Shapes, run_options
from onnxfix.config.table import MAX_BATCH
from onnxfix.errors import UsageError
from onnxfix.rewrite import packs as rule_packs

if TYPE_CHECKING:
    from onnxfix.report.report import Report
    from onnxfix.tensorrt.records import TrtOptions
    from onnxfix.verbs.opening import Source


def check(
    source: Source,
    *,
    select: Names | None = None,
    ignore: Names | None = None,
    target: str | None = None,
    packs: Names | None = None,
    trt: TrtOptions | bool = False,
    inputs: Inputs | None = None,
    input_shapes: Shapes = (),
    seed: int = 0,
    partition: bool = False,
    inputs_help: bool = False,
    memory_mb: int | None = None,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """List the hazards in a model. Reads only.

    Args:
        source: path, bytes, or ``ModelProto`` (never changed).
        select: rules to run: codes, code prefixes, names, or ``ALL`` (None: the default rules). A string,
            with commas between several rules, or a list: ``"CST"``, ``"CST,BRC001"``, ``["CST", "BRC001"]``.
        ignore: rules to skip, in the same form.
        target: a release (``"10.3"``), a JetPack (``"jetpack6.2"``), ``trt10`` or ``trt11`` (the newest of them),
            ``rtx``, or several with commas. The default is that of the installed package ``tensorrt``, else ``trt11``.
        packs: installed rule packs to load besides the built-in rules: names, or ``"none"`` (None: the packs in
            ``ONNXFIX_PACKS``, or all packs if it is not set).
        trt: also run TensorRT's parser and builder (True, or with these options) and list what they report. Unless
            TRT004 is ignored, also list where the imported network computes something else.
        inputs, input_shapes, seed: inputs to compare the imported network on, only with ``trt``; as for ``apply``.
        partition: also find out how ONNX Runtime's TensorRT provider would cut the model, by the parser of the
            installed TensorRT (``Report.partition``).
        inputs_help: also find out which input sizes and values the model accepts, and run examples with ONNX Runtime if
            it is installed (``Report.intake``).
        memory_mb: memory limit in MiB for ONNX Runtime and for TensorRT, each in its own process (None: three quarters
            of the available memory). If a model needs more, the check is skipped with that reason.
        timeout: time limit of the call in seconds (None: none).
        progress: called with a short text before each step.

    Raises:
        ModelError: the model cannot be read, or is not a valid graph.
        UsageError: a selector, a pack or the target does not exist, or ``trt`` is given and TensorRT is not available.
    """
    arguments = dict(locals())
    if arguments["trt"] is None or arguments["trt"] is False:
        del arguments["trt"]
    options = run_options(arguments)
    if options.trt is None and (options.verification.inputs is not None or options.verification.input_shapes):
        raise UsageError("inputs and input_shapes have no effect without trt")
    from onnxfix.verbs import checking  # lazy: start-up

    with rule_packs.chosen(keywords.names("packs", packs)):
        return checking.check(keywords.source("source", source), options, keywords.progress(progress))


# Long because: the public keywords are declared and described here, and nowhere else.
def apply(
    source: Source,
    output: PathLike | None = None,
    *,
    in_place: bool = False,
    share_data: bool = False,
    select: Names | None = None,
    ignore: Names | None = None,
    target: str | None = None,
    packs: Names | None = None,
    numeric_fixes: bool = False,
    unsafe_fixes: bool = False,
    simplify: bool = False,
    graphsurgeon: PathLike | Sequence[PathLike] = (),
    fix_dims: Mapping[str, int] | None = None,
    fix_inputs: Mapping[str, Any] | None = None,
    static: bool = False,
    keep_inputs: bool = False,
    verify: bool = True,
    require: Names = (),
    inputs: Inputs | None = None,
    input_shapes: Shapes = (),
    seed: int = 0,
    rungs: Names | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    effort: str | float = "default",
    trt: TrtOptions | None = None,
    benchmark: bool = False,
    partition: bool = False,
    memory_mb: int | None = None,
    timeout: float | None = None,
    rung_timeout: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """Fix a model, prove that the result is equivalent, and write it.

    A fix that fails verification is withdrawn and reported; the others are kept. Nothing is written unless the result
    is verified. Without ``output`` and ``in_place`` nothing is written at all; the result is ``report.model``.

    Args:
        source: path, bytes, ``ModelProto`` (never changed), or the ``torch.onnx.ONNXProgram`` that torch.onnx.export
            returned. A program is also compared with PyTorch's own outputs (check ``pytorch``), as in ``export``.
        output: file to write; not the source, see ``in_place``.
        in_place: replace the source file, in one step.
        share_data: leave external data in the source's files instead of copying it to ``report.data``. ``output`` must
            be in the source's folder. The result records the hashes of these files, and ``verify`` and ``apply`` check
            the hashes.
        numeric_fixes: also apply fixes that preserve outputs only within tolerance.
        unsafe_fixes: also apply fixes that may change behavior or the interface (implies ``numeric_fixes``).
        simplify: run onnxsim first. Its result is dropped unless the interface is unchanged and the outputs agree
            within tolerance.
        graphsurgeon: Python files that define ``fix(graph)``. They are called with the ``gs.Graph`` in this order,
            after onnxsim and under the same condition. With ``unsafe_fixes``, changes are reported instead.
        fix_dims: sizes of symbolic input dimensions, such as ``{"batch": 1}``; ``INPUT.AXIS`` for unnamed dimensions.
            The result is verified for these sizes only.
        fix_inputs: inputs that become constants: numbers, booleans, texts, lists, arrays, or ``"@file.npy"``. A single
            value fills a tensor. The result is verified for these values only.
        static: fix all dimensions to the sizes of the first of ``inputs``, or of ``input_shapes``.
        keep_inputs: keep the inputs of ``fix_inputs``, unused.
        verify: False: check the interface contract only.
        require: checks that must pass, such as ``"ort-cpu"``; one or several.
        inputs: the inputs to run both models on, instead of generated inputs: arrays by input name
            (``{"image": array}``), a list of such mappings, an .npz, a folder of .npy files, or Polygraphy's JSON.
        input_shapes: shapes of generated inputs: ``{"image": (1, 3, 16, 16)}``, or texts such as ``"image:1x3x16x16"``.
        seed: random seed of the generated inputs.
        rungs: checks to run, one or several (None: all available).
        rtol, atol: tolerance of outputs that need not be bit-identical: ``|a - b| <= rtol * |a| + atol`` with the
            original's value ``a``, and ``atol`` in the unit of ``a`` (None: by element type). Exact fixes always need
            identical bits.
        effort: the time for checks that run models: ``"quick"``, ``"default"``, ``"thorough"`` (all inputs and all
            checks), or seconds for each check. What was left out is in ``report.verdict.rungs[...].left_out``.
        trt: options of TensorRT.
        benchmark: also measure latency of the original and the fixed engine (check trt-gpu).
        partition: as for ``check``, of the model and of the result (``Report.partition``, ``partition_after``).
        timeout: time limit of the call in seconds (None: none). The report shows what was checked until then. The
            result is written only if these checks are a proof.
        rung_timeout: time limit of each check in seconds (None: by the model).
        select, ignore, target, packs, memory_mb, progress: as for ``check``.

    Raises:
        ModelError: the model cannot be read, or is not a valid graph.
        UsageError: the arguments contradict each other, or something that they name does not exist.
        OnnxfixError: the output cannot be written, or ``timeout`` expired before anything was checked. Nothing
            half-written is left behind.
    """
    options = run_options(locals(), exported=keywords.is_program(source))
    written, enabled = keywords.path("output", output), keywords.flag("verify", verify)
    options = options.with_fields({"output.path": written, "verification.enabled": enabled})
    say = keywords.progress(progress)
    with rule_packs.chosen(keywords.names("packs", packs)):
        if keywords.is_program(source):
            from onnxfix.verbs.exporting import verb  # lazy: needs torch

            return verb.apply(source, options, say)
        from onnxfix.verbs import applying  # lazy: start-up

        return applying.apply(keywords.source("source", source), options, say)


def verify(
    original: Source,
    fixed: Source | None = None,
    *,
    exact: bool = False,
    require: Names = (),
    inputs: Inputs | None = None,
    input_shapes: Shapes = (),
    seed: int = 0,
    rungs: Names | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    effort: str | float = "default",
    trt: TrtOptions | None = None,
    benchmark: bool = False,
    batch_sweep: int = 0,
    memory_mb: int | None = None,
    timeout: float | None = None,
    rung_timeout: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """Compare two models: same interface, same outputs.

    Args:
        original: path, bytes, or ``ModelProto``.
        fixed: the same; None compares the original with itself.
        exact: require bit-identical outputs instead of agreement within tolerance.
        batch_sweep: 2 or more: also compare TensorRT's builds for batch 1 alone and for a profile from 1 to this size.
        require, inputs, input_shapes, seed, rungs, rtol, atol, effort, trt, benchmark, memory_mb,
            timeout, rung_timeout, progress: as for ``apply``. A check counts as failed if both models fail it: there
            is no fix to judge.

    Raises:
        ModelError, UsageError: as for ``apply``.
    """
    options = run_options(locals())
    if keywords.whole("batch_sweep", batch_sweep) and not 2 <= batch_sweep <= MAX_BATCH:
        raise UsageError(f"batch_sweep is 0 for none, or a batch from 2 to {MAX_BATCH}, not {batch_sweep}")
    from onnxfix.verbs import verifying  # lazy: start-up

    options = options.with_fields({"trt.batch_sweep": batch_sweep})
    first = keywords.source("original", original)
    second = keywords.source("fixed", fixed) if fixed is not None else None
    return verifying.verify(first, second, options, keywords.progress(progress))


# Long because: the public keywords are declared and described here, and nowhere else.
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
            atol, effort, trt, memory_mb, timeout, rung_timeout, progress: as for ``apply``; ``timeout``
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
