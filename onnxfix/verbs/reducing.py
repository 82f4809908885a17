"""``reduce``: the smallest part of a model that still fails for the same reason, as a folder for a bug report."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import helper

from onnxfix.diagnosis.graph import open_graph
from onnxfix.diagnosis.matching import match
from onnxfix.errors import UsageError
from onnxfix.files import loading
from onnxfix.inputs.feeds.inputs import Kind
from onnxfix.inputs.feeds.plan import Feed, list_sizes
from onnxfix.inputs.feeds.signature import Signature, signature
from onnxfix.options import RunOptions
from onnxfix.proof.asking import require_tensorrt
from onnxfix.proof.request import read_feeds
from onnxfix.reduction import case as cases
from onnxfix.reduction import trim
from onnxfix.reduction.against import AgainstCheck
from onnxfix.reduction.case import Case, Failure, Reduction, Seen, Status
from onnxfix.reduction.checks import (
    MODEL,
    Check,
    CommandCheck,
    OrtCheck,
    TrtBuildCheck,
    TrtGpuCheck,
    TrtNetworkCheck,
    refusal,
)
from onnxfix.reduction.reduce import reduce as search
from onnxfix.reduction.reduce import shrink_inner
from onnxfix.reduction.search import Reducer, Terms
from onnxfix.reduction.values import Facts, Values, write
from onnxfix.runtime import backends
from onnxfix.runtime.allowance import memory_limit
from onnxfix.tensorrt.records import TrtBuild, TrtOptions
from onnxfix.verbs import reduced
from onnxfix.verbs.opening import Source, name_of, on_disk

CHECKS = ("trt-build", "trt-network", "trt-gpu", "ort-cuda", "ort-cpu")
"""The checks besides commands."""
_MAX_INPUTS = 3  # maximum number of generated inputs for the first check
_MILD_KINDS: tuple[Kind, ...] = ("normal", "small", "ones", "zeros")
_MIN_SHARED_NAMES = 0.8
"""Minimum share of tensors with the same name and operator in two models. From this share on, equal names
count as the same tensor."""


@dataclass(frozen=True)
class ReduceOptions:
    """How a reduction is to be done.

    ``check`` is one of CHECKS, or a command with ``{}`` for the model's path (and ``{inputs}`` for its inputs' path).
    ``against`` is a second model. Its corresponding part must compute something else. ``match`` is a regular expression
    for the command's output. ``timeout`` limits one check and ``time_limit`` the whole search, in seconds. ``run`` has
    the inputs, TensorRT's options and the memory limit.
    """

    check: str
    against: Source | None = None
    match: str = ""
    timeout: float = 300.0
    time_limit: float | None = None
    run: RunOptions = field(default_factory=RunOptions)


def reduce(
    source: Source,
    output: str | os.PathLike[str] | None,
    options: ReduceOptions,
    progress: Callable[[str], None] | None = None,
) -> Reduction:
    """Reduce the model file ``source``; see :func:`onnxfix.reduce`.

    Raises:
        ModelError, UsageError, OnnxfixError: as there.
    """
    began = time.perf_counter()
    say = progress or (lambda text: None)
    say("reading")
    loaded = loading.load(source)
    other = loading.load(options.against) if options.against is not None else None
    if output is not None:
        path = Path(output)
    elif loaded.path is not None:
        path = loaded.path.with_name(f"{loaded.path.stem}.reduced")
    else:
        raise UsageError("a model that comes from no file needs an output folder")
    models = [item for item in (loaded, other) if item is not None]
    trt = options.run.trt or TrtOptions()
    identity = {
        "check": options.check,
        "match": options.match,
        "package": trt.package,
        "capability": trt.compute_capability,
        "models": [[os.path.abspath(item.path or ""), item.size] for item in models],
    }
    folder = reduced.Folder(path, loaded, identity)
    with ExitStack() as stack:
        stack.enter_context(memory_limit(options.run.memory_mb))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-reduce-")))
        names = _names(loaded, other, stack) if other is not None else None
        check = _check(options, other, names, stack)
        reduction = _Run(loaded, options, check, scratch, say).reduce(folder)
        loaded.check()
    return replace(reduction, seconds=time.perf_counter() - began)


def _names(loaded: loading.Loaded, other: loading.Loaded, stack: ExitStack) -> dict[str, str] | None:
    """Names in the first model -> names of the same tensors in the second; None if both use the same names.

    Raises:
        UsageError: the interfaces of the models differ.
    """
    ours, theirs = (
        {name: node.op_type for node in item.proto.graph.node for name in node.output if name}
        for item in (loaded, other)
    )
    shared = sum(theirs.get(name) == operator for name, operator in ours.items())
    if shared >= _MIN_SHARED_NAMES * max(1, min(len(ours), len(theirs))):
        return None
    first, second = (open_graph(on_disk(item, stack)) for item in (loaded, other))
    pairs = match(first, second).pairs
    return {ours: theirs for theirs, ours in pairs.items()}


def _check(
    options: ReduceOptions, other: loading.Loaded | None, names: Mapping[str, str] | None, stack: ExitStack
) -> Check:
    """The check that the options name.

    Raises:
        UsageError: the name is unknown, a requirement is not installed, or two options contradict each other.
    """
    name = options.check
    if name == "ort-cpu":
        backends.require(name, "--check ort-cpu")
    if other is not None:
        if name != "ort-cpu":
            raise UsageError("--against compares two models with --check ort-cpu")
        return AgainstCheck(cases.case_of(other, {}), names, step=options.timeout)
    if options.match and name in CHECKS:
        raise UsageError("--match is about the output of a command, see --check")
    if name in ("ort-cpu", "ort-cuda"):
        return OrtCheck(name, options.timeout)
    if name in CHECKS:
        trt = replace(options.run.trt or TrtOptions(), timeout=options.timeout)
        builder = stack.enter_context(closing(require_tensorrt(trt)))
        if name == "trt-build":
            return TrtBuildCheck(builder)
        return (TrtNetworkCheck if name == "trt-network" else TrtGpuCheck)(
            builder, options.run.verification.seed
        )
    if MODEL not in name:
        raise UsageError(
            f"unknown check {name!r}; choose from {', '.join(CHECKS)}, or a command with {{}} for the model's path"
        )
    return CommandCheck(name, options.match, options.timeout)


class _Start(NamedTuple):
    """The whole model, its failure, and whether ONNX Runtime runs it."""

    case: Case
    failure: Failure
    runs: bool


class _Run:
    """One reduction, from the whole model to the folder."""

    def __init__(
        self, loaded: loading.Loaded, options: ReduceOptions, check: Check, scratch: Path,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.loaded, self.options, self.check = loaded, options, check
        self.scratch, self.say = scratch, say
        self.values = Values(scratch, options.timeout)
        self.whole = cases.case_of(loaded, {})
        self.notes: list[str] = []

    def reduce(self, folder: reduced.Folder) -> Reduction:
        base = Reduction(name_of(self.loaded), self.options.check, "unknown", nodes_before=self.whole.count)
        start = self._start()
        if isinstance(start, Seen):
            status: Status = "unknown" if start.unknown else "passes"
            return replace(base, status=status, reason=start.unknown, cause=start.cause)
        reducer = self.reducer(start)
        ended = search(reducer)
        self.say("writing")
        made_up = "ONNX Runtime does not run some node: values behind it are made up"
        result = replace(
            base,
            status="reduced",
            failure=reducer.seen,
            nodes_after=reducer.case.count,
            tries=reducer.tries,
            steps=tuple(reducer.steps),
            complete=ended == "complete",
            interrupted=ended == "interrupted",
            notes=(*self.notes, *([made_up] if reducer.made else [])),
        )
        return folder.finish(result, reducer, self.check)

    def reducer(self, start: _Start, kept: Callable[[Reducer], None] = lambda reducer: None) -> Reducer:
        limit = self.options.time_limit
        end = time.monotonic() + limit if limit is not None else float("inf")
        facts = Facts(self.loaded.proto, self.loaded.base_dir)
        terms = Terms(self.check, start.failure, self.scratch, self.say, kept, end)
        self.check.expect(start.failure)
        return Reducer(start.case, terms, self.values, facts, runs=start.runs)

    def _start(self) -> _Start | Seen:
        """The whole model with inputs on which it fails; the result of the check if it does not fail."""
        last = Seen(unknown="no inputs could be made for this model")
        for number, inputs in enumerate(self.inputs()):
            self.say("checking the whole model")
            case = replace(self.whole, inputs=inputs)
            path = self.scratch / "whole.onnx"
            write(case.model, path)
            last = self.check.examine(case, path)
            if last.failures:
                return self._with_failing_inputs(case, last.failures[0], path)
            if not self.check.feeds or last.unknown or number + 1 >= _MAX_INPUTS:
                break
        return last

    def _with_failing_inputs(self, case: Case, failure: Failure, path: Path) -> _Start | Seen:
        """Start from this failure, on the check's own inputs if it generated inputs that show the failure."""
        failing = getattr(self.check, "failing", None)
        if failing and not case.inputs:
            with_inputs = replace(case, inputs=failing)
            if repeated := [*filter(failure.same, self.check.examine(with_inputs, path).failures)]:
                case, failure = with_inputs, repeated[0]
        if failure.kind == "differs":
            failure = replace(failure, op_type="")
        return _Start(case, failure, self.values.runs(case))

    def inputs(self) -> Iterator[dict[str, Any]]:
        """The user's inputs, or else generated inputs: preferably ones that ONNX Runtime accepts."""
        declared = signature(self.loaded.proto)
        user_inputs = read_feeds(declared, self.options.run.verification.inputs)
        if user_inputs is not None:
            yield from user_inputs
            return
        if (
            isinstance(self.check, (TrtNetworkCheck, TrtGpuCheck))
            and not self.options.run.verification.input_shapes
        ):
            yield {}  # these checks plan more inputs themselves
            return
        yield from self._generated(declared)

    def _generated(self, declared: Signature) -> Iterator[dict[str, Any]]:
        verification = self.options.run.verification
        all_sizes = list_sizes(declared, verification.input_shapes)
        sweep = [sizes for sizes in all_sizes[:3] if 0 not in sizes.values()]
        first: dict[str, Any] | None = None
        accepted = 0
        for kind in _MILD_KINDS:
            for number, sizes in enumerate(reversed(sweep)):
                try:
                    values = Feed(sizes, kind, verification.seed + number).values(declared)
                except (UsageError, MemoryError):
                    continue
                first = first if first is not None else values
                if self.values.runs(replace(self.whole, inputs=values)):
                    accepted += 1
                    yield values
            if accepted:
                return
        if first is not None:
            self.notes.append("ONNX Runtime accepts none of the generated inputs")
            yield first
        elif not self.check.feeds:
            yield {}


