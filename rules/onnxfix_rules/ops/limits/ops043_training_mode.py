"""OPS043: operators in training mode."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    is_read,
    rule,
)
from onnxfix_rules.ops import _bounds
from onnxfix_rules.ops import _rewrite as rw


@rule(
    "OPS043",
    ops=["BatchNormalization", "Dropout"],
    safety=Safety.UNSAFE,
    severity=Severity.ERROR,
    hazards=[53],
)
def training_mode(node: Node, model: Model) -> Iterator[Match]:
    """A BatchNormalization or Dropout in training mode.

    ## Why it matters
    The model was exported without `model.eval()`. The parser stops: `This version of TensorRT does not support
    training_mode == 1 in BatchNormalization.`, `doesn't support mode than 1 outputs for BatchNormalization nodes!`,
    `does not support the Dropout operator in training mode`, measured with TensorRT-RTX 1.7.1.

    ## Fix
    Switch to inference mode: BatchNormalization uses the given mean and variance instead of those of the batch, Dropout
    becomes a copy. This is what was intended, but it computes something else: `--unsafe-fixes`. Only a Dropout with the
    constant ratio 0 is a copy in training mode too, and its fix is exact.

    ## References
    - https://onnx.ai/onnx/operators/onnx__BatchNormalization.html
    - https://pytorch.org/docs/stable/onnx.html, `TrainingMode`
    """
    if node.op_type == "BatchNormalization":
        yield from _batch_normalization(node)
    elif node.opset >= 12 and node.input(2) is not None:
        yield from _dropout(node)


def _batch_normalization(node: Node) -> Iterator[Match]:
    if node.opset >= 14:
        trains = node.attr("training_mode", 0) != 0
    else:
        trains = any(value is not None for value in node.outputs[1:])
    if not trains or node.opset < 7:
        return
    fix = None
    if not any(is_read(value) for value in node.outputs[1:]) and node.outputs[0] is not None:
        draft = Draft(node)
        proto = rw.copy_of(node)
        del proto.output[1:]
        rw.set_attribute(proto, "training_mode", None)
        rw.replace(draft, node, proto)
        fix = Fix("use the given mean and variance, as in inference", draft.edits, Safety.UNSAFE)
    yield Match("BatchNormalization in training mode, which TensorRT does not have", node=node, fix=fix)


def _dropout(node: Node) -> Iterator[Match]:
    data, output = node.input(0), node.output()
    mode = _bounds.number(node.input(2))
    if mode == 0 or data is None or output is None:
        return
    if mode is None:
        yield Match("this Dropout may be in training mode, which TensorRT does not have", node=node)
        return
    ratio = 0.5 if node.input(1) is None else _bounds.number(node.input(1))
    draft = Draft(node)
    if any(is_read(value) for value in node.outputs[1:]):
        draft.set_input(node, 2, None)
    elif output.replaceable:
        draft.replace_uses(output, data)
        draft.remove(node)
    else:
        draft.remove(node)
        draft.add("Identity", [data], output=output.name)
    yield Match(
        "Dropout in training mode, which TensorRT does not have"
        + (", with the ratio 0" if ratio == 0 else ""),
        node=node,
        fix=Fix(
            "copy the data, as in inference",
            draft.edits,
            Safety.EXACT if ratio == 0 else Safety.UNSAFE,
        ),
    )


_BN = "g (float[N,2,4] x, float[2] s, float[2] b, float[2] m, float[2] v) => (float[N,2,4] y)"
_DO = "g (float[N,4] x) => (float[N,4] y)"


training_mode.examples = [
    Fixed(
        "BatchNormalization with unused running mean and variance",
        before=f"{_BN} {{ y, p, q = BatchNormalization<training_mode = 1, epsilon = 0.01>(x, s, b, m, v) }}",
        after=f"{_BN} {{ y = BatchNormalization<epsilon = 0.01>(x, s, b, m, v) }}",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged(
        "not fixed by default",
        f"{_BN} {{ y, p, q = BatchNormalization<training_mode = 1>(x, s, b, m, v) }}",
    ),
    Flagged(
        "the running mean is a graph output",
        """g (float[3,2] x, float[2] s, float[2] b, float[2] m, float[2] v) => (float[3,2] y, float[2] p) {
            y, p, q = BatchNormalization<training_mode = 1>(x, s, b, m, v) }""",
        safety=Safety.UNSAFE,
    ),
    Fixed(
        "before opset 14 more outputs mean training mode",
        before=f"{_BN} {{ y, p, q, r, t = BatchNormalization(x, s, b, m, v) }}",
        after=f"{_BN} {{ y = BatchNormalization(x, s, b, m, v) }}",
        opset=9,
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Fixed(
        "Dropout with ratio 0.5",
        before=f"{_DO} <float r = {{0.5}}, bool t = {{1}}> {{ d, k = Dropout<seed = 3>(x, r, t)  y = Neg(d) }}",
        after=f"{_DO} {{ y = Neg(x) }}",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged(
        "Dropout with the default ratio",
        f"{_DO} <bool t = {{1}}> {{ y = Dropout(x, , t) }}",
        runs=False,
    ),
    Fixed(
        "Dropout with ratio 0: exact",
        before=f"{_DO} <float r = {{0}}, bool t = {{1}}> {{ d = Dropout(x, r, t)  y = Neg(d) }}",
        after=f"{_DO} {{ y = Neg(x) }}",
    ),
    Fixed(
        "the mask is used: only training mode is removed",
        before="""g (float[N,4] x) => (float[N,4] y, bool[N,4] k) <float r = {0}, bool t = {1}> {
            y, k = Dropout(x, r, t) }""",
        after="g (float[N,4] x) => (float[N,4] y, bool[N,4] k) <float r = {0}> { y, k = Dropout(x, r) }",
    ),
    Flagged(
        "training mode is a graph input",
        "g (float[N,4] x, bool t) => (float[N,4] y) <float r = {0.5}> { y = Dropout(x, r, t) }",
        runs=False,
    ),
    Silent("a Dropout in inference mode", f"{_DO} <float r = {{0.5}}> {{ y = Dropout(x, r) }}"),
    Silent("training mode off", f"{_DO} <float r = {{0.5}}, bool t = {{0}}> {{ y = Dropout(x, r, t) }}"),
    Silent("a BatchNormalization in inference mode", f"{_BN} {{ y = BatchNormalization(x, s, b, m, v) }}"),
    Silent(
        "opset 9, whose BatchNormalization has no training_mode",
        f"{_BN} {{ y = BatchNormalization(x, s, b, m, v) }}",
        opset=9,
    ),
]
