"""OPS099: forms of operators that only later releases of TensorRT import, build or compute right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

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
    rule,
    target_of,
)
from onnxfix_rules.ops.limits import _axes

_FLOAT8 = TensorProto.FLOAT8E4M3FN
_WHOLE = (TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)
_RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")


def _varies(index: int) -> Callable[[Node, Model], bool]:
    return lambda node, model: _axes.non_constant(node, model, index) is not None


def _elem(node: Node, model: Model, index: int) -> int | None:
    value = node.input(index)
    return None if value is None else model.shapes.elem_type(value)


def _rank(node: Node, model: Model) -> int | None:
    data = node.input(0)
    return None if data is None else model.shapes.rank(data)


def _size(node: Node, model: Model, index: int, axis: int) -> int | None:
    value = node.input(index)
    shape = None if value is None else model.shapes.static_shape(value)
    return None if shape is None or not -len(shape) <= axis < len(shape) else shape[axis]


def _has_computed_kernel(node: Node, model: Model) -> bool:
    wide = _size(node, model, 1, -1) != 1
    return _rank(node, model) == 3 and wide and _varies(1)(node, model)


def _is_other_transform(node: Node, model: Model) -> bool:
    """Whether a DFT is not along the axis -2, which is a constant, or is one-sided where it must not be."""
    value, rank = node.input(2), _rank(node, model)
    if _varies(2)(node, model):
        return True
    known = value.constant() if value is not None else None
    axis = node.attr("axis", 1) if node.opset < 20 else -2 if value is None or known is None else int(known)
    real = _size(node, model, 0, -1) == 1 and not node.attr("inverse", 0)
    return (rank is not None and axis not in (-2, rank - 2)) or (real and not node.attr("onesided", 0))


_FORMS: tuple[tuple[tuple[int, ...], tuple[str, ...], Callable[[Node, Model], bool], str], ...] = (
    ((9,), ("Shape",), lambda node, _: bool(node.attr("start", 0) or node.attr("end", None) is not None),
     "ignores start and end of Shape"),
    ((9,), ("Slice",), _varies(3), "requires constant axes of Slice"),
    ((9,), ("Resize",), lambda node, model: node.attr("axes") is not None and _varies(3)(node, model),
     "requires constant sizes of a Resize with axes"),
    ((10, 14), ("Pow",), lambda node, model: any(_elem(node, model, i) in _WHOLE for i in (0, 1)),
     "has no Pow of integers"),
    ((10, 14), ("Conv",), _has_computed_kernel,
     "requires the kernel of a Conv of one dimension to be constant"),
    ((10, 14), ("QuantizeLinear",), lambda node, model: _elem(node, model, 2) == _FLOAT8 and _varies(1)(node, model),
     "requires a constant scale for float8"),
    ((10, 14), ("DequantizeLinear",), lambda node, model: _elem(node, model, 0) == _FLOAT8 and _varies(1)(node, model),
     "requires a constant scale for float8"),
    ((10, 14), ("DeformConv",), lambda node, model: True,
     "needs libcublas.so.12 where an engine with DeformConv runs: without it the result is 0, and only a log says so"),
    ((11,), ("CumSum",), _varies(1), "requires a constant axis of CumSum"),
    ((11,), ("ScatterND",),
     lambda node, model: target_of(model).oldest >= (10,) and node.attr("reduction", None) == "none",
     "refuses the attribute reduction of ScatterND, even at its default"),
    ((11,), ("GridSample",), lambda node, model: _rank(node, model) not in (None, 4),
     "has GridSample of two dimensions only"),
    ((12,), ("STFT",), lambda node, model: _varies(1)(node, model) or _varies(2)(node, model),
     "requires a constant frame step and window of STFT"),
    ((12,), ("DFT",), _is_other_transform, "has DFT only along the constant axis -2, real ones with onesided"),
    ((12,), _RANDOM, lambda node, _: node.attr("seed", None) is not None, "ignores the seed"),
)  # fmt: skip
"""The first release that takes the form, operators, whether a node has it, and what older ones do."""
_SEVERITIES = dict.fromkeys(("DeformConv", *_RANDOM), Severity.INFO)
_OPS = tuple(dict.fromkeys(name for _, names, _, _ in _FORMS for name in names))


@rule(
    "OPS099",
    ops=_OPS,
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    differs={"function": "an input of a function may be a constant where it is called"},
)
def form_of_a_later_release(node: Node, model: Model) -> Iterator[Match]:
    """A form of an operator that the target refuses or misreads, although later releases, or none, import it.

    ## Why it matters
    Measured by executing ONNX's node models with TensorRT 8.6.1 and 10.6.0, and importing them with 11.2.1:

    - 8.6.1: `start` and `end` of Shape are ignored (`reshape changes volume`, or the process dies); Slice with axes
      that are not constant: `This version of TensorRT does not support dynamic axes.`
    - 10.6.0: without `libcublas.so.12` an engine with DeformConv gives 0 and reports success (`Failed to load
      libcublas.so.12.` in the log); with cuBLAS 12.1.3 all of 16 models are right
    - 10.6.0: Pow of integers, CumSum along an axis that is not constant, GridSample of 5 dimensions (`Parameter check
      failed, condition: input.getDimensions().nbDims == 4`), a one-dimensional Conv with a computed kernel, and float8
      with a computed scale are refused or not built
    - 10.0 to 10.6: ScatterND with `reduction` "none", the default: `Attribute reduction is not supported.`
    - 11.2.1: `FrameStep must be an initializer!` for STFT, `FFTPlugin supports DFT only on axis -2`
    - all: the seed of random numbers is ignored

    ## Fix
    Exact: Shape without `start` and `end`, and a Slice of the result; a Conv of two dimensions, the first of size 1;
    the axis 0 of a CumSum over a vector; ScatterND without the default. Numeric: Pow of floats, which rounds integers
    from 2^24 on. No fix for the others.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    target = target_of(model)
    if target.package != "tensorrt" or target.imports(node.op_type) is False:
        return
    for before, names, applies, text in _FORMS:
        if target.oldest < before and node.op_type in names and applies(node, model):
            yield Match(
                f"{target.title} {text}",
                node=node,
                severity=_SEVERITIES.get(node.op_type),
                fix=_fix(node, model),
            )
            return


