"""OPS069 and OPS099: forms that only later releases take."""
# Long because: two examples of each form.

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
    Value,
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


def _is_part(node: Node, model: Model) -> bool:
    """Whether a Shape leaves out sizes, or it is not known."""
    end, rank = node.attr("end", None), _rank(node, model)
    return bool(node.attr("start", 0)) or (end is not None and (rank is None or end < rank))


def _has_more_indices(node: Node, model: Model) -> bool:
    data, indices = (model.shapes.static_shape(node.require(index)) for index in (0, 1))
    if (
        node.attr("reduction", "none") != "none"
        or data is None
        or indices is None
        or len(data) != len(indices)
    ):
        return False  # a plugin scatters with a reduction
    return any(many > few for many, few in zip(indices, data, strict=True))


_FORMS: tuple[tuple[tuple[int, ...], tuple[str, ...], Callable[[Node, Model], bool], str], ...] = (
    ((10,), ("Shape",), _is_part, "ignores start and end of Shape"),
    ((10, 3), ("Slice",), _varies(3), "requires constant axes of Slice"),
    ((10,), ("Resize",), lambda node, model: node.attr("axes") is not None and _varies(3)(node, model),
     "requires constant sizes of a Resize with axes"),
    ((10, 12), ("Pow",), lambda node, model: _elem(node, model, 0) in _WHOLE, "has no Pow of integers"),
    ((10, 8), ("Pow",), lambda node, model: _elem(node, model, 1) in _WHOLE, "has no Pow of integers"),
    ((10, 14), ("Conv",), _has_computed_kernel,
     "requires the kernel of a Conv of one dimension to be constant"),
    ((10, 14), ("QuantizeLinear",), lambda node, model: _elem(node, model, 2) == _FLOAT8 and _varies(1)(node, model),
     "requires a constant scale for float8"),
    ((10, 14), ("DequantizeLinear",), lambda node, model: _elem(node, model, 0) == _FLOAT8 and _varies(1)(node, model),
     "requires a constant scale for float8"),
    ((10, 14), ("DeformConv",), lambda node, model: True,
     "needs libcublas.so.12 where an engine with DeformConv runs: without it the result is 0, and only a log says so"),
    ((10, 15), ("CumSum",), _varies(1), "requires a constant axis of CumSum"),
    ((10, 9), ("ScatterND",),
     lambda node, model: target_of(model).oldest >= (10,) and node.attr("reduction", None) == "none",
     "refuses the attribute reduction of ScatterND, even at its default"),
    ((11, 2), ("GridSample",), lambda node, model: _rank(node, model) not in (None, 4),
     "has GridSample of two dimensions only"),
    ((12,), ("ScatterElements",), _has_more_indices, "refuses more indices than elements along an axis"),
    ((12,), ("STFT",), lambda node, model: _varies(1)(node, model) or _varies(2)(node, model),
     "requires a constant frame step and window of STFT"),
    ((12,), ("DFT",), _is_other_transform, "has DFT only along the constant axis -2, real ones with onesided"),
    ((12,), _RANDOM, lambda node, _: node.attr("seed", None) is not None, "ignores the seed"),
)  # fmt: skip
"""The first release that takes the form, operators, whether a node has it, and what older ones do."""
_NEWEST = (11, 2)
"""The release whose parser TensorRT-RTX shares."""
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
    Measured by executing ONNX's node models with TensorRT 8.6.1 and 10.6.0, and importing them with 10.15.1 and 11.2.1:

    - 8.6.1: `start` and `end` of Shape are ignored (`reshape changes volume`, or the process dies), as by the parser's
      source up to 9.3; Slice with axes that are not constant: `This version of TensorRT does not support dynamic axes.`
      (in the source of 10.1 too; the changelog of 10.3 names axes as a tensor)
    - 10.6.0: without `libcublas.so.12` an engine with DeformConv gives 0 and reports success (`Failed to load
      libcublas.so.12.` in the log); with cuBLAS 12.1.3 all of 16 models are right
    - 10.6.0: Pow of integers, CumSum along an axis that is not constant, GridSample of 5 dimensions (`Parameter check
      failed, condition: input.getDimensions().nbDims == 4`), a one-dimensional Conv with a computed kernel, and float8
      with a computed scale are refused or not built
    - 10.0 to 10.8: ScatterND with `reduction` "none", the default: `Attribute reduction is not supported.`
    - 10.15.1 imports CumSum along an axis that is not constant
    - the changelog: Pow has integer exponents since 10.8 and integer bases since 10.12; GridSample of 5 dimensions came
      with 11.2
    - 11.2.1 and TensorRT-RTX 1.7.1: `FrameStep must be an initializer!` for STFT
    - 11.2.1: `FFTPlugin supports DFT only on axis -2`
    - all, from 8.6.1 to 11.2.1 and TensorRT-RTX 1.7.1: ScatterElements with more indices than elements along an axis,
      which ONNX allows along `axis`: `Indices dimensions must be less than data dimensions!`
    - all: the seed of random numbers is ignored

    ## Fix
    Exact: Shape without `start` and `end`, and a Slice of the result; a Conv of two dimensions, the first of size 1;
    the axis 0 of a CumSum over a vector; ScatterND without the default. Numeric: Pow of floats, which rounds integers
    from 2^24 on. No fix for the others.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    target = target_of(model)
    if target.imports(node.op_type) is False:
        return
    version = target.oldest if target.package == "tensorrt" else _NEWEST
    for before, names, applies, text in _FORMS:
        if version < before and node.op_type in names and applies(node, model):
            message = f"{target.title} {text}"
            yield Match(message, node=node, severity=_SEVERITIES.get(node.op_type), fix=_fix(node, model))
            return


