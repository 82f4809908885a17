"""A network as TensorRT's parser left it: layers of their own class, and distinct tensors.

``layer.type`` is read before a layer is cast to its class: activation and pooling layers have a property of that name.
Two Python wrappers of one tensor, or loop, are the same object only while one of them is alive, so all are kept.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from onnxfix.tensorrt.log import text_of
from onnxfix.tensorrt.places import stamp_of

#: Kinds whose class has another name.
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
    is None where TensorRT does not know the rank."""

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
    """Dimensions that a property of TensorRT's holds; None where it is not set, or this package has no such property.

    The one place where such a property is read, since the packages say "not set" in three ways: None (TensorRT-RTX 1.6
    and later), a Dims of length -1, of which ``len`` and ``tuple`` raise ValueError (1.4 and 1.5), and a RuntimeError
    of the property itself ("Could not get block_shape.", 1.6 and later).
    """
    try:
        dims = getattr(native, attribute, None)
        # ``tuple`` asks for no length on Python 3.14.
        return None if dims is None or len(dims) < 0 else tuple(dims)
    except (ValueError, RuntimeError):
        return None


def read_word(native: Any, attribute: str, *, since: str = "", before: str = "") -> str:
    """The name of an enumeration's value, from a property of TensorRT's.

    ``before`` is what holds in a package that does not have the enumeration ``since`` yet, and so neither the property
    nor anything else that it could say.
    """
    if since and not hasattr(native, attribute) and not hasattr(sys.modules[type(native).__module__], since):
        return before
    return str(getattr(native, attribute).name)


class Unliftable(Exception):
    """A layer, or a form of it, cannot be read back: ``str`` is the reason, in one line."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer. ``kind`` is TensorRT's LayerType by name; ``native`` is of the layer's own class, whose properties can
    be read; an input is None where it is left out. ``label`` is what the parser calls the ONNX node that it came
    from; ``group`` the loop or conditional that a boundary layer belongs to, "" for others."""

    number: int
    kind: str
    name: str
    label: str
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    native: Any
    group: str = ""

    def input(self, place: int) -> Tensor | None:
        """One input; None where it is left out or beyond the last."""
        return self.inputs[place] if place < len(self.inputs) else None

    def need(self, place: int) -> Tensor:
        """One input that this kind of layer cannot do without.

        Raises:
            Unliftable: it is left out.
        """
        found = self.input(place)
        if found is None:
            raise Unliftable(f"input {place} is left out")
        return found

    def dims(self, attribute: str) -> tuple[int, ...] | None:
        """Dimensions that a property of the layer holds; None where it is not set."""
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
        for number in reversed(range(len(raw))):  # a layer without a stamp serves the next one that has one
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
        if owner:  # its own name will not do: nodes of several graphs share one
            around = getattr(native, owner)
            group, _ = self._groups.setdefault(id(around), (f"{owner} {len(self._groups)}", around))
        read = tuple(None if one is None else self._tensor(one) for one in inputs)
        written = tuple(self._tensor(one) for one in outputs if one is not None)
        return Layer(number, kind, text_of(lambda: native.name), label, read, written, native, group)
