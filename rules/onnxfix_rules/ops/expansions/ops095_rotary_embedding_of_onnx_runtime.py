"""OPS095: ONNX Runtime's RotaryEmbedding, whose inputs are ordered differently from ONNX's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

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
from onnxfix_rules.ops._runtimes import origin
from onnxfix_rules.ops.expansions import _formulas
from onnxfix_rules.ops.expansions._formulas import Operand, known_float


class _Form(NamedTuple):
    """The data's rank, and ``heads`` of ``size``, of which the first ``rotated`` elements are rotated."""

    heads: int
    size: int
    rotated: int
    rank: int


@rule(
    "OPS095",
    ops=["com.microsoft::RotaryEmbedding"],
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    hazards=[43],
)
def rotary_embedding_of_onnx_runtime(node: Node, model: Model) -> Iterator[Match]:
    """A RotaryEmbedding of ONNX Runtime that the target does not support.

    ## Why it matters
    ONNX Runtime's model builder and `onnxruntime.transformers.optimizer` write it into language models. Its inputs are
    data, positions and tables; those of ONNX's operator of that name are data, tables and positions. TensorRT-RTX 1.7.1
    was measured to distinguish the two, to accept ONNX Runtime's, and to reject two forms of it: three dimensions
    without `num_heads` (`num_heads attribute is required for 3D input tensors`), and a single start position
    (`positionIds has rank 1 but must have rank 2`). Whether other targets distinguish them is unknown; TensorRT 8 has
    neither.

    ## Fix
    For TensorRT-RTX the number of heads, derived from the widths of data and tables, and explicit positions: exact. For
    others the definition, by Gather, Split, Mul, Add and Concat: NUMERIC, because a product and a sum may be one
    instruction in ONNX Runtime.

    No fix where widths are unknown, and for types other than float32 and float16.

    ## References
    - https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.RotaryEmbedding
    - https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html
    """
    data, positions, cosines = node.input(0), node.input(1), node.input(2)
    if node.function is not None or data is None:
        return
    if positions is None or cosines is None or node.output() is None:
        return
    target = target_of(model)
    if target.package != "tensorrt-rtx":
        problem = "may import it as ONNX's" if target.imports("RotaryEmbedding") else "has no importer for it"
        yield Match(
            f"{_TITLE}: {target.title} {problem}; {origin(node)}", node=node, fix=_decomposed(node, model)
        )
        return
    if model.shapes.rank(data) == 3 and not node.attr("num_heads", 0):
        problem = "requires num_heads for data of three dimensions"
        yield Match(f"{_TITLE}: {target.title} {problem}", node=node, fix=_with_heads(node, model))
    elif model.shapes.rank(positions) == 1:
        problem = "does not support a single start position"
        message = f"{_TITLE}: {target.title} {problem}"
        yield Match(message, node=node, fix=_with_positions(node, data, positions, model))


_TITLE = "com.microsoft.RotaryEmbedding"


def _form(node: Node, model: Model) -> _Form | None:
    """The sizes of what is rotated; None where unknown or inconsistent."""
    data, cosines = (
        model.shapes.shape(one) if one is not None else None for one in (node.input(0), node.input(2))
    )
    if data is None or cosines is None or len(cosines) != 2 or len(data) not in (3, 4):
        return None
    width, half = data[-1].value, cosines[1].value
    heads, rotated = int(node.attr("num_heads", 0)), int(node.attr("rotary_embedding_dim", 0))
    if width is None or half is None or half < 1 or (rotated and rotated != 2 * half):
        return None
    if len(data) == 4:
        size, heads = width, 0
    elif heads:
        size = width // heads
    else:
        size, heads = 2 * half, width // (2 * half)
    fits = 2 * half <= size and (rotated or 2 * half == size) and (len(data) == 4 or heads * size == width)
    return _Form(heads, size, 2 * half, len(data)) if fits else None


def _with_heads(node: Node, model: Model) -> Fix | None:
    form = _form(node, model)
    if form is None or node.attr("rotary_embedding_dim", 0):
        return None
    draft = Draft(node)
    draft.set_attr(node, "num_heads", form.heads)
    return Fix(f"set num_heads to {form.heads}", draft.edits, Safety.EXACT)


