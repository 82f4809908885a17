"""``check``, ``apply`` and ``verify``: load, run, prove, write. The command line is a thin layer over this."""
# Long because: what check, apply and verify take is told in full, and is the same for each

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from onnx import ModelProto

from onnxfix import engine
from onnxfix.causes import Problem
from onnxfix.errors import UsageError
from onnxfix.files import apart, loading
from onnxfix.files.lazy import Pending
from onnxfix.garbage import paused_collection
from onnxfix.model import Model
from onnxfix.registry import registry
from onnxfix.report import confirm
from onnxfix.report.headline import broken, headline, trouble, unread
from onnxfix.report.report import Report, applied_of, finding_of
from onnxfix.rule import Safety
from onnxfix.sandbox import memory_limit
from onnxfix.targets import Target, target_named
from onnxfix.trt import files

if TYPE_CHECKING:
    from onnxfix.pipeline.intake import Intake
    from onnxfix.pipeline.stopped import Stopped
    from onnxfix.pipeline.whole.steps import Step
    from onnxfix.trt.reading import Reading
    from onnxfix.trt.records import TrtBuild, TrtOptions
    from onnxfix.verification.ladder import Verdict

Source: TypeAlias = "str | os.PathLike[str] | ModelProto | bytes"
Progress = Callable[[str], None]

MAX_BATCH = 2**31 - 1
"""The greatest batch of a sweep: TensorRT's dimensions are no larger."""


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
    start = time.perf_counter()
    rules, aim = registry().choose(select, ignore), target_named(target)
    asked = _asked(trt, aim)
    _say(progress, "reading")
    loaded = loading.load(source)
    _separate([loaded], asked)
    problems: list[Problem] = []
    with paused_collection():
        model = _model(loaded, loaded.proto, aim)
        _say(progress, "checking")
        own = [finding_of(item) for item in engine.check(model, rules, problems)]
    network = any(rule.per == "network" for rule in rules)
    with memory_limit(memory_mb):
        build, reading, notes = _built(asked, loaded, network, progress)
        taken = _intake(loaded, progress) if inputs_help else None
    loaded.check()  # TensorRT has read it once more
    problems.extend((*trouble(build), *broken(reading)))
    nodes = model.node_count
    if loaded.oversize:
        notes += (
            f"a protobuf of {loaded.size / 1e9:.1f} GB is more than ONNX Runtime, TensorRT and onnx read (2 GB); "
            "apply puts its weights beside it",
        )
    return Report(
        path=_name(loaded),
        command="check",
        target=aim.name,
        headline=_headline(build, reading),
        findings=confirm.together(own, build, rules, registry().rules, problems, reading),
        build=build,
        network=reading,
        intake=taken,
        nodes_before=nodes,
        nodes_after=nodes,
        seconds=time.perf_counter() - start,
        problems=tuple(dict.fromkeys(problems)),
        notes=notes,
        pending=Pending(loaded.proto, loaded),
    )


def _intake(loaded: loading.Loaded, progress: Progress | None) -> Intake:
    """What the model takes."""
    from onnxfix.pipeline.intake import intake
    from onnxfix.pipeline.proof import on_disk

    _say(progress, "trying sizes")
    with ExitStack() as stack:
        return intake(on_disk(loaded, stack))


def _stopped(
    loaded: loading.Loaded, stack: ExitStack, verdict: Verdict, pinned: Mapping[str, Any] | None = None
) -> Stopped | None:
    """Where the original stops, after a verdict that proves nothing."""
    from onnxfix.pipeline.proof import on_disk
    from onnxfix.pipeline.stopped import stopped

    return stopped(on_disk(loaded, stack), loaded.proto, verdict, pinned)


def _asked(trt: TrtOptions | bool, aim: Target) -> TrtOptions | None:
    """What ``check`` is to ask of TensorRT, which is made sure to be there before any work is done for nothing."""
    if not trt:
        return None
    from onnxfix.trt.records import TrtOptions

    asked = replace(TrtOptions() if trt is True else trt, target=aim.name)
    if asked.save_engine:
        raise UsageError("check writes no engine: ask apply or verify for one")
    confirm.insist(asked).close()
    return asked


def _headline(build: TrtBuild | None, reading: Reading | None) -> str:
    if build is None:
        return ""
    return headline([build], [reading] if reading is not None else [], asked=True)


