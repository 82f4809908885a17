"""One exported model: its network read back and compared with it, and what the rung costs. Each in a process."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from acceptance.cases import half_type
from onnx import TensorProto

from network.memory import Watch, processor_seconds
from network.reading import fed
from onnxfix import walk
from onnxfix.errors import OnnxfixError
from onnxfix.sandbox import Worker
from onnxfix.trt import lift
from onnxfix.verification.compare.tolerance import errors, outside, tolerance_for, wide
from onnxfix.verification.compare.twin import widened
from onnxfix.verification.feeds.inputs import make_inputs
from onnxfix.verification.feeds.plan import assignments, grown
from onnxfix.verification.feeds.signature import Assignment, Signature, signature
from onnxfix.verification.ladder import verify

_STEP = 300.0  # seconds for TensorRT, and for a model's run
SHAPES = 3


@dataclass
class Agreement:
    """How a lifted model agrees with its original.

    ``shapes`` are the sizes of the symbols that were run. ``relative`` is the largest difference as a share of the
    output's largest magnitude, over all of them; ``within``: whether every element is within the tolerance of
    ``onnxfix verify``. In half precision ``twin`` is the largest relative difference of both models computed in
    float32, else None. Seconds: parsing, reading back, running the lifted model once at each shape.
    """

    name: str
    status: str = ""
    fault: str = ""
    shapes: list[Assignment] = field(default_factory=list)
    half: str = ""
    relative: float = 0.0
    within: bool = False
    identical: int = 0
    twin: float | None = None
    megabytes: float = 0.0
    layers: int = 0
    nodes: int = 0
    seconds: tuple[float, float] = (0.0, 0.0)
    run_seconds: float = 0.0
    original_seconds: float = 0.0


def agreement(name: str, path: str, package: str) -> Agreement:
    """Read a model back and compare it with the original at several shapes. Runs in a process of its own."""
    found = Agreement(name, megabytes=Path(path).stat().st_size / 1e6)
    try:
        with Worker() as trt, Worker() as runner, tempfile.TemporaryDirectory(prefix="onnxfix-") as folder:
            _agree(found, Path(path), Path(folder), package, trt, runner)
    except OnnxfixError as error:
        found.fault = str(error)
    return found


def _agree(found: Agreement, path: Path, folder: Path, package: str, trt: Worker, runner: Worker) -> None:
    out = folder / "seen.onnx"
    lifted = lift.attempt(trt, path, out, package=package, timeout=_STEP)
    trt.close()
    found.status, found.seconds = lifted.status, lifted.seconds
    found.layers = sum(count for _, count in lifted.layers)
    if not lifted.lifted:
        gaps = sorted({f"{gap.kind}: {gap.reason}" for gap in lifted.gaps})
        found.fault = "; ".join(gaps) or lifted.reason
        return
    found.nodes = sum(1 for _ in walk.model_nodes(onnx.load(str(out), load_external_data=False)))
    known = signature(path)
    found.half = half_type(known.model)
    feeds, expected = _feeds(found, known, path, runner)
    if len(feeds) < SHAPES:
        found.fault = f"the original runs at {len(feeds)} shapes only"
        return
    given = [fed(lifted, feed) for feed in feeds]
    began = time.perf_counter()
    _outputs(runner, path, feeds)
    found.original_seconds = time.perf_counter() - began
    began = time.perf_counter()
    values = _outputs(runner, out, given)
    found.run_seconds = time.perf_counter() - began
    _judge(found, expected, values)
    if found.half:
        found.twin = _twins(folder, path, out, runner, feeds, given)


def _feeds(
    found: Agreement, known: Signature, path: Path, runner: Worker
) -> tuple[list[dict[str, Any]], list[list[Any]]]:
    """Inputs at the first shapes that the original runs at, and what it computes; of a static one, of three seeds."""
    sweep = [one for one in assignments(known, {}) if 0 not in one.values()]
    groups = [sweep * SHAPES] if len(sweep) == 1 else [sweep, *grown(known, {})]
    feeds: list[dict[str, Any]] = []
    outputs: list[list[Any]] = []
    seed = 0
    for group in groups:
        for sizes in group:
            seed += 1
            if len(feeds) == SHAPES or (sizes in found.shapes and len(sweep) > 1):
                continue
            feed = make_inputs(known, sizes, seed)
            try:
                [value] = _outputs(runner, path, [feed])
            except OnnxfixError:  # a shape that the original does not take
                continue
            feeds.append(feed)
            outputs.append(value)
            found.shapes.append(sizes)
    return feeds, outputs


def _outputs(runner: Worker, path: Path, feeds: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """What ONNX Runtime computes.

    Raises:
        OnnxfixError: it does not run the model.
    """
    ran = runner.call(
        "acceptance.running:run", timeout=_STEP, backend="ort-cpu", path=str(path), feeds=list(feeds)
    )
    if not ran.ok:
        raise OnnxfixError(f"ONNX Runtime cannot run the lifted model: {ran.message}")
    found: list[list[Any]] = ran.value
    return found


def _judge(found: Agreement, expected: Sequence[Sequence[Any]], values: Sequence[Sequence[Any]]) -> None:
    found.within, found.identical = True, 0
    for wanted, have in zip(expected, values, strict=True):
        same = True
        for number, (a, b) in enumerate(zip(wanted, have, strict=True)):
            if a.dtype != b.dtype or a.shape != b.shape:
                found.fault = f"output {number} is {b.dtype}{b.shape} instead of {a.dtype}{a.shape}"
                found.within = False
                return
            share = relative(a, b)
            found.relative = max(found.relative, share)
            tolerance = tolerance_for(a.dtype.name, coarse=found.half)
            found.within &= not bool(outside(wide(a), wide(b), tolerance)[0].any())
            same &= a.tobytes() == b.tobytes()
        found.identical += same


def relative(a: Any, b: Any) -> float:
    """The largest difference as a share of the first one's largest magnitude; infinite where only one is finite."""
    wide_a, wide_b = wide(a), wide(b)
    if (np.isfinite(wide_a) != np.isfinite(wide_b)).any():
        return float("inf")
    off = errors(wide_a, wide_b)
    return off["max_abs"] / off["scale"] if off["scale"] else float(off["max_abs"] > 0) and float("inf")


