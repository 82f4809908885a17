"""Choosing among overlapping boxes."""

from __future__ import annotations

import math

from onnx import helper

from onnxfix.trt.lift.emit import Emit
from onnxfix.trt.lift.kinds import lifts
from onnxfix.trt.lift.network import Layer, Tensor


@lifts("NMS")
def _boxes(e: Emit, layer: Layer) -> tuple[str, str]:
    """Rows of batch, class and box. Unlike ONNX's operator, TensorRT sorts the rows of a batch item by their scores
    across its classes (INMSLayer: "in order of decreasing score within each batchIndex"), drops boxes whose score is
    not above 0 where no threshold is given, and looks at no more than ``topk_box_limit`` scores of a batch item."""
    native, boxes, scores = layer.native, layer.need(0), layer.need(1)
    raw = _float(e, scores)
    limited = _limited(e, raw, scores, int(native.topk_box_limit))
    by_class = e.op("Transpose", limited, perm=[0, 2, 1])
    corners, classes = _float(e, boxes), ""
    if (
        boxes.rank == 4
    ):  # boxes of their own for each class: each pair of batch item and class as one batch item
        classes = e.op("Shape", raw, start=2)
        tail = e.op("Shape", corners, start=3)
        number = e.op("Shape", raw, start=1, end=2)
        corners = e.op("Transpose", corners, perm=[0, 2, 1, 3])
        corners = e.op("Reshape", corners, e.op("Concat", e.ints([-1]), number, tail, axis=0))
        by_class = e.op("Reshape", by_class, e.op("Concat", e.ints([-1, 1]), number, axis=0))
    found = e.op(
        "NonMaxSuppression",
        corners,
        by_class,
        e.cast(e.of(layer.need(2)), "INT64"),
        *(_threshold(e, layer.input(place)) for place in (3, 4)),
        center_point_box=int(layer.word("bounding_box_format") == "CENTER_SIZES"),
    )
    number = e.op("Shape", found, start=0, end=1)
    found = _sorted(e, found, e.op("GatherND", by_class, found), number, largest=1)
    if classes:
        pair, _, box = e.ops("Split", found, outputs=3, axis=1, num_outputs=3)
        halves = e.op("Div", pair, classes), e.op("Mod", pair, classes)
        found = e.op("Concat", *halves, box, axis=1)
    batch = e.op("Gather", found, e.const(0, "INT64"), axis=1)
    found = _sorted(e, found, batch, number, largest=0)
    rows, count = layer.outputs
    return e.cast(found, rows.dtype), e.cast(e.op("Reshape", number, e.ints([])), count.dtype)


def _threshold(e: Emit, tensor: Tensor | None) -> str:
    """A threshold, 0 where none is given: the documented default of both."""
    return e.scalar(0.0, "FLOAT") if tensor is None else _float(e, tensor)


def _sorted(e: Emit, rows: str, keys: str, number: str, *, largest: int) -> str:
    """Rows in the order of their keys; TopK leaves equal keys in their order."""
    return e.op("Gather", rows, e.ops("TopK", keys, number, outputs=2, largest=largest)[1], axis=0)


def _limited(e: Emit, value: str, scores: Tensor, limit: int) -> str:
    """Scores with all but the ``limit`` largest of each batch item, whatever their classes, out of the running."""
    assert scores.shape is not None
    number = math.prod(scores.shape[1:]) if min(scores.shape[1:]) >= 0 else -1
    if 0 <= number <= limit:
        return value
    shape = e.op("Shape", value)
    flat = e.op("Reshape", value, e.ints([0, -1]))
    count = e.op("Min", e.op("Shape", flat, start=1), e.ints([limit]))
    best = e.ops("TopK", flat, count, outputs=2, axis=1)[1]
    none = helper.make_tensor("value", 1, [1], [0.0])
    ones = e.op("ConstantOfShape", e.op("Shape", best), value=helper.make_tensor("value", 1, [1], [1.0]))
    kept = e.op(
        "ScatterElements", e.op("ConstantOfShape", e.op("Shape", flat), value=none), best, ones, axis=1
    )
    flat = e.op("Where", e.op("Cast", kept, to=9), flat, e.scalar(-math.inf, "FLOAT"))
    return e.op("Reshape", flat, shape)


def _float(e: Emit, tensor: Tensor) -> str:
    return e.of(tensor) if tensor.dtype == "FLOAT" else e.cast(e.of(tensor), "FLOAT")
