"""Why a network computes something else than ONNX expects: what TensorRT reads instead, confirmed on each model.

A cause says which other ONNX model TensorRT's network is: an edit of the model at hand. It is confirmed where the
edited model, run by ONNX Runtime or onnx.reference, gives what the network gives. A name alone confirms nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from acceptance.cases import NodeCase, half_type
from acceptance.judging import misses
from acceptance.running import BACKENDS, outputs_of
from onnx import ModelProto, NodeProto

from network.reading import Reading
from onnxfix.sandbox import Worker
from onnxfix.verification.compare.compare import compare
from onnxfix.verification.compare.twin import widened

Edit = Callable[[ModelProto], bool]
#: The key of what is no difference of the networks but of who runs them.
ROUNDING = "rounding"


@dataclass(frozen=True)
class Seen:
    """All that there is to look at: the case with its data, its model, what the network gave, and who runs models.

    ``lifted`` is the network as a model, ``folder`` a place for files.
    """

    case: NodeCase
    model: ModelProto
    lifted: ModelProto
    reading: Reading
    runner: Worker
    folder: Path


@dataclass(frozen=True)
class Cause:
    """``key`` is an entry of the catalogue of hazards or a rule's code, ``title`` what ONNX means and what TensorRT
    reads, ``layer`` the layer that shows it, with its parameters.

    ``edits`` make the model at hand into what TensorRT reads; they return False where there is nothing to change. The
    first whose outputs are the network's confirms the cause; it is named by what it changes. ``witness`` sees the cause
    in something else, and says what; None for nothing.
    """

    key: str
    title: str
    layer: str
    edits: Mapping[str, Edit] = field(default_factory=dict)
    witness: Callable[[Seen], str | None] = lambda _: None


# ------------------------------------------------------------------------------------------------------ edits


def nodes(model: ModelProto, *operators: str) -> Iterator[NodeProto]:
    """The model's nodes of these operators."""
    return (node for node in model.graph.node if node.op_type in operators)


def without(operators: str, *attributes: str) -> Edit:
    """Drop attributes."""

    def edit(model: ModelProto) -> bool:
        found = False
        for node in nodes(model, *operators.split()):
            for one in [one for one in node.attribute if one.name in attributes]:
                node.attribute.remove(one)
                found = True
        return found

    return edit


def having(operators: str, **values: Any) -> Edit:
    """Set attributes, where they are not so already."""

    def edit(model: ModelProto) -> bool:
        found = False
        for node in nodes(model, *operators.split()):
            for name, value in values.items():
                fresh = onnx.helper.make_attribute(name, value)
                old = [one for one in node.attribute if one.name == name]
                found |= old != [fresh]
                for one in old:
                    node.attribute.remove(one)
                node.attribute.append(fresh)
        return found

    return edit


def without_input(operator: str, place: int) -> Edit:
    """Leave an optional input out."""

    def edit(model: ModelProto) -> bool:
        found = False
        for node in nodes(model, operator):
            if len(node.input) > place and node.input[place]:
                node.input[place] = ""
                found = True
        return found

    return edit


def declared(operators: str, **values: Any) -> Callable[[Seen], str | None]:
    """TensorRT itself says of an output that it has another shape than ONNX expects; the model is one node of these
    operators, with these attributes."""

    def witness(seen: Seen) -> str | None:
        graph = seen.model.graph
        if len(graph.node) != 1 or graph.node[0].op_type not in operators.split():
            return None
        have = {one.name: onnx.helper.get_attribute_value(one) for one in graph.node[0].attribute}
        if any(have.get(name) != value for name, value in values.items()):
            return None
        for tensor, value in zip(seen.reading.lifted.outputs, seen.case.expected[0], strict=False):
            if -1 not in tensor.dims and tensor.dims != value.shape:
                return f"{tensor.name} is {list(tensor.dims)} in the network, {list(value.shape)} in ONNX"
        return None

    return witness


#: How much more the twins may differ than float32's rounding makes them.
_TWINS = 1e-5


