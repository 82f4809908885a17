"""Asking about a model: where it differs, what fails in it, the costs of half precision, what TensorRT makes of it; and
about onnxfix: its rules, and what this machine can run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from onnxfix.api import keywords
from onnxfix.api.keywords import Inputs, Names, PathLike, Progress, Shapes, run_options
from onnxfix.errors import UsageError
from onnxfix.rewrite import packs as rule_packs

if TYPE_CHECKING:
    from onnxfix.diagnosis.records import Against, Diagnosis
    from onnxfix.lowering.lowered import Low
    from onnxfix.lowering.records import IoTypes, Lowering
    from onnxfix.reduction.case import Reduction
    from onnxfix.rule import Rule
    from onnxfix.tensorrt.lift.records import Lifted
    from onnxfix.tensorrt.records import TrtOptions
    from onnxfix.verbs.examination.records import Examination
    from onnxfix.verbs.layering import LayerReport
    from onnxfix.verbs.opening import Source


# Long because: the public keywords are declared and described here, and nowhere else.
def reduce(
    source: Source,
    output: PathLike | None = None,
    *,
    check: str,
    against: Source | None = None,
    match: str = "",
    inputs: Inputs | None = None,
    input_shapes: Shapes = (),
    seed: int = 0,
    timeout: float = 300.0,
    time_limit: float | None = None,
    trt: TrtOptions | None = None,
    memory_mb: int | None = None,
    progress: Progress | None = None,
) -> Reduction:
    """Find the smallest part of a model that still fails for the same reason, and write a folder for a bug report.

    An interrupt (KeyboardInterrupt) ends the search once the failure of the whole model is known: the smallest part so
    far is written, and the result is not ``complete``.

    Args:
        source: path, bytes, or ``ModelProto`` (never changed).
        output: folder to write (None: MODEL.reduced beside the model's file): a new or empty one, or that of an earlier
            run.
        check: ``trt-build``, ``trt-network``, ``trt-gpu``, ``ort-cuda``, ``ort-cpu``, or a command for the shell with
            ``{}`` for the model's path and ``{inputs}`` for that of its inputs, which fails if its exit code is not 0.
        against: a second model, for ``ort-cpu``: its same part computes something else from the same inputs.
        match: regular expression that the command's output must contain, too.
        inputs: what it fails on; by default generated.
        timeout: time limit of one check in seconds.
        time_limit: time limit of the search in seconds.
        input_shapes, seed, trt, memory_mb, progress: as for ``apply``, which also says what ``inputs``
            may be.

    Raises:
        ModelError: a model cannot be read.
        UsageError: the check does not exist or TensorRT is not available, or the folder holds something else.
        OnnxfixError: the folder cannot be written.
    """
    run = run_options({**locals(), "timeout": None})
    from onnxfix.verbs import reducing  # lazy: start-up

    options = reducing.ReduceOptions(
        keywords.text("check", check, "trt-build"),
        keywords.source("against", against) if against is not None else None,
        keywords.text("match", match, "Assertion failed"),
        keywords.seconds("timeout", timeout),
        keywords.seconds("time_limit", time_limit) if time_limit is not None else None,
        run,
    )
    folder = keywords.path("output", output)
    return reducing.reduce(keywords.source("source", source), folder, options, keywords.progress(progress))


def diagnose(
    model: Source,
    other: Source | None = None,
    *,
    against: Against | None = None,
    inputs: Inputs | None = None,
    input_shapes: Shapes = (),
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
        inputs: samples, as for ``apply``. At most 16 are used.
        input_shapes, seed, trt, memory_mb, progress: as for ``apply``.

    An interrupt (KeyboardInterrupt) also ends it with what was found.

    Raises:
        ModelError: a model cannot be read, or is not a valid graph.
        UsageError: neither or both of ``other`` and ``against`` are given, or TensorRT is needed and not available.
    """
    options = run_options({**locals(), "timeout": None})
    from onnxfix.diagnosis.records import Against  # lazy: start-up
    from onnxfix.verbs import diagnosing  # lazy: start-up

    if against is not None:
        keywords.one_of("against", against, get_args(Against))
    return diagnosing.diagnose(
        keywords.source("model", model),
        keywords.source("other", other) if other is not None else None,
        against,
        options,
        timeout=keywords.seconds("timeout", timeout) if timeout is not None else None,
        progress=keywords.progress(progress),
    )


# Long because: the public keywords are declared and described here, and nowhere else.
def precision(
    source: Source,
    to: Low,
    max_error: float,
    output: PathLike | None = None,
    *,
    keep: str | Sequence[str] | os.PathLike[str] = (),
    io_types: IoTypes = "keep",
    max_time: float | None = None,
    inputs: Inputs | None = None,
    input_shapes: Shapes = (),
    seed: int = 0,
    rungs: Names | None = None,
    require: Names = (),
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
            beginning of a node's name; one, several, or a file of these, one a line, ``#`` beginning a comment.
        io_types: ``keep`` leaves inputs and outputs in float32, ``low`` gives them the low type.
        max_time: most time on a GPU, as a share of float32's by an estimate: of what is that fast, the smallest error
            is chosen.
        inputs: samples, several if possible: ranges are theirs. Generated without.
        rungs: checks of the result besides the budget: ``contract``, ``trt-build`` (both by default, if available) and
            ``trt-network``.
        require: checks that must pass, or nothing is written.
        timeout: seconds to search where the error comes from.
        input_shapes, seed, target, trt, memory_mb, progress: as for ``apply``.

    Raises:
        ModelError: the model cannot be read, or is not a valid graph.
        UsageError: an argument does not fit.
        OnnxfixError: the output cannot be written. Nothing half-written is left behind.
    """
    options = run_options({**locals(), "timeout": None})
    from onnxfix.lowering.lower import Wish  # lazy: start-up
    from onnxfix.lowering.lowered import Low  # lazy: start-up
    from onnxfix.lowering.records import IoTypes  # lazy: start-up
    from onnxfix.verbs import lowering  # lazy: start-up

    keywords.one_of("to", to, get_args(Low))
    max_error = keywords.number("max_error", max_error, "a number such as 0.01")
    if isinstance(keep, os.PathLike) or (isinstance(keep, str) and os.path.isfile(keep)):
        kept = patterns_of(keep)
    else:  # a regular expression may have commas
        kept = keywords.names("keep", [keep] if isinstance(keep, str) else keep) or ()
    wish = Wish(
        to,
        max_error,
        keywords.one_of("io_types", io_types, get_args(IoTypes)),
        kept,
        seconds=keywords.seconds("timeout", timeout),
        max_time=None if max_time is None else keywords.number("max_time", max_time, "a number such as 0.4"),
    )
    destination = keywords.path("output", output)
    return lowering.lower(
        keywords.source("source", source), destination, wish, options, keywords.progress(progress)
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


def layers(
    source: Source,
    *,
    builds: int = 1,
    inputs: Inputs | None = None,
    input_shapes: Shapes = (),
    seed: int = 0,
    trt: TrtOptions | None = None,
    memory_mb: int | None = None,
    progress: Progress | None = None,
) -> LayerReport:
    """Build a model with TensorRT, and read what became of each node: layers, fusions, precision, tactics.

    Args:
        source: path, bytes, or ``ModelProto`` (never changed).
        builds: build this many engines, compare them, and keep the best one.
        trt: options of TensorRT. ``save_engine``, ``save_tactics`` and ``load_tactics`` name files.
        inputs, input_shapes, seed, memory_mb, progress: as for ``apply``.

    Raises:
        ModelError: the model cannot be read.
        UsageError: TensorRT is not available or keeps no tactics, or the options do not fit the model or each other.
        OnnxfixError: a file cannot be written.
    """
    options = run_options(locals())
    from onnxfix.verbs import layering  # lazy: start-up

    options = options.with_fields({"trt.builds": keywords.whole("builds", builds, 1)})
    return layering.layers(keywords.source("source", source), options, keywords.progress(progress))


def lift(
    source: Source,
    output: PathLike,
    *,
    trt: TrtOptions | None = None,
    progress: Progress | None = None,
) -> Lifted:
    """Import a model with TensorRT's parser, and write the network as an ONNX model to ``output``.

    Layers that onnxfix cannot read back become nodes of the domain "tensorrt": the model can be viewed but not run, and
    the result's status is "unlifted". Nothing is written if TensorRT refuses the model.

    Args:
        source: path, bytes, or ``ModelProto`` (never changed).
        output: path to write to. Weights of more than 1 GiB in total go to ``output`` + ".data".
        trt: which TensorRT to use, and its limits.
        progress: as for ``check``.

    Raises:
        ModelError: the model cannot be read.
        UsageError: TensorRT is not available, or the output cannot be written.
        OnnxfixError: writing failed.
    """
    options = run_options(locals())
    from onnxfix.verbs import layering  # lazy: start-up

    destination = keywords.path("output", output)
    if destination is None:
        raise keywords.refused("output", "a path", output)
    model, say = keywords.source("source", source), keywords.progress(progress)
    return layering.lift(model, destination, trt=options.trt, progress=say)


class RuleList(tuple["Rule", ...]):
    """Rules. ``print`` shows them as the command line does, and a notebook as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        from onnxfix.report.render.rules import rules_lines  # lazy: start-up

        return "\n".join(line.plain for line in rules_lines(self))

    def __repr__(self) -> str:
        return f"RuleList({', '.join(rule.code for rule in self)})"

    def _repr_html_(self) -> str:
        from onnxfix.report.render.html.render import render_rules  # lazy: start-up

        return render_rules(self)


class RulePage(str):
    """A rule's page in Markdown, which a notebook lays out."""

    __slots__ = ()

    def _repr_markdown_(self) -> str:
        return str(self)


def rules(select: Names | None = None, *, search: str | None = None, packs: Names | None = None) -> RuleList:
    """The rules, by their codes, or those about something.

    Args:
        select: codes, code prefixes or names of those that are wanted (None: all, also those that are off by default).
        search: words, or a message that TensorRT printed: the rules that it is about, the best one first.
        packs: installed rule packs to load besides the built-in rules, as for ``check``.

    Raises:
        UsageError: a selector matches no rule, or a pack is not installed.
    """
    from onnxfix.rewrite.registry import registry  # lazy: start-up

    with rule_packs.chosen(keywords.names("packs", packs)):
        found = registry().matching(keywords.names("select", select))
    if search is None:
        return RuleList(found)
    from onnxfix.report import catalogue  # lazy: start-up, seldom used

    query = keywords.text("search", search, "INT64 weights")
    return RuleList(hit.rule for hit in catalogue.search(query, found))


def explain(rule: str | Rule, examples: int | None = 2) -> RulePage:
    """A rule's page in Markdown: what it finds, why that matters, how it is fixed, the evidence, examples.

    Args:
        rule: its code or name, or the rule itself.
        examples: how many to show at most (None: all).

    Raises:
        UsageError: there is no such rule.
    """
    from onnxfix.report.render.rules import rule_markdown  # lazy: start-up
    from onnxfix.rewrite.registry import registry  # lazy: start-up
    from onnxfix.rule import Rule  # lazy: start-up

    if isinstance(rule, str):
        rule = registry().get(rule)
    if not isinstance(rule, Rule):
        raise keywords.refused("rule", "a rule's code or name", rule)
    return RulePage(
        rule_markdown(rule, keywords.whole("examples", examples, 0) if examples is not None else None)
    )


def doctor() -> Examination:
    """Which checks this machine can run, why it cannot run the others, and how to enable them. Faults that it finds are
    results, never exceptions. Takes some seconds, since everything is tried in a process of its own."""
    from onnxfix.verbs.examination import examine  # lazy: start-up

    return examine()
