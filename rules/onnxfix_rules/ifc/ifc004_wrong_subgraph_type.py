"""IFC004: wrong declared types of subgraphs and defaults."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import GraphProto

from onnxfix.rule import Flagged, Match, Model, Scope, Severity, Silent, rule
from onnxfix_rules.gra.gra003_wrong_declared_type import contradicts


@rule("IFC004", per="scope", severity=Severity.WARNING, hazards=[40])
def wrong_subgraph_type(scope: Scope, model: Model) -> Iterator[Match]:
    """A wrong declared type of a subgraph's input or output, or of an input with a default.

    ## Why it matters
    TensorRT silently uses its own inference. Measured with TensorRT-RTX 1.7.1: a branch whose output is float and
    declared float16[7], a loop's state declared float16 or of another size, and an input declared [5] with a default
    of 2 values import and build without a warning. ONNX Runtime refuses a wrong element type (`Type Error`) and the
    default (`Shape of initializer w does not match`). A caller that relies on the declaration passes a buffer that
    does not fit. Internal values and the graph's outputs are covered by GRA003.

    ## Fix
    None: a body's declaration is its interface. Infer the types again in the exporter.

    ## References
    - ONNX, "Static tensor shapes": https://onnx.ai/onnx/repo-docs/IR.html
    """
    proto = scope.proto
    if not isinstance(proto, GraphProto):
        return
    if scope is model.main:
        yield from _defaults(scope, proto)
        return
    for info in (*proto.input, *proto.output):
        value = scope.values.get(info.name)
        if value is not None and info.HasField("type") and contradicts(info.type, value, model):
            yield Match(f"the declared type of {info.name!r} differs from the computed one", value=value)


def _defaults(scope: Scope, proto: GraphProto) -> Iterator[Match]:
    """Inputs of the graph that contradict the initializers of their names."""
    for info in proto.input:
        value = scope.values.get(info.name)
        if value is None or value.initializer is None or not info.type.HasField("tensor_type"):
            continue
        declared, default = info.type.tensor_type, value.initializer
        sizes = [(d.dim_value, d.HasField("dim_value")) for d in declared.shape.dim]
        wrong = declared.elem_type not in (0, default.data_type)
        if declared.HasField("shape"):
            wrong |= len(sizes) != len(default.dims)
            wrong |= any(
                known and size != held for (size, known), held in zip(sizes, default.dims, strict=False)
            )
        if wrong:
            yield Match(f"the declared type of the input {info.name!r} differs from its default", value=value)


_IF = """g (float[2] x, bool c) => (float[2] y) { y = If(c)<then_branch = p () => (%s u) { u = Neg(x) },
    else_branch = q () => (float[2] v) { v = Abs(x) }> }"""
_LOOP = """g (float[2] x, int64 n) => (float[2] y) { y = Loop(n, , x)
    <body = b (int64 i, bool on, %s v) => (bool more, float[2] w) {
        more = Constant<value = bool {1}>()  w = Neg(v) }> }"""
_DEFAULT = "g (float[2] x, %s w) => (float[2] y) <float[2] k = {1, 2}, float[2] w = {1, 2}> { y = Add(x, k) }"


wrong_subgraph_type.examples = [
    Flagged("a branch's output, by type", _IF % "float16[2]", runs=False),
    Flagged("by size", _IF % "float[7]"),
    Flagged("by rank", _IF % "float[1,2]"),
    Flagged("a loop's state, by type", _LOOP % "float16[2]", runs=False),
    Flagged("by size", _LOOP % "float[5]"),
    Flagged("an input that differs from its default", _DEFAULT % "float[5]", runs=False),
    Flagged("by type", _DEFAULT % "double[2]", runs=False),
    Silent("a correct branch", _IF % "float[2]"),
    Silent("a symbolic size", _IF % "float[K]"),
    Silent("a correct loop", _LOOP % "float[A]"),
    Silent("a correct default", _DEFAULT % "float[N]"),
    Silent(
        "the main graph's outputs are covered by GRA003",
        "g (float[2] x) => (float[3] y) { y = Neg(x) }",
        runs=False,
    ),
]
