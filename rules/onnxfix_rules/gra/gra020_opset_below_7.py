"""GRA020: models of an operator set below 7."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from onnx import TensorProto, defs

from onnxfix.rule import (
    Draft,
    Edit,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    SetImport,
    Severity,
    Silent,
    imported,
    rule,
)
from onnxfix.targets.documented import names

NEW = 7
"""The first operator set with numpy's broadcasting."""

_BINARY = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
_REFUSED = names(
    "Add And Div Equal Gemm Greater Less LpNormalization Max Mean Min Mul Or PRelu Pow ReduceLogSumExp Sub "
    "Sum Upsample Xor"
)


@rule(
    "GRA020",
    per="model",
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[65],
    differs={"function": "only found where there are functions, for each imports its own operator set"},
)
def opset_below_7(model: Model) -> Iterator[Match]:
    """The model imports an operator set before 7, and TensorRT refuses its broadcasting operators.

    ## Why it matters
    Up to operator set 6, Add and similar operators broadcast only with ``broadcast``, and align the second operand by
    ``axis``. TensorRT does not support that: each of Add, Sub, Mul, Div, Pow, And, Or, Xor, Equal, Greater, Less, Max,
    Min, Sum, Mean, Gemm and PRelu is refused, whatever its attributes and shapes: *"Assertion failed:
    ctx->getOpsetVersion() >= 7: Pre-opset 7 broadcasting is unsupported in this version"*. So are LpNormalization and
    ReduceLogSumExp, whose importers divide and subtract, and a MatMul of operands of different ranks; Upsample with
    *"Attribute scales is missing"* (measured, TensorRT-RTX 1.7.1, operator sets 1, 5 and 6). The others are accepted.
    BatchNormalization in training mode (``is_test = 0``, the default) is accepted as well, and imported as inference.

    ## Fix
    The model imports operator set 7, and each node is converted to it: ``axis`` becomes an Unsqueeze of the operand (if
    it is not already aligned with the last axes), a PRelu slope per channel is unsqueezed to the channel axis,
    ``broadcast``, ``is_test = 1`` and ``consumed_inputs`` are removed, Upsample's two scales become four, and the
    defaults of a Selu before operator set 6 become explicit. Exact: values stay the same, bit for bit. It is the one
    change of a model's imports that needs no `--unsafe-fixes`: no TensorRT does without operator set 7, and ONNX
    Runtime has no kernels for broadcasting before it, so only the reference evaluator can compare.

    There is no fix for a node in training mode, for an ``axis`` that aligns operands of unknown rank, and for operators
    whose form changed otherwise (recurrences; before operator set 5 also Reshape, Pad, Split and Tile).

    ## References
    - https://github.com/onnx/onnx/blob/main/docs/Changelog.md#Add-7
    - https://github.com/onnx/onnx/blob/main/docs/Broadcasting.md
    """
    version = model.opset()
    if not 0 < version < NEW:
        return
    nodes = [node for node in model.nodes() if node.is_onnx]
    refused = [node for node in imported(model) if node.is_onnx and node.opset < NEW and _refused(node)]
    if not refused:
        return
    counts = Counter(node.op_type for node in refused)
    listed = ", ".join(f"{count} {op_type}" for op_type, count in sorted(counts.items()))
    message = f"TensorRT refuses broadcasting operators of operator set {version} ({listed})"
    why = next((reason for node in nodes if (reason := _converted(node, Draft(node)))), "")
    if model.functions:
        why = "local functions import operator sets of their own"
    if why:
        message += f"; cannot be converted: {why}"
    yield Match(message, node=refused[0], fix=None if why else _fix(model, nodes))


def _refused(node: Node) -> bool:
    """Whether the parser refuses the node; it accepts an Upsample with the newer attribute."""
    if node.op_type == "MatMul":
        ranks = [node.model.shapes.rank(value) for value in node.inputs[:2] if value is not None]
        return None not in ranks and len(set(ranks)) > 1
    return node.op_type in _REFUSED and (node.op_type != "Upsample" or node.attr("scales") is None)


