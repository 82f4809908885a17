"""What TensorRT made of a model's nodes: frozen records whose fields are written as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onnxfix.place import Place
from onnxfix.tensorrt.records import TrtBuild

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
