"""Operators, functions and arguments that TensorRT takes for others of their name (OPS060, OPS102, OPS126)."""
# Long because: three rules, with an example of each kind of call.

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial

from onnx import defs

from onnxfix.rule import (
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Operator,
    Safety,
    Scope,
    Severity,
    Silent,
    Target,
    every_node,
    imported,
    rule,
    target_of,
)
from onnxfix.targets.measured import OWN
from onnxfix_rules.ops._runtimes import origin

_SAME = frozenset(("com.microsoft", name) for name in ("Gelu", "QuantizeLinear", "DequantizeLinear"))
"""Operators with the same semantics as the standard one."""
_OWN_RULE = frozenset(("com.microsoft", name) for name in ("Attention", "RotaryEmbedding"))
"""Operators that other rules handle."""


@rule(
    "OPS060",
    per="model",
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[43],
    differs={"foreign": "about local functions that are named like operators"},
)
def namesake_of_a_standard_operator(model: Model) -> Iterator[Match]:
    """An operator of another domain, or a local function, that is named like a standard operator.

    ## Why it matters
    TensorRT's parser dispatches by the operator's name and ignores its domain and any function of that name in the
    model. Measured with TensorRT-RTX 1.7.1: `my.Relu`, an operator that exists nowhere, imports as an ACTIVATION and
    builds without a warning; so does a call of the local function `Relu` of the domain `my` whose body is a Neg, from
    the graph and from another function, and of one in ONNX's own domain. `my.Constant` becomes a weight, and `my.Neg(x,
    x)` a UNARY that ignores its second input. The engine computes the standard operator with that operator's defaults,
    and nothing indicates that the model meant another.

    Silent where the name is not that of a standard operator that the target imports: TensorRT then looks for a plugin
    or inlines the function. `com.microsoft`'s Gelu, QuantizeLinear and DequantizeLinear have the same semantics and are
    not reported; OPS093 and OPS095 handle its Attention and RotaryEmbedding.

    ## Fix
    The nodes of a local function replace its calls, under new names, with the attributes of the call. Exact. The
    definition stays. No fix where the function is recursive, expands to more than 1,000 nodes, or imports another opset
    in which an operator of its body has other semantics.

    An operator of another domain stays as it is: rename it, or, where it has the semantics of the standard one
    (`com.microsoft.LayerNormalization`, in the cases that agree), give it ONNX's domain.

    ## References
    - ONNX, "Model local functions" and "Operators": https://onnx.ai/onnx/repo-docs/IR.html
    """
    releases = target_of(model).releases

    def is_namesake(operator: Operator) -> bool:
        return (operator[0] != "" or operator in model.function_names) and _standard(operator[1])

    for node in imported(model).of(is_namesake):
        local = (node.domain, node.op_type) in model.function_names
        if not local and (node.domain, node.op_type) in _SAME | _OWN_RULE:
            continue
        if not any(release.imports(node.op_type) for release in releases):
            continue
        from onnxfix_rules.ops.misimports import _calls  # lazy: start-up

        yield _calls.match(
            node, f"{_title(node, local)} is imported as ONNX's {node.op_type}{_origin(node, local)}"
        )


def _title(node: Node, local: bool) -> str:
    name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"the local function {name}" if local else f"{name}, an operator of another domain,"


def _origin(node: Node, local: bool) -> str:
    """Which tool writes this ONNX Runtime operator."""
    where = "" if local else origin(node)
    return f"; {where}" if where else ""


@lru_cache(maxsize=1024)
def _standard(op_type: str) -> bool:
    """Whether ONNX's own domain has an operator of that name."""
    return bool(defs.has(op_type, ""))


_HEAD = '<ir_version: 9, opset_import: ["" : 18, "my" : 1, "com.microsoft" : 1]>\n'
_FUNCTION = '<domain: "my", opset_import: ["" : 18, "my" : 1]>'
_flagged = partial(Flagged, runs=False)
_silent = partial(Silent, runs=False)


