"""Write the lifted model: ONNX nodes for the current layer, and weights into a file beside the model. How each kind of
layer reads as ONNX nodes is one small function, and all are in one table.

A function takes the model being written and the layer, and returns the values of the layer's outputs, in order. What
it writes is what TensorRT documents for the layer, not what the ONNX node meant: comments name the source. A form that
is not known raises ``Unliftable``; nothing is guessed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfix.runtime.backends.ort import pack
from onnxfix.tensorrt.lift.network import Layer, Tensor, Unliftable
from onnxfix.tensorrt.lift.records import FLOATS, NEWER, ONNX_TYPES, OPSET, numpy_type

#: Weights of at least this many bytes go to the file beside the model.
_LARGE = 1024


class Emit:
    """The model being written. The functions of ``kinds`` call ``of``, ``op``, ``const`` and ``cast``.

    Values are names of the lifted model. What ``op`` makes goes to the innermost graph (``inside``).
    """

    def __init__(self, data: Path) -> None:
        self.opset = OPSET
        self.notes: dict[str, None] = {}  # in order, each once
        self.random: set[Tensor] = set()  # tensors that are made of random numbers
        #: The network's outputs: where one is a weight, a copy takes its name.
        self.copied: set[Tensor] = set()
        self._data = data
        self._file: BinaryIO | None = None
        self._graphs: list[list[NodeProto]] = [[]]
        self._initializers: dict[str, TensorProto] = {}
        self._constants: dict[tuple[int, tuple[int, ...], bytes], str] = {}
        self._taken: set[str] = set()
        self._reserved: dict[str, None] = {}
        self._numbers: dict[str, int] = {}  # the last number that was given to a name
        self._values: dict[Tensor, str] = {}
        self._bound: set[str] = set()  # values that are called like a tensor already
        self._layer: Layer | None = None
        self._made: list[NodeProto] = []  # nodes made for the layer at hand

    # -- names

    def reserve(self, names: Iterable[str]) -> None:
        """Keep names free for tensors of the network, so that nothing else is called like them."""
        self._reserved.update(dict.fromkeys(names))

    def fresh(self, hint: str, *, tensor: bool = False) -> str:
        """A name that nothing has, as near to ``hint`` as can be. ``tensor``: one that is reserved will do."""
        name, number = hint, self._numbers.get(hint, 0)
        while not name or name in self._taken or (name in self._reserved and not (tensor and name == hint)):
            number += 1
            name = f"{hint or 'tensor'}_{number}"
        self._numbers[hint] = number
        self._taken.add(name)
        return name

    def of(self, tensor: Tensor) -> str:
        """The value of a tensor of the network, which has been made before."""
        return self._values[tensor]

    def names(self) -> dict[Tensor, str]:
        """All tensors of the network that have a value, with its name."""
        return dict(self._values)

    def bind(self, tensor: Tensor, value: str) -> None:
        """Set the value of a tensor of the network; it gets the tensor's name where that is free."""
        if value not in self._bound and any(value in node.output for node in self._made):
            name = self.fresh(tensor.name, tensor=True)
            for node in self._made:  # nothing else can read it yet
                _rename(node, value, name)
            value = name
        # Else it has a name already: an input, an initializer, another tensor.
        self._values[tensor] = value
        self._bound.add(value)

    def declare(self, tensor: Tensor) -> str:
        """Make a value for a tensor that no node computes: an input of the model or of a loop's body."""
        self._values[tensor] = name = self.fresh(tensor.name, tensor=True)
        return name

    def is_weight(self, value: str) -> bool:
        """Whether a value is an initializer."""
        return value in self._initializers

    def known(self, tensor: Tensor) -> npt.NDArray[Any] | None:
        """The elements of a small constant of the network; None for what is computed, and for a large one."""
        stored = self._initializers.get(self._values[tensor])
        return None if stored is None or stored.data_location else numpy_helper.to_array(stored)

    def output(self, value: str, tensor: Tensor) -> str:
        """A copy of a value under the name of the network's output ``tensor``, as far as that is free."""
        copy = self.op("Identity", value)
        name = self.fresh(tensor.name, tensor=True)
        _rename(self._made[-1], copy, name)
        return name

    # -- nodes

    @contextmanager
    def at(self, layer: Layer) -> Iterator[None]:
        """What is made from here on belongs to ``layer``."""
        before = self._layer, self._made
        self._layer, self._made = layer, []
        try:
            yield
        finally:
            self._layer, self._made = before

    @contextmanager
    def inside(self) -> Iterator[list[NodeProto]]:
        """What is made from here on goes to a graph of its own: a loop's body, a branch."""
        self._graphs.append([])
        try:
            yield self._graphs[-1]
        finally:
            self._graphs.pop()

    def op(self, op_type: str, *inputs: str, domain: str = "", hint: str = "", **attributes: Any) -> str:
        """Add a node with one output; returns that. "" leaves an input out, None an attribute."""
        return self.ops(op_type, *inputs, outputs=1, domain=domain, hint=hint, **attributes)[0]

    def ops(
        self, op_type: str, *inputs: str, outputs: int, domain: str = "", hint: str = "", **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node with several outputs; returns them."""
        layer = self._layer
        label = (layer.label or layer.name) if layer is not None else ""
        names = [self.fresh(hint or f"{label}/{op_type}") for _ in range(outputs)]
        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        kept = {key: value for key, value in attributes.items() if value is not None}
        node = helper.make_node(
            op_type, given, names, name=self.fresh(f"{label}/{op_type}"), domain=domain, **kept
        )
        if layer is not None:
            for key, value in (
                ("onnx_node", layer.label),
                ("trt_layer", layer.name),
                ("trt_kind", layer.kind),
            ):
                if value:
                    node.metadata_props.add(key=key, value=value)
        self._graphs[-1].append(node)
        self._made.append(node)
        return tuple(names)

    def note(self, text: str) -> None:
        """Say something that a reader of the lifted model should know, once."""
        self.notes[text] = None

    def as_float(self, tensor: Tensor) -> str:
        """A tensor as FLOAT.

        Raises:
            Unliftable: it is of a type that is not a float.
        """
        if tensor.dtype not in FLOATS:
            raise Unliftable(f"{tensor.name} is of type {tensor.dtype}, where TensorRT accepts floats")
        return self.as_type(tensor, "FLOAT")

    def as_type(self, tensor: Tensor, dtype: str) -> str:
        """A tensor as TensorRT's type ``dtype``."""
        return self.turn(self.of(tensor), tensor.dtype, dtype)

    def turn(self, value: str, have: str, want: str) -> str:
        """A value of TensorRT's type ``have`` as one of type ``want``."""
        return value if have == want else self.cast(value, want)

    def cast(self, value: str, dtype: str) -> str:
        """The value as TensorRT's type ``dtype``."""
        self.uses(dtype)
        return self.op("Cast", value, to=ONNX_TYPES[dtype])

    def uses(self, dtype: str) -> None:
        """Take note that the model holds this type of TensorRT's: some need a newer opset."""
        self.opset = max(self.opset, NEWER.get(dtype, 0))

    def size(self, value: str, axis: int) -> str:
        """One dimension of a value, as a scalar."""
        return self.op("Squeeze", self.op("Shape", value, start=axis, end=axis + 1))

    def range(self, count: str) -> str:
        """0, 1 … count - 1, for a scalar ``count``."""
        return self.op("Range", self.const(np.int64(0)), count, self.const(np.int64(1)))

    # -- constants

    def const(self, values: Any, dtype: str | None = None, hint: str = "") -> str:
        """An initializer, a scalar or an array. ``dtype`` is TensorRT's name of the type, by default the array's."""
        array = np.asarray(values) if dtype is None else np.asarray(values).astype(numpy_type(dtype))
        return self.weights(array, helper.np_dtype_to_tensor_dtype(array.dtype), hint)

    def ints(self, values: Sequence[int]) -> str:
        """A one-dimensional int64 initializer."""
        return self.const(np.asarray(list(values), np.int64))

    def weights(self, array: npt.NDArray[Any], elem: int, hint: str = "", *, of: Tensor | None = None) -> str:
        """An initializer of an array whose bytes are those of ONNX's type ``elem`` (4-bit types: one element each).
        It gets the name of the tensor ``of``, whose value it is, where that is free."""
        hint = hint if of is None else of.name
        called = of is not None and of not in self.copied
        tensor = TensorProto(data_type=elem, dims=array.shape)
        raw: Any = np.ascontiguousarray(array)
        if elem in (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1):
            raw = pack(raw, 4)
        if raw.nbytes < _LARGE:
            tensor.raw_data = raw.tobytes()
            key = (elem, array.shape, tensor.raw_data)
            if of is None and key in self._constants:
                return self._constants[key]
            tensor.name = self._constants[key] = self.fresh(hint or "constant", tensor=called)
        else:
            tensor.name = self.fresh(hint or "weights", tensor=called)
            self._store(tensor, raw)
        if of is not None and self._layer is not None:  # which the parser names after the initializer
            tensor.metadata_props.add(key="trt_layer", value=self._layer.name)
        self._initializers[tensor.name] = tensor
        return tensor.name

    def _store(self, tensor: TensorProto, raw: npt.NDArray[Any]) -> None:
        if self._file is None:
            self._file = self._data.open("wb")
        self._file.write(b"\0" * (-self._file.tell() % 64))
        tensor.data_location = TensorProto.EXTERNAL
        where = {"location": self._data.name, "offset": self._file.tell(), "length": raw.nbytes}
        for key, value in where.items():
            tensor.external_data.add(key=key, value=str(value))
        raw.reshape(-1).view(np.uint8).tofile(self._file)

    # -- the model

    def graph(self, name: str) -> GraphProto:
        """The main graph without its inputs and outputs."""
        graph = GraphProto(name=name)
        graph.node.extend(self._graphs[0])
        graph.initializer.extend(self._initializers.values())
        return graph

    def close(self) -> None:
        """Finish the file of weights."""
        if self._file is not None:
            self._file.close()


def info(name: str, dtype: str, dims: Sequence[int | str] | None) -> onnx.ValueInfoProto:
    """The declaration of a value; dimensions that are not known have no name."""
    return helper.make_tensor_value_info(
        name, ONNX_TYPES[dtype], None if dims is None else [None if d == -1 else d for d in dims]
    )


def _rename(node: NodeProto, old: str, new: str) -> None:
    for names in (node.input, node.output):
        for place, name in enumerate(names):
            if name == old:
                names[place] = new


Lift = Callable[[Emit, Layer], "str | tuple[str, ...]"]
_TABLE: dict[str, Lift] = {}
_FAMILIES = (
    "arithmetic", "attention", "moving", "quantized", "reductions", "resampling", "slicing", "spatial",
)  # fmt: skip


def lifts(*kinds: str) -> Callable[[Lift], Lift]:
    """Enter a function into the table, for these kinds of layers (TensorRT's LayerType by name)."""

    def enter(function: Lift) -> Lift:
        for kind in kinds:
            if kind in _TABLE:
                raise ValueError(f"{kind} has a function already")
            _TABLE[kind] = function
        return function

    return enter


def table() -> dict[str, Lift]:
    """Every kind that can be read back, with its function."""
    for family in _FAMILIES:
        importlib.import_module(f"onnxfix.tensorrt.lift.kinds.{family}")
    return _TABLE


# -- layers that are known and not read back, with what a reader should know of each

#: A plugin's own names: of the core of the third generation, and of the second.
_NAMES = ("plugin_name", "plugin_type")


@lifts("PLUGIN", "PLUGIN_V2", "PLUGIN_V3")
def _plugin(e: Emit, layer: Layer) -> str:
    """The network contains a plugin's name and fields, not what it computes."""
    plugin = getattr(layer.native, "plugin", None)
    named = next((one for one in (plugin, _core(plugin)) if _name(one)), None)
    if named is None:
        raise Unliftable("a plugin without a name: compiled code, which cannot be read back")
    values = {word: str(getattr(named, f"plugin_{word}", "")) for word in ("version", "namespace")}
    known = ", ".join([_name(named), *(f"{word} {value}" for word, value in values.items() if value)])
    raise Unliftable(f"the plugin {known}: compiled code, which cannot be read back")


@lifts("DYNAMIC_QUANTIZE")
def _dynamic_quantize(e: Emit, layer: Layer) -> str:
    """Quantization with scales that are made from the data, block by block. TensorRT documents that there are such
    scales, not how it rounds them, nor what becomes of a block of zeros (operators/DynamicQuantize; NvInfer.h,
    IDynamicQuantizeLayer), and ONNX has no operator of which it could be the reading."""
    data, scale = layer.outputs[0].dtype, layer.outputs[1].dtype
    raise Unliftable(
        f"{data} with {scale} scales that are not constant: TensorRT does not document how it rounds the scales"
    )


_REASONS = {
    "MOE": "TensorRT does not document what its mixture of experts computes",
    "DIST_COLLECTIVE": "an exchange between GPUs, for which ONNX has no operator",
}


@lifts(*_REASONS)
def _unknown(e: Emit, layer: Layer) -> str:
    raise Unliftable(_REASONS[layer.kind])


def _name(plugin: Any) -> str:
    return next((str(getattr(plugin, word)) for word in _NAMES if getattr(plugin, word, "")), "")


def _core(plugin: Any) -> Any:
    """The part of a plugin of the third generation that knows its name; None for others."""
    ask = getattr(plugin, "get_capability_interface", None)
    kinds = getattr(sys.modules[type(plugin).__module__], "PluginCapabilityType", None)
    return None if ask is None or kinds is None else ask(kinds.CORE)
