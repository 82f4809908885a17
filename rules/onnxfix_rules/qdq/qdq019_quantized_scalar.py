"""QDQ019: quantization of a scalar, which gains a dimension."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxfix.rule import (
    Edit,
    Fix,
    Fixed,
    Flagged,
    Formal,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    Value,
    rule,
    signature,
    takes,
    target_of,
)

from ._read import DEQUANTIZE, QUANTIZE, WEIGHT_LIMIT, Array, is_op, scope_opset
from ._region import ScalarRegion, region_at, shows
from ._rewrite import Unable, Workshop

_ZERO = np.array([0], np.int64)


@rule("QDQ019", ops=(*QUANTIZE, *DEQUANTIZE), safety=Safety.EXACT, severity=Severity.ERROR, hazards=[23])
def quantized_scalar(node: Node, model: Model) -> Iterator[Match]:
    """A QuantizeLinear or DequantizeLinear of a scalar whose added dimension is visible.

    ## Why it matters
    TensorRT's Q/DQ layers do not support scalars, so its parser makes a one-element vector and never converts back:
    the model's output has shape `[1]` where ONNX has `[]`, an Unsqueeze gives `[1,1]`, a Shape `[1]`. The build
    succeeds without a warning (measured with TensorRT-RTX 1.7.1, by the imported network). Other models are refused
    because of it: a branch whose other branch returns a scalar (`Must have inputs with equal ranks`), a Concat, and
    quantized constants, which are now separated from DequantizeLinear by a SHUFFLE (`Quantized constant (w) is only
    allowed before DQ`).

    Among vectors the difference is invisible, since a scalar broadcasts like a one-element vector; that is not
    reported. If an operator not known to this rule reads the value, it is a warning.

    ## Fix
    An Unsqueeze before the quantization (a constant is stored as a vector), and a Squeeze after the dequantization; a
    Reshape for float8, which neither supports in opsets 19 and 20. Exact. No fix if scales or zero points are
    vectors: the builder refuses those for one element either way. No fix for a quantized constant that the caller may
    override, and for types that no operator of the opset can reshape.

    ## References
    - https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
    """
    region = region_at(node, model)
    if region is None:
        return
    held = not is_op(node, "QuantizeLinear") and (
        region.data.initializer is not None or region.data.is_constant
    )
    ends = [*region.results, *(v for v in node.outputs if v is not None and region.readers and region.open)]
    shown = True if held else shows(ends, region, model)
    if shown is False:
        return
    title = target_of(model).title
    what = "refuses a quantized constant" if held else "adds a dimension to a quantized scalar"
    yield Match(
        f"{region.data.name!r} is a scalar: {title} {what}",
        node=node,
        severity=Severity.ERROR if shown else Severity.WARNING,
        fix=_fix(region, model, held),
        reads=region.readers,
    )


def _fix(region: ScalarRegion, model: Model, held: bool) -> Fix | None:
    nodes = (region.first, *region.readers)
    for one in nodes:
        for side in (one.input(1), one.input(2)):
            if side is not None and model.shapes.rank(side) != 0:
                return None
    array = region.data.constant(WEIGHT_LIMIT)
    if scope_opset(region.first) < 1 or (array is None and held):
        return None
    try:
        edits = _edits(region, model, array)
    except Unable:
        return None
    return Fix("quantize the scalar as a vector", edits)


def _edits(region: ScalarRegion, model: Model, array: Array | None) -> list[Edit]:
    shop, first = Workshop(), region.first
    if array is None:
        data = _axis(
            shop, first, "Unsqueeze", region.data.name, _elems(region.data, first, model, made=False)
        )
    else:
        data = shop.constant(first, array.reshape(1), "vector")
    quantized = _again(shop, first, data)
    for one in region.readers:
        _give(shop, one, _again(shop, one, quantized), model)
    if region.open or not region.readers:
        _give(shop, first, quantized, model)
    else:
        shop.at(first).remove(first)
    return shop.edits


def _again(shop: Workshop, node: Node, data: str) -> str:
    """Put the node on a vector."""
    return shop.like(node, node.op_type, [data, *node.inputs[1:]], domain=node.domain)


def _give(shop: Workshop, node: Node, vector: str, model: Model) -> None:
    """Replace the node's output by a scalar made from the vector."""
    output = node.require_output()
    elems = _elems(output, node, model, made=True)
    if output.replaceable:
        shop.put(node, _axis(shop, node, "Squeeze", vector, elems))
    else:
        shop.at(node).remove(node)
        _axis(shop, node, "Squeeze", vector, elems, output.name)


