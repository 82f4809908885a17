"""One fault in one copy of a model.

Everything here is a function of the model and of a ``Site``: the same site gives the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from diagnose import copies, places
from diagnose.copies import Graph, attribute, set_attribute
from diagnose.places import Kind, Planted, Site, padding, pairs
from onnxfix.files.walk import copied


def plant(model: ModelProto, site: Site, folder: Path | None = None) -> Planted | None:
    """The two models; None where the site changes nothing. ``model`` itself stays, ``folder`` has its external data."""
    copy = copied(model)
    graph = Graph(copy, folder)
    node = graph.nodes[site.node]
    output, op_type, name = node.output[0], node.op_type, node.name
    around: list[str] = []  # names of what else belongs to the change
    what = _PLANTERS[site.kind](graph, node, site, around)
    if not what or copy == model:
        return None
    where = f"{op_type} {name or output}"
    nodes = dict.fromkeys(one for one in (name, output, *around) if one)
    truth, other = (copy, model) if site.kind == "lost Cast" else (model, copy)
    outputs = tuple(dict.fromkeys((output, *around)))
    return Planted(truth, other, output, op_type, tuple(nodes), outputs, f"{where}: {what}")


def _plant_scaled(graph: Graph, node: NodeProto, site: Site, around: list[str]) -> str:
    name, array = node.input[site.operand], graph.array(node.input[site.operand])
    if array is None or not array.any():
        return ""
    with np.errstate(over="ignore"):
        scaled = (array.astype(np.float64) * places.FACTOR).astype(array.dtype)
    around += copies.replaced(graph, node, site.operand, scaled)
    return f"{name}{list(array.shape)} × {places.FACTOR}"


def _plant_element(graph: Graph, node: NodeProto, site: Site, around: list[str]) -> str:
    """The element is moved by the weight's largest magnitude, away from 0: as much as its largest element weighs."""
    name, array = node.input[site.operand], graph.array(node.input[site.operand])
    if array is None or not array.any():
        return ""
    moved = array.copy()
    at = random.Random(f"{site.choice}/{array.shape}").randrange(array.size)
    amount = float(np.abs(array.astype(np.float64)).max())
    before = moved.reshape(-1)[at]
    moved.reshape(-1)[at] = before + (-amount if before < 0 else amount)
    index = [int(one) for one in np.unravel_index(at, array.shape)]
    around += copies.replaced(graph, node, site.operand, moved)
    return f"{name}{index}: {before:.4g} → {moved.reshape(-1)[at]:.4g}"


def _plant_epsilon(graph: Graph, node: NodeProto, site: Site, around: list[str]) -> str:
    if node.op_type in places.NORMS:
        old = attribute(node, "epsilon")
        before = old.f if old is not None else places.NORMS[node.op_type]
        set_attribute(node, "epsilon", places.EPSILON)
        return f"epsilon {before:g} → {places.EPSILON:g}"
    array = graph.array(node.input[site.operand])
    around += copies.replaced(graph, node, site.operand, np.full_like(array, places.EPSILON))
    return f"epsilon {float(array.reshape(-1)[0]):g} → {places.EPSILON:g}"


def _plant_axis(graph: Graph, node: NodeProto, site: Site, around: list[str]) -> str:
    axis = attribute(node, "axis")
    if node.op_type in places.REDUCES:
        axes = attribute(node, "axes")
        if axes is not None:
            before: Any = list(axes.ints)
            after = [site.choice, *before[1:]]
            set_attribute(node, "axes", after)
        elif len(node.input) > 1 and node.input[1] in graph.stored:
            array = graph.array(node.input[1])
            if array is None or not array.size:
                return ""
            before, after = array.tolist(), [site.choice, *array.tolist()[1:]]
            around += copies.replaced(graph, node, 1, np.asarray(after, array.dtype).reshape(array.shape))
        else:
            return ""
        return f"axes {before} → {after}" if before != after else ""
    default = {"Softmax": -1, "LogSoftmax": -1, "LayerNormalization": -1, "Flatten": 1}.get(node.op_type, 0)
    before = axis.i if axis is not None else default
    set_attribute(node, "axis", site.choice)
    return f"axis {before} → {site.choice}" if before != site.choice else ""


def _plant_perm(graph: Graph, node: NodeProto, site: Site, around: list[str]) -> str:
    perm = attribute(node, "perm")
    if perm is None:
        return ""
    before = list(perm.ints)
    a, b = pairs(len(before))[site.choice]
    after = list(before)
    after[a], after[b] = before[b], before[a]
    set_attribute(node, "perm", after)
    return f"perm {before} → {after}"


