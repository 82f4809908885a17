"""Zeros in a Reshape's shape that cannot be copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from onnxfix.rule import (
    Dim,
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    rule,
    symbols,
)
from onnxfix_rules.rsh import _common as c


@rule("RSH003", ops=["Reshape"], safety=Safety.UNSAFE, severity=Severity.ERROR, hazards=[35])
def nonempty_reshape_to_empty(node: Node, model: Model) -> Iterator[Match]:
    """A Reshape with ``allowzero=1`` to an empty tensor, from data that is not empty.

    ## Why it matters
    With ``allowzero=1`` a 0 is a size: the result is empty, so the data must be empty. TensorRT-RTX 1.7.1 fails
    (measured): ``reshape of non-empty tensor to empty tensor``; ONNX Runtime fails at run time. If the data is empty
    for some sizes of the inputs only, the Reshape works for those and fails for all others: a warning. Empty data is
    not reported ([0, 4] to [4, 0] parses and builds), nor is data of unknown shape.

    ## Fix
    Let the 0 copy the data's dimension (``allowzero=0``), which the exporter almost certainly intended. This is a
    guess, since the original model fails; not offered if copying cannot fit either.

    ## References
    ONNX, Reshape-14.
    """
    if not c.keeps_zero(node):
        return
    dims = c.requested(node, model)
    data = c.shape_of(node.input(0), model)
    if dims is None or data is None or not c.zeros(dims) or c.inferred(dims) is not None:
        return
    empty = symbols.is_zero(c.count(data))
    if empty.yes or any(d.value == 0 for d in data):
        return
    remedy = None
    if c.copy_fits(dims, data):
        draft = Draft(node)
        c.let_zero_copy(draft, node, model)
        remedy = Fix("copy the data's dimension for the 0 (allowzero=0)", draft.edits, Safety.UNSAFE)
    yield Match(
        _message(dims, data, certain=empty.no),
        node=node,
        fix=remedy,
        severity=Severity.ERROR if empty.no else Severity.WARNING,
    )


def _message(dims: Sequence[Dim], data: Sequence[Dim], *, certain: bool) -> str:
    what = f"allowzero=1 and the shape {c.text(dims)} request an empty tensor"
    if certain:
        return f"{what}, but the data {c.text(data)} is not empty: TensorRT and ONNX Runtime reject it"
    return f"{what}: it works only if the data {c.text(data)} is empty, and fails for all other sizes"


_BEFORE = "g (float[2,3] x) => (float[A,B] y) <int64[2] s = {0, 3}> { y = Reshape<allowzero=1>(x, s) }"
_fixed = partial(Fixed, runs=False, safety=Safety.UNSAFE)
_flagged = partial(Flagged, runs=False)


def _reshape(x: str, y: str, s_values: str, attributes: str, s: str = "2") -> str:
    return (
        f"g (float[{x}] x) => (float[{y}] y) <int64[{s}] s = {{{s_values}}}> {{ "
        f"y = Reshape{attributes}(x, s) }}"
    )


nonempty_reshape_to_empty.examples = [
    _fixed(
        "six elements cannot become an empty tensor", before=_BEFORE, after=_reshape("2,3", "A,B", "0, 3", "")
    ),
    Flagged("reported only, by default", _BEFORE, runs=False),
    _flagged(
        "copying would not fit either: [2, 5] from six elements",
        _reshape("2,3", "A,B", "0, 5", "<allowzero=1>"),
        safety=Safety.UNSAFE,
    ),
    _fixed(
        "works only if N is 0",
        before=_reshape("N,3", "A,B", "0, 3", "<allowzero=1>"),
        after=_reshape("N,3", "A,B", "0, 3", ""),
    ),
    Flagged("reported by default where N may be 0", _reshape("N,3", "A,B", "0, 3", "<allowzero=1>")),
    Silent("the data is empty: [0, 4] becomes [4, 0]", _reshape("0,4", "4,0", "4, 0", "<allowzero=1>")),
    Silent("the data is empty for every N", _reshape("0,N", "0,2,2", "0, 2, 2", "<allowzero=1>", s="3")),
    Silent("without allowzero the 0 copies", _reshape("2,3", "2,3", "0, 3", "")),
    Silent(
        "unknown data",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,3] x) => (float[A,B] y) <int64[2] s = {0, 3}> { u = my.op(x) y = Reshape<allowzero=1>(u, s) }""",
    ),
    Silent("no 0", _reshape("2,3", "A,B", "3, 2", "<allowzero=1>")),
]


@rule("RSH006", ops=["Reshape"], severity=Severity.ERROR, hazards=[35])
def zero_without_counterpart(node: Node, model: Model) -> Iterator[Match]:
    """A 0 ("copy") in a Reshape's shape at a position that the data does not have.

    ## Why it matters
    There is nothing to copy, so the model is invalid: ONNX Runtime reports ``The dimension with value zero exceeds
    the dimension size of the input tensor``, and TensorRT-RTX 1.7.1 fails to parse it (measured).

    ## Fix
    None: the intended size is unknown. Export again, or write the intended size.

    ## References
    ONNX, Reshape. onnxruntime #19119.
    """
    if not c.copies_zero(node):
        return
    dims = c.requested(node, model)
    data = c.shape_of(node.input(0), model)
    if dims is None or data is None:
        return
    wrong = [i for i in c.zeros(dims) if i >= len(data)]
    if wrong:
        yield Match(
            f"the 0 at position {wrong[0]} of the shape {c.text(dims)} copies a dimension that the data, of rank "
            f"{len(data)}, does not have: TensorRT and ONNX Runtime reject it",
            node=node,
        )


zero_without_counterpart.examples = [
    _flagged("position 2 of a tensor with axes 0 and 1", _reshape("2,6", "A,B,C", "2, 6, 0", "", s="3")),
    _flagged(
        "a known rank with unknown sizes; opset 13", _reshape("N,M", "A,B,C", "0, -1, 0", "", s="3"), opset=13
    ),
    _flagged(
        "the other elements of the shape are computed",
        """g (float[N] x) => (float[A,B] y) <int64[1] z = {0}> {
            d = Shape(x) s = Concat<axis=0>(d, z) y = Reshape(x, s) }""",
    ),
    _flagged("a scalar has no axes", "g (float x) => (float[A] y) <int64[1] s = {0}> { y = Reshape(x, s) }"),
    Silent("the last axis may be copied", _reshape("2,6", "A,6", "-1, 0", "")),
    Silent("with allowzero=1 nothing is copied", _reshape("0", "2,0", "2, 0", "<allowzero=1>")),
    Silent(
        "the rank is unknown",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,3] x) => (float[A,B] y) <int64[2] s = {3, 0}> { u = my.op(x) y = Reshape(u, s) }""",
    ),
    Silent(
        "a default that may be overridden is not a constant",
        "g (float[6] x, int64[2] s = {6, 0}) => (float[A,B] y) { y = Reshape(x, s) }",
    ),
]
