"""OPS126: arguments of local functions that TensorRT takes for other tensors."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import (
    Fixed,
    Match,
    Model,
    Node,
    Safety,
    Scope,
    Severity,
    Silent,
    every_node,
    rule,
    target_of,
)


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


_HEAD = '<ir_version: 9, opset_import: ["" : 18, "f" : 1]> g'
_ACT = "y = f.Act(a)"
_EARLY = "trt10.6"


def _function(name: str, inputs: str, body: str) -> str:
    return f'<domain: "f", opset_import: ["" : 18, "f" : 1]> {name} ({inputs}) => (v) {{ {body} }}'


_RELU = _function("Act", "x", "v = Relu(x)")
_MINUS = _function("Minus", "a, b", "v = Sub(a, b)")
_SHADOWED = f"{_HEAD} (float[N] x) => (float[N] y) {{ a = Neg(x)  {_ACT} }} {_RELU}"
_WEIGHTS = f"{_HEAD} (float[3] q) => (float[3] y) <float[3] x = {{1, 2, 3}}> {{ a = %s  y = Add(a, x) }}"
_OUTER = f"{_HEAD} (float[N] q) => (float[N] y) {{ y = f.F(q) }}"
_SWAPPED = f"{_HEAD} (float[N] a, float[N] b) => (float[N] y) {{ y = %s }}"

argument_of_another_name.examples = [
    Fixed(
        "a parameter is named like an input of the graph, for TensorRT 10.6",
        before=_SHADOWED,
        after=f"{_HEAD} (float[N] x) => (float[N] y) {{ a = Neg(x)  y = Relu(a) }}",
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
        before=f"{_OUTER} {_RELU} {_function('F', 'x', 't = Neg(x)  v = f.Act(t)')}",
        after=f"{_OUTER} {_function('F', 'x', 't = Neg(x)  v = Relu(t)')}",
        target=_EARLY,
    ),
    Fixed(
        "arguments are named like parameters before them",
        before=f"{_SWAPPED % 'f.Minus(b, a)'} {_MINUS}",
        after=_SWAPPED % "Sub(b, a)",
    ),
    Silent(
        "the argument is the tensor of that name",
        f"{_HEAD} (float[N] x) => (float[N] y) {{ a = f.Act(x)  y = Neg(a) }} {_RELU}",
        target=_EARLY,
    ),
    Silent(
        "a later result has the name",
        f"{_HEAD} (float[N] q) => (float[N] y) {{ a = f.Act(q)  x = Exp(q)  y = Add(a, x) }} {_RELU}",
        target=_EARLY,
    ),
    Silent("TensorRT 10.8 and later read the argument", _SHADOWED, target="trt10.8"),
    Silent("arguments in the order of the parameters", f"{_SWAPPED % 'f.Minus(a, b)'} {_MINUS}"),
    Silent("TensorRT 8.6 has no local functions: OPS102", _SHADOWED, target="trt8.6"),
]
