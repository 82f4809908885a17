"""How TensorRT reads a model, compared with the model itself: frozen records whose fields can be written as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onnxfix.place import Place
from onnxfix.runtime.causes import Cause

#: What is read differently: a computed value; the element type, shape or name of an input, an output or a tensor.
#: "refused": ONNX Runtime rejects a model that TensorRT imports. "fails": the imported network fails on inputs that the
#: model takes.
Kind = Literal["value", "type", "shape", "name", "refused", "fails"]
Subject = Literal["input", "output", "tensor", "weight", "model", "network"]
#: "agrees": compared, with at most harmless differences. "differs": somewhere it matters. "refused": the parser takes
#: no such model. "gap": the network holds a layer that is not read back. "unknown": nothing was learnt. "broke":
#: nothing was learnt, by a fault of onnxfix.
Status = Literal["agrees", "differs", "refused", "gap", "unknown", "broke"]


@dataclass(frozen=True)
class Misread:
    """One thing that TensorRT reads differently.

    ``subject`` is what differs, with its ``name`` unless that is the model or the network as a whole; ``onnx`` and
    ``tensorrt`` are both sides as text: values, types, shapes or names, and ONNX Runtime's words where it refuses or
    fails. ``index`` is the first element that differs, ``extent`` says how many do. ``layers`` are TensorRT's for that
    node, kind and name. ``feed`` labels the inputs on which it showed. ``unnamed`` counts nodes before this one whose
    results TensorRT does not name: the cause may be one of them. ``harmless``: no value depends on it, or it is float32
    for float64.
    """

    kind: Kind
    place: Place
    subject: Subject
    onnx: str = ""
    tensorrt: str = ""
    index: tuple[int, ...] | None = None
    extent: str = ""
    layers: tuple[str, ...] = ()
    feed: str = ""
    unnamed: int = 0
    harmless: bool = False
    name: str = ""

    @property
    def about(self) -> str:
        """For people: ``output y``."""
        return f"{self.subject} {self.name}" if self.name else f"the {self.subject}"

    @property
    def words(self) -> str:
        """What differs, on one line, without the place."""
        if self.kind == "refused":
            return f"ONNX Runtime refuses what TensorRT imports: {self.onnx}"
        if self.kind == "fails":
            return f"what TensorRT imported fails on inputs that the model takes: {self.tensorrt}"
        operator = f"{self.place.op_type}: " if self.place.op_type else ""
        if self.kind != "value":
            return f"{operator}{self.about} is {self.onnx} in ONNX, and TensorRT reads {self.tensorrt}"
        where = f" at {list(self.index)}" if self.index else ""
        extent = f" ({self.extent})" if self.extent else ""
        return f"{operator}{self.about}{where} is {self.onnx} in ONNX and {self.tensorrt} in TensorRT{extent}"

    def __str__(self) -> str:
        """``place: words``, on one line."""
        return f"{self.place}: {self.words}" if self.place.known else self.words


@dataclass(frozen=True)
class Reading:
    """TensorRT's reading of one model against the model itself. No engine was executed for it.

    ``reason`` says in one line why nothing was learnt (``cause`` is the same for programs), or what was compared.
    ``backend`` executed both; ``feeds`` and
    ``shapes`` count what was compared. ``layers`` counts the network's layers by kind. ``excluded`` are outputs that
    depend on random numbers. ``noise`` is the greatest distance, by output, that moving the inputs by one part in ten
    million makes in the model itself, where it was measured. ``seconds`` are those of parsing, reading back and
    comparing.
    """

    status: Status
    reason: str = ""
    misreads: tuple[Misread, ...] = ()
    backend: str = ""
    feeds: int = 0
    shapes: int = 0
    layers: tuple[tuple[str, int], ...] = ()
    excluded: tuple[str, ...] = ()
    noise: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()
    package: str = ""
    version: str = ""
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    cause: Cause = ""

    @property
    def judged(self) -> bool:
        """Whether something was learnt of how TensorRT reads the model."""
        return self.status in ("agrees", "differs")

    @property
    def layer_count(self) -> int:
        """How many layers the network has."""
        return sum(count for _, count in self.layers)

    @property
    def grave(self) -> tuple[Misread, ...]:
        """The misreads that matter."""
        return tuple(one for one in self.misreads if not one.harmless)