def _fix(node: Node, model: Model) -> Fix | None:
    make = {
        "Shape": _slice_shape,
        "Conv": _widen,
        "CumSum": _sum_vector,
        "Pow": _raise_floats,
        "ScatterND": _drop_default,
    }.get(node.op_type)
    return make(node, model) if make is not None else None


def _slice_shape(node: Node, _: Model) -> Fix:
    draft = Draft(node)
    whole = draft.add("Shape", [node.require(0)])
    start = draft.integers([node.attr("start", 0)], "start")
    end = draft.integers([node.attr("end", 2**31 - 1)], "end")
    draft.replace_output(node, draft.add("Slice", [whole, start, end]))
    return Fix("slice the whole shape", draft.edits)


def _widen(node: Node, _: Model) -> Fix:
    """The Conv of two dimensions, of which the first has size 1."""
    draft = Draft(node)
    attributes = {"auto_pad": node.attr("auto_pad", "NOTSET"), "group": node.attr("group", 1)}
    for name in ("kernel_shape", "strides", "dilations"):
        if (sizes := node.attr(name)) is not None:
            attributes[name] = [1, *sizes]
    if (pads := node.attr("pads")) is not None:
        attributes["pads"] = [0, pads[0], 0, pads[1]]
    data, kernel = (draft.unsqueeze(node.require(index), [2]) for index in (0, 1))
    wide = draft.add("Conv", [data, kernel, *node.inputs[2:]], **attributes)
    draft.replace_output(node, draft.squeeze(wide, [2]))
    return Fix("convolve in two dimensions, the first of size 1", draft.edits)


def _sum_vector(node: Node, model: Model) -> Fix | None:
    if _rank(node, model) != 1:
        return None
    draft = Draft(node)
    draft.set_input(node, 1, draft.integers(0, "axis"))
    return Fix("write the axis 0, the only one of a vector, as a constant", draft.edits)


def _drop_default(node: Node, _: Model) -> Fix:
    draft = Draft(node)
    draft.set_attr(node, "reduction", None)
    return Fix("drop the attribute, which is at its default", draft.edits)


def _raise_floats(node: Node, model: Model) -> Fix | None:
    """In float32, which rounds integers from 2**24 on."""
    base = _elem(node, model, 0)
    if base is None or any(_elem(node, model, i) == TensorProto.BOOL for i in (0, 1)):
        return None
    draft = Draft(node)
    floats = base if base not in _WHOLE else TensorProto.FLOAT
    operands = [
        draft.cast(node.require(i), floats) if _elem(node, model, i) != floats else node.require(i)
        for i in (0, 1)
    ]
    power = draft.add("Pow", operands)
    draft.replace_output(node, power if base == floats else draft.cast(power, base))
    return Fix("raise in floating point", draft.edits, Safety.NUMERIC)


