"""OPS102: local functions that share their name."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import (
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Safety,
    Severity,
    Silent,
    imported,
    rule,
    target_of,
)
from onnxfix_rules.ops.misimports import _calls


@rule(
    "OPS102",
    per="model",
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    differs={"foreign": "about local functions of one name"},
)
def function_named_like_another(model: Model) -> Iterator[Match]:
    """A call of a local function whose name another function has, in another domain or as another overload.

    ## Why it matters
    TensorRT's parser finds a local function by its name alone. It ignores the domain and the overload (IR version 10),
    and calls the first function of that name in the model for all of them, without a warning: measured with
    TensorRT-RTX 1.7.1, for `a.Act` and `b.Act`, and for the overloads "" and "v2" of one function. An operator that is
    no function is imported as the function, too, if it shares its name.

    OPS060 is about functions that are named like an operator of ONNX.

    ## Fix
    The nodes of the function replace its calls, except for those of the first one. Exact. The definition stays. No fix
    where the function expands to more than 1,000 nodes, or imports another opset in which an operator of
    its body has other semantics; nor for an operator that is no function: rename it.

    ## References
    - ONNX, "Model local functions": https://onnx.ai/onnx/repo-docs/IR.html
    """
    first: dict[str, tuple[str, str, str]] = {}
    for key in model.called:
        first.setdefault(key[1], key)
    if not first:
        return
    target = target_of(model)
    for node in imported(model).of(lambda operator: operator[1] in first):
        called = first[node.op_type]
        if (node.domain, node.op_type, node.overload) == called or target.imports(node.op_type) is True:
            continue
        body = node.function
        if body is None and node.is_onnx:
            continue
        edits = None if body is None else _calls.inlined(node)
        yield Match(
            f"TensorRT calls {_name(*called)} in the place of {_name(node.domain, node.op_type, node.overload)}",
            node=node,
            fix=None if edits is None else Fix("inline the function", edits),
            reads=() if body is None else tuple(inner for scope in body.walk() for inner in scope.nodes),
        )


def _name(domain: str, name: str, overload: str) -> str:
    return f"{domain}.{name}" + (f":{overload}" if overload else "")


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
