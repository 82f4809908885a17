"""Each change of each node of a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, defs, helper, numpy_helper

from misimports import alter
from onnxfix.files import walk
from onnxfix.files.walk import copied

#: The largest input of integers or booleans that gets other values.
SMALL = 8


@dataclass(frozen=True)
class Change:
    """What was changed: ``operator`` and ``name`` of the attribute or input, its new ``value``; ``node`` counts the
    nodes as ``nodes`` yields them, -1 where the whole model was changed."""

    kind: str
    operator: str = ""
    name: str = ""
    value: str = ""
    node: int = -1

    def __str__(self) -> str:
        """In few words: ``upper dropped``, ``axis=-1``."""
        if not self.name:
            return self.kind
        return f"{self.name}={self.value}" if self.value else f"{self.name} {self.kind}"


@dataclass(frozen=True)
class Variant:
    """A model with its inputs. ``base`` says of what it is a change; "" for the model as it is."""

    case: str
    base: str
    change: Change
    model: ModelProto
    feed: Mapping[str, Any] = field(repr=False)

    @property
    def name(self) -> str:
        """Case, base and change."""
        return " / ".join(one for one in (self.case, self.base, str(self.change)) if one)


AS_IS = Change("as it is")
#: The kind of a change to a value of which ONNX does not say what it means.
UNDOCUMENTED = "undocumented value"


def tensor_of(array: Any, name: str, element: int) -> onnx.TensorProto:
    """A tensor of ONNX's type ``element``."""
    if array.dtype.kind in "US":
        return helper.make_tensor(
            name, element, array.shape, [str(one).encode() for one in array.reshape(-1)]
        )
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def retyped(model: ModelProto) -> ModelProto:
    """The model (changed in place) without what it declared of tensors inside and of the sizes of its outputs."""
    del model.graph.value_info[:]
    for info in model.graph.output:
        if info.type.HasField("tensor_type"):
            for dim in info.type.tensor_type.shape.dim:
                dim.Clear()
    return model


def changes(base: Variant, chosen: Collection[int] | None) -> Iterator[Variant]:
    """Each change of each attribute and of each input of the ``chosen`` nodes of ``base``."""
    opsets = {one.domain: one.version for one in base.model.opset_import}
    ranks = {info.name: len(info.type.tensor_type.shape.dim) for info in base.model.graph.input}
    ranks.update({tensor.name: len(tensor.dims) for tensor in base.model.graph.initializer})
    for number, node in enumerate(walk.nodes(base.model.graph.node)):
        if chosen is not None and number not in chosen:
            continue
        try:
            schema = defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
        except defs.SchemaError:
            schema = None
        rank = ranks.get(node.input[0], -1) if node.input else -1
        yield from _attributes(base, number, node, schema, rank)
        yield from _absent(base, number, node, schema, rank)
        if schema is not None:
            yield from _optional(base, number, node, schema)
        yield from _constant_values(base, number, node, rank)


def _attributes(
    base: Variant, number: int, node: NodeProto, schema: defs.OpSchema | None, rank: int
) -> Iterator[Variant]:
    for place, one in enumerate(node.attribute):
        if node.op_type == "Constant":
            continue
        yield _edited(base, number, Change("dropped", node.op_type, one.name, "", number), _drop(place))
        for value in alter.others(node.op_type, one.name, alter.value_of(one), rank):
            new = alter.attribute(schema, one.name, value, one)
            kind = (
                "altered"
                if alter.documented(
                    node.op_type, one.name, value, schema.since_version if schema is not None else 0
                )
                else UNDOCUMENTED
            )
            change = Change(kind, node.op_type, one.name, alter.shown(value), number)
            yield _edited(base, number, change, _put(new, place))


