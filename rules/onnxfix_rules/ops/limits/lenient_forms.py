"""Forms that others accept and TensorRT refuses (OPS020, OPS115 to OPS117)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxfix.rule import (
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
    Value,
    is_small,
    rule,
    target_of,
)

_UNSAFE = ("Affine", "ScaledTanh", "Softplus", "ThresholdedRelu")
"""Activations that TensorRT refuses or computes in another way (OPS082)."""
_SPELLINGS = {
    name.lower(): name
    for name in (*_UNSAFE, "Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softsign", "Tanh")
}


@rule("OPS115", ops=["GRU", "LSTM"], safety=Safety.EXACT, severity=Severity.ERROR)
def activation_in_another_case(node: Node, model: Model) -> Iterator[Match]:
    """A GRU or LSTM whose `activations` are not spelled as in ONNX, such as `sigmoid`.

    ## Why it matters
    ONNX Runtime compares the names without case, and TensorRT with it. The parser stops: `Unknown activation type:
    sigmoid`, measured with TensorRT-RTX 1.7.1. In an RNN, ONNX Runtime refuses such names as well.

    ## Fix
    Write the names as ONNX spells them. Exact: measured with ONNX Runtime 1.27, the outputs of both spellings have the
    same bits, for each name, with and without `activation_alpha`.

    There is no fix if one of the names is Affine, which TensorRT refuses, Softplus, for which it computes 0 (OPS082),
    or ScaledTanh or ThresholdedRelu, of which it has other defaults than ONNX Runtime.

    ## References
    - https://onnx.ai/onnx/operators/onnx__LSTM.html, attribute activations
    """
    names = [
        name.decode("utf-8", "replace") if isinstance(name, bytes) else name
        for name in node.attr("activations", ())
    ]
    written = [_SPELLINGS.get(name.lower(), name) for name in names]
    if written == names:
        return
    fix, wrong = None, [name for name in names if name not in written]
    if not set(written) & set(_UNSAFE):
        draft = Draft(node)
        draft.set_attr(node, "activations", written)
        fix = Fix(f"write {', '.join(written)}", draft.edits)
    yield Match(f"TensorRT does not know the activation {wrong[0]} of {node.op_type}", node=node, fix=fix)


_LSTM = "g (float[3,2,2] x, float[1,16,2] w, float[1,16,4] r) => (float[1,2,4] h)"
_GRU = "g (float[T,B,2] x, float[2,12,2] w, float[2,12,4] r) => (float[2,B,4] h)"

activation_in_another_case.examples = [
    Fixed(
        "lower case",
        before=_LSTM + ' { , h = LSTM<hidden_size = 4, activations = ["sigmoid", "tanh", "tanh"]>(x, w, r) }',
        after=_LSTM + ' { , h = LSTM<hidden_size = 4, activations = ["Sigmoid", "Tanh", "Tanh"]>(x, w, r) }',
    ),
    Fixed(
        "both directions of a GRU, some in capitals",
        before=_GRU
        + """ { , h = GRU<hidden_size = 4, direction = "bidirectional",
                activations = ["Sigmoid", "TANH", "hardSigmoid", "softsign"]>(x, w, r) }""",
        after=_GRU
        + """ { , h = GRU<hidden_size = 4, direction = "bidirectional",
                activations = ["Sigmoid", "Tanh", "HardSigmoid", "Softsign"]>(x, w, r) }""",
        opset=14,
    ),
    Flagged(
        "a Softplus, which TensorRT would accept and compute as 0",
        _LSTM + ' { , h = LSTM<hidden_size = 4, activations = ["sigmoid", "softplus", "tanh"]>(x, w, r) }',
    ),
    Silent(
        "as ONNX spells them",
        _LSTM + ' { , h = LSTM<hidden_size = 4, activations = ["Sigmoid", "ScaledTanh", "Tanh"]>(x, w, r) }',
    ),
    Silent("default activations", _LSTM + " { , h = LSTM<hidden_size = 4>(x, w, r) }"),
]


@rule("OPS116", ops=["Slice"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[45])
def slice_by_scalars(node: Node, model: Model) -> Iterator[Match]:
    """A Slice whose starts, ends, axes or steps are scalars.

    ## Why it matters
    ONNX requires tensors of one axis. TensorRT-RTX 1.7.1 (measured) stops: `The shape of input starts misaligns with
    the shape of input axes. Shape of input starts = 1, shape of input axes = 2.` without axes, `mismatched inputs` with
    steps, and its parser dies with starts and axes. ONNX Runtime loads such a model and refuses the node when it runs:
    `Starts must be a 1-D array`. The ONNX reference takes scalar starts and ends.

    ## Fix
    Give them one axis. Exact: the elements are the same, and in this form all agree on what they mean.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Slice.html
    """
    if node.opset < 10:
        return
    draft, names = Draft(node), []
    for index, name in enumerate(("starts", "ends", "axes", "steps"), 1):
        value = node.input(index)
        if value is None or model.shapes.rank(value) != 0:
            continue
        array = value.constant()
        vector = draft.reshape(value, [1]) if array is None else draft.constant(array.reshape(1), name)
        draft.set_input(node, index, vector)
        names.append(name)
    if names:
        listed = ", ".join(names)
        yield Match(f"Slice by scalars ({listed})", node=node, fix=Fix("give them one axis", draft.edits))


slice_by_scalars.examples = [
    Fixed(
        "constant starts and ends",
        before="g (float[4] x) => (float[2] y) <int64 s = {1}, int64 e = {3}> { y = Slice(x, s, e) }",
        after="g (float[4] x) => (float[2] y) <int64[1] s = {1}, int64[1] e = {3}> { y = Slice(x, s, e) }",
    ),
    Fixed(
        "an end of run time",
        before="g (float[4] x, int64 e) => (float[A] y) <int64 s = {1}> { y = Slice(x, s, e) }",
        after="""g (float[4] x, int64 e) => (float[A] y) <int64[1] s = {1}, int64[1] k = {1}> {
            r = Reshape(e, k)  y = Slice(x, s, r) }""",
    ),
    Fixed(
        "all of them, which no backend runs",
        before="""g (float[4,4] x) => (float[4,2] y) <int64 s = {0}, int64 e = {4}, int64 a = {1}, int64 t = {2}> {
            y = Slice(x, s, e, a, t) }""",
        after="""g (float[4,4] x) => (float[4,2] y)
            <int64[1] s = {0}, int64[1] e = {4}, int64[1] a = {1}, int64[1] t = {2}> { y = Slice(x, s, e, a, t) }""",
        runs=False,
    ),
    Silent(
        "tensors of one axis",
        "g (float[4] x) => (float[2] y) <int64[1] s = {1}, int64[1] e = {3}> { y = Slice(x, s, e) }",
    ),
    Silent(
        "of unknown rank",
        """<ir_version: 9, opset_import: ["" : 18, "d" : 1]> g (float[4] x) => (float[A] y) <int64[1] s = {1}> {
            e = d.End(x)  y = Slice(x, s, e) }""",
        runs=False,
    ),
]


@rule("OPS117", ops=["Squeeze"], safety=Safety.EXACT, severity=Severity.ERROR)
def repeated_squeeze_axis(node: Node, model: Model) -> Iterator[Match]:
    """A Squeeze whose axes name one axis twice.

    ## Why it matters
    TensorRT stops: `squeeze axes have duplicate index value of 0`, measured with TensorRT-RTX 1.7.1, 10.15.1 and
    11.2.1, axes counted from the end included. ONNX Runtime removes such an axis once, and so does TensorRT up to 10.6:
    10.6.0 is right (executed, H200), and the source of the parser from 8.4 to 10.1 removes each axis that is in
    the list. Since 10.7 the axes are a tensor (changelog), so that 10.7 to 10.14 are taken to refuse this too.
    Repeated axes of reductions are accepted by both.

    ## Fix
    Name each axis once. Exact: the node moves no element, and its result has the same shape.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Squeeze.html
    """
    target = target_of(model)
    if target.package == "tensorrt" and target.oldest < (10, 7):
        return
    value = node.input(1) if node.opset >= 13 else None
    array = value.constant() if value is not None else None
    axes = [
        int(axis)
        for axis in (node.attr("axes", ()) if node.opset < 13 else () if array is None else array.ravel())
    ]
    rank = model.shapes.rank(node.require(0))
    kept: dict[int, int] = {}
    for axis in axes:
        kept.setdefault(axis % rank if rank else axis, axis)
    if len(kept) == len(axes):
        return
    draft = Draft(node)
    if array is None:
        draft.set_attr(node, "axes", [*kept.values()])
    else:
        draft.set_input(node, 1, draft.constant(np.array([*kept.values()], array.dtype), "axes"))
    yield Match(
        f"Squeeze names an axis twice: {axes}",
        node=node,
        fix=Fix(f"name each axis once: {[*kept.values()]}", draft.edits),
        reads=() if value is None else (value,),
    )


repeated_squeeze_axis.examples = [
    Fixed(
        "the same number",
        before="g (float[1,N] x) => (float[N] y) <int64[2] a = {0, 0}> { y = Squeeze(x, a) }",
        after="g (float[1,N] x) => (float[N] y) <int64[1] a = {0}> { y = Squeeze(x, a) }",
    ),
    Fixed(
        "from the end and from the beginning, between other nodes",
        before="""g (float[1,1,3] x) => (float[3] y) <int64[3] a = {-2, 0, 1}> {
            n = Neg(x)  s = Squeeze(n, a)  y = Abs(s) }""",
        after="""g (float[1,1,3] x) => (float[3] y) <int64[2] a = {-2, 0}> {
            n = Neg(x)  s = Squeeze(n, a)  y = Abs(s) }""",
        opset=13,
    ),
    Fixed(
        "as an attribute",
        before="g (float[2,1,3] x) => (float[2,3] y) { y = Squeeze<axes = [1, 1]>(x) }",
        after="g (float[2,1,3] x) => (float[2,3] y) { y = Squeeze<axes = [1]>(x) }",
        opset=11,
    ),
    Silent(
        "each axis once", "g (float[1,1,3] x) => (float[3] y) <int64[2] a = {0, -2}> { y = Squeeze(x, a) }"
    ),
    Silent("without axes", "g (float[1,1,3] x) => (float[3] y) { y = Squeeze(x) }"),
    Silent(
        "TensorRT 10.6 removes each axis once",
        "g (float[N,1,1,8] x) => (float[N,8] y) <int64[3] a = {1, 2, -2}> { y = Squeeze(x, a) }",
        target="10.6",
    ),
    Silent("axes of run time", "g (float[1,1,3] x, int64[K] a) => (float[A,B] y) { y = Squeeze(x, a) }"),
]


_INDICES: dict[int, type[np.signedinteger[Any]]] = {TensorProto.INT32: np.int32, TensorProto.INT64: np.int64}


@rule("OPS020", ops=["Slice"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[45])
def slice_without_axes(node: Node, model: Model) -> Iterator[Match]:
    """A Slice without `axes` whose data has more axes than it has starts.

    ## Why it matters
    Without `axes`, ONNX Runtime and the ONNX reference slice the first axes, one per start. TensorRT assumes all axes
    of the data and stops: `The shape of input starts misaligns with the shape of input axes. Shape of input starts = 1,
    shape of input axes = 2.`, measured with TensorRT-RTX 1.7.1 for opsets 10 to 20; the parser of TensorRT 10.1 has the
    same line. In opset 9, where starts are an attribute, it accepts the node.

    If the rank of the data is unknown, the finding is a warning: TensorRT refuses the node if the rank exceeds the
    number of starts. If the number of starts is unknown, there is no fix.

    ## Fix
    Add the axes 0, 1, … in the type of the starts. Exact. A Slice with zero starts is a copy and is removed.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Slice.html
    - onnx-tensorrt 10.1, onnxOpImporters.cpp, line 5320
    """
    data, starts, ends = node.require(0), node.require(1), node.input(2)
    if node.opset < 10 or node.input(3) is not None:
        return
    rank = model.shapes.rank(data)
    count = _length(model, starts, ends)
    if rank == count and rank is not None:
        return
    if rank is not None and ((rank < 2 and count != 0) or (count is not None and count > rank)):
        return
    known = "an unknown number of" if count is None else str(count)
    yield Match(
        f"Slice without axes: {known} starts on data of {'unknown rank' if rank is None else f'rank {rank}'}",
        node=node,
        fix=_fix(node, count, model),
        severity=Severity.WARNING if rank is None or count is None else Severity.ERROR,
        reads=tuple(v for v in (data, starts, ends) if v is not None),
    )


def _length(model: Model, *values: Value | None) -> int | None:
    """The number of starts, from the shape of the starts or the ends."""
    for value in values:
        shape = None if value is None else model.shapes.static_shape(value)
        if shape is not None and len(shape) < 2:
            return shape[0] if shape else 1
    return None


def _fix(node: Node, count: int | None, model: Model) -> Fix | None:
    data, starts = node.require(0), node.require(1)
    draft = Draft(node)
    if count == 0:
        draft.bypass(node, data)
        return Fix("remove the Slice, which copies its input", draft.edits)
    dtype = _INDICES.get(model.shapes.elem_type(starts) or 0)
    if count is None or dtype is None or not is_small(count):
        return None
    draft.set_input(node, 3, draft.constant(np.arange(count, dtype=dtype), "axes"))
    return Fix(f"add axes {list(range(count))}", draft.edits)


_IN = "<int64[1] s = {1}, int64[1] e = {3}>"


slice_without_axes.examples = [
    Fixed(
        "one start, data of rank 2",
        before=f"g (float[4,N] x) => (float[2,N] y) {_IN} {{ y = Slice(x, s, e) }}",
        after="""g (float[4,N] x) => (float[2,N] y) <int64[1] s = {1}, int64[1] e = {3}, int64[1] a = {0}> {
            y = Slice(x, s, e, a) }""",
    ),
    Fixed(
        "with steps; axes get the type of the starts",
        before="""g (float[6,3,2] x) => (float[2,1,2] y)
            <int32[2] s = {5, 0}, int32[2] e = {-6, 1}, int32[2] t = {-3, 1}> {
            y = Slice(x, s, e, , t) }""",
        after="""g (float[6,3,2] x) => (float[2,1,2] y)
            <int32[2] s = {5, 0}, int32[2] e = {-6, 1}, int32[2] t = {-3, 1}, int32[2] a = {0, 1}> {
            y = Slice(x, s, e, a, t) }""",
    ),
    Fixed(
        "starts and ends are not constant, but their count is known",
        before="g (float[4,5] x, int64[1] s, int64[1] e) => (float[A,5] y) { y = Slice(x, s, e) }",
        after="""g (float[4,5] x, int64[1] s, int64[1] e) => (float[A,5] y) <int64[1] a = {0}> {
            y = Slice(x, s, e, a) }""",
        opset=11,
    ),
    Fixed(
        "opset 10, the first with starts as an input",
        before=f"g (float[4,5] x) => (float[2,5] y) {_IN} {{ y = Slice(x, s, e) }}",
        after="""g (float[4,5] x) => (float[2,5] y) <int64[1] s = {1}, int64[1] e = {3}, int64[1] a = {0}> {
            y = Slice(x, s, e, a) }""",
        opset=10,
    ),
    Fixed(
        "zero starts: a copy",
        before="g (float[4,5] x) => (float[4,5] y) <int64[0] s = {}> { t = Slice(x, s, s)  y = Neg(t) }",
        after="g (float[4,5] x) => (float[4,5] y) { y = Neg(x) }",
    ),
    Fixed(
        "unknown rank: TensorRT may refuse it",
        before=f"""g (float[A,B] x, int64[K] h) => (float[C,D] y) {_IN} {{
            r = Reshape(x, h)  t = Slice(r, s, e)  y = Reshape(t, h) }}""",
        after="""g (float[A,B] x, int64[K] h) => (float[C,D] y)
            <int64[1] s = {1}, int64[1] e = {3}, int64[1] a = {0}> {
            r = Reshape(x, h)  t = Slice(r, s, e, a)  y = Reshape(t, h) }""",
        runs=False,
    ),
    Flagged(
        "unknown number of starts",
        "g (float[4,5] x, int64[K] s, int64[K] e) => (float[A,B] y) { y = Slice(x, s, e) }",
    ),
    Silent(
        "as many starts as axes",
        """g (float[4,5] x) => (float[2,1] y) <int64[2] s = {1, 2}, int64[2] e = {3, 3}> {
            y = Slice(x, s, e) }""",
    ),
    Silent("data of rank 1", f"g (float[4] x) => (float[2] y) {_IN} {{ y = Slice(x, s, e) }}"),
    Silent(
        "data of rank 1, unknown number of starts",
        "g (float[4] x, int64[K] s, int64[K] e) => (float[A] y) { y = Slice(x, s, e) }",
    ),
    Silent(
        "axes are given",
        f"g (float[5,4] x) => (float[5,2] y) {_IN[:-1]}, int64[1] a = {{1}}> {{ y = Slice(x, s, e, a) }}",
    ),
    Silent(
        "before opset 10 starts are attributes, which the parser counts",
        "g (float[4,5] x) => (float[2,5] y) { y = Slice<starts = [1], ends = [3]>(x) }",
        opset=9,
    ),
]
