"""``apply`` is a straight line: a run is traced and held to the drawing that ARCHITECTURE.md shows.

A room is a package of onnxfix, or a module beside the packages. What counts is a call from ``verbs`` or ``api`` to
a function, a method or a class of another room. Not counted are imports of modules, reads of properties, comparing and
hashing of records, and ``options``, ``errors`` and ``walk``, which every room uses. Outside of the stages ``apply``
enters a context, which lasts to the end: the memory limit (``sandbox``).
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import onnx
import pytest

import onnxfix
from onnxfix.verbs import applying, job, prove
from support.models import write

ROOT = Path(onnxfix.__file__).parent
HOME = {"verbs", "api"}
NO_ROOMS = {"options", "errors", "__init__", "files/walk", "runtime/allowance"}
MOST = 6
"""Returns to a room already left that the path of a model may have."""


@dataclass(frozen=True)
class Stage:
    """A stage of the drawing: its function, the record that it returns, and the rooms that it enters, in order."""

    function: Callable[..., Any]
    returns: type
    rooms: tuple[str, ...]


DRAWING = (
    Stage(job.prepare, job.Job, ("rewrite", "targets", "files", "tensorrt", "files")),
    Stage(prove.prove, prove.Proven, ("files", "model", "rewrite", "files", "proof", "files")),
    Stage(applying.summarize, onnxfix.Report, ("files", "proof", "report")),
    Stage(applying.write, onnxfix.Report, ("files",)),
)


@dataclass
class Trace:
    """What a run did: the calls of stages with their arguments and results, and the rooms that each one entered."""

    calls: list[tuple[Callable[..., Any], list[object]]] = field(default_factory=list)
    results: list[object] = field(default_factory=list)
    rooms: list[list[str]] = field(default_factory=list)


def room_of(code: CodeType) -> str:
    """The room that code belongs to; "" for code of others."""
    try:
        parts = Path(code.co_filename).relative_to(ROOT).parts
    except ValueError:
        return ""
    whole = "/".join(parts).removesuffix(".py")
    return whole if whole in NO_ROOMS else parts[0].removesuffix(".py")


@functools.cache
def properties_of(file: str) -> frozenset[CodeType]:
    """The code of the properties of a module."""
    modules = [one for one in [*sys.modules.values()] if getattr(one, "__file__", None) == file]
    classes = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    found = [
        getattr(one, "fget", getattr(one, "func", None)) for kind in classes for one in vars(kind).values()
    ]
    return frozenset(one.__code__ for one in found if hasattr(one, "__code__"))


def counts(frame: FrameType) -> bool:
    """Whether a call enters a room, as the docstring of this module says."""
    code = frame.f_code
    if code.co_name == "<module>":
        return False
    if code.co_name.startswith("__") and code.co_name not in ("__init__", "__enter__"):
        return False
    return code not in properties_of(code.co_filename)


def caller_of(frame: FrameType) -> str:
    """The room that called, whatever code of others is between."""
    outer = frame.f_back
    while outer is not None and not room_of(outer.f_code):
        outer = outer.f_back
    return room_of(outer.f_code) if outer is not None else ""


def traced(run: Callable[[], object]) -> Trace:
    """The trace of a run."""
    found, stages = Trace(), {stage.function.__code__: stage.function for stage in DRAWING}
    inside: list[CodeType] = []
    generators: set[FrameType] = set()  # a "call" for each time that one goes on

    def watch(frame: FrameType, event: str, result: object) -> None:
        code, room = frame.f_code, room_of(frame.f_code)
        if code in stages and event == "call":
            names = code.co_varnames[: code.co_argcount]
            found.calls.append((stages[code], [frame.f_locals[name] for name in names]))
            found.rooms.append([])
            inside.append(code)
        elif code in stages and event == "return":
            found.results.append(result)
            inside.remove(code)
        elif event == "call" and inside and room not in {"", *HOME, *NO_ROOMS} and frame not in generators:
            if code.co_flags & inspect.CO_GENERATOR:
                generators.add(frame)
            if caller_of(frame) in HOME and counts(frame):
                found.rooms[-1].append(room)

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


def stays(rooms: Sequence[str]) -> Iterator[str]:
    """The rooms without immediate repetitions."""
    last = ""
    for room in rooms:
        if room != last:
            yield room
        last = room


def returns(rooms: Sequence[str]) -> int:
    """How often a room is entered that was left before."""
    path = [*stays(rooms)]
    return len(path) - len(set(path))


MODEL = """<ir_version: 10, opset_import: ["" : 18]>
g (float[N] x) => (int64[N] y) <int64[1] w = {2}> {
    a = Cast<to=11>(x)  b = Cast<to=7>(a)  c = Cast<to=7>(b)  y = Mul(c, w) }"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("path")
    model = write(folder / "m.onnx", MODEL)
    run = functools.partial(onnxfix.apply, model, folder / "out.onnx", rungs=["ort-cpu"])
    run()  # whatever is made once
    found = traced(run)
    assert len(onnx.load(folder / "out.onnx").graph.node) < 4
    return found


def test_each_stage_runs_once_in_order_and_gets_what_the_ones_before_it_returned(trace: Trace) -> None:
    assert [function for function, _ in trace.calls] == [stage.function for stage in DRAWING]
    for stage, result in zip(DRAWING, trace.results, strict=True):
        assert type(result) is stage.returns
    for (_, arguments), before in zip(trace.calls[1:], trace.results, strict=False):
        assert any(one is before for one in arguments)


@pytest.mark.parametrize("number", range(len(DRAWING)))
def test_a_stage_enters_the_rooms_that_are_drawn(trace: Trace, number: int) -> None:
    assert tuple(stays(trace.rooms[number])) == DRAWING[number].rooms


def test_the_path_seldom_returns_to_a_room(trace: Trace) -> None:
    rooms = [room for stage in trace.rooms for room in stage]
    assert returns(rooms) == returns([room for stage in DRAWING for room in stage.rooms]) <= MOST
