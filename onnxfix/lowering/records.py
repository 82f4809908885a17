"""What ``precision`` found and did, as frozen records whose fields are written as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from onnxfix.lowering.lowered import Low
from onnxfix.place import Place
from onnxfix.runtime.causes import Cause
from onnxfix.shown import Shown

#: Types of the result's inputs and outputs: float32 as in the original, or the low type.
IoTypes = Literal["keep", "low"]

#: "written": the budget is met, and the result is where it was asked for. "met": the same without an output file.
#: "missed": no choice of nodes that was tried meets the budget. "nothing": no node can compute in the low type.
#: "refused": a check refuses the result. "unknown": the model could not be measured.
Status = Literal["written", "met", "missed", "nothing", "refused", "unknown"]

#: Why a node stays in float32. "user": --keep. "overflow": its values exceed the low type's range. "underflow": a value
#: that must not be 0 becomes 0. "constant": a constant becomes 0 or infinite. "norm", "softmax", "reduction": what the
#: rules PRC00x protect. "integers": whole numbers that the low type does not represent. "choice": what it chooses
#: (an index, a branch, a comparison) changes. "not-finite": it computes NaN or infinity alone. "error": its error in
#: the low type is what the budget does not allow. "neighbor": Casts around it would cost more than it gains.
#: "unseen": no sample runs the branch or loop that it is in. "refused": TensorRT refuses it in this type.
#: The others are those of ``lowered.Whole``; "target": TensorRT has no such operator in this type.
Why = Literal[
    "user", "overflow", "underflow", "constant", "norm", "softmax", "reduction", "integers", "choice", "not-finite",
    "error", "neighbor", "unseen", "refused", "target", "control-flow", "function", "domain", "operator",
    "schema", "kind", "quantized", "unknown",
]  # fmt: skip


@dataclass(frozen=True)
class Kept:
    """A node that stays in float32. ``seen`` is the number that decided (the largest magnitude, or the share of
    elements that became 0), None where there is none; ``rule`` the rule that names it. ``own_error`` is the error of
    its output when it alone computes in the low type, as a share of the output's root mean square (None: not measured);
    ``effect`` the share of the model's squared error that is put down to it."""

    place: Place
    why: Why
    seen: float | None = None
    rule: str = ""
    own_error: float | None = None
    effect: float | None = None


@dataclass(frozen=True)
class Range:
    """Values of a tensor over all samples: largest magnitude, and share of elements that are not 0 and round to 0."""

    tensor: str
    highest: float
    lost: float = 0.0


@dataclass(frozen=True)
class OutputError:
    """How far an output of the mixed-precision model is from float32: the largest distance (``absolute``), the same
    as a share of ``scale`` (the largest finite magnitude in float32; ``error``), and the root mean square of the
    distance as a share of that of the values (``rms``) and of ``scale`` (``mean``, never above ``error``). Of an
    output that is not floating-point, ``error`` is the share of elements that differ. Infinite where one side is not
    finite and the other is."""

    name: str
    error: float
    rms: float
    absolute: float
    scale: float
    mean: float = 0.0


@dataclass(frozen=True, repr=False)
class Lowering(Shown):
    """The result of ``precision``.

    ``error`` is the largest of ``outputs``; ``best`` the smallest error that was found where the budget is missed.
    ``nodes`` are those that compute (no constants, and none that only move values), ``low`` how many of them compute
    in the low type, ``heavy`` and ``heavy_low`` the same for products and convolutions. ``casts`` were added to those
    that the model had. ``time`` is the time on a GPU as a share of float32's, estimated by flops and bytes (None:
    nothing is lowered). ``checks`` are checks of the result by name, with status and reason.
    """

    path: str
    to: Low
    budget: float
    status: Status
    output: str = ""
    reason: str = ""
    cause: Cause = ""
    error: float | None = None
    best: float | None = None
    outputs: tuple[OutputError, ...] = ()
    nodes: int = 0
    low: int = 0
    heavy: int = 0
    heavy_low: int = 0
    casts: int = 0
    time: float | None = None
    kept: tuple[Kept, ...] = ()
    keep_fp32: tuple[str, ...] = ()
    ranges: tuple[Range, ...] = ()
    io_types: IoTypes = "keep"
    samples: int = 0
    runs: int = 0
    checks: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The share of computing nodes in the low type; 0 for a model without any."""
        return self.low / self.nodes if self.nodes else 0.0

    @property
    def exit_code(self) -> int:
        """0: the budget is met. 1: it is not, or a check refuses the result. 3: it could not be found out."""
        return {"written": 0, "met": 0, "missed": 1, "nothing": 1, "refused": 1, "unknown": 3}[self.status]

    def _facts(self) -> dict[str, object]:
        facts = {
            "path": self.path,
            "to": self.to,
            "status": self.status,
            "budget": self.budget,
            "error": self.error,
        }
        output = {"output": self.output} if self.output else {}
        return {**facts, "share": round(self.share, 3), "casts": self.casts, **output}


_SPACE = re.compile(r"\\?(\s)")


def pattern(name: str, names: Sequence[str]) -> str:
    """A regular expression that matches this name, and no other one of ``names``, from its beginning on."""
    try:
        plain = re.compile(name)
    except re.error:
        plain = None
    if plain is not None and plain.match(name) and not any(plain.match(one) for one in names if one != name):
        return name
    return f"{re.escape(name)}$"


def keep_text(patterns: Iterable[str]) -> str:
    """The text of the file: each pattern once, in their order, and spaces as expressions without one."""
    written = (
        _SPACE.sub(lambda space: f"\\u{ord(space[1]):04x}", one) for one in dict.fromkeys(patterns) if one
    )
    return "".join(f"{one}\n" for one in written)