def _with_positions(node: Node, data: Value, positions: Value, model: Model) -> Fix | None:
    rank = model.shapes.rank(data)
    known = (
        known_float(node, data) in _formulas.ATTENTION_TYPES
        and model.shapes.elem_type(positions) == TensorProto.INT64
    )
    if rank not in (3, 4) or not known or node.scope.opset() < 11:
        return None
    draft = Draft(node)
    draft.set_input(node, 1, _positions(draft, data, positions, rank))
    return Fix("make the positions explicit", draft.edits, Safety.EXACT)


def _positions(draft: Draft, data: Value, positions: Value, rank: int) -> str:
    """A position for each batch and element, counted from the given one."""
    zero, one = (draft.integers(number, "place") for number in (0, 1))
    shape = draft.add("Shape", [data])
    axis = draft.integers(rank - 2, "axis")
    length = draft.add("Gather", [shape, axis], axis=0)
    counted = draft.add("Add", [draft.add("Range", [zero, length, one]), positions])
    first, ends, axes = (draft.integers([k], "end") for k in (0, 2 if rank == 3 else 1, 0))
    sizes = draft.add("Slice", [shape, first, ends, axes])
    if rank == 4:
        sizes = draft.add("Concat", [sizes, draft.unsqueeze(length, [0])], axis=0)
    return draft.add("Expand", [counted, sizes])


def _decomposed(node: Node, model: Model) -> Fix | None:
    data, positions, cosines, sines = (node.input(index) for index in range(4))
    output = node.output()
    if data is None or positions is None or cosines is None or sines is None or output is None:
        return None
    form, elem = _form(node, model), known_float(node, data, cosines, sines)
    rank = model.shapes.rank(positions)
    known = model.shapes.elem_type(positions) == TensorProto.INT64
    if form is None or elem not in _formulas.ATTENTION_TYPES:
        return None
    if rank not in (1, 2) or not known or node.scope.opset() < 11:
        return None
    draft = Draft(node)
    draft.remove(node)
    axis = 1 if form.rank == 4 else 2
    split_heads: Operand = data
    if form.rank == 3:
        split_heads = draft.add("Reshape", [data, _sizes(draft, 0, 0, form.heads, form.size)])
    at = positions.name if rank == 2 else _positions(draft, data, positions, form.rank)
    tables = [draft.unsqueeze(draft.add("Gather", [one, at], axis=0), [axis]) for one in (cosines, sines)]
    last = "" if form.rank == 3 else output.name
    found = _rotated(
        draft, split_heads, (tables[0], tables[1]), form, bool(node.attr("interleaved", 0)), last
    )
    if form.rank == 3:
        draft.add("Reshape", [found, _sizes(draft, 0, 0, form.heads * form.size)], output=output.name)
    return Fix("decompose RotaryEmbedding", draft.edits, Safety.NUMERIC)


def _rotated(
    draft: Draft, data: Operand, tables: tuple[str, str], form: _Form, pairs: bool, output: str
) -> str:
    """The data with the first elements of each head rotated, as ``output``."""
    half, rest = form.rotated // 2, form.size - form.rotated
    if not pairs:
        first, second, *more = draft.split(data, (half, half, *([rest] if rest else [])), 3)
        return draft.add("Concat", [*_rotation(draft, first, second, tables), *more], output=output, axis=3)
    inner, *more = draft.split(data, (form.rotated, rest), 3) if rest else (data,)
    two = draft.add("Reshape", [inner, _sizes(draft, 0, 0, 0, half, 2)])
    first, second = draft.split(two, (1, 1), 4)
    cosines, sines = (draft.unsqueeze(one, [4]) for one in tables)
    both = draft.add("Concat", _rotation(draft, first, second, (cosines, sines)), axis=4)
    flat = draft.add("Reshape", [both, _sizes(draft, 0, 0, 0, form.rotated)], output="" if rest else output)
    return draft.add("Concat", [flat, *more], output=output, axis=3) if rest else flat


def _rotation(draft: Draft, first: str, second: str, tables: tuple[str, str]) -> list[Value | str | None]:
    """Both coordinates after the rotation."""
    cosines, sines = tables
    return [
        draft.add("Sub", [draft.add("Mul", [first, cosines]), draft.add("Mul", [second, sines])]),
        draft.add("Add", [draft.add("Mul", [first, sines]), draft.add("Mul", [second, cosines])]),
    ]