def _fix(model: Model, nodes: list[Node]) -> Fix:
    edits: list[Edit] = []
    for node in nodes:
        draft = Draft(node)
        _converted(node, draft)
        edits += draft.edits
    edits.append(SetImport(model.main, NEW))
    return Fix(f"convert the model to operator set {NEW}", edits)


def _converted(node: Node, draft: Draft) -> str:
    """Convert a node to operator set 7; returns why that is not possible, "" if it is."""
    if node.domain:
        return ""
    old, new = _since(node, node.opset), _since(node, NEW)
    if old is None or new is None:
        return f"{node.op_type} is unknown"
    if old == new:
        return ""
    handler = _HANDLERS.get(node.op_type)
    if handler is None and node.op_type not in _RENAMED_ONLY:
        return f"{node.op_type}-{old} has another form in operator set {NEW}"
    found = "" if handler is None else handler(node, draft)
    if not found and node.attr("consumed_inputs") is not None:
        draft.set_attr(node, "consumed_inputs", None)
    return found


def _since(node: Node, version: int) -> int | None:
    try:
        return int(defs.get_schema(node.op_type, version, "").since_version)
    except defs.SchemaError:
        return None


_RENAMED_ONLY = names(
    "Abs Ceil Clip Elu Exp Floor HardSigmoid InstanceNormalization LeakyRelu Log Max Mean Min Neg Reciprocal "
    "Relu Sigmoid Sqrt Sum Tanh AveragePool"
)
"""Operators whose newer version only adds types, or an attribute whose default is the old behavior."""


def _drop(node: Node, draft: Draft, *names: str) -> str:
    for name in names:
        if node.attr(name) is not None:
            draft.set_attr(node, name, None)
    return ""


def _fill(node: Node, draft: Draft, **defaults: float) -> str:
    """Write down defaults that operator set 7 has not, or has with more digits."""
    for name, default in defaults.items():
        if node.attr(name) is None:
            draft.set_attr(node, name, default)
    return ""


def _binary(node: Node, draft: Draft) -> str:
    """Aligns the second operand with the axes of the first from ``axis`` on, by default with the last ones."""
    axis = node.attr("axis")
    if axis is not None and node.attr("broadcast", 0):
        first, second = (
            node.model.shapes.rank(value) if value is not None else None for value in node.inputs[:2]
        )
        if first is None or second is None:
            return f"{node.op_type} has axis = {axis}, and the ranks of its operands are unknown"
        place = axis + first if axis < 0 else axis
        behind = first - place - second
        if (place < 0 or behind < 0) and second > 0:
            return f"axis = {axis} is invalid for the operands of {node.op_type}"
        if behind > 0 and second > 0:
            axes = list(range(second, second + behind))
            draft.set_input(node, 1, draft.add("Unsqueeze", [node.inputs[1]], axes=axes))
    return _drop(node, draft, "axis", "broadcast")


def _prelu(node: Node, draft: Draft) -> str:
    """A slope of rank 1 has one element per channel."""
    data, slope = node.inputs[:2]
    if data is None or slope is None:
        return "a PRelu has no operand"
    shape, rank = node.model.shapes.shape(slope), node.model.shapes.rank(data)
    if shape is None or rank is None or len(shape) != 1:
        return "the shapes of PRelu's operands are unknown"
    if shape[0].value != 1 and rank > 2:
        draft.set_input(node, 1, draft.add("Unsqueeze", [slope], axes=list(range(1, rank - 1))))
    return "" if rank > 1 or shape[0].value == 1 else "PRelu has no channels"


def _infer(node: Node, draft: Draft) -> str:
    if not node.attr("is_test", 0):
        return f"{node.op_type} is in training mode (is_test = 0)"
    if len(node.outputs) > 1:
        more = "a mask output" if node.op_type == "Dropout" else "more than one output"
        return f"{node.op_type} has {more}"
    return _drop(node, draft, "is_test")


