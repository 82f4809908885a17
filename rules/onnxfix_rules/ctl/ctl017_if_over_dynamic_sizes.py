"""CTL017: Ifs over dynamic sizes."""
# Long because: an example of each form that a branch may have.

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxfix.rule import (
    Dim,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Scope,
    Severity,
    Silent,
    Value,
    dtypes,
    every_node,
    is_read,
    rule,
)
from onnxfix_rules.ctl import _inline, _select
from onnxfix_rules.gra import _common

_MOVES = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
"""Operators without a kernel in TensorRT: the result is the first input, at most with another shape."""
_GIVEN = frozenset(("Constant", "ConstantOfShape"))
MOST_CALLS = 100
"""Maximum number of local function calls that are followed for one If."""


@rule(
    "CTL017",
    ops=["If"],
    safety=Safety.EXACT,
    hazards=[30],
    differs={"function": "sizes are those of the call, whose outputs are looked at"},
)
def if_over_dynamic_sizes(node: Node, model: Model) -> Iterator[Match]:
    """An If whose condition is not constant, and whose branches compute floats of a dynamic size.

    ## Why it matters
    The engine may compute only a part of the output. Seen on executed engines (TensorRT-RTX 1.6.1.120, NVIDIA H200,
    optimization profile from size 1 to 3, the condition a graph input): if the then-branch runs, the elements within
    the profile's minimum shapes are correct, the first one or row of N, and the rest is wrong, mostly 0. Three of three
    such models were wrong: a Trilu of float[A,B], a Resize of float[N,4] to [N,8], and a ReduceLogSum of float[N] over
    no axes, in the then-branch (examples of OPS010, OPS029 and OPS073). A fourth, whose size is computed from data
    (OPS041), failed when it was executed: `Unexpected call to stub applyGenericCopy`. About 20 models with an If over
    static sizes were correct, and so were those with dynamic sizes and int32 (Max and Neg) or branches that only
    reshape. The cause is unknown, and other operators were not tried.

    It builds without a warning, and the check `trt-network` does not detect it: the network is imported correctly, and
    the compiled engine is wrong. Only executing the engine (`trt-gpu`) shows it, with inputs larger than the profile's
    minimum.

    For TensorRT 11.1 and 11.2 a similar problem is reported, not measured here: wrong values of an If, Transpose and
    Resize over dynamic sizes (#4846). Not reported for older targets, for which there is no evidence. In a local
    function the rule checks the outputs of an If that the function returns, since the sizes are known at its calls.

    If a branch contains a Slice whose bounds are computed from data, TensorRT-RTX 1.7.1 does not build the model,
    whatever the output's size is: `Data-dependent shapes are only allowed in the top-level scope`, or a crash of the
    builder. PyTorch's newer exporter writes EmbeddingBag in this form.

    ## Fix
    Where branches apply the same operators to other operands, Where selects the operands, and the operators run once,
    outside of the If. Where they differ and cannot fail (elementwise operators, sums), or compute the same in both
    branches, both run and Where selects the results. Exact, but numeric if the weights of a product are selected; both
    need equal shapes, unless one is a Concat of more parts (CTL011). Else the If stays. Of other remedies static sizes
    were executed and are correct, the others follow from what was seen:

    - set the sizes (`--fix-dim NAME=SIZE`), or the condition (`--fix-input NAME=VALUE`), after which CTL010 inlines the
      branch;
    - build with a profile whose minimum shapes are those in use, one for each size.

    ## References
    - https://github.com/NVIDIA/TensorRT/issues/4846
    - https://onnx.ai/onnx/operators/onnx__If.html
    """
    branches = {scope.attr: scope for scope in node.subgraphs}
    if not _inline.of_compiler(model):
        return
    if set(branches) != {"then_branch", "else_branch"}:
        return
    then, other, is_found = branches["then_branch"], branches["else_branch"], False
    for match in _over_dynamic_results(node, then, other, model):
        is_found = True
        yield match
    if not is_found:
        yield from _over_sizes_from_data(node, then, other, model)


