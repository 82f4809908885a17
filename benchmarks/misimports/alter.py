"""Other values of an attribute: what the specification documents besides the one that is there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, defs, helper, numpy_helper

#: Every value that ONNX documents of an attribute that is a word, by operator and attribute, or by attribute alone.
_PAIRS = {
    ("DepthToSpace", "mode"): ("DCR", "CRD"),
    ("SpaceToDepth", "mode"): ("DCR", "CRD"),
    ("GridSample", "mode"): ("bilinear", "linear", "nearest", "bicubic", "cubic"),
    ("Pad", "mode"): ("constant", "reflect", "edge", "wrap"),
    ("Resize", "mode"): ("nearest", "linear", "cubic"),
    ("Upsample", "mode"): ("nearest", "linear"),
    ("RoiAlign", "mode"): ("avg", "max"),
    ("BitShift", "direction"): ("LEFT", "RIGHT"),
    ("ScatterElements", "reduction"): ("none", "add", "mul", "max", "min"),
    ("ScatterND", "reduction"): ("none", "add", "mul", "max", "min"),
}
_WORDS = {
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "approximate": ("none", "tanh"),
    "coordinate_transformation_mode": (
        *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"),
        *("tf_crop_and_resize", "tf_half_pixel_for_nn", "output_half_pixel"),
    ),
    "direction": ("forward", "reverse", "bidirectional"),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "padding_mode": ("zeros", "border", "reflection"),
    "reduction": ("none", "sum", "mean"),
    "round_mode": ("up", "down", "nearest"),
    "equation": (),
}
_ACTIVATIONS = (
    *("Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid"),
    *("Elu", "Softsign", "Softplus"),
)
#: Attributes that name an element type.
_TYPES = ("to", "dtype", "output_dtype")
#: Attributes that name the floating-point type to compute in.
PRECISIONS = ("softmax_precision", "stash_type", "precision")
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_ELEMENTS = (
    *(TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.INT32),
    *(TensorProto.INT64, TensorProto.BOOL, TensorProto.INT8, TensorProto.UINT8),
)
#: Attributes that are 0 or 1. ONNX says nothing of other values.
FLAGS = frozenset(
    (
        *("align_corners", "allowzero", "antialias", "ceil_mode", "center_point_box"),
        *("count_include_pad", "detect_negative", "detect_positive", "exclude_outside", "exclusive"),
        *("fmod", "input_forget", "interleaved", "inverse", "is_causal"),
        *("keepdims", "largest", "layout", "linear_before_reset", "noop_with_empty_axes"),
        *("onesided", "periodic", "reverse", "saturate", "select_last_index"),
        *("sorted", "storage_order", "training_mode", "transA", "transB"),
        *("upper", "scan_input_directions", "scan_output_directions"),
    )
)
#: Attributes that repeat a size of the weights.
_SIZES = frozenset({"hidden_size"})
#: Attributes that are one of a few numbers.
_NUMBERS = {"qk_matmul_output_mode": (0, 1, 2, 3)}
#: Attributes that name an axis, or several.
AXES = ("axis", "axes", "batch_axis", "time_axis", "scan_input_axes", "scan_output_axes")


def value_of(attribute: AttributeProto) -> Any:
    """The value as Python has it, words as ``str``."""
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return [one.decode("utf-8", "replace") for one in value]
    return value


def others(operator: str, name: str, value: Any, rank: int) -> list[Any]:
    """Values to write instead of ``value``; ``rank`` is that of the node's first input, -1 where it is not known."""
    found: Iterable[Any] = ()
    if isinstance(value, str):
        found = _PAIRS.get((operator, name)) or _WORDS.get(name, ())
    elif isinstance(value, int):
        found = _integers(name, value, rank)
    elif isinstance(value, float):
        found = (0.0, value * 0.5 + 0.25, -value, 1.0)
    elif isinstance(value, TensorProto):
        found = _tensors(value) if operator == "ConstantOfShape" else ()
    elif isinstance(value, list) and value:
        found = _lists(name, value, rank)
    return _unique(found, value)


def _unique(found: Iterable[Any], value: Any) -> list[Any]:
    kept: list[Any] = []
    for one in found:
        if one != value and one not in kept:
            kept.append(one)
    return kept


def _integers(name: str, value: int, rank: int) -> Iterator[int]:
    if name in _TYPES:
        yield from (0, *_ELEMENTS) if name == "output_dtype" else _ELEMENTS
        return
    if name in PRECISIONS:
        yield from _FLOATS
        return
    if name in AXES and rank > 0:
        yield value - rank if value >= 0 else value + rank
        yield from range(rank)
        return
    if name in _NUMBERS:
        yield from _NUMBERS[name]
        return
    yield from (1 - value,) if value in (0, 1) else (0,)
    yield from (value + 1, value - 1)


def _tensors(value: TensorProto) -> Iterator[TensorProto]:
    array = numpy_helper.to_array(value)
    for dtype in (np.float32, np.float16, np.int64, np.int32, np.bool_):
        if array.dtype != dtype:
            yield numpy_helper.from_array(np.ones_like(array, dtype=dtype), value.name)


