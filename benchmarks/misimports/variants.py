"""Every small change of a node model, one at a time, as a model with inputs that fit the change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from misimports import alter
from misimports.changes import (
    AS_IS,
    SMALL,
    UNDOCUMENTED,
    Change,
    Variant,
    changes,
    retyped,
    tensor_of,
)
from onnxfix.files import walk
from onnxfix.files.walk import copied
from onnxfix.proof.compare.twin import raised, widened

Array = np.ndarray[Any, Any]
Arrays = list[Array | None]
Values = dict[str, Any]
#: Attributes before and after the change, the arrays of the inputs -> other arrays, by place.
Fit = Callable[[Values, Values, Arrays], dict[int, Array]]


def fitted(variant: Variant, before: NodeProto) -> Variant:
    """The variant with inputs that go with its change; ``before`` is the node without it. The variant itself where
    nothing is known of the operator, or an input comes from another node."""
    fit = _FITS.get(before.op_type)
    if fit is None or variant.change.node < 0:
        return variant
    node = list(walk.nodes(variant.model.graph.node))[variant.change.node]
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in variant.model.graph.initializer}
    known = {**stored, **variant.feed}
    arrays = [known.get(name) if name else None for name in node.input]
    attributes = [{one.name: alter.value_of(one) for one in each.attribute} for each in (before, node)]
    try:
        changed = fit(attributes[0], attributes[1], arrays)
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return variant  # the change makes no sense here, and ONNX says so
    feed = dict(variant.feed)
    for place, array in changed.items():
        name, old = node.input[place], arrays[place]
        if old is None or (array.shape == old.shape and np.array_equal(array, old)):
            continue
        array = array.astype(old.dtype)
        if name in feed:
            feed[name] = array
        _declare(variant, name, array)
    return replace(variant, feed=feed)


def _need(arrays: Arrays, place: int) -> Array:
    found = arrays[place]
    if found is None:
        raise ValueError("it comes from another node, or is left out")
    return found


def _declare(variant: Variant, name: str, array: Array) -> None:
    for tensor in variant.model.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(tensor_of(array, name, tensor.data_type))
    for info in variant.model.graph.input:
        if info.name == name:
            shape = info.type.tensor_type.shape
            symbols = [dim.dim_param for dim in shape.dim]
            del shape.dim[:]
            for axis, size in enumerate(array.shape):
                symbol = symbols[axis] if axis < len(symbols) else ""
                shape.dim.add(**({"dim_param": symbol} if symbol else {"dim_value": size}))


def _recurrence(before: Values, after: Values, arrays: Arrays) -> dict[int, Array]:
    counts = [2 if one.get("direction") == "bidirectional" else 1 for one in (before, after)]
    layouts = [int(one.get("layout", 0)) for one in (before, after)]
    found: dict[int, Array] = {}
    for place, array in enumerate(arrays):
        if array is None or place == 4:
            continue
        axis = layouts[0] if place in (5, 6) else 0
        if place and counts[0] != counts[1]:
            array = (
                np.concatenate([array, array[..., ::-1]], axis) if counts[1] == 2 else array.take([0], axis)
            )
        if place in (0, 5, 6) and layouts[0] != layouts[1]:
            array = array.swapaxes(0, 1)
        found[place] = array
    return found


def _convolution(before: Values, after: Values, arrays: Arrays) -> dict[int, Array]:
    data, weights = _need(arrays, 0), _need(arrays, 1)
    groups = int(after.get("group", 1))
    kernel = tuple(after.get("kernel_shape", weights.shape[2:]))
    maps = -(-weights.shape[0] // groups) * groups
    shape = (maps, data.shape[1] // groups, *kernel)
    found = {1: np.resize(weights, shape)}
    if len(arrays) > 2 and arrays[2] is not None:
        found[2] = np.resize(arrays[2], (maps,))
    return found


def _deconvolution(before: Values, after: Values, arrays: Arrays) -> dict[int, Array]:
    weights = _need(arrays, 1)
    found = {1: np.resize(weights, (*weights.shape[:2], *after.get("kernel_shape", weights.shape[2:])))}
    if len(arrays) > 2 and arrays[2] is not None:
        found[2] = np.resize(arrays[2], (weights.shape[1] * int(after.get("group", 1)),))
    return found


def _norm(before: Values, after: Values, arrays: Arrays) -> dict[int, Array]:
    data, axis = _need(arrays, 0), int(after.get("axis", -1))
    shape = data.shape[axis:]
    return {place: np.resize(one, shape) for place, one in enumerate(arrays) if place and one is not None}


def _gemm(before: Values, after: Values, arrays: Arrays) -> dict[int, Array]:
    found = {}
    for place, name in enumerate(("transA", "transB")):
        array = arrays[place]
        if array is not None and bool(before.get(name, 0)) != bool(after.get(name, 0)):
            found[place] = array.T
    return found


def _scales(before: Values, after: Values, arrays: Arrays) -> dict[int, Array]:
    data, axis, block = _need(arrays, 0), int(after.get("axis", 1)), int(after.get("block_size", 0))
    found = {}
    for place in (1, 2):
        array = arrays[place] if place < len(arrays) else None
        if array is not None and array.ndim:
            shape = list(data.shape)
            shape[axis] = -(-shape[axis] // block) if block else shape[axis]
            found[place] = np.resize(array, shape if block else (shape[axis],))
    return found


def _indices(before: Values, after: Values, arrays: Arrays) -> dict[int, Array]:
    data, indices = _need(arrays, 0), _need(arrays, 1)
    size = data.shape[int(after.get("axis", 0))]
    return {1: np.where(indices < 0, -(-indices % size) or 0, indices % size)} if size else {}


def _lengths(before: Values, after: Values, arrays: Arrays) -> dict[int, Array]:
    data, lengths = _need(arrays, 0), _need(arrays, 1)
    size = data.shape[int(after.get("time_axis", 0))]
    return {1: np.resize(np.minimum(lengths, size), (data.shape[int(after.get("batch_axis", 1))],))}


def _blocks(before: Values, after: Values, arrays: Arrays) -> dict[int, Array]:
    data, size = _need(arrays, 0), int(after["blocksize"])
    shape = (data.shape[0], 2 * size * size, 2 * size, 3 * size)
    return {0: np.resize(np.arange(np.prod(shape)), shape)}


_FITS: dict[str, Fit] = {
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrence),
    "Conv": _convolution,
    "ConvTranspose": _deconvolution,
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _norm),
    "Gemm": _gemm,
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _scales),
    **dict.fromkeys(("Gather", "GatherElements", "ScatterElements", "Scatter"), _indices),
    "ReverseSequence": _lengths,
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks),
}


def variants(
    case: str, model: ModelProto, feed: Mapping[str, Any], chosen: Collection[int] | None = None
) -> Iterator[Variant]:
    """The model as it is, its other forms, and the changes of each. ``chosen`` are the nodes to change (all)."""
    plain = Variant(case, "", AS_IS, model, feed)
    bases = [plain, *_bases(plain)]
    yield from bases
    yield from _types(bases)
    yield from _single_inputs(plain)
    yield from _other_inputs(plain)
    for base in bases:
        if base.change.kind.startswith("batch"):
            continue  # what is read differently with one symbol is with all, as a rule: changes would only repeat it
        yield from changes(replace(base, base="" if base is plain else str(base.change)), chosen)


def new_nodes(model: ModelProto, seen: set[tuple[str, ...]]) -> list[int]:
    """The nodes whose like is not in ``seen``, by operator, number of inputs and attributes; they are added to it."""
    found = []
    for number, node in enumerate(walk.nodes(model.graph.node)):
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


def _types(bases: list[Variant]) -> Iterator[Variant]:
    """The model, and it with its inputs as constants, with another floating-point type in the place of float32."""
    for base in (one for one in bases if one.change.kind in (AS_IS.kind, "constants")):
        for kind in (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE):
            model = retyped(widened(copied(base.model), kind, (TensorProto.FLOAT,)))
            with np.errstate(all="ignore"):
                feed = raised(base.feed, kind, ("float32",))
            words = ["constants"] if base.change.kind == "constants" else []
            name = ", ".join([TensorProto.DataType.Name(kind).lower(), *words])
            yield Variant(base.case, "", Change(name), model, feed)


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
