"""A network as TensorRT's parser built it: layers cast to their own classes, and one object for each tensor.

``layer.type`` is read before a layer is cast to its class: activation and pooling layers have their own ``type``.
TensorRT returns the same Python wrapper for a tensor or a loop only while the wrapper is alive, so all are kept.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from onnxfix.tensorrt.log import text_of
from onnxfix.tensorrt.places import stamp_of

#: Kinds of layers whose class name does not follow from the kind.
_CLASSES = {
    "ELEMENTWISE": "ElementWise",
    "SOFTMAX": "SoftMax",
    "RAGGED_SOFTMAX": "RaggedSoftMax",
    "TOPK": "TopK",
    "NON_ZERO": "NonZero",
    "PARAMETRIC_RELU": "ParametricReLU",
    "LRN": "LRN",
    "NMS": "NMS",
    "CONDITIONAL_INPUT": "IfConditionalInput",
    "CONDITIONAL_OUTPUT": "IfConditionalOutput",
    "KV_CACHE_UPDATE": "KVCacheUpdate",
    "PLUGIN_V2": "PluginV2",
    "PLUGIN_V3": "PluginV3",
    "MOE": "MoE",
}


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of the network. ``dtype`` is TensorRT's name of its type; ``shape`` has -1 for dynamic dimensions, and
    is None if TensorRT does not know the rank."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    is_input: bool
    native: Any

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions, -1 for dynamic ones.

        Raises:
            Unliftable: TensorRT does not know its rank.
        """
        if self.shape is None:
            raise Unliftable(f"TensorRT does not know the rank of {self.name}")
        return self.shape

    @property
    def rank(self) -> int:
        """Number of dimensions; see ``dims``."""
        return len(self.dims)


def read_dims(native: Any, attribute: str) -> tuple[int, ...] | None:
    """The dimensions in a property of a TensorRT object; None if it is not set, or does not exist in this package.

    All such properties are read here, since packages express "not set" in three ways: None (TensorRT-RTX 1.6 and
    later), a Dims of length -1, whose ``len`` and ``tuple`` raise ValueError (1.4 and 1.5), and a RuntimeError
    from the property itself ("Could not get block_shape.", 1.6 and later).
    """
    try:
        dims = getattr(native, attribute, None)
        # ``len`` is needed: on Python 3.14, ``tuple`` does not call it.
        return None if dims is None or len(dims) < 0 else tuple(dims)
    except (ValueError, RuntimeError):
        return None


def read_word(native: Any, attribute: str, *, since: str = "", before: str = "") -> str:
    """The name of an enumeration's value, from a property of a TensorRT object.

    ``before`` is the value for packages that are older than the enumeration ``since``: they lack the property, and
    support no other value.
    """
    if since and not hasattr(native, attribute) and not hasattr(sys.modules[type(native).__module__], since):
        return before
    return str(getattr(native, attribute).name)


class Unliftable(Exception):
    """A layer, or a form of it, cannot be read back: ``str`` is the reason, in one line."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer. ``kind`` is TensorRT's LayerType by name; ``native`` is the TensorRT object, cast to the layer's class
    so that its properties can be read. An omitted input is None. ``label`` is the parser's name for its ONNX node.
    ``group`` is the loop or conditional of a boundary layer, "" for other layers."""

    number: int
    kind: str
    name: str
    label: str
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    native: Any
    group: str = ""

    def input(self, place: int) -> Tensor | None:
        """One input; None if it is omitted, or ``place`` is beyond the last input."""
        return self.inputs[place] if place < len(self.inputs) else None

    def need(self, place: int) -> Tensor:
        """One input that this kind of layer requires.

        Raises:
            Unliftable: it is left out.
        """
        found = self.input(place)
        if found is None:
            raise Unliftable(f"input {place} is left out")
        return found

    def dims(self, attribute: str) -> tuple[int, ...] | None:
        """The dimensions in a property of the layer; None if it is not set."""
        return read_dims(self.native, attribute)

    def word(self, attribute: str, *, since: str = "", before: str = "") -> str:
        """The name of an enumeration's value: ``layer.word("op")`` is "SUM". See ``read_word``."""
        return read_word(self.native, attribute, since=since, before=before)


_GROUPED = {
    **dict.fromkeys(("TRIP_LIMIT", "RECURRENCE", "ITERATOR", "LOOP_OUTPUT"), "loop"),
    **dict.fromkeys(("CONDITION", "CONDITIONAL_INPUT", "CONDITIONAL_OUTPUT"), "conditional"),
}


class Network:
    """All layers in the order of the parser, and the network's inputs and outputs."""

    def __init__(self, trt: Any, network: Any) -> None:
        self._trt = trt
        self._tensors: dict[int, Tensor] = {}
        self._groups: dict[int, tuple[str, Any]] = {}
        self.inputs = [self._tensor(network.get_input(number)) for number in range(network.num_inputs)]
        raw = [network.get_layer(number) for number in range(network.num_layers)]
        labels = [""] * len(raw)
        label = ""
        for number in reversed(range(len(raw))):  # a layer without a stamp belongs to the next stamped layer
            labels[number] = label = stamp_of(raw[number]) or label
        self.layers = [self._layer(number, layer, labels[number]) for number, layer in enumerate(raw)]
        self.outputs = [self._tensor(network.get_output(number)) for number in range(network.num_outputs)]
        self.maker: dict[Tensor, Layer] = {t: layer for layer in self.layers for t in layer.outputs}
        self.users: dict[Tensor, list[Layer]] = defaultdict(list)
        for layer in self.layers:
            for tensor in layer.inputs:
                if tensor is not None:
                    self.users[tensor].append(layer)

    @property
    def kinds(self) -> tuple[tuple[str, int], ...]:
        """How many layers there are of each kind, by name."""
        return tuple(sorted(Counter(layer.kind for layer in self.layers).items()))

    def _tensor(self, native: Any) -> Tensor:
        key = id(native)
        if key not in self._tensors:
            name, shape = text_of(lambda: native.name), read_dims(native, "shape")
            self._tensors[key] = Tensor(name, native.dtype.name, shape, bool(native.is_network_input), native)
        return self._tensors[key]

    def _layer(self, number: int, native: Any, label: str) -> Layer:
        kind = native.type.name
        inputs = [native.get_input(place) for place in range(native.num_inputs)]
        outputs = [native.get_output(place) for place in range(native.num_outputs)]
        name = _CLASSES.get(kind) or "".join(word.capitalize() for word in kind.split("_"))
        own = getattr(self._trt, f"I{name}Layer", None)
        if own is not None:
            native.__class__ = own
        owner, group = _GROUPED.get(kind, ""), ""
        if owner:  # TensorRT's name is not unique: nodes of several graphs may share it
            around = getattr(native, owner)
            group, _ = self._groups.setdefault(id(around), (f"{owner} {len(self._groups)}", around))
        read = tuple(None if one is None else self._tensor(one) for one in inputs)
        written = tuple(self._tensor(one) for one in outputs if one is not None)
        return Layer(number, kind, text_of(lambda: native.name), label, read, written, native, group)