def _fix(node: Node, model: Model) -> Fix | None:
    draft = Draft(node)
    if node.op_type == "Shape":
        whole = draft.add("Shape", [node.require(0)])
        start = draft.integers([node.attr("start", 0)], "start")
        end = draft.integers([node.attr("end", 2**31 - 1)], "end")
        draft.replace_output(node, draft.add("Slice", [whole, start, end]))
        return Fix("slice the whole shape", draft.edits)
    if node.op_type == "ScatterND":
        draft.set_attr(node, "reduction", None)
        return Fix("drop the attribute, which is at its default", draft.edits)
    if node.op_type == "CumSum" and _rank(node, model) == 1:
        draft.set_input(node, 1, draft.integers(0, "axis"))
        return Fix("write the axis 0, the only one of a vector, as a constant", draft.edits)
    make = {"Conv": _widen, "Pow": _raise_floats}.get(node.op_type)
    return None if make is None else make(node, model)


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
_POWER = "g (float[3] x, int32[3] p) => (float[3] y) { y = Pow(x, p) }"
_SLICE = "g (float[4,N] x, int64[1] s, int64[1] e, int64[1] a) => (float[A,B] y) { y = Slice(x, s, e, a) }"
_VOLUME = "g (float[1,1,2,3,4] x, float[1,2,2,2,3] p) => (float[1,1,2,2,2] y) { y = GridSample(x, p) }"


def _scatter_nd(attributes: str) -> str:
    return f"""g (float[4] x, int64[2,1] i, float[2] u) => (float[4] y) {{
        y = ScatterND{attributes}(x, i, u) }}"""


_SCATTER = "g (float[2,3] x, int64[4,3] i, float[4,3] u) => (float[2,3] y) { y = ScatterElements(x, i, u) }"
_SEED = "g () => (float[2] y) { y = RandomNormal<shape = [2], seed = 1.0>() }"

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
        before=_POWER,
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
        before=_scatter_nd('<reduction = "none">'),
        after="g (float[4] x, int64[2,1] i, float[2] u) => (float[4] y) { y = ScatterND(x, i, u) }",
        target="10.7",
    ),
    Silent("another reduction: OPS039", _scatter_nd('<reduction = "add">'), target="trt10.6"),
    Silent("TensorRT 10.9 and later take the default", _scatter_nd('<reduction = "none">'), target="10.9"),
    Flagged("computed axes of a Slice, for TensorRT 10.2", _SLICE, target="10.2", runs=False),
    Silent("TensorRT 10.3 takes them", _SLICE, target="10.3", runs=False),
    Silent("an integer exponent, since 10.8", _POWER, target="10.8"),
    Flagged("images of three dimensions, for TensorRT 11.1", _VOLUME, opset=20, target="11.1", runs=False),
    Silent("TensorRT 11.2 takes them", _VOLUME, opset=20, target="11.2", runs=False),
    Flagged(
        "the axis of CumSum is an input",
        "g (float[2,3] x, int64 a) => (float[2,3] y) { y = CumSum(x, a) }",
        target="trt10.6",
    ),
    Flagged("more indices than elements along the axis", _SCATTER),
    Flagged("more indices than elements, for TensorRT-RTX", _SCATTER, target="rtx"),
    Silent("as many indices", _SCATTER.replace("4,3", "2,3")),
    Flagged("a seed", _SEED, runs=False),
    Flagged("a seed, for TensorRT-RTX", _SEED, target="rtx", runs=False),
    Silent(
        "all sizes", "g (float[A,B] x) => (int64[2] y) { y = Shape<start = 0, end = 9>(x) }", target="trt8.6"
    ),
    Silent("TensorRT-RTX", "g (float[2,3] x, int64 a) => (float[2,3] y) { y = CumSum(x, a) }", target="rtx"),
]