def _absent(
    base: Variant, number: int, node: NodeProto, schema: defs.OpSchema | None, rank: int
) -> Iterator[Variant]:
    if schema is None or node.op_type == "Constant":
        return
    sizes = []
    if node.output and base.model.graph.output and node.output[0] == base.model.graph.output[0].name:
        shape = base.model.graph.output[0].type.tensor_type.shape
        sizes = [dim.dim_value for dim in shape.dim]
    written = {one.name for one in node.attribute}
    for name in schema.attributes:
        if name in written:
            continue
        default, values = alter.absent(schema, name, rank, sizes)
        for value in ([default] if default is not None else []) + values:
            kind = "default written" if value is default else "altered"
            kind = kind if alter.documented(node.op_type, name, value, schema.since_version) else UNDOCUMENTED
            try:
                new = alter.attribute(schema, name, value, None)
            except (TypeError, ValueError):
                continue
            change = Change(kind, node.op_type, name, alter.shown(value), number)
            yield _edited(base, number, change, _put(new, None))


def _optional(base: Variant, number: int, node: NodeProto, schema: defs.OpSchema) -> Iterator[Variant]:
    """Without one of its optional inputs; where nothing else reads it, the model's input goes too."""
    for place, name in enumerate(node.input):
        formal = schema.inputs[min(place, len(schema.inputs) - 1)]
        if not name or formal.option == defs.OpSchema.FormalParameterOption.Single:
            continue
        change = Change("left out", node.op_type, f"input {formal.name}", "", number)
        made = _edited(base, number, change, _leave_out(place))
        read = {one for node in walk.nodes(made.model.graph.node) for one in node.input}
        if name not in read and any(info.name == name for info in made.model.graph.input):
            kept = [info for info in made.model.graph.input if info.name != name]
            del made.model.graph.input[:]
            made.model.graph.input.extend(kept)
            made = replace(made, feed={key: value for key, value in made.feed.items() if key != name})
        yield made


def _constant_values(base: Variant, number: int, node: NodeProto, rank: int) -> Iterator[Variant]:
    """Other values of small constants of integers, which were attributes in earlier opsets, and of float scalars."""
    stored = {tensor.name: tensor for tensor in base.model.graph.initializer}
    for place, name in enumerate(node.input):
        tensor = stored.get(name)
        if place == 0 or tensor is None or len(tensor.dims) > 1 or not 0 < _count(tensor) <= SMALL:
            continue
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind not in "if":
            continue
        formal = name if name in alter.AXES else "axis" if not tensor.dims and "axis" in name else name
        for value in alter.others(node.op_type, formal, array.tolist(), rank):
            new = np.asarray(value).astype(array.dtype)
            kind = "altered" if alter.documented(node.op_type, f"input {name}", value) else UNDOCUMENTED
            change = Change(kind, node.op_type, f"input {name}", alter.shown(value), number)
            model = copied(base.model)
            for one in model.graph.initializer:
                if one.name == name:
                    one.CopyFrom(tensor_of(new, name, tensor.data_type))
            yield Variant(base.case, base.base, change, retyped(model), base.feed)


def _count(tensor: onnx.TensorProto) -> int:
    return int(np.prod(list(tensor.dims), dtype=np.int64))


def _edited(base: Variant, number: int, change: Change, edit: Callable[[NodeProto], None]) -> Variant:
    model = copied(base.model)
    for place, node in enumerate(walk.nodes(model.graph.node)):
        if place == number:
            edit(node)
            break
    return Variant(base.case, base.base, change, retyped(model), base.feed)


def _drop(place: int) -> Callable[[NodeProto], None]:
    def edit(node: NodeProto) -> None:
        del node.attribute[place]

    return edit


def _put(new: onnx.AttributeProto, place: int | None) -> Callable[[NodeProto], None]:
    def edit(node: NodeProto) -> None:
        if place is None:
            node.attribute.append(new)
        else:
            node.attribute[place].CopyFrom(new)

    return edit


def _leave_out(place: int) -> Callable[[NodeProto], None]:
    def edit(node: NodeProto) -> None:
        node.input[place] = ""
        while node.input and not node.input[-1]:
            node.input.pop()

    return edit
