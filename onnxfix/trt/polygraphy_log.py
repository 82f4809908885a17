"""What TensorRT says while engines run, as it comes through Polygraphy's logger."""

from __future__ import annotations

import logging

from onnxfix.sandbox import one_line

_LONGEST = 600  # characters of TensorRT's reason: it names the function that it failed in, twice


class Ear(logging.Handler):
    """Keeps errors. Polygraphy logs what TensorRT says as errors, and as critical what it raises itself."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.ERROR:
            self.texts.append(" ".join(record.getMessage().split()))

    def reason(self) -> str:
        """What was heard. TensorRT reports one cause from each function on its way out: once is enough."""
        causes: dict[str, str] = {}
        for text in self.texts:
            causes.setdefault(text.rpartition("(")[2], text)
        return one_line("; ".join(causes.values()), _LONGEST)

    def take(self) -> str:
        """What was heard, which is forgotten."""
        reason = self.reason()
        self.texts.clear()
        return reason
