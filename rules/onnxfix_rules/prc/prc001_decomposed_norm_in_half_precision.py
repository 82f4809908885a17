"""PRC001: LayerNorm or RMSNorm decomposed in half precision."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Match, Model, Node, Safety, Severity, Value, rule

from ._common import HALF, type_of
from ._examples import NORMS
from ._norm import norm_at
from ._remedy import as_operator, upcast


@rule(
    "PRC001",
    ops=["Sqrt", "Pow"],
    safety=Safety.NUMERIC,
    severity=Severity.WARNING,
    hazards=[31],
    types=[HALF],
)
def decomposed_norm_in_half_precision(node: Node, model: Model) -> Iterator[Match]:
    """A decomposed LayerNorm or RMSNorm in half precision, where its squares and sums overflow.

    ## Why it matters
    `(x - mean(x))**2` exceeds 65504, float16's largest value, as soon as an element is 256 away from the mean, and
    the sum in a mean overflows sooner. The quotient is then 0 or NaN. TensorRT detects the pattern and builds it
    unchanged. Measured with TensorRT-RTX 1.7.1 (parsed and built ahead of time, not executed), for LayerNorm and
    RMSNorm, with `Pow` or `Mul`, `Div` or `Reciprocal`, over any axis, and also if only the mean is in half
    precision: `Detected layernorm nodes in FP16.` and `Running layernorm after self-attention with FP16 Reduce or Pow
    may cause overflow. Forcing Reduce or Pow Layers in FP32 precision, or exporting the model to use
    INormalizationLayer (available with ONNX opset >= 17) can help preserving accuracy.` After each of the rewrites
    below it reports neither.

    With `onnx.reference`, which rounds after each node: rows 0, 600, 0, 600, … of 8 elements give -1, 1, -1, 1 in
    float32; decomposed in float16 they give 0 or -0 everywhere, because the variance is infinite, and NaN with 768
    elements, where the mean is infinite, too. After the rewrite in float32 it is -1, 1 again.

    ## Fix
    One LayerNormalization (opset 17) or RMSNormalization (opset 23), if the target supports it for half precision:
    both compute in float32 by definition (`stash_type` 1). The axes must be the last ones. A following scale and bias
    of the normalized shape are included, constants also with leading dimensions of 1; others stay, and a scale of
    ones is added.

    Means may be sums divided by their number of elements, or lack the dimension, which an Unsqueeze restores; the
    root may be a power of 0.5 or -0.5, the quotient a product with a reciprocal.

    Otherwise the same nodes in float32 between two Casts; in double, which TensorRT imports as float32, if the result
    or the epsilon is double.

    NUMERIC: without overflow only rounding changes. With overflow, finite values replace NaN, infinity or 0, as
    intended; verification shows the overflow and judges those values by the original in higher precision. ONNX
    Runtime computes all of these in float32 on the CPU, so there nothing overflows. On rows of two or three nearly
    equal elements, half-precision rounding itself is out of tolerance, and the fix is withdrawn.

    No fix if another node, a subgraph or a graph output reads the mean, the difference or the variance, and if
    epsilon is 0 (see PRC002). bfloat16 has float32's range and is not reported.

    ## References
    - NVIDIA/TensorRT issues 2564, 2781, 3692, 4355, 4493; pytorch/TensorRT issue 4061
    - microsoft/onnxruntime pull request 13639 (overflow at the Pow of a layer norm)
    - onnxsim pull request 1742: ViT-B/16 in FP16 on TensorRT 10.3 falls to 19 % top-1 for this reason
    - https://onnx.ai/onnx/operators/onnx__LayerNormalization.html
    """
    norm = norm_at(node, model)
    if norm is None or HALF not in norm.types or type_of(norm.x, model) != HALF:
        return
    message = f"decomposed {norm.kind} in half precision: its sums and squares overflow beyond 65504"
    reads: tuple[Node | Value, ...] = (norm.x, norm.epsilon_value, *norm.inside)
    if norm.epsilon <= 0:
        yield Match(f"{message}; its epsilon is {norm.epsilon:g} in this type", node=node, reads=reads)
        return
    if not norm.closed:
        yield Match(f"{message}; other nodes read its intermediate results", node=node, reads=reads)
        return
    yield Match(message, node=node, fix=as_operator(norm, model) or upcast(norm, model), reads=reads)


decomposed_norm_in_half_precision.examples = NORMS
