"""What the backend is told, and how it fails."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from onnxfix.causes import Cause
from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.record import record
from onnxfix.trt.records import TrtOptions

#: none: the model as it is. exact, numeric: after the fixes of that safety.
Repair = Literal["none", "exact", "numeric"]
REPAIRS: tuple[Repair, ...] = ("none", "exact", "numeric")
#: Where it failed: there is no such device, TensorRT's parser or builder, the reading of its network, loading or
#: running what was built, or what it was run with.
Stage = Literal["device", "parse", "read", "build", "load", "run", "inputs"]


class BackendError(OnnxfixError):
    """A model cannot be prepared or run on a device.

    ``stage`` says where, ``cause`` why: "refused" by TensorRT, "timeout", "crash", "memory", "gap" (a layer that is not
    read back), "no-gpu" and its like for a device, "fault" for a bug; "" for another reason.
    """

    def __init__(self, message: str, stage: Stage, cause: Cause = "") -> None:
        super().__init__(message)
        self.stage: Stage = stage
        self.cause: Cause = cause


@record
class Options:
    """How a model is prepared.

    ``repair`` as above. ``target`` is the product line that the rules judge for ("" for that of the TensorRT that is
    installed), ``verify`` False repairs without a proof. ``trt`` are TensorRT's options, profiles and time limits among
    them; ``timeout`` is in seconds, for a run.

    Raises:
        UsageError: there is no such repair.
    """

    repair: Repair = "exact"
    target: str = ""
    verify: bool = True
    trt: TrtOptions = field(default_factory=TrtOptions)
    timeout: float = 60.0

    def __post_init__(self) -> None:
        if self.repair not in REPAIRS:
            raise UsageError(f"unknown repair {self.repair!r}; choose one of {', '.join(REPAIRS)}")
