"""Padding that TensorRT ignores or refuses late."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule
from onnxfix.shapes.ops.conv import Window, slid
from onnxfix.shapes.symbols import constant
from onnxfix_rules.ops.misimports._windows import declared_alike


@rule(
    "OPS016",
    ops=["Conv", "ConvTranspose", "AveragePool", "MaxPool", "LpPool"],
    safety=Safety.UNSAFE,
    severity=Severity.ERROR,
    hazards=[9],
)
def pads_with_auto_pad(node: Node, model: Model) -> Iterator[Match]:
    """Both `auto_pad` and `pads`, which ONNX forbids: implementations disagree about which one counts.

    ## Why it matters
    Measured with TensorRT-RTX 1.7.1 (by reading the imported network) and ONNX Runtime 1.31:

    - **VALID and pads**: TensorRT uses the pads, for Conv, ConvTranspose, AveragePool, MaxPool and LpPool; it parses
      and builds without a warning. ONNX Runtime ignores them in the pools and rejects both convolutions; the reference
      evaluator ignores them except in MaxPool and ConvTranspose, and ONNX's shape inference counts them. Pads of 0 are
      interpreted alike by all that accept them.
    - **SAME_UPPER, SAME_LOWER and pads**, also of 0: TensorRT rejects it (`Pads attribute should not be specified with
      SAME_LOWER or SAME_UPPER auto padding!`).

    ## Fix
    Drop `pads`, as ONNX Runtime does. This guesses the meaning of an invalid model and requires `--unsafe-fixes`; where
    the pads are 0 it is exact. No fix where an output of a graph declares the sizes that count the pads: they would
    then be wrong.

    ## References
    - https://onnx.ai/onnx/operators/onnx__AveragePool.html: "This attribute cannot be used simultaneously with auto_pad
      attribute."
    """
    auto, pads = node.attr("auto_pad", "NOTSET"), node.attr("pads")
    if auto not in ("VALID", "SAME_UPPER", "SAME_LOWER"):
        return
    if pads is None or (auto == "VALID" and not any(pads)):
        return
    draft = Draft(node)
    draft.set_attr(node, "pads", None)
    fix = Fix("drop pads", draft.edits, Safety.UNSAFE if any(pads) else Safety.EXACT)
    behavior = "TensorRT uses the pads" if auto == "VALID" else "TensorRT rejects it"
    message = f"{node.op_type} with both auto_pad={auto} and pads {pads}, which ONNX forbids: {behavior}"
    yield Match(message, node=node, fix=fix if _fits(node, model, auto) else None)


def _fits(node: Node, model: Model, auto: str) -> bool:
    """Whether no graph declares other sizes for the output than it has without ``pads``; so taken where unknown."""
    data = model.shapes.shape(node.require(0))
    weight = model.shapes.shape(node.require(1)) if node.op_type == "Conv" else None
    kernel = [constant(size) for size in node.attr("kernel_shape", [])] or list(weight or ())[2:]
    if data is None or len(kernel) != len(data) - 2 or node.op_type == "ConvTranspose":
        return True
    ones = [1] * len(kernel)
    strides, dilations = node.attr("strides") or ones, node.attr("dilations") or ones
    window = Window(kernel, strides, dilations, [0] * 2 * len(kernel), auto)
    rounds_up = bool(node.attr("ceil_mode", 0))
    sizes = [
        slid(size, axis, window, rounds_up, drops=node.opset >= 22) for axis, size in enumerate(data[2:])
    ]
    return declared_alike(node, [None if size is None else size.value for size in sizes])


_POOL = "g (float[1,1,5,5] x) => (float[1,1,A,B] y)"
_CONV = "g (float[1,1,5,5] x, float[1,1,3,3] w) => (float[1,1,A,B] y)"
_fixed = partial(Fixed, safety=Safety.UNSAFE)


pads_with_auto_pad.examples = [
    _fixed(
        "a pool: ONNX Runtime ignores the pads, TensorRT ignores VALID",
        before=f"""{_POOL} {{
            y = AveragePool<kernel_shape = [3,3], auto_pad = "VALID", pads = [1,1,1,1]>(x) }}""",
        after=f"""{_POOL} {{ y = AveragePool<kernel_shape = [3,3], auto_pad = "VALID">(x) }}""",
    ),
    Flagged(
        "without --unsafe-fixes: reported only",
        f"""{_POOL} {{ y = MaxPool<kernel_shape = [3,3], auto_pad = "VALID", pads = [1,1,1,1]>(x) }}""",
    ),
    Flagged(
        "the output declares the size that counts the pads",
        """g (float[1,1,5,5] x) => (float[1,1,5,5] y) {
            y = AveragePool<kernel_shape = [3,3], auto_pad = "VALID", pads = [1,1,1,1]>(x) }""",
        safety=Safety.UNSAFE,
    ),
    Flagged(
        "the same of a convolution, whose kernel only its weight has",
        """g (float[1,1,5,5] x, float[1,1,3,3] w) => (float[1,1,5,A] y) {
            y = Conv<auto_pad = "VALID", pads = [1,1,1,1]>(x, w) }""",
        safety=Safety.UNSAFE,
    ),
    _fixed(
        "the output declares the size that does not count them",
        before="""g (float[1,1,5,H] x) => (float[1,1,2,A] y) {
            y = LpPool<kernel_shape = [3,3], strides = [2,2], auto_pad = "VALID", pads = [2,1,2,1]>(x) }""",
        after="""g (float[1,1,5,H] x) => (float[1,1,2,A] y) {
            y = LpPool<kernel_shape = [3,3], strides = [2,2], auto_pad = "VALID">(x) }""",
        runs=False,
    ),
    _fixed(
        "a convolution, which ONNX Runtime rejects",
        before=f"""{_CONV} {{ y = Conv<auto_pad = "VALID", pads = [1,1,1,1]>(x, w) }}""",
        after=f"""{_CONV} {{ y = Conv<auto_pad = "VALID">(x, w) }}""",
    ),
    _fixed(
        "a transposed convolution: TensorRT uses the pads; all implementations disagree",
        before=f"""{_CONV} {{ y = ConvTranspose<auto_pad = "VALID", pads = [1,1,1,1]>(x, w) }}""",
        after=f"""{_CONV} {{ y = ConvTranspose<auto_pad = "VALID">(x, w) }}""",
        runs=False,
    ),
    _fixed(
        "SAME_UPPER with pads: TensorRT rejects it",
        before=f"""{_POOL} {{ y = LpPool<kernel_shape = [3,3], auto_pad = "SAME_UPPER", pads = [1,1,1,1]>(x) }}""",
        after=f"""{_POOL} {{ y = LpPool<kernel_shape = [3,3], auto_pad = "SAME_UPPER">(x) }}""",
    ),
    Fixed(
        "SAME_LOWER with pads of 0, the same as none",
        before=f"""{_POOL} {{ y = MaxPool<kernel_shape = [3,3], auto_pad = "SAME_LOWER", pads = [0,0,0,0]>(x) }}""",
        after=f"""{_POOL} {{ y = MaxPool<kernel_shape = [3,3], auto_pad = "SAME_LOWER">(x) }}""",
    ),
    Silent(
        "VALID with pads of 0",
        f"""{_POOL} {{ y = AveragePool<kernel_shape = [3,3], auto_pad = "VALID", pads = [0,0,0,0]>(x) }}""",
    ),
    Silent("explicit NOTSET", f"""{_CONV} {{ y = Conv<auto_pad = "NOTSET", pads = [1,1,1,1]>(x, w) }}"""),
    Silent("pads alone", f"""{_POOL} {{ y = MaxPool<kernel_shape = [3,3], pads = [1,1,1,1]>(x) }}"""),
    Silent("auto_pad alone", f"""{_CONV} {{ y = Conv<auto_pad = "SAME_UPPER">(x, w) }}"""),
]


@rule("OPS036", ops=["Pad"], severity=Severity.ERROR, hazards=[73])
def reflect_padding_too_wide(node: Node, model: Model) -> Iterator[Match]:
    """A Pad by reflection that is wider than the axis it reflects.

    ## Why it matters
    An axis of 3 elements has 2 to reflect, since the one at the edge is not repeated. ONNX Runtime fails: `Pad reflect:
    pre-pad (4) exceeds maximum allowed (2) for axis 3`. TensorRT-RTX 1.7.1 parses and builds it without a warning
    (measured), as a Slice layer that keeps reflecting.

    ## Fix
    None: ONNX does not define the result.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Pad.html
    - PyTorch's reflection_pad2d: "Padding size should be less than the corresponding input dimension"
    """
    data = node.input(0)
    shape = None if data is None else model.shapes.shape(data)
    if shape is None or node.attr("mode", "constant") != "reflect":
        return
    pads, axes = _pads(node), list(range(len(shape)))
    if node.opset >= 18 and node.input(3) is not None:
        given = node.inputs[3].constant() if node.inputs[3] is not None else None
        if given is None:
            return
        axes = [int(a) + (len(shape) if a < 0 else 0) for a in given.reshape(-1)]
    if pads is None or len(pads) != 2 * len(axes) or not set(axes) <= set(range(len(shape))):
        return
    for index, axis in enumerate(axes):
        size = shape[axis].value
        widest = max(pads[index], pads[index + len(axes)])
        if size is not None and size > 0 and widest > size - 1:
            yield Match(
                f"reflection padding of {widest} on axis {axis}, which has {size} elements", node=node
            )
            return


def _pads(node: Node) -> list[int] | None:
    if node.opset < 11:
        return node.attr("pads")  # type: ignore[no-any-return]
    value = node.input(1)
    array = None if value is None else value.constant()
    return None if array is None else [int(p) for p in array.reshape(-1)]


def _pad(y: str, x: str = "1,3", p: str = "0, 4, 0, 5", attributes: str = '<mode = "reflect">') -> str:
    return f"g (float[{x}] x) => (float[{y}] y) <int64[4] p = {{{p}}}> {{ y = Pad{attributes}(x, p) }}"


reflect_padding_too_wide.examples = [
    Flagged("as wide as the axis", _pad("1,6", p="0, 0, 0, 3"), runs=False),
    Flagged(
        "one axis, by the axes input",
        """g (float[N,3] x) => (float[N,7] y) <int64[2] p = {4, 0}, int64[1] a = {-1}> {
            y = Pad<mode = "reflect">(x, p, , a) }""",
        runs=False,
    ),
    Flagged(
        "pads as an attribute",
        'g (float[1,3] x) => (float[1,6] y) { y = Pad<mode = "reflect", pads = [0, 0, 0, 3]>(x) }',
        opset=10,
        runs=False,
    ),
    Silent("one less than the axis", _pad("1,7", p="0, 2, 0, 2")),
    Silent("mode = wrap may be wider than the axis", _pad("1,12", attributes='<mode = "wrap">'), opset=19),
    Silent("constant padding", _pad("1,12", attributes="")),
    Silent("a dynamic axis", _pad("1,M", x="1,N"), runs=False),
    Silent(
        "edge padding of any width; negative pads",
        """g (float[1,3] x) => (float[1,12] y, float[1,1] z)
            <int64[4] p = {0, 4, 0, 5}, int64[4] q = {0, -1, 0, -1}> {
            y = Pad<mode = "edge">(x, p)  z = Pad<mode = "reflect">(x, q) }""",
    ),
]