def _upsample(node: Node, draft: Draft) -> str:
    height, width = node.attr("height_scale"), node.attr("width_scale")
    modes = {"nearest": "nearest", "bilinear": "linear"}
    mode = modes.get(node.attr("mode", "nearest"))
    if height is None or width is None or mode is None:
        return "Upsample has no scales or an unknown mode"
    _drop(node, draft, "height_scale", "width_scale")
    draft.set_attr(node, "scales", [1.0, 1.0, float(height), float(width)])
    if mode != node.attr("mode", "nearest"):
        draft.set_attr(node, "mode", mode)
    return ""


def _cast(node: Node, draft: Draft) -> str:
    name = node.attr("to")
    if not isinstance(name, str) or name not in set(TensorProto.DataType.keys()):
        return "Cast has no valid type"
    draft.set_attr(node, "to", int(TensorProto.DataType.Value(name)))
    return ""


_HANDLERS: dict[str, Callable[[Node, Draft], str]] = {
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(("BatchNormalization", "Dropout"), _infer),
    "Cast": _cast,
    "Concat": lambda node, draft: _fill(node, draft, axis=1),
    "Gemm": lambda node, draft: _drop(node, draft, "broadcast"),
    "PRelu": _prelu,
    "Selu": lambda node, draft: _fill(node, draft, alpha=1.6732, gamma=1.0507),
    "Upsample": _upsample,
}


NEWER = '<ir_version: 3, opset_import: ["" : 7]> '
_fixed = partial(Fixed, ir_version=3, opset=6)
_flagged = partial(Flagged, ir_version=3, opset=6, runs=False)
_silent = partial(Silent, ir_version=3, opset=6)


