"""Why a node computes something else, and what to do: where a diagnosis asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfix.diagnosis.evidence import Seen
from onnxfix.diagnosis.records import Against, Culprit, NodeError


@dataclass(frozen=True)
class Explainer:
    """Explains the culprits of one diagnosis."""

    against: Against

    def culprit(self, error: NodeError, seen: Seen) -> Culprit:
        """The culprit with its cause, the reason in a sentence, and advice."""
        return Culprit(error, "unknown", f"its own error is {error.own_error:.2g} of its scale")

    def keep_fp32(self, culprits: Sequence[Culprit]) -> tuple[str, ...]:
        """The names of nodes to keep in float32."""
        return tuple(one.error.place.node or one.error.place.output for one in culprits)
