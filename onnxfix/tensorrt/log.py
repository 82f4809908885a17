"""TensorRT's log messages, each with the node that the parser was at, and the plugins that are registered with a log:
those that the full TensorRT ships, and those in the libraries that the user names with ``--plugins``."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from onnxfix.errors import UsageError
from onnxfix.runtime.sandbox import note, one_line
from onnxfix.tensorrt import messages
from onnxfix.tensorrt.reading import Autotuning, EngineLayer


@dataclass
class Message:
    """A message: severity, text, and the node that the parser was at (label, operator)."""

    severity: str
    text: str
    at: tuple[str, str]


@dataclass
class BuildLog:
    """What the verbose log of a build says of the engine: its ``layers`` (None where it does not list them), the
    ``regions`` that TensorRT's compiler took over (layer -> stamps), and how tactics were chosen (``autotuning``)."""

    layers: tuple[EngineLayer, ...] | None = None
    regions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    autotuning: list[Autotuning] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Read one verbose message."""
        layers = messages.listed_layers(text)
        if layers is not None:
            self.layers = layers
        elif region := messages.region_in(text):
            self.regions[region[0]] = region[1]
        else:
            for line in text.split("\n"):
                self._tune(line)

    def _tune(self, line: str) -> None:
        operation = messages.autotuned_in(line)
        if operation is not None:
            self.autotuning.append(Autotuning(*operation))
        elif self.autotuning and not self.autotuning[-1].chosen:
            last = self.autotuning[-1]
            if (candidate := messages.candidate_in(line)) is not None:
                self.autotuning[-1] = replace(last, candidates=(*last.candidates, candidate))
            elif chosen := messages.chosen_in(line):
                self.autotuning[-1] = replace(last, chosen=chosen)


@dataclass
class MessageLog:
    """Warnings and errors since the last ``clear``, the node that the parser is ``at`` (label, operator), and the
    number of all ``lines`` so far. ``detail`` reads the verbose messages, where somebody wants what they say of the
    engine."""

    messages: list[Message] = field(default_factory=list)
    at: tuple[str, str] = ("", "")
    lines: int = 0
    detail: BuildLog | None = None

    def clear(self) -> None:
        """Forget all messages."""
        self.messages, self.at = [], ("", "")

    def add(self, severity: str, text: str) -> None:
        """Log one message; only warnings and errors are kept."""
        self.lines += 1
        if severity == "VERBOSE":
            self.at = messages.parsed_node(text) or self.at
            if self.detail is not None:
                self.detail.add(text)
        elif severity in ("WARNING", "ERROR", "INTERNAL_ERROR"):
            self.messages.append(Message(severity, text, self.at))

    @property
    def first_error(self) -> str:
        """The text of the first error; "" without one."""
        return next((one.text for one in self.messages if one.severity != "WARNING"), "")


#: The paths of the user's libraries, in the environment of the processes that use TensorRT.
PLUGINS = "ONNXFIX_TRT_PLUGINS"


def plugin_libraries() -> list[str]:
    """The user's libraries in this process."""
    return [path for path in os.environ.get(PLUGINS, "").split(os.pathsep) if path]


def register_plugins(trt: Any, log: Any, reason: Callable[[], str] = lambda: "") -> tuple[str, ...]:
    """Register the plugins with the package's module ``trt``, once per process; returns the operators that the user's
    libraries serve. ``log`` is a TensorRT logger, ``reason`` returns the first error that it was told.

    Raises:
        UsageError: TensorRT does not load a library.
    """
    if trt.__name__ == "tensorrt":  # the other package ships none
        trt.init_libnvinfer_plugins(log, "")
    if not plugin_libraries():
        return ()
    _builder = trt.Builder(log)  # from here on the registry reports to the log
    registry = trt.get_plugin_registry()
    before = {one.name for one in registry.all_creators}
    for path in plugin_libraries():
        if registry.load_library(path) is None:
            why = one_line(reason()) or "it gives no reason"
            raise UsageError(f"--plugins {path}: TensorRT does not load this library: {why}")
    return tuple(sorted({one.name for one in registry.all_creators} - before))


#: TensorRT keeps the first logger of a process and ignores all later ones: one for each package.
_LOGGERS: dict[str, tuple[Any, MessageLog]] = {}
#: By package, the operators that the user's plugins serve.
SERVED: dict[str, tuple[str, ...]] = {}


def logger_of(trt: Any) -> tuple[Any, MessageLog]:
    """This process's logger for the package's module ``trt``, and the log that it writes to. Plugins are registered
    with the logger.

    Raises:
        UsageError: TensorRT does not load one of the user's libraries.
    """
    if trt.__name__ not in _LOGGERS:
        received = MessageLog()

        class Log(trt.ILogger):  # type: ignore[misc]  # the base class is only known at run time
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, msg: str) -> None:
                received.add(severity.name, msg)

        log = Log()
        SERVED[trt.__name__] = register_plugins(trt, log, lambda: received.first_error)
        _LOGGERS[trt.__name__] = log, received
    return _LOGGERS[trt.__name__]


def word_of(value: Any) -> str:
    """The name of an enumeration's value. In TensorRT 10.6, ``ErrorCode`` has a method in the place of ``name``."""
    return next((name for name, member in type(value).__members__.items() if member == value), str(value))


def text_of(call: Callable[[], Any]) -> str:
    """What a function of TensorRT returns, as text. It raises where it quotes bytes of the model that are not UTF-8."""
    try:
        return str(call() or "")
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", "replace")


_EVERY = 0.5  # seconds


def watch(trt: Any, config: Any) -> Any:
    """Have a build report how far it is; returns what must be kept until it ends, None where TensorRT cannot do this.
    TensorRT calls from threads of its own, which no exception may reach."""
    if not hasattr(config, "progress_monitor"):
        return None
    phases: dict[str, tuple[str | None, int, int]] = {}  # active ones: the parent, steps done, steps
    told = [time.monotonic()]

    def under(parent: str | None) -> float:
        own = [(name, *of) for name, of in list(phases.items()) if of[0] == parent]
        return sum(min(1.0, (done + under(name)) / max(count, 1)) for name, _, done, count in own)

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]  # the base class is only known at run time
        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            phases[phase_name] = parent_phase, 0, num_steps

        def step_complete(self, phase_name: str, step: int) -> bool:
            with contextlib.suppress(Exception):
                parent, _, count = phases[phase_name]
                phases[phase_name] = parent, step + 1, count
                if time.monotonic() - told[0] >= _EVERY:
                    told[0] = time.monotonic()
                    note(f"TensorRT: {100 * min(1.0, under(None)):.0f} %, {phase_name[:60]}", share=True)
            return True

        def phase_finish(self, phase_name: str) -> None:
            phases.pop(phase_name, None)

    config.progress_monitor = monitor = Monitor()
    return monitor