opset_below_7.examples = [
    _fixed(
        "operand aligned by axis",
        before="g (float[2,3,3] x, float[3] b) => (float[2,3,3] y) { y = Add<broadcast = 1, axis = 1>(x, b) }",
        after=NEWER
        + "g (float[2,3,3] x, float[3] b) => (float[2,3,3] y) { u = Unsqueeze<axes = [1]>(b)  y = Add(x, u) }",
    ),
    _fixed(
        "operand aligned with the last axes, as in numpy",
        before="""g (float[N,3] x, float[3] b) => (float[N,3] y) {
            a = Mul<broadcast = 1>(x, b)  c = Relu(a)  y = Sub<broadcast = 1, axis = 1>(c, b) }""",
        after=NEWER
        + "g (float[N,3] x, float[3] b) => (float[N,3] y) { a = Mul(x, b)  c = Relu(a)  y = Sub(c, b) }",
    ),
    _fixed(
        "no attribute to convert: only the version is refused",
        before="g (float[N] x) => (float[N] y) { y = Sum(x, x) }",
        after=NEWER + "g (float[N] x) => (float[N] y) { y = Sum(x, x) }",
    ),
    _fixed(
        "PRelu with a slope per channel",
        before="g (float[1,3,3,3] x, float[3] s) => (float[1,3,3,3] y) { y = PRelu(x, s) }",
        after=NEWER
        + "g (float[1,3,3,3] x, float[3] s) => (float[1,3,3,3] y) { u = Unsqueeze<axes = [1,2]>(s)  y = PRelu(x, u) }",
    ),
    _fixed(
        "Gemm, and BatchNormalization in inference mode",
        before="""g (float[2,3] x, float[3,3] w, float[3] b, float[3] s, float[3] v) => (float[2,3] y) {
            a = Gemm<broadcast = 1>(x, w, b)  y = BatchNormalization<is_test = 1>(a, s, s, s, v) }""",
        after=NEWER
        + """g (float[2,3] x, float[3,3] w, float[3] b, float[3] s, float[3] v) => (float[2,3] y) {
            a = Gemm(x, w, b)  y = BatchNormalization(a, s, s, s, v) }""",
    ),
    _fixed(
        "Upsample without the attribute scales",
        before="""g (float[1,1,2,2] x) => (float[1,1,4,6] y) {
            y = Upsample<height_scale = 2.0, width_scale = 3.0, mode = "bilinear">(x) }""",
        after=NEWER
        + """g (float[1,1,2,2] x) => (float[1,1,4,6] y) {
            y = Upsample<mode = "linear", scales = [1.0, 1.0, 2.0, 3.0]>(x) }""",
        runs=False,
    ),
    Fixed(
        "operator set 5, where Cast has a type name",
        before="""g (float[N] x) => (float[N] y) {
            a = Cast<to = "DOUBLE">(x)  b = Cast<to = "FLOAT">(a)  y = Add<consumed_inputs = [0,0]>(b, b) }""",
        after=NEWER
        + "g (float[N] x) => (float[N] y) { a = Cast<to = DOUBLE>(x)  b = Cast<to = FLOAT>(a)  y = Add(b, b) }",
        opset=5,
        ir_version=3,
        runs=False,
    ),
    Fixed(
        "Selu, whose defaults changed in operator set 6",
        before="g (float[N] x) => (float[N] y) { a = Selu<alpha = 2.0>(x)  b = Selu(a)  y = Sum(b, b) }",
        after=NEWER
        + """g (float[N] x) => (float[N] y) {
            a = Selu<alpha = 2.0, gamma = 1.0507>(x)  b = Selu<alpha = 1.6732, gamma = 1.0507>(a)  y = Sum(b, b) }""",
        runs=False,
        opset=5,
        ir_version=3,
    ),
    Fixed(
        "operators whose form did not change, and whose importers broadcast",
        before="""g (float[3] x, float[4,3,2] w) => (float[4,1] y) {
            a = MatMul(x, w)  b = LpNormalization<axis = 1>(a)  y = ReduceLogSumExp<axes = [1]>(b) }""",
        after=NEWER
        + """g (float[3] x, float[4,3,2] w) => (float[4,1] y) {
            a = MatMul(x, w)  b = LpNormalization<axis = 1>(a)  y = ReduceLogSumExp<axes = [1]>(b) }""",
        opset=5,
        ir_version=3,
    ),
    _flagged(
        "axis with operands of unknown rank",
        """g (float[N] x, int64[M] s, float[3] b) => (float[A,B,C] y) {
            r = Reshape(x, s)  y = Add<broadcast = 1, axis = 1>(r, b) }""",
    ),
    _flagged(
        "BatchNormalization in training mode",
        """g (float[2,3] x, float[3] s) => (float[2,3] y) {
            a = BatchNormalization(x, s, s, s, s)  y = Add(a, x) }""",
    ),
    _flagged(
        "BatchNormalization with running mean and variance as outputs, which operator set 7 has in training only",
        """g (float[2,3] x, float[3] s) => (float[2,3] y, float[3] m, float[3] v) {
            a, m, v = BatchNormalization<is_test = 1>(x, s, s, s, s)  y = Add(a, x) }""",
    ),
    _flagged(
        "RNN, whose form changed",
        """g (float[S,N,4] x, float[1,8,4] w, float[1,8,8] r) => (float[S,1,N,8] h) {
            h = RNN<hidden_size = 8>(x, w, r)  d = Add(x, x) }""",
    ),
    Silent(
        "operator set 7",
        "g (float[2,3] x, float[3] b) => (float[2,3] y) { y = Add(x, b) }",
        opset=7,
        ir_version=3,
    ),
    _silent(
        "an old operator set, but only nodes that TensorRT accepts",
        "g (float[N,3] x, float[3,3] w) => (float[N,3] y) { a = MatMul(x, w)  y = Softmax(a) }",
    ),
    _silent(
        "in a branch that a constant condition excludes, which TensorRT does not import",
        """g (float[2] x) => (float[2] y) <bool c = {0}> {
            y = If(c)<then_branch = p () => (float[2] u) { u = Add(x, x) },
                      else_branch = q () => (float[2] v) { v = Neg(x) }> }""",
        runs=False,
    ),
    Silent(
        "the old version is that of another domain",
        """<ir_version: 8, opset_import: ["" : 17, "d" : 6]> g (float[N] x) => (float[N] y) {
            a = d.Add(x, x)  y = Add(a, x) }
            <domain: "d", opset_import: ["" : 17]> Add (u, v) => (w) { w = Sum(u, v) }""",
    ),
]