def _over_dynamic_results(node: Node, then: Scope, other: Scope, model: Model) -> Iterator[Match]:
    condition = node.require(0)
    fix: list[Fix | None] = []
    for output, a, b in zip(node.outputs, then.outputs, other.outputs, strict=False):
        if output is None or not is_read(output) or not (_computes(a, then) or _computes(b, other)):
            continue
        for place, decider in _places(output, condition, model):
            shape = _dynamic(place, (a, b), model)
            if shape is None or not _varies(decider, model):
                continue
            text = f"[{','.join(map(str, shape))}]"
            fix = fix or [_select.by_where(node, then, other, model)]
            yield Match(
                f"{output.name!r} has dynamic shape {text}, and the condition is not constant: the engine may compute "
                "only the elements within the profile's minimum shapes",
                node=node,
                fix=fix[0],
                reads=(*then.nodes, *other.nodes),
            )
            break


def _over_sizes_from_data(node: Node, then: Scope, other: Scope, model: Model) -> Iterator[Match]:
    owner = node.scope.owner
    around = node.scope.nodes if owner is not None and owner.op_type == "If" else ()
    sized = _sized_by_data((*then.nodes, *other.nodes, *around), model)
    if sized is not None and _varies(node.require(0), model):
        yield Match(
            f"the size of {sized.first_output!r} is computed from data, inside a branch",
            node=node,
            severity=Severity.ERROR,
            fix=_select.by_where(node, then, other, model),
            reads=(*then.nodes, *other.nodes),
        )


def _sized_by_data(nodes: Sequence[Node], model: Model) -> Node | None:
    """A Slice whose bounds are computed from values, not from sizes."""
    for node in nodes:
        bounds = node.inputs[1:3] if node.is_onnx and node.op_type == "Slice" and node.opset >= 10 else ()
        if any(bound is not None and _common.is_data(bound, model) for bound in bounds):
            return node
    return None


def _varies(condition: Value, model: Model) -> bool:
    """Whether the condition is not constant when the engine is built."""
    if _inline.known(condition, model) is not None or condition.is_constant:
        return False
    return condition.initializer is None or not condition.is_input  # TensorRT treats a default as a weight


def _dynamic(output: Value, results: Sequence[Value], model: Model) -> tuple[Dim, ...] | None:
    """The shape of a float output with a dynamic dimension; None for other outputs.

    ``results`` are the branches' results. If both are static, their sizes do not depend on the profile; if the
    model does not build, for their ranks or sizes, CTL011 says so.
    """
    elem, shape = model.shapes.elem_type(output), model.shapes.shape(output)
    if elem is None or not dtypes.is_float(elem) or shape is None:
        return None
    shapes = [one for one in map(model.shapes.shape, results) if one is not None]
    if len({len(one) for one in shapes}) > 1 or (len(shapes) > 1 and _inline.share_a_size(*shapes)):
        return None
    if len(shapes) < 2:
        shapes = [shape]
    dynamic = any(dim.value is None for one in shapes for dim in one)
    return shape if dynamic else None


def _places(output: Value, condition: Value, model: Model) -> Iterator[tuple[Value, Value]]:
    """The output with its condition; for a local function that returns it, both at each call instead."""
    pending, left = [(output, condition)], MOST_CALLS
    while pending and left:
        left -= 1  # ONNX forbids recursion, but a malformed model may have it
        value, decider = pending.pop()
        scope = value.scope
        if scope.kind != "function":
            yield value, decider
            continue
        for call in every_node(model) if value in scope.outputs else ():
            made = call.output(scope.outputs.index(value)) if call.function is scope else None
            given = call.input(scope.inputs.index(decider)) if decider in scope.inputs else decider
            if made is not None and given is not None and is_read(made):
                pending.append((made, given))


def _computes(result: Value, branch: Scope) -> bool:
    """Whether a kernel in ``branch``, or in a branch inside it, computes ``result``."""
    pending, seen = [result], set()
    while pending:
        value = pending.pop()
        node = value.producer
        if node is None or value in seen or not _is_inside(value.scope, branch):
            continue
        seen.add(value)
        if node.is_onnx and node.op_type in _MOVES:
            pending += [source for source in node.inputs[:1] if source is not None]
        elif node.is_onnx and node.op_type == "If":
            place = node.outputs.index(value)
            pending += [sub.outputs[place] for sub in node.subgraphs if place < len(sub.outputs)]
        elif not (node.is_onnx and node.op_type in _GIVEN):
            return True
    return False


def _is_inside(scope: Scope | None, branch: Scope) -> bool:
    while scope is not None and scope is not branch:
        scope = scope.parent
    return scope is branch


