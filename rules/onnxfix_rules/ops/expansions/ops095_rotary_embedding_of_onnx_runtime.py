"""OPS095: the RotaryEmbedding of ONNX Runtime, whose inputs are in another order than those of ONNX's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

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
    rule,
    target_of,
)
from onnxfix_rules.ops import _rewrite
from onnxfix_rules.ops._runtimes import origin
from onnxfix_rules.ops.expansions import _attend
from onnxfix_rules.ops.expansions._formulas import Operand, known_float


class _Form(NamedTuple):
    """What is turned: ``heads`` of ``size``, of which the first ``turned`` elements are, and the data's rank."""

    heads: int
    size: int
    turned: int
    rank: int


@rule(
    "OPS095",
    ops=["com.microsoft::RotaryEmbedding"],
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    hazards=[13],
)
def rotary_embedding_of_onnx_runtime(node: Node, model: Model) -> Iterator[Match]:
    """A RotaryEmbedding of ONNX Runtime that the target does not take.

    ## Why it matters
    ONNX Runtime's model builder and `onnxruntime.transformers.optimizer` write it into language models. Its inputs are
    data, positions and tables; those of ONNX's operator of that name are data, tables and positions. TensorRT-RTX 1.7.1
    was measured to tell the two apart, to take ONNX Runtime's, and to refuse two forms of it: three dimensions without
    `num_heads` (`num_heads attribute is required for 3D input tensors`), and a single position from which the others
    are counted (`positionIds has rank 1 but must have rank 2`). Of other targets it is not known that they tell them
    apart; TensorRT 8 has neither.

    ## Fix
    For TensorRT-RTX the number of heads, which follows from the widths of data and tables, and positions that are
    counted: exact. For others the definition, by Gather, Split, Mul, Add and Concat: NUMERIC, since a product and a sum
    may be one instruction in ONNX Runtime.

    None where widths are not known, and for types other than float32 and float16.

    ## References
    - https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.RotaryEmbedding
    - https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html
    """
    data, places, cosines = node.input(0), node.input(1), node.input(2)
    if (
        node.function is not None
        or data is None
        or places is None
        or cosines is None
        or node.output() is None
    ):
        return
    target = target_of(model)
    if target.package != "tensorrt-rtx":
        lacks = "may read it as ONNX's" if target.imports("RotaryEmbedding") else "has no importer for it"
        yield Match(
            f"{_TITLE}: {target.title} {lacks}; {origin(node)}", node=node, fix=_decomposed(node, model)
        )
        return
    if model.shapes.rank(data) == 3 and not node.attr("num_heads", 0):
        lacks = "asks for num_heads where the data has three dimensions"
        yield Match(f"{_TITLE}: {target.title} {lacks}", node=node, fix=_counted(node, model))
    elif model.shapes.rank(places) == 1:
        lacks = "takes no single position to count from"
        yield Match(f"{_TITLE}: {target.title} {lacks}", node=node, fix=_placed(node, data, places, model))


_TITLE = "com.microsoft.RotaryEmbedding"


def _form(node: Node, model: Model) -> _Form | None:
    """The sizes of what is turned; None where they are not known or do not fit each other."""
    data, cosines = (
        model.shapes.shape(one) if one is not None else None for one in (node.input(0), node.input(2))
    )
    if data is None or cosines is None or len(cosines) != 2 or len(data) not in (3, 4):
        return None
    width, half = data[-1].value, cosines[1].value
    heads, turned = int(node.attr("num_heads", 0)), int(node.attr("rotary_embedding_dim", 0))
    if width is None or half is None or half < 1 or (turned and turned != 2 * half):
        return None
    if len(data) == 4:
        size, heads = width, 0
    elif heads:
        size = width // heads
    else:
        size, heads = 2 * half, width // (2 * half)
    fits = 2 * half <= size and (turned or 2 * half == size) and (len(data) == 4 or heads * size == width)
    return _Form(heads, size, 2 * half, len(data)) if fits else None


def _counted(node: Node, model: Model) -> Fix | None:
    form = _form(node, model)
    if form is None or node.attr("rotary_embedding_dim", 0):
        return None
    draft = Draft(node)
    draft.set_attr(node, "num_heads", form.heads)
    return Fix(f"say that there are {form.heads} heads", draft.edits, Safety.EXACT)


def _placed(node: Node, data: Value, places: Value, model: Model) -> Fix | None:
    rank = model.shapes.rank(data)
    known = known_float(node, data) in _attend.FLOATS and model.shapes.elem_type(places) == TensorProto.INT64
    if rank not in (3, 4) or not known or node.scope.opset() < 11:
        return None
    draft = Draft(node)
    draft.set_input(node, 1, _places(draft, data, places, rank))
    return Fix("write the positions out", draft.edits, Safety.EXACT)


