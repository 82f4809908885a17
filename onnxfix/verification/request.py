"""What the ladder asks of each of its rungs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnxfix.sandbox import Worker
from onnxfix.trt.records import TrtOptions
from onnxfix.verification.compare.compare import Metrics
from onnxfix.verification.feeds.signature import Assignment, Signature
from onnxfix.verification.specialize.specialization import Specialization

REMOTE = "onnxfix.verification.remote"
"""The module of the functions that rungs call in the sandbox's child."""


@dataclass(frozen=True)
class Request:
    """All that a rung needs. ``shapes`` are symbols that the user fixed, ``given`` the user's own feeds;
    ``coarse`` names the half-precision type whose roundings a backend may take or leave; ``step`` and ``total``
    are seconds. ``trt`` is what was asked of TensorRT; ``inherit`` forgives the fixed model what the original fails
    as well. ``half`` names the model's half-precision type where the original in higher precision may judge besides,
    ``precise`` that float64 may: never where all fixes are exact. ``shown`` names the rung that has compared the two
    models already and passed; "" where there is none, or where this rung has to pass itself. ``special`` is how the
    fixed model is specialized: ``known`` has its values pinned and ``shapes`` its sizes."""

    original: Path
    fixed: Path
    known: Signature
    worker: Worker
    exact: bool
    seed: int
    noise: dict[str, float]
    shapes: Assignment
    given: list[dict[str, Any]] | None
    coarse: str = ""
    step: float = 60.0
    total: float = 300.0
    trt: TrtOptions = field(default_factory=TrtOptions)
    inherit: bool = False
    half: str = ""
    precise: bool = False
    shown: str = ""
    forgiven: bool = False
    special: Specialization | None = None

    @property
    def without(self) -> tuple[str, ...]:
        """The inputs that the original takes and the fixed model does not."""
        return self.special.without if self.special is not None else ()

    def misdeclared(self, metrics: Iterable[Metrics]) -> str:
        """Which output does not have a size that the specialized model declares, in words; "" where all have."""
        declared = self.special.outputs if self.special is not None else {}
        for one in metrics:
            sizes, shape = declared.get(one.name, ()), one.shape or ()
            if any(size not in (None, real) for size, real in zip(sizes, shape, strict=False)):
                return f"output {one.name} has shape {list(shape)}, and is declared otherwise"
        return ""
