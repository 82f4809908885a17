"""OPS102: local functions that share their name."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import defs

from onnxfix.rule import (
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    Target,
    imported,
    rule,
    target_of,
)
from onnxfix.targets.measured import OWN


@rule(
    "OPS102",
    per="model",
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[43],
    differs={"foreign": "about local functions of one name"},
)
def function_named_like_another(model: Model) -> Iterator[Match]:
    """A call of a local function that TensorRT directs to another function of that name, or refuses.

    ## Why it matters
    TensorRT's parser finds a local function by its name alone. It ignores the domain and the overload (IR version 10),
    and calls the first function of that name in the model for all of them, without a warning: measured with
    TensorRT-RTX 1.7.1, for `a.Act` and `b.Act`, and for the overloads "" and "v2" of one function. An operator that is
    no function is imported as the function, too, if it shares its name; so is one of ONNX's without an importer.

    A function named like an operator that the parser always refuses, such as Det, is refused (`UNSUPPORTED_NODE`,
    measured). Before 9.0 TensorRT had no local functions ("Added support for ONNX local functions", its changelog), and
    looked for a plugin of the name.

    OPS060 is about functions that are named like an operator that the target imports.

    ## Fix
    The nodes of the function replace its calls, except for those of the first one. Exact. The definition stays. No fix
    where the function expands to more than 1,000 nodes, or imports another opset in which an operator of
    its body has other semantics; nor for an operator that is no function: rename it.

    ## References
    - ONNX, "Model local functions": https://onnx.ai/onnx/repo-docs/IR.html
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/Changelog.md: TensorRT 9.0
    """
    first: dict[str, tuple[str, str, str]] = {}
    for key in model.called:
        first.setdefault(key[1], key)
    if not first:
        return
    target = target_of(model)
    for node in imported(model).of(lambda operator: operator[1] in first):
        message = _misdirection(node, first[node.op_type], target)
        if not message:
            continue
        from onnxfix_rules.ops.misimports import _calls  # lazy: start-up

        yield _calls.match(node, message)


def _misdirection(node: Node, first: tuple[str, str, str], target: Target) -> str:
    """What the target makes of a node with a function's name; "" if it calls the node's function, or if unknown."""
    key = (node.domain, node.op_type, node.overload)
    imported = target.imports(node.op_type)
    if imported is True or node.op_type in OWN:
        return ""
    if node.op_type in target.refused or not target.calls_functions:
        what = (
            "refuses every operator named like"
            if target.calls_functions
            else "has no local functions such as"
        )
        return f"{target.title} {what} {_name(*key)}" if node.function is not None else ""
    # It is not known whether there is an importer of this name.
    if key == first or (imported is None and defs.has(node.op_type)):
        return ""
    return f"TensorRT calls {_name(*first)} in the place of {_name(*key)}"


def _name(domain: str, name: str, overload: str) -> str:
    return (f"{domain}.{name}" if domain else name) + (f":{overload}" if overload else "")


_HEAD = '<ir_version: 10, opset_import: ["" : 18, "a" : 1, "b" : 1]>\n'


def _function(domain: str, name: str, body: str, overload: str = "") -> str:
    more = f', overload: "{overload}"' if overload else ""
    return f'<domain: "{domain}", opset_import: ["" : 18, "a" : 1, "b" : 1]{more}> {name} (p) => (q) {{ {body} }}\n'


_ACTS = _function("a", "Act", "q = Neg(p)") + _function("b", "Act", "q = Exp(p)")
_IO = "g (float[N] x) => (float[N] y)"

function_named_like_another.examples = [
    Fixed(
        "in two domains",
        before=f"{_HEAD} {_IO} {{ h = a.Act(x)  y = b.Act(h) }} {_ACTS}",
        after=f"{_HEAD} {_IO} {{ h = a.Act(x)  y = Exp(h) }} {_ACTS}",
    ),
    Fixed(
        "two overloads",
        before=f"""{_HEAD} {_IO} {{ h = a.Act:two(x)  y = a.Act(h) }}
            {_function("a", "Act", "q = Neg(p)")} {_function("a", "Act", "q = Exp(p)", "two")}""",
        after=f"""{_HEAD} {_IO} {{ h = Exp(x)  y = a.Act(h) }}
            {_function("a", "Act", "q = Neg(p)")} {_function("a", "Act", "q = Exp(p)", "two")}""",
    ),
    Fixed(
        "called in a function",
        before=f"{_HEAD} {_IO} {{ h = a.Act(x)  y = a.F(h) }} {_ACTS} {_function('a', 'F', 'q = b.Act(p)')}",
        after=f"{_HEAD} {_IO} {{ h = a.Act(x)  y = a.F(h) }} {_ACTS} {_function('a', 'F', 'q = Exp(p)')}",
    ),
    Flagged(
        "an operator that is no function",
        f"{_HEAD} {_IO} {{ h = a.Act(x)  y = b.Act(h) }} {_function('a', 'Act', 'q = Neg(p)')}",
        runs=False,
    ),
    Flagged(
        "an operator that TensorRT-RTX does not know",
        """<ir_version: 9, opset_import: ["" : 19, "a" : 1]>
            g (float[1,1,3,3] x, float[1,1,2,2] w, float[1,8,2,2] o) => (float[1,1,2,2] y) {
            y = DeformConv(x, w, o) }
            <domain: "a", opset_import: ["" : 19]> DeformConv (p, q, r) => (s) { s = Neg(p) }""",
        target="rtx",
    ),
    Fixed(
        "named like an operator that TensorRT always refuses",
        before=f"{_HEAD} {_IO} {{ h = a.Det(x)  y = Exp(h) }} {_function('a', 'Det', 'q = Neg(p)')}",
        after=f"{_HEAD} {_IO} {{ h = Neg(x)  y = Exp(h) }}",
    ),
    Fixed(
        "TensorRT 8.6 has no local functions",
        before=f"{_HEAD} {_IO} {{ h = a.Act(x)  y = Exp(h) }} {_function('a', 'Act', 'q = Neg(p)')}",
        after=f"{_HEAD} {_IO} {{ h = Neg(x)  y = Exp(h) }}",
        target="trt8.6",
        differs={"function": "the function around it is replaced, too"},
    ),
    Silent(
        "one overload alone",
        f"{_HEAD} {_IO} {{ y = a.Act:two(x) }} {_function('a', 'Act', 'q = Exp(p)', 'two')}",
        runs=False,
    ),
    Silent(
        "two names",
        f"{_HEAD} {_IO} {{ h = a.Act(x)  y = a.F(h) }} {_function('a', 'Act', 'q = Neg(p)')}"
        + _function("a", "F", "q = Exp(p)"),
    ),
    Silent(
        "named like an operator of ONNX: OPS060",
        f"{_HEAD} {_IO} {{ y = a.Relu(x) }} " + _function("b", "Relu", "q = Exp(p)"),
        runs=False,
    ),
    Silent("not called", f"{_HEAD} {_IO} {{ y = a.Act(x) }} {_ACTS}"),
]
