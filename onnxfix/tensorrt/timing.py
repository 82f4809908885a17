"""Records of the latency of engines, and its measurement in alternating blocks. Nothing here needs a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Launch = Literal["", "cuda-graph", "stream"]
Comparison = Literal["", "faster", "same", "slower"]
#: Who captures the CUDA graph: TensorRT-RTX itself, or onnxfix through the CUDA runtime.
Capturer = Literal["", "tensorrt", "cuda"]
#: Runs an engine once and returns the milliseconds that it took.
Run = Callable[[], float]
#: Milliseconds of one engine's runs, block by block.
Blocks = Sequence[Sequence[float]]

LEAST_NOISE = 0.01
"""A smaller difference counts as "same", even if both engines run steadily: two builds of a model differ by more."""


@dataclass(frozen=True)
class Timing:
    """The latency of one engine: median, 5th and 95th percentile of ``runs`` runs in ``blocks`` blocks, in ms.
    ``noise`` is half of the distance between the 5th and 95th percentile of the blocks' medians, as a share of the
    median of all runs.

    ``load_seconds`` is the time to deserialize the engine and create its context, ``jit_seconds`` the first run minus
    the median, both without cached kernels. ``build_seconds`` and ``engine_bytes`` describe the build."""

    median_ms: float
    p5_ms: float
    p95_ms: float
    runs: int
    blocks: int
    noise: float
    load_seconds: float = 0.0
    jit_seconds: float = 0.0
    build_seconds: float = 0.0
    engine_bytes: int = 0


@dataclass(frozen=True)
class Latency:
    """The latencies of the original's and the fixed model's engine, on the same inputs (``shapes``: name -> shape)
    and with the same kind of launch.

    ``original`` is None if one model was given, or if the original has no engine. ``ratio`` is the fixed median over
    the original's median, and ``noise`` is the larger noise of the two. ``comparison`` follows from both: the fixed
    engine is "slower" or "faster" if the difference exceeds the noise and ``LEAST_NOISE``. ``reason`` says why nothing
    was measured, and ``fallback`` why no CUDA graphs were used; both are "" otherwise.
    """

    original: Timing | None = None
    fixed: Timing | None = None
    ratio: float | None = None
    noise: float | None = None
    comparison: Comparison = ""
    launch: Launch = ""
    captured_by: Capturer = ""
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    reason: str = ""
    fallback: str = ""


@dataclass(frozen=True)
class Limits:
    """How long to measure. Each engine warms up for ``warm_seconds`` or ``warm_runs`` runs and is timed for about
    ``seconds`` or ``runs`` runs, in at least ``rounds`` rounds of one block each. A block has up to ``block_runs`` runs
    and lasts about ``block_seconds``."""

    warm_seconds: float = 0.3
    warm_runs: int = 50
    seconds: float = 2.0
    runs: int = 500
    rounds: int = 4
    block_runs: int = 25
    block_seconds: float = 0.1


def interleave(
    engines: Mapping[str, Run], *, clock: Callable[[], float] = time.monotonic, limits: Limits | None = None
) -> dict[str, list[list[float]]]:
    """Time engines (name -> run) in rounds of one block each: A B, B A, A B, ...

    A drift, such as of the GPU's clock rate, then affects all engines alike. The first run of each block is not
    counted: the caches of the GPU hold the other engine's data.
    """
    limits = limits or Limits()
    usual = max(_warm(run, clock, limits) for run in engines.values()) / 1000
    size = limits.block_runs
    if usual > 0:
        size = max(1, min(size, int(limits.block_seconds / usual)))
    blocks: dict[str, list[list[float]]] = {name: [] for name in engines}
    began, order = clock(), list(engines)
    for number in range(max(limits.rounds, limits.runs // size)):
        if number >= limits.rounds and clock() - began >= limits.seconds * len(order):
            break
        for name in order:
            engines[name]()
            blocks[name].append([engines[name]() for _ in range(size)])
        order.reverse()
    return blocks


def _warm(run: Run, clock: Callable[[], float], limits: Limits) -> float:
    """Run an engine until it is warm, at least once; returns the milliseconds of the last run."""
    began, last = clock(), run()
    for _ in range(limits.warm_runs - 1):
        if clock() - began >= limits.warm_seconds:
            break
        last = run()
    return last


def timing(blocks: Blocks, *, load_seconds: float = 0.0, first_seconds: float = 0.0) -> Timing:
    """The statistics of one engine's blocks; ``first_seconds`` is the time of its very first run."""
    every = sorted(one for block in blocks for one in block)
    medians = sorted(quantile(sorted(block), 0.5) for block in blocks)
    median = quantile(every, 0.5)
    spread = (quantile(medians, 0.95) - quantile(medians, 0.05)) / 2
    return Timing(
        median_ms=median,
        p5_ms=quantile(every, 0.05),
        p95_ms=quantile(every, 0.95),
        runs=len(every),
        blocks=len(blocks),
        noise=spread / median if median > 0 else 0.0,
        load_seconds=load_seconds,
        jit_seconds=max(0.0, first_seconds - median / 1000),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of numbers in ascending order, interpolated between neighbors."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def compared(original: Timing | None, fixed: Timing) -> Latency:
    """Compare the timings of two engines; without an original, report the fixed engine alone."""
    if original is None:
        return Latency(fixed=fixed, noise=fixed.noise)
    noise = max(original.noise, fixed.noise)
    limit = 1 + max(noise, LEAST_NOISE)
    ratio = fixed.median_ms / original.median_ms if original.median_ms > 0 else None
    comparison: Comparison = "same"
    if ratio is not None and ratio > limit:
        comparison = "slower"
    elif ratio is not None and ratio * limit < 1:
        comparison = "faster"
    return Latency(original, fixed, ratio, noise, comparison)
