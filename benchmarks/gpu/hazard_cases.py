"""An example of a rule with its inputs and true outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

BEFORE, AFTER = "before", "after"
#: Sources of true outputs beside the backends: the original in float32, and the fixed model where nobody runs the
#: original.
TWIN, FIXED = "float32 twin", "fixed model"

Feed = dict[str, Any]
Outputs = list[list[Any]]


@dataclass(frozen=True)
class Truth:
    """What a model computes for each feed, and who says so; ``outputs`` are in the order of the graph."""

    source: str
    outputs: Outputs


@dataclass(frozen=True)
class Entry:
    """An example. ``safety`` and ``target`` are those of the fix, "" where there is none.

    ``truths`` names who computed the outputs, the one that decides first; ``untrue`` says why nobody did. ``agrees``:
    whether the fixed model meets them without TensorRT; None where that could not be run. ``unfed`` says why there are
    no inputs, ``skipped`` why there is no model at all.
    """

    code: str
    number: int
    why: str
    safety: str = ""
    target: str = ""
    truths: tuple[str, ...] = ()
    untrue: str = ""
    agrees: bool | None = None
    unfed: str = ""
    skipped: str = ""

    @property
    def key(self) -> str:
        """Its name in the results."""
        return f"{self.code}.{self.number}"

    @property
    def sides(self) -> tuple[str, ...]:
        """The models that there are of it."""
        return () if self.skipped else (BEFORE, AFTER) if self.safety else (BEFORE,)


@dataclass(frozen=True)
class Case:
    """An example's models by side, its feeds, and the true outputs."""

    models: Mapping[str, bytes]
    feeds: list[Feed] = field(default_factory=list)
    truths: tuple[Truth, ...] = ()


def fitted(feed: Mapping[str, Any], proto: ModelProto) -> Feed:
    """The feed in the types of a model's inputs, without what the model does not take."""
    types = {one.name: one.type.tensor_type.elem_type for one in proto.graph.input}
    return {name: _typed(value, types[name]) for name, value in feed.items() if name in types}


def typed(outputs: Sequence[Any], proto: ModelProto) -> list[Any]:
    """Outputs in the types that a model declares."""
    types = [one.type.tensor_type.elem_type for one in proto.graph.output]
    if len(types) != len(outputs):
        return [*outputs]
    return [_typed(value, elem) for value, elem in zip(outputs, types, strict=True)]


def _typed(value: Any, elem: int) -> Any:
    if (
        not elem
        or elem == TensorProto.STRING
        or not isinstance(value, np.ndarray)
        or value.dtype.kind in "OUS"
    ):
        return value
    with np.errstate(all="ignore"):
        return value.astype(onnx.helper.tensor_dtype_to_np_dtype(elem), copy=False)


def are_numbers(rows: Sequence[Sequence[Any]]) -> bool:
    """Whether all values are arrays of numbers."""
    values = [value for row in rows for value in row]
    return all(isinstance(value, np.ndarray) and value.dtype.kind not in "OUS" for value in values)


def entry_of(stored: Mapping[str, Any]) -> Entry:
    """An entry from JSON."""
    known: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in stored.items()}
    return Entry(**known)
