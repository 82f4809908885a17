"""Loops: their condition, a state that changes its shape, and a size that depends on the iteration."""
# Long because: four rules, with an example of each form that a body may have.

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import (
    Dim,
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Scope,
    SetInput,
    Severity,
    Silent,
    Value,
    dtypes,
    equal,
    is_read,
    rule,
    target_of,
)
from onnxfix.shapes.symbols import substitute, symbol
from onnxfix_rules.ctl import _inline, _loops


@rule("CTL012", ops=["Loop"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[58])
def loop_without_condition(node: Node, model: Model) -> Iterator[Match]:
    """A Loop without a condition whose body reads one.

    ## Why it matters
    In ONNX a Loop without a condition runs as often as its trip count says, and its body reads true. TensorRT then does
    not define the body's condition and refuses every node that reads it: `Assertion failed:
    (ctx->tensors().count(inputName)): Node input was not registered.`, measured with TensorRT-RTX 1.7.1. `more =
    Identity(on)` is enough, the usual first output of a body for `for i in range(n)`.

    ## Fix
    Readers of the condition in the body read a constant true. Exact. There is no fix if the body's own result may be
    false: by ONNX it is ignored, but ONNX Runtime ends the loop. Nor if the body also returns its condition without a
    node in between, which TensorRT accepts on its own.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Loop.html: `input ("trip_count", "")`
    """
    body = _loops.body_of(node)
    if body is None or node.input(0) is None or node.input(1) is not None:
        return
    inner = body.inputs[1]
    if not inner.use_count:
        return
    edits = _loops.true_inside(body) if _loops.goes_on(body, model) else None
    yield Match(
        f"the body reads its condition {inner.name!r}, but this Loop has no condition",
        node=node,
        fix=Fix("replace the condition in the body by true", edits) if edits else None,
        reads=(inner, body.outputs[0]),
    )


_BODY = "<body = b (int64 i, bool on, float[2] v) => (bool %s, float[2] w)"
_COUNTED = "g (float[2] x, int64 n) => (float[2] y)"


loop_without_condition.examples = [
    Fixed(
        "condition passed on",
        before=f"{_COUNTED} {{ y = Loop(n, , x){_BODY % 'more'} {{ more = Identity(on)  w = Add(v, v) }}> }}",
        after=f"""{_COUNTED} {{ y = Loop(n, , x){_BODY % "more"} <bool t = {{1}}> {{
            more = Identity(t)  w = Add(v, v) }}> }}""",
    ),
    Fixed(
        "condition passed on by And and read by another node, with scan outputs",
        before="""g (float[2] x, int64 n) => (float[2] y, float[K,2] z) { y, z = Loop(n, , x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                a = Identity(on)  more = And(a, on)  w = Where(on, v, x)  s = Neg(v) }> }""",
        after="""g (float[2] x, int64 n) => (float[2] y, float[K,2] z) { y, z = Loop(n, , x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) <bool t = {1}> {
                a = Identity(t)  more = And(a, t)  w = Where(t, v, x)  s = Neg(v) }> }""",
    ),
    Fixed(
        "condition captured by a branch, inside a local function",
        before=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_COUNTED} {{ y = my.F(x, n) }}
            <domain: "my", opset_import: ["" : 18]> F (a, m) => (r) {{ r = Loop(m, , a){_BODY % "more"} {{
                more = Constant<value = bool {{1}}>()
                w = If(on)<then_branch = p () => (float[2] c) {{ c = Neg(v) }},
                           else_branch = q () => (float[2] d) {{ d = Abs(v) }}> }}> }}""",
        after=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_COUNTED} {{ y = my.F(x, n) }}
            <domain: "my", opset_import: ["" : 18]> F (a, m) => (r) {{ r = Loop(m, , a){_BODY % "more"} {{
                t = Constant<value = bool {{1}}>()  more = Constant<value = bool {{1}}>()
                w = If(t)<then_branch = p () => (float[2] c) {{ c = Neg(v) }},
                          else_branch = q () => (float[2] d) {{ d = Abs(v) }}> }}> }}""",
        opset=18,
    ),
    Flagged(
        "condition negated, which ONNX ignores and ONNX Runtime obeys",
        f"{_COUNTED} {{ y = Loop(n, , x){_BODY % 'more'} {{ more = Not(on)  w = Add(v, v) }}> }}",
    ),
    Flagged(
        "condition returned directly, and read by a node too",
        f"{_COUNTED} {{ y = Loop(n, , x){_BODY % 'on'} {{ w = Where(on, v, x) }}> }}",
    ),
    Flagged(
        "inside a local function before opset 9, where no Constant is boolean",
        f"""<ir_version: 9, opset_import: ["" : 8, "my" : 1]> {_COUNTED} {{ y = my.F(x, n) }}
            <domain: "my", opset_import: ["" : 8]> F (a, m) => (r) {{ r = Loop(m, , a){_BODY % "more"} {{
                more = Identity(on)  w = Add(v, v) }}> }}""",
    ),
    Silent(
        "condition returned directly, which TensorRT accepts",
        f"{_COUNTED} {{ y = Loop(n, , x){_BODY % 'on'} {{ w = Add(v, v) }}> }}",
    ),
    Silent(
        "condition not read",
        f"""{_COUNTED} {{ y = Loop(n, , x){_BODY % "more"} {{
            more = Constant<value = bool {{1}}>()  w = Add(v, v) }}> }}""",
    ),
    Silent(
        "a Loop with a condition",
        "g (float[2] x, int64 n, bool c) => (float[2] y) { d = Not(c)  y = Loop(n, d, x)"
        + _BODY % "more"
        + " { more = Identity(on)  w = Add(v, v) }> }",
    ),
    Flagged(
        "condition declared as float, which cannot be replaced by true",
        """g (float[2] x, int64 n) => (float[2] y) { y = Loop(n, , x)<body = b (int64 i, float on, float[2] v)
            => (float more, float[2] w) { more = Identity(on)  w = Add(v, v) }> }""",
        runs=False,
    ),
]