@rule("OPS069", ops=["Clip"], safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[74])
def clip_with_non_constant_bounds(node: Node, model: Model) -> Iterator[Match]:
    """A Clip of float16 whose minimum or maximum is not a weight: TensorRT before 8.5 refuses it.

    ## Why it matters
    TensorRT imports Clip as an activation layer, which stores both bounds; where one is not a weight, as a maximum and
    a minimum of tensors. Before 8.5 the parser does so in float32 and int32 alone: `This version of TensorRT only
    supports FLOAT or INT32 inputs for Clip!` (builtin_op_importers.cpp of TensorRT 8.0 to 8.4, which was read, not
    run). In float32 such a Clip is right with TensorRT 8.6.1 and 10.6.0 (measured, as is that TensorRT-RTX 1.7.1
    accepts it), and the source of 8.5 to 10.1 has float16 too.

    ## Fix
    `Min(Max(x, min), max)`: first the minimum, then the maximum, which wins if they cross. This is ONNX's definition of
    Clip, and the values are the same. NUMERIC because of two special values of a bound: with -0.0 the sign of a zero
    differs, even between the vectorized and the last elements of ONNX Runtime's Clip, and a NaN, which ONNX leaves
    open, is ignored by ONNX Runtime's Clip but not by its Max. A NaN in the data stays in both. On the side of a
    missing bound an infinity stays, which ONNX Runtime's Clip changes to the largest finite value.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Clip.html
    - https://github.com/onnx/onnx-tensorrt/blob/release/8.4-GA/builtin_op_importers.cpp
    """
    target = target_of(model)
    data = node.require(0)
    node.require_output()
    if target.package != "tensorrt" or target.oldest >= (8, 5) or node.opset < 11:
        return
    if model.shapes.elem_type(data) != TensorProto.FLOAT16 or not any(map(_is_not_weight, node.inputs[1:3])):
        return
    message = f"the bounds of this Clip are not constant: {target.title} requires weights in float16"
    yield Match(message, node=node, fix=_decomposed(node, data, model))


def _is_not_weight(value: Value | None) -> bool:
    """Whether the parser finds a tensor instead of a weight. False in functions, whose inputs may be either."""
    if value is None or value.initializer is not None or value.is_constant:
        return False
    return value.scope.root.kind != "function"


def _decomposed(node: Node, data: Value, model: Model) -> Fix | None:
    steps = [
        (op, bound) for op, bound in zip(("Max", "Min"), node.inputs[1:], strict=False) if bound is not None
    ]
    if any(model.shapes.rank(bound) != 0 for _, bound in steps):
        return None
    draft, value = Draft(node), data.name
    for op_type, bound in steps:
        value = draft.add(op_type, [value, bound])
    draft.replace_output(node, value)
    return Fix("decompose into Max and Min", draft.edits, Safety.NUMERIC)


_BOTH = "g (float16[N] x, float16 a, float16 b) => (float16[N] y)"
_BELOW = "g (float16[N] x, float16 a) => (float16[N] y)"
_numeric = partial(Fixed, safety=Safety.NUMERIC, target="trt8.4")
_silent = partial(Silent, target="trt8.4")


clip_with_non_constant_bounds.examples = [
    _numeric(
        "both bounds are graph inputs",
        before=f"{_BOTH} {{ y = Clip(x, a, b) }}",
        after=f"""{_BOTH} {{ u = Max(x, a)  y = Min(u, b) }}""",
        opset=13,
    ),
    _numeric(
        "only a minimum, computed by the model",
        before=f"{_BELOW} {{ m = Neg(a)  y = Clip(x, m) }}",
        after=f"{_BELOW} {{ m = Neg(a)  y = Max(x, m) }}",
        opset=11,
    ),
    _numeric(
        "a non-constant maximum; the minimum is a weight",
        before=f"{_BELOW} <float16 z = {{0}}> {{ y = Clip(x, z, a) }}",
        after=f"""{_BELOW} <float16 z = {{0}}> {{
            u = Max(x, z)  y = Min(u, a) }}""",
    ),
    _numeric(
        "a maximum alone",
        before=f"{_BELOW} {{ y = Clip(x, , a) }}",
        after=f"{_BELOW} {{ y = Min(x, a) }}",
    ),
    Flagged("not fixed by default", f"{_BOTH} {{ y = Clip(x, a, b) }}", target="trt8.4"),
    Silent("TensorRT 8.5 accepts it", f"{_BOTH} {{ y = Clip(x, a, b) }}", target="8.5"),
    _silent("float32", "g (float[N] x, float a) => (float[N] y) { y = Clip(x, a) }"),
    _silent(
        "weights",
        "g (float16[N] x) => (float16[N] y) <float16 a = {0}, float16 b = {6}> { y = Clip(x, a, b) }",
    ),
    _silent(
        "a default that the caller may override, which TensorRT treats as a weight",
        "g (float16[N] x, float16 a = {0}) => (float16[N] y) { y = Clip(x, a) }",
    ),
    _silent(
        "bounds as attributes",
        "g (float16[N] x) => (float16[N] y) { y = Clip<min = 0.0, max = 6.0>(x) }",
        opset=6,
    ),
    _silent(
        "integers, which TensorRT clips by Min and Max layers",
        "g (int32[N] x, int32 a) => (int32[N] y) { y = Clip(x, a) }",
    ),
    _silent(
        "in a function, whose caller may pass weights",
        """<ir_version: 9, opset_import: ["" : 18, "d" : 1]> g (float16[N] x) => (float16[N] y) <float16 a = {0}> {
            y = d.f(x, a) }
            <domain: "d", opset_import: ["" : 18]> f (u, l) => (w) { w = Clip(u, l) }""",
    ),
]
