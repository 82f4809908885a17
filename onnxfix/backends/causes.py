"""Why a model was not judged, as data: what a report and a program may tell apart without reading a message."""

from __future__ import annotations

from typing import Literal

#: "not-installed": a package is not there. "not-loadable": it is there and does not load. "version": it is too old.
#: "no-gpu": the driver shows none. "gpu-not-served": there is one, and not for this. "memory", "timeout", "crash": what
#: became of the process that was to tell. "refused": TensorRT's parser takes no such model. "gap": its network holds a
#: layer that is not read back (the limits of ``backends.lift``). "fault": code of onnxfix's own failed, which nothing
#: but a change of onnxfix mends. "": something else, of the model or of its inputs.
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
