"""How TensorRT reads a model, compared with the model itself, and what it made of its nodes: frozen records whose
fields can be written as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from onnxfix.place import Place
from onnxfix.runtime.causes import Cause

if TYPE_CHECKING:
    from onnxfix.tensorrt.records import TrtBuild

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


#: What became of an ONNX node. "engine": layers of the engine name it. "merged": TensorRT imported it as layers, and
#: the engine has none that names it: they were folded, removed, or merged into others without a trace. "folded": the
#: parser made no layer of it, since its value is constant or nothing reads it. "inside": it is an If, a Loop or a call
#: of a local function, computed by the nodes in it. "unknown": the engine's layers are not known.
Fate = Literal["engine", "merged", "folded", "inside", "unknown"]
#: Where the engine's layers were read: in the verbose log of the build, in the engine by TensorRT's inspector, or
#: nowhere.
Source = Literal["", "log", "inspector"]


@dataclass(frozen=True)
class LayerTensor:
    """An input, a constant or an output of an engine's layer. ``dtype`` is the element type as numpy names it, or
    TensorRT's own word for types that numpy does not have; ``dims`` has -1 where the size is dynamic. ``layout`` is
    the memory layout in TensorRT's words."""

    name: str
    dtype: str = ""
    dims: tuple[int, ...] = ()
    layout: str = ""


@dataclass(frozen=True)
class EngineLayer:
    """One layer of an engine, in the order of execution.

    ``kind`` is TensorRT's type of the layer. ``tactic`` is the name of its kernel and ``tactic_id`` the number of its
    tactic in hexadecimal, each "" where TensorRT gives none: TensorRT-RTX chooses kernels of products and convolutions
    only when an engine is loaded. ``stamps`` are the parser's labels of the ONNX nodes that it computes, each with the
    subgraphs and functions around the node (``label | around``); empty for a layer that TensorRT added. ``profile``
    counts optimization profiles from 0.
    """

    name: str
    kind: str
    tactic: str = ""
    tactic_id: str = ""
    inputs: tuple[LayerTensor, ...] = ()
    constants: tuple[LayerTensor, ...] = ()
    outputs: tuple[LayerTensor, ...] = ()
    stamps: tuple[str, ...] = ()
    profile: int = 0


@dataclass(frozen=True)
class Candidate:
    """A tactic that TensorRT timed: its kernel, its hash in hexadecimal, and milliseconds."""

    kernel: str
    tactic: str
    ms: float


@dataclass(frozen=True)
class Autotuning:
    """The choice of one tactic, as the builder logs it while an editable timing cache is in use: the operation, its key
    in the cache, the hash of the ``chosen`` tactic ("" where none was logged), and all that were timed, fastest
    first."""

    operation: str
    key: str
    chosen: str = ""
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class ImportedLayer:
    """One layer of the imported network: the parser's stamp of the ONNX node that it is for, its kind, and the element
    types of its inputs and outputs."""

    stamp: str
    name: str
    kind: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeLayers:
    """What became of one ONNX node.

    ``imported`` are the kinds of the network's layers for it, ``inputs`` and ``outputs`` the element types that these
    read and write: networks are strongly typed, so that this is the node's precision. ``layers`` are the names of the
    engine's layers that compute it, ``fused_with`` the other nodes that these compute, ``tactics`` their tactics (the
    name of the kernel, else its number), and ``reformats`` the layers that TensorRT added next to them to change layout
    or type.
    """

    place: Place
    fate: Fate
    imported: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    fused_with: tuple[Place, ...] = ()
    tactics: tuple[str, ...] = ()
    reformats: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayerTable:
    """The nodes of a model and the layers of the engine that TensorRT built of it.

    ``nodes`` has every node of the model once, in stored order, without Constant. ``layers`` are the engine's, as read
    from ``source``; ``unknown`` says in a line each what is not known, and why. ``autotuning`` are the choices of
    tactics that the builder logged.
    """

    build: TrtBuild
    nodes: tuple[NodeLayers, ...] = ()
    layers: tuple[EngineLayer, ...] = ()
    source: Source = ""
    autotuning: tuple[Autotuning, ...] = ()
    unknown: tuple[str, ...] = ()
