"""OPS033: duplicate indices of a scatter."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, rule
from onnxfix_rules.ops import _places


@rule("OPS033", ops=["ScatterElements", "ScatterND"], severity=Severity.WARNING, hazards=[32])
def duplicate_scatter_indices(node: Node, model: Model) -> Iterator[Match]:
    """A ScatterND or ScatterElements whose constant indices name one place twice.

    ## Why it matters
    Without a reduction ONNX leaves open which update stays. ONNX Runtime writes one after the other, a GPU all at once:
    the result may differ from it and from run to run. TensorRT-RTX 1.7.1 parses and builds it without a word (measured;
    no engine was executed).

    ## Fix
    None: the model does not say which update is meant.

    ## References
    - https://onnx.ai/onnx/operators/onnx__ScatterND.html: "`indices` should not have duplicate entries"
    """
    if node.attr("reduction", "none") == "none" and _places.distinct(node, model) is False:
        yield Match(f"{node.op_type} has duplicate indices, and which update wins is undefined", node=node)


_G = "g (float[4,3] x, float[2,3] u) => (float[4,3] y)"


duplicate_scatter_indices.examples = [
    Flagged("a row twice", f"{_G} <int64[2,1] i = {{1, 1}}> {{ y = ScatterND(x, i, u) }}", runs=False),
    Flagged(
        "a row twice, once counted from the end",
        f"{_G} <int64[2,1] i = {{3, -1}}> {{ y = ScatterND(x, i, u) }}",
        runs=False,
    ),
    Flagged(
        "an element twice",
        f"{_G} <int64[2,3] i = {{0, 1, 2, 3, 1, 0}}> {{ y = ScatterElements(x, i, u) }}",
        runs=False,
    ),
    Silent("rows that differ", f"{_G} <int64[2,1] i = {{0, -1}}> {{ y = ScatterND(x, i, u) }}"),
    Silent(
        "the same number in another column",
        f"{_G} <int64[2,3] i = {{0, 1, 2, 1, 0, 0}}> {{ y = ScatterElements(x, i, u) }}",
    ),
    Silent(
        "along the other axis",
        f"{_G} <int64[2,3] i = {{0, 1, 2, 0, 1, 2}}> {{ y = ScatterElements<axis = -1>(x, i, u) }}",
    ),
    Silent(
        "perhaps: the axis is dynamic",
        """g (float[N,3] x, float[2,3] u) => (float[N,3] y) <int64[2,1] i = {0, -1}> {
            y = ScatterND(x, i, u) }""",
        runs=False,
    ),
    Silent(
        "added up, where the order does not matter: OPS039",
        f'{_G} <int64[2,1] i = {{1, 1}}> {{ y = ScatterND<reduction = "add">(x, i, u) }}',
    ),
    Silent(
        "indices at run time",
        "g (float[4,3] x, float[2,3] u, int64[2,1] i) => (float[4,3] y) { y = ScatterND(x, i, u) }",
        runs=False,
    ),
]
