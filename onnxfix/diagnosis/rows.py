"""What a walk through two sides measures: a row for each tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx import ModelProto

from onnxfix.causes import Cause
from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.child import Reply
from onnxfix.diagnosis.distance import Distance
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.regions import Region
from onnxfix.diagnosis.store import Held
from onnxfix.record import record


@record
class Row:
    """What one tensor of the truth shows: ``own`` distance of the region that computes it, ``noise`` (absolute) that
    rounding explains, with its quantiles ``typical_noise`` (``distance.LEVELS``; none for few elements) and the number
    of elements that rounding makes finite or not (``unstable``), distance ``whole`` in the other side's own run, and
    the largest relative distance ``before`` among the region's inputs there. None: not measured."""

    name: str
    number: int
    own: Distance | None = None
    noise: float = 0.0
    typical_noise: tuple[float, ...] = ()
    unstable: int = 0
    whole: Distance | None = None
    before: float | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    region: Region | None = None
    kernels: float = 0.0


Runner = Callable[[ModelProto, Mapping[str, Held]], Reply]
"""Runs a part of a model on stored values."""


@record
class Side:
    """The other side: its graph, its tensors by the truth's names (``pairs``: its name -> the truth's), the ``backend``
    that runs it (or ``runner``, where it is none of ONNX Runtime's), and the share ``unit`` of a value that one
    rounding of it amounts to. ``kernels`` is the share of a tensor's scale that its kernels for one node may cost."""

    graph: Graph
    pairs: Mapping[str, str]
    backend: str = "ort-cpu"
    unit: float = 1e-7
    runner: Runner | None = None
    kernels: float = 0.0

    def run(self, bench: Bench, part: ModelProto, feed: Mapping[str, Held]) -> Reply:
        """Run a part of its graph."""
        if self.runner is not None:
            return self.runner(part, feed)
        return bench.run(part, feed, of=self.graph, backend=self.backend)


@dataclass
class Walk:
    """The result of a walk. ``truth`` and ``other`` are the two sides' values of the model's outputs.

    ``failed`` is why the truth stopped, with its ``cause`` (``lacking``: for a kernel); ``stopped`` why the other
    side's own run did, at the node ``at`` of its graph. ``refused`` are regions that did not run alone, by a target,
    with the reason. ``kinds`` are types and shapes of the truth's tensors, without values; ``types`` are the element
    types of the other side's. ``drawn`` are the truth's values of random operators. Of engines: ``off`` are outputs of
    the whole model that are beyond what kernels may cost, and ``left`` the other side's nodes (by number) among which
    the search for their beginning ended.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    truth: dict[str, Held] = field(default_factory=dict)
    other: dict[str, Held] = field(default_factory=dict)
    failed: str = ""
    cause: Cause = ""
    lacking: bool = False
    stopped: str = ""
    at: int | None = None
    refused: dict[str, str] = field(default_factory=dict)
    complete: bool = True
    kinds: dict[str, Held] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    drawn: dict[str, Held] = field(default_factory=dict)
    off: tuple[str, ...] = ()
    left: tuple[int, ...] = ()


def fitting(held: Held, truth: Held) -> Any:
    """What an engine computes in the truth's type; float64, which TensorRT has not, stays as it is."""
    return (held if truth.dtype == "float64" else aligned(held, truth)).load()


def aligned(held: Held, like: Held) -> Held:
    """A value in the element type of another, for sides that name types differently (int32 for int64)."""
    return held.as_type(like.dtype) if held.is_tensor and like.is_tensor else held
