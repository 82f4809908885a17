"""OPS094: ONNX Runtime's MultiHeadAttention in forms that TensorRT does not support."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

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
