"""Why something failed or was not judged, as data, so that programs need not parse messages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

#: "not-installed": a package is missing. "not-loadable": it is installed and does not load. "version": it is too old.
#: "no-gpu": the driver finds none. "gpu-not-served": the GPU found is not supported. "memory", "timeout", "crash": how
#: the child process ended. "refused": the tool rejects the model or the inputs. "gap": TensorRT's network has a layer
#: that is not read back (the limits of ``tensorrt.lift``). "fault": a bug in onnxfix or in a rule. "redundant": another
#: check shows the same. "target-only": the target has what the model needs, and the TensorRT here lacks it. "choice":
#: which elements the model chooses hangs on rounding. "undecided": a proof was neither found nor refuted. "": another
#: reason, in the model or in its inputs.
Cause = Literal[
    "", "not-installed", "not-loadable", "version", "no-gpu", "gpu-not-served", "memory", "timeout", "crash",
    "refused", "gap", "fault", "redundant", "target-only", "choice", "undecided",
]  # fmt: skip

NO_MEMORY = re.compile(
    r"bad_alloc|bad allocation|MemoryError|out of memory|(failed|unable) to allocate|cannot allocate", re.I
)
"""What libraries and processes say that had no memory left."""

#: How a child process ended (``sandbox.Outcome.status``), as a cause.
ENDED: dict[str, Cause] = {"memory": "memory", "timeout": "timeout", "crash": "crash", "error": "fault"}


def cause_of(text: str) -> Cause:
    """The cause that an error message of ONNX, ONNX Runtime or NVIDIA names: "memory" if it ran out, else ""."""
    return "memory" if NO_MEMORY.search(text) else ""


@dataclass(frozen=True)
class Problem:
    """Why the result of a run is incomplete, in one line: a fault of onnxfix or of the ``rule`` named, or, with
    ``source`` "tensorrt", that TensorRT could not be run, and with "model", that the model is not valid and rules
    failed on it. ``raised`` is the rule's exception, in one line."""

    text: str
    cause: Cause = "fault"
    source: Literal["onnxfix", "tensorrt", "model"] = "onnxfix"
    rule: str = ""
    raised: str = ""

    def __str__(self) -> str:
        return self.text
