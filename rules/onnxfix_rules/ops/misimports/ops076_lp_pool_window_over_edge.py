"""OPS076: LpPool with a window over the edge."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule
from onnxfix_rules.ops.misimports import _windows


@rule("OPS076", ops=["LpPool"], safety=Safety.UNSAFE, severity=Severity.ERROR, hazards=[15])
def lp_pool_window_over_edge(node: Node, model: Model) -> Iterator[Match]:
    """An LpPool with `ceil_mode = 1` and a last window that reaches over the edge.

    ## Why it matters
    TensorRT imports the norm as a mean of powers times the size of the window. The mean of a window over the edge is
    divided by fewer elements than it is multiplied by, so that the last row and column come out too large. It parses
    and builds without a warning. Measured with TensorRT-RTX 1.7.1 by reading the imported network: an `AVERAGE`
    pooling, `EXPLICIT_ROUND_UP`, whose `average_count_excludes_padding` is false, and a product with 4 for a kernel of
    2x2. NVIDIA documents that "the denominator is the overlap between the pooling window and the padded input", and
    what rounding up adds is not padding. An image of 3x3 ones gives, with strides of 2, norms of 2, 2, 2 and 2 instead
    of ONNX Runtime's 2, 1.41, 1.41 and 1.

    ONNX defines "the Lp norm on all values of a subset of the input", which is what ONNX Runtime computes. Its
    reference evaluator multiplies as TensorRT does, and so does PyTorch's `lp_pool2d`.

    TensorRT keeps a last window that would start in the padding, and all others drop it, as in OPS075.

    An error where it holds for all sizes; a warning where it depends on a dynamic one.

    ## Fix
    No `ceil_mode`, and explicit padding at the end, which TensorRT counts as zeros: what the last window needs, or for
    a dynamic size the smaller of pad + stride - 1 and kernel - 1. It is what ONNX Runtime computes, bit for bit, and
    all implementations agree on the result; they disagree about the original, so the fix requires `--unsafe-fixes`.
    Where windows would only start in the padding and none reaches over the edge, it is exact.

    ## References
    - https://onnx.ai/onnx/operators/onnx__LpPool.html
    - https://docs.nvidia.com/deeplearning/tensorrt/api/c_api/classnvinfer1_1_1_i_pooling_layer.html:
      setAverageCountExcludesPadding
    """
    pool = _windows.rounded_up(node, model, first_opset=18)
    if pool is None or len(pool.axes) < 2 or node.attr("p", 2) not in (1, 2):
        return
    wrong = [axis.beyond | axis.in_padding for axis in pool.axes]
    if all(answer.no for answer in wrong):
        return
    certain = any(answer.yes for answer in wrong)
    fix = None
    if pool.beyond.no or not pool.valid:
        safety = Safety.EXACT if pool.beyond.no and pool.has_windows else Safety.UNSAFE
        fix = Fix("round down, with padding at the end", pool.draft(node).edits, safety)
    if pool.beyond.no:
        how, what = "starts" if certain else "may start", "in the padding; ONNX drops it, TensorRT keeps it"
    else:
        how = "reaches" if certain else "may reach"
        what = "over the edge; TensorRT multiplies its mean by the size of a full window"
    yield Match(
        f"LpPool with ceil_mode: along {pool.where(wrong)} the last window {how} {what}",
        node=node,
        severity=Severity.ERROR if certain else Severity.WARNING,
        fix=fix,
    )


_ODD = "g (float[N,2,5,5] x) => (float[N,2,3,3] y)"
_ANY = "g (float[1,2,H,W] x) => (float[1,2,A,B] y)"
_PAIRS = "kernel_shape = [2,2], strides = [2,2]"


lp_pool_window_over_edge.examples = [
    Fixed(
        "windows of 2 over an odd size",
        before=f"{_ODD} {{ y = LpPool<{_PAIRS}, ceil_mode = 1>(x) }}",
        after=f"{_ODD} {{ y = LpPool<{_PAIRS}, pads = [0,0,1,1]>(x) }}",
        safety=Safety.UNSAFE,
        runs=False,  # ONNX's reference evaluator agrees with TensorRT on the original
    ),
    Flagged(
        "without --unsafe-fixes: reported only",
        f"{_ODD} {{ y = LpPool<{_PAIRS}, p = 1, ceil_mode = 1>(x) }}",
        opset=22,
    ),
    Fixed(
        "dynamic sizes: one padding is correct for all",
        before=f"{_ANY} {{ y = LpPool<{_PAIRS}, pads = [0,0,1,1], ceil_mode = 1>(x) }}",
        after=f"{_ANY} {{ y = LpPool<{_PAIRS}, pads = [0,0,1,1]>(x) }}",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Fixed(
        "a dynamic size that is always odd",
        before="""g (float[1,2,L,1] x, float[1,2,1,1] e) => (float[1,2,A,1] y) {
            d = Concat<axis = 2>(x, e, x)  y = LpPool<kernel_shape = [2,1], strides = [2,1], ceil_mode = 1>(d) }""",
        after="""g (float[1,2,L,1] x, float[1,2,1,1] e) => (float[1,2,A,1] y) {
            d = Concat<axis = 2>(x, e, x)
            y = LpPool<kernel_shape = [2,1], strides = [2,1], pads = [0,0,1,0]>(d) }""",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Fixed(
        "a last window that starts in the padding, which all but TensorRT drop",
        before="g (float[1,2,4,4] x) => (float[1,2,2,4] y) {"
        " y = LpPool<kernel_shape = [1,1], strides = [2,1], ceil_mode = 1>(x) }",
        after="g (float[1,2,4,4] x) => (float[1,2,2,4] y) { y = LpPool<kernel_shape = [1,1], strides = [2,1]>(x) }",
    ),
    Fixed(
        "a volume, in a branch",
        before="""g (float[1,1,5,4,4] x, bool c) => (float[1,1,3,2,2] y) {
            y = If(c)<then_branch = p () => (float[1,1,3,2,2] u) {
                          u = LpPool<kernel_shape = [2,2,2], strides = [2,2,2], ceil_mode = 1>(x) },
                      else_branch = q () => (float[1,1,3,2,2] v) {
                          v = LpPool<kernel_shape = [2,2,2], strides = [2,2,2], pads = [0,0,0,1,0,0]>(x) }> }""",
        after="""g (float[1,1,5,4,4] x, bool c) => (float[1,1,3,2,2] y) {
            y = If(c)<then_branch = p () => (float[1,1,3,2,2] u) {
                          u = LpPool<kernel_shape = [2,2,2], strides = [2,2,2], pads = [0,0,0,1,0,0]>(x) },
                      else_branch = q () => (float[1,1,3,2,2] v) {
                          v = LpPool<kernel_shape = [2,2,2], strides = [2,2,2], pads = [0,0,0,1,0,0]>(x) }> }""",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Fixed(
        "in a local function, where no size is known",
        before=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_ODD} {{ y = my.F(x) }}
            <domain: "my", opset_import: ["" : 18]> F (a) => (b) {{ b = LpPool<{_PAIRS}, ceil_mode = 1>(a) }}""",
        after=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_ODD} {{ y = my.F(x) }}
            <domain: "my", opset_import: ["" : 18]> F (a) => (b) {{ b = LpPool<{_PAIRS}, pads = [0,0,1,1]>(a) }}""",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged(
        "auto_pad = VALID: implementations disagree about the number of windows",
        f'{_ODD} {{ y = LpPool<{_PAIRS}, auto_pad = "VALID", ceil_mode = 1>(x) }}',
        safety=Safety.UNSAFE,
    ),
    Silent(
        "windows that fill the size",
        f"g (float[1,2,4,6] x) => (float[1,2,2,3] y) {{ y = LpPool<{_PAIRS}, ceil_mode = 1>(x) }}",
    ),
    Silent("strides of 1, for any size", f"{_ANY} {{ y = LpPool<kernel_shape = [2,2], ceil_mode = 1>(x) }}"),
    Silent(
        "rounding down, with padding at the end, which counts as zeros",
        f"{_ODD} {{ y = LpPool<{_PAIRS}, pads = [0,0,1,1], ceil_mode = 0>(x) }}",
    ),
    Silent(
        "SAME_UPPER, which TensorRT pads with zeros too",
        f'{_ODD} {{ y = LpPool<{_PAIRS}, auto_pad = "SAME_UPPER", ceil_mode = 1>(x) }}',
    ),
    Silent(
        "another norm, which TensorRT rejects (OPS066)",
        f"{_ODD} {{ y = LpPool<{_PAIRS}, p = 3, ceil_mode = 1>(x) }}",
    ),
    Silent(
        "a signal, which TensorRT rejects",
        "g (float[1,2,5] x) => (float[1,2,3] y) {"
        " y = LpPool<kernel_shape = [2], strides = [2], ceil_mode = 1>(x) }",
    ),
    Silent(
        "an AveragePool, which divides by the elements in the window",
        f"{_ODD} {{ y = AveragePool<{_PAIRS}, ceil_mode = 1>(x) }}",
    ),
]
