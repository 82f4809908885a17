"""Pooling windows that lie in the padding or reach over the edge."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from onnxfix.rule import Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule
from onnxfix_rules.ops.misimports import _windows


@rule("OPS075", ops=["AveragePool", "MaxPool"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[14])
def pool_window_in_padding(node: Node, model: Model) -> Iterator[Match]:
    """A MaxPool or AveragePool with `ceil_mode = 1` whose last window would start in the padding at the end.

    ## Why it matters
    ONNX drops that window, TensorRT keeps it: the result has an extra row or column. It occurs where the stride is
    greater than the kernel minus the padding at the end: a kernel of 1 and a stride of 2, or a kernel and a stride of 2
    with pads of 1. Measured with TensorRT-RTX 1.7.1 by reading the imported network: for `kernel_shape = [1,1], strides
    = [2,2]` on an image of 2x2 the pooling layer has `EXPLICIT_ROUND_UP` and a result of 2x2, in opsets 10, 11, 18 and
    22; ONNX Runtime and ONNX's reference evaluator give 1x1 in all of them. The specification says so since opset 22;
    ONNX's shape inference gives 2x2 before.

    A **MaxPool** of any size, an **AveragePool** with `count_include_pad`, and one of dynamic size are built without a
    warning. An AveragePool of static size that does not count the padding is rejected: `the padding size is larger than
    or equal to the filter size for exclusive-counting pooling`.

    An error where it holds for all sizes; a warning where it depends on a dynamic one.

    ## Fix
    No `ceil_mode`, and the padding at the end that gives ONNX's windows: what the last one needs, or for a dynamic size
    the smaller of pad + stride - 1 and kernel - 1, which is correct for every size. Exact: the windows hold the same
    elements. An AveragePool that counts the padding requires `--numeric-fixes`, because ONNX Runtime then uses another
    kernel, which differs in the last bits; it has no fix where a window may reach beyond the padding, because added
    padding would count. With `auto_pad = VALID` only `ceil_mode` is dropped, and only where no window reaches over the
    edge: implementations disagree about such windows. Along an axis of dynamic size an image that is shorter than the
    window by a stride or more has no windows, but one after the fix: where that is possible, the fix requires
    `--unsafe-fixes`. No fix where an output of a graph declares the larger size, as ONNX's shape inference before opset
    22 gives it: onnx.checker would refuse the result.

    ## References
    - https://onnx.ai/onnx/operators/onnx__MaxPool.html: "Sliding windows that would start in the right padded region
      are ignored."
    """
    pool = _windows.rounded_up(node, model, first_opset=10)
    if pool is None or pool.in_padding.no:
        return
    certain = pool.in_padding.yes
    counted = node.op_type == "AveragePool" and node.attr("count_include_pad", 0)
    fix = None
    if (pool.beyond.no or not (counted or pool.valid)) and pool.fits(node):
        safety = Safety.UNSAFE if not pool.has_windows else Safety.NUMERIC if counted else Safety.EXACT
        fix = Fix("round down, with the padding for ONNX's windows", pool.draft(node).edits, safety)
    starts = "starts" if certain else "may start"
    where = pool.where([axis.in_padding for axis in pool.axes])
    yield Match(
        f"{node.op_type} with ceil_mode: along {where} the last window {starts} in the padding; ONNX drops it, "
        "TensorRT keeps it",
        node=node,
        severity=Severity.ERROR if certain else Severity.WARNING,
        fix=fix,
    )


_EVEN = "g (float[N,2,4,4] x) => (float[N,2,A,B] y)"
_ODD = "g (float[1,2,3,3] x) => (float[1,2,A,B] y)"
_ANY = "g (float[1,2,H,W] x) => (float[1,2,A,B] y)"
_SKIP = "kernel_shape = [1,1], strides = [2,2]"
_PAIRS = "kernel_shape = [2,2], strides = [2,2], pads = [1,1,1,1]"
_fixed = partial(Fixed, runs=False, safety=Safety.UNSAFE)


pool_window_in_padding.examples = [
    Fixed(
        "every second pixel of an even size",
        before=f"{_EVEN} {{ y = MaxPool<{_SKIP}, ceil_mode = 1>(x) }}",
        after=f"{_EVEN} {{ y = MaxPool<{_SKIP}>(x) }}",
    ),
    Fixed(
        "with padding, which is dropped at the end",
        before=f"{_ODD} {{ y = MaxPool<{_PAIRS}, ceil_mode = 1>(x) }}",
        after=f"{_ODD} {{ y = MaxPool<kernel_shape = [2,2], strides = [2,2], pads = [1,1,0,0]>(x) }}",
        opset=10,
    ),
    Flagged(
        "the output declares the size with the window, which onnx.checker would no longer accept",
        f"g (float[1,2,3,3] x) => (float[1,2,3,3] y) {{ y = MaxPool<{_PAIRS}, ceil_mode = 1>(x) }}",
        opset=10,
    ),
    Fixed(
        "the output declares the size without the window",
        before=f"g (float[1,2,3,3] x) => (float[1,2,2,2] y) {{ y = MaxPool<{_PAIRS}, ceil_mode = 1>(x) }}",
        after="""g (float[1,2,3,3] x) => (float[1,2,2,2] y) {
            y = MaxPool<kernel_shape = [2,2], strides = [2,2], pads = [1,1,0,0]>(x) }""",
        opset=22,
    ),
    Fixed(
        "another axis has a window over the edge",
        before="""g (float[1,2,3,4] x) => (float[1,2,A,B] y) {
            y = MaxPool<kernel_shape = [2,3], strides = [2,2], pads = [1,0,1,0], ceil_mode = 1>(x) }""",
        after="""g (float[1,2,3,4] x) => (float[1,2,A,B] y) {
            y = MaxPool<kernel_shape = [2,3], strides = [2,2], pads = [1,0,0,1]>(x) }""",
    ),
    Fixed(
        "an AveragePool, which TensorRT rejects",
        before=f"{_EVEN} {{ y = AveragePool<{_SKIP}, ceil_mode = 1>(x) }}",
        after=f"{_EVEN} {{ y = AveragePool<{_SKIP}>(x) }}",
        opset=22,
    ),
    Flagged(
        "without --numeric-fixes: reported only",
        f"{_ODD} {{ y = AveragePool<{_PAIRS}, count_include_pad = 1, ceil_mode = 1>(x) }}",
    ),
    Flagged(
        "an AveragePool that counts the padding; added padding would count in another axis's window over the edge",
        """g (float[1,2,3,4] x) => (float[1,2,A,B] y) { y = AveragePool<kernel_shape = [2,3], strides = [2,2],
            pads = [1,0,1,0], count_include_pad = 1, ceil_mode = 1>(x) }""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "dynamic sizes: one padding is correct for all",
        before=f"{_ANY} {{ y = MaxPool<{_PAIRS}, ceil_mode = 1>(x) }}",
        after=f"{_ANY} {{ y = MaxPool<{_PAIRS}>(x) }}",
    ),
    Fixed(
        "an AveragePool with dynamic sizes and no padding",
        before="""g (float[1,2,H,4] x) => (float[1,2,A,B] y) {
            y = AveragePool<kernel_shape = [2,3], strides = [3,2], ceil_mode = 1>(x) }""",
        after="""g (float[1,2,H,4] x) => (float[1,2,A,B] y) {
            y = AveragePool<kernel_shape = [2,3], strides = [3,2], pads = [0,0,1,1]>(x) }""",
    ),
    Flagged(
        "an AveragePool that counts the padding, with dynamic sizes; windows may reach beyond the padding",
        f"""{_ANY} {{ y = AveragePool<kernel_shape = [3,3], strides = [3,3], pads = [1,1,1,1],
            count_include_pad = 1, ceil_mode = 1>(x) }}""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "an AveragePool that counts the padding, with dynamic sizes; windows cannot reach beyond the padding",
        before=f"{_ANY} {{ y = AveragePool<{_PAIRS}, count_include_pad = 1, ceil_mode = 1>(x) }}",
        after=f"{_ANY} {{ y = AveragePool<{_PAIRS}, count_include_pad = 1>(x) }}",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "a dynamic size that is always even",
        before="""g (float[1,2,L] x) => (float[1,2,A] y) {
            d = Concat<axis = 2>(x, x)  y = MaxPool<kernel_shape = [1], strides = [2], ceil_mode = 1>(d) }""",
        after="""g (float[1,2,L] x) => (float[1,2,A] y) {
            d = Concat<axis = 2>(x, x)  y = MaxPool<kernel_shape = [1], strides = [2]>(d) }""",
    ),
    Fixed(
        "a volume",
        before="""g (float[1,1,4,4,4] x) => (float[1,1,A,B,C] y) {
            y = MaxPool<kernel_shape = [1,2,3], strides = [2,2,2], ceil_mode = 1>(x) }""",
        after="""g (float[1,1,4,4,4] x) => (float[1,1,A,B,C] y) {
            y = MaxPool<kernel_shape = [1,2,3], strides = [2,2,2], pads = [0,0,0,0,0,1]>(x) }""",
        opset=22,  # before, shape inference gives an extra row, and ONNX Runtime fails
    ),
    Fixed(
        "in a local function, where no size is known",
        before=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_EVEN} {{ y = my.F(x) }}
            <domain: "my", opset_import: ["" : 18]> F (a) => (b) {{ b = MaxPool<{_SKIP}, ceil_mode = 1>(a) }}""",
        after=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_EVEN} {{ y = my.F(x) }}
            <domain: "my", opset_import: ["" : 18]> F (a) => (b) {{ b = MaxPool<{_SKIP}>(a) }}""",
    ),
    Fixed(
        "auto_pad = VALID",
        before=f'{_EVEN} {{ y = MaxPool<{_SKIP}, auto_pad = "VALID", ceil_mode = 1>(x) }}',
        after=f'{_EVEN} {{ y = MaxPool<{_SKIP}, auto_pad = "VALID">(x) }}',
    ),
    Fixed(
        "auto_pad = VALID; the windows always fill the other axis",
        before="""g (float[1,2,4,L] x) => (float[1,2,A,B] y) { d = Concat<axis = 3>(x, x)
            y = MaxPool<kernel_shape = [1,2], strides = [2,2], auto_pad = "VALID", ceil_mode = 1>(d) }""",
        after="""g (float[1,2,4,L] x) => (float[1,2,A,B] y) { d = Concat<axis = 3>(x, x)
            y = MaxPool<kernel_shape = [1,2], strides = [2,2], auto_pad = "VALID">(d) }""",
    ),
    Flagged(
        "auto_pad = VALID; another axis has a window over the edge, which some implementations drop",
        """g (float[1,2,4,4] x) => (float[1,2,A,B] y) {
            y = MaxPool<kernel_shape = [1,3], strides = [2,2], auto_pad = "VALID", ceil_mode = 1>(x) }""",
    ),
    Silent(
        "the last window starts inside for every size: no stride exceeds kernel minus padding",
        f"""{_ANY} {{
            y = MaxPool<kernel_shape = [3,2], strides = [2,2], pads = [1,0,1,0], ceil_mode = 1>(x) }}""",
    ),
    Silent(
        "the last window starts inside for this size and reaches over the edge",
        """g (float[1,2,5,5] x) => (float[1,2,3,3] y) {
            y = AveragePool<kernel_shape = [2,2], strides = [3,3], ceil_mode = 1>(x) }""",
    ),
    _fixed(
        "another axis, of dynamic size, may have no window, but one after rounding down",
        before=f"{_ANY} {{ y = MaxPool<kernel_shape = [4,1], strides = [2,2], ceil_mode = 1>(x) }}",
        after=f"{_ANY} {{ y = MaxPool<kernel_shape = [4,1], strides = [2,2], pads = [0,0,1,0]>(x) }}",
    ),
    Flagged(
        "the same without --unsafe-fixes: reported only",
        f"{_ANY} {{ y = MaxPool<kernel_shape = [4,1], strides = [2,2], ceil_mode = 1>(x) }}",
    ),
    Silent("rounding down", f"{_EVEN} {{ y = MaxPool<{_SKIP}, ceil_mode = 0>(x) }}"),
    Silent(
        "SAME_UPPER, which always rounds up",
        f"""{_EVEN} {{
            y = MaxPool<kernel_shape = [2,2], strides = [2,2], auto_pad = "SAME_UPPER", ceil_mode = 1>(x) }}""",
    ),
    Silent(
        "before opset 10 there is no ceil_mode, and TensorRT does not read it",
        f"{_EVEN} {{ y = MaxPool<{_SKIP}, ceil_mode = 1>(x) }}",
        opset=9,
        runs=False,
    ),
    Silent(
        "dilations, which TensorRT rejects (OPS037)",
        f"""{_EVEN} {{
            y = MaxPool<kernel_shape = [2,1], dilations = [2,1], strides = [2,2], ceil_mode = 1>(x) }}""",
    ),
    Silent("LpPool (OPS076)", f"{_EVEN} {{ y = LpPool<{_SKIP}, ceil_mode = 1>(x) }}"),
]


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
    message = f"LpPool with ceil_mode: along {pool.where(wrong)} the last window {how} {what}"
    yield Match(message, node=node, severity=Severity.ERROR if certain else Severity.WARNING, fix=fix)


_EDGE = "g (float[N,2,5,5] x) => (float[N,2,3,3] y)"
_APART = "kernel_shape = [2,2], strides = [2,2]"


lp_pool_window_over_edge.examples = [
    _fixed(
        "windows of 2 over an odd size",
        before=f"{_EDGE} {{ y = LpPool<{_APART}, ceil_mode = 1>(x) }}",
        after=f"{_EDGE} {{ y = LpPool<{_APART}, pads = [0,0,1,1]>(x) }}",
        # not run: ONNX's reference evaluator agrees with TensorRT on the original
    ),
    Flagged(
        "without --unsafe-fixes: reported only",
        f"{_EDGE} {{ y = LpPool<{_APART}, p = 1, ceil_mode = 1>(x) }}",
        opset=22,
    ),
    _fixed(
        "dynamic sizes: one padding is correct for all",
        before=f"{_ANY} {{ y = LpPool<{_APART}, pads = [0,0,1,1], ceil_mode = 1>(x) }}",
        after=f"{_ANY} {{ y = LpPool<{_APART}, pads = [0,0,1,1]>(x) }}",
        safety=Safety.EXACT,
    ),
    _fixed(
        "a dynamic size that is always odd",
        before="""g (float[1,2,L,1] x, float[1,2,1,1] e) => (float[1,2,A,1] y) {
            d = Concat<axis = 2>(x, e, x)  y = LpPool<kernel_shape = [2,1], strides = [2,1], ceil_mode = 1>(d) }""",
        after="""g (float[1,2,L,1] x, float[1,2,1,1] e) => (float[1,2,A,1] y) {
            d = Concat<axis = 2>(x, e, x)
            y = LpPool<kernel_shape = [2,1], strides = [2,1], pads = [0,0,1,0]>(d) }""",
    ),
    Fixed(
        "a last window that starts in the padding, which all but TensorRT drop",
        before="g (float[1,2,4,4] x) => (float[1,2,2,4] y) {"
        " y = LpPool<kernel_shape = [1,1], strides = [2,1], ceil_mode = 1>(x) }",
        after="g (float[1,2,4,4] x) => (float[1,2,2,4] y) { y = LpPool<kernel_shape = [1,1], strides = [2,1]>(x) }",
    ),
    _fixed(
        "a volume",
        before="""g (float[1,1,5,4,4] x) => (float[1,1,3,2,2] y) {
            y = LpPool<kernel_shape = [2,2,2], strides = [2,2,2], ceil_mode = 1>(x) }""",
        after="""g (float[1,1,5,4,4] x) => (float[1,1,3,2,2] y) {
            y = LpPool<kernel_shape = [2,2,2], strides = [2,2,2], pads = [0,0,0,1,0,0]>(x) }""",
    ),
    _fixed(
        "in a local function, where no size is known",
        before=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_EDGE} {{ y = my.F(x) }}
            <domain: "my", opset_import: ["" : 18]> F (a) => (b) {{ b = LpPool<{_APART}, ceil_mode = 1>(a) }}""",
        after=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_EDGE} {{ y = my.F(x) }}
            <domain: "my", opset_import: ["" : 18]> F (a) => (b) {{ b = LpPool<{_APART}, pads = [0,0,1,1]>(a) }}""",
    ),
    Flagged(
        "auto_pad = VALID: implementations disagree about the number of windows",
        f'{_EDGE} {{ y = LpPool<{_APART}, auto_pad = "VALID", ceil_mode = 1>(x) }}',
        safety=Safety.UNSAFE,
    ),
    Silent(
        "windows that fill the size",
        f"g (float[1,2,4,6] x) => (float[1,2,2,3] y) {{ y = LpPool<{_APART}, ceil_mode = 1>(x) }}",
    ),
    Silent("strides of 1, for any size", f"{_ANY} {{ y = LpPool<kernel_shape = [2,2], ceil_mode = 1>(x) }}"),
    Silent(
        "rounding down, with padding at the end, which counts as zeros",
        f"{_EDGE} {{ y = LpPool<{_APART}, pads = [0,0,1,1], ceil_mode = 0>(x) }}",
    ),
    Silent(
        "SAME_UPPER, which TensorRT pads with zeros too",
        f'{_EDGE} {{ y = LpPool<{_APART}, auto_pad = "SAME_UPPER", ceil_mode = 1>(x) }}',
    ),
    Silent(
        "another norm, which TensorRT rejects (OPS066)",
        f"{_EDGE} {{ y = LpPool<{_APART}, p = 3, ceil_mode = 1>(x) }}",
    ),
    Silent(
        "a signal, which TensorRT rejects",
        "g (float[1,2,5] x) => (float[1,2,3] y) {"
        " y = LpPool<kernel_shape = [2], strides = [2], ceil_mode = 1>(x) }",
    ),
    Silent(
        "an AveragePool, which divides by the elements in the window",
        f"{_EDGE} {{ y = AveragePool<{_APART}, ceil_mode = 1>(x) }}",
    ),
]
