"""GRA007: sparse initializers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from onnx import TensorProto

from onnxfix.rule import (
    AddInitializer,
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    ReplaceUses,
    Safety,
    Scope,
    Severity,
    Silent,
    rule,
)
from onnxfix_rules.gra import _sparse


@rule("GRA007", per="scope", safety=Safety.EXACT, severity=Severity.ERROR, hazards=[60])
def sparse_initializer(scope: Scope, model: Model) -> Iterator[Match]:
    """An initializer is stored as a sparse tensor.

    ## Why it matters
    TensorRT ignores the list of sparse initializers, and stops at the first node that reads one: `Assertion failed:
    (ctx->tensors().count(inputName)): Node input was not registered.`, measured with TensorRT-RTX 1.7.1. An unused one
    does no harm.

    ## Fix
    Store it as a dense initializer. Exact. There is no fix if the dense tensor exceeds 64 MiB, if the sparse tensor is
    invalid, or if it is an output of the graph.

    ## References
    - https://onnx.ai/onnx/repo-docs/IR.html
    """
    for sparse in getattr(scope.proto, "sparse_initializer", ()):
        value = scope.values.get(sparse.values.name)
        if value is None or not value.sparse or not (value.use_count or not value.replaceable):
            continue
        anchor = next((use.node for use in value.uses), None)
        fix = None
        if anchor is not None and value.replaceable and not value.is_input and model.ir_version >= 4:
            tensor = _sparse.dense(sparse, Draft(anchor).name("dense"), model.base_dir)
            if tensor is not None:
                fix = Fix("make it dense", [AddInitializer(scope, tensor), ReplaceUses(value, tensor.name)])
        yield Match(
            f"TensorRT does not support sparse initializers, such as {value.name}", value=value, fix=fix
        )


_ADD = "g (float[2,3] x) => (float[2,3] y) { y = Add(x, w) }"
_DENSE = "g (float[2,3] x) => (float[2,3] y) <float[2,3] w = {0, 1, 0, 0, 2, 0}> { y = Add(x, w) }"


sparse_initializer.examples = [
    Fixed("linear indices", before=partial(_sparse.model, _ADD, [2, 3], [1, 4]), after=_DENSE),
    Fixed(
        "indices by coordinates", before=partial(_sparse.model, _ADD, [2, 3], [[0, 1], [1, 1]]), after=_DENSE
    ),
    Fixed(
        "int64, read twice, once inside a branch",
        before=partial(
            _sparse.model,
            """g (int64[3] x, bool c) => (int64[3] y, int64[3] z) {
            z = Mul(x, w)
            y = If(c)<then_branch = p () => (int64[3] u) { u = Add(x, w) },
                      else_branch = q () => (int64[3] v) { v = Neg(x) }> }""",
            [3],
            [2],
            kind=TensorProto.INT64,
        ),
        after="""g (int64[3] x, bool c) => (int64[3] y, int64[3] z) <int64[3] w = {0, 0, 1}> {
            z = Mul(x, w)
            y = If(c)<then_branch = p () => (int64[3] u) { u = Add(x, w) },
                      else_branch = q () => (int64[3] v) { v = Neg(x) }> }""",
    ),
    Flagged(
        "a graph output, which is kept",
        partial(_sparse.model, "g (float[3] x) => (float[3] w, float[3] y) { y = Add(x, w) }", [3], [2]),
        runs=False,
    ),
    Silent(
        "unused, which TensorRT ignores",
        partial(_sparse.model, "g (float[3] x) => (float[3] y) { y = Neg(x) }", [3], [2]),
    ),
    Silent("a dense initializer", _DENSE),
]
