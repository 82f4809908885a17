"""One model through TensorRT as it is and after every tool, with the same settings and the same profile."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from acceptance import judging
from acceptance.cases import NodeCase, half_type, random_operators
from acceptance.running import Judge, Outputs
from acceptance.tools import AS_IS, Made, Peers, Tool, run_onnxfix
from onnxfix import walk
from onnxfix.errors import OnnxfixError
from onnxfix.sandbox import Worker, one_line
from onnxfix.trt.build import attempt
from onnxfix.trt.package import Choice
from onnxfix.trt.records import Profile, TrtBuild


@dataclass(frozen=True)
class Settings:
    """Of a whole run. ``peers_python`` is None without peers; seconds are for each step of a tool or of TensorRT."""

    choice: Choice
    tools: tuple[Tool, ...]
    peers_python: Path | None
    timeout: float = 60.0
    memory_mb: int = 4096


@dataclass(frozen=True)
class Result:
    """What became of one model with one tool.

    ``interface`` are changes of the interface. ``nodes`` and ``layers`` are of the result: nodes, those in subgraphs
    and functions included, and layers of the network that TensorRT imported, as far as it came. ``operator`` and
    ``words`` are those of its first error, ``status`` and ``stage`` as in ``TrtBuild`` ("" without a model).
    """

    made: Made
    outputs: Outputs
    interface: tuple[str, ...] = ()
    nodes: int = 0
    status: str = ""
    stage: str = ""
    operator: str = ""
    words: str = ""
    layers: int = 0
    build_seconds: float = 0.0

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


def row_of(stored: dict[str, Any]) -> Row:
    """A row as ``dataclasses.asdict`` and JSON left it."""
    results = {
        name: Result(
            **{
                **one,
                "made": Made(**{**one["made"], "problems": tuple(one["made"]["problems"])}),
                "outputs": Outputs(**one["outputs"]),
                "interface": tuple(one["interface"]),
            }
        )
        for name, one in stored["results"].items()
    }
    return Row(stored["name"], results)


class _Bench:
    """One job: a sandbox each for TensorRT, for what runs models, for onnxfix; and the peers."""

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        self.settings = settings
        limit = settings.memory_mb
        self.trt, self.runner, self.fixer = (stack.enter_context(Worker(memory_mb=limit)) for _ in range(3))
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.peers: Peers | None = None
        if settings.peers_python is not None:
            self.peers = stack.enter_context(Peers(settings.peers_python, settings.timeout, limit))

    def measure(self, case: NodeCase) -> Row:
        """All tools on one model."""
        source = self.folder / "original.onnx"
        source.write_bytes(case.data)
        one = _One(self, case, source)
        base = one.result(source, Made("ok", changed=False))
        row = Row(case.name)
        row.results[AS_IS.name] = base
        for tool in self.settings.tools:
            target = self.folder / "rewritten.onnx"
            target.unlink(missing_ok=True)
            row.results[tool.name] = one.result(target, self._make(tool, source, target), base)
        return row

    def _make(self, tool: Tool, source: Path, target: Path) -> Made:
        if tool.peer:
            assert self.peers is not None
            return self.peers.run(tool, source, target)
        return run_onnxfix(self.fixer, tool, source, target, self.settings.timeout)


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
            half_type(self.model),
        )
        self.known: dict[bytes, Result] = {}

    def result(self, path: Path, made: Made, base: Result | None = None) -> Result:
        """What the model at ``path`` is worth; bytes that were seen before are not measured again."""
        if made.status != "ok":
            return Result(made, Outputs("no model", reason=made.message))
        if base is not None and not made.changed:
            return _of(base, made, Outputs("same graph", identical=True))
        data = path.read_bytes()
        digest = hashlib.sha256(data).digest()
        if digest not in self.known:
            self.known[digest] = self._measure(path, data, made)
        return _of(self.known[digest], made, self.known[digest].outputs)

    def _measure(self, path: Path, data: bytes, made: Made) -> Result:
        try:
            model = self.model if path == self.source else onnx.load_model_from_string(data)
        except DecodeError as error:
            return Result(made, Outputs("not run", reason=one_line(error)), ("no ONNX model any more",))
        same = path != self.source and judging.same_graph(self.model, model)
        build = self._build(path)
        first = build.errors[0] if build.errors else None
        return Result(
            made,
            Outputs("same graph", identical=True) if same else self.judge.judge(path),
            tuple(judging.interface_changes(self.model, model)),
            sum(1 for _ in walk.model_nodes(model)),
            build.status,
            build.stage,
            first.place.op_type if first is not None else "",
            build.reason,
            build.layer_count,
            build.parse_seconds + build.build_seconds,
        )

    def _build(self, path: Path) -> TrtBuild:
        settings = self.bench.settings
        profiles: list[Profile] | None = [self.profile] if self.profile is not None else None
        try:
            return attempt(
                self.bench.trt,
                path,
                package=settings.choice.package,
                compute_capability=settings.choice.capability,
                profiles=profiles,
                timeout=settings.timeout,
            )
        except OnnxfixError as error:  # the original's profile is of no use to what became of the model
            return TrtBuild("error", "profile", version=one_line(error))


def _of(known: Result, made: Made, outputs: Outputs) -> Result:
    return Result(
        made, outputs, known.interface, known.nodes, known.status, known.stage, known.operator, known.words,
        known.layers, known.build_seconds,
    )  # fmt: skip


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
