"""OPS060: operators and functions that have a standard operator's name and are none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from onnx import defs

from onnxfix.graph.overlay import Model, Node
from onnxfix.rule import Example, Match, Severity, rule
from onnxfix_rules.ops import _common as ops

_HEAD = '<ir_version: 9, opset_import: ["" : 18, "my" : 1, "com.microsoft" : 1]>\n'
_FUNCTION = '<domain: "my", opset_import: ["" : 18, "my" : 1]>'
_SAME = frozenset(("com.microsoft", name) for name in ("Gelu", "QuantizeLinear", "DequantizeLinear"))
"""Operators that mean what the standard one means."""

EXAMPLES = [
    Example(
        why="an operator of another domain",
        before=f"{_HEAD} g (float[2] x) => (float[2] y) {{ y = my.Relu(x) }}",
        detect=True,
        runs=False,
    ),
    Example(
        why="of a known one",
        before=f"""{_HEAD} g (float[2,3] x, float[3] s) => (float[2,3] y) {{
            y = com.microsoft.LayerNormalization(x, s) }}""",
        detect=True,
        runs=False,
    ),
    Example(
        why="a local function: its body is not read",
        before=f"""{_HEAD} g (float[2] x) => (float[2] y) {{ y = my.Relu(x) }}
            {_FUNCTION} Relu (a) => (b) {{ b = Neg(a) }}""",
        detect=True,
    ),
    Example(
        why="a local function in ONNX's own domain",
        before="""<ir_version: 9, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { y = Relu(x) }
            <domain: "", opset_import: ["" : 18]> Relu (a) => (b) { b = Neg(a) }""",
        detect=True,
        runs=False,  # other tools say no to that
    ),
    Example(
        why="called by a function",
        before=f"""{_HEAD} g (float[2] x) => (float[2] y) {{ y = my.F(x) }}
            {_FUNCTION} F (a) => (b) {{ b = my.Relu(a) }}
            {_FUNCTION} Relu (a) => (b) {{ b = Neg(a) }}""",
        detect=True,
    ),
    Example(
        why="in a loop",
        before=f"""{_HEAD} g (float[2] x, int64 n) => (float[2] y) {{ y = Loop(n, , x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {{
                more = Constant<value = bool {{1}}>()  w = my.Tanh(v) }}> }}""",
        detect=True,
        runs=False,
    ),
    Example(
        why="a name of its own",
        before=f"""{_HEAD} g (float[2] x) => (float[2] y) {{ y = my.F(x) }}
            {_FUNCTION} F (a) => (b) {{ b = Neg(a) }}""",
    ),
    Example(
        why="a name of another case",
        before=f"{_HEAD} g (float[2] x) => (float[2] y) {{ y = my.relu(x) }}",
        runs=False,
    ),
    Example(
        why="a standard operator that TensorRT does not import is no trap",
        before=f"{_HEAD} g (float[2,2] x) => (float y) {{ y = my.Det(x) }}",
        runs=False,
    ),
    Example(
        why="it means the same",
        before=f"{_HEAD} g (float[2] x) => (float[2] y) {{ y = com.microsoft.Gelu(x) }}",
    ),
    Example(
        why="ONNX's domain by its other name",
        before="""<ir_version: 9, opset_import: ["ai.onnx" : 18]>
            g (float[2] x) => (float[2] y) { y = ai.onnx.Relu(x) }""",
    ),
    Example(
        why="in a function that nobody calls",
        before=f"""{_HEAD} g (float[2] x) => (float[2] y) {{ y = Neg(x) }}
            {_FUNCTION} F (a) => (b) {{ b = my.Tanh(a) }}""",
    ),
]


@rule("OPS060", per="model", severity=Severity.ERROR, examples=EXAMPLES)
def namesake_of_a_standard_operator(model: Model) -> Iterator[Match]:
    """An operator of another domain, or a local function, that has a standard operator's name.

    ## Why it matters
    TensorRT's parser looks at the operator's name and not at its domain, nor whether the model defines a function of
    that name. Measured with TensorRT-RTX 1.7.1: `my.Relu`, an operator that exists nowhere, imports as an ACTIVATION
    and builds, without a warning; so does a call of the local function `Relu` of the domain `my` whose body is a Neg,
    from the graph and from another function, and of one in ONNX's own domain. `my.Constant` becomes a weight, and
    `my.Neg(x, x)` a UNARY that forgets its second input. The engine computes the standard operator, with that one's
    defaults, and nothing says that the model meant another.

    Silent where the name is none of a standard operator that the target imports: TensorRT looks for a plugin then, or
    goes into the function. `com.microsoft`'s Gelu, QuantizeLinear and DequantizeLinear mean the same and are not
    reported.

    ## Fix
    None here. Rename the operator or the function: under a name that is no operator's, the body is read. A contrib
    operator that means the standard one (`com.microsoft.LayerNormalization`, in the cases that agree) can be given
    its domain.

    ## References
    - ONNX, "Model local functions" and "Operators": https://onnx.ai/onnx/repo-docs/IR.html
    """
    target = ops.target_of(model)
    for node in ops.imported(model):
        local = (node.domain, node.op_type) in model.function_names
        if (node.domain == "" and not local) or not _standard(node.op_type):
            continue
        if (not local and (node.domain, node.op_type) in _SAME) or target.imports(node.op_type) is not True:
            continue
        yield Match(f"{_title(node, local)} is read as ONNX's {node.op_type}", node=node)


def _title(node: Node, local: bool) -> str:
    name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"the local function {name}" if local else f"{name}, an operator of another domain,"


@lru_cache(maxsize=1024)
def _standard(op_type: str) -> bool:
    """Whether ONNX's own domain has an operator of that name."""
    return bool(defs.has(op_type, ""))