@rule("CTL013", ops=["Loop"], safety=Safety.EXACT, severity=Severity.INFO, hazards=[58])
def loop_condition_always_true(node: Node, model: Model) -> Iterator[Match]:
    """A Loop with a trip count, a condition that is always true, and no used scan outputs.

    ## Why it matters
    Exporters write such loops for `for i in range(n)`. TensorRT imports the condition as a second loop limit and
    carries it from one iteration to the next: measured with TensorRT-RTX 1.7.1, 2 TRIP_LIMIT layers instead of 1, and 3
    RECURRENCE layers instead of 2. The result is correct. With scan outputs TensorRT also warns, and they may be wrong:
    see CTL001.

    ## Fix
    The Loop's condition is removed, and its readers in the body read a constant true. Exact.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Loop.html
    """
    body = _loops.body_of(node)
    condition = node.require(1)
    if body is None or node.input(0) is None or len(node.inputs) < 3:
        return
    if any(is_read(value) for value in node.outputs[len(node.inputs) - 2 :]):
        return
    if not _loops.begins(node, model) or not _loops.goes_on(body, model):
        return
    edits = (
        _loops.true_inside(body)
        if model.shapes.rank(condition) == 0 or not body.inputs[1].use_count
        else None
    )
    yield Match(
        "Loop with a trip count and a condition that is always true",
        node=node,
        fix=None if edits is None else Fix("remove the condition", [SetInput(node, 1, ""), *edits]),
        reads=(condition, body.outputs[0]),
    )


_START = "g (float[2] x, bool c, int64 n) => (float[2] y)"


def _loop(more: str, call: str = "n, t, x", *, true: str = "<bool t = {1}>", head: str = "") -> str:
    return f"""{_START} {true} {{ y = Loop({call})
        <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {head} {{ {more}  w = Add(v, v) }}> }}"""


