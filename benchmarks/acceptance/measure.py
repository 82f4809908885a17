"""One model through TensorRT as it is and after every tool, and what the outputs of each are worth."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import onnx
from google.protobuf.message import DecodeError

from acceptance import judging
from acceptance.cases import AS_IS, Made, NodeCase, PeerRuns, Tool, random_operators, run_onnxfix
from acceptance.judging import Miss, misses
from onnxfix.errors import OnnxfixError
from onnxfix.files import walk
from onnxfix.proof.compare.compare import identical
from onnxfix.proof.compare.twin import half_type
from onnxfix.runtime import backends
from onnxfix.runtime.sandbox import Outcome, Worker, one_line
from onnxfix.tensorrt.build import attempt
from onnxfix.tensorrt.package import Choice
from onnxfix.tensorrt.records import TrtBuild

#: In this order: the second is asked where the first cannot run a model, or gets the original wrong.
BACKENDS = ("ort-cpu", "reference")
SECONDS = {"ort-cpu": 30.0, "reference": 20.0}

#: right: meets the expected outputs. wrong: does not, on a backend that does not get the original wrong. random: only
#: values differ, and an operator draws them. not run: no backend runs it. no judge: each backend that runs it misses
#: the expected outputs with the original too.
Verdict = Literal["right", "wrong", "random", "not run", "no judge", "same graph", "no model"]


@dataclass(frozen=True)
class Outputs:
    """What a model's outputs are worth.

    ``backend`` judged, ``reason`` says why they are not right. ``identical``: whether they are bit-identical to the
    original's on one backend; None where none runs both.
    """

    verdict: Verdict
    backend: str = ""
    reason: str = ""
    identical: bool | None = None


def run(backend: str, path: str, feeds: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """In a sandbox: the outputs for each feed, in the graph's order.

    Raises:
        RuntimeError: whatever the backend raised, in few words.
    """
    # ONNX's newest node models are of an opset that is not released yet; ONNX Runtime has kernels for most of them.
    os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"
    try:
        session = backends.load(backend, path)
        return [session.run(dict(feed)) for feed in feeds]
    except Exception as error:
        raise RuntimeError(shortened(str(error) or type(error).__name__)) from error


def shortened(words: str) -> str:
    """ONNX Runtime's words without the file, the line and the C++ signature that it puts before them."""
    text = " ".join(words.split())
    text = re.sub(r"^.*?Load model from \S+ failed:", "", text)
    text = re.sub(r"/onnxruntime_src/\S+:\d+ .*\)( const)? ", "", text)
    return text if len(text) <= 200 else f"{text[:199]}…"


def outputs_of(
    worker: Worker, backend: str, path: Path, feeds: Sequence[Mapping[str, Any]], seconds: float = 0.0
) -> Outcome:
    """``run`` in the sandbox, for as many seconds, or as the backend has by default."""
    given = {"timeout": seconds or SECONDS[backend], "backend": backend, "path": str(path)}
    return worker.call("acceptance.measure:run", **given, feeds=list(feeds))


@dataclass
class Judge:
    """Judges the models that were made of one original, by the ``expected`` outputs: one list for each feed.

    ``half``: the original computes in half precision. ONNX Runtime has few kernels for it, and where it rounds depends
    on which nodes are neighbors, so that identical bits may be found by ``onnx.reference`` there.
    """

    worker: Worker
    original: Path
    feeds: Sequence[Mapping[str, Any]]
    expected: Sequence[list[Any]]
    rtol: float
    atol: float
    random: Sequence[str] = ()
    half: bool = False
    _originals: dict[str, Outcome] = field(default_factory=dict)

    def judge(self, path: Path) -> Outputs:
        """What the outputs of the model at ``path`` are worth."""
        runs: dict[str, Outcome] = {}
        found: list[tuple[str, Outputs]] = []
        for backend in BACKENDS:
            runs[backend] = self._ran(backend, path)
            found.append((backend, self._by(backend, runs[backend])))
            if found[-1][1].verdict in ("right", "wrong", "random"):
                return replace(found[-1][1], identical=self._identical(path, runs))
        reason = "; ".join(f"{backend}: {one.reason}" for backend, one in found)
        verdict: Verdict = "no judge" if any(one.verdict == "no judge" for _, one in found) else "not run"
        return Outputs(verdict, "", reason, self._identical(path, runs))

    def _ran(self, backend: str, path: Path) -> Outcome:
        if path != self.original:
            return outputs_of(self.worker, backend, path, self.feeds)
        if backend not in self._originals:
            self._originals[backend] = outputs_of(self.worker, backend, path, self.feeds)
        return self._originals[backend]

    def _by(self, backend: str, ran: Outcome) -> Outputs:
        """What one backend says."""
        if not ran.ok:
            return Outputs("not run", backend, ran.message)
        base, wrong = self._ran(backend, self.original), self._misses(ran.value)
        if not wrong:
            return Outputs("right", backend)
        if self.random and all(one.kind == "values" for one in wrong):
            return Outputs("random", backend, f"{', '.join(self.random)} draws")
        if base.ok and (own := self._misses(base.value)):
            return Outputs("no judge", backend, f"the original itself misses ONNX's outputs: {own[0].text}")
        return Outputs("wrong", backend, wrong[0].text)

    def _misses(self, found: Sequence[list[Any]]) -> list[Miss]:
        pairs = zip(self.expected, found, strict=True)
        return [one for a, b in pairs for one in misses(a, b, self.rtol, self.atol)]

    def _identical(self, path: Path, runs: dict[str, Outcome]) -> bool | None:
        """On the first backend that runs both; in half precision, on one of them."""
        found = None
        for backend in BACKENDS:
            base = self._ran(backend, self.original)
            if base.ok and backend not in runs:
                runs[backend] = self._ran(backend, path)
            if base.ok and runs[backend].ok:
                found = identical(base.value, runs[backend].value)
                if found or not self.half:
                    break
        return found