def _built(
    asked: TrtOptions | None, loaded: loading.Loaded, network: bool, progress: Progress | None
) -> tuple[TrtBuild | None, Reading | None, tuple[str, ...]]:
    """What TensorRT makes of the model and, with ``network``, how it reads it; and notes on who judged it."""
    if asked is None:
        return None, None, ()
    from onnxfix.pipeline.proof import on_disk

    _say(progress, "asking TensorRT")
    with ExitStack() as stack, closing(confirm.insist(asked)) as builder:
        path = on_disk(loaded, stack)
        build, reading = confirm.ask(builder, path, loaded.proto), None
        if network and (build.accepted or build.stage in ("profile", "build")):
            _say(progress, "reading TensorRT's network")
            reading = confirm.reads(builder, path, loaded.proto)
        return build, reading, (*builder.notes(), *unread(reading))


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
    from onnxfix.pipeline.output import destination_of, install
    from onnxfix.pipeline.proof import Options, on_disk
    from onnxfix.pipeline.prove import prove
    from onnxfix.pipeline.whole.steps import steps_of
    from onnxfix.trt.records import TrtOptions
    from onnxfix.verification.specialize.request import SpecializationRequest, files_of, resolved

    start = time.perf_counter()
    rules, aim = registry().choose(select, ignore), target_named(target)
    _say(progress, "reading")
    steps = steps_of(simplify, [Path(script) for script in graphsurgeon])
    wanted = SpecializationRequest(dict(fix_dims or {}), dict(fix_inputs or {}), static, keep_inputs)
    loaded = _read(source, steps)
    destination = destination_of(loaded, output, in_place)
    safety = Safety.UNSAFE if unsafe_fixes else Safety.NUMERIC if numeric_fixes else Safety.EXACT
    asked = _timed(replace(trt or TrtOptions(), target=aim.name), benchmark)
    values = files_of(wanted.inputs.values())
    _separate([loaded], asked, inputs, None if in_place else destination, graphsurgeon, values)
    special, feeds, fixed_notes = resolved(loaded.proto, wanted, asked, inputs, input_shapes)
    options = Options(
        verify,
        _required(require, asked),
        feeds if feeds is not None else inputs,
        tuple(input_shapes),
        seed,
        _rungs(rungs),
        asked,
        leave_data,
        special,
    )
    by_code = {rule.code: rule for rule in rules}
    with ExitStack() as stack:
        stack.enter_context(paused_collection())
        stack.enter_context(memory_limit(memory_mb))
        result = prove(loaded, destination, rules, aim, safety, options, stack, progress, steps)
        loaded.check()
        result.candidate.check()
        run = result.run
        report = Report(
            path=_name(loaded),
            command="apply",
            target=aim.name,
            findings=tuple(finding_of(item) for item in run.remaining),
            applied=tuple(applied_of(item, by_code[item.key.code]) for item in run.applied),
            withdrawn=result.withdrawn,
            steps=result.steps,
            verdict=result.verdict,
            changed=result.changed,
            nodes_before=result.steps[0].nodes_before if result.steps else run.nodes_before,
            nodes_after=run.nodes_after,
            rounds=run.rounds,
            problems=run.problems,
            notes=(*fixed_notes, *result.notes, *_untimed(asked, result.verdict)),
            pending=Pending(result.proto, loaded),
        )
        report = confirm.heard(report, rules, registry().rules)
        if not result.verdict.passed:
            pinned = special.values if special is not None else {}
            report = replace(report, stopped=_stopped(loaded, stack, result.verdict, pinned))
        if asked.save_engine and result.verdict.passed:
            _say(progress, "building the engine")
            path = result.candidate.path if result.changed else on_disk(loaded, stack)
            report = replace(
                report, engine=_engine(path, asked, result.verdict, loaded, result.candidate.check)
            )
        if destination is not None and result.verdict.passed:
            _say(progress, "writing")
            report = replace(report, output=install(loaded, result, destination, in_place=in_place))
    return replace(report, seconds=time.perf_counter() - start)


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
    from onnxfix.pipeline.proof import Options, climb, on_disk
    from onnxfix.trt.records import TrtOptions

    start = time.perf_counter()
    if batch_sweep and not 2 <= batch_sweep <= MAX_BATCH:
        raise UsageError(f"batch_sweep is 0 for none, or a batch from 2 to {MAX_BATCH}, not {batch_sweep}")
    _say(progress, "reading")
    first = loading.load(original)
    second = first if fixed is None else loading.load(fixed)
    asked = _timed(replace(trt or TrtOptions(), batch_sweep=batch_sweep), benchmark)
    _separate([first, second], asked, inputs)
    options = Options(
        True,
        _required(require, asked),
        inputs,
        tuple(input_shapes),
        seed,
        _rungs(rungs),
        asked,
    )
    engine_file = ""
    with ExitStack() as stack:
        stack.enter_context(memory_limit(memory_mb))
        a = on_disk(first, stack)
        b = a if fixed is None else on_disk(second, stack)
        _say(progress, "verifying")
        verdict = climb(a, b, first.proto, second.proto, options, exact=exact, touched=None, inherit=False)
        halt = _stopped(first, stack, verdict) if not verdict.passed else None
        first.check()
        second.check()
        if asked.save_engine and verdict.passed:
            _say(progress, "building the engine")
            engine_file = _engine(b, asked, verdict, second)
    return Report(
        path=_name(first),
        command="verify",
        target="",
        output="" if fixed is None else _name(second),
        engine=engine_file,
        verdict=verdict,
        stopped=halt,
        nodes_before=_count(first, first.proto),
        nodes_after=_count(second, second.proto),
        seconds=time.perf_counter() - start,
        notes=_untimed(asked, verdict),
    )