loop_condition_always_true.examples = [
    Fixed(
        "initially true, and passed on",
        before=_loop("more = Identity(on)"),
        after=_loop("more = Identity(d)", "n, , x", true="", head="<bool d = {1}>"),
    ),
    Fixed(
        "always true in the body",
        before=_loop("more = Constant<value = bool {1}>()"),
        after=_loop("more = Constant<value = bool {1}>()", "n, , x", true=""),
    ),
    Fixed(
        "unused scan output",
        before="""g (float[2] x, int64 n) => (float[2] y) <bool t = {1}> { y, z = Loop(n, t, x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                more = Identity(on)  w = Add(v, v)  s = Neg(v) }> }""",
        after="""g (float[2] x, int64 n) => (float[2] y) { y, z = Loop(n, , x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) <bool t = {1}> {
                more = Identity(t)  w = Add(v, v)  s = Neg(v) }> }""",
    ),
    Silent(
        "a used scan output, which CTL001 reports",
        """g (float[2] x, int64 n) => (float[K,2] z) <bool t = {1}> {
        y, z = Loop(n, t, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
            more = Identity(on)  w = Add(v, v)  s = Neg(v) }> }""",
    ),
    Silent("a condition that may end the loop", _loop("more = Not(on)")),
    Silent("the initial condition is an input", _loop("more = Identity(t)", "n, c, x")),
    Silent(
        "the initial condition is an input with a default",
        f"{_START} <bool c = {{1}}> {{ y = Loop(n, c, x)"
        "<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) { more = Identity(on)  w = Add(v, v) }> }",
    ),
    Silent("no trip count", _loop("more = Identity(on)", ", t, x")),
    Silent("no condition", _loop("more = Identity(t)", "n, , x")),
]


@rule("CTL015", ops=["Loop"], severity=Severity.ERROR, hazards=[58])
def loop_state_that_changes_its_shape(node: Node, model: Model) -> Iterator[Match]:
    """A loop-carried value changes its shape in an iteration.

    ## Why it matters
    ONNX allows a state to grow. A TensorRT recurrence has one shape, and the builder refuses another one, measured with
    TensorRT-RTX 1.7.1: `IRecurrenceLayer must have inputs with same shape. First input x has shape [2] and second input
    w has shape [4]`, or, with dynamic sizes, `kOPT values for profile 0 violate shape constraints: … inputs to
    IRecurrenceLayer have different shapes`. It does so even for a loop that runs once or never. Such loops come from
    Python lists that are appended to by `torch.cat`. Sizes that only may differ are not reported: they build, and are
    correct as long as they are equal.

    ## Fix
    None here. CTL014 unrolls a short loop of constant trip count. Otherwise collect rows as a scan output, which may
    have any number of them, or write into a tensor of full size by ScatterND.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Loop.html
    """
    body = _loops.body_of(node)
    if body is None:
        return
    shape = model.shapes.shape
    triples = [
        (inner, shape(start), shape(inner), shape(end))
        for start, inner, end in zip(node.inputs[2:], body.inputs[2:], body.outputs[1:], strict=False)
        if start is not None
    ]
    first: dict[str, Dim] = {}
    for _, before, inside, _ in triples:
        if before is not None and inside is not None and len(before) == len(inside):
            first.update(_named(inside, before))
    for inner, before, _, result in triples:
        if before is None or result is None:
            continue
        try:
            after = [substitute(dim, first) for dim in result]
        except ZeroDivisionError:
            continue
        if _differs(after, before, model):
            yield Match(
                f"the state {inner.name!r} changes from {_text(before)} to {_text(after)} in the first iteration",
                node=node,
            )
            return


def _named(inside: Sequence[Dim], before: Sequence[Dim]) -> Iterator[tuple[str, Dim]]:
    """The sizes in the first iteration of the dimensions that may change between iterations."""
    for dim, start in zip(inside, before, strict=True):
        names = list(dim.symbols)
        if len(names) == 1 and dim is symbol(names[0]):
            yield names[0], start


def _differs(first: Sequence[Dim], second: Sequence[Dim], model: Model) -> bool:
    """Whether two shapes certainly differ if no size of a graph input is 0; no profile allows only 0."""
    if len(first) != len(second):
        return True
    for one, other in zip(first, second, strict=True):
        sizes = {
            name: symbol(name) + 1 for name in one.symbols | other.symbols if name in model.shapes.symbols
        }
        try:
            if equal(substitute(one, sizes), substitute(other, sizes)).no:
                return True
        except ZeroDivisionError:
            continue
    return False


