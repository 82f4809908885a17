"""Why something failed or was not judged, as data: what a report and a program tell apart without reading messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onnxfix._child import NO_MEMORY

#: "not-installed": a package is not there. "not-loadable": it is there and does not load. "version": it is too old.
#: "no-gpu": the driver shows none. "gpu-not-served": there is one, and not for this. "memory", "timeout", "crash": what
#: became of the process that was to tell. "refused": who was asked takes no such model, or no such inputs. "gap":
#: TensorRT's network holds a layer that is not read back (the limits of ``backends.lift``). "fault": code of onnxfix's
#: own or of a rule failed, which nothing but a change of it mends. "": something else, of the model or of its inputs.
Cause = Literal[
    "",
    "not-installed",
    "not-loadable",
    "version",
    "no-gpu",
    "gpu-not-served",
    "memory",
    "timeout",
    "crash",
    "refused",
    "gap",
    "fault",
]

#: How a child ended (``sandbox.Outcome.status``) -> why nothing was learnt of it.
ENDED: dict[str, Cause] = {"memory": "memory", "timeout": "timeout", "crash": "crash", "error": "fault"}


def heard(words: str) -> Cause:
    """The cause that words from outside tell of (of an exception of ONNX's, ONNX Runtime's or NVIDIA's): "memory" where
    they say that it ran out; else ""."""
    return "memory" if NO_MEMORY.search(words) else ""


@dataclass(frozen=True)
class Problem:
    """Why a run is not to be trusted in full, in a line: a fault of onnxfix's or of the ``rule`` that is named, or
    ``source`` "tensorrt": that could not be asked. ``raised`` is what the rule raised, in a line."""

    text: str
    cause: Cause = "fault"
    source: Literal["onnxfix", "tensorrt"] = "onnxfix"
    rule: str = ""
    raised: str = ""

    def __str__(self) -> str:
        return self.text
