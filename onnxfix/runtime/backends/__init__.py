"""The oracles that execute a model, one file each; each is imported lazily and each may be absent.

A backend is a module with ``missing() -> str | None`` (why it cannot be used here, in one line) and
``load(path) -> Session``. ``load`` and ``Session.run`` execute foreign code: call them in the sandbox. A session may
say in ``places`` how many nodes each execution provider took.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol, cast

from onnxfix.errors import UsageError
from onnxfix.runtime.causes import Cause

#: Rung of the verification ladder -> module of the backend that executes it.
BACKENDS = {
    "reference": "onnxfix.runtime.backends.reference",
    "ort-cpu": "onnxfix.runtime.backends.ort",
    "ort-cuda": "onnxfix.runtime.backends.ort_cuda",
    "ort-trt": "onnxfix.runtime.backends.ort_trt",
}
ON_GPU = ("ort-cuda", "ort-trt")
"""The backends that compute on a GPU."""


class Unsupported(Exception):
    """The backend cannot do this, and the model is not to blame. ``str`` is the reason, in one line, and ``cause`` the
    same as data, where it is known."""

    def __init__(self, text: str = "", cause: Cause = "") -> None:
        super().__init__(text)
        self.cause = cause


class NoKernel(Exception):
    """The backend has no implementation of an operator in this opset or of these types. The model may be valid all the
    same."""


class Broken(Exception):
    """The device failed in a way that outlasts the call: what this process computes on it later means nothing."""


class Session(Protocol):
    """A loaded model.

    Values are numpy arrays (bfloat16, float8, int4, ... as ml_dtypes arrays, strings as object arrays), lists
    (sequences), dicts (maps) or None (an empty optional).
    """

    outputs: list[str]

    def run(self, feed: dict[str, Any]) -> list[Any]:
        """Execute the model on ``feed`` (input name -> value). Returns the outputs in the graph's order."""


def missing(name: str) -> str | None:
    """Why the backend cannot be used on this machine; None when it can. Imports nothing heavy."""
    return cast("str | None", importlib.import_module(BACKENDS[name]).missing())


def require(name: str, what: str) -> None:
    """Refuse ``what``, a command or an option, where the backend it needs cannot be used.

    Raises:
        UsageError: it cannot; the message says how to install it.
    """
    absent = missing(name)
    if absent is not None:
        raise UsageError(f"{what} needs ONNX Runtime: {absent}")


def cause_missing(name: str) -> Cause:
    """What ``missing`` says, as data: "not-installed", or "no-gpu" where the machine has no driver for one."""
    module = importlib.import_module(BACKENDS[name])
    return "no-gpu" if name in ON_GPU and not module.has_driver() else "not-installed"


def warm(name: str) -> None:
    """Import what the backend needs for any model, if it is there."""
    if missing(name) is None:
        importlib.import_module(BACKENDS[name]).warm()


def load(name: str, path: str, **options: Any) -> Session:
    """Load the model file (external data is found beside it), with the options of that backend's ``load``.

    Raises whatever the backend raises, and NoKernel.
    """
    return cast(Session, importlib.import_module(BACKENDS[name]).load(path, **options))