def _lists(name: str, value: list[Any], rank: int) -> Iterator[list[Any]]:
    yield value[::-1]
    if isinstance(value[0], str):
        if name == "activations":
            yield from ([one, *value[1:]] for one in _ACTIVATIONS)
        return
    if isinstance(value[0], (int, float)):
        yield [value[0] + 1, *value[1:]]
        yield [*value[:-1], value[-1] + 1]
        yield [value[0] - 1, *value[1:]]
        yield [*value[:-1], value[-1] - 1]
        if isinstance(value[0], int):
            yield value[:-1]
        yield [type(value[0])(0)] * len(value)
    if name in AXES and rank > 0:
        yield [one - rank if one >= 0 else one + rank for one in value]


def absent(schema: defs.OpSchema, name: str, rank: int, sizes: Sequence[int]) -> tuple[Any, list[Any]]:
    """For an attribute that a node leaves out: its default (None: it has none), and other values to write.

    ``sizes`` are the sizes of the node's first output, as far as they are known.
    """
    stored = schema.attributes[name].default_value
    default = value_of(stored) if stored.type != AttributeProto.UNDEFINED else None
    if default is not None:
        return default, others(schema.name, name, default, rank)
    kind = schema.attributes[name].type.name
    return None, _without_default(schema.name, name, kind, rank, sizes)


def _without_default(operator: str, name: str, kind: str, rank: int, sizes: Sequence[int]) -> list[Any]:
    spatial = max(rank - 2, 1)
    known: dict[str, list[Any]] = {
        "strides": [[1] * spatial, [2] * spatial, [1] * (spatial - 1) + [2]],
        "dilations": [[1] * spatial, [2] * spatial],
        "pads": [[0] * 2 * spatial, [1] * 2 * spatial, [1] * spatial + [0] * spatial],
        "kernel_shape": [[3] * spatial, [2] * spatial],
        "output_padding": [[0] * spatial, [1] * spatial, [0] * (spatial - 1) + [1]],
        "output_shape": [[n + more for n in sizes[2:]] for more in (0, 1, -1)] if len(sizes) > 2 else [],
        "axes": [[0], [-1], list(range(max(rank, 0)))],
        "perm": [list(range(rank)), list(range(rank))[::-1]] if rank > 0 else [],
        "axis": list(range(-1, max(rank, 0))),
        "activations": [
            [one] * (2 if operator == "GRU" else 3 if operator == "LSTM" else 1) for one in _ACTIVATIONS
        ],
        "activation_alpha": [[0.5] * 3],
        "activation_beta": [[0.5] * 3],
        "clip": [0.25, 0.0],
        "scale": [0.5, 1.0],
        "softmax_precision": [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE],
        "dtype": list(_ELEMENTS),
        "k": [0, 1, -1],
        "end": [1, -1],
        "num_outputs": [1, 2],
        "noop_with_empty_axes": [0, 1],
        "scan_input_axes": [[0], [1]],
        "scan_output_axes": [[0], [1]],
        "scan_input_directions": [[0], [1]],
        "scan_output_directions": [[0], [1]],
        "q_num_heads": [1, 3],
        "kv_num_heads": [1, 3],
        "num_heads": [1, 2],
        "ignore_index": [0, 1, -1],
    }
    if name in known:
        return [one for one in known[name] if one != []]
    return [0, 1] if kind == "INT" else [0.5] if kind == "FLOAT" else []


def documented(operator: str, name: str, value: Any, version: int = 0) -> bool:
    """Whether ONNX says what the value of an attribute, or of a constant input ``input NAME``, means. ``version`` is
    the opset that the operator is of."""
    values = value if isinstance(value, list) else [value]
    if name in FLAGS:
        return all(one in (0, 1) for one in values)
    if value == "tf_half_pixel_for_nn":
        return version < 13
    if operator in ("Mod", "Div") and name.startswith(("input", "value of")):
        return all(one != 0 for one in values)
    if name == "input depth":
        return all(one == int(one) for one in values)
    if name == "input iou_threshold":
        return all(0 <= one <= 1 for one in values)
    return name not in _SIZES


def attribute(
    schema: defs.OpSchema | None, name: str, value: Any, old: AttributeProto | None
) -> AttributeProto:
    """An attribute of the type that the schema, or the one before, has."""
    kind = old.type if old is not None else AttributeProto.UNDEFINED
    if schema is not None and name in schema.attributes:
        kind = getattr(AttributeProto, schema.attributes[name].type.name)
    return helper.make_attribute(name, value, attr_type=kind or None)


def shown(value: Any) -> str:
    """A value in few words."""
    if isinstance(value, float):
        return f"{value:g}" if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, TensorProto):
        return onnx.TensorProto.DataType.Name(value.data_type).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(shown, value))}]"
    return str(value) if isinstance(value, (int, bool)) else type(value).__name__
