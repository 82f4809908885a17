"""OPS033: duplicate indices of a scatter."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, rule
from onnxfix_rules.ops import _scatter_indices


@rule("OPS033", ops=["ScatterElements", "ScatterND"], severity=Severity.WARNING, hazards=[62])
def duplicate_scatter_indices(node: Node, model: Model) -> Iterator[Match]:
    """A ScatterND or ScatterElements with duplicate constant indices.

    ## Why it matters
    Without a reduction ONNX leaves undefined which update wins. ONNX Runtime writes one after the other, a GPU all at
    once: the result may differ from ONNX Runtime's and from run to run. TensorRT-RTX 1.7.1 parses and builds it without
    a warning (measured; no engine was executed).

    ## Fix
    None: the model does not define which update is meant.

    ## References
    - https://onnx.ai/onnx/operators/onnx__ScatterND.html: "`indices` should not have duplicate entries"
    """
    if node.attr("reduction", "none") == "none" and _scatter_indices.are_distinct(node, model) is False:
        yield Match(f"{node.op_type} has duplicate indices, and which update wins is undefined", node=node)


_G = "g (float[4,3] x, float[2,3] u) => (float[4,3] y)"


duplicate_scatter_indices.examples = [
    Flagged("duplicate rows", f"{_G} <int64[2,1] i = {{1, 1}}> {{ y = ScatterND(x, i, u) }}", runs=False),
    Flagged(
        "duplicate rows, one counted from the end",
        f"{_G} <int64[2,1] i = {{3, -1}}> {{ y = ScatterND(x, i, u) }}",
        runs=False,
    ),
    Flagged(
        "duplicate elements",
        f"{_G} <int64[2,3] i = {{0, 1, 2, 3, 1, 0}}> {{ y = ScatterElements(x, i, u) }}",
        runs=False,
    ),
    Silent("distinct rows", f"{_G} <int64[2,1] i = {{0, -1}}> {{ y = ScatterND(x, i, u) }}"),
    Silent(
        "the same index in another column",
        f"{_G} <int64[2,3] i = {{0, 1, 2, 1, 0, 0}}> {{ y = ScatterElements(x, i, u) }}",
    ),
    Silent(
        "distinct along the other axis",
        f"{_G} <int64[2,3] i = {{0, 1, 2, 0, 1, 2}}> {{ y = ScatterElements<axis = -1>(x, i, u) }}",
    ),
    Silent(
        "a dynamic axis: perhaps the same row",
        """g (float[N,3] x, float[2,3] u) => (float[N,3] y) <int64[2,1] i = {0, -1}> {
            y = ScatterND(x, i, u) }""",
        runs=False,
    ),
    Silent(
        "reduction = add, where the order does not matter (OPS039)",
        f'{_G} <int64[2,1] i = {{1, 1}}> {{ y = ScatterND<reduction = "add">(x, i, u) }}',
    ),
    Silent(
        "indices that are not constant",
        "g (float[4,3] x, float[2,3] u, int64[2,1] i) => (float[4,3] y) { y = ScatterND(x, i, u) }",
        runs=False,
    ),
]