def _elems(value: Value, node: Node, model: Model, *, made: bool) -> frozenset[int]:
    """The element types of a node's data or, with ``made``, of its result."""
    elem = model.shapes.elem_type(value)
    if elem:
        return frozenset({elem})
    known = signature(node.op_type, scope_opset(node))
    formal: Formal | None = None if known is None else known.output(0) if made else known.input(0)
    return frozenset() if formal is None else formal.elems


def _axis(
    shop: Workshop, node: Node, op_type: str, value: str, elems: frozenset[int], output: str = ""
) -> str:
    """Squeeze or Unsqueeze of the first axis, in the opset's form; a Reshape for types that they lack in opset 13.

    Reshape supports those from opset 19, the others from 21, for which ONNX Runtime 1.32 has no kernels.

    Raises:
        Unable: the opset has neither for one of the element types.
    """
    opset, draft = scope_opset(node), shop.at(node)
    if all(takes(op_type, min(opset, 13), elem) for elem in elems):
        if opset < 13:
            return draft.add(op_type, [value], output=output, axes=[0])
        return draft.add(op_type, [value, shop.constant(node, _ZERO, "axis")], output=output)
    if not all(takes("Reshape", opset, elem) for elem in elems):
        raise Unable
    shape = np.array([1] if op_type == "Unsqueeze" else [], np.int64)
    return draft.add("Reshape", [value, shop.constant(node, shape, "shape")], output=output)


_C = "float s = {0.5}, int8 z = {0}"
_A = f"{_C}, int64[1] a = {{0}}"
_PAIR = "q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z)"
_MADE = "e = Unsqueeze(x, a)  q = QuantizeLinear(e, s, z)  d = DequantizeLinear(q, s, z)"


