"""OPS044: more of the largest elements than TensorRT sorts."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, rule, target_of

LIMIT = 3840


@rule("OPS044", ops=["TopK"], severity=Severity.ERROR, hazards=[24])
def top_k_too_large(node: Node, model: Model) -> Iterator[Match]:
    """A TopK of more than 3840 elements.

    ## Why it matters
    The build fails: `K exceeds the maximum value allowed (3840).`, measured with TensorRT-RTX 1.7.1, where 3840 builds
    and 3841 does not; users of TensorRT 10 met the same limit. Detectors sort all boxes so before non-maximum
    suppression, and argsort in PyTorch is a TopK of everything. `sorted = 0` is accepted.

    ## Fix
    None: take fewer, as the suppression behind it does anyway, or sort outside of the engine.

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
            f"TopK of {wanted} elements: {target_of(model).title} sorts {LIMIT} at most",
            node=node,
        )


_G = "g (float[2,5000] x) => (float[2,K] y, int64[2,K] i)"


top_k_too_large.examples = [
    Flagged("one more than it takes", f"{_G} <int64[1] k = {{3841}}> {{ y, i = TopK(x, k) }}"),
    Flagged(
        "all of them: a sort",
        """g (float[1,8400] x) => (int64[1,8400] i) {
            k = Constant<value_ints = [8400]>()  v, i = TopK<sorted = 1>(x, k) }""",
    ),
    Flagged("as an attribute", f"{_G} {{ y, i = TopK<k = 4000>(x) }}", opset=9, runs=False),
    Flagged(
        "as many as an axis has, by Shape",
        """g (float[2,5000] x) => (float[2,5000] y, int64[2,5000] i) {
            k = Shape<start = 1>(x)  y, i = TopK(x, k) }""",
    ),
    Silent("as many as it takes", f"{_G} <int64[1] k = {{3840}}> {{ y, i = TopK(x, k) }}"),
    Silent(
        "how many is said at run time",
        "g (float[2,N] x, int64[1] k) => (float[2,K] y, int64[2,K] i) { y, i = TopK(x, k) }",
    ),
    Silent(
        "not in order, which is accepted today",
        f"{_G} <int64[1] k = {{5}}> {{ y, i = TopK<sorted = 0>(x, k) }}",
        runs=False,
    ),
]