def narrow(path: Path, build: TrtBuild, options: RunOptions, kept: Callable[[Reducer], None]) -> bool:
    """Search by cuts alone for the smallest part of a model file that fails like ``build``; ``kept`` is called with
    each smaller part. Returns False if the nodes are not to blame: a model of one Identity fails too.

    Raises:
        ModelError, UsageError, OnnxfixError: as for ``reduce``.
    """
    wanted = ReduceOptions("trt-build", run=options)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-reduce-")))
        check = _check(wanted, None, None, stack)
        check.alters = False
        run = _Run(loading.load(path), wanted, check, scratch, lambda text: None)
        case = replace(run.whole, inputs=next(run.inputs(), {}))
        reducer = run.reducer(_Start(case, refusal(build.errors[0], build, case), runs=False), kept)
        bare = cases.part(case.model, (), [cases.info_of("y", np.zeros(1, np.float32))])
        bare.graph.input.append(cases.info_of("x", np.zeros(1, np.float32)))
        bare.graph.node.append(helper.make_node("Identity", ["x"], ["y"]))
        if reducer.examine(Case(bare, {})) is not None:
            return False
        for reducer.dynamic in (False, True):  # the failure may need symbolic sizes
            if not reducer.steps and search(reducer) == "interrupted":
                raise KeyboardInterrupt
        while trim.opened(reducer) and search(reducer) == "complete":
            pass
        shrink_inner(reducer)
        return True


def reproduce(folder: str | os.PathLike[str]) -> Failure | None:
    """Check a folder that ``reduce`` wrote. Returns the failure if it is still the same, else None.

    Raises:
        UsageError: ``reduce`` did not write the folder, or the check cannot be run here.
        OnnxfixError: a file in the folder cannot be read.
    """
    saved = reduced.read_folder(Path(folder))
    identity = saved.state["identity"]
    trt = TrtOptions(package=identity["package"], compute_capability=identity["capability"])
    options = ReduceOptions(identity["check"], match=identity["match"], run=RunOptions(trt=trt))
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-reduce-")))
        other = loading.load(saved.other) if saved.other is not None else None
        check = _check(options, other, saved.state["names"], stack)
        stack.enter_context(saved.workplace())
        path = scratch / "model.onnx"
        write(saved.case.model, path)
        seen = check.examine(saved.case, path)
    if seen.unknown:
        raise UsageError(f"{folder}: the check cannot be run: {seen.unknown}")
    return next(filter(saved.failure.same, seen.failures), None)
