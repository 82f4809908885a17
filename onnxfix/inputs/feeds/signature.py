"""What a model takes: its inputs with types, dimensions and roles, and the symbols that its shapes depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx

from onnxfix.errors import ModelError
from onnxfix.files import loading, walk
from onnxfix.inputs.feeds import quantizers
from onnxfix.inputs.feeds.flow import HARMLESS, Dim, Flow, Role, dims_of
from onnxfix.inputs.sizes.demands import Limit, limits_of, within
from onnxfix.inputs.sizes.search import Search
from onnxfix.shapes import dimnames

Assignment = dict[str, int]
FLOATS = (
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
)
"""Types of inputs that hold fractions."""


@dataclass(frozen=True)
class Input:
    """A graph input. ``dims`` holds sizes and symbols (an unnamed dimension is ``input.axis``), None without a
    rank. ``kind`` is "tensor", "sequence", "optional", "map" or "sparse"; ``elem`` a TensorProto element type.
    ``default`` is the initializer of the same name: the model runs without this input."""

    name: str
    kind: str
    elem: int
    dims: tuple[int | str, ...] | None
    default: onnx.TensorProto | None
    inner: str = ""  # an optional's content: "tensor" or "sequence"


@dataclass(frozen=True)
class Signature:
    """The inputs of a model. Symbols come in the order in which they first appear. ``keep`` is what must live as long
    as the model: the file that holds its weights."""

    inputs: tuple[Input, ...]
    model: onnx.ModelProto = field(repr=False)
    keep: object = field(default=None, repr=False, compare=False)
    pinned: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Inputs that every feed gives this value (a specialization's)."""

    def __getitem__(self, name: str) -> Input:
        return next(one for one in self.inputs if one.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all inputs, those with a default included."""
        return tuple(one.name for one in self.inputs)

    @cached_property
    def roles(self) -> dict[str, Role]:
        """What each input is to the model, by name."""
        return {one.name: self._flow.role(one.name) for one in self.inputs}

    @cached_property
    def drawn(self) -> tuple[str, ...] | None:
        """The outputs whose values depend on a random operator; None when the model has none at all."""
        if not self._flow.draws:
            return None
        return tuple(out.name for out in self.model.graph.output if self._flow.depends_on_draw(out.name))

    @cached_property
    def quantizers(self) -> quantizers.Quantizers:
        """What the model quantizes, and values of its inputs that show where that saturates."""
        return quantizers.find(self._flow, {one.name: one.elem for one in self.inputs})

    @property
    def pins(self) -> tuple[tuple[str, bytes], ...]:
        """What tells the pinned values from others."""
        found = []
        for name, value in self.pinned.items():
            content = repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes()
            about = f"{value.dtype}{value.shape}".encode()
            found.append((name, hashlib.blake2b(about + content).digest()))
        return tuple(found)

    def draws_on(self, name: str) -> bool:
        """Whether the values of a tensor of the main graph depend on a random operator."""
        return self.drawn is not None and self._flow.depends_on_draw(name)

    @cached_property
    def search(self) -> Search:
        """Finds sizes of the symbols that the model takes."""
        return Search(self.model, given=self.pinned)

    @cached_property
    def limits(self) -> dict[str, list[Limit]]:
        """Inputs that become indices or lengths on ways that the graph shows in full, by name."""
        return limits_of(self.search.model)

    def within(self, name: str, assignment: Mapping[str, int]) -> tuple[float, float] | None:
        """The least and the greatest number that may be in an input, by its limits; None where there are none."""
        limits = self.limits.get(name)
        whole = self[name].elem not in FLOATS
        return within(limits, self.search.problem({}).sizes(assignment), whole) if limits else None

    @cached_property
    def _flow(self) -> Flow:
        return Flow(self.search.model)

    def may_override(self, one: Input) -> bool:
        """Whether feeding an input with a default makes sense: IR 4 and later, and no shape or axis depends on it."""
        role = self.roles[one.name]
        return (
            one.default is not None
            and self.model.ir_version >= 4
            and not (role.strict | role.loose) - HARMLESS
        )

    @cached_property
    def strings(self) -> list[str]:
        """Strings in the model's attributes and weights, some of each: its own vocabularies are the best test words."""
        attributes = (one for node in walk.model_nodes(self.model) for one in node.attribute)
        texts = [text for one in attributes for text in one.strings[:50]]
        texts += [text for tensor in walk.model_tensors(self.model) for text in tensor.string_data[:50]]
        return list(dict.fromkeys(text.decode("utf-8", "replace") for text in texts))

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The free symbols: plain names, and names that only expressions use. Without ``input.rank``."""
        found: dict[str, None] = {}
        for one in self.inputs:
            for dim in one.dims or ():
                if isinstance(dim, str):
                    found.update(dict.fromkeys(self.free(dim)))
        return tuple(found)

    @cached_property
    def _declared(self) -> frozenset[str]:
        dims = (dim for one in self.inputs for dim in one.dims or ())
        return frozenset(dim for dim in dims if isinstance(dim, str) and dimnames.names(dim) is None)

    def free(self, dim: str) -> tuple[str, ...]:
        """The symbols that a dimension is made of: itself, or those in its expression."""
        names = dimnames.names(dim)
        # "batch-size" is a name, "past + 1" and "past - length" are expressions when `past` is a dimension.
        return names if names and any(name in self._declared for name in names) else (dim,)

    def size(self, dim: Dim, assignment: Mapping[str, int]) -> int | None:
        """The size of a dimension under an assignment; None where it does not follow."""
        if dim is None or isinstance(dim, int):
            return dim
        return assignment[dim] if dim in assignment else dimnames.evaluate(dim, assignment)


def signature(model: onnx.ModelProto | Path | str) -> Signature:
    """Read the inputs of a model. Raises ModelError when a path does not hold one."""
    keep = None
    if not isinstance(model, onnx.ModelProto):
        try:
            keep = loading.open_model(Path(model))
        except ModelError as error:
            raise ModelError(f"{model} cannot be read as an ONNX model: {error}") from None
        model = keep.proto
    defaults = {tensor.name: tensor for tensor in model.graph.initializer}
    inputs = tuple(_input(value, defaults.get(value.name)) for value in model.graph.input)
    return Signature(inputs, model, keep)


def _input(value: onnx.ValueInfoProto, default: onnx.TensorProto | None) -> Input:
    kind, inner, tensor = value.type.WhichOneof("value") or "", "", value.type
    if kind == "optional_type":
        tensor = tensor.optional_type.elem_type
        inner = (tensor.WhichOneof("value") or "").removesuffix("_type")
    if tensor.HasField("sequence_type"):
        tensor = tensor.sequence_type.elem_type
    dims = dims_of(tensor)
    named = tuple(dim if dim is not None else f"{value.name}.{axis}" for axis, dim in enumerate(dims or ()))
    elem = tensor.tensor_type.elem_type if tensor.HasField("tensor_type") else 0
    short = kind.removesuffix("_type").replace("sparse_tensor", "sparse")
    return Input(value.name, short, elem, named if dims is not None else None, default, inner)