def _sizes(draft: Draft, *sizes: int) -> str:
    return draft.integers(sizes, "shape")


_HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
_HEAD_11 = _HEAD.replace("17", "11")
_G = "g (float[B,S,8] x, int64[{p}] p, float[9,2] c, float[9,2] s) => (float[B,S,8] y)"
_FOUR = "g (float[2,3,5,4] x, int64[2,5] p, float[9,2] c, float[9,2] s) => (float[2,3,5,4] y)"
_CALL = "com.microsoft.RotaryEmbedding"
_fixed = partial(Fixed, runs=False, target="rtx")
_flagged = partial(Flagged, runs=False, target="trt8.6")
_silent = partial(Silent, runs=False, target="rtx")


rotary_embedding_of_onnx_runtime.examples = [
    _fixed(
        "no num_heads, which TensorRT-RTX requires: derived from the tables",
        before=f"{_HEAD} {_G.format(p='B,S')} {{ y = {_CALL}(x, p, c, s) }}",
        after=f"{_HEAD} {_G.format(p='B,S')} {{ y = {_CALL}<num_heads = 2>(x, p, c, s) }}",
    ),
    _fixed(
        "a single start position",
        before=f"{_HEAD} {_G.format(p='1')} {{ y = {_CALL}<num_heads = 2>(x, p, c, s) }}",
        after=f"""{_HEAD} {_G.format(p="1")} <int64 n0 = {{0}}, int64 n1 = {{1}}, int64[1] k0 = {{0}},
            int64[1] k1 = {{2}}, int64[1] k2 = {{0}}, int64 t = {{1}}> {{
            d = Shape(x)  l = Gather<axis = 0>(d, t)  r = Range(n0, l, n1)  a = Add(r, p)  e = Slice(d, k0, k1, k2)
            q = Expand(a, e)  y = {_CALL}<num_heads = 2>(x, q, c, s) }}""",
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
        "interleaved pairs, and a part of each head that is not rotated",
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
    _fixed(
        "a start position in operator set 11, the first with all that it takes",
        before=f"{_HEAD_11} {_G.format(p='1')} {{ y = {_CALL}<num_heads = 2>(x, p, c, s) }}",
        after=f"""{_HEAD_11} {_G.format(p="1")} <int64 n0 = {{0}}, int64 n1 = {{1}}, int64[1] k0 = {{0}},
            int64[1] k1 = {{2}}, int64[1] k2 = {{0}}, int64 t = {{1}}> {{
            d = Shape(x)  l = Gather<axis = 0>(d, t)  r = Range(n0, l, n1)  a = Add(r, p)  e = Slice(d, k0, k1, k2)
            q = Expand(a, e)  y = {_CALL}<num_heads = 2>(x, q, c, s) }}""",
    ),
    _flagged(
        "without --numeric-fixes: reported only",
        f"{_HEAD} {_FOUR} {{ y = {_CALL}(x, p, c, s) }}",

    ),
    _flagged(
        "tables of unknown width",
        f"""{_HEAD} g (float[2,3,5,4] x, int64[2,5] p, float[9,W] c, float[9,W] s) => (float[2,3,5,4] y) {{
            y = {_CALL}(x, p, c, s) }}""",

        safety=Safety.NUMERIC,
    ),
    _silent("TensorRT-RTX supports it", f"{_HEAD} {_FOUR} {{ y = {_CALL}(x, p, c, s) }}",
            ),
    _silent(
        "TensorRT-RTX supports three dimensions with num_heads",
        f"{_HEAD} {_G.format(p='B,S')} {{ y = {_CALL}<num_heads = 2>(x, p, c, s) }}",
    ),
    Silent(
        "a local function of that name (OPS060)",
        f"""{_HEAD} g (float[2] x) => (float[2] y) {{ y = {_CALL}(x) }}
            <domain: "com.microsoft", opset_import: ["" : 17]> RotaryEmbedding (a) => (b) {{ b = Neg(a) }}""",
    ),
]  # fmt: skip
