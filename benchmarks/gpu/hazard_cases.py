"""An example of a rule with its inputs and true outputs, and the file that carries examples to a GPU."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from acceptance.cases import Packed, pack, unpack
from onnx import ModelProto, TensorProto

from onnxfix.errors import OnnxfixError

BEFORE, AFTER = "before", "after"
#: Sources of true outputs beside the backends: the original in float32, and the fixed model where nobody runs the
#: original.
TWIN, FIXED = "float32 twin", "fixed model"
MANIFEST = "manifest.json"
#: Bytes of the inputs or of the outputs of an example: what is larger is not carried, and what is above ``LARGE`` is
#: carried with one feed.
MOST = 1 << 22
LARGE = 1 << 18

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
    labels: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Its name in the file."""
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


def packed(feeds: Sequence[Feed]) -> Packed:
    """The values of each feed; empty where they are no tensors of numbers, or too large to be carried."""
    return pack([list(one.values()) for one in feeds], MOST)


def stored(case: Case) -> dict[str, Any]:
    """Inputs and true outputs as JSON can hold them."""
    return {
        "names": [list(one) for one in case.feeds],
        "feeds": packed(case.feeds),
        "truths": [{"source": one.source, "outputs": pack(one.outputs, MOST)} for one in case.truths],
    }


class Carried:
    """A file that ``pack`` wrote. Not for two threads at once.

    Raises:
        OnnxfixError: it is none.
    """

    def __init__(self, path: Path) -> None:
        try:
            #: What tells this file from another one.
            self.digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            self._file = zipfile.ZipFile(path)
            self.manifest: dict[str, Any] = json.loads(self._file.read(MANIFEST))
            self.entries = [entry_of(one) for one in self.manifest["entries"]]
        except (OSError, KeyError, ValueError, TypeError, zipfile.BadZipFile) as error:
            raise OnnxfixError(f"{path}: is no file of examples that `prepare` wrote: {error}") from None

    def __enter__(self) -> Carried:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def case(self, entry: Entry) -> Case:
        """What was packed of an example."""
        stored = json.loads(self._file.read(f"{entry.key}.json"))
        models = {side: self._file.read(f"{entry.key}.{side}.onnx") for side in entry.sides}
        rows = zip(stored["names"], unpack(stored["feeds"]), strict=True)
        feeds = [dict(zip(names, row, strict=True)) for names, row in rows]
        truths = tuple(Truth(one["source"], unpack(one["outputs"])) for one in stored["truths"])
        return Case(models, feeds, truths)


def entry_of(stored: Mapping[str, Any]) -> Entry:
    """An entry from JSON."""
    known: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in stored.items()}
    return Entry(**known)
