"""The error budget that ``precision`` proved a model within: recorded in the model, and used wherever the pair is
compared."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from onnx import ModelProto

from onnxfix.errors import decoded
from onnxfix.files import sharing
from onnxfix.verification.compare.tolerance import Allowed

KEY = "onnxfix.precision_budget"
"""The key in ``ModelProto.metadata_props``; the value is the budget and the SHA-256 of the original's file."""
LARGEST = 0.1
"""The largest budget that is believed, as a share of an output's scale: whoever edits a model can record any."""


def record_budget(proto: ModelProto, original: Path, budget: float) -> None:
    """Record the budget in the mixed-precision model of the file ``original``, in place of one recorded before."""
    sharing.set_metadata(proto, KEY, {"": f"{budget!r} sha256:{sharing.digest(original)}"})


def recorded_budget(proto: ModelProto, original: Path) -> Allowed | None:
    """What outputs of the model may differ by from those of the file ``original``, as it says itself; None where it
    says nothing of that file."""
    for entry in proto.metadata_props:
        budget, _, found = (
            decoded(entry.value).partition(" sha256:") if decoded(entry.key) == KEY else ("", "", "")
        )
        if found and found == sharing.digest(original):
            with suppress(ValueError):
                share = float(budget)
                return Allowed(share=share) if 0 < share <= LARGEST else None
    return None
