"""TensorRT's errors while engines run, as they arrive through Polygraphy's logger."""

from __future__ import annotations

import logging

from onnxfix.sandbox import one_line

_LONGEST = 600  # characters of TensorRT's reason: it names the function that it failed in, twice


class ErrorLog(logging.Handler):
    """Keeps errors. Polygraphy logs TensorRT's messages as errors, and its own exceptions as critical."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.ERROR:
            self.texts.append(" ".join(record.getMessage().split()))

    def reason(self) -> str:
        """The errors, each cause once: TensorRT reports it from each function on its way out."""
        causes: dict[str, str] = {}
        for text in self.texts:
            causes.setdefault(text.rpartition("(")[2], text)
        return one_line("; ".join(causes.values()), _LONGEST)

    def take(self) -> str:
        """The same; the errors are forgotten."""
        reason = self.reason()
        self.texts.clear()
        return reason