_IDENTITY = "else_branch = q () => (float[A,B] v) { v = Identity(x) }"
_TRILU = f"<then_branch = p () => (float[A,B] u) {{ u = Trilu(x) }}, {_IDENTITY}>"
_FUNCTION = """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[{size}] x, bool c) => (float[{size}] y) {{ y = my.F(c, x) }}
            <domain: "my", opset_import: ["" : 18]> F (k, a) => (b) {{
            b = If(k)<then_branch = p () => (float[N] u) {{ u = Exp(a) }},
                      else_branch = q () => (float[N] v) {{ v = Abs(a) }}> }}"""


if_over_dynamic_sizes.examples = [
    Fixed(
        "Trilu with two dynamic sizes",
        before=f"g (float[A,B] x, bool c) => (float[A,B] y) {{ y = If(c){_TRILU} }}",
        after="g (float[A,B] x, bool c) => (float[A,B] y) { u = Trilu(x)  y = Where(c, u, x) }",
    ),
    Fixed(
        "the same operators on other operands",
        before="""g (float[N,4] x, float[N,4] z, bool[1] c) => (float[N,4] y) <float[4,4] w = {1, 0, 0, 0, 0, 2, 0, 0,
            0, 0, 3, 0, 0, 0, 0, 4}> { y = If(c)<
            then_branch = p () => (float[N,4] u) <float[1] k = {2}> { a = MatMul(x, w)  u = Add(a, k) },
            else_branch = q () => (float[N,4] v) <float[1] l = {2}> {
                i = Identity(z)  b = MatMul(i, w)  v = Add(b, l) }> }""",
        after="""g (float[N,4] x, float[N,4] z, bool[1] c) => (float[N,4] y) <float[4,4] w = {1, 0, 0, 0, 0, 2, 0, 0,
            0, 0, 3, 0, 0, 0, 0, 4}, float[1] k = {2}, int64[1] a = {0}> {
            d = Squeeze(c, a)  s = Where(d, x, z)  m = MatMul(s, w)  y = Add(m, k) }""",
    ),
    Fixed(
        "a bag of rows that is empty or not: a Slice by data, in a branch of static size",
        before="""g (float[7,2] x, int64[1] s, int64[1] e) => (float[1,2] y) <int64[1] a = {0}, float[1,2] z = {0, 0}> {
            c = Equal(s, e)  y = If(c)<then_branch = p () => (float[1,2] u) { u = Identity(z) },
            else_branch = q () => (float[1,2] v) { t = Slice(x, s, e, a)  v = ReduceSum(t, a) }> }""",
        after="""g (float[7,2] x, int64[1] s, int64[1] e) => (float[1,2] y) <int64[1] a = {0}, float[1,2] z = {0, 0},
            int64[1] b = {0}> { c = Equal(s, e)  t = Slice(x, s, e, a)  v = ReduceSum(t, a)  d = Squeeze(c, b)
            y = Where(d, z, v) }""",
        differs={"branch": "a Slice by data stays in a branch"},
    ),
    Fixed(
        "the weights of a product",
        before="""g (float[N,2] x, bool c) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}, float[2,2] k = {2, 0, 5, 7}>
            { y = If(c)<then_branch = p () => (float[N,2] u) { a = MatMul(x, w)  u = Relu(a) },
            else_branch = q () => (float[N,2] v) { b = MatMul(x, k)  v = Relu(b) }> }""",
        after="""g (float[N,2] x, bool c) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}, float[2,2] k = {2, 0, 5, 7}>
            { s = Where(c, w, k)  a = MatMul(x, s)  y = Relu(a) }""",
        safety=Safety.NUMERIC,
    ),
    Silent(
        "a Slice by a size, in a branch of static size",
        """g (float[7,4] x, float[N] w, bool c) => (float[1,4] y) <int64[1] a = {0}, float[1,4] z = {0, 0, 0, 0}> {
            e = Shape(w)  y = If(c)<then_branch = p () => (float[1,4] u) { u = Identity(z) },
            else_branch = q () => (float[1,4] v) { t = Slice(x, a, e, a)  v = ReduceSum(t, a) }> }""",
    ),
    Fixed(
        "a scale and a bias, which are repeated",
        before="""g (float[N,2] x, bool c) => (float[N,2] y) <float[1,1] k = {2}, float[2] b = {1, 3}> { y = If(c)<
            then_branch = p () => (float[N,2] u) { u = Mul(x, k) },
            else_branch = q () => (float[N,2] v) { e = Exp(x)  v = Add(b, e) }> }""",
        after="""g (float[N,2] x, bool c) => (float[N,2] y) <float[1,1] k = {2}, float[2] b = {1, 3}> {
            u = Mul(x, k)  e = Exp(x)  v = Add(b, e)  y = Where(c, u, v) }""",
    ),
    Fixed(
        "two outputs, of which one is the same in both branches, before opset 13",
        before="""g (float[N] x, float[N] z, bool c) => (float[N] y, float[N] o) { y, o = If(c)<
            then_branch = p () => (float[N] u, float[N] s) { u = Exp(x)  s = Neg(x) },
            else_branch = q () => (float[N] v, float[N] t) { a = Abs(z)  v = Add(a, x)  t = Neg(x) }> }""",
        after="""g (float[N] x, float[N] z, bool c) => (float[N] y, float[N] o) {
            u = Exp(x)  a = Abs(z)  v = Add(a, x)  w = Where(c, u, v)  s = Neg(x)
            y = Identity(w)  o = Identity(s) }""",
        opset=11,
    ),
    Fixed(
        "a product that both branches compute",
        before="""g (float[N,2] x, float[2,2] w, bool c) => (float[N,2] y) { y = If(c)<
            then_branch = p () => (float[N,2] u) { a = MatMul(x, w)  u = Relu(a) },
            else_branch = q () => (float[N,2] v) { b = MatMul(x, w)  v = Sin(b) }> }""",
        after="""g (float[N,2] x, float[2,2] w, bool c) => (float[N,2] y) {
            a = MatMul(x, w)  u = Relu(a)  b = MatMul(x, w)  v = Sin(b)  y = Where(c, u, v) }""",
    ),
    Flagged(
        "a product in one branch, which would run in vain",
        """g (float[N,4] x, float[N,4] z, float[4,4] w, bool c) => (float[N,4] y) { y = If(c)<
            then_branch = p () => (float[N,4] u) { u = MatMul(x, w) },
            else_branch = q () => (float[N,4] v) { v = Neg(z) }> }""",
    ),
    Flagged(
        "sizes in an else-branch that are equal if it runs",
        """g (float[N] x, float[M] z, bool c) => (float[N] y) { y = If(c)<
            then_branch = p () => (float[N] u) { u = Exp(x) },
            else_branch = q () => (float[N] v) { a = Add(x, z)  b = Sub(a, z)  v = Add(x, b) }> }""",
        runs=False,
    ),
    Flagged(
        "Resize of [N,4] to [N,8], for TensorRT-RTX",
        """g (float[N,4] x, bool c) => (float[N,8] y) <float[2] s = {1, 2}> {
            y = If(c)<then_branch = p () => (float[N,8] u) { u = Resize(x, , s) },
                      else_branch = q () => (float[N,8] v) { v = Concat<axis = 1>(x, x) }> }""",
        target="rtx",
    ),
    Fixed(
        "ReduceLogSum over no axes",
        before="""g (float[N] x, bool c) => (float[N] y) { y = If(c)<
            then_branch = p () => (float[N] u) <int64[0] a = {}> {
                u = ReduceLogSum<noop_with_empty_axes = 1>(x, a) },
            else_branch = q () => (float[N] v) { v = Neg(x) }> }""",
        after="""g (float[N] x, bool c) => (float[N] y) <int64[0] a = {}> {
            u = ReduceLogSum<noop_with_empty_axes = 1>(x, a)  v = Neg(x)  y = Where(c, u, v) }""",
        runs=False,
    ),
    Flagged("inside a local function, called with a dynamic size", _FUNCTION.format(size="N")),
    Fixed(
        "the float one of two outputs, computed in the else-branch only",
        before="""g (float16[N] x, int32[N] n, bool c) => (float16[N,1] y, int32[N] m) <int64[1] a = {1}> {
            y, m = If(c)<
            then_branch = p () => (float16[N,1] u, int32[N] r) { u = Unsqueeze(x, a)  r = Neg(n) },
            else_branch = q () => (float16[N,1] v, int32[N] s) { w = Exp(x)  v = Unsqueeze(w, a)  s = Abs(n) }> }""",
        after="""g (float16[N] x, int32[N] n, bool c) => (float16[N,1] y, int32[N] m) <int64[1] a = {1}> {
            w = Exp(x)  h = Where(c, x, w)  u = Unsqueeze(h, a)
            r = Neg(n)  s = Abs(n)  i = Where(c, r, s)  y = Identity(u)  m = Identity(i) }""",
    ),
    Fixed(
        "nested Ifs, of which both are reported",
        before="""g (float[N] x, bool c, bool d) => (float[N] y) { y = If(c)<
            then_branch = p () => (float[N] u) { w = Neg(x)
                u = If(d)<then_branch = p1 () => (float[N] e) { e = Identity(w) },
                          else_branch = q1 () => (float[N] f) { f = Exp(w) }> },
            else_branch = q () => (float[N] v) { v = Identity(x) }> }""",
        after="""g (float[N] x, bool c, bool d) => (float[N] y) {
            w = Neg(x)  f = Exp(w)  u = Where(d, w, f)  y = Where(c, u, x) }""",
    ),
    Silent(
        "static sizes",
        """g (float[2,3] x, bool c) => (float[2,3] y) { y = If(c)<
            then_branch = p () => (float[2,3] u) { u = Trilu(x) },
            else_branch = q () => (float[2,3] v) { v = Identity(x) }> }""",
    ),
    Silent(
        "static sizes that differ between branches",
        """g (float[2] x, bool c) => (float[N] y) { y = If(c)<
            then_branch = p () => (float[2] u) { u = Neg(x) },
            else_branch = q () => (float[4] v) { v = Concat<axis = 0>(x, x) }> }""",
    ),
    Silent(
        "integers",
        """g (int32[N] x, bool c) => (int32[N] y) { y = If(c)<
            then_branch = p () => (int32[N] u) { u = Max(x, x) },
            else_branch = q () => (int32[N] v) { v = Neg(x) }> }""",
    ),
    Silent(
        "branches that only reshape, copy or fill",
        """g (float[N] x, bool c, bool d) => (float[M] y) <int64[1] s = {-1}, int64[1] z = {0}> { y = If(c)<
            then_branch = p () => (float[N] u) { a = Unsqueeze(x, z)  u = Reshape(a, s) },
            else_branch = q () => (float[K] v) { v = If(d)<
                then_branch = p1 () => (float[N] e) { e = Identity(x) },
                else_branch = q1 () => (float[N] f) { n = Shape(x)  f = ConstantOfShape(n) }> }> }""",
    ),
    Silent(
        "values computed before the If",
        """g (float[N] x, bool c) => (float[N] y) { a = Exp(x)  b = Neg(x)  y = If(c)<
            then_branch = p () => (float[N] u) { u = Identity(a) },
            else_branch = q () => (float[N] v) { v = Identity(b) }> }""",
    ),
    Silent(
        "a constant condition", f"g (float[A,B] x) => (float[A,B] y) <bool c = {{1}}> {{ y = If(c){_TRILU} }}"
    ),
    Silent(
        "the condition is an input with a default, which TensorRT treats as a weight",
        f"g (float[A,B] x, bool c) => (float[A,B] y) <bool c = {{1}}> {{ y = If(c){_TRILU} }}",
    ),
    Silent(
        "an older target",
        f"g (float[A,B] x, bool c) => (float[A,B] y) {{ y = If(c){_TRILU} }}",
        target="trt10",
    ),
    Silent(
        "branches of different rank, which CTL011 reports",
        """g (float[M,N] x, bool c) => (float y) <int64[1] a = {-1}> { t = If(c)<
            then_branch = p () => (float[K] u) { u = Reshape(x, a) },
            else_branch = q () => (float[M,N] v) { v = Exp(x) }>  y = ReduceMax<keepdims = 0>(t) }""",
    ),
    Silent(
        "unused output",
        """g (float[N] x, int32[N] n, bool c) => (int32[N] m) { y, m = If(c)<
            then_branch = p () => (float[N] u, int32[N] r) { u = Exp(x)  r = Neg(n) },
            else_branch = q () => (float[N] v, int32[N] s) { v = Abs(x)  s = Abs(n) }> }""",
    ),
    Silent("a local function, called with a static size", _FUNCTION.format(size="3")),
    Silent(
        "a local function, called with a constant condition",
        _FUNCTION.format(size="N")
        .replace("bool c) =>", "bool d) =>")
        .replace("{ y =", "<bool c = {1}> { y ="),
    ),
]
