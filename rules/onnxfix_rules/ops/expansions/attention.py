"""OPS094 and OPS095: ONNX Runtime's MultiHeadAttention and RotaryEmbedding."""
# Long because: two operators with many optional inputs, and an example of each layout.

from __future__ import annotations

import math
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
    Target,
    Value,
    is_read,
    rule,
    symbols,
    target_of,
)
from onnxfix_rules.ops._runtimes import is_imported, origin
from onnxfix_rules.ops.expansions import _formulas
from onnxfix_rules.ops.expansions._formulas import Operand, known_float


@rule(
    "OPS094",
    ops=["com.microsoft::MultiHeadAttention"],
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    hazards=[43],
)
def multi_head_attention_of_onnx_runtime(node: Node, model: Model) -> Iterator[Match]:
    """A MultiHeadAttention of ONNX Runtime in a form that the target does not support or imports as another one.

    ## Why it matters
    `onnxruntime.transformers.optimizer` writes it into diffusion, translation and speech models. TensorRT-RTX 1.7.1 has
    an importer for it, which was measured to reject a bias (`MultiHeadAttention bias input is not supported by
    TensorRT-RTX`), a mask of keys (`key_padding_mask input is not supported`), outputs beyond the first (`only supports
    MultiHeadAttention with a single context output`), and an attention bias together with `unidirectional` (`Option
    mask cannot be used together with CausalMaskKind`). Each of these two alone, and a scale, was measured to be
    imported correctly, and the rule is silent about them. TensorRT 8 has no importer.

    ## Fix
    Multi-head attention by its definition, as in OPS093. NUMERIC: ONNX Runtime sums in another order. Measured to be
    accepted.

    No fix with past states, for packed inputs, for `unidirectional` where the numbers of keys and queries differ (ONNX
    Runtime's last query attends to all keys), for a mask of an unknown form, and for types other than float32 and
    float16. Better: give TensorRT the model from before the optimizer.

    ## References
    - https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MultiHeadAttention
    """
    if node.function is not None or node.input(0) is None or node.output() is None:
        return
    target = target_of(model)
    problem = _unsupported(node, target)
    if problem:
        message = f"com.microsoft.MultiHeadAttention: {target.title} {problem}; {origin(node)}"
        yield Match(message, node=node, fix=_fix(node, model))


def _unsupported(node: Node, target: Target) -> str:
    """What the target does not support; "" where it supports the node, and where unknown."""
    imported = is_imported(node.op_type, target)
    if imported is None:
        return ""
    if not imported:
        return "has no importer for it"
    if any(is_read(one) for one in node.outputs[1:]):
        return "supports only one output"
    if node.attr("unidirectional", 0) and node.input(5) is not None:
        return "does not support an attention bias with unidirectional"
    names = {3: "a bias", 4: "a mask of keys", 6: "past keys"}
    return next(
        (f"does not support {name}" for index, name in names.items() if node.input(index) is not None), ""
    )