@dataclass(frozen=True)
class Settings:
    """Of a whole run. Seconds are for each step of a tool or of TensorRT."""

    choice: Choice
    tools: tuple[Tool, ...]
    peers: PeerRuns | None
    timeout: float = 60.0
    memory_mb: int = 4096


@dataclass(frozen=True)
class Result:
    """What became of one model with one tool.

    ``interface`` are changes of the interface. ``nodes`` and ``layers`` are of the result: nodes, those in subgraphs
    and functions included, and layers of the network that TensorRT imported, as far as it came. ``status`` is as in
    ``TrtBuild`` ("" without a model), ``words`` say why it is not accepted.
    """

    made: Made
    outputs: Outputs
    interface: tuple[str, ...] = ()
    nodes: int = 0
    status: str = ""
    words: str = ""
    layers: int = 0

    @property
    def accepted(self) -> bool:
        """Whether TensorRT built an engine."""
        return self.status == "accepted"

    @property
    def counts(self) -> bool:
        """Accepted, outputs right and interface unchanged."""
        return self.accepted and not self.interface and self.outputs.verdict in ("right", "same graph")


@dataclass(frozen=True)
class Row:
    """One model with all tools, by the tool's name."""

    name: str
    results: dict[str, Result] = field(default_factory=dict)


class _Bench:
    """One job: a sandbox each for TensorRT, for what runs models, for onnxfix."""

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        self.settings = settings
        limit = settings.memory_mb
        self.trt, self.runner, self.fixer = (stack.enter_context(Worker(memory_mb=limit)) for _ in range(3))
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

    def measure(self, case: NodeCase) -> Row:
        """All tools on one model."""
        source = self.folder / "original.onnx"
        source.write_bytes(case.data)
        one = _One(self, case, source)
        base = one.result(source, Made("ok", changed=False))
        row = Row(case.name)
        row.results[AS_IS.name] = base
        for tool in self.settings.tools:
            target, made = self._make(tool, case.name, source)
            row.results[tool.name] = one.result(target, made, base)
        return row

    def _make(self, tool: Tool, name: str, source: Path) -> tuple[Path, Made]:
        """Where the tool's model is, and how the tool ended."""
        peers = self.settings.peers
        if tool.peer:
            assert peers is not None
            return peers.folder / tool.name / f"{name}.onnx", peers.made[tool.name, name]
        target = self.folder / "rewritten.onnx"
        target.unlink(missing_ok=True)
        return target, run_onnxfix(self.fixer, tool, source, target, self.settings.timeout)


class _One:
    """One original model, its profile and its judge."""

    def __init__(self, bench: _Bench, case: NodeCase, source: Path) -> None:
        self.bench, self.source = bench, source
        self.model = onnx.load_model_from_string(case.data)
        self.profile = case.profile
        self.judge = Judge(
            bench.runner,
            source,
            case.feeds,
            case.expected,
            case.rtol,
            case.atol,
            random_operators(self.model),
            bool(half_type(self.model)),
        )
        self.known: dict[bytes, Result] = {}

    def result(self, path: Path, made: Made, base: Result | None = None) -> Result:
        """What the model at ``path`` is worth; bytes that were seen before are not measured again."""
        if made.status != "ok":
            return Result(made, Outputs("no model", reason=made.message))
        if base is not None and not made.changed:
            return replace(base, made=made, outputs=Outputs("same graph", identical=True))
        data = path.read_bytes()
        digest = hashlib.sha256(data).digest()
        if digest not in self.known:
            self.known[digest] = self._measure(path, data, made)
        return replace(self.known[digest], made=made)

    def _measure(self, path: Path, data: bytes, made: Made) -> Result:
        try:
            model = self.model if path == self.source else onnx.load_model_from_string(data)
        except DecodeError as error:
            return Result(made, Outputs("not run", reason=one_line(error)), ("no ONNX model any more",))
        same = path != self.source and judging.same_graph(self.model, model)
        build = self._build(path)
        return Result(
            made,
            Outputs("same graph", identical=True) if same else self.judge.judge(path),
            tuple(judging.interface_changes(self.model, model)),
            sum(1 for _ in walk.model_nodes(model)),
            build.status,
            build.reason,
            build.layer_count,
        )

    def _build(self, path: Path) -> TrtBuild:
        settings = self.bench.settings
        try:
            return attempt(
                self.bench.trt,
                path,
                package=settings.choice.package,
                compute_capability=settings.choice.capability,
                profiles=[self.profile],
                timeout=settings.timeout,
            )
        except OnnxfixError as error:  # the original's profile is of no use to what became of the model
            return TrtBuild("error", "profile", version=one_line(error))


def measure_all(
    cases: Sequence[NodeCase], jobs: int, settings: Settings, progress: Callable[[Row], None]
) -> list[Row]:
    """All models, ``jobs`` at a time, in the order of the cases. ``progress`` is called with each row."""

    def share(number: int) -> list[Row]:
        rows = []
        with ExitStack() as stack:
            bench = _Bench(settings, stack)
            for case in cases[number::jobs]:
                rows.append(bench.measure(case))
                progress(rows[-1])
        return rows

    with ThreadPoolExecutor(jobs) as pool:
        shares = list(pool.map(share, range(jobs)))
    return [shares[number % jobs][number // jobs] for number in range(len(cases))]