def rounded(seen: Seen) -> str | None:
    """Both models hold half-precision tensors, and with float32 for these they agree, which they do not but for the
    place of a rounding. Outputs are within that type's tolerance of ONNX's as they are."""
    half = half_type(seen.model)
    if not half or any(one.kind != "values" for _, one in seen.reading.misses):
        return None
    pairs = zip(seen.case.expected, seen.reading.outputs, strict=True)
    if any(
        compare("", a, b, exact=False)[0].agreement == "different"
        for one, other in pairs
        for a, b in zip(one, other, strict=True)
    ):
        return None
    results = []
    for name, model in (("original", seen.model), ("network", seen.lifted)):
        twin, path = ModelProto(), seen.folder / f"{name}.twin.onnx"
        twin.CopyFrom(model)
        onnx.save(widened(twin, onnx.TensorProto.FLOAT), path)
        feeds = [{key: _wide(value) for key, value in feed.items()} for feed in seen.case.feeds]
        ran = outputs_of(seen.runner, "ort-cpu", path, feeds)
        if not ran.ok:
            return None
        results.append(ran.value)
    if any(misses(a, b, _TWINS, _TWINS) for a, b in zip(*results, strict=True)):
        return None
    return (
        f"{seen.reading.reason}; with float32 for every {half} tensor the two models agree within {_TWINS:g}"
    )


def _wide(value: Any) -> Any:
    return value.astype(np.float32) if value.dtype.name in ("float16", "bfloat16") else value


CAUSES: tuple[Cause, ...] = (
    Cause(
        "hazard 1",
        "`Trilu` without `upper` keeps the upper triangle; TensorRT keeps the lower one",
        "SELECT takes the input where ELEMENTWISE layers find row ≥ column − k",
        {"upper=0": having("Trilu", upper=0)},
    ),
    Cause(
        "hazard 2",
        "`layout=1` says that the batch comes first; TensorRT ignores it",
        "axis 0 of the ITERATOR, and a TRIP_LIMIT that is dimension 0 of X",
        {"layout=0": without("LSTM GRU RNN", "layout")},
    ),
    Cause(
        "hazard 3",
        "`mode=CRD` of `SpaceToDepth`; TensorRT reads DCR",
        "SHUFFLE with second transposition (0, 3, 5, 1, 2, 4); CRD is (0, 1, 3, 5, 2, 4)",
        {"mode=DCR": without("SpaceToDepth", "mode")},
    ),
    Cause(
        "hazard 6",
        "`nonpad_kv_seqlen` of `Attention` masks keys; TensorRT ignores it",
        "no layer reads the network's input of that name",
        {"no nonpad_kv_seqlen": without_input("Attention", 6)},
    ),
    Cause(
        "hazard 14",
        "with `ceil_mode=1` a last window that would start in the padding is left out; TensorRT keeps it",
        "`padding_mode` of the POOLING layer is EXPLICIT_ROUND_UP",
        witness=declared("AveragePool LpPool MaxPool", ceil_mode=1),
    ),
    Cause(
        ROUNDING,
        "ONNX Runtime has few kernels for the type: the lifted model computes such layers in float32 and rounds once, "
        "ONNX's expected values were rounded at each step",
        "–",
        witness=rounded,
    ),
)


def cause_of(seen: Seen, among: Sequence[Cause] = CAUSES) -> tuple[str, str]:
    """The key of the first cause that is confirmed, and what confirms it; two empty texts for none."""
    for cause in among:
        for name, edit in cause.edits.items():
            model = ModelProto()
            model.CopyFrom(seen.model)
            if edit(model) and (backend := _same(seen, model)):
                return (
                    cause.key,
                    f"{seen.reading.reason}; ONNX's model with {name} gives the same ({backend})",
                )
        if (shown := cause.witness(seen)) is not None:
            return cause.key, shown
    return "", ""


def _same(seen: Seen, model: ModelProto) -> str:
    """The backend on which the edited model gives what the network gives, "" for none."""
    path = seen.folder / "edited.onnx"
    onnx.save(model, path)
    names = {one.name for one in model.graph.input}
    feeds = [{key: value for key, value in feed.items() if key in names} for feed in seen.case.feeds]
    for backend in BACKENDS:
        ran = outputs_of(seen.runner, backend, path, feeds)
        if ran.ok and not any(
            misses(a, b, seen.case.rtol, seen.case.atol)
            for a, b in zip(ran.value, seen.reading.outputs, strict=True)
        ):
            return backend
    return ""
