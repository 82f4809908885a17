"""The checks: does a case fail, why, and where. Those of TensorRT and ONNX Runtime stay in one warm sandbox each; a
command of the user's fails where it ends with the same exit code as on the whole model."""

from __future__ import annotations

import io
import re
import subprocess
import tempfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, helper

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.child import Reply
from onnxfix.errors import UsageError
from onnxfix.files import walk
from onnxfix.inputs.feeds.signature import signature
from onnxfix.place import Place, place_of
from onnxfix.proof import cuda
from onnxfix.proof.checks import gpu
from onnxfix.proof.checks.builder import Builder
from onnxfix.proof.compare.compare import Metrics
from onnxfix.proof.compare.twin import half_type
from onnxfix.proof.readback import network
from onnxfix.proof.readback.locate import locate_node, node_of
from onnxfix.proof.readback.values import partners
from onnxfix.proof.request import Request
from onnxfix.proof.verdict import RungResult
from onnxfix.proof.verify import Limits
from onnxfix.reduction.case import Case, Failure, Kind, Seen
from onnxfix.reduction.values import differences
from onnxfix.runtime import system
from onnxfix.runtime.backends import ort_messages
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import shared
from onnxfix.tensorrt import lift, messages
from onnxfix.tensorrt.lift.records import ONNX_TYPES
from onnxfix.tensorrt.reading import Misread
from onnxfix.tensorrt.records import Issue, TrtBuild


class Check(ABC):
    """A way to find out whether a case fails.

    ``name`` is that of the option. ``alters``: parts may also be changed in values, shapes and attributes; otherwise
    they are cut out and nothing else. ``feeds``: it runs the model, so that it needs values of the inputs.
    """

    name: str
    alters = True
    feeds = True

    @abstractmethod
    def examine(self, case: Case, path: Path) -> Seen:
        """Check a case, whose model is in the file ``path``. What it writes goes beside that."""

    def expect(self, failure: Failure) -> None:
        """Learn the failure that all parts are compared with, where there is something to learn."""
        return

    def seen(self, case: Case, path: Path) -> dict[str, Any]:
        """What the other side computes for a case, by output; empty where there is nothing, or nobody knows it."""
        return {}

    def environment(self) -> dict[str, str]:
        """Names and versions of what it runs besides ONNX Runtime, as far as they are known."""
        return {}


def labels(case: Case) -> set[str]:
    """All names of nodes and tensors in a case."""
    found = {info.name for info in case.model.graph.input}
    for node in walk.model_nodes(case.model):
        found.update((node.name, *node.input, *node.output))
    return found


# -------------------------------------------------------------------------------------------------------- TensorRT


class TrtBuildCheck(Check):
    """TensorRT's parser and builder. Parts are only parsed where the parser refuses the whole."""

    name, feeds = "trt-build", False

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._parsing = False

    def expect(self, failure: Failure) -> None:
        self._parsing = failure.detail == "parse"

    def examine(self, case: Case, path: Path) -> Seen:
        build = self.builder.build(path, parse_only=self._parsing)
        if build.accepted:
            return Seen()
        if not build.judged:
            return Seen(unknown=build.reason, cause="memory" if build.status == "memory" else "fault")
        return Seen(tuple(refusal(one, build, case) for one in build.errors))

    def environment(self) -> dict[str, str]:
        """The package and its version, and what it builds for."""
        choice = self.builder.choice
        return {choice.package: choice.version, "compute capability": choice.capability}


def refusal(issue: Issue, build: TrtBuild, case: Case) -> Failure:
    """An error of TensorRT's parser or builder as a failure."""
    names = labels(case)
    names |= {f"node_of_{name}" for name in names} | {issue.layer, issue.place.label}
    ended = build.status in ("crash", "timeout")
    return Failure(
        kind=build.status if build.status in ("crash", "timeout") else "refused",
        detail=build.stage,
        place=issue.place,
        op_type=issue.place.op_type,
        code=issue.code,
        source="" if issue.source.startswith(f"{issue.place.label}:") else issue.source,
        form="" if ended else messages.form_of(issue.text, names),
        text=str(issue),
    )


