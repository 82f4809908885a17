"""OPS044: TopK of more elements than TensorRT supports."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, rule, target_of

LIMIT = 3840


@rule("OPS044", ops=["TopK"], severity=Severity.ERROR, hazards=[54])
def top_k_too_large(node: Node, model: Model) -> Iterator[Match]:
    """A TopK of more than 3840 elements.

    ## Why it matters
    The build fails: `K exceeds the maximum value allowed (3840).`, measured with TensorRT-RTX 1.7.1, where 3840 builds
    and 3841 does not; users of TensorRT 10 hit the same limit. Detectors sort all boxes this way before non-maximum
    suppression, and PyTorch exports argsort as a TopK of all elements. `sorted = 0` is accepted.

    ## Fix
    None. Reduce k, as the suppression that follows does anyway, or sort outside the engine.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    - NVIDIA/TensorRT issues 4244, 4390
    """
    if node.opset < 10:
        wanted = node.attr("k")
    else:
        value = node.input(1)
        known = None if value is None else model.shapes.value(value)
        static = None if known is None else known.static
        wanted = static[0] if static is not None and len(static) == 1 else None
    if wanted is not None and wanted > LIMIT:
        yield Match(
            f"TopK of {wanted} elements: {target_of(model).title} supports at most {LIMIT}",
            node=node,
        )


_G = "g (float[2,5000] x) => (float[2,K] y, int64[2,K] i)"


top_k_too_large.examples = [
    Flagged("one above the limit", f"{_G} <int64[1] k = {{3841}}> {{ y, i = TopK(x, k) }}"),
    Flagged(
        "all elements: a sort",
        """g (float[1,8400] x) => (int64[1,8400] i) {
            k = Constant<value_ints = [8400]>()  v, i = TopK<sorted = 1>(x, k) }""",
    ),
    Flagged("k as an attribute", f"{_G} {{ y, i = TopK<k = 4000>(x) }}", opset=9, runs=False),
    Flagged(
        "k from a Shape",
        """g (float[2,5000] x) => (float[2,5000] y, int64[2,5000] i) {
            k = Shape<start = 1>(x)  y, i = TopK(x, k) }""",
    ),
    Silent("k at the limit", f"{_G} <int64[1] k = {{3840}}> {{ y, i = TopK(x, k) }}"),
    Silent(
        "k is not constant",
        "g (float[2,N] x, int64[1] k) => (float[2,K] y, int64[2,K] i) { y, i = TopK(x, k) }",
    ),
    Silent(
        "unsorted, which is accepted today",
        f"{_G} <int64[1] k = {{5}}> {{ y, i = TopK<sorted = 0>(x, k) }}",
        runs=False,
    ),
]
