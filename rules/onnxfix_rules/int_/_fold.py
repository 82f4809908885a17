"""Evaluate one operator on known inputs, if ONNX's reference and ONNX Runtime agree to the last bit.

The reference evaluator, or numpy, computes; this module decides when the result is reliable. Excluded on purpose:
everything random, quantizing or larger than its inputs, operators whose rounding differs between backends (Pow, Exp,
...), and cases that some backend treats differently (division by zero, casts out of range, non-finite numbers).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from onnx import ModelProto, defs, helper

from onnxfix.files import lazy
from onnxfix.rule import Node
from onnxfix.targets.documented import names
from onnxfix_rules.gra._evaluate import NotFoldable
from onnxfix_rules.gra._evaluate import evaluate as evaluate_by_numpy

from ._common import Array

INPUT_LIMIT = 16384
"""Size limit of a constant in shape arithmetic, in bytes."""
RESULT_LIMIT = 4096
"""Size limit of any result, in bytes."""
GROWTH = 512
"""Most bytes by which a result may be larger than its inputs: 64 elements of int64."""
FLOAT_LIMIT = 2.0**31
"""Largest size. A larger float may be cast out of an integer type's range, where ONNX Runtime is inconsistent: it
merges int64 -> double -> int32 into one Cast, which wraps, while double -> int32 saturates."""
WORK_LIMIT = 1 << 16
"""Most elements that one evaluation may touch, as the product of its inputs' sizes."""

