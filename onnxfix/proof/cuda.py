"""What the checks ort-cuda and ort-trt have beyond the others: whether the provider computes at all, where nodes ran,
and for ort-cuda what TF32 costs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from onnxfix.inputs.feeds.plan import Feed
from onnxfix.proof.compare.compare import Metrics, agreement, largest
from onnxfix.proof.remote import Ran, ran_of
from onnxfix.proof.request import REMOTE, Request
from onnxfix.proof.verdict import FeedResult, FeedStatus, RungResult
from onnxfix.runtime.backends import BACKENDS, ort_cuda
from onnxfix.runtime.causes import ENDED
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import Worker

#: For the original and the fixed model: execution provider -> nodes.
Places = Sequence[Mapping[str, int]]
TF32 = "TF32 on: "
_PROVIDERS = {"ort-cuda": "CUDA", "ort-trt": "TensorRT"}
_FEEDS = 3  # with TF32 on: enough for an order of magnitude
OVERFLOWS = (
    "NaN or Inf are at different positions, but whether a sum at the limits of its type overflows depends on its "
    "order, which CUDA's kernels choose"
)


def unavailable(worker: Worker, timeout: float, name: str = "ort-cuda") -> Missing | None:
    """Why the provider of a check does not work on this machine, tried in the sandbox; None where it does. ``timeout``
    is in seconds."""
    outcome = worker.call(f"{BACKENDS[name]}:unavailable", timeout=timeout)
    if not outcome.ok:
        what = f"the {_PROVIDERS[name]} provider cannot be tried: {outcome.message}"
        return Missing(what, ENDED[outcome.status])
    found: Missing | None = outcome.value
    return found


def on_cpu_alone(places: Places) -> bool:
    """Whether no node of either model runs on the GPU."""
    return all(on_cpu(one) == sum(one.values()) for one in places)


def describe_places(places: Places, name: str = "ort-cuda") -> str:
    """How many nodes of the original and of the fixed model run on the CPU, as text."""
    provider = _PROVIDERS[name]
    if on_cpu_alone(places):
        return (
            f"onnxruntime has no {provider} kernel for any node here: this would prove no more than ort-cpu"
        )
    counts = [f"{on_cpu(one)} of {sum(one.values())}" for one in places]
    if not any(map(on_cpu, places)):
        return f"every node ran on {provider}"
    return (
        f"of the original's nodes {counts[0]} ran on the CPU, of the new model's {counts[-1]}: they have no "
        f"{provider} kernel, or compute shapes"
    )


def on_cpu(places: Mapping[str, int]) -> int:
    """How many nodes run on the CPU."""
    return places.get("CPUExecutionProvider", 0)


def overflows(metric: Metrics, feed: Feed) -> bool:
    """Whether only the order of a sum at the limits of a floating-point type may explain a difference."""
    return feed.kind == "extreme" and metric.kind == "special"


def add_notes(request: Request, result: RungResult) -> RungResult:
    """The result with notes: the largest error, and what TF32 would cost."""
    if result.status != "passed":
        return result
    notes = list(result.notes)
    worst = _worst(result.feeds)
    if worst is not None:
        notes.append(f"the largest error is {error_of(worst)}")
    feeds = _choose(request, result)
    if os.environ.get(ort_cuda.TF32_VARIABLE) == "0":
        return replace(result, notes=(*notes, f"TF32 was not tried: {ort_cuda.TF32_VARIABLE}=0 forbids it"))
    if not feeds:
        return replace(result, notes=(*notes, "TF32 was not tried: no feed is suitable"))
    informative, failure = _with_tf32(request, feeds, result.excluded)
    worst = _worst(informative)
    effect = f"the largest error is {error_of(worst)}" if worst is not None else "no bit changes"
    notes.append(
        f"with TF32 on, onnxruntime's default, {effect}"
        if informative
        else f"TF32 was not measured: {failure}"
    )
    return replace(result, notes=tuple(notes), informative=informative)


def _worst(feeds: Sequence[FeedResult]) -> Metrics | None:
    found = largest(
        (one for feed in feeds if feed.status != "not counted" for one in feed.metrics), relative=True
    )
    return found if found is not None and found.max_abs else None


def error_of(worst: Metrics) -> str:
    """An output's largest error, as text."""
    return f"{worst.max_abs:.2g} (relative {worst.relative:.2g}) in output {worst.name}"


def _choose(request: Request, result: RungResult) -> list[tuple[FeedResult, dict[str, Any]]]:
    """The feeds that show rounding best, with their values: many plausible ones."""
    counted = []
    for place, one in enumerate(result.feeds):
        elements = sum(part.elements for part in one.metrics)
        plausible = one.feed is None or one.feed.kind != "extreme"
        if one.status in ("identical", "within") and elements and plausible:
            counted.append((one.feed is not None and one.feed.kind != "normal", -elements, place))
    chosen = [(result.feeds[place], place) for *_, place in sorted(counted)[:_FEEDS]]
    # The user's feeds are tried in their order, and nothing else is.
    return [
        (one, (request.given or [])[place] if one.feed is None else one.feed.values(request.known))
        for one, place in chosen
    ]


def _with_tf32(
    request: Request, feeds: list[tuple[FeedResult, dict[str, Any]]], skip: tuple[str, ...]
) -> tuple[tuple[FeedResult, ...], str]:
    """The original without TF32 against the fixed model with it; and why there is nothing to tell, else "".

    In a process of its own: the one that verified has forbidden TF32 to NVIDIA's libraries for good.
    """
    request.worker.call(f"{REMOTE}:drop", timeout=request.step)  # room on the GPU
    results: list[FeedResult] = []
    with Worker() as worker:

        def call(function: str, **arguments: Any) -> Ran:
            return ran_of(worker.call(f"{REMOTE}:{function}", timeout=request.step, **arguments))

        ran = call(
            "load",
            backend="ort-cuda",
            original=str(request.original),
            fixed=str(request.fixed),
            options={"strict": False},
            fixed_options={"tf32": True},
        )
        for one, values in feeds if not ran.stage else ():
            ran = call(
                "run",
                feed=values,
                again=False,
                drawn=request.known.drawn or (),
                terms=replace(request.terms, exact=False),
                skip=skip,
                without=request.without,
            )
            if ran.stage:
                break
            status: FeedStatus = agreement(ran.metrics) if ran.metrics else "not counted"
            results.append(FeedResult(TF32 + one.label, one.feed, status, "", ran.metrics))
    return tuple(results), ran.error