def _read(source: Source, steps: Sequence[Step]) -> loading.Loaded:
    """The model; with its weights in memory where other tools take it and give it back."""
    if steps and isinstance(source, (str, os.PathLike)):
        return loading.load_whole(source)
    return loading.load(source)


def _rungs(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """The rungs that were asked for; the contract is no matter of choice."""
    return None if names is None else tuple(dict.fromkeys(("contract", *names)))


def _required(require: Sequence[str], asked: TrtOptions) -> tuple[str, ...]:
    """The rungs that must pass: no engine is written of a model that TensorRT does not build."""
    more = ("trt-build",) if (asked.save_engine or asked.batch_sweep) and "trt-build" not in require else ()
    return (*require, *more)


def _timed(asked: TrtOptions, benchmark: bool) -> TrtOptions:
    return replace(asked, benchmark=True) if benchmark else asked


def _untimed(asked: TrtOptions, verdict: Verdict) -> tuple[str, ...]:
    """That there is no latency, though it was asked for, where no rung can say so."""
    rung = verdict.rung("trt-gpu")
    if not asked.benchmark or (rung is not None and rung.latency is not None):
        return ()
    why = "broke" if rung is not None else "did not run"
    return (f"no latency was measured: the rung trt-gpu {why}",)


def _engine(
    path: Path,
    asked: TrtOptions,
    verdict: Verdict,
    loaded: loading.Loaded,
    check: Callable[[], None] = lambda: None,
) -> str:
    from onnxfix.verification.rungs.saved_engine import save_engine

    rung = verdict.rung("trt-build")
    assert rung is not None  # it is required wherever an engine is asked for

    def unchanged() -> None:
        loaded.check()
        check()

    return save_engine(path, asked, rung.builds[-1], unchanged, loaded.mode)


def _say(progress: Progress | None, words: str) -> None:
    if progress is not None:
        progress(words)


def _name(loaded: loading.Loaded) -> str:
    return str(loaded.path) if loaded.path is not None else "<model>"


def _model(loaded: loading.Loaded, proto: ModelProto, target: Target) -> Model:
    model = Model(proto, loaded.base_dir)
    model.target = target
    return model


def _count(loaded: loading.Loaded, proto: ModelProto) -> int:
    return Model(proto, loaded.base_dir).node_count


def _separate(
    read: Sequence[loading.Loaded],
    asked: TrtOptions | None,
    inputs: str | os.PathLike[str] | None = None,
    output: Path | None = None,
    scripts: Sequence[str | os.PathLike[str]] = (),
    values: Sequence[str] = (),
) -> None:
    """Refuse files to write that would replace each other, or anything that the run reads."""
    folder = output.parent if output is not None else None
    known = [file for loaded in read for file in apart.files_of(loaded, folder)]
    known += [apart.File("a script of this run", Path(script)) for script in scripts]
    known += [apart.File("a value of --fix-input", Path(value)) for value in values]
    written = [apart.File("the output", output)] if output is not None else []
    written += files.files(asked) if asked is not None else []
    apart.separate(written, [*known, *apart.inputs_of(inputs)])