def _places(draft: Draft, data: Value, places: Value, rank: int) -> str:
    """A position for each batch and place, counted from the one that is given."""
    zero, one = (draft.constant(np.array(number, np.int64), "place") for number in (0, 1))
    shape = draft.add("Shape", [data])
    axis = draft.constant(np.array(rank - 2, np.int64), "axis")
    length = draft.add("Gather", [shape, axis], axis=0)
    counted = draft.add("Add", [draft.add("Range", [zero, length, one]), places])
    first, ends, axes = (
        draft.constant(np.array([k], np.int64), "end") for k in (0, 2 if rank == 3 else 1, 0)
    )
    sizes = draft.add("Slice", [shape, first, ends, axes])
    if rank == 4:
        sizes = draft.add("Concat", [sizes, _rewrite.unsqueeze(draft, length, [0])], axis=0)
    return draft.add("Expand", [counted, sizes])


def _decomposed(node: Node, model: Model) -> Fix | None:
    data, places, cosines, sines = (node.input(index) for index in range(4))
    output = node.output()
    if data is None or places is None or cosines is None or sines is None or output is None:
        return None
    form, elem = _form(node, model), known_float(node, data, cosines, sines)
    rank = model.shapes.rank(places)
    known = model.shapes.elem_type(places) == TensorProto.INT64
    if (
        form is None
        or elem not in _attend.FLOATS
        or rank not in (1, 2)
        or not known
        or node.scope.opset() < 11
    ):
        return None
    draft = Draft(node)
    draft.remove(node)
    axis = 1 if form.rank == 4 else 2
    whole: Operand = data
    if form.rank == 3:
        whole = draft.add("Reshape", [data, _sizes(draft, 0, 0, form.heads, form.size)])
    at = places.name if rank == 2 else _places(draft, data, places, form.rank)
    tables = [
        _rewrite.unsqueeze(draft, draft.add("Gather", [one, at], axis=0), [axis]) for one in (cosines, sines)
    ]
    last = "" if form.rank == 3 else output.name
    found = _turned(draft, whole, (tables[0], tables[1]), form, bool(node.attr("interleaved", 0)), last)
    if form.rank == 3:
        draft.add("Reshape", [found, _sizes(draft, 0, 0, form.heads * form.size)], output=output.name)
    return Fix("decompose RotaryEmbedding", draft.edits, Safety.NUMERIC)


def _turned(
    draft: Draft, data: Operand, tables: tuple[str, str], form: _Form, pairs: bool, output: str
) -> str:
    """The data with the first elements of each head turned, as ``output``."""
    half, rest = form.turned // 2, form.size - form.turned
    if not pairs:
        first, second, *more = _attend.split(draft, data, (half, half, *([rest] if rest else [])), 3)
        return draft.add("Concat", [*_moved(draft, first, second, tables), *more], output=output, axis=3)
    inner, *more = _attend.split(draft, data, (form.turned, rest), 3) if rest else (data,)
    two = draft.add("Reshape", [inner, _sizes(draft, 0, 0, 0, half, 2)])
    first, second = _attend.split(draft, two, (1, 1), 4)
    cosines, sines = (_rewrite.unsqueeze(draft, one, [4]) for one in tables)
    both = draft.add("Concat", _moved(draft, first, second, (cosines, sines)), axis=4)
    flat = draft.add("Reshape", [both, _sizes(draft, 0, 0, 0, form.turned)], output="" if rest else output)
    return draft.add("Concat", [flat, *more], output=output, axis=3) if rest else flat


def _moved(draft: Draft, first: str, second: str, tables: tuple[str, str]) -> list[Value | str | None]:
    """Both coordinates after the turn."""
    cosines, sines = tables
    return [
        draft.add("Sub", [draft.add("Mul", [first, cosines]), draft.add("Mul", [second, sines])]),
        draft.add("Add", [draft.add("Mul", [first, sines]), draft.add("Mul", [second, cosines])]),
    ]


def _sizes(draft: Draft, *sizes: int) -> str:
    return draft.constant(np.array(sizes, np.int64), "shape")


_HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
_G = "g (float[B,S,8] x, int64[{p}] p, float[9,2] c, float[9,2] s) => (float[B,S,8] y)"
_FOUR = "g (float[2,3,5,4] x, int64[2,5] p, float[9,2] c, float[9,2] s) => (float[2,3,5,4] y)"
_CALL = "com.microsoft.RotaryEmbedding"