def _text(shape: Sequence[Dim]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _growing(inputs: str, body: str, weights: str = "", start: str = "x") -> str:
    return f"""g ({inputs}, int64 n) => (float y) {weights} {{ z = Loop(n, , {start})
        <body = b (int64 i, bool on, float[A] v) => (bool more, float[B] w) {{
            more = Constant<value = bool {{1}}>()  {body} }}>  y = ReduceMax<keepdims = 0>(z) }}"""


loop_state_that_changes_its_shape.examples = [
    Flagged("a state that grows", _growing("float[2] x", "w = Concat<axis = 0>(v, x)")),
    Flagged("a state of dynamic size that grows", _growing("float[N] x", "w = Concat<axis = 0>(v, x)")),
    Flagged(
        "an empty initial state that grows",
        _growing("float[2] x", "w = Concat<axis = 0>(v, x)", "<float[0] e = {}>", "e"),
    ),
    Flagged(
        "a state that is reduced to size 1",
        _growing("float[4] x", "w = ReduceSum<keepdims = 1>(v, a)", "<int64[1] a = {0}>"),
    ),
    Flagged("a state that is broadcast", _growing("float[1] x, float[4] q", "w = Add(v, q)")),
    Flagged(
        "two states of different size that are swapped",
        """g (float[2] x, float[3] q, int64 n) => (float[K] y, float[J] z) { y, z = Loop(n, , x, q)
            <body = b (int64 i, bool on, float[A] v, float[B] w) => (bool more, float[B] r, float[A] s) {
                more = Constant<value = bool {1}>()  r = Neg(w)  s = Neg(v) }> }""",
    ),
    Silent("a state that keeps its shape", _growing("float[N] x", "w = Add(v, x)")),
    Silent("sizes that may be equal", _growing("float[N] x, float[M] q", "w = Add(v, q)")),
    Silent(
        "a size that may already be 1",
        _growing("float[N] x", "w = ReduceSum<keepdims = 1>(v, a)", "<int64[1] a = {0}>"),
    ),
    Silent(
        "rows collected in a scan output",
        """g (float[2] x, int64 n) => (float[K,2] y) { z, y = Loop(n, , x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                more = Constant<value = bool {1}>()  w = Neg(v)  s = Abs(v) }> }""",
    ),
]

_SIZED_BY = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Slice": (1, 2),
    "Tile": (1,),
}
"""Operators with the inputs whose values decide the size of the result."""
_REDUCTIONS = {"ReduceSum": 0.0, "ReduceMean": 0.0, "ReduceMax": -np.inf}
"""Reductions of a bag, with what rows outside of the bag count as."""
_UNROLLED = 256
"""Nodes up to which CTL014 unrolls a loop."""


@rule("CTL021", ops=["Loop"], safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[58])
def size_that_depends_on_the_iteration(node: Node, model: Model) -> Iterator[Match]:
    """A Loop whose body makes a tensor whose size is computed from the iteration number or from a state.

    ## Why it matters
    TensorRT parses it and does not build it, by an error that names no node: `[graphScope.cpp::
    makeScopeNodesContiguous::812] Error Code 2: Internal Error (Assertion newNodeOrder.size() == g.nodes.size()
    failed.` Measured with TensorRT-RTX 1.7.1 on Slice (even if the length is always 1), Range, ConstantOfShape, Expand,
    Tile and Pad in the body, 12 of 12 loops, with and without states and scan outputs; bounds from outside of the loop
    and Gather build. Torch's older exporter writes EmbeddingBag so: a Loop over the bags with a Slice of the indices.
    Reported for TensorRT 11 too, whose compiler is the same.

    A Slice fails before, too: TensorRT 10.6.0 and 8.6.1, executed, build none of five exported EmbeddingBags
    (`[foreignNode.cpp::createOneForeignNode::467]`, `[topSort.cpp::trivialChoice::325]` and `ForeignNode does not
    support data-dependent shape for now`). Reported from 8.6 on; nothing else was measured before TensorRT 11.

    ## Fix
    An EmbeddingBag (a Slice of indices, a Gather of rows, their sum, mean or maximum) becomes one Gather of all indices
    and one reduction, in which the rows of other bags count as 0, or as -inf for a maximum. Numeric: a sum may be added
    in another order. It takes the memory of bags times indices, and indices that are in no bag must be rows of the
    table, too. CTL014 unrolls the Loop instead if it is short. The mean of an empty bag is 0, as in ONNX Runtime and
    PyTorch; ONNX leaves it undefined. Other loops have no fix: read a constant number of indices by Gather, or multiply
    by a mask, in the place of the Slice.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Loop.html
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.EmbeddingBag.html
    """
    body = _loops.body_of(node)
    if body is None or (target_of(model).oldest < (8, 6) and not _inline.of_compiler(model)):
        return
    operators = _SIZED_BY if _inline.of_compiler(model) else ("Slice",)
    for inner in _inline.needed(body, body.outputs) or ():
        places = _SIZED_BY[inner.op_type] if inner.is_onnx and inner.op_type in operators else ()
        if any(_varies(inner.input(place), body, model) for place in places):
            yield Match(
                f"the size of this {inner.op_type}'s result {inner.first_output!r} depends on the iteration",
                node=node,
                fix=_masked(node, body, model),
                reads=(inner, *body.nodes),
            )
            return