namesake_of_a_standard_operator.examples = [
    _flagged("an operator of another domain", f"{_HEAD} g (float[2] x) => (float[2] y) {{ y = my.Relu(x) }}"),
    _flagged(
        "an operator of com.microsoft",
        f"""{_HEAD} g (float[2,3] x, float[3] s) => (float[2,3] y) {{
            y = com.microsoft.LayerNormalization(x, s) }}""",
    ),
    Fixed(
        "a local function: TensorRT ignores its body",
        before=f"""{_HEAD} g (float[2] x) => (float[2] y) {{ y = my.Relu(x) }}
            {_FUNCTION} Relu (a) => (b) {{ b = Neg(a) }}""",
        after=f"{_HEAD} g (float[2] x) => (float[2] y) {{ y = Neg(x) }}",
    ),
    Fixed(
        "a local function in ONNX's own domain",
        before="""<ir_version: 9, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { y = Relu(x) }
            <domain: "", opset_import: ["" : 18]> Relu (a) => (b) { b = Neg(a) }""",
        after="""<ir_version: 9, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { y = Neg(x) }""",
        runs=False,  # other tools reject it
    ),
    _flagged(
        "a body that calls its own name",
        """<ir_version: 9, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { y = Relu(x) }
            <domain: "", opset_import: ["" : 18]> Relu (a) => (b) { c = Neg(a)  b = Relu(c) }""",
    ),
    Fixed(
        "called by a function that is called twice",
        before=f"""{_HEAD} g (float[2] x) => (float[2] y) {{ z = my.F(x)  y = my.F(z) }}
            {_FUNCTION} F (a) => (b) {{ c = Exp(a)  b = my.Relu(c) }}
            {_FUNCTION} Relu (a) => (b) {{ c = Neg(a)  b = Abs(c) }}""",
        after=f"{_HEAD} g (float[2] x) => (float[2] y) {{ z = my.F(x)  y = my.F(z) }}",  # F changes too
    ),
    Fixed(
        "two such functions, one calling the other",
        before=f"""{_HEAD} g (float[2] x) => (float[2] y) {{ y = my.Relu(x) }}
            {_FUNCTION} Relu (a) => (b) {{ c = my.Tanh(a)  b = my.F(c) }}
            {_FUNCTION} Tanh (a) => (b) {{ b = Neg(a) }}
            {_FUNCTION} F (a) => (b) {{ b = Exp(a) }}""",
        after=f"{_HEAD} g (float[2] x) => (float[2] y) {{ c = Neg(x)  y = my.F(c) }}",
    ),
    Fixed(
        "attributes from the call, by default and omitted; an omitted input and output",
        before=f"""{_HEAD} g (float[2] x) => (float[2] y, float[2] n) {{ y, , n = my.Elu<beta = 0.25>(x, , x) }}
            <domain: "my", opset_import: ["" : 18]>
            Elu <gamma, beta: float = 0.5, alpha: float = 2.0> (a, low, c) => (d, e, f) {{
                h = Constant<value = float {{3.0}}>()  k = Clip(a, low, h)  l = LeakyRelu<alpha: float = @alpha>(k)
                m = LeakyRelu<alpha: float = @beta>(c)  d = Add(l, m)  e = Exp(d)
                f = Elu<alpha: float = @gamma>(a) }}""",
        after=f"""{_HEAD} g (float[2] x) => (float[2] y, float[2] n) {{
            h = Constant<value = float {{3.0}}>()  k = Clip(x, , h)  l = LeakyRelu<alpha = 2.0>(k)
            m = LeakyRelu<alpha = 0.25>(x)  y = Add(l, m)  n = Elu(x) }}""",
        runs=False,  # ONNX Runtime requires every attribute and every output
    ),
    _flagged(
        "an omitted input that a node of the body requires",
        f"""{_HEAD} g (float[2] x) => (float[2] y) {{ y = my.Sub(x) }}
            {_FUNCTION} Sub (a, c) => (b) {{ b = Add(a, c) }}""",
    ),
    _flagged(
        "an omitted attribute that a node of the body requires",
        f"""{_HEAD} g (float[2] x) => (int32[2] y) {{ y = my.Cast(x) }}
            {_FUNCTION} Cast <to> (a) => (b) {{ b = Cast<to: int = @to>(a) }}""",
    ),
    Fixed(
        "two outputs with the same value, one of them an input",
        before=f"""{_HEAD} g (float[2] x) => (float[2] y, float[2] z, float[2] w) {{ y, z, w = my.Split(x) }}
            {_FUNCTION} Split (a) => (b, b2, a2) {{ b = Neg(a)  b2 = Identity(b)  a2 = Identity(a) }}""",
        after=f"""{_HEAD} g (float[2] x) => (float[2] y, float[2] z, float[2] w) {{
            y = Neg(x)  z = Identity(y)  w = Identity(x) }}""",
    ),
    Fixed(
        "in a loop; a branch in the function captures outer values",
        before=f"""{_HEAD} g (float[2] x, int64 n, bool c) => (float[2] y) <bool t = {{1}}> {{ y = Loop(n, t, x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {{
                more = Identity(on)  w = my.Where(c, v, x) }}> }}
            {_FUNCTION} Where (c, p, q) => (r) {{ k = Add(p, q)
                r = If(c)<then_branch = t () => (float[2] u) {{ i = Mul(k, p)  u = Neg(i) }},
                          else_branch = e () => (float[2] v) {{ v = Sub(k, q) }}> }}""",
        after=f"""{_HEAD} g (float[2] x, int64 n, bool c) => (float[2] y) <bool t = {{1}}> {{ y = Loop(n, t, x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {{ more = Identity(on)  k = Add(v, x)
                w = If(c)<then_branch = p () => (float[2] u) {{ j = Mul(k, v)  u = Neg(j) }},
                          else_branch = e () => (float[2] o) {{ o = Sub(k, x) }}> }}> }}""",
    ),
    Fixed(
        "a function with another opset whose operators are the same",
        before=f"""{_HEAD} g (float[2] x) => (float[2] y) {{ y = my.Relu(x) }}
            <domain: "my", opset_import: ["" : 13]> Relu (a) => (b) {{ b = Neg(a) }}""",
        after=f"{_HEAD} g (float[2] x) => (float[2] y) {{ y = Neg(x) }}",
        runs=False,  # ONNX Runtime does not support two opsets
    ),
    _flagged(
        "a function with another opset whose operators differ",
        f"""{_HEAD} g (float[2] x) => (float[K] y) {{ y = my.Relu(x) }}
            <domain: "my", opset_import: ["" : 13]> Relu (a) => (b) {{ b = ReduceMax(a) }}""",
    ),
    Silent(
        "a name that no standard operator has",
        f"""{_HEAD} g (float[2] x) => (float[2] y) {{ y = my.F(x) }}
            {_FUNCTION} F (a) => (b) {{ b = Neg(a) }}""",
    ),
    _silent("a name that differs in case", f"{_HEAD} g (float[2] x) => (float[2] y) {{ y = my.relu(x) }}"),
    _silent(
        "a standard operator that TensorRT does not import",
        f"{_HEAD} g (float[2,2] x) => (float y) {{ y = my.Det(x) }}",
    ),
    Silent(
        "the same semantics as the standard operator",
        f"{_HEAD} g (float[2] x) => (float[2] y) {{ y = com.microsoft.Gelu(x) }}",
    ),
    Silent(
        "ONNX's domain by its other name, ai.onnx",
        """<ir_version: 9, opset_import: ["ai.onnx" : 18]>
            g (float[2] x) => (float[2] y) { y = ai.onnx.Relu(x) }""",
    ),
    Silent(
        "in a function that is never called",
        f"""{_HEAD} g (float[2] x) => (float[2] y) {{ y = Neg(x) }}
            {_FUNCTION} F (a) => (b) {{ b = my.Tanh(a) }}""",
    ),
    Flagged(
        "a name that com.microsoft does not define",
        """<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
            g (float[2] x) => (float[2] y) { y = com.microsoft.Relu(x) }""",
    ),
]


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
    target, roots = target_of(model), (model.main, *model.called.values())
    # Branches of an If in a function, too, which TensorRT may import: the call says if the condition is a weight.
    for node in every_node(model).of(lambda operator: operator[1] in first):
        if node.scope.root not in roots:
            continue
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


