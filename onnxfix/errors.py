"""What onnxfix says when it cannot go on: one line with what, where and what to do."""

from __future__ import annotations


class OnnxfixError(Exception):
    """An expected failure. ``str(error)`` is one line that a user can act on; the CLI exits with 2."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class ModelError(OnnxfixError):
    """The model cannot be read, or is not a model that onnxfix can reason about."""


class UsageError(OnnxfixError):
    """The caller asked for something that does not exist or that contradicts itself."""


class EditError(OnnxfixError):
    """An edit would break the graph (a name clash, a use of a removed value): it is refused as a whole."""


class ShadowedError(EditError):
    """A reader stands where the model gives the wanted name to another value: no fault of whoever asked for it."""