def _varies(value: Value | None, body: Scope, model: Model) -> bool:
    """Whether a value is computed from the loop's iteration number or from its states."""
    pending, seen = [value], set()
    while pending:
        value = pending.pop()
        if value is None or value in seen or value.scope is not body:
            continue
        seen.add(value)
        if value is body.inputs[0] or value in body.inputs[2:]:
            return True
        known, producer = model.shapes.value(value), value.producer
        if producer is None or (known is not None and known.static is not None):
            continue
        if not (producer.is_onnx and producer.op_type in ("Shape", "Size")):
            pending += _inline.reads(producer)
    return False


def _masked(node: Node, body: Scope, model: Model) -> Fix | None:
    """The bags of an EmbeddingBag by a mask; None for another loop, and for one that CTL014 unrolls."""
    count, row, output = node.input(0), body.outputs[-1], node.outputs[0] if len(node.outputs) == 1 else None
    if count is None or output is None or len(body.outputs) != 2:
        return None
    if len(body.inputs) != 2 or node.scope.opset() < 11:
        return None
    if not _loops.begins(node, model) or not _loops.goes_on(body, model):
        return None
    if _loops.trips(node, model, _UNROLLED // max(len(body.nodes), 1)) is not None:
        return None
    reduction = _made_by(row, body, *_REDUCTIONS)
    rows = None if reduction is None or not _over_rows(reduction) else reduction.input(0)
    gather = None if rows is None else _made_by(rows, body, "Gather")
    if reduction is None or gather is None or int(gather.attr("axis", 0)) != 0:
        return None
    table, part = gather.require(0), _made_by(gather.require(1), body, "Slice")
    if part is None or len(part.inputs) < 3 or len(part.inputs) > 4:
        return None
    ids, start, end = (part.require(index) for index in range(3))
    axes = part.input(3)
    along = None if axes is None else axes.constant(64)
    elem, shapes = model.shapes.elem_type(table), model.shapes
    if (axes is not None and (along is None or along.tolist() != [0])) or shapes.rank(ids) != 1:
        return None
    is_mean = reduction.op_type == "ReduceMean"
    if elem is None or not dtypes.is_float(elem) or (is_mean and elem != TensorProto.FLOAT):
        return None
    if shapes.rank(table) != 2 or shapes.rank(count) not in (0, 1):
        return None
    if ids.scope is body or table.scope is body or not _inline.visible(node, [ids, table]):
        return None
    draft = Draft(node)
    bags = count.name if shapes.rank(count) == 0 else draft.squeeze(count, [0])
    zero, one = (draft.integers(number) for number in (0, 1))
    length = draft.squeeze(draft.add("Shape", [ids]), [0])
    number = draft.add("Range", [zero, bags, one])
    ends = [_column(bound, body, draft, number, model) for bound in (start, end)]
    if None in ends:
        return None
    first, last = (_from_the_front(draft, str(bound), length, zero) for bound in ends)
    place = draft.add("Range", [zero, length, one])
    after = draft.add("Not", [draft.add("Less", [place, first])])
    mask = draft.unsqueeze(draft.add("And", [after, draft.add("Less", [place, last])]), [2])
    dtype = helper.tensor_dtype_to_np_dtype(elem)
    fill = draft.constant(np.array(_REDUCTIONS[reduction.op_type], dtype), "outside")
    held = draft.add("Where", [mask, draft.add("Gather", [table, ids], axis=0), fill])
    if is_mean:
        number = draft.sum(draft.cast(mask, elem), [1])
        least = draft.add("Max", [number, draft.constant(np.array(1, dtype), "least")])
        total = draft.add("Div", [draft.sum(held, [1]), least])
    else:
        hint = "axis" if reduction.op_type == "ReduceSum" else "const"
        total = draft.along(reduction.op_type, held, [1], hint=hint, keepdims=0)
    draft.replace_output(node, total)
    return Fix("reduce all bags at once, by a mask", draft.edits, Safety.NUMERIC)


def _made_by(value: Value, body: Scope, *op_types: str) -> Node | None:
    node = value.producer
    made = node is not None and node.is_onnx and node.op_type in op_types and value.scope is body
    return node if made else None


def _over_rows(reduction: Node) -> bool:
    """Whether a reduction is along the first axis, which it removes."""
    axes, given = reduction.attr("axes"), reduction.input(1)
    array = None if given is None else given.constant(64)
    return (list(axes or ()) == [0] or (array is not None and array.tolist() == [0])) and not reduction.attr(
        "keepdims", 1
    )


def _column(value: Value, body: Scope, draft: Draft, number: str, model: Model) -> str | None:
    """What an integer of the body is in all iterations, of shape [iterations]; ``number`` is their numbers."""
    if value is body.inputs[0]:
        return number
    node = value.producer
    if node is None or value.scope is not body or not node.is_onnx:
        return None
    if node.op_type in ("Identity", "Reshape", "Squeeze", "Unsqueeze"):
        return _column(node.require(0), body, draft, number, model)
    if node.op_type == "Gather":
        table, shapes = node.require(0), model.shapes
        of_integers = shapes.elem_type(table) == TensorProto.INT64 and shapes.rank(table) == 1
        if not of_integers or table.scope is body or not _inline.visible(draft.anchor, [table]):
            return None
        index = _column(node.require(1), body, draft, number, model)
        return None if index is None else draft.add("Gather", [table, index], axis=0)
    if node.op_type not in ("Add", "Sub"):
        return None
    sides: list[str] = []
    for side in (node.require(0), node.require(1)):
        array = side.constant(64)
        is_number = array is not None and array.size == 1
        name = draft.constant(np.reshape(array, 1)) if is_number and array is not None else None
        name = name or _column(side, body, draft, number, model)
        if name is None:
            return None
        sides.append(name)
    return draft.add(node.op_type, sides)


def _from_the_front(draft: Draft, bound: str, length: str, zero: str) -> str:
    """A bound of a Slice, which counts from the end where it is negative, of shape [iterations, 1]."""
    moved = draft.add("Add", [bound, length])
    return draft.unsqueeze(draft.add("Where", [draft.add("Less", [bound, zero]), moved, bound]), [1])


_HEAD = "int64[L] ids, int64[N] offs"


def _bags(reduction: str, *, more: str = "more = Identity(on)", count: str = "n") -> str:
    return f"""g ({_HEAD}, float[4,2] x) => (float[K,2] y) <int64[1] a = {{0}}, int64 one = {{1}}, bool t = {{1}}> {{
        e = Abs(x)  h = Shape(offs)  n = Squeeze(h, a)  l = Shape(ids)  o = Concat<axis = 0>(offs, l)
        z = Loop({count}, t)<body = b (int64 i, bool on) => (bool more, float[2] row) {{
            {more}  s = Gather<axis = 0>(o, i)  j = Add(i, one)  f = Gather<axis = 0>(o, j)
            p = Unsqueeze(s, a)  q = Unsqueeze(f, a)  part = Slice(ids, p, q, a)
            r = Gather<axis = 0>(e, part)  row = {reduction} }}>  y = Neg(z) }}"""


def _mask(reduced: str, fill: str = "0", more: str = "") -> str:
    return f"""g ({_HEAD}, float[4,2] x) => (float[K,2] y) <int64[1] a = {{0}}, int64 zero = {{0}}, int64 one = {{1}},
        int64[1] c = {{1}}, int64[1] d = {{0}}, int64[1] k = {{1}}, int64[1] u = {{1}}, int64[1] v = {{2}},
        float fill = {{{fill}}}{more}> {{
        e = Abs(x)  h = Shape(offs)  n = Squeeze(h, a)  l = Shape(ids)  o = Concat<axis = 0>(offs, l)
        m = Shape(ids)  len = Squeeze(m, d)  all = Range(zero, n, one)
        s = Gather<axis = 0>(o, all)  j = Add(all, c)  f = Gather<axis = 0>(o, j)
        s1 = Add(s, len)  s0 = Less(s, zero)  s2 = Where(s0, s1, s)  s3 = Unsqueeze(s2, k)
        f1 = Add(f, len)  f0 = Less(f, zero)  f2 = Where(f0, f1, f)  f3 = Unsqueeze(f2, u)
        place = Range(zero, len, one)  before = Less(place, s3)  after = Not(before)  within = Less(place, f3)
        both = And(after, within)  mask = Unsqueeze(both, v)
        r = Gather<axis = 0>(e, ids)  held = Where(mask, r, fill)  {reduced}  y = Neg(z) }}"""


_SIZES = """g (float[L] x, int64 n) => (float[K] y) <int64[1] a = {0}, int64 zero = {0}, int64 one = {1}> {
    y = Loop(n, "")<body = b (int64 i, bool on) => (bool more, float row) { more = Constant<value = bool {1}>()
        %s }> }"""


size_that_depends_on_the_iteration.examples = [
    Fixed(
        "an EmbeddingBag of sums",
        before=_bags("ReduceSum<keepdims = 0>(r, a)"),
        after=_mask("z = ReduceSum<keepdims = 0>(held, w)", more=", int64[1] w = {1}"),
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "an EmbeddingBag of maxima",
        before=_bags("ReduceMax<keepdims = 0>(r, a)"),
        after=_mask("z = ReduceMax<keepdims = 0>(held, w)", "-inf", more=", int64[1] w = {1}"),
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "a Slice, for TensorRT 10.6",
        _SIZES
        % "j = Add(i, one)  p = Unsqueeze(i, a)  q = Unsqueeze(j, a)  r = Slice(x, p, q, a)  row = Squeeze(r, a)",
        target="trt10.6",
    ),
    Flagged("a short loop, which CTL014 unrolls", _bags("ReduceSum<keepdims = 0>(r, a)", count="one")),
    Flagged(
        "a loop that may end early",
        _bags("ReduceSum<keepdims = 0>(r, a)", more="m = ReduceMax<keepdims = 0>(offs)  more = Less(i, m)"),
    ),
    Fixed(
        "an EmbeddingBag of means, of which an empty one is 0",
        before=_bags("ReduceMean<keepdims = 0>(r, a)"),
        after=_mask(
            """count = Cast<to = FLOAT>(mask)  number = ReduceSum<keepdims = 0>(count, w)  least = Max(number, one_)
            total = ReduceSum<keepdims = 0>(held, ww)  z = Div(total, least)""",
            more=", int64[1] w = {1}, int64[1] ww = {1}, float one_ = {1}",
        ),
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "a Range",
        _SIZES % "p = Range(zero, i, one)  q = Cast<to = FLOAT>(p)  row = ReduceSum<keepdims = 0>(q, a)",
    ),
    Flagged(
        "a state decides a size",
        """g (float[L] x, int64 n) => (float y) <int64[1] a = {0}, int64[1] o = {1}, int64 zero = {0}, float f = {0}> {
            j, y = Loop(n, "", zero, f)<body = b (int64 i, bool on, int64 k, float v)
                => (bool more, int64 m, float w) { more = Constant<value = bool {1}>()  m = Add(k, i)
                s = Unsqueeze(k, a)  p = Slice(x, a, s, a)  q = ReduceSum<keepdims = 0>(p, a)  w = Add(v, q) }> }""",
    ),
    Silent("a Gather", _SIZES % "row = Gather(x, i)"),
    Silent("a size of what nothing reads", _SIZES % "p = Range(zero, i, one)  row = Gather(x, i)"),
    Silent(
        "a size from outside of the loop",
        _SIZES % "m = Unsqueeze(n, a)  p = Slice(x, a, m, a)  row = ReduceSum<keepdims = 0>(p, a)",
    ),
    Silent(
        "TensorRT 10, where nothing was measured",
        _SIZES % "p = Range(zero, i, one)  q = Cast<to = FLOAT>(p)  row = ReduceSum<keepdims = 0>(q, a)",
        target="trt10",
    ),
]
