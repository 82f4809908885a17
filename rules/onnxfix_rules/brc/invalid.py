"""Broadcasts that ONNX does not allow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, equal, rule
from onnxfix_rules.brc._common import text
from onnxfix_rules.brc._exact import cannot_fit, shapes_of


@rule("BRC007", ops=["PRelu"], safety=Safety.UNSAFE, severity=Severity.ERROR, hazards=[51])
def prelu_slope_not_broadcastable(node: Node, model: Model) -> Iterator[Match]:
    """The slope of a PRelu does not broadcast to its data.

    ## Why it matters
    Since opset 7 the slope is aligned with the last dimensions, and the data is never repeated. A slope `[C]` on
    `[N,C,H,W]`, which older exporters write for one element per channel, is not valid ONNX: ONNX Runtime refuses it,
    and so does TensorRT: `slope tensor must be unidirectional broadcastable to input tensor`, measured with
    TensorRT-RTX 1.7.1. TensorRT may accept a slope of a higher rank than the data, although ONNX Runtime refuses it: a
    warning.

    ## Fix
    If the slope is a vector with one element per channel: `[C,1,1]`. UNSAFE: it is most likely the intention, but the
    original model is invalid. None otherwise.

    ## References
    - https://onnx.ai/onnx/operators/onnx__PRelu.html: "shape should be unidirectional broadcastable to the input tensor
      X"
    """
    found = shapes_of(node, model)
    slope = node.require(1)
    if found is None or not cannot_fit(node, model):
        return
    shape, other = found
    fix = None
    count = other[0].value if len(other) == 1 else None
    if count is not None and len(shape) > 2 and equal(shape[1], other[0]).yes:
        draft = Draft(node)
        wanted = [count, *[1] * (len(shape) - 2)]
        array = slope.constant()
        if array is not None:
            draft.set_input(node, 1, draft.constant(array.reshape(wanted), "slope"))
        else:
            sizes = draft.integers(wanted, "shape")
            draft.set_input(node, 1, draft.add("Reshape", [slope, sizes], hint="slope"))
        fix = Fix("reshape it to one element per channel", draft.edits, Safety.UNSAFE)
    yield Match(
        f"the slope {text(other)} does not broadcast to the data {text(shape)}",
        node=node,
        fix=fix,
        severity=Severity.WARNING if len(other) > len(shape) else None,
        reads=(slope,),
    )


_IMAGE = "g (float[N,2,4,4] x) => (float[N,2,4,4] y)"
_fixed = partial(Fixed, runs=False, safety=Safety.UNSAFE)
_flagged = partial(Flagged, runs=False, safety=Safety.UNSAFE)


def _prelu(x: str, y: str, s: str, s_values: str = "1, 2") -> str:
    return f"g (float[{x}] x) => (float[{y}] y) <float[{s}] s = {{{s_values}}}> {{ y = PRelu(x, s) }}"


prelu_slope_not_broadcastable.examples = [
    _fixed(
        "one slope per channel, as before opset 7",
        before=_prelu("N,2,4,4", "N,2,4,4", "2"),
        after=_prelu("N,2,4,4", "N,2,4,4", "2,1,1"),
    ),
    Flagged("the fix requires --unsafe-fixes", _prelu("N,2,4,4", "N,2,4,4", "2"), runs=False),
    _fixed(
        "a slope that is not constant",
        before="g (float[2,3,4] x, float[3] s) => (float[2,3,4] y) { y = PRelu(x, s) }",
        after="""g (float[2,3,4] x, float[3] s) => (float[2,3,4] y) <int64[2] t = {3, 1}> {
            r = Reshape(s, t)  y = PRelu(x, r) }""",
        opset=9,
    ),
    _flagged("the data would have to be repeated", _prelu("1,1,4", "1,1,4", "2,1")),
    _flagged("a slope of a higher rank", _prelu("4", "1,4", "1,4", s_values="1, 2, 3, 4")),
    Silent("one slope per channel, correctly aligned", _prelu("N,2,4,4", "N,2,4,4", "2,1,1")),
    Silent(
        "as many channels as columns: in ONNX, one slope per column",
        _prelu("N,4,2,4", "N,4,2,4", "4", s_values="1, 2, 3, 4"),
    ),
    Silent("a single slope", _prelu("N,2,4,4", "N,2,4,4", "1", s_values="1")),
    Silent("a size that may be equal, which BRC004 reports", _prelu("N,2,H,W", "N,2,H,W", "2")),
    Silent("a matrix, whose columns are the channels", _prelu("N,2", "N,2", "2")),
    Silent(
        "opset 6, where it means one slope per channel",
        _prelu("N,2,4,4", "N,2,4,4", "2"),
        opset=6,
        runs=False,
    ),
]


@rule("BRC008", ops=["Expand"], safety=Safety.UNSAFE, severity=Severity.ERROR, hazards=[51])
def expand_to_minus_one(node: Node, model: Model) -> Iterator[Match]:
    """An Expand to a shape with a negative size.

    ## Why it matters
    In torch's `expand`, -1 keeps a size; in ONNX that is 1, and -1 is invalid. ONNX Runtime refuses it, and so does
    TensorRT: the parser with `Invalid Node`, or, if the data's size is dynamic, the builder with `ISliceLayer size
    elements must be non-negative`, measured with TensorRT-RTX 1.7.1.

    ## Fix
    1 instead of -1 if the whole shape is known. UNSAFE: it is most likely the intention, but the original model is
    invalid. None for other negative sizes.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Expand.html
    """
    wanted = node.input(1)
    found = None if wanted is None else model.shapes.value(wanted)
    if wanted is None or found is None or len(found.shape) != 1:
        return
    negative = [size.value for size in found.data if size.value is not None and size.value < 0]
    if not negative:
        return
    fix = None
    if found.static is not None and set(negative) == {-1}:
        draft = Draft(node)
        sizes = np.array([1 if size == -1 else size for size in found.static], np.int64)
        draft.set_input(node, 1, draft.constant(sizes, "shape"))
        fix = Fix("replace -1 by 1", draft.edits, Safety.UNSAFE)
    yield Match(f"Expand to a size of {negative[0]}", node=node, fix=fix, reads=(wanted,))


def _expand(x: str, y: str, s: str) -> str:
    return f"g (float[{x}] x) => (float[{y}] y) <int64[2] s = {{{s}}}> {{ y = Expand(x, s) }}"


expand_to_minus_one.examples = [
    _fixed(
        "-1 for an unchanged size, as in torch",
        before=_expand("2,1", "2,3", "-1, 3"),
        after=_expand("2,1", "2,3", "1, 3"),
    ),
    Flagged("the fix requires --unsafe-fixes", _expand("2,1", "2,3", "-1, 3"), runs=False),
    _fixed(
        "a computed shape",
        before="""g (float[N,1] x) => (float[N,3] y) <int64[1] m = {-1}, int64[1] c = {3}> {
            s = Concat<axis = 0>(m, c)  y = Expand(x, s) }""",
        after=_expand("N,1", "N,3", "1, 3"),
    ),
    _flagged("another negative size", _expand("N,1", "N,3", "-2, 3")),
    _flagged(
        "a shape with a dynamic size",
        """g (float[N,1] x, int64[1] k) => (float[N,K] y) <int64[1] m = {-1}> {
            s = Concat<axis = 0>(m, k)  y = Expand(x, s) }""",
    ),
    Silent("1 for an unchanged size", _expand("N,1", "N,3", "1, 3")),
    Silent("a size of 0", _expand("1,1", "0,3", "0, 3")),
    Silent("the shape is an input", "g (float[N,1] x, int64[2] s) => (float[A,B] y) { y = Expand(x, s) }"),
    Silent(
        "a Reshape, where -1 is valid",
        "g (float[N,3] x) => (float[A,3] y) <int64[2] s = {-1, 3}> { y = Reshape(x, s) }",
    ),
]
