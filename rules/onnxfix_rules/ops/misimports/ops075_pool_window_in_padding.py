"""OPS075: a last pooling window that starts in the padding."""

from __future__ import annotations

from collections.abc import Iterator

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
    Fixed(
        "an AveragePool that counts the padding",
        before=f"{_ODD} {{ y = AveragePool<{_PAIRS}, count_include_pad = 1, ceil_mode = 1>(x) }}",
        after=f"""{_ODD} {{ y = AveragePool<kernel_shape = [2,2], strides = [2,2], pads = [1,1,0,0],
            count_include_pad = 1>(x) }}""",
        safety=Safety.NUMERIC,
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
        "a volume, in a branch",
        before="""g (float[1,1,4,4,4] x, bool c) => (float[1,1,A,B,C] y) {
            y = If(c)<then_branch = p () => (float[1,1,A,B,C] u) {
                          u = MaxPool<kernel_shape = [1,2,3], strides = [2,2,2], ceil_mode = 1>(x) },
                      else_branch = q () => (float[1,1,A,B,C] v) { v = MaxPool<kernel_shape = [3,3,3]>(x) }> }""",
        after="""g (float[1,1,4,4,4] x, bool c) => (float[1,1,A,B,C] y) {
            y = If(c)<then_branch = p () => (float[1,1,A,B,C] u) {
                          u = MaxPool<kernel_shape = [1,2,3], strides = [2,2,2], pads = [0,0,0,0,0,1]>(x) },
                      else_branch = q () => (float[1,1,A,B,C] v) { v = MaxPool<kernel_shape = [3,3,3]>(x) }> }""",
        opset=22,  # before, shape inference gives the branch an extra row, and ONNX Runtime fails
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
    Fixed(
        "another axis, of dynamic size, may have no window, but one after rounding down",
        before=f"{_ANY} {{ y = MaxPool<kernel_shape = [4,1], strides = [2,2], ceil_mode = 1>(x) }}",
        after=f"{_ANY} {{ y = MaxPool<kernel_shape = [4,1], strides = [2,2], pads = [0,0,1,0]>(x) }}",
        safety=Safety.UNSAFE,
        runs=False,
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