def _fix(node: Node, model: Model) -> Fix | None:
    query, key, value, bias, mask, added = (node.input(index) for index in range(6))
    output = node.output()
    if query is None or key is None or value is None or output is None:
        return None
    if any(one is not None for one in node.inputs[6:]) or any(is_read(one) for one in node.outputs[3:]):
        return None
    elem = known_float(node, query, key, value, *([] if bias is None else [bias]))
    heads, widths = int(node.attr("num_heads", 0)), _widths(node, model)
    shape = model.shapes.shape(query)
    if elem not in _formulas.ATTENTION_TYPES or shape is None or widths is None or heads < 1:
        return None
    if any(width % heads or width < heads for width in widths):
        return None
    masks = _formulas.masking(node, mask, added, shape[0], elem)
    if masks is None or (bias is not None and model.shapes.rank(key) != 3):
        return None
    keys = model.shapes.shape(key)
    if masks.causal and (keys is None or not symbols.equal(shape[1], keys[-2]).yes):
        return None  # ONNX Runtime's last query attends to all keys
    draft = Draft(node)
    parts: list[Operand] = [query, key, value]
    if bias is not None:
        biases = draft.split(bias, widths, 0)
        parts = [draft.add("Add", [part, one]) for part, one in zip(parts, biases, strict=True)]
    states = [node.output(index) for index in (1, 2)]
    names = ["", *(one.name if one is not None and is_read(one) else "" for one in states)]
    headed = [_headed(draft, *one, heads, model) for one in zip(parts, widths, names, strict=True)]
    scale = float(node.attr("scale", 0.0)) or 1 / math.sqrt(widths[0] // heads)
    draft.replace_output(
        node, _formulas.attend(draft, (headed[0], headed[1], headed[2]), scale, masks, elem, widths[2])
    )
    return Fix("decompose MultiHeadAttention", draft.edits, Safety.NUMERIC)


def _headed(draft: Draft, data: Operand, width: int, name: str, heads: int, model: Model) -> Operand:
    """As [batch, heads, length, size], under its own name where it is an output that is read; unchanged if it has that
    shape."""
    if isinstance(data, Value) and model.shapes.rank(data) == 4:
        return draft.add("Identity", [data], output=name) if name else data
    return _formulas.headed(draft, data, heads, width // heads, name)


def _widths(node: Node, model: Model) -> tuple[int, int, int] | None:
    """The widths of queries, keys and values over all heads; None where unknown, and for other forms."""
    shapes = [model.shapes.shape(one) if one is not None else None for one in node.inputs[:3]]
    heads, found = int(node.attr("num_heads", 0)), []
    for index, shape in enumerate(shapes):
        if shape is None or len(shape) not in ((3, 4) if index else (3,)) or shape[-1].value is None:
            return None
        found.append(shape[-1].value * (heads if len(shape) == 4 else 1))
    same_form = shapes[1] is not None and shapes[2] is not None and len(shapes[1]) == len(shapes[2])
    return (found[0], found[1], found[2]) if same_form and found[0] == found[1] else None


_HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
_G = "g (float[B,S,4] x, float[B,L,4] k, float[B,L,4] v{more}) => (float[B,S,4] y{result})"
_HEADED = """{q} q = Transpose<perm = [0, 2, 1, 3]>(q2)  k2 = Reshape({k}, h2)
            {n} = Transpose<perm = [0, 2, 1, 3]>(k2)  v2 = Reshape({v}, h3)
            {u} = Transpose<perm = [0, 2, 1, 3]>(v2)  t = Transpose<perm = [0, 1, 3, 2]>({n})
            s1 = MatMul(q, t)  s2 = Mul(s1, f)"""
_END = """a = Softmax<axis = 3>({scores})  o1 = MatMul(a, {u})  o2 = Transpose<perm = [0, 2, 1, 3]>(o1)
            y = Reshape(o2, o) }}"""
_SHAPES = """int64[4] h = {0,0,2,2}, int64[4] h2 = {0,0,2,2}, int64[4] h3 = {0,0,2,2}, float f = {0.70710678},
            int64[3] o = {0,0,4}"""


def _before(
    inputs: str = "x, k, v", attributes: str = "", more: str = "", result: str = "", names: str = ""
) -> str:
    call = f"y{names} = com.microsoft.MultiHeadAttention<num_heads = 2{attributes}>({inputs})"
    return f"{_HEAD} {_G.format(more=more, result=result)} {{ {call} }}"


def _after(
    body: str, more: str = "", result: str = "", scores: str = "s2", constants: str = "", names: str = "ku"
) -> str:
    end = _END.format(scores=scores, u=names[1:])
    return f"{_HEAD} {_G.format(more=more, result=result)} <{_SHAPES}{constants}> {{ {body} {end}"


_PLAIN = _HEADED.format(q="q2 = Reshape(x, h)", k="k", v="v", n="n", u="u")
_fixed = partial(Fixed, safety=Safety.NUMERIC, target="rtx")
_flagged = partial(Flagged, runs=False, safety=Safety.NUMERIC, target="rtx")


multi_head_attention_of_onnx_runtime.examples = [
    _fixed(
        "keys and values as outputs, which TensorRT-RTX does not support",
        before=_before(result=", float[B,2,L,2] n, float[B,2,L,2] u", names=", n, u"),
        after=_after(_PLAIN, result=", float[B,2,L,2] n, float[B,2,L,2] u", names="nu"),
    ),
    Flagged(
        "without --numeric-fixes: reported only", _before("x, k, v, b", more=", float[12] b"), target="rtx"
    ),
    _fixed(
        "a bias",
        before=_before("x, k, v, b", more=", float[12] b"),
        after=_after(
            """b1, b2, b3 = Split<axis = 0>(b, l)  x1 = Add(x, b1)  k1 = Add(k, b2)  v1 = Add(v, b3)"""
            + _HEADED.format(q=" q2 = Reshape(x1, h)", k="k1", v="v1", n="n", u="u"),
            more=", float[12] b",
            constants=", int64[3] l = {4,4,4}",
            names="nu",
        ),
    ),
    _fixed(
        "a mask of keys",
        before=_before("x, k, v, , m", more=", int32[B,L] m"),
        after=_after(
            _PLAIN + " g1 = Greater(m, z)  g2 = Where(g1, w, d)  g3 = Unsqueeze(g2, e)  s3 = Add(s2, g3)",
            more=", int32[B,L] m",
            constants=", int32 z = {0}, float w = {0}, float d = {-10000}, int64[2] e = {1,2}",
            scores="s3",
            names="nu",
        ),
        runs=False,
    ),
    Fixed(
        "TensorRT 8 has no such operator",
        before=_before(),
        after=_after(_PLAIN, names="nu"),
        safety=Safety.NUMERIC,
        target="trt8.6",
    ),
    Flagged(
        "unidirectional, with an unknown number of keys",
        _before(attributes=", unidirectional = 1"),
        safety=Safety.NUMERIC,
        target="trt8.6",
    ),
    Silent(
        "a form that TensorRT-RTX supports",
        _before(attributes=", scale = 0.5, unidirectional = 1"),
        target="rtx",
    ),
    Silent(
        "an attention bias, which TensorRT-RTX supports",
        _before("x, k, v, , , a", more=", float[1,1,S,L] a"),
        target="rtx",
    ),
    Flagged(
        "an attention bias with unidirectional, which TensorRT-RTX rejects",
        _before("x, k, v, , , a", ", unidirectional = 1", ", float[1,1,S,L] a"),
        target="rtx",
    ),
    _flagged("past states", _before("x, k, v, , , , p, p", more=", float[B,2,P,2] p")),
    _flagged(
        "packed inputs",
        f"""{_HEAD} g (float[1,3,2,3,2] x, int32[1,3] m) => (float[1,3,4] y) {{
            y = com.microsoft.MultiHeadAttention<num_heads = 2>(x, , , , m) }}""",
    ),
]


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


_HEAD_11 = _HEAD.replace("17", "11")
_ROTARY = "g (float[B,S,8] x, int64[{p}] p, float[9,2] c, float[9,2] s) => (float[B,S,8] y)"
_FOUR = "g (float[2,3,5,4] x, int64[2,5] p, float[9,2] c, float[9,2] s) => (float[2,3,5,4] y)"
_CALL = "com.microsoft.RotaryEmbedding"
_decomposes = partial(Fixed, runs=False, target="rtx")
_too_early = partial(Flagged, runs=False, target="trt8.6")
_silent = partial(Silent, runs=False, target="rtx")


rotary_embedding_of_onnx_runtime.examples = [
    _decomposes(
        "no num_heads, which TensorRT-RTX requires: derived from the tables",
        before=f"{_HEAD} {_ROTARY.format(p='B,S')} {{ y = {_CALL}(x, p, c, s) }}",
        after=f"{_HEAD} {_ROTARY.format(p='B,S')} {{ y = {_CALL}<num_heads = 2>(x, p, c, s) }}",
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
    _decomposes(
        "a start position in operator set 11, the first with all that it takes",
        before=f"{_HEAD_11} {_ROTARY.format(p='1')} {{ y = {_CALL}<num_heads = 2>(x, p, c, s) }}",
        after=f"""{_HEAD_11} {_ROTARY.format(p="1")} <int64 n0 = {{0}}, int64 n1 = {{1}}, int64[1] k0 = {{0}},
            int64[1] k1 = {{2}}, int64[1] k2 = {{0}}, int64 t = {{1}}> {{
            d = Shape(x)  l = Gather<axis = 0>(d, t)  r = Range(n0, l, n1)  a = Add(r, p)  e = Slice(d, k0, k1, k2)
            q = Expand(a, e)  y = {_CALL}<num_heads = 2>(x, q, c, s) }}""",
    ),
    _too_early(
        "without --numeric-fixes: reported only",
        f"{_HEAD} {_FOUR} {{ y = {_CALL}(x, p, c, s) }}",

    ),
    _too_early(
        "tables of unknown width",
        f"""{_HEAD} g (float[2,3,5,4] x, int64[2,5] p, float[9,W] c, float[9,W] s) => (float[2,3,5,4] y) {{
            y = {_CALL}(x, p, c, s) }}""",

        safety=Safety.NUMERIC,
    ),
    _silent("TensorRT-RTX supports it", f"{_HEAD} {_FOUR} {{ y = {_CALL}(x, p, c, s) }}",
            ),
    _silent(
        "TensorRT-RTX supports three dimensions with num_heads",
        f"{_HEAD} {_ROTARY.format(p='B,S')} {{ y = {_CALL}<num_heads = 2>(x, p, c, s) }}",
    ),
    Silent(
        "a local function of that name (OPS060)",
        f"""{_HEAD} g (float[2] x) => (float[2] y) {{ y = {_CALL}(x) }}
            <domain: "com.microsoft", opset_import: ["" : 17]> RotaryEmbedding (a) => (b) {{ b = Neg(a) }}""",
    ),
]  # fmt: skip