quantized_scalar.examples = [
    Fixed(
        "the model's output becomes a one-element vector",
        before=f"g (float x) => (float y) <{_C}> {{ {_PAIR} }}",
        after=f"g (float x) => (float y) <{_A}> {{ {_MADE}  y = Squeeze(d, a) }}",
    ),
    Fixed(
        "opset 12, where axes are attributes",
        before=f"g (float x) => (float y) <{_C}> {{ {_PAIR} }}",
        after=f"""g (float x) => (float y) <{_C}> {{ e = Unsqueeze<axes = [0]>(x)  q = QuantizeLinear(e, s, z)
            d = DequantizeLinear(q, s, z)  y = Squeeze<axes = [0]>(d) }}""",
        opset=12,
    ),
    Fixed(
        "the mean of a dynamic batch, followed by other operators",
        before=f"""g (float[N] v) => (float y) <{_C}, float k = {{2}}> {{ x = ReduceMean<keepdims = 0>(v)
            q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  r = Relu(d)  y = Mul(r, k) }}""",
        after=f"""g (float[N] v) => (float y) <{_A}, float k = {{2}}> {{ x = ReduceMean<keepdims = 0>(v)
            {_MADE}  c = Squeeze(d, a)  r = Relu(c)  y = Mul(r, k) }}""",
    ),
    Fixed(
        "an added dimension before an Unsqueeze",
        before=f"""g (float x) => (float[1] y) <{_A}> {{
            q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  y = Unsqueeze(d, a) }}""",
        after=f"""g (float x) => (float[1] y) <{_A}, int64[1] b = {{0}}> {{
            {_MADE}  c = Squeeze(d, a)  y = Unsqueeze(c, b) }}""",
    ),
    Fixed(
        "the quantized value is a graph output and has two readers",
        before=f"""g (float x) => (int8 q, float y, float u) <{_C}> {{
            {_PAIR}  u = DequantizeLinear(q, s, z) }}""",
        after=f"""g (float x) => (int8 q, float y, float u) <{_A}> {{
            e = Unsqueeze(x, a)  p = QuantizeLinear(e, s, z)  q = Squeeze(p, a)
            d = DequantizeLinear(p, s, z)  y = Squeeze(d, a)
            f = DequantizeLinear(p, s, z)  u = Squeeze(f, a) }}""",
    ),
    Fixed(
        "a quantized graph input",
        before=f"g (int8 x) => (float y) <{_C}> {{ y = DequantizeLinear(x, s, z) }}",
        after=f"""g (int8 x) => (float y) <{_A}> {{
            e = Unsqueeze(x, a)  d = DequantizeLinear(e, s, z)  y = Squeeze(d, a) }}""",
    ),
    Fixed(
        "a constant is stored as a vector",
        before=f"g (float[N] v) => (float[N] u, float y) <{_C}, float x = {{3}}> {{ {_PAIR}  u = Mul(v, y) }}",
        after=f"""g (float[N] v) => (float[N] u, float y) <{_A}, float[1] e = {{3}}> {{
            q = QuantizeLinear(e, s, z)  d = DequantizeLinear(q, s, z)  y = Squeeze(d, a)  u = Mul(v, y) }}""",
    ),
    Fixed(
        "a float8 constant, which TensorRT refuses as a scalar",
        before="""g (float[N] x) => (float[N] y) <float s = {0.5}, float8e4m3fn w = {56}> {
            d = DequantizeLinear(w, s)  y = Mul(x, d) }""",
        after="""g (float[N] x) => (float[N] y) <float s = {0.5}, float8e4m3fn[1] w = {56}, int64[1] a = {0}> {
            e = DequantizeLinear(w, s)  d = Squeeze(e, a)  y = Mul(x, d) }""",
        opset=19,
    ),
    Fixed(
        "float8 in opset 21",
        before="""g (float x) => (float y, float8e4m3fn q) <float s = {0.5}, float8e4m3fn z = {0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        after="""g (float x) => (float y, float8e4m3fn q)
            <float s = {0.5}, float8e4m3fn z = {0}, int64[1] a = {0}, int64[0] n = {}> {
            e = Unsqueeze(x, a)  p = QuantizeLinear(e, s, z)  d = DequantizeLinear(p, s, z)
            q = Reshape(p, n)  y = Squeeze(d, a) }""",
        opset=21,
        ir_version=10,
    ),
    Fixed(
        "float8 in a local function of opset 19, called with a quantized value",
        before="""<ir_version: 10, opset_import: ["" : 21, "f" : 1]>
            g (float8e4m3fn x) => (float y) { y = f.h(x) }
            <domain: "f", opset_import: ["" : 19]> h (x) => (y) {
            n = Constant<value = int64[0] {}>()  r = Reshape(x, n)
            s = Constant<value = float {0.5}>()  y = DequantizeLinear(r, s) }""",
        after="""<ir_version: 10, opset_import: ["" : 21, "f" : 1]>
            g (float8e4m3fn x) => (float y) { y = f.h(x) }
            <domain: "f", opset_import: ["" : 19]> h (x) => (y) {
            n = Constant<value = int64[0] {}>()  r = Reshape(x, n)
            s = Constant<value = float {0.5}>()  o = Constant<value = int64[1] {1}>()
            e = Reshape(r, o)  d = DequantizeLinear(e, s)
            a = Constant<value = int64[1] {0}>()  y = Squeeze(d, a) }""",
    ),
    Flagged(
        "float8 from Microsoft's operator before ONNX had the type",
        """<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
            g (float8e4m3fn x) => (float y) <float s = {0.5}> { y = com.microsoft.DequantizeLinear(x, s) }""",
        runs=False,
        differs={"branch": "only the main graph's caller certainly sees the shape"},
    ),
    Flagged(
        "the constant may be overridden",
        f"""g (float[N] x, int8 w) => (float[N] y) <{_C}, int8 w = {{3}}> {{
            d = DequantizeLinear(w, s, z)  y = Mul(x, d) }}""",
    ),
    Flagged(
        "a vector of scales, which TensorRT refuses for one element, scalar or not",
        """g (float x) => (float y) <float[1] s = {0.5}, int8[1] z = {0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        differs={"branch": "only the main graph's caller certainly sees the shape"},
    ),
    Fixed(
        "com.microsoft",
        before=f"""<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
            g (float x) => (float y) <{_C}> {{
            q = com.microsoft.QuantizeLinear(x, s, z)  y = com.microsoft.DequantizeLinear(q, s, z) }}""",
        after=f"""<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
            g (float x) => (float y) <{_A}> {{ e = Unsqueeze(x, a)
            q = com.microsoft.QuantizeLinear(e, s, z)  d = com.microsoft.DequantizeLinear(q, s, z)
            y = Squeeze(d, a) }}""",
    ),
    Fixed(
        "inside a branch whose other branch returns a scalar",
        before=f"""g (float x, bool c) => (float y) <{_C}> {{
            y = If(c)<then_branch = p () => (float u) {{
                q = QuantizeLinear(x, s, z)  u = DequantizeLinear(q, s, z) }},
                else_branch = r () => (float v) {{ v = Neg(x) }}> }}""",
        after=f"""g (float x, bool c) => (float y) <{_C}> {{
            y = If(c)<then_branch = p () => (float u) <int64[1] a = {{0}}> {{ {_MADE}  u = Squeeze(d, a) }},
                else_branch = r () => (float v) {{ v = Neg(x) }}> }}""",
    ),
    Fixed(
        "inside a local function",
        before="""<ir_version: 10, opset_import: ["" : 21, "f" : 1]>
            g (float[N] v) => (float y) { y = f.h(v) }
            <domain: "f", opset_import: ["" : 21]> h (v) => (y) {
            s = Constant<value = float {0.5}>()  x = ReduceSum<keepdims = 0>(v)
            q = QuantizeLinear<output_dtype = 3>(x, s)  y = DequantizeLinear(q, s) }""",
        after="""<ir_version: 10, opset_import: ["" : 21, "f" : 1]>
            g (float[N] v) => (float y) { y = f.h(v) }
            <domain: "f", opset_import: ["" : 21]> h (v) => (y) {
            s = Constant<value = float {0.5}>()  x = ReduceSum<keepdims = 0>(v)
            a = Constant<value = int64[1] {0}>()  b = Constant<value = int64[1] {0}>()
            e = Unsqueeze(x, a)  q = QuantizeLinear<output_dtype = 3>(e, s)
            d = DequantizeLinear(q, s)  y = Squeeze(d, b) }""",
    ),
    Silent(
        "among vectors a scalar and a one-element vector are equivalent",
        f"""g (float x, float[N] v) => (float[N] y) <{_C}> {{
            q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  n = Neg(d)  y = Add(n, v) }}""",
    ),
    Silent(
        "as a scale, and with an explicit output shape",
        f"""g (float x, float[N,4] v) => (float[N,4] y, float[1,1] u) <{_C}, int64[2] k = {{1, 1}}> {{
            q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  u = Reshape(d, k)
            p = QuantizeLinear(v, d, z)  y = DequantizeLinear(p, d, z) }}""",
    ),
    Silent("a one-element vector", f"g (float[1] x) => (float[1] y) <{_C}> {{ {_PAIR} }}"),
    Silent(
        "unknown rank",
        """<ir_version: 9, opset_import: ["" : 18, "f" : 1]>
            g (float[N] x) => (float[N] y) { y = f.h(x)  }
            <domain: "f", opset_import: ["" : 18]> h (x) => (y) {
            s = Constant<value = float {0.5}>()  z = Constant<value = int8 {0}>()
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
    ),
    Silent(
        "scalar integers are covered by QDQ002",
        f"""g (float[N] x) => (float y, float[N] u) <{_C}, int8 w = {{3}}> {{
            y = DequantizeLinear(w, s, z)  u = Neg(x) }}""",
    ),
]