_fixed = partial(Fixed, target="trt10.6")
form_of_a_later_release.examples = [
    Fixed(
        "the last dimensions, for TensorRT 8.6",
        before="g (float[A,B,C] x) => (int64[N] y) { s = Shape<start = 1>(x)  y = Neg(s) }",
        after="""g (float[A,B,C] x) => (int64[N] y) <int64[1] b = {1}, int64[1] e = {2147483647}> {
            w = Shape(x)  s = Slice(w, b, e)  y = Neg(s) }""",
        target="trt8.6",
    ),
    _fixed(
        "the power is an integer",
        before="g (float[3] x, int32[3] p) => (float[3] y) { y = Pow(x, p) }",
        after="g (float[3] x, int32[3] p) => (float[3] y) { f = Cast<to = 1>(p)  y = Pow(x, f) }",
        safety=Safety.NUMERIC,
    ),
    _fixed(
        "integers alone",
        before="g (int64[3] x, int32[3] p) => (int64[3] y) { y = Pow(x, p) }",
        after="""g (int64[3] x, int32[3] p) => (int64[3] y) {
            a = Cast<to = 1>(x)  f = Cast<to = 1>(p)  w = Pow(a, f)  y = Cast<to = 7>(w) }""",
        safety=Safety.NUMERIC,
    ),
    _fixed(
        "a kernel that is computed",
        before="""g (float[2,4,9] x, float[6,2,3] w, float[6] b) => (float[2,6,5] y) {
            y = Conv<group = 2, strides = [2], pads = [1,1], kernel_shape = [3], dilations = [1]>(x, w, b) }""",
        after="""g (float[2,4,9] x, float[6,2,3] w, float[6] b) => (float[2,6,5] y) <
            int64[1] a = {2}, int64[1] d = {2}, int64[1] e = {2}> { u = Unsqueeze(x, a)  v = Unsqueeze(w, d)
            c = Conv<auto_pad = "NOTSET", group = 2, strides = [1,2], pads = [0,1,0,1], kernel_shape = [1,3],
                dilations = [1,1]>(u, v, b)
            y = Squeeze(c, e) }""",
    ),
    _fixed(
        "the axis of a vector",
        before="g (float[3] x, int64 a) => (float[3] y) { y = CumSum<reverse = 1>(x, a) }",
        after="g (float[3] x, int64 a) => (float[3] y) <int64 z = {0}> { y = CumSum<reverse = 1>(x, z) }",
    ),
    _fixed(
        "ScatterND with the default written out",
        before="""g (float[N,6] x, int64[2,1] i, float[2,6] u) => (float[N,6] y) {
            s = ScatterND<reduction = "none">(x, i, u)  y = Neg(s) }""",
        after="""g (float[N,6] x, int64[2,1] i, float[2,6] u) => (float[N,6] y) {
            s = ScatterND(x, i, u)  y = Neg(s) }""",
    ),
    Fixed(
        "for TensorRT 10.7 too",
        before="""g (float[4] x, int64[2,1] i, float[2] u) => (float[4] y) {
            y = ScatterND<reduction = "none">(x, i, u) }""",
        after="g (float[4] x, int64[2,1] i, float[2] u) => (float[4] y) { y = ScatterND(x, i, u) }",
        target="trt10",
    ),
    Silent(
        "another reduction: OPS039",
        """g (float[4] x, int64[2,1] i, float[2] u) => (float[4] y) {
            y = ScatterND<reduction = "add">(x, i, u) }""",
        target="trt10.6",
    ),
    Silent(
        "TensorRT 11 takes the default",
        """g (float[4] x, int64[2,1] i, float[2] u) => (float[4] y) {
            y = ScatterND<reduction = "none">(x, i, u) }""",
        target="trt11",
    ),
    Flagged(
        "the axis of CumSum is an input",
        "g (float[2,3] x, int64 a) => (float[2,3] y) { y = CumSum(x, a) }",
        target="trt10.6",
    ),
    Flagged("a seed", "g () => (float[2] y) { y = RandomNormal<shape = [2], seed = 1.0>() }", runs=False),
    Silent("later releases", "g (float[3] x, int32[3] p) => (float[3] y) { y = Pow(x, p) }", target="trt11"),
    Silent("Shape", "g (float[A,B] x) => (int64[2] y) { y = Shape<start = 0>(x) }", target="trt8.6"),
    Silent("TensorRT-RTX", "g (float[2,3] x, int64 a) => (float[2,3] y) { y = CumSum(x, a) }", target="rtx"),
]
