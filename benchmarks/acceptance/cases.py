"""ONNX's node models with their data, and the tools that are measured on them."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import numpy_helper
from onnx_cases import onnx_cases

import onnxfix
from onnxfix.files import saving, walk
from onnxfix.runtime.replies import accept
from onnxfix.runtime.sandbox import Worker, one_line
from onnxfix.tensorrt.records import Profile

#: Of operators that draw random numbers. A Dropout draws where it trains, which only its third input can ask for
#: from opset 12 on.
RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


@dataclass(frozen=True)
class NodeCase:
    """A model, the inputs of its data sets, and the outputs expected of them."""

    name: str
    data: bytes
    feeds: tuple[dict[str, Any], ...]
    expected: tuple[list[Any], ...]
    rtol: float
    atol: float

    @property
    def profile(self) -> Profile:
        """The optimization profile of the original model's own data; every tool's result is built with it."""
        return Profile.of_feeds(self.feeds)


def node_cases(every: int = 1, match: str = "") -> list[NodeCase]:
    """ONNX's node models: each ``every``-th of those whose name holds ``match``."""
    cases = []
    for one in [one for name, one in onnx_cases().items() if match in name][::every]:
        names = [info.name for info in one.model.graph.input]
        sets = one.data_sets or ()
        cases.append(
            NodeCase(
                one.name,
                one.model.SerializeToString(),
                tuple(dict(zip(names, map(value_of, inputs), strict=False)) for inputs, _ in sets),
                tuple(list(map(value_of, outputs)) for _, outputs in sets),
                one.rtol,
                one.atol,
            )
        )
    return cases


def value_of(stored: Any) -> Any:
    """A value of a data set: arrays as they are, numpy's scalars as arrays of rank 0, protobufs as what they hold."""
    if isinstance(stored, onnx.TensorProto):
        return numpy_helper.to_array(stored)
    if isinstance(stored, onnx.SequenceProto):
        return numpy_helper.to_list(stored)
    if isinstance(stored, onnx.OptionalProto):
        return numpy_helper.to_optional(stored)
    return np.asarray(stored) if isinstance(stored, np.generic) else stored


def random_operators(model: onnx.ModelProto) -> list[str]:
    """Operators of the model, functions and subgraphs included, that may draw random numbers."""
    found = {
        node.op_type
        for node in walk.model_nodes(model)
        if node.op_type in RANDOM or (node.op_type == "Dropout" and len(node.input) > 2 and node.input[2])
    }
    return sorted(found)


PEER_CHILD = Path(__file__).resolve().parent / "peer_child.py"


@dataclass(frozen=True)
class Tool:
    """A column of the tables. ``options`` are those of ``onnxfix.apply``; None: a peer of that name, or nothing."""

    name: str
    title: str
    options: dict[str, Any] | None = None
    peer: bool = False


AS_IS = Tool("as-is", "as they are")
EXACT = Tool("exact", "`onnxfix apply`", {})
NUMERIC_RTX = Tool(
    "numeric-rtx", "`onnxfix apply --numeric-fixes --target rtx`", {"numeric_fixes": True, "target": "rtx"}
)
NUMERIC = Tool("numeric", "`onnxfix apply --numeric-fixes`", {"numeric_fixes": True})
ONNXFIX = (EXACT, NUMERIC_RTX, NUMERIC)
PEERS = (
    Tool("onnxsim", "`onnxsim`", peer=True),
    Tool("onnxslim", "`onnxslim`", peer=True),
    Tool("polygraphy", "`polygraphy surgeon sanitize --fold-constants`", peer=True),
)


@accept
@dataclass(frozen=True)
class Made:
    """How a tool ended on a model; the model lies at the target where ``status`` is ok and ``changed``.

    ``codes`` are onnxfix's fixes by rule, ``problems`` what it says about itself. ``seconds`` without imports.
    """

    status: Literal["ok", "refused", "crash", "timeout", "memory"]
    message: str = ""
    seconds: float = 0.0
    changed: bool = True
    codes: dict[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def apply_onnxfix(source: str, result: str, options: dict[str, Any]) -> Made:
    """In a sandbox: fix a model file and write the result, if it differs."""
    began = time.perf_counter()
    try:
        report = onnxfix.apply(source, **options)
    except onnxfix.OnnxfixError as error:
        return Made("refused", one_line(error), time.perf_counter() - began)
    codes = dict(Counter(fix.code for fix in report.applied))
    if report.changed:
        assert report.model is not None
        Path(result).write_bytes(saving.serialize(report.model))
    return Made(
        "ok", "", time.perf_counter() - began, report.changed, codes, tuple(map(str, report.problems))
    )


def run_onnxfix(worker: Worker, tool: Tool, source: Path, target: Path, timeout: float) -> Made:
    """One of onnxfix's columns. onnxfix itself runs nothing: what is measured here judges."""
    assert tool.options is not None
    options = {**tool.options, "verify": False}
    began = time.perf_counter()
    done = worker.call(
        "acceptance.cases:apply_onnxfix",
        timeout=timeout,
        source=str(source),
        result=str(target),
        options=options,
    )
    if done.ok:
        made: Made = done.value
        return made
    status: Any = "crash" if done.status == "error" else done.status  # no exception may leave onnxfix
    return Made(status, done.message, time.perf_counter() - began)


@dataclass(frozen=True)
class PeerRuns:
    """What the peers made of a folder of models. The model of a tool is ``folder/TOOL/NAME.onnx``."""

    folder: Path
    versions: dict[str, str]
    made: dict[tuple[str, str], Made]


def run_peers(
    python: Path, cases: Sequence[NodeCase], folder: Path, timeout: float, memory_mb: int
) -> PeerRuns:
    """Have each peer rewrite all models, all peers at a time; ``folder`` is empty.

    Raises:
        OnnxfixError: a peer cannot be run.
    """
    sources = folder / AS_IS.name
    sources.mkdir()
    for case in cases:
        (sources / f"{case.name}.onnx").write_bytes(case.data)

    def run(tool: Tool) -> list[dict[str, Any]]:
        target = folder / tool.name
        target.mkdir()
        command = [python, PEER_CHILD, tool.name, sources, target, timeout, memory_mb]
        try:
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        except OSError as error:
            raise onnxfix.OnnxfixError(f"{python}: cannot be run: {error.strerror or error}") from None
        if done.returncode:
            raise onnxfix.OnnxfixError(f"{python}: cannot run {tool.name}: {one_line(done.stderr[-300:])}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    versions: dict[str, str] = {}
    made: dict[tuple[str, str], Made] = {}
    with ThreadPoolExecutor(len(PEERS)) as pool:
        for tool, (head, *replies) in zip(PEERS, pool.map(run, PEERS), strict=True):
            versions = head
            for reply in replies:
                made[tool.name, reply["name"]] = Made(reply["status"], reply["message"], reply["seconds"])
    return PeerRuns(folder, versions, made)
