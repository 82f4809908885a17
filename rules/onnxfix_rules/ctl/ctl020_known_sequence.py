"""CTL020: sequences that are built and read in the same graph."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from onnxfix.rule import AddNode, Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, Value, rule
from onnxfix_rules.ctl import _inline, _sequences


@rule(
    "CTL020",
    ops=["SequenceAt", "ConcatFromSequence", "SequenceLength"],
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[59],
)
def known_sequence(node: Node, model: Model) -> Iterator[Match]:
    """A sequence whose tensors are known: built or split in the graph, and read at a constant position or as a whole.

    ## Why it matters
    TensorRT has no sequences: it refuses every sequence operator, measured with TensorRT-RTX 1.7.1 (no importer, no
    plugin). If the sequence is made in the same graph, by SequenceConstruct, SequenceEmpty, SequenceInsert and
    SequenceErase at constant positions, or SplitToSequence of a known size or into listed sizes, plain tensors can
    replace it. Torch's exporter leaves such pairs for lists of tensors, `split`, `unbind` and `stack`.

    ## Fix
    SequenceAt becomes the tensor, or its part by Slice or Gather; ConcatFromSequence a Concat (of Unsqueezes if it
    stacks), or the tensor that was split along the same axis; SequenceLength a constant. Exact. The sequence is removed
    if nothing else reads it. Sequences that are inputs, outputs or loop states are kept: OPS001 reports them.

    Along an axis of dynamic size, listed sizes become a Split, which requires the same sum. Parts of one size, or of
    computed sizes, are replaced at positions that are not negative; a position beyond the last part, at which the
    original fails, is then empty or out of range.

    ## References
    - https://onnx.ai/onnx/operators/onnx__SplitToSequence.html
    """
    sequence = node.require(0)
    node.require_output(0)
    found = _whole(node, sequence, model) or _known(node, sequence, model) or _part(node, sequence, model)
    if found is None:
        return
    draft, text, reads = found
    message = f"{node.op_type} of a sequence that is made here"
    yield Match(message, node=node, fix=Fix(text, draft.edits), reads=tuple(reads))


_Found = tuple[Draft, str, list[Node]]


def _whole(node: Node, sequence: Value, model: Model) -> _Found | None:
    """Replaces the concatenation of a split tensor by that tensor."""
    axis = node.attr("axis")
    if node.op_type != "ConcatFromSequence" or axis is None:
        return None
    found = _sequences.whole(sequence, axis, bool(node.attr("new_axis", 0)), model)
    if found is None or not _inline.visible(node, [found[0]]):
        return None
    return _replaced(node, Draft(node), found[0].name), "use the tensor that was split", [found[1]]


def _known(node: Node, sequence: Value, model: Model) -> _Found | None:
    found = _sequences.items(sequence, model)
    if found is None:
        return None
    held, chain = found
    draft = Draft(node)
    if node.op_type == "SequenceLength":
        count = draft.integers(len(held), "length")
        return _replaced(node, draft, count), "replace by a constant", chain
    if node.op_type == "SequenceAt":
        position = node.input(1)
        at = None if position is None else _sequences.index_of(position, len(held), len(held))
        if at is None or not _inline.visible(node, [held[at].source]):
            return None
        return _replaced(node, draft, held[at].write(draft)), "use the tensor directly", chain
    axis = node.attr("axis")
    if axis is None or not held or not _inline.visible(node, [item.source for item in held]):
        return None
    types = {model.shapes.elem_type(item.source) for item in held} - {None}
    if len(types) > 1:  # no sequence: onnx.checker refuses it, and Concat would be no better
        return None
    parts = [item.write(draft) for item in held]
    if node.attr("new_axis", 0):
        parts = _unsqueezed(draft, parts, axis)
    return _replaced(node, draft, draft.add("Concat", parts, axis=axis)), "concatenate the tensors", chain


def _part(node: Node, sequence: Value, model: Model) -> _Found | None:
    """Replaces one part of a tensor that is split into an unknown number of parts of one size."""
    position = node.input(1) if node.op_type == "SequenceAt" else None
    found = None if position is None else _sequences.part(sequence, position, model)
    if found is None or not _inline.visible(node, [value for value in found[1].inputs if value is not None]):
        return None
    draft = Draft(node)
    return _replaced(node, draft, found[0].write(draft)), "use the tensor directly", [found[1]]


def _unsqueezed(draft: Draft, parts: list[str], axis: int) -> list[str]:
    if draft.anchor.scope.opset() < 13:
        return [draft.add("Unsqueeze", [part], axes=[axis]) for part in parts]
    axes = draft.integers([axis], "axes")
    return [draft.add("Unsqueeze", [part, axes]) for part in parts]


def _replaced(node: Node, draft: Draft, name: str) -> Draft:
    """Replace the node's output by ``name``; if its name must be kept, the last added node takes it over."""
    output = node.require_output()
    edits = draft.edits
    draft.edits = []
    draft.remove(node)
    draft.edits += edits
    last = edits[-1] if edits else None
    if output.replaceable:
        draft.replace_uses(output, name)
    elif isinstance(last, AddNode) and list(last.proto.output) == [name] and last.proto.op_type != "Constant":
        last.proto.output[0] = output.name
    else:
        draft.add("Identity", [name], output=output.name)
    return draft