_TWO = '<ir_version: 10, opset_import: ["" : 18, "a" : 1, "b" : 1]>\n'


def _function(domain: str, name: str, body: str, overload: str = "") -> str:
    more = f', overload: "{overload}"' if overload else ""
    return f'<domain: "{domain}", opset_import: ["" : 18, "a" : 1, "b" : 1]{more}> {name} (p) => (q) {{ {body} }}\n'


_ACTS = _function("a", "Act", "q = Neg(p)") + _function("b", "Act", "q = Exp(p)")
_IO = "g (float[N] x) => (float[N] y)"
_BRANCHES = "q = If(c)<then_branch = t () => (u) { u = %s }, else_branch = e () => (v) { v = a.Act(p) }>"

function_named_like_another.examples = [
    Fixed(
        "in two domains",
        before=f"{_TWO} {_IO} {{ h = a.Act(x)  y = b.Act(h) }} {_ACTS}",
        after=f"{_TWO} {_IO} {{ h = a.Act(x)  y = Exp(h) }} {_ACTS}",
    ),
    Fixed(
        "two overloads",
        before=f"""{_TWO} {_IO} {{ h = a.Act:two(x)  y = a.Act(h) }}
            {_function("a", "Act", "q = Neg(p)")} {_function("a", "Act", "q = Exp(p)", "two")}""",
        after=f"""{_TWO} {_IO} {{ h = Exp(x)  y = a.Act(h) }}
            {_function("a", "Act", "q = Neg(p)")} {_function("a", "Act", "q = Exp(p)", "two")}""",
    ),
    Fixed(
        "called in a function",
        before=f"{_TWO} {_IO} {{ h = a.Act(x)  y = a.F(h) }} {_ACTS} {_function('a', 'F', 'q = b.Act(p)')}",
        after=f"{_TWO} {_IO} {{ h = a.Act(x)  y = a.F(h) }} {_ACTS} {_function('a', 'F', 'q = Exp(p)')}",
    ),
    Fixed(
        "called in a branch of an If in a function",
        before=f"""{_TWO} g (float[N] x, bool c) => (float[N] y) {{ h = a.Act(x)  y = a.F(h, c) }} {_ACTS}
            {_function("a", "F", _BRANCHES % "b.Act(p)").replace("(p)", "(p, c)", 1)}""",
        after=f"""{_TWO} g (float[N] x, bool c) => (float[N] y) {{ h = a.Act(x)  y = a.F(h, c) }} {_ACTS}
            {_function("a", "F", _BRANCHES % "Exp(p)").replace("(p)", "(p, c)", 1)}""",
    ),
    Flagged(
        "an operator that is no function",
        f"{_TWO} {_IO} {{ h = a.Act(x)  y = b.Act(h) }} {_function('a', 'Act', 'q = Neg(p)')}",
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
        before=f"{_TWO} {_IO} {{ h = a.Det(x)  y = Exp(h) }} {_function('a', 'Det', 'q = Neg(p)')}",
        after=f"{_TWO} {_IO} {{ h = Neg(x)  y = Exp(h) }}",
    ),
    Fixed(
        "TensorRT 8.6 has no local functions",
        before=f"{_TWO} {_IO} {{ h = a.Act(x)  y = Exp(h) }} {_function('a', 'Act', 'q = Neg(p)')}",
        after=f"{_TWO} {_IO} {{ h = Neg(x)  y = Exp(h) }}",
        target="trt8.6",
        differs={"function": "the function around it is replaced, too"},
    ),
    _silent(
        "one overload alone",
        f"{_TWO} {_IO} {{ y = a.Act:two(x) }} {_function('a', 'Act', 'q = Exp(p)', 'two')}",
    ),
    Silent(
        "two names",
        f"{_TWO} {_IO} {{ h = a.Act(x)  y = a.F(h) }} {_function('a', 'Act', 'q = Neg(p)')}"
        + _function("a", "F", "q = Exp(p)"),
    ),
    _silent(
        "named like an operator of ONNX: OPS060",
        f"{_TWO} {_IO} {{ y = a.Relu(x) }} " + _function("b", "Relu", "q = Exp(p)"),
    ),
    Silent("not called", f"{_TWO} {_IO} {{ y = a.Act(x) }} {_ACTS}"),
]


