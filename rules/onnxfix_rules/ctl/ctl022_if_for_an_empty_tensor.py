"""CTL022: Ifs that treat an empty tensor separately."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from onnxfix.rule import (
    Dim,
    Fixed,
    Match,
    Model,
    Node,
    Safety,
    Scope,
    Severity,
    Silent,
    Value,
    equal,
    rule,
    target_of,
)
from onnxfix_rules.ctl import _inline
from onnxfix_rules.prc._common import producer

_ELEMENTWISE = frozenset(("Add", "Cast", "Div", "Identity", "Max", "Min", "Mul", "Sub"))
_REST = frozenset(
    ("Constant", "NonMaxSuppression", "ReduceMax", "ReduceMin", "Slice", "Squeeze", "Unsqueeze")
)


@rule("CTL022", ops=["If"], safety=Safety.EXACT, severity=Severity.WARNING, hazards=[30])
def if_for_an_empty_tensor(node: Node, model: Model) -> Iterator[Match]:
    """An If that returns a constant where a tensor is empty, and else runs NonMaxSuppression over it.

    ## Why it matters
    The number of boxes that NonMaxSuppression keeps depends on data, and the builder wants such sizes at the top level.
    TensorRT 10.6.0 parses the model and refuses to build it, on an NVIDIA H200: `DeviceToShapeHostNode should not have
    been inserted into a scope`, or `Assertion !mValueMapUndo failed`, which name no node. torchvision's detectors
    (RetinaNet, FCOS, SSDlite) are exported so: `batched_nms` tests whether there are boxes at all. FCOS and RetinaNet
    without the If build, and the engines are correct.

    - **error**: for TensorRT 10.0 to 10.13.
    - **warning**: for TensorRT 10.14 to 10.16, with which this was not tried.

    Silent for other targets, about which nothing is known. Where TensorRT-RTX judges a part of the model, because it
    has no NonMaxSuppression, it cannot compare the parts of original and new model: they are cut at other values.

    ## Fix
    The other branch replaces the If. Exact: the branch computes an empty tensor of the same shape from an empty one.
    That is shown before, by sizes: each dynamic size in the branch is that of the tested tensor or the number of boxes
    that are kept, no operator can fail because a size is 0, and ONNX defines NonMaxSuppression of no boxes (none are
    kept) and ReduceMax over no elements (minus infinity). Else the rule is silent.

    ## References
    - https://onnx.ai/onnx/operators/onnx__NonMaxSuppression.html
    - https://onnx.ai/onnx/operators/onnx__ReduceMax.html
    """
    target = target_of(model)
    if target.package != "tensorrt" or not (10,) <= target.oldest < (11,):
        return
    tested = _tested(node.require(0), model)
    branches = {scope.attr: scope for scope in node.subgraphs}
    if tested is None or set(branches) != {"then_branch", "else_branch"}:
        return
    empty, branch = branches["then_branch"], branches["else_branch"]
    if not _agree_if_empty(tested, empty, branch, model):
        return
    yield Match(
        "NonMaxSuppression in a branch, whose result has a size that depends on data",
        node=node,
        severity=Severity.ERROR if target.oldest < (10, 14) else None,
        fix=_inline.replace(node, branch),
        reads=(*empty.nodes, *branch.nodes),
    )


def _tested(condition: Value, model: Model) -> Dim | None:
    """The only dynamic size of the tensor that the condition finds empty; None for other conditions."""
    test = _made_by(condition, "Equal")
    if test is None:
        return None
    number, zero = test.require(0), test.require(1).constant()
    size = _made_by(number, "Size", "ReduceProd")
    if zero is None or zero.size != 1 or zero.item() != 0 or size is None:
        return None
    if size.op_type == "ReduceProd":
        size = _made_by(size.require(0), "Shape")
        if size is None or size.proto.attribute:
            return None
    dims = model.shapes.shape(size.require(0)) or ()
    dynamic = [dim for dim in dims if dim.value is None]
    return dynamic[0] if len(dynamic) == 1 and all(dim.value != 0 for dim in dims) else None


def _made_by(value: Value, *operators: str) -> Node | None:
    """The node of one of these operators that computes a value, at most with another type."""
    while (moved := producer(value, "Cast", "Identity")) is not None:
        value = moved.require(0)
    return producer(value, *operators)


def _agree_if_empty(tested: Dim, empty: Scope, branch: Scope, model: Model) -> bool:
    """Whether both branches return empty tensors of the same shapes if the tested size is 0."""
    zeros = [tested]
    for node in branch.nodes:
        if not node.is_onnx or not _runs(node, zeros, model):
            return False
        if node.op_type == "NonMaxSuppression":
            kept = model.shapes.shape(node.require_output())
            if kept is None:
                return False
            zeros.append(kept[0])
    if len(zeros) == 1 or len(empty.outputs) != len(branch.outputs):
        return False
    return all(_is_same(a, b, zeros, model) for a, b in zip(empty.outputs, branch.outputs, strict=True))


def _is_same(constant: Value, result: Value, zeros: Sequence[Dim], model: Model) -> bool:
    """Whether a result is as empty as a constant."""
    array, shape = constant.constant(), model.shapes.shape(result)
    if array is None or array.size or shape is None:
        return False
    sizes = tuple(0 if _is_zero(dim, zeros) else dim.value for dim in shape)
    return bool(sizes == array.shape)


def _runs(node: Node, zeros: Sequence[Dim], model: Model) -> bool:
    """Whether a node cannot fail because these sizes are 0."""
    shapes = [model.shapes.shape(value) for value in node.inputs if value is not None]
    if any(shape is None for shape in shapes):
        return False
    known = [shape for shape in shapes if shape is not None]
    if any(dim.value is None and not _is_zero(dim, zeros) for shape in known for dim in shape):
        return False
    if node.op_type == "Gather":
        return not _is_zero(known[0][node.attr("axis", 0)], zeros)
    return node.op_type in _REST or (node.op_type in _ELEMENTWISE and _broadcast(known, zeros))


def _broadcast(shapes: Sequence[Sequence[Dim]], zeros: Sequence[Dim]) -> bool:
    """Whether shapes still broadcast to each other if these sizes are 0: only with 0 and 1."""
    for sizes in zip_longest(*(reversed(shape) for shape in shapes)):
        found = [_is_zero(dim, zeros) for dim in sizes if dim is not None and dim.value != 1]
        if any(found) and not all(found):
            return False
    return True


def _is_zero(dim: Dim, zeros: Sequence[Dim]) -> bool:
    return any(equal(dim, zero).yes for zero in zeros)


_NMS = """e = Equal(n, z)  k = If(e)<then_branch = p () => (int64[0] u) <int64[0] u = {}> { },
    else_branch = q () => (int64[K] v) <int64[1] i = {2}, int64[1] a = {0}, int64[2] b = {0, 1}, int64[1] l = {1},
        int64[1] r = {100}, float[1] t = {0.5}, float o = {1}> {
        m = ReduceMax<keepdims = 0>(x)  c = Add(m, o)  f = Mul(d, c)  h = Unsqueeze(f, l)  w = Add(x, h)
        j = Unsqueeze(w, a)  g = Unsqueeze(s, b)  y = NonMaxSuppression(j, g, r, t)  h2 = Gather<axis = 1>(y, i)
        v = Squeeze(h2, l) }>"""
_COUNTED = "q = Shape(x)  n = ReduceProd<keepdims = 0>(q)"
_HEAD = "g (float[N,4] x, float[N] s, float[N] d) => (int64[K] k) <int64 z = {0}>"
_PLAIN = """g (float[N,4] x, float[N] s, float[N] d) => (int64[K] k) <int64[1] i = {2}, int64[1] a = {0},
    int64[2] b = {0, 1}, int64[1] l = {1}, int64[1] r = {100}, float[1] t = {0.5}, float o = {1}> {
    m = ReduceMax<keepdims = 0>(x)  c = Add(m, o)  f = Mul(d, c)  h = Unsqueeze(f, l)  w = Add(x, h)
    j = Unsqueeze(w, a)  g = Unsqueeze(s, b)  y = NonMaxSuppression(j, g, r, t)  h2 = Gather<axis = 1>(y, i)
    k = Squeeze(h2, l) }"""

if_for_an_empty_tensor.examples = [
    Fixed(
        "torchvision's batched_nms",
        before=f"{_HEAD} {{ {_COUNTED} {_NMS} }}",
        after=_PLAIN,
        target="trt10.6",
    ),
    Fixed(
        "the same for TensorRT 10.15, the number of elements by Size",
        before=f"{_HEAD} {{ n = Size(x) {_NMS} }}",
        after=_PLAIN,
        target="trt10",
    ),
    Silent(
        "scores of another number, with which the other branch may fail",
        f"{_HEAD.replace('float[N] s', 'float[M] s')} {{ {_COUNTED} {_NMS} }}",
        runs=False,
        target="trt10.6",
    ),
    Silent(
        "a result that is not empty",
        f"{_HEAD} {{ {_COUNTED} {_NMS.replace('int64[0] u) <int64[0] u = {}>', 'int64[1] u) <int64[1] u = {7}>')} }}",
        target="trt10.6",
    ),
    Silent("TensorRT 11, of which nothing is known", f"{_HEAD} {{ {_COUNTED} {_NMS} }}"),
    Silent("TensorRT-RTX, which has no NonMaxSuppression", f"{_HEAD} {{ {_COUNTED} {_NMS} }}", target="rtx"),
    Silent(
        "a condition that another tensor decides",
        f"{_HEAD} {{ q = Shape(s)  n = Gather(q, z) {_NMS} }}",
        target="trt10.6",
    ),
]
