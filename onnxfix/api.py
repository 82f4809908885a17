"""``check``, ``apply`` and ``verify`` as functions: their keywords become one record, which the pipeline gets.

The command line makes the same record from its options, see :mod:`onnxfix.cli`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onnxfix.errors import UsageError
from onnxfix.options import Fixes, Output, Rules, RunOptions, Specialization, Verification

if TYPE_CHECKING:
    from onnxfix.pipeline.opening import Source
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
        select: rule codes, beginnings of codes, names, or ``ALL``; the default rules without it.
        ignore: the same, to leave out.
        target: ``trt8.4``, ``trt8.6``, ``trt10``, ``trt11`` (default) or ``rtx``.
        trt: also ask TensorRT's real parser and builder (True, or how), list what they say, and where the network that
            was imported computes something else, unless the rule TRT004 is not wanted.
        inputs_help: also work out which sizes and values of its inputs the model takes, and run examples with ONNX
            Runtime, if that is installed (``Report.intake``).
        memory_mb: MiB that ONNX Runtime and TensorRT may use, each in a process of its own; three quarters of what is
            available without it. Where a model needs more, the rung is skipped and says so.
        progress: called with a few words before each step.

    Raises:
        ModelError: the model cannot be read or makes no sense as a graph.
        UsageError: a selector or the target does not exist, or TensorRT is to be asked and is not there.
    """
    from onnxfix.pipeline import checking  # lazy: start-up

    if trt is True:
        from onnxfix.trt.records import TrtOptions  # lazy: start-up, seldom used

        trt = TrtOptions()
    options = RunOptions(
        rules=Rules(select, ignore, target), trt=trt or None, memory_mb=memory_mb, inputs_help=inputs_help
    )
    return checking.check(source, options, progress)


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

    A fix that breaks verification is withdrawn and named; the rest stand. Nothing is written unless the result
    verified. Without ``output`` and ``in_place`` nothing is written at all; the result is ``report.model``.

    Args:
        source: path, bytes, or ``ModelProto`` (never changed).
        output: file to write. May not be the source; see ``in_place``.
        in_place: replace the source file, in one step; a ``.bak`` is kept until the new file is in place.
        numeric_fixes: also fixes that keep outputs only within tolerance.
        unsafe_fixes: also fixes that may change behavior or the interface (implies ``numeric_fixes``).
        simplify: run onnxsim over the model first. Its result is dropped unless the interface stands and the outputs
            agree within tolerance.
        graphsurgeon: Python files that define ``fix(graph)``, called with the ``gs.Graph`` in this order after
            onnxsim; the same holds for their results, but with ``unsafe_fixes`` the change is reported instead.
        fix_dims: symbols that become these sizes, such as ``{"batch": 1}``; ``INPUT.AXIS`` names a dimension without
            a name. The result is compared with the original on inputs of these sizes, and proven for no others.
        fix_inputs: inputs that become constants: numbers, booleans, texts, lists, arrays, or ``"@file.npy"``. A single
            value fills a tensor. The result is compared with the original fed these values.
        static: all symbols take the sizes of the first of ``inputs``, or of ``input_shapes``.
        keep_inputs: inputs that were fixed stay, and nothing reads them.
        verify: False skips all rungs but the contract.
        require: rungs that must pass, such as ``ort-cpu``.
        inputs: an .npz, a folder of .npy files, or Polygraphy's JSON, instead of generated inputs.
        input_shapes: ``x:[1,3]``, ``x:1,3`` or ``x:1x3``.
        seed: of the generated inputs.
        rungs: the rungs to climb; all that this machine can, without it.
        trt: how to ask TensorRT.
        benchmark: also time the engines of the original and of the fixed model, where the rung trt-gpu runs them.
        leave_data: external data that was copied beside the output stays there even where the output is not written:
            another run that found it there may refer to it.
        select, ignore, target, memory_mb, progress: as for ``check``.

    Raises:
        ModelError: the model cannot be read or makes no sense as a graph.
        UsageError: the arguments contradict each other or name what does not exist.
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
    """Compare two models on the verification ladder; with one model, show what runs on it and that it repeats.

    Args:
        exact: ask for bit-identical outputs instead of agreement within tolerance.
        batch_sweep: from 2 on, also compare TensorRT's builds for batch 1 alone and for a profile from 1 to this size.
        original, fixed: path, bytes, or ``ModelProto``.
        require, inputs, input_shapes, seed, rungs, trt, benchmark, memory_mb, progress: as for ``apply``. A rung that
            both models fail has failed here: there is no fix to judge.

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


def _trt(trt: TrtOptions | None, *, benchmark: bool) -> TrtOptions:
    from onnxfix.trt.records import TrtOptions  # lazy: start-up

    trt = trt or TrtOptions()
    return replace(trt, benchmark=True) if benchmark else trt