@rule(
    "OPS126",
    per="model",
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[43],
    differs={"renamed": "about names"},
)
def argument_of_another_name(model: Model) -> Iterator[Match]:
    """A call of a local function whose parameter has the name of another tensor, which TensorRT takes for it.

    ## Why it matters
    TensorRT's parser keeps the tensors of a graph and of the functions that it calls under their names, in one table.

    - TensorRT 9.0 to 10.7: if a tensor of the calling graph, or of a graph around it, has the name of a parameter, the
      function computes with that tensor, and the argument is ignored. "Fixed the import of local functions when their
      input tensor names aliased one from an outside scope" (NVIDIA's changelog of 10.8). Executed with TensorRT 10.6.0
      on an H200: the nine probes with such a name were wrong without a word, for graph inputs, initializers, results of
      earlier nodes and parameters of the calling function. The thirteen others, with names of later results, of results
      of the function, or of the argument itself, were right.
    - later: parameters get their arguments one after another, so that `f(b, a)` of a function `f(a, b)` computes
      `f(b, b)`. TensorRT-RTX 1.7.1 imports it so (network read back).

    ## Fix
    The nodes of the function replace the call. Exact. The definition stays. No fix where the function expands to more
    than 1,000 nodes, or imports another opset in which an operator of its body has other semantics.

    ## References
    - https://github.com/NVIDIA/TensorRT/blob/main/CHANGELOG.md: 10.8.0
    - ONNX, "Model local functions": https://onnx.ai/onnx/repo-docs/IR.html
    """
    target = target_of(model)
    if not model.called or not target.calls_functions:
        return
    is_early = target.package == "tensorrt" and target.oldest < (10, 8)
    roots, names = (model.main, *model.called.values()), {key[1] for key in model.called}
    calls: dict[Scope, list[Node]] = {}
    for node in every_node(model).of(lambda operator: operator[1] in names):
        if node.function is not None and node.scope.root in roots:
            calls.setdefault(node.function, []).append(node)
    for node in (call for of_function in calls.values() for call in of_function):
        hidden = _find_known(node, calls) if is_early else _find_overwritten(node)
        if hidden:
            from onnxfix_rules.ops.misimports import _calls  # lazy: start-up

            parameter, tensor = hidden
            yield _calls.match(
                node, f"TensorRT takes {tensor} for the parameter {parameter} of {node.op_type}"
            )


