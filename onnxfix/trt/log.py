"""What TensorRT says to its logger, with the node that its parser was at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from onnxfix.trt import messages


@dataclass
class Heard:
    """A message as it came: severity, text, and what the parser was at (label, operator)."""

    severity: str
    text: str
    at: tuple[str, str]


@dataclass
class Ear:
    """What TensorRT's logger has heard since the last ``listen``."""

    messages: list[Heard] = field(default_factory=list)
    at: tuple[str, str] = ("", "")
    lines: int = 0

    def listen(self) -> None:
        """Forget what was heard so far."""
        self.messages, self.at = [], ("", "")

    def hear(self, severity: str, text: str) -> None:
        """Take one message; only warnings and errors are kept."""
        self.lines += 1
        if severity == "VERBOSE":
            self.at = messages.parsed_node(text) or self.at
        elif severity in ("WARNING", "ERROR", "INTERNAL_ERROR"):
            self.messages.append(Heard(severity, text, self.at))


#: TensorRT keeps the first logger that a process hands it and ignores all later ones: one for each package.
_LOGGERS: dict[str, tuple[Any, Ear]] = {}


def logger_of(trt: Any) -> tuple[Any, Ear]:
    """This process's logger for the package's module ``trt``, and the ear that it talks into."""
    if trt.__name__ not in _LOGGERS:
        ear = Ear()

        class Log(trt.ILogger):  # type: ignore[misc]  # the base class is only known at run time
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, msg: str) -> None:
                ear.hear(severity.name, msg)

        _LOGGERS[trt.__name__] = Log(), ear
    return _LOGGERS[trt.__name__]


def text_of(call: Callable[[], Any]) -> str:
    """What a function of TensorRT's returns as text. It raises where bytes that it quotes of the model are no UTF-8."""
    try:
        return str(call() or "")
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", "replace")
