"""Every small change of a node model, one at a time, as a model with inputs of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

from misimports import alter
from misimports.changes import changes
from misimports.models import AS_IS, SMALL, UNDOCUMENTED, Change, Variant, copied, nodes, retyped, tensor_of


def variants(
    case: str, model: ModelProto, feed: Mapping[str, Any], chosen: Collection[int] | None = None
) -> Iterator[Variant]:
    """The model as it is, its other forms, and the changes of each. ``chosen`` are the nodes to change (all)."""
    plain = Variant(case, "", AS_IS, model, feed)
    bases = [plain, *_bases(plain)]
    yield from bases
    yield from _single_inputs(plain)
    yield from _other_inputs(plain)
    for base in bases:
        if base.change.kind.startswith("batch"):
            continue  # what is read differently with one symbol is with all, as a rule: changes would only repeat it
        yield from changes(replace(base, base="" if base is plain else str(base.change)), chosen)


def new_nodes(model: ModelProto, seen: set[tuple[str, ...]]) -> list[int]:
    """The nodes whose like is not in ``seen``, by operator, number of inputs and attributes; they are added to it."""
    found = []
    for number, node in enumerate(nodes(model.graph)):
        written = sorted(f"{one.name}={alter.shown(alter.value_of(one))}" for one in node.attribute)
        key = (node.domain, node.op_type, "".join("01"[bool(one)] for one in node.input), *written)
        if key not in seen:
            seen.add(key)
            found.append(number)
    return found


def _bases(plain: Variant) -> Iterator[Variant]:
    """Other forms of the whole model: inputs as constants, dimensions as symbols."""
    names = [info.name for info in plain.model.graph.input]
    constant = _constants(plain, names[1:], "constants") if len(names) > 1 else None
    if constant is not None:
        yield constant
    for one in (plain, constant):
        if one is None:
            continue
        more = ", constants" if one is constant else ""
        for words, which in (("dynamic", None), ("batch dynamic", 0)):
            made = _dynamic(one, [info.name for info in one.model.graph.input], which, words + more)
            if made is not None:
                yield made


def _single_inputs(plain: Variant) -> Iterator[Variant]:
    """Each input alone: as a constant, with dynamic dimensions; each constant as an input."""
    names = [info.name for info in plain.model.graph.input]
    for name in names if len(names) > 1 else ():
        for made in (_constants(plain, [name], "constant"), _dynamic(plain, [name], None, "dynamic")):
            if made is not None:
                yield replace(
                    made, change=replace(made.change, kind="input", name=name, value=made.change.kind)
                )
    for tensor in plain.model.graph.initializer:
        if tensor.name not in names:
            yield _at_run_time(plain, tensor)
    for node in plain.model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            yield _at_run_time(plain, node.attribute[0].t, node.output[0])


def _other_inputs(plain: Variant) -> Iterator[Variant]:
    """Other values of small inputs of integers and booleans, such as shapes, axes and conditions."""
    for info in plain.model.graph.input:
        array = plain.feed.get(info.name)
        if not isinstance(array, np.ndarray) or array.ndim > 1 or not 0 < array.size <= SMALL:
            continue
        if array.dtype.kind not in "biu":
            continue
        values = [np.asarray(np.logical_not(array))] if array.dtype.kind == "b" else []
        values += (
            [np.asarray(one) for one in alter.others("", info.name, array.tolist(), -1)] if not values else []
        )
        operators = [node.op_type for node in plain.model.graph.node]
        for value in values:
            if value.shape == array.shape and (array.dtype.kind != "u" or (value >= 0).all()):
                name, told = f"value of {info.name}", value.tolist()
                clear = len(operators) > 1 or alter.documented(operators[0], name, told)
                change = Change("altered" if clear else UNDOCUMENTED, name=name, value=alter.shown(told))
                feed = {**plain.feed, info.name: value.astype(array.dtype)}
                yield Variant(plain.case, "", change, retyped(copied(plain.model)), feed)


def _constants(base: Variant, names: list[str], words: str) -> Variant | None:
    """The inputs of these names as initializers."""
    chosen = [
        one
        for one in names
        if isinstance(base.feed.get(one), np.ndarray) and base.feed[one].dtype.kind != "O"
    ]
    if not chosen:
        return None
    model = copied(base.model)
    kept = [info for info in model.graph.input if info.name not in chosen]
    types = {info.name: info.type.tensor_type.elem_type for info in model.graph.input}
    del model.graph.input[:]
    model.graph.input.extend(kept)
    for name in chosen:
        model.graph.initializer.append(tensor_of(base.feed[name], name, types[name]))
    feed = {name: value for name, value in base.feed.items() if name not in chosen}
    return Variant(base.case, base.base, Change(words), retyped(model), feed)


def _at_run_time(base: Variant, tensor: onnx.TensorProto, output: str = "") -> Variant:
    """A constant as an input; ``output`` is that of the Constant node."""
    model, name = copied(base.model), output or tensor.name
    kept = [one for one in model.graph.initializer if one.name != name]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    rest = [one for one in model.graph.node if name not in one.output]
    del model.graph.node[:]
    model.graph.node.extend(rest)
    model.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
    array = numpy_helper.to_array(tensor)
    change = Change("input", name=name, value="at run time")
    return Variant(base.case, base.base, change, retyped(model), {**base.feed, name: array})


def _dynamic(base: Variant, names: list[str], which: int | None, words: str) -> Variant | None:
    """The dimensions of these inputs (or the ``which``-th of each) as symbols, each of its own name."""
    model, changed = copied(base.model), False
    for info in model.graph.input:
        if info.name not in names or not info.type.HasField("tensor_type"):
            continue
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and which in (None, axis):
                dim.dim_param, changed = f"{info.name}_{axis}", True
    return Variant(base.case, base.base, Change(words), retyped(model), base.feed) if changed else None