def _plant_pads(graph: Graph, node: NodeProto, site: Site, around: list[str]) -> str:
    before = padding(graph, node)
    after = list(before)
    after[site.choice] += 1
    after[site.choice + len(before) // 2] -= 1
    if node.op_type in places.PADDED:
        set_attribute(node, "pads", after)
    else:
        around += copies.replaced(graph, node, 1, np.asarray(after, np.int64))
    return f"pads {before} → {after}"


def _plant_cast(graph: Graph, node: NodeProto, site: Site, around: list[str]) -> str:
    through = (TensorProto.FLOAT16, TensorProto.INT64)[site.choice]
    around.append(copies.named(node.output[0], "exact"))
    around.append(copies.named(node.output[0], "through"))
    # What reads the Casts reads something else without them: with other names nobody can say which of the two it is.
    around += [one.output[0] for one in graph.readers.get(node.output[0], ())]
    copies.cast_pair(graph, node, through, TensorProto.FLOAT)
    return f"the Casts to {TensorProto.DataType.Name(through).lower()} and back after it are lost"


def _plant_mask(graph: Graph, node: NodeProto, site: Site, around: list[str]) -> str:
    array = graph.array(node.input[site.operand])
    low = float(array.min())
    masked = np.where(array < 3 * places.MASK, array.dtype.type(places.MASK), array)
    around += copies.replaced(graph, node, site.operand, masked)
    return f"mask value {low:g} → {places.MASK:g}"


def _plant_bias(graph: Graph, node: NodeProto, site: Site, around: list[str]) -> str:
    array = graph.array(node.input[site.operand])
    if array is None or not array.any():
        return ""
    if node.op_type == "Add":
        around += copies.replaced(graph, node, site.operand, np.zeros_like(array))
        return f"bias {node.input[site.operand]}{list(array.shape)} is 0"
    lost = node.input.pop(site.operand)
    return f"bias {lost}{list(array.shape)} is gone"


def _plant_half(graph: Graph, node: NodeProto, site: Site, around: list[str]) -> str:
    around.append(copies.named(node.output[0], "half"))
    around.append(copies.named(node.output[0], "through"))
    operands = [one for one in places.HALF[node.op_type] if one < len(node.input)]
    copies.half_around(graph, node, operands, rounds=bool(site.choice))
    return "reads and writes float16" if site.choice else "computes in float16"


def _plant_count(graph: Graph, node: NodeProto, site: Site, around: list[str]) -> str:
    array = graph.array(node.input[site.operand])
    if array is None or not array.size:
        return ""
    changed = array.copy()
    flat = changed.reshape(-1)
    at = site.choice // 2 % array.size
    if node.op_type == "Reshape":  # another number of elements would not run
        flat[at], flat[at - 1] = flat[at - 1], flat[at]
    elif abs(int(flat[at])) <= places.OPEN:
        flat[at] += -1 if site.choice % 2 else 1
    if (changed == array).all():
        return ""
    around += copies.replaced(graph, node, site.operand, changed)
    return f"input {site.operand}: {array.tolist()} → {changed.tolist()}"


def _plant_operands(graph: Graph, node: NodeProto, site: Site, around: list[str]) -> str:
    a, b = places.SWAPPED[node.op_type]
    node.input[a], node.input[b] = node.input[b], node.input[a]
    return f"inputs {a} and {b} swapped"


def _plant_operator(graph: Graph, node: NodeProto, site: Site, around: list[str]) -> str:
    if node.op_type == "Gelu":
        old = attribute(node, "approximate")
        before = old.s.decode() if old is not None else "none"
        after = "none" if before == "tanh" else "tanh"
        set_attribute(node, "approximate", after)
        return f"approximate {before} → {after}"
    before, node.op_type = node.op_type, places.INSTEAD[node.op_type]
    return f"{before} → {node.op_type}"


_PLANTERS: dict[Kind, Callable[[Graph, NodeProto, Site, list[str]], str]] = {
    "weight scaled": _plant_scaled,
    "weight element": _plant_element,
    "epsilon": _plant_epsilon,
    "axis": _plant_axis,
    "perm": _plant_perm,
    "pads": _plant_pads,
    "lost Cast": _plant_cast,
    "mask value": _plant_mask,
    "lost bias": _plant_bias,
    "half precision": _plant_half,
    "shape constant": _plant_count,
    "operands": _plant_operands,
    "operator": _plant_operator,
}