MOVES = frozenset(
    {"Concat", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
GENERATES = frozenset({"ConstantOfShape", "Expand", "Range", "Tile"})
COMPARES = frozenset({"And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Xor"})
COMPUTES = names("Abs Add Cast Ceil Div Floor Max Min Mod Mul Neg Sign Sqrt Sub Where")
INTEGERS_ONLY = frozenset(
    {"Max", "Min", "Mod", "NonZero", "Range", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Sign"}
)
"""Operators whose float forms differ: in the sign of zero, in NaN, or in the order of summation."""
FLOATS_ONLY = frozenset({"Ceil", "Floor", "Sqrt"})
FOLDABLE = MOVES | GENERATES | COMPARES | COMPUTES | INTEGERS_ONLY


def evaluate(node: Node, inputs: Sequence[Array | None]) -> list[Array | None]:
    """The node's outputs for these inputs (None: omitted); None for each that is not certain."""
    nothing: list[Array | None] = [None] * len(node.outputs)
    given = [array for array in inputs if array is not None]
    if node.op_type not in FOLDABLE or node.opset < 7 or not given:
        return nothing
    if not _attributes_known(node) or not _safe(node, given):
        return nothing
    try:
        with np.errstate(all="ignore"):
            results = _computed(node, inputs)
    except Exception:  # the evaluator raises anything on a call that is not valid; such a call has no value
        return nothing
    return [_within_limits(np.asarray(result), given) for result in results]


def _computed(node: Node, inputs: Sequence[Array | None]) -> list[Array]:
    """Evaluate with numpy where it certainly equals the reference, which is slow to import."""
    if node.op_type in _BY_NUMPY:
        with contextlib.suppress(NotFoldable):
            return evaluate_by_numpy(node, inputs)
        if node.op_type == "Div":
            raise NotFoldable  # older reference evaluators round integers down
    given = [array for array in inputs if array is not None]
    if node.op_type == "Range" and len(given) == 3 and not any(array.ndim for array in given):
        if len(node.outputs) != 1 or given[0].dtype.kind != "i" or len({array.dtype for array in given}) > 1:
            raise NotFoldable  # no call of ONNX's, and numpy counts past int64 in floats
        start, limit, delta = (int(scalar) for scalar in given)
        return [np.arange(start, limit, delta).astype(given[0].dtype)]
    return _reference(node, inputs)


_BY_NUMPY = frozenset(
    {
        "Abs", "Add", "And", "Cast", "Concat", "Div", "Equal", "Expand", "Gather", "Greater", "GreaterOrEqual",
        "Identity", "Less", "LessOrEqual", "Mul", "Neg", "Not", "Or", "Reshape", "Slice", "Split", "Squeeze", "Sub",
        "Tile", "Transpose", "Unsqueeze", "Where", "Xor",
    }
)  # fmt: skip


def _reference(node: Node, inputs: Sequence[Array | None]) -> list[Array]:
    from onnx.reference import ReferenceEvaluator  # lazy: start-up

    model = ModelProto(ir_version=min(node.model.ir_version, 10))
    model.opset_import.append(helper.make_opsetid("", node.opset))
    proto = model.graph.node.add()
    proto.CopyFrom(node.proto)
    for attribute in proto.attribute:
        if attribute.HasField("t"):
            attribute.t.CopyFrom(lazy.with_payload(attribute.t))
    del proto.input[:]
    feed = {}
    for index, array in enumerate(inputs):
        name = f"in_{index}" if array is not None else ""
        proto.input.append(name)
        if array is not None:
            feed[name] = array
            model.graph.input.add().name = name
    wanted = [name for name in proto.output if name]
    for name in wanted:
        model.graph.output.add().name = name
    found = dict(zip(wanted, ReferenceEvaluator(model).run(wanted, feed), strict=True))
    return [found[name] if name else np.zeros(0) for name in proto.output]


LATEST = 28
"""The opset up to which ``SINCE`` and ``ATTRIBUTES`` say what the schemas of onnx say."""
SINCE = {
    "ConstantOfShape": 9,
    "Expand": 8,
    "GreaterOrEqual": 12,
    "LessOrEqual": 12,
    "Mod": 10,
    "NonZero": 9,
    "Range": 11,
    "Sign": 9,
    "Where": 9,
}
"""The first opset of foldable operators, where that is not 7 or before."""
ATTRIBUTES = {
    ("Cast", "to"): (7, LATEST),
    ("Cast", "saturate"): (19, LATEST),
    ("Cast", "round_mode"): (24, LATEST),
    ("Concat", "axis"): (7, LATEST),
    ("ConstantOfShape", "value"): (9, LATEST),
    ("Gather", "axis"): (7, LATEST),
    ("Mod", "fmod"): (10, LATEST),
    ("Range", "stash_type"): (27, LATEST),
    **{(op, "keepdims"): (7, LATEST) for op in ("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum")},
    **{(op, "axes"): (7, 17) for op in ("ReduceMax", "ReduceMin", "ReduceProd")},
    **{(op, "noop_with_empty_axes"): (18, LATEST) for op in ("ReduceMax", "ReduceMin", "ReduceProd")},
    ("ReduceSum", "axes"): (7, 12),
    ("ReduceSum", "noop_with_empty_axes"): (13, LATEST),
    ("Reshape", "allowzero"): (14, LATEST),
    **{("Slice", name): (7, 9) for name in ("starts", "ends", "axes")},
    ("Split", "split"): (7, 12),
    ("Split", "axis"): (7, LATEST),
    ("Split", "num_outputs"): (18, LATEST),
    ("Squeeze", "axes"): (7, 12),
    ("Transpose", "perm"): (7, LATEST),
    ("Unsqueeze", "axes"): (7, 12),
}
"""The opsets in which foldable operators have an attribute. A schema would say so, too, but onnx builds those of all
operators when the first one is requested: 20 ms."""


def _attributes_known(node: Node) -> bool:
    """Whether every attribute is defined by the operator's schema: others may have a custom meaning."""
    names = [attribute.name for attribute in node.proto.attribute]
    if not (listed(node.op_type, node.opset, names) or _in_schema(node.op_type, node.opset, names)):
        return False
    return all(node.attribute(name) is not None for name in names)


def listed(op_type: str, opset: int, names: Iterable[str]) -> bool:
    """Whether a foldable operator certainly exists in an opset from 7 on and has these attributes there."""
    if not SINCE.get(op_type, 7) <= opset <= min(LATEST, defs.onnx_opset_version()):
        return False
    ranges = [ATTRIBUTES.get((op_type, name), (0, 0)) for name in names]
    return all(first <= opset <= last for first, last in ranges)


def _in_schema(op_type: str, opset: int, names: Iterable[str]) -> bool:
    try:
        schema = defs.get_schema(op_type, opset, "")
    except defs.SchemaError:
        return False
    return all(name in schema.attributes for name in names)


def _safe(node: Node, given: Sequence[Array]) -> bool:
    if any(array.nbytes > INPUT_LIMIT for array in given):
        return False
    if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in given):
        return False
    if node.op_type in INTEGERS_ONLY and any(array.dtype.kind not in "iu" for array in given):
        return False
    if node.op_type in FLOATS_ONLY and given[0].dtype.kind != "f":
        return False
    special = _GUARDS.get(node.op_type)
    if special is not None:
        return special(node, given)
    if node.op_type in MOVES:
        return True
    if node.op_type == "NonZero" or node.op_type.startswith("Reduce"):
        return given[0].ndim > 0 and given[0].size > 0
    return math.prod(max(array.size, 1) for array in given) <= WORK_LIMIT


def _divisor_nonzero(node: Node, given: Sequence[Array]) -> bool:
    if len(given) != 2 or given[0].size * given[1].size > WORK_LIMIT or not given[1].all():
        return False
    if given[0].dtype.kind != "i":
        return True
    # Dividing the lowest integer by -1 overflows: undefined, and a trap on some processors.
    return not ((given[0] == np.iinfo(given[0].dtype).min).any() and (given[1] == -1).any())


def _cast_in_range(node: Node, given: Sequence[Array]) -> bool:
    """Casting an out-of-range float to an integer type depends on the processor."""
    target = node.attr("to")
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(target))
    except (KeyError, TypeError):
        return False
    if dtype.kind not in "biuf" or given[0].dtype.kind not in "biuf":
        return False
    if given[0].dtype.kind != "f" or dtype.kind not in "iu" or not given[0].size:
        return True
    limits = np.iinfo(dtype)
    low, high = math.trunc(float(given[0].min())), math.trunc(float(given[0].max()))
    return limits.min <= low and high <= limits.max


def _forward_slice(node: Node, given: Sequence[Array]) -> bool:
    """Backends differ on a start before the axis under a negative step."""
    if node.opset < 10:
        return True
    return len(node.inputs) < 5 or node.inputs[4] is None or bool((given[-1] > 0).all())


def _small_product(node: Node, given: Sequence[Array]) -> bool:
    """Expand, Tile and ConstantOfShape have the size of their result in a small tensor."""
    if given[-1].dtype.kind not in "iu" or (node.op_type != "ConstantOfShape" and len(given) != 2):
        return False
    base = 1 if node.op_type == "ConstantOfShape" else max(given[0].size, 1)
    return base * math.prod(max(int(item), 1) for item in given[-1].reshape(-1)) <= WORK_LIMIT


def _small_range(node: Node, given: Sequence[Array]) -> bool:
    if len(given) != 3 or any(array.size != 1 for array in given) or not given[2].all():
        return False
    start, limit, delta = (int(array.reshape(-1)[0]) for array in given)
    return (limit - start) // delta <= WORK_LIMIT


def _positive_zeros(node: Node, given: Sequence[Array]) -> bool:
    """ONNX Runtime selects floats by adding 0.0 to them, which loses the sign of -0.0."""
    floats = [array for array in given if array.dtype.kind == "f"]
    if any(((array == 0) & np.signbit(array)).any() for array in floats):
        return False
    return math.prod(max(array.size, 1) for array in given) <= WORK_LIMIT


def _says_axes(node: Node, given: Sequence[Array]) -> bool:
    """An empty list of axes means all dimensions of 1 in ONNX Runtime, none in the reference."""
    if node.opset >= 13:
        return len(given) < 2 or given[1].size > 0
    return node.attribute("axes") is None or bool(node.attr("axes"))


def _one_square_root(node: Node, given: Sequence[Array]) -> bool:
    """Vector units may approximate; a single element uses the processor's exact instruction."""
    return given[0].size == 1 and bool((given[0] >= 0).all())


_GUARDS: dict[str, Callable[[Node, Sequence[Array]], bool]] = {
    "Cast": _cast_in_range,
    "ConstantOfShape": _small_product,
    "Div": _divisor_nonzero,
    "Expand": _small_product,
    "Mod": _divisor_nonzero,
    "Range": _small_range,
    "Slice": _forward_slice,
    "Sqrt": _one_square_root,
    "Squeeze": _says_axes,
    "Tile": _small_product,
    "Where": _positive_zeros,
}


def _within_limits(result: Array, given: Sequence[Array]) -> Array | None:
    if result.dtype.kind not in "biuf" or result.dtype.isbuiltin != 1:
        return None
    if result.dtype.kind == "f" and not (np.abs(result.astype(np.float64)) <= FLOAT_LIMIT).all():
        return None
    return result if fits(result.nbytes, given) else None


def fits(nbytes: int, given: Sequence[Array]) -> bool:
    """Whether a constant of ``nbytes`` is small, also beside the inputs that it replaces."""
    return nbytes <= min(RESULT_LIMIT, GROWTH + sum(array.nbytes for array in given))
