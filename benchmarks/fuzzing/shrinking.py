"""Make a case smaller that shows a fault: fewer mutators, then fewer parts of its model, then fewer bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto

from fuzzing.cases import Case, drawn
from fuzzing.judging import Fault
from fuzzing.running import run, same

SECONDS = 40.0
"""The time that one case is worth."""


def shrunk(case: Case, fault: Fault, groups: tuple[str, ...], verified: float) -> Case:
    """A smaller case with the same fault: the case itself where there is none."""
    deadline = time.monotonic() + SECONDS

    def shows(candidate: Case) -> bool:
        return time.monotonic() < deadline and same(run(candidate), fault)

    case = _fewer_mutators(case, shows, groups, verified)
    best = _fewer_parts(case, shows)
    return _fewer_bytes(best, shows)


def _fewer_mutators(
    case: Case, shows: Callable[[Case], bool], groups: tuple[str, ...], verified: float
) -> Case:
    skip: set[int] = set()
    for place in range(len(case.mutators)):
        candidate = drawn(case.seed, case.number, groups, verified, frozenset({*skip, place}))
        if shows(candidate):
            case = candidate
            skip.add(place)
    return case


def _parts(model: ModelProto) -> Iterator[tuple[object, str]]:
    """The repeated fields worth shortening, outer ones first."""
    for name in ("functions", "metadata_props", "training_info", "configuration"):
        yield model, name
    stack: list[object] = [model.graph, *model.functions]
    while stack:
        body = stack.pop(0)
        for name in ("node", "initializer", "sparse_initializer", "value_info", "quantization_annotation", "input",
                     "output", "metadata_props"):  # fmt: skip
            if hasattr(body, name) and not isinstance(getattr(body, name), str):
                yield body, name
        for node in getattr(body, "node", ()):
            yield node, "attribute"
            for attribute in node.attribute:
                stack += [attribute.g] if attribute.HasField("g") else []


def _fewer_parts(case: Case, shows: Callable[[Case], bool]) -> Case:
    """Take parts away, first many at once, while the fault stays."""
    try:
        model = ModelProto.FromString(case.data)
        places = len(list(_parts(model)))
    except DecodeError:
        return case
    place = 0
    while place < places:
        parts = list(_parts(model))
        if place >= len(parts):
            break
        holder, name = parts[place]
        count = len(getattr(holder, name))
        size = count
        while size:
            start = 0
            while start < count:
                smaller = ModelProto()
                smaller.CopyFrom(model)
                target = list(_parts(smaller))[place]
                del getattr(*target)[start : start + size]
                try:
                    data = smaller.SerializeToString(deterministic=True)
                except EncodeError:
                    return case
                if len(data) < len(case.data) and shows(replace(case, data=data)):
                    case, model = replace(case, data=data), smaller
                    count -= min(size, count - start)
                else:
                    start += size
            size //= 2
        place += 1
    return case


def _fewer_bytes(case: Case, shows: Callable[[Case], bool]) -> Case:
    """Take bytes away, for files that are no models, or fields that no one knows."""
    size = len(case.data) // 2
    while size:
        start = 0
        while start < len(case.data):
            data = case.data[:start] + case.data[start + size :]
            if shows(replace(case, data=data)):
                case = replace(case, data=data)
            else:
                start += size
        size //= 2
    return case
