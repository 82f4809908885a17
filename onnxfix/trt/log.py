"""TensorRT's log messages, each with the node that the parser was at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from onnxfix.trt import messages


@dataclass
class Message:
    """A message: severity, text, and the node that the parser was at (label, operator)."""

    severity: str
    text: str
    at: tuple[str, str]


@dataclass
class MessageLog:
    """Warnings and errors since the last ``clear``, the node that the parser is ``at`` (label, operator), and the
    number of all ``lines`` so far."""

    messages: list[Message] = field(default_factory=list)
    at: tuple[str, str] = ("", "")
    lines: int = 0

    def clear(self) -> None:
        """Forget all messages."""
        self.messages, self.at = [], ("", "")

    def add(self, severity: str, text: str) -> None:
        """Log one message; only warnings and errors are kept."""
        self.lines += 1
        if severity == "VERBOSE":
            self.at = messages.parsed_node(text) or self.at
        elif severity in ("WARNING", "ERROR", "INTERNAL_ERROR"):
            self.messages.append(Message(severity, text, self.at))


#: TensorRT keeps the first logger of a process and ignores all later ones: one for each package.
_LOGGERS: dict[str, tuple[Any, MessageLog]] = {}


def logger_of(trt: Any) -> tuple[Any, MessageLog]:
    """This process's logger for the package's module ``trt``, and the log that it writes to."""
    if trt.__name__ not in _LOGGERS:
        received = MessageLog()

        class Log(trt.ILogger):  # type: ignore[misc]  # the base class is only known at run time
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, msg: str) -> None:
                received.add(severity.name, msg)

        _LOGGERS[trt.__name__] = Log(), received
    return _LOGGERS[trt.__name__]


def text_of(call: Callable[[], Any]) -> str:
    """What a function of TensorRT returns, as text. It raises where it quotes bytes of the model that are not UTF-8."""
    try:
        return str(call() or "")
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", "replace")
