"""What a reduction looks for and what it found, as frozen records whose fields are written as JSON."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal

from onnxfix.place import NOWHERE, Place
from onnxfix.runtime.causes import Cause
from onnxfix.runtime.interrupts import INTERRUPTED
from onnxfix.shown import Shown

#: What fails. "refused": TensorRT or ONNX Runtime takes no such model. "crash", "timeout": how its process ended.
#: "misread": the network that TensorRT imports computes something else. "error": it fails when it is run.
#: "differs": it computes something else than the truth. "exit": a command ends with this exit code.
Kind = Literal["refused", "crash", "timeout", "misread", "error", "differs", "exit"]
#: "reduced": a folder was written. "passes": nothing fails. "unknown": it could not be found out, see ``reason``.
Status = Literal["reduced", "passes", "unknown"]
#: What differs in an output where a shape further up does, after a broadcast: both count as one.
_COMPUTED = {"values", "shape"}


@dataclass(frozen=True)
class Failure:
    """Why a model fails, and where.

    ``detail`` is what differs ("values", "shape", ...) or the stage at which TensorRT stopped. ``code`` is the tool's
    own number or name of the error, ``source`` where in the tool's source it was raised, ``form`` the tool's message
    without names and numbers; each "" where there is none. ``text`` is for people and never compared.
    """

    kind: Kind
    detail: str = ""
    place: Place = NOWHERE
    op_type: str = ""
    code: str = ""
    source: str = ""
    form: str = ""
    text: str = ""

    @property
    def cause(self) -> tuple[str, ...]:
        """What two failures for the same reason have in common, besides the place."""
        return self.kind, self.detail, self.op_type, self.code, self.source, self.form

    def same(self, other: Failure) -> bool:
        """Whether ``other``, of a part of the model, is this failure: the same cause at the same place.

        Where this one names no place, the cause decides, and where outputs differ too: every part has outputs of its
        own, and all of them lead to the one that differs in the whole model.
        """
        if self.kind == "differs":
            alike = self.detail == other.detail or {self.detail, other.detail} <= _COMPUTED
            return other.kind == self.kind and alike
        return self.cause == other.cause and self.place.label in ("", other.place.label)

    def inside(self, other: Failure, labels: Collection[str]) -> bool:
        """Whether ``other`` is this failure at one of the nodes that were inside the node of this one, by the names of
        their outputs: some tools only name the outer node."""
        same = replace(other, op_type=self.op_type).cause == self.cause
        return same and bool(self.place.label) and other.place.label in labels


@dataclass(frozen=True)
class Seen:
    """The result of a check: all ``failures`` that it found (none: the model passes), or why it is ``unknown``."""

    failures: tuple[Failure, ...] = ()
    unknown: str = ""
    cause: Cause = ""


@dataclass(frozen=True)
class Step:
    """One change that kept the failure: which kind, and the nodes that were left after it."""

    what: str
    nodes: int


@dataclass(frozen=True, repr=False)
class Reduction(Shown):
    """The result of ``reduce``.

    ``folder`` is what was written ("" for nothing). ``nodes_before`` and ``nodes_after`` count nodes at any depth,
    those of local functions included. ``tries`` counts the parts that were checked, ``steps`` are those that kept the
    failure. ``complete`` is False where an interrupt (``interrupted``) or the time limit ended the search.
    ``environment`` names the versions of what was involved. ``command`` reproduces the failure in the folder.
    """

    path: str
    check: str
    status: Status
    reason: str = ""
    cause: Cause = ""
    folder: str = ""
    failure: Failure | None = None
    nodes_before: int = 0
    nodes_after: int = 0
    bytes_after: int = 0
    operators: tuple[str, ...] = ()
    tries: int = 0
    steps: tuple[Step, ...] = ()
    complete: bool = True
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    command: str = ""
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0: reduced. 1: nothing fails. 3: the check could not be run. 130: interrupted."""
        if self.interrupted:
            return INTERRUPTED
        return {"reduced": 0, "passes": 1, "unknown": 3}[self.status]

    def _facts(self) -> dict[str, object]:
        facts = {"path": self.path, "check": self.check, "status": self.status}
        nodes = {"nodes_before": self.nodes_before, "nodes_after": self.nodes_after, "folder": self.folder}
        return {**facts, **(nodes if self.folder else {"reason": self.reason})}
