"""Having TensorRT's parser import a model file: what building an engine and reading the network back have in common."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from onnxfix.sandbox import Outcome, note
from onnxfix.trt.log import MessageLog
from onnxfix.trt.messages import means


def empty_network(trt: Any, builder: Any) -> Any:
    """A network to parse into; None where TensorRT makes none. Strongly typed: the graph's own types are the
    precision. From TensorRT 11 on there is nothing else."""
    return builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))


def parse(trt: Any, network: Any, log: Any, received: MessageLog, path: str) -> tuple[Any, bool, float]:
    """Parse the model file into the network; returns the parser, whether it took the model, and the seconds.

    Raises:
        RuntimeError: another logger was there first.
    """
    note("parse")
    began, lines = time.perf_counter(), received.lines
    parser = trt.OnnxParser(network, log)
    parsed = parser.parse_from_file(path)
    if received.lines == lines:
        raise RuntimeError("TensorRT reports to another logger of this process: use a fresh sandbox")
    return parser, bool(parsed), time.perf_counter() - began


def ended_in_memory(outcome: Outcome) -> Outcome:
    """The outcome, with the status "memory" where the child crashed and what it printed last says that memory ran out:
    TensorRT has more ways to say so than the sandbox knows."""
    starved = outcome.status == "crash" and means("memory", [outcome.printed])
    return replace(outcome, status="memory") if starved else outcome


def epitaph(outcome: Outcome, doing: str) -> str:
    """What became of a call that did not end well, while TensorRT was ``doing`` something, in one line."""
    was = " was" if outcome.killed else ""
    return f"{doing}{was} {outcome.message}" if outcome.status != "error" else outcome.message