def _pairs(call: Node) -> list[tuple[str, str]]:
    """The parameters of a call with the names of their arguments."""
    assert call.function is not None
    return [
        (one.name, name) for one, name in zip(call.function.inputs, call.proto.input, strict=False) if name
    ]


def _find_overwritten(call: Node) -> tuple[str, str] | None:
    """The first parameter that gets the argument of one before it."""
    given: dict[str, str] = {}
    for one, name in _pairs(call):
        if given.get(name, name) != name:
            return one, f"the argument {given[name]}"
        given[one] = name
    return None


def _find_known(call: Node, calls: dict[Scope, list[Node]]) -> tuple[str, str] | None:
    """The first parameter for which a tensor of its name is taken."""
    found = (one for one, name in _pairs(call) if one != name and _is_known(one, call, calls, set()))
    return next(((one, f"the tensor {one}") for one in found), None)


def _is_known(name: str, call: Node, calls: dict[Scope, list[Node]], seen: set[Scope]) -> bool:
    """Whether the parser knows a tensor of this name at a call: from graphs around it, or from callers."""
    node: Node | None = call
    while node is not None:
        scope, value = node.scope, node.scope.values.get(name)
        if value is not None and (
            value.producer is None or scope.position(value.producer) < scope.position(node)
        ):
            return True
        node = scope.owner
    root = call.scope.root
    if root in seen:
        return False
    seen.add(root)
    return any(_is_known(name, other, calls, seen) for other in calls.get(root, ()))