rotary_embedding_of_onnx_runtime.examples = [
    Fixed(
        "the number of heads follows from the tables, and TensorRT-RTX asks for it",
        before=f"{_HEAD} {_G.format(p='B,S')} {{ y = {_CALL}(x, p, c, s) }}",
        after=f"{_HEAD} {_G.format(p='B,S')} {{ y = {_CALL}<num_heads = 2>(x, p, c, s) }}",
        target="rtx",
        runs=False,
    ),
    Fixed(
        "one position, from which the others are counted",
        before=f"{_HEAD} {_G.format(p='1')} {{ y = {_CALL}<num_heads = 2>(x, p, c, s) }}",
        after=f"""{_HEAD} {_G.format(p="1")} <int64 n0 = {{0}}, int64 n1 = {{1}}, int64[1] k0 = {{0}},
            int64[1] k1 = {{2}}, int64[1] k2 = {{0}}, int64 t = {{1}}> {{
            d = Shape(x)  l = Gather<axis = 0>(d, t)  r = Range(n0, l, n1)  a = Add(r, p)  e = Slice(d, k0, k1, k2)
            q = Expand(a, e)  y = {_CALL}<num_heads = 2>(x, q, c, s) }}""",
        target="rtx",
        runs=False,
    ),
    Fixed(
        "TensorRT 8 has no such operator",
        before=f"{_HEAD} {_FOUR} {{ y = {_CALL}(x, p, c, s) }}",
        after=f"""{_HEAD} {_FOUR} <int64[1] a = {{1}}, int64[1] b = {{1}}, int64[2] l = {{2,2}}> {{
            c1 = Gather<axis = 0>(c, p)  c2 = Unsqueeze(c1, a)  s1 = Gather<axis = 0>(s, p)  s2 = Unsqueeze(s1, b)
            u, v = Split<axis = 3>(x, l)  uc = Mul(u, c2)  vs = Mul(v, s2)  m = Sub(uc, vs)
            us = Mul(u, s2)  vc = Mul(v, c2)  n = Add(us, vc)  y = Concat<axis = 3>(m, n) }}""",
        safety=Safety.NUMERIC,
        target="trt8.6",
        runs=False,
    ),
    Fixed(
        "pairs of neighbors, and a part of each head that is not turned",
        before=f"""{_HEAD} g (float[2,5,12] x, int64[2,5] p, float[9,2] c, float[9,2] s) => (float[2,5,12] y) {{
            y = {_CALL}<num_heads = 2, rotary_embedding_dim = 4, interleaved = 1>(x, p, c, s) }}""",
        after=f"""{_HEAD} g (float[2,5,12] x, int64[2,5] p, float[9,2] c, float[9,2] s) => (float[2,5,12] y)
            <int64[4] h = {{0,0,2,6}}, int64[1] a = {{2}}, int64[1] b = {{2}}, int64[2] l = {{4,2}},
             int64[5] g0 = {{0,0,0,2,2}}, int64[2] i = {{1,1}}, int64[1] j = {{4}}, int64[1] k = {{4}},
             int64[4] g1 = {{0,0,0,4}}, int64[3] o = {{0,0,12}}> {{
            w = Reshape(x, h)  c1 = Gather<axis = 0>(c, p)  c2 = Unsqueeze(c1, a)  s1 = Gather<axis = 0>(s, p)
            s2 = Unsqueeze(s1, b)  t, r = Split<axis = 3>(w, l)  t2 = Reshape(t, g0)  u, v = Split<axis = 4>(t2, i)
            c3 = Unsqueeze(c2, j)  s3 = Unsqueeze(s2, k)  uc = Mul(u, c3)  vs = Mul(v, s3)  m = Sub(uc, vs)
            us = Mul(u, s3)  vc = Mul(v, c3)  n = Add(us, vc)  z = Concat<axis = 4>(m, n)  z2 = Reshape(z, g1)
            e = Concat<axis = 3>(z2, r)  y = Reshape(e, o) }}""",
        safety=Safety.NUMERIC,
        target="trt8.6",
        runs=False,
    ),
    Flagged(
        "it has to be asked for",
        f"{_HEAD} {_FOUR} {{ y = {_CALL}(x, p, c, s) }}",

        target="trt8.6",
        runs=False,
    ),
    Flagged(
        "tables whose width is not known",
        f"""{_HEAD} g (float[2,3,5,4] x, int64[2,5] p, float[9,W] c, float[9,W] s) => (float[2,3,5,4] y) {{
            y = {_CALL}(x, p, c, s) }}""",

        safety=Safety.NUMERIC,
        target="trt8.6",
        runs=False,
    ),
    Silent("TensorRT-RTX takes it", f"{_HEAD} {_FOUR} {{ y = {_CALL}(x, p, c, s) }}", target="rtx",
            runs=False),
    Silent(
        "with the number of heads also in three dimensions",
        f"{_HEAD} {_G.format(p='B,S')} {{ y = {_CALL}<num_heads = 2>(x, p, c, s) }}",
        target="rtx",
        runs=False,
    ),
    Silent(
        "a local function of that name, which OPS060 is about",
        f"""{_HEAD} g (float[2] x) => (float[2] y) {{ y = {_CALL}(x) }}
            <domain: "com.microsoft", opset_import: ["" : 17]> RotaryEmbedding (a) => (b) {{ b = Neg(a) }}""",
    ),
]  # fmt: skip