class _Rung(Check):
    """What the checks that climb a rung have in common: the request for one model."""

    def __init__(self, builder: Builder, seed: int = 0) -> None:
        self.builder, self.seed = builder, seed
        self.failing: dict[str, Any] | None = None

    def _request(self, case: Case, path: Path, total: float = 120.0) -> Request:
        known = signature(path)
        given = dict(case.inputs)
        whole = all(one.name in given or one.default is not None for one in known.inputs)
        return Request(
            original=path.absolute(), fixed=path.absolute(), known=known, worker=shared(), exact=False, seed=self.seed,
            shapes={}, given=[given] if whole else None, coarse=half_type(known.model),
            step=Limits().step, total=total, trt=self.builder.options,
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        """The package and its version."""
        return {self.builder.choice.package: self.builder.choice.version}

    def _remember(self, result: RungResult, request: Request) -> None:
        """Generated inputs on which it was seen, or else that the model takes."""
        feeds = [one for one in result.feeds if one.feed is not None and one.status != "not counted"]
        feeds.sort(key=lambda one: one.status != "different")
        self.failing = feeds[0].feed.values(request.known) if feeds and feeds[0].feed else None


class TrtNetworkCheck(_Rung):
    """The network that TensorRT imports, read back and compared with the model. ``failing`` are the inputs that showed
    the last failure, where they were generated."""

    name = "trt-network"

    def examine(self, case: Case, path: Path) -> Seen:
        request = self._request(case, path)
        try:
            result = network.run(request)
        except UsageError as error:
            return Seen(unknown=str(error))
        [reading] = result.networks or (None,)
        if reading is None or not reading.judged:
            return Seen(unknown=result.reason, cause=result.cause)
        self._remember(result, request)
        return Seen(tuple(misread(one) for one in reading.grave))

    def seen(self, case: Case, path: Path) -> dict[str, Any]:
        """What the imported network computes, in ONNX Runtime."""
        with tempfile.TemporaryDirectory(prefix="onnxfix-reduce-", ignore_cleanup_errors=True) as folder:
            out, builder, limit = Path(folder) / "lifted.onnx", self.builder, self.builder.options.timeout
            found = lift.attempt(builder.worker, path, out, package=builder.choice.package, timeout=limit)
            if not found.lifted:
                return {}
            feed = {}
            for name, number in partners(list(case.inputs), [one.name for one in found.inputs]).items():
                native, value = found.inputs[number], case.inputs[name]
                elem = ONNX_TYPES.get(native.dtype, 0)
                feed[native.name] = value.astype(helper.tensor_dtype_to_np_dtype(elem)) if elem else value
            reply = Bench(shared("reduction"), Path(folder), limit).run_file(out, feed)
        if reply.error:
            return {}
        outputs = partners(case.outputs, [one.name for one in found.outputs])
        computed = list(reply.values.values())
        return {name: computed[number] for name, number in outputs.items()}


def misread(one: Misread) -> Failure:
    """A difference between a model and TensorRT's import of it as a failure."""
    return Failure("misread", one.kind, one.place, one.place.op_type, text=str(one))


class TrtGpuCheck(_Rung):
    """An engine, executed and compared with the model. The place is not known: cutting finds it."""

    name = "trt-gpu"

    def examine(self, case: Case, path: Path) -> Seen:
        request = self._request(case, path)
        try:
            result = gpu.run(request)
        except UsageError as error:
            return Seen(unknown=str(error))
        if not result.judged:
            return Seen(unknown=result.reason, cause=result.cause)
        self._remember(result, request)
        if result.status == "passed":
            return Seen()
        kinds = dict.fromkeys(
            (metric.output, kind_of(metric.kind))
            for feed in result.feeds
            for metric in feed.metrics
            if metric.agreement == "different"
        )
        if not kinds:  # the engine does not run
            return Seen((Failure("error", code=result.cause, text=result.reason),))
        return Seen(
            tuple(Failure("differs", kind, Place(output=name), text=result.reason) for name, kind in kinds)
        )


# ---------------------------------------------------------------------------------------------------- ONNX Runtime


class OrtCheck(Check):
    """ONNX Runtime with optimizations off: does it load and run the model? On "ort-cuda", its outputs are compared with
    those of the CPU too. ``step`` is the time limit of a run in seconds."""

    def __init__(self, name: str, step: float = 300.0) -> None:
        self.name, self.step = name, step
        self.worker = shared(f"reduction {name}")

    def seen(self, case: Case, path: Path) -> dict[str, Any]:
        """What CUDA computes; nothing for the CPU, whose outputs are the expected ones."""
        if self.name == "ort-cpu":
            return {}
        with tempfile.TemporaryDirectory(prefix="onnxfix-reduce-", ignore_cleanup_errors=True) as folder:
            return self._bench(Path(folder)).run_file(path, case.inputs, backend=self.name).values

    def examine(self, case: Case, path: Path) -> Seen:
        absent = self._absent
        if absent is not None:
            return Seen(unknown=absent.reason, cause=absent.cause)
        unknown = [one.name for one in case.model.graph.input if one.name not in case.inputs]
        if unknown:
            return Seen(unknown=f"there is no value for the input {unknown[0]}")
        bench = self._bench(path.parent)
        truth = bench.run_file(path, case.inputs)
        seen = ended(truth)
        if self.name == "ort-cpu" or seen is not None:
            return seen or Seen((trouble(truth, case),) if truth.error else ())
        if truth.error:
            return Seen(unknown=f"ONNX Runtime does not run the model on the CPU either: {truth.error}")
        other = bench.run_file(path, case.inputs, backend=self.name)
        if other.error:
            return ended(other) or Seen((trouble(other, case),))
        pairs = [(name, name) for name in case.outputs]
        return Seen(
            differing(differences(bench, path, case.inputs, truth.values, other.values, pairs, moves=1))
        )

    def _bench(self, scratch: Path) -> Bench:
        return Bench(self.worker, scratch, self.step)

    @cached_property
    def _absent(self) -> Missing | None:
        """Why there is no CUDA here; None where there is, and on the CPU."""
        return cuda.unavailable(self.worker, self.step) if self.name == "ort-cuda" else None


def ended(reply: Reply) -> Seen | None:
    """What a run shows that ended its process, or that proves nothing; None for any other."""
    if reply.cause == "crash" or reply.cause == "timeout":
        return Seen((Failure(reply.cause, text=reply.error),))
    if reply.unable:
        return Seen(unknown=reply.error, cause=reply.cause if reply.cause in ("memory", "fault") else "")
    return None


def trouble(reply: Reply, case: Case) -> Failure:
    """An error of ONNX Runtime as a failure."""
    graph = case.model.graph
    operator, inner = _innermost(reply.error, graph)
    place = locate_node(node_of(reply.error, graph), graph)
    if inner is not None and inner.output and place.output not in inner.output:
        place = place_of(inner, graph=(place.output,))
    names = labels(case) | {operator}
    form = messages.form_of(ort_messages.reason(ort_messages.without_status(reply.error)), names)
    kind: Kind = "refused" if reply.stage == "load" else "error"
    return Failure(kind, reply.stage, place, operator, reply.status, form=form, text=reply.error)


def _innermost(text: str, graph: GraphProto) -> tuple[str, NodeProto | None]:
    """The operator that an error is about, and the node where its name is one of the model's."""
    running = ort_messages.node(text)
    clues = ort_messages.clues(text)
    operator = running[0] if running is not None else next(iter(clues.operators), "")
    named = [one for one in walk.nodes(graph.node) if one.name and one.name in clues.names]
    if named and not operator:
        operator = named[0].op_type
    return operator, named[0] if len(named) == 1 else None


def differing(metrics: Iterable[Metrics]) -> tuple[Failure, ...]:
    """What differs, as failures."""
    return tuple(
        Failure(
            "differs", kind_of(one.kind), Place(output=one.output), text=f"output {one.output} {one.reason}"
        )
        for one in metrics
    )


def kind_of(difference: str) -> str:
    """What differs: numbers that are wrong and those that are not finite count as one."""
    return "values" if difference in ("values", "special") else difference


def npz(values: Mapping[str, Any]) -> bytes:
    """The tensors among values as an .npz file: texts in numpy's own type; no sequences."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                plain = value.astype(str) if value.dtype.kind == "O" else value
                # Its size is known when it was written, and may be more than a plain entry holds.
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, plain, allow_pickle=False)
    return stream.getvalue()


MODEL, INPUTS = "{}", "{inputs}"
_NOT_STARTED = (126, 127)  # exit codes of a shell that cannot execute the command


class CommandCheck(Check):
    """``command`` with the path of the model in place of ``{}``, and that of its inputs (.npz) for ``{inputs}``, run by
    the shell in the folder where onnxfix was started.

    Exit code 0 passes. ``match`` is a regular expression that the output must contain too. ``timeout`` is in seconds;
    a command that takes longer fails with the kind "timeout". Only the user knows what it computes and runs.

    Raises:
        UsageError: the command has no ``{}``, or ``match`` is no regular expression.
    """

    def __init__(self, command: str, match: str = "", timeout: float = 300.0) -> None:
        if MODEL not in command:
            raise UsageError(f"--check {command!r}: the command needs {{}} where the model's path goes")
        try:
            self.pattern = re.compile(match) if match else None
        except re.error as error:
            raise UsageError(f"--match {match!r}: not a regular expression: {error}") from None
        self.command, self.timeout, self.name = command, timeout, command
        self.feeds = INPUTS in command

    def examine(self, case: Case, path: Path) -> Seen:
        inputs = path.with_name("inputs.npz")
        if self.feeds:
            inputs.write_bytes(npz(case.inputs))
        code, output = self._run(filled(self.command, path, inputs))
        if code is None:
            return Seen((Failure("timeout", text=f"the command took more than {self.timeout:g} s"),))
        tail = " ".join(output.split()[-60:])
        if code in _NOT_STARTED:
            return Seen(unknown=f"the command cannot be executed: {tail}")
        if code == 0 or (self.pattern is not None and not self.pattern.search(output)):
            return Seen()
        text = f"exit code {code}{f': {tail}' if tail else ''}"
        return Seen((Failure("exit", code=str(code), text=text),))

    def _run(self, line: str) -> tuple[int | None, str]:
        """Exit code (None: the time limit) and output of a shell command; what it started ends with it."""
        process = subprocess.Popen(
            line, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, creationflags=system.NEW_GROUP,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=self.timeout)
            return process.returncode, output.decode(errors="replace")
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            system.kill(process)
            process.wait()


def filled(command: str, model: Path | str, inputs: Path | str) -> str:
    """The command with both paths, quoted for the shell."""
    return command.replace(INPUTS, system.quoted(str(inputs))).replace(MODEL, system.quoted(str(model)))