_CALL = '<ir_version: 9, opset_import: ["" : 18, "f" : 1]> g'
_ACT = "y = f.Act(a)"
_EARLY = "trt10.6"


def _called(name: str, inputs: str, body: str) -> str:
    return f'<domain: "f", opset_import: ["" : 18, "f" : 1]> {name} ({inputs}) => (v) {{ {body} }}'


_RELU = _called("Act", "x", "v = Relu(x)")
_MINUS = _called("Minus", "a, b", "v = Sub(a, b)")
_SHADOWED = f"{_CALL} (float[N] x) => (float[N] y) {{ a = Neg(x)  {_ACT} }} {_RELU}"
_WEIGHTS = f"{_CALL} (float[3] q) => (float[3] y) <float[3] x = {{1, 2, 3}}> {{ a = %s  y = Add(a, x) }}"
_OUTER = f"{_CALL} (float[N] q) => (float[N] y) {{ y = f.F(q) }}"
_SWAPPED = f"{_CALL} (float[N] a, float[N] b) => (float[N] y) {{ y = %s }}"

argument_of_another_name.examples = [
    Fixed(
        "a parameter is named like an input of the graph, for TensorRT 10.6",
        before=_SHADOWED,
        after=f"{_CALL} (float[N] x) => (float[N] y) {{ a = Neg(x)  y = Relu(a) }}",
        target=_EARLY,
    ),
    Fixed(
        "a parameter is named like an initializer",
        before=f"{_WEIGHTS % 'f.Act(q)'} {_RELU}",
        after=_WEIGHTS % "Relu(q)",
        target=_EARLY,
    ),
    Fixed(
        "a parameter is named like one of the function that calls it",
        before=f"{_OUTER} {_RELU} {_called('F', 'x', 't = Neg(x)  v = f.Act(t)')}",
        after=f"{_OUTER} {_called('F', 'x', 't = Neg(x)  v = Relu(t)')}",
        target=_EARLY,
    ),
    Fixed(
        "arguments are named like parameters before them",
        before=f"{_SWAPPED % 'f.Minus(b, a)'} {_MINUS}",
        after=_SWAPPED % "Sub(b, a)",
    ),
    Silent(
        "the argument is the tensor of that name",
        f"{_CALL} (float[N] x) => (float[N] y) {{ a = f.Act(x)  y = Neg(a) }} {_RELU}",
        target=_EARLY,
    ),
    Silent(
        "a later result has the name",
        f"{_CALL} (float[N] q) => (float[N] y) {{ a = f.Act(q)  x = Exp(q)  y = Add(a, x) }} {_RELU}",
        target=_EARLY,
    ),
    Silent("TensorRT 10.8 and later read the argument", _SHADOWED, target="trt10.8"),
    Silent("arguments in the order of the parameters", f"{_SWAPPED % 'f.Minus(a, b)'} {_MINUS}"),
    Silent("TensorRT 8.6 has no local functions: OPS102", _SHADOWED, target="trt8.6"),
]