_TWO = "g (float[2] x, float[2] z) => (float[2] y)"
_silent = partial(Silent, runs=False)


known_sequence.examples = [
    Fixed(
        "an element of a SequenceConstruct",
        before=f"{_TWO} <int64 k = {{1}}> {{ s = SequenceConstruct(x, z)  t = SequenceAt(s, k)  y = Neg(t) }}",
        after=f"{_TWO} {{ y = Neg(z) }}",
    ),
    Fixed(
        "a negative position, and a graph output",
        before=f"{_TWO} <int32 k = {{-2}}> {{ s = SequenceConstruct(x, z)  y = SequenceAt(s, k) }}",
        after=f"{_TWO} {{ y = Identity(x) }}",
        opset=11,
    ),
    Fixed(
        "concatenated",
        before="""g (float[2] x, float[3] z) => (float[5] y) {
            s = SequenceConstruct(x, z)  y = ConcatFromSequence<axis = -1>(s) }""",
        after="g (float[2] x, float[3] z) => (float[5] y) { y = Concat<axis = -1>(x, z) }",
    ),
    Fixed(
        "stacked, and read twice",
        before="""g (float[2] x, float[2] z) => (float[2,2] y, float[2] w) <int64 k = {0}> {
            s = SequenceConstruct(x, z)  y = ConcatFromSequence<axis = 1, new_axis = 1>(s)  w = SequenceAt(s, k) }""",
        after="""g (float[2] x, float[2] z) => (float[2,2] y, float[2] w) <int64[1] a = {1}> {
            p = Unsqueeze(x, a)  q = Unsqueeze(z, a)  y = Concat<axis = 1>(p, q)  w = Identity(x) }""",
    ),
    Fixed(
        "stacked along the last axis, before opset 13",
        before="""g (float[2] x, float[2] z) => (float[2,2] y) {
            s = SequenceConstruct(x, z)  y = ConcatFromSequence<axis = -1, new_axis = 1>(s) }""",
        after="""g (float[2] x, float[2] z) => (float[2,2] y) {
            p = Unsqueeze<axes = [-1]>(x)  q = Unsqueeze<axes = [-1]>(z)  y = Concat<axis = -1>(p, q) }""",
        opset=11,
    ),
    Fixed(
        "split and concatenated again, for any split",
        before="""g (float[N,6] x, int64[P] p) => (float[N,6] y) {
            s = SplitToSequence<axis = 1>(x, p)  y = ConcatFromSequence<axis = -1>(s) }""",
        after="g (float[N,6] x, int64[P] p) => (float[N,6] y) { y = Identity(x) }",
        runs=False,  # no generated split is valid
    ),
    Fixed(
        "split into rows and stacked again",
        before="""g (float[2,3] x) => (float[2,3] y) {
            s = SplitToSequence<axis = 1, keepdims = 0>(x)  y = ConcatFromSequence<axis = 1, new_axis = 1>(s) }""",
        after="g (float[2,3] x) => (float[2,3] y) { y = Identity(x) }",
    ),
    Fixed(
        "split into rows and concatenated",
        before="""g (float[2,3] x) => (float[6] y) {
            s = SplitToSequence<axis = 0, keepdims = 0>(x)  y = ConcatFromSequence<axis = 0>(s) }""",
        after="""g (float[2,3] x) => (float[6] y) <int64 i = {0}, int64 j = {1}> {
            a = Gather<axis = 0>(x, i)  b = Gather<axis = 0>(x, j)  y = Concat<axis = 0>(a, b) }""",
    ),
    Fixed(
        "a part of a split",
        before="""g (float[2,N] x) => (float[K,N] y) <int64 k = {1}> {
            s = SplitToSequence(x)  y = SequenceAt(s, k) }""",
        after="""g (float[2,N] x) => (float[K,N] y) <int64[1] a = {1}, int64[1] b = {2}, int64[1] c = {0}> {
            y = Slice(x, a, b, c) }""",
    ),
    Fixed(
        "a part of computed sizes, as PyTorch's tensor_split has them",
        before="""g (float[N] x) => (float[K] y) <int64 k = {1}, int64[2] b = {1, 0}, int64[2] h = {2, 2}> {
            n = Shape(x)  m = Add(n, b)  p = Div(m, h)  s = SplitToSequence(x, p)  t = SequenceAt(s, k)
            y = Neg(t) }""",
        after="""g (float[N] x) => (float[K] y) <int64[2] b = {1, 0}, int64[2] h = {2, 2}, int64[1] z = {0},
            int64[1] o = {1}, int64[1] w = {2}, int64[1] a = {0}, int64[1] r = {0}> {
            n = Shape(x)  m = Add(n, b)  p = Div(m, h)  c = Slice(p, z, o, z)  d = ReduceSum<keepdims = 1>(c, r)
            e = Slice(p, o, w, z)  f = Add(d, e)  t = Slice(x, d, f, a)  y = Neg(t) }""",
    ),
    Fixed(
        "the last part, which is smaller",
        before="""g (float[5] x) => (float[K] y) <int64 p = {2}, int64 k = {-1}> {
            s = SplitToSequence(x, p)  y = SequenceAt(s, k) }""",
        after="""g (float[5] x) => (float[K] y) <int64[1] a = {4}, int64[1] b = {5}, int64[1] c = {0}> {
            y = Slice(x, a, b, c) }""",
    ),
    Fixed(
        "inserted, erased and counted",
        before="""g (float[2] x, float[3] z) => (float[K] y, int64 n) <int64 o = {0}> {
            e = SequenceEmpty()  a = SequenceInsert(e, x)  b = SequenceInsert(a, z, o)  c = SequenceInsert(b, x)
            d = SequenceErase(c)  f = SequenceErase(c, o)
            y = ConcatFromSequence<axis = 0>(d)  n = SequenceLength(f) }""",
        after="""g (float[2] x, float[3] z) => (float[K] y, int64 n) <int64 two = {2}> {
            y = Concat<axis = 0>(z, x)  n = Identity(two) }""",
    ),
    _silent(
        "the position is an input",
        """g (float[2] x, float[2] z, int64 k) => (float[2] y) {
            s = SequenceConstruct(x, z)  y = SequenceAt(s, k) }""",
    ),
    _silent(
        "the position is an input with a default",
        """g (float[2] x, float[2] z, int64 k) => (float[2] y) <int64 k = {0}> {
            s = SequenceConstruct(x, z)  y = SequenceAt(s, k) }""",
    ),
    _silent(
        "position out of range",
        f"{_TWO} <int64 k = {{2}}> {{ s = SequenceConstruct(x, z)  y = SequenceAt(s, k) }}",
    ),
    Fixed(
        "two parts of listed sizes along a dynamic axis",
        before="""g (float[M,N] x) => (float[M,2] y, float[M,3] z) <int64[2] p = {2, 3}, int64 k = {0},
            int64 e = {-1}> { s = SplitToSequence<axis = 1>(x, p)  a = SequenceAt(s, k)  y = Neg(a)
            z = SequenceAt(s, e) }""",
        after="""g (float[M,N] x) => (float[M,2] y, float[M,3] z) <int64[2] p = {2, 3}, int64[2] q = {2, 3}> {
            a, b = Split<axis = 1>(x, p)  y = Neg(a)  c, d = Split<axis = 1>(x, q)  z = Identity(d) }""",
        runs=False,  # no generated size is the sum
    ),
    Fixed(
        "a part of listed size along a dynamic axis, before opset 13, and the number of parts",
        before="""g (float[M,N] x) => (float[M,2] y, int64 n) <int64[2] p = {2, 2}, int64 k = {1}> {
            s = SplitToSequence<axis = -1>(x, p)  t = SequenceAt(s, k)  y = Neg(t)  n = SequenceLength(s) }""",
        after="""g (float[M,N] x) => (float[M,2] y, int64 n) <int64 c = {2}> {
            a, t = Split<axis = 1, split = [2, 2]>(x)  y = Neg(t)  n = Identity(c) }""",
        runs=False,
        opset=11,
    ),
    Fixed(
        "a row of a split of dynamic size",
        before="""g (float[N,3] x) => (float[3] y) <int64 k = {0}> {
            s = SplitToSequence<keepdims = 0>(x)  t = SequenceAt(s, k)  y = Neg(t) }""",
        after="g (float[N,3] x) => (float[3] y) <int64 k = {0}> { t = Gather<axis = 0>(x, k)  y = Neg(t) }",
    ),
    Fixed(
        "a part of a split of dynamic size",
        before="""g (float[N] x) => (float[K] y) <int64 p = {2}, int64 k = {0}> {
            s = SplitToSequence(x, p)  t = SequenceAt(s, k)  y = Neg(t) }""",
        after="""g (float[N] x) => (float[K] y) <int64[1] a = {0}, int64[1] b = {2}, int64[1] c = {0}> {
            t = Slice(x, a, b, c)  y = Neg(t) }""",
    ),
    _silent(
        "the last part of a split of dynamic size",
        "g (float[N] x) => (float[K] y) <int64 k = {-1}> { s = SplitToSequence(x)  y = SequenceAt(s, k) }",
    ),
    _silent(
        "listed sizes whose sum is never the size",
        """g (float[N] x) => (float[2] y) <int64[2] p = {2, 3}, int64 k = {0}> {
            t = Concat<axis = 0>(x, x)  s = SplitToSequence(t, p)  y = SequenceAt(s, k) }""",
    ),
    _silent(
        "split and concatenated again, of a tensor that may be empty",
        "g (float[N] x) => (float[N] y) { s = SplitToSequence(x)  y = ConcatFromSequence<axis = 0>(s) }",
    ),
    _silent(
        "split of dynamic size, concatenated along another axis",
        """g (float[N,2] x) => (float[A,B] y) {
            s = SplitToSequence(x)  y = ConcatFromSequence<axis = 1>(s) }""",
    ),
    _silent(
        "parts of size 1 without their axis, which ONNX Runtime removes and ONNX keeps",
        """g (float[2,3] x) => (float[2,3] y) <int64 p = {1}> { s = SplitToSequence<axis = 1, keepdims = 0>(x, p)
            y = ConcatFromSequence<axis = 1, new_axis = 1>(s) }""",
    ),
    _silent(
        "a sequence input", """g (seq(float[2]) s) => (float[2] y) <int64 k = {0}> { y = SequenceAt(s, k) }"""
    ),
    _silent(
        "an empty sequence, concatenated",
        "g (float[2] x) => (float[K] y) { s = SequenceEmpty()  y = ConcatFromSequence<axis = 0>(s) }",
    ),
    _silent(
        "concatenated along no axis, which ONNX does not allow",
        "g (float[2] x, float[2] z) => (float[4] y) { s = SequenceConstruct(x, z)  y = ConcatFromSequence(s) }",
    ),
    Silent(
        "a sequence that a Loop collects",
        """g (float[2] x, int64 n) => (float[K] y) { e = SequenceEmpty() s = Loop(n, , e)<body = b (int64 i,
            bool on, seq(float[2]) v) => (bool more, seq(float[2]) w) { more = Constant<value = bool {1}>() w =
            SequenceInsert(v, x) }> y = ConcatFromSequence<axis = 0>(s) }""",
    ),
]