def _twins(
    folder: Path,
    path: Path,
    out: Path,
    runner: Worker,
    feeds: Sequence[Mapping[str, Any]],
    given: Sequence[Mapping[str, Any]],
) -> float:
    """The largest relative difference of both models with float32 for every half-precision tensor."""
    results = []
    for number, (file, own) in enumerate(((path, feeds), (out, given))):
        model = widened(onnx.load(str(file)), TensorProto.FLOAT)
        target = folder / f"twin{number}.onnx"
        onnx.save(model, target)
        del model
        wide_feeds = [{name: _widened(value) for name, value in feed.items()} for feed in own]
        results.append(_outputs(runner, target, wide_feeds))
    pairs = zip(*results, strict=True)
    return max(relative(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))


def _widened(value: Any) -> Any:
    return value.astype(np.float32) if value.dtype.name in ("float16", "bfloat16") else value


@dataclass
class Cost:
    """What both rungs cost on a model and itself: seconds and those of all processors, medians; what they said."""

    seconds: dict[str, float] = field(default_factory=dict)
    processor: dict[str, float] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def cost(path: str, rungs: Sequence[str], repeat: int) -> Cost:
    """Climb each rung in turn, ``repeat`` times, after once to start the sandboxes. In a process of its own."""
    found = Cost()
    with tempfile.TemporaryDirectory(prefix="onnxfix-") as folder:
        small = str(_smallest(Path(folder)))
        for rung in rungs:
            verify(small, small, exact=False, rungs=(rung,))
    times: dict[str, list[float]] = {rung: [] for rung in rungs}
    busy: dict[str, list[float]] = {rung: [] for rung in rungs}
    for turn in range(repeat):
        for rung in rungs if turn % 2 == 0 else reversed(rungs):
            began, worked = time.perf_counter(), processor_seconds()
            # A seed of its own: the rung remembers how the last original was read.
            verdict = verify(path, path, exact=False, rungs=(rung,), seed=turn)
            times[rung].append(time.perf_counter() - began)
            busy[rung].append(processor_seconds() - worked)
            found.statuses[rung], found.reasons[rung] = verdict.rungs[0].status, verdict.rungs[0].reason
    found.seconds = {rung: statistics.median(taken) for rung, taken in times.items()}
    found.processor = {rung: statistics.median(taken) for rung, taken in busy.items()}
    return found


def _smallest(folder: Path) -> Path:
    """A model of one node."""
    path = folder / "small.onnx"
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def peak(path: str, rung: str) -> tuple[int, int]:
    """Megabytes of the largest process, and of all together, while a rung is climbed. In a process of its own."""
    with Watch() as watch:
        verify(path, path, exact=False, rungs=(rung,))
    return watch.largest, watch.together
