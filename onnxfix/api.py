"""The verbs as functions: their keywords become one record for the pipeline.

The command line makes the same record from its options, see :mod:`onnxfix.cli`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from onnxfix.errors import UsageError
from onnxfix.options import Fixes, Output, Rules, RunOptions, Specialization, Verification

if TYPE_CHECKING:
    from onnxfix.diagnosis.lowered import Low
    from onnxfix.diagnosis.records import Against, Diagnosis
    from onnxfix.lowering.records import IoTypes, Lowering
    from onnxfix.pipeline.opening import Source
    from onnxfix.reduction.records import Reduction
    from onnxfix.report.report import Report
    from onnxfix.trt.records import TrtOptions

Progress = Callable[[str], None]

MAX_BATCH = 2**31 - 1
"""The largest batch of a sweep: TensorRT's dimensions are no larger."""


def check(
    source: Source,
    *,
    select: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
    target: str | None = None,
    trt: TrtOptions | bool = False,
    inputs_help: bool = False,
    memory_mb: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """List the hazards in a model. Reads only.

    Args:
        source: path, bytes, or ``ModelProto`` (never changed).
        select: rules to run: codes, code prefixes, names, or ``ALL`` (None: the default rules).
        ignore: rules to skip, in the same form.
        target: ``trt8.4``, ``trt8.6``, ``trt10``, ``trt11`` (default) or ``rtx``.
        trt: also run TensorRT's parser and builder (True, or with these options), list what they report, and unless
            TRT004 is ignored, where the imported network computes something else.
        inputs_help: also find out which input sizes and values the model accepts, and run examples with ONNX Runtime if
            it is installed (``Report.intake``).
        memory_mb: memory limit in MiB for ONNX Runtime and for TensorRT, each in its own process (None: three quarters
            of what is available). Where a model needs more, the check is skipped and says so.
        progress: called with a short text before each step.

    Raises:
        ModelError: the model cannot be read, or is not a valid graph.
        UsageError: a selector or the target does not exist, or ``trt`` is given and TensorRT is not available.
    """
    from onnxfix.pipeline import checking  # lazy: start-up

    if trt is True:
        from onnxfix.trt.records import TrtOptions  # lazy: start-up, seldom used

        trt = TrtOptions()
    options = RunOptions(
        rules=Rules(select, ignore, target), trt=trt or None, memory_mb=memory_mb, inputs_help=inputs_help
    )
    return checking.check(source, options, progress)


# Long because: the public keywords are declared and described here, and nowhere else.
def apply(
    source: Source,
    output: str | os.PathLike[str] | None = None,
    *,
    in_place: bool = False,
    select: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
    target: str | None = None,
    numeric_fixes: bool = False,
    unsafe_fixes: bool = False,
    simplify: bool = False,
    graphsurgeon: Sequence[str | os.PathLike[str]] = (),
    fix_dims: Mapping[str, int] | None = None,
    fix_inputs: Mapping[str, Any] | None = None,
    static: bool = False,
    keep_inputs: bool = False,
    verify: bool = True,
    require: Sequence[str] = (),
    inputs: str | os.PathLike[str] | None = None,
    input_shapes: Sequence[str] = (),
    seed: int = 0,
    rungs: Sequence[str] | None = None,
    trt: TrtOptions | None = None,
    benchmark: bool = False,
    leave_data: bool = False,
    memory_mb: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Fix a model, prove that the result still is the same model, and write it.

    A fix that fails verification is withdrawn and reported; the others are kept. Nothing is written unless the result
    is verified. Without ``output`` and ``in_place`` nothing is written at all; the result is ``report.model``.

    Args:
        source: path, bytes, or ``ModelProto`` (never changed).
        output: file to write; not the source, see ``in_place``.
        in_place: replace the source file, in one step; a ``.bak`` is kept until the new file is in place.
        numeric_fixes: also apply fixes that preserve outputs within tolerance only.
        unsafe_fixes: also apply fixes that may change behavior or the interface (implies ``numeric_fixes``).
        simplify: run onnxsim first. Its result is dropped unless the interface is unchanged and the outputs agree
            within tolerance.
        graphsurgeon: Python files that define ``fix(graph)``, called with the ``gs.Graph`` in this order after onnxsim,
            under the same condition; with ``unsafe_fixes`` changes are reported instead.
        fix_dims: sizes of symbolic input dimensions, such as ``{"batch": 1}``; ``INPUT.AXIS`` for an unnamed one. The
            result is verified for these sizes only.
        fix_inputs: inputs that become constants: numbers, booleans, texts, lists, arrays, or ``"@file.npy"``. A single
            value fills a tensor. The result is verified for these values only.
        static: fix all dimensions to the sizes of the first of ``inputs``, or of ``input_shapes``.
        keep_inputs: keep the inputs of ``fix_inputs``, unused.
        verify: False: check the interface contract only.
        require: checks that must pass, such as ``ort-cpu``.
        inputs: an .npz, a folder of .npy files, or Polygraphy's JSON, instead of generated inputs.
        input_shapes: ``x:[1,3]``, ``x:1,3`` or ``x:1x3``.
        seed: random seed of the generated inputs.
        rungs: checks to run (None: all available).
        trt: options of TensorRT.
        benchmark: also measure latency of the original and the fixed engine (check trt-gpu).
        leave_data: keep external data that was copied beside the output even if the output is not written: another run
            that found it there may refer to it.
        select, ignore, target, memory_mb, progress: as for ``check``.

    Raises:
        ModelError: the model cannot be read, or is not a valid graph.
        UsageError: the arguments contradict each other, or something that they name does not exist.
        OnnxfixError: the output cannot be written. Nothing half-written is left behind.
    """
    from onnxfix.pipeline import applying  # lazy: start-up

    options = RunOptions(
        rules=Rules(select, ignore, target),
        fixes=Fixes(numeric_fixes, unsafe_fixes, simplify, tuple(graphsurgeon)),
        specialization=Specialization(dict(fix_dims or {}), dict(fix_inputs or {}), static, keep_inputs),
        verification=Verification(
            enabled=verify,
            require=tuple(require),
            inputs=inputs,
            input_shapes=tuple(input_shapes),
            seed=seed,
            rungs=rungs,
        ),
        trt=_trt(trt, benchmark=benchmark),
        output=Output(output, in_place, leave_data),
        memory_mb=memory_mb,
    )
    return applying.apply(source, options, progress)


def verify(
    original: Source,
    fixed: Source | None = None,
    *,
    exact: bool = False,
    require: Sequence[str] = (),
    inputs: str | os.PathLike[str] | None = None,
    input_shapes: Sequence[str] = (),
    seed: int = 0,
    rungs: Sequence[str] | None = None,
    trt: TrtOptions | None = None,
    benchmark: bool = False,
    batch_sweep: int = 0,
    memory_mb: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Compare two models on the verification ladder: same interface, same outputs.

    Args:
        original: path, bytes, or ``ModelProto``.
        fixed: the same; None compares the original with itself.
        exact: require bit-identical outputs instead of agreement within tolerance.
        batch_sweep: 2 or more: also compare TensorRT's builds for batch 1 alone and for a profile from 1 to this size.
        require, inputs, input_shapes, seed, rungs, trt, benchmark, memory_mb, progress: as for ``apply``. A check that
            both models fail is failed here: there is no fix to judge.

    Raises:
        ModelError, UsageError: as for ``apply``.
    """
    from onnxfix.pipeline import verifying  # lazy: start-up

    if batch_sweep and not 2 <= batch_sweep <= MAX_BATCH:
        raise UsageError(f"batch_sweep is 0 for none, or a batch from 2 to {MAX_BATCH}, not {batch_sweep}")
    options = RunOptions(
        verification=Verification(
            exact=exact,
            require=tuple(require),
            inputs=inputs,
            input_shapes=tuple(input_shapes),
            seed=seed,
            rungs=rungs,
        ),
        trt=replace(_trt(trt, benchmark=benchmark), batch_sweep=batch_sweep),
        memory_mb=memory_mb,
    )
    return verifying.verify(original, fixed, options, progress)


def reduce(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    check: str,
    against: str | os.PathLike[str] | None = None,
    match: str = "",
    inputs: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    input_shapes: Sequence[str] = (),
    seed: int = 0,
    timeout: float = 300.0,
    time_limit: float | None = None,
    resume: bool = False,
    trt: TrtOptions | None = None,
    memory_mb: int | None = None,
    progress: Progress | None = None,
) -> Reduction:
    """Find the smallest part of a model that still fails for the same reason, and write a folder for a bug report.

    An interrupt (KeyboardInterrupt) ends the search once the failure of the whole model is known: the smallest part so
    far is written, and the result is not ``complete``.

    Args:
        source: path of the model, which is only read.
        output: folder to write (None: MODEL.reduced beside the model): a new or empty one, or that of an earlier run.
        check: ``trt-build``, ``trt-network``, ``trt-gpu``, ``ort-cuda``, ``ort-cpu``, or a command for the shell with
            ``{}`` for the model's path and ``{inputs}`` for that of its inputs, which fails if its exit code is not 0.
        against: a second model, for ``ort-cpu``: its same part computes something else from the same inputs.
        match: regular expression that the command's output must contain, too.
        inputs: an .npz, a folder of .npy files, Polygraphy's JSON, or the arrays; by default they are generated.
        timeout: time limit of one check in seconds.
        time_limit: time limit of the search in seconds.
        resume: go on with what an earlier run left in the folder.
        input_shapes, seed, trt, memory_mb, progress: as for ``apply``.

    Raises:
        ModelError: a model cannot be read.
        UsageError: the check does not exist or TensorRT is not available, or the folder holds something else.
        OnnxfixError: the folder cannot be written.
    """
    from onnxfix.pipeline import reducing  # lazy: start-up

    options = reducing.ReduceOptions(
        check, against, match, inputs, tuple(input_shapes), seed, timeout, time_limit, resume, trt, memory_mb
    )
    return reducing.reduce(source, output, options, progress)


def diagnose(
    model: Source,
    other: Source | None = None,
    *,
    against: Against | None = None,
    inputs: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | None = None,
    input_shapes: Sequence[str] = (),
    seed: int = 0,
    trt: TrtOptions | None = None,
    memory_mb: int | None = None,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Find the node where another way to compute a model begins to differ, why, and what to do.

    The model itself, in ONNX Runtime on the CPU without optimizations, is the truth. Each node of the other side is
    also run alone on the truth's values, so that an error it introduces is told apart from one it received.

    Args:
        model: path, bytes, or ``ModelProto`` (never changed): the one that is right.
        other: a second model that should compute the same; its nodes are matched by names and structure.
        against: instead of ``other``, another way to compute ``model``: ``ort-cpu`` (ONNX Runtime's optimizations),
            ``ort-cuda``, ``fp16`` or ``bf16`` (every node rounded to half precision), ``trt-network`` (the network that
            TensorRT imports, no GPU needed), ``trt-gpu`` (its engine).
        timeout: seconds after which the result is what was found until then (``Diagnosis.complete`` is False).
        inputs: as for ``apply``, or the samples themselves, arrays by the names of inputs. At most 16 are used.
        input_shapes, seed, trt, memory_mb, progress: as for ``apply``.

    An interrupt (KeyboardInterrupt) also ends it with what was found.

    Raises:
        ModelError: a model cannot be read, or is not a valid graph.
        UsageError: neither or both of ``other`` and ``against`` are given, or TensorRT is needed and not available.
    """
    from onnxfix.diagnosis.records import Against  # lazy: start-up
    from onnxfix.pipeline import diagnosing  # lazy: start-up

    known = get_args(Against)
    if against is not None and against not in known:
        raise UsageError(f"unknown against={against!r}; choose from {', '.join(known)}")
    options = RunOptions(
        verification=Verification(inputs=inputs, input_shapes=tuple(input_shapes), seed=seed),
        trt=_trt(trt, benchmark=False),
        memory_mb=memory_mb,
    )
    return diagnosing.diagnose(model, other, against, options, timeout=timeout, progress=progress)


def precision(
    source: Source,
    to: Low,
    max_error: float,
    output: str | os.PathLike[str] | None = None,
    *,
    keep: Sequence[str] | str | os.PathLike[str] = (),
    io_types: IoTypes = "keep",
    inputs: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | None = None,
    input_shapes: Sequence[str] = (),
    seed: int = 0,
    rungs: Sequence[str] | None = None,
    target: str | None = None,
    trt: TrtOptions | None = None,
    timeout: float = 600.0,
    memory_mb: int | None = None,
    progress: Progress | None = None,
) -> Lowering:
    """Convert a float32 model to mixed precision: as many nodes in half precision as an error budget allows.

    Nothing is written unless the result's error is within the budget and no check refuses it.

    Args:
        source: path, bytes, or ``ModelProto`` (never changed).
        to: ``fp16`` or ``bf16``.
        max_error: largest error of an output, as a share of its largest magnitude in float32.
        output: file to write; not the source.
        keep: nodes that stay in float32: names of nodes or of their outputs, or regular expressions that match the
            beginning of a node's name; or a file of these, one a line, ``#`` beginning a comment.
        io_types: ``keep`` leaves inputs and outputs in float32, ``low`` gives them the low type.
        inputs: samples, several if possible: ranges are theirs. Generated without.
        rungs: checks of the result besides the budget: ``contract``, ``trt-build`` (both by default, if available) and
            ``trt-network``.
        timeout: seconds to search where the error comes from.
        input_shapes, seed, target, trt, memory_mb, progress: as for ``apply``.

    Raises:
        ModelError: the model cannot be read, or is not a valid graph.
        UsageError: an argument does not fit.
        OnnxfixError: the output cannot be written. Nothing half-written is left behind.
    """
    from onnxfix.lowering.lower import Wish  # lazy: start-up
    from onnxfix.pipeline import lowering  # lazy: start-up

    patterns = patterns_of(keep) if isinstance(keep, (str, os.PathLike)) else tuple(keep)
    options = RunOptions(
        rules=Rules(target=target),
        verification=Verification(inputs=inputs, input_shapes=tuple(input_shapes), seed=seed, rungs=rungs),
        trt=_trt(trt, benchmark=False),
        memory_mb=memory_mb,
    )
    return lowering.lower(
        source, output, Wish(to, max_error, io_types, patterns, seconds=timeout), options, progress
    )


def patterns_of(path: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """The lines of a file of nodes to keep, without comments and empty lines; none without a file.

    Raises:
        UsageError: it cannot be read.
    """
    if path is None:
        return ()
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--keep {os.fspath(path)}: cannot be read: {reason}") from None
    return tuple(line for line in lines if line and not line.startswith("#"))


def _trt(trt: TrtOptions | None, *, benchmark: bool) -> TrtOptions:
    from onnxfix.trt.records import TrtOptions  # lazy: start-up

    trt = trt or TrtOptions()
    return replace(trt, benchmark=True) if benchmark else trt
