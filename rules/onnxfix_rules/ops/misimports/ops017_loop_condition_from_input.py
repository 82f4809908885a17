"""OPS017: a graph input that is a loop's condition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from onnx import FunctionProto

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Match,
    Model,
    Node,
    Safety,
    Scope,
    Severity,
    Silent,
    Value,
    imported,
    rule,
)


@rule("OPS017", per="model", safety=Safety.EXACT, severity=Severity.ERROR, hazards=[10])
def loop_condition_from_input(model: Model) -> Iterator[Match]:
    """A graph input that is the condition of a Loop: TensorRT renames the network's input.

    ## Why it matters
    TensorRT gives the tensor the name of the condition inside the loop's body. A caller who binds the input by the
    model's name does not find it. Measured with TensorRT-RTX 1.7.1: the input `c` of a model becomes the network's
    input `on`; where the name `on` is taken, `on_1` and so on; with several loops, the last one wins. It happens with
    and without a trip count, from inside a branch, another loop or a local function. There is no warning, and the
    engine builds.

    A trip count, loop-carried inputs, the condition of an If, and a condition of shape [1] keep their names.

    ## Fix
    Insert an Identity between the input and the loop; it gets the new name instead. Exact.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Loop.html: "The input/output of subgraph … matching is based on order instead
      of name."
    """
    listed = imported(model)
    loops = listed.of(lambda operator: operator == ("", "Loop"))
    calls = _calls(model, listed.nodes) if loops else {}
    for node in loops:
        condition = node.input(1) if node.is_onnx else None
        source = None if condition is None else _network_input(condition, model, calls)
        if source is None or model.shapes.rank(source) != 0:
            continue
        draft = Draft(node)
        draft.set_input(node, 1, draft.add("Identity", [condition], hint="condition"))
        inner = [f" to {value.name!r}" for body in node.subgraphs[:1] for value in body.inputs[1:2]]
        yield Match(
            f"the graph input {source.name!r} is this Loop's condition: TensorRT renames it{''.join(inner)}",
            node=node,
            fix=Fix("insert an Identity between the input and the Loop", draft.edits),
            reads=(source,),
        )


def _calls(model: Model, nodes: Sequence[Node]) -> dict[int, list[Node]]:
    """The nodes that call each local function, by the id of the function's scope."""
    bodies = {_key(scope): scope for scope in model.functions}
    found: dict[int, list[Node]] = {}
    for node in nodes if bodies else ():
        body = bodies.get((node.domain, node.op_type, node.overload))
        if body is not None:
            found.setdefault(id(body), []).append(node)
    return found


def _key(scope: Scope) -> tuple[str, str, str]:
    """The domain, operator and overload by which nodes call this function."""
    proto = scope.proto
    assert isinstance(proto, FunctionProto)
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    return domain, proto.name, getattr(proto, "overload", "")


def _network_input(value: Value, model: Model, calls: Mapping[int, list[Node]]) -> Value | None:
    """The main graph's input that this value is, directly or as a function's argument; None if it is not one."""
    pending, seen = [value], set()
    while pending:
        value = pending.pop()
        if id(value) in seen or not value.is_input or value.initializer is not None:
            continue
        seen.add(id(value))
        if value.scope is model.main:
            return value
        if value.scope.kind == "function":
            index = value.scope.inputs.index(value)
            pending.extend(
                v for v in (call.input(index) for call in calls.get(id(value.scope), ())) if v is not None
            )
    return None


_BODY = """<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) { more = Identity(on)  w = Neg(v) }>"""
_START = "g (float[2] x, bool c, int64 n) => (float[2] y)"


loop_condition_from_input.examples = [
    Fixed(
        "with a trip count",
        before=f"{_START} {{ y = Loop(n, c, x){_BODY} }}",
        after=f"{_START} {{ k = Identity(c)  y = Loop(n, k, x){_BODY} }}",
    ),
    Fixed(
        "without a trip count; another node also reads the input",
        before="""g (float[2] x, bool c, float l) => (float[2] y, bool d) { d = Not(c)
            y = Loop(, c, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {
                m = ReduceMax<keepdims = 0>(v)  more = Less(m, l)  w = Add(v, v) }> }""",
        after="""g (float[2] x, bool c, float l) => (float[2] y, bool d) { d = Not(c)  k = Identity(c)
            y = Loop(, k, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {
                m = ReduceMax<keepdims = 0>(v)  more = Less(m, l)  w = Add(v, v) }> }""",
        runs=False,  # for most inputs it never terminates
    ),
    Fixed(
        "two loops",
        before=f"{_START} {{ a = Loop(n, c, x){_BODY}  y = Loop(n, c, a){_BODY} }}",
        after=f"""{_START} {{ k = Identity(c)  a = Loop(n, k, x){_BODY}
            l = Identity(c)  y = Loop(n, l, a){_BODY} }}""",
    ),
    Fixed(
        "passed to a local function",
        before=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_START} {{ y = my.F(x, c, n) }}
            <domain: "my", opset_import: ["" : 18]> F (a, k, m) => (r) {{ r = Loop(m, k, a){_BODY} }}""",
        after=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_START} {{ y = my.F(x, c, n) }}
            <domain: "my", opset_import: ["" : 18]> F (a, k, m) => (r) {{
                j = Identity(k)  r = Loop(m, j, a){_BODY} }}""",
    ),
    Silent("a condition computed by a node", f"{_START} {{ d = Not(c)  y = Loop(n, d, x){_BODY} }}"),
    Silent(
        "no condition: the trip count keeps its name",
        f"""{_START} {{ y = Loop(n, , x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {{ more = Not(c)  w = Neg(v) }}> }}""",
    ),
    Silent(
        "a vector of one element, which TensorRT reshapes",
        f"g (float[2] x, bool[1] c, int64 n) => (float[2] y) {{ y = Loop(n, c, x){_BODY} }}",
    ),
    Silent(
        "an input with a default, which TensorRT treats as a constant",
        f"{_START} <bool c = {{1}}> {{ y = Loop(n, c, x){_BODY} }}",
    ),
    Silent(
        "the condition of an If keeps its name",
        """g (float[2] x, bool c) => (float[2] y) {
            y = If(c)<then_branch = p () => (float[2] u) { u = Abs(x) },
                      else_branch = q () => (float[2] v) { v = Neg(x) }> }""",
    ),
    Silent(
        "a function that is never called",
        f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_START} {{ y = Neg(x) }}
            <domain: "my", opset_import: ["" : 18]> F (a, k, m) => (r) {{ r = Loop(m, k, a){_BODY} }}""",
    ),
]
