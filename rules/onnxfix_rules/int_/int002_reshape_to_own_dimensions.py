"""INT002: a computed Reshape shape that a constant with 0 and -1 can replace."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from onnxfix.rule import Dim, Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Silent, equal, rule
from onnxfix.shapes.symbols import positive, product

from ._common import shape_severity


@rule("INT002", ops=["Reshape"], safety=Safety.EXACT, hazards=[34])
def reshape_to_own_dimensions(node: Node, model: Model) -> Iterator[Match]:
    """A Reshape's shape is computed, although a constant with 0 and -1 is equivalent.

    ## Why it matters
    Exporters write `x.reshape(x.shape[0], x.shape[1], 12, 64)` as Shape, Gather, Unsqueeze and Concat: int64 layers
    without weights ("int64 zero-weight layers", NVIDIA/TensorRT #3609). A computed shape is a shape tensor, which
    TensorRT must evaluate on the host before it can run the layer; TensorRT 8 fails on some of them
    (`ShapeHostToDeviceCopy requires bool I/O but node can not be handled by Myelin`, NVIDIA/TensorRT #1698, #3596).
    Measured with TensorRT-RTX 1.7.1: today's builder folds them, 7 layers became 3 at the same engine size, so the
    benefit is a graph that parses and is readable. Information for a TensorRT that computes int64, a warning for
    TensorRT 8.

    ## Fix
    The shape becomes a constant without `allowzero`: 0 for the data's own dimension at the same position, the value
    for a known dimension, -1 for at most one other. Dimensions are compared as polynomials over the model's symbols.

    - All positions copied or known: exact, also for empty tensors.
    - An existing -1 becomes the value that it stands for if that is known, and stays otherwise.
    - A new -1: exact if the number of elements is proven equal and the other dimensions are proven above 0. If one of
      them may be 0, ONNX Runtime refuses -1 for an empty tensor although the original ran: the fix is then unsafe,
      and the message states the condition.

    Not covered: two or more positions unrelated to the data's dimensions, a literal 0 under `allowzero`, and shapes
    that the caller passes.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Reshape.html
    - https://github.com/NVIDIA/TensorRT/issues/3609
    - https://github.com/NVIDIA/TensorRT/issues/1698 and https://github.com/NVIDIA/TensorRT/issues/3596
    """
    data, shape = node.require(0), node.require(1)
    if node.opset < 5 or shape.is_constant:
        return
    found = model.shapes.value(shape)
    own = model.shapes.shape(data)
    if found is None or own is None or len(found.shape) != 1:
        return
    if all(dim.value is not None for dim in found.data) or not all(dim.is_count for dim in found.data):
        return
    allowzero = bool(node.attr("allowzero", 0))
    plan = _plan(found.data, own, allowzero)
    if plan is None:
        return
    draft = Draft(node)
    draft.set_input(node, 1, draft.integers(plan.target))
    if allowzero:
        draft.set_attr(node, "allowzero", None)
    values = ", ".join(str(dim) for dim in found.data)
    message = f"the shape [{values}] is computed; the constant {list(plan.target)} is equivalent"
    if plan.condition:
        message += f" provided that {plan.condition}"
    safety = Safety.UNSAFE if plan.condition else Safety.EXACT
    fix = Fix(f"set the shape to {list(plan.target)}", draft.edits, safety)
    yield Match(message, node=node, fix=fix, severity=shape_severity(model), reads=(data, shape))


class _Plan(NamedTuple):
    """A constant shape, and the condition for its equivalence; "" if that is proven."""

    target: tuple[int, ...]
    condition: str


@lru_cache(maxsize=1 << 12)  # the layers of a model ask the same, and so does every round
def _plan(wanted: tuple[Dim, ...], own: tuple[Dim, ...], allowzero: bool) -> _Plan | None:
    """The constant shape for the computed shape ``wanted`` of data with dimensions ``own``; None without one."""
    target: list[int] = []
    inferred: int | None = None
    for position, dim in enumerate(wanted):
        if dim.value is not None:
            if dim.value < -1 or not _literal(dim.value, position, own, allowzero):
                return None
            target.append(dim.value)
        elif position < len(own) and equal(dim, own[position]).yes:
            target.append(0)
        else:
            target.append(-1)
        if target[-1] == -1:
            if inferred is not None:
                return None
            inferred = position
    condition = ""
    if inferred is not None:
        given = wanted[inferred].value == -1
        left_over = _left_over(wanted, own, inferred) if given else None
        if left_over is not None:
            target[inferred] = left_over
        elif not given or allowzero:  # else both shapes are the same vector in every run
            condition = _condition(wanted, own, inferred, given, allowzero)
    return _Plan(tuple(target), condition)


def _left_over(wanted: Sequence[Dim], own: Sequence[Dim], inferred: int) -> int | None:
    """The value of the -1, if removing common dimensions leaves only values above 0.

    Of empty tensors this is what ONNX Runtime makes of -1 under ``allowzero``: it leaves zeros out on both sides.
    """
    there = list(own)
    divisor = 1
    for position, dim in enumerate(wanted):
        if position == inferred:
            continue
        if dim.value is None:
            match = next((other for other in there if equal(dim, other).yes), None)
            if match is None:
                return None
            there.remove(match)
        elif dim.value > 0:
            divisor *= dim.value
        else:
            return None
    sizes = [dim.value for dim in there if dim.value]
    size = math.prod(sizes)
    # A damaged model may declare dimensions whose product no integer of ONNX holds.
    return size // divisor if len(sizes) == len(there) and size < 1 << 63 and size % divisor == 0 else None


def _literal(value: int, position: int, own: Sequence[Dim], allowzero: bool) -> bool:
    """Whether an element of the computed shape means the same in a constant without ``allowzero``."""
    if value != 0:
        return True
    return position < len(own) and (not allowzero or own[position].value == 0)


def _condition(wanted: Sequence[Dim], own: Sequence[Dim], inferred: int, given: bool, allowzero: bool) -> str:
    """The condition for the -1 at ``inferred`` to equal the original; "" if that is proven.

    -1 is the remaining size, which is the wanted one if both shapes have the same number of elements. For an empty
    tensor it is undefined: ONNX Runtime refuses -1 beside a 0, although the original shape was valid.
    """
    # A 0 in the computed shape means the data's own dimension unless allowzero is set.
    sizes = [own[i] if dim.value == 0 and not allowzero else dim for i, dim in enumerate(wanted)]
    conditions = []
    if not given and not equal(product(sizes), product(own)).yes:
        conditions.append(f"{product(sizes)} equals {product(own)} in every run")
    empty = dict.fromkeys(str(dim) for i, dim in enumerate(sizes) if i != inferred and not positive(dim).yes)
    if empty:
        conditions.append(f"{' and '.join(empty)} {'is' if len(empty) == 1 else 'are'} never 0")
    return " and ".join(conditions)


reshape_to_own_dimensions.examples = [
    Fixed(
        "copied batch and sequence, as for attention heads",
        before="""g (float[N,S,6] x) => (float[N,S,2,3] y) <int64 i = {0}, int64 j = {1}, int64[1] z = {0},
                                                            int64[1] h = {2}, int64[1] d = {3}> {
            s = Shape(x)  n = Gather(s, i)  a = Unsqueeze(n, z)  r = Shape(x)  q = Gather(r, j)
            b = Unsqueeze(q, z)  t = Concat<axis = 0>(a, b, h, d)  y = Reshape(x, t) }""",
        after="g (float[N,S,6] x) => (float[N,S,2,3] y) <int64[4] t = {0, 0, 2, 3}> { y = Reshape(x, t) }",
    ),
    Fixed(
        "a dimension of another input with the same name; allowzero is removed, since 0 now copies",
        before="""g (float[N,6] x, float[N] z) => (float[N,2,3] y) <int64[2] d = {2, 3}> {
            n = Shape(z)  t = Concat<axis = 0>(n, d)  y = Reshape<allowzero = 1>(x, t) }""",
        after="""g (float[N,6] x, float[N] z) => (float[N,2,3] y) <int64[3] t = {0, 2, 3}> {
            y = Reshape(x, t) }""",
    ),
    Fixed(
        "an existing -1 stays",
        before="""g (float[N,S,6] x) => (float[N,M,3] y) <int64[1] m = {-1}, int64[1] d = {3}> {
            n = Shape<end = 1>(x)  t = Concat<axis = 0>(n, m, d)  y = Reshape(x, t) }""",
        after="g (float[N,S,6] x) => (float[N,M,3] y) <int64[3] t = {0, -1, 3}> { y = Reshape(x, t) }",
    ),
    Fixed(
        "a -1 with a known value under allowzero, also for an empty tensor",
        before="""g (float[N,S,6] x) => (float[N,S,3,2] y) <int64[1] m = {-1}, int64[1] d = {2}> {
            n = Shape<end = 2>(x)  t = Concat<axis = 0>(n, m, d)  y = Reshape<allowzero = 1>(x, t) }""",
        after="g (float[N,S,6] x) => (float[N,S,3,2] y) <int64[4] t = {0, 0, 3, 2}> { y = Reshape(x, t) }",
    ),
    Flagged(
        "a -1 under allowzero, which depends on the backend for an empty tensor",
        """g (float[N,S,6] x) => (float[N,M] y) <int64[1] m = {-1}> {
            n = Shape<end = 1>(x)  t = Concat<axis = 0>(n, m)  y = Reshape<allowzero = 1>(x, t) }""",
    ),
    Fixed(
        "-1 for a computed size, beside values above 0",
        before="""g (float[N,4,3] x) => (float[M,3] y) <int64[1] f = {4}, int64[1] d = {3}> {
            n = Shape<end = 1>(x)  a = Mul(n, f)  t = Concat<axis = 0>(a, d)  y = Reshape(x, t) }""",
        after="g (float[N,4,3] x) => (float[M,3] y) <int64[2] t = {-1, 3}> { y = Reshape(x, t) }",
    ),
    Fixed(
        "a dimension that is always 0",
        before="g (float[N,0] x, float[N,0] z) => (float[N,0] y) { t = Shape(z)  y = Reshape(x, t) }",
        after="g (float[N,0] x, float[N,0] z) => (float[N,0] y) <int64[2] t = {0, 0}> { y = Reshape(x, t) }",
    ),
    Fixed(
        "one shape for two Reshapes; it is constant for the one with these dimensions",
        before="""g (float[N,6] x, float[6,N] w) => (float[N,2,3] y, float[N,2,3] v) <int64[2] d = {2, 3}> {
            n = Shape<end = 1>(x)  t = Concat<axis = 0>(n, d)  y = Reshape(x, t)  u = Reshape(w, t)  v = Relu(u) }""",
        after="""g (float[N,6] x, float[6,N] w) => (float[N,2,3] y, float[N,2,3] v)
                <int64[3] c = {0, 2, 3}, int64[3] e = {-1, 2, 3}> {
            y = Reshape(x, c)  u = Reshape(w, e)  v = Relu(u) }""",
    ),
    Flagged(
        "-1 beside a dynamic dimension differs only for an empty tensor: the user must decide",
        """g (float[N,S,4] x) => (float[N,M] y) <int64[1] f = {4}> {
            n = Shape<end = 1>(x)  s = Shape<start = 1, end = 2>(x)  m = Mul(s, f)
            t = Concat<axis = 0>(n, m)  y = Reshape(x, t) }""",
    ),
    Flagged(
        "a size unrelated to the data's dimensions",
        """g (float[N,4] x, float[M] z) => (float[M,4] y) <int64[1] f = {4}> {
            n = Shape(z)  t = Concat<axis = 0>(n, f)  y = Reshape(x, t) }""",
    ),
    Fixed(
        "the same, confirmed by the user",
        before="""g (float[N,4] x, float[M] z) => (float[M,4] y) <int64[1] f = {4}> {
            n = Shape(z)  t = Concat<axis = 0>(n, f)  y = Reshape<allowzero = 1>(x, t) }""",
        after="g (float[N,4] x, float[M] z) => (float[M,4] y) <int64[2] t = {-1, 4}> { y = Reshape(x, t) }",
        safety=Safety.UNSAFE,
    ),
    Silent(
        "swapped dimensions need two unknowns",
        """g (float[N,S,4] x) => (float[S,N,4] y) <int64[1] f = {4}> {
            n = Shape<end = 1>(x)  s = Shape<start = 1, end = 2>(x)  t = Concat<axis = 0>(s, n, f)
            y = Reshape(x, t) }""",
    ),
    Silent(
        "with allowzero=1 the 0 is a size, which cannot be combined with a copied dimension",
        """g (float[N,0,4] x) => (float[N,4,0] y) <int64[2] d = {4, 0}> {
            n = Shape<end = 1>(x)  t = Concat<axis = 0>(n, d)  y = Reshape<allowzero = 1>(x, t) }""",
    ),
    Silent(
        "the shape is a graph input",
        """g (float[N,4] x, int64[1] k) => (float[P,4] y) <int64[1] f = {4}> {
            t = Concat<axis = 0>(k, f)  y = Reshape(x, t) }""",
    ),
    Silent(
        "data of unknown rank",
        """g (float[] x, float[N] z) => (float[N,M] y) <int64[1] m = {-1}> {
            n = Shape(z)  t = Concat<axis = 0>(n, m)  y = Reshape(x, t) }""",
    ),
    Silent(
        "a constant shape",
        "g (float[N,4] x) => (float[N,2,2] y) <int64[3] t = {0, 2, 2}> { y = Reshape(x, t) }",
    ),
    Silent(
        "0 and -1 are special for Reshape only, not for Expand",
        """g (float[N,1] x) => (float[N,4] y) <int64[1] f = {4}> {
            n = Shape<end = 1>(x)  t = Concat<axis = 0>(n, f)  y = Expand(x, t) }""",
    ),
]
