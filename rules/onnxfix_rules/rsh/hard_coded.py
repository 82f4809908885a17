"""RSH008 and RSH010: sizes of the traced example, as constants."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

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
    Severity,
    Silent,
    Value,
    rule,
    shared,
    symbols,
)
from onnxfix_rules.brc._baked import Baked, BakedSizes
from onnxfix_rules.brc._common import BROADCASTING
from onnxfix_rules.rsh import _common as c


class _Case(NamedTuple):
    """What a Reshape asks for: integers, with the data's shape and the numbers of elements of both."""

    target: tuple[int, ...]
    data: tuple[Dim, ...]
    left: Dim
    """Number of elements of the data, without the axes that a 0 copies."""
    fixed: int
    """Product of the literals."""


@rule("RSH008", ops=["Reshape"], safety=Safety.UNSAFE, hazards=[40])
def hard_coded_size(node: Node, model: Model) -> Iterator[Match]:
    """A Reshape has the traced batch (or another traced size) hard-coded while its data is dynamic.

    ## Why it matters
    Without a -1 the shape fits a single size: the model declares a dynamic dimension but works for one value of it.
    TensorRT-RTX 1.7.1 refuses a profile with any other (measured): ``kOPT values for profile 0 violate shape
    constraints: IShuffleLayer … reshaping failed … would change volume 48 to 24``.

    With a later -1, as in [1, -1, …], it is worse: at batch 2 the Reshape succeeds, and the samples are concatenated
    along another axis. Reported if the leading literal replaces a dynamic leading dimension that is multiplied into
    the -1. A model that intentionally folds its batch looks the same: check the following nodes.

    ## Fix
    Let the literal that must be the traced size be -1 (if there is no -1 yet), or let the leading one copy the data's
    batch (0). Equal for the traced size only, and not proven to be what the author intended: it requires
    `--numeric-fixes`. Offered if the new dimension is an integer for all sizes.

    ## References
    NVIDIA/TensorRT #3916; tensorrt_inference #54.
    """
    dims = c.requested(node, model)
    data = c.shape_of(node.input(0), model)
    target = None if dims is None else c.sizes(dims)
    if target is None or data is None or (0 in target and not c.copies_zero(node)):
        return
    if all(d.value is not None for d in data) or any(v == 0 and i >= len(data) for i, v in enumerate(target)):
        return
    copied = c.count(tuple(data[i] for i, v in enumerate(target) if v == 0))
    left = c.quotient(c.count(data), copied)
    fixed = math.prod(v for v in target if v > 0)
    if left is None or left.value is not None:
        return
    case = _Case(target, data, left, fixed)
    yield from _folded(node, model, case) if -1 in target else _pinned(node, model, case)


def _pinned(node: Node, model: Model, case: _Case) -> Iterator[Match]:
    """Without a -1: the shape fits only if the data has exactly this many elements."""
    what = f"the shape {list(case.target)} is fixed, the data {c.text(case.data)} is not"
    if symbols.equal(case.left, case.fixed).no:
        if 0 in case.target:  # a copied axis of size 0 makes everything fit
            yield Match(f"{what}: it fails unless the data is empty", node=node)
        else:
            yield Match(f"{what}: no size fits, so it always fails", node=node, severity=Severity.ERROR)
        return
    found = _solution(case)
    when = f"at {found}, the traced size" if found else f"where {case.left} is {case.fixed}"
    others = "every other that is not empty" if 0 in case.target else "every other"
    name, _, size = found.partition(" = ")
    chosen = name in model.shapes.symbols and 0 not in case.target
    more = f" (apply --fix-dim {shlex.quote(f'{name}={size}')} makes it static)" if chosen else ""
    message = f"{what}: it works only {when}, and fails for {others}{more}"
    yield Match(message, node=node, fix=_freed(node, model, case))


def _freed(node: Node, model: Model, case: _Case) -> Fix | None:
    """Replace the first possible literal by -1; None if that would fold the batch into another axis."""
    for position, old in enumerate(case.target):
        # A -1 fits where the other literals divide the number of elements for all sizes.
        if old > 0 and c.quotient(case.left, symbols.constant(case.fixed // old)) is not None:
            target = (*case.target[:position], -1, *case.target[position + 1 :])
            if _mixed(case._replace(target=target, fixed=case.fixed // old), model) is not None:
                return None
            draft = Draft(node)
            draft.set_input(node, 1, draft.integers(target, "shape"))
            return Fix(f"replace the {old} at position {position} by -1", draft.edits, Safety.UNSAFE)
    return None


def _solution(case: _Case) -> str:
    """``N = 2`` if the number of elements is a multiple of one symbol; else empty."""
    if len(case.left.terms) != 1:
        return ""
    atoms, factor = case.left.terms[0]
    return f"{atoms[0].name} = {case.fixed // factor}" if len(atoms) == 1 and atoms[0].op == "symbol" else ""


def _mixed(case: _Case, model: Model) -> Dim | None:
    """The factors of the -1 besides the data's dynamic first dimension, if a literal replaces that dimension.

    None if not, or if the dimension is only moved.
    """
    lead, batch = case.target[0], case.data[0]
    if lead < 1 or len(case.data) < 2 or len(batch.terms) != 1 or batch.value is not None:
        return None
    if not any(model.shapes.symbols.get(name, ("", 1))[1] == 0 for name in batch.symbols):
        return None
    rest = c.quotient(case.left, batch)
    inner = None if rest is None else c.quotient(rest, symbols.constant(case.fixed // lead))
    return None if inner is None or inner.value == 1 else inner


def _folded(node: Node, model: Model, case: _Case) -> Iterator[Match]:
    """A leading literal, and a later -1 that includes the data's dynamic leading dimension times something."""
    inner = _mixed(case, model)
    if inner is None:
        return
    lead, batch = case.target[0], case.data[0]
    whole = f"{batch * inner}" if lead == 1 else f"{batch * inner} / {lead}"
    draft = Draft(node)
    draft.set_input(node, 1, draft.integers([0, *case.target[1:]], "shape"))
    if c.keeps_zero(node):
        c.let_zero_copy(draft, node, model)
    title = f"copy the data's first dimension instead of the leading {lead} (0)"
    yield Match(
        f"the shape {list(case.target)} has {lead} where the data {c.text(case.data)} has {batch}: for any "
        f"other size the -1 becomes {whole}, which mixes samples if the {lead} is the traced batch",
        node=node,
        fix=Fix(title, draft.edits, Safety.UNSAFE),
    )


def _flat(target: str, data: str = "float[N,3,4]", attrs: str = "", result: str = "float[A,B]") -> str:
    count = target.count(",") + 1
    return f"g ({data} x) => ({result} y) <int64[{count}] s = {{{target}}}> {{ y = Reshape{attrs}(x, s) }}"


_fixed = partial(Fixed, runs=False, safety=Safety.UNSAFE)
_flagged = partial(Flagged, safety=Safety.UNSAFE)
hard_coded_size.examples = [
    _fixed("traced at batch 2: no other batch works", before=_flat("2, 12"), after=_flat("-1, 12")),
    Flagged("reported only, by default", _flat("2, 12")),
    _fixed(
        "the batch folded with the heads",
        before=_flat("16, 5, 8", "float[N,8,5,8]", result="float[A,B,C]"),
        after=_flat("-1, 5, 8", "float[N,8,5,8]", result="float[A,B,C]"),
    ),
    _fixed(
        "a hard-coded sequence length after a copied batch",
        before=_flat("0, 16, 2, 4", "float[N,S,8]", result="float[A,B,C,D]"),
        after=_flat("0, -1, 2, 4", "float[N,S,8]", result="float[A,B,C,D]"),
    ),
    _flagged(
        "two symbols: one -1 cannot replace both",
        _flat("2, 16, 2, 4", "float[N,S,8]", result="float[A,B,C,D]"),
    ),
    _flagged(
        "the 4 could be -1, but then N would be folded into it: the intent is unknown",
        _flat("1, 4", "float[N,2]"),
    ),
    Flagged("no size of N gives 7 elements", _flat("7", result="float[A]"), safety=Safety.UNSAFE, runs=False),
    _flagged(
        "one element of 2 * N, besides the copied axis: works only if that is empty",
        _flat("0, 1", "float[N,N,2]"),
        runs=False,
    ),
    _flagged(
        "a scalar: only for N = 1", "g (float[N] x) => (float y) <int64[0] s = {}> { y = Reshape(x, s) }"
    ),
    _fixed(
        "[1, -1]: at batch 2 the second sample becomes more columns of the first",
        before=_flat("1, -1"),
        after=_flat("0, -1"),
    ),
    _fixed(
        "the same with allowzero=1, which the 0 rules out",
        before=_flat("1, -1", attrs="<allowzero=1>"),
        after=_flat("0, -1"),
    ),
    _fixed(
        "a shape shared by two nodes: only the Reshape of batched data changes",
        before="""g (float[N,3,4] x, float[2,12] z) => (float[A,B] y, float[2,12] w) <int64[2] s = {2, 12}> {
            y = Reshape(x, s) w = Reshape(z, s) }""",
        after="""g (float[N,3,4] x, float[2,12] z) => (float[A,B] y, float[2,12] w)
            <int64[2] s = {2, 12}, int64[2] t = {-1, 12}> { y = Reshape(x, t) w = Reshape(z, s) }""",
    ),
    Silent("-1 leads", _flat("-1, 12")),
    Silent("0 leads", _flat("0, 12")),
    Silent("all sizes are static", _flat("2, 12", "float[2,3,4]", result="float[2,12]")),
    Silent("an added axis: N is only moved", _flat("1, -1, 3, 4", result="float[A,B,C,D]")),
    Silent(
        "a shape computed from the data",
        """g (float[N,3,4] x) => (float[A,B] y) <int64[1] i = {0}, int64[1] t = {12}> {
            d = Shape(x) n = Gather(d, i) s = Concat<axis=0>(n, t) y = Reshape(x, s) }""",
    ),
    Silent(
        "the caller may override the shape",
        "g (float[N,3,4] x, int64[2] s = {2, 12}) => (float[A,B] y) { y = Reshape(x, s) }",
    ),
    Silent(
        "unknown data",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[N,3] x) => (float[A,B] y) <int64[2] s = {2, 3}> { u = my.op(x) y = Reshape(u, s) }""",
    ),
    Silent("two -1: an invalid shape", _flat("2, -1, -1", result="float[A,B,C]"), runs=False),
    Silent(
        "the leading dimension is not an input's batch: no evidence of a traced size",
        """g (float[3,N,4] x) => (float[A,B] y) <int64[2] s = {1, -1}> {
            t = Transpose<perm = [1, 0, 2]>(x) y = Reshape(t, s) }""",
    ),
    Silent("-2 is not a valid dimension", _flat("2, -2"), runs=False),
    Silent("the batch is last, and -1 takes the rest", _flat("3, -1", "float[3,N,4]")),
]


@rule("RSH010", per="model", safety=Safety.UNSAFE, hazards=[40, 51])
def hard_coded_batch(model: Model) -> Iterator[Match]:
    """The traced batch is a constant of Tile, Expand, ConstantOfShape, Range, Slice or OneHot, or in a weight.

    ## Why it matters
    A query that is repeated for each sample, a class token, a mask or the initial state of an LSTM is often exported
    for the traced batch, while the model's inputs have a dynamic one. Where the two meet, in a broadcast, a Concat or
    an LSTM, GRU or RNN, only that batch fits. TensorRT-RTX 1.7.1 builds it, and refuses other sizes of the profile or
    the input: `Broadcast has incompatible dimensions: 2 != 8` (measured). Runtimes name the consumer; the finding is at
    the node that makes the size. A weight counts if it is the same for all samples: another tool has folded the Tile
    or Expand.

    ## Fix
    Take the size from the graph input that has the batch. Of a weight keep one sample, which a broadcast repeats, or an
    Expand before a Concat or an LSTM.
    Equal for the traced batch only, and not proven to be what the author intended: `--unsafe-fixes`. None for OneHot,
    whose depth TensorRT requires to be constant, or in a local function.

    ## References
    NVIDIA/TensorRT #3916; RSH008 finds the same in Reshape, BRC005 where no such node is found.
    """
    for baked in shared(model, BakedSizes).found.values():
        node, size = baked.node, baked.size
        how = f"{node.op_type} makes {size}"
        if baked.is_weight:
            how = f"input {baked.place} of {node.op_type} holds {f'{size} equal samples' if size > 1 else 'one sample'}"
        hint = shlex.quote(f"{baked.symbol}={size}")
        yield Match(
            f"{how} where {baked.reader.op_type} ({baked.reader.first_output}) has the batch {baked.symbol}: "
            f"it works only at {baked.symbol} = {size}, the traced size (apply --fix-dim {hint} makes it static)",
            node=node,
            fix=_fix(baked, model),
            reads=(baked.reader,),
        )


def _fix(baked: Baked, model: Model) -> Fix | None:
    node, position = baked.node, baked.position
    source, axis = model.shapes.symbols.get(baked.symbol, ("", 0))
    value = node.scope.lookup(source)
    if value is None or not value.is_input or value.scope is not model.main or node.op_type == "OneHot":
        return None
    draft, argument = Draft(node), node.require(baked.place)
    array = argument.constant()
    assert array is not None
    if baked.is_weight:
        assert position is not None
        sample = array.take([0], position)
        result, title = draft.constant(sample, "sample"), "keep one sample, which is repeated for the batch"
        if baked.reader.op_type not in BROADCASTING:
            batch = _batch(draft, value, [axis])
            sizes = np.ones(array.ndim, np.int64)
            result = draft.add("Expand", [result, _with_batch(draft, sizes, position, batch)])
    else:
        batch = _batch(draft, value, axis if position is None else [axis])
        if array.dtype != np.int64:
            batch = draft.add("Cast", [batch], to=6)
        result = batch if position is None else _with_batch(draft, array, position, batch)
        title = f"take the batch from {source!r} instead of {baked.size}"
    draft.set_input(node, baked.place, result)
    return Fix(title, draft.edits, Safety.UNSAFE)


def _batch(draft: Draft, value: Value, axis: int | list[int]) -> str:
    """The size of an axis, as a scalar or a vector."""
    place = draft.integers(axis, "axis")
    return draft.add("Gather", [draft.add("Shape", [value]), place], hint="batch")


def _with_batch(
    draft: Draft, sizes: np.ndarray[tuple[int, ...], np.dtype[np.int64]], at: int, batch: str
) -> str:
    """The sizes as a vector, with the batch at a position."""
    parts = [draft.constant(part, "sizes") if part.size else "" for part in (sizes[:at], sizes[at + 1 :])]
    listed = [part for part in (parts[0], batch, parts[1]) if part]
    return draft.add("Concat", listed, axis=0) if len(listed) > 1 else batch


_QUERY = """g (float[N,6,4] x) => (float[N,2,6] y) <int64[3] r = {8, 1, 1}, float[1,2,4] q = {1,2,3,4,5,6,7,8}> {
    t = Tile(q, r)  a = Transpose<perm = [0,2,1]>(x)  e = Exp(t)  y = MatMul(e, a) }"""
_TOKEN = "g (float[N,5,4] x, float[1,1,4] z) => (float[N,6,4] y)"
_TABLE = "g (float[N,3] x, float[10,3] t) => (float[N,3] y) <int64[1] b = {0}, int64[1] a = {0}"
_ADD = "g (float[N,2] x) => (float[N,2] y)"
_RNN = "g (float[T,N,3] x, float[1,16,3] w, float[1,16,4] r) => (float[1,N,4] q)"


hard_coded_batch.examples = [
    _fixed(
        "a query repeated by Tile, read by a MatMul",
        before=_QUERY,
        after="""g (float[N,6,4] x) => (float[N,2,6] y) <int64[1] o = {0}, int64[2] r = {1, 1},
            float[1,2,4] q = {1,2,3,4,5,6,7,8}> { s = Shape(x)  n = Gather(s, o)  c = Concat<axis = 0>(n, r)
            t = Tile(q, c)  a = Transpose<perm = [0,2,1]>(x)  e = Exp(t)  y = MatMul(e, a) }""",
    ),
    Flagged("reported only, by default", _QUERY, runs=False),
    _fixed(
        "a class token expanded before a Concat",
        before=f"{_TOKEN} <int64[3] s = {{2, 1, 4}}> {{ e = Expand(z, s)  y = Concat<axis = 1>(e, x) }}",
        after=f"""{_TOKEN} <int64[1] o = {{0}}, int64[2] r = {{1, 4}}> {{ d = Shape(x)  n = Gather(d, o)
            s = Concat<axis = 0>(n, r)  e = Expand(z, s)  y = Concat<axis = 1>(e, x) }}""",
    ),
    _fixed(
        "a class token traced at batch 1, a weight",
        before="""g (float[N,5,2] x) => (float[N,6,2] y) <float[1,1,2] z = {1, 2}> {
            y = Concat<axis = 1>(z, x) }""",
        after="""g (float[N,5,2] x) => (float[N,6,2] y) <float[1,1,2] z = {1, 2}, int64[1] o = {0},
            int64[2] r = {1, 1}> { d = Shape(x)  n = Gather(d, o)  s = Concat<axis = 0>(n, r)  e = Expand(z, s)
            y = Concat<axis = 1>(e, x) }""",
    ),
    _fixed(
        "a weight that repeats one sample",
        before=f"{_ADD} <float[2,2] b = {{1, 2, 1, 2}}> {{ y = Add(x, b) }}",
        after=f"{_ADD} <float[1,2] b = {{1, 2}}> {{ y = Add(x, b) }}",
    ),
    _fixed(
        "the initial state of an LSTM",
        before=f"""{_RNN} <int64[3] s = {{1, 2, 4}}> {{
            h = ConstantOfShape(s)  y, q, c = LSTM<hidden_size = 4>(x, w, r, , , h, h) }}""",
        after=f"""{_RNN} <int64[1] o = {{1}}, int64[1] f = {{1}}, int64[1] l = {{4}}> {{
            d = Shape(x)  n = Gather(d, o)  s = Concat<axis = 0>(f, n, l)
            h = ConstantOfShape(s)  y, q, c = LSTM<hidden_size = 4>(x, w, r, , , h, h) }}""",
    ),
    _fixed(
        "the limit of a Range",
        before=f"""{_ADD} <int64 z = {{0}}, int64 l = {{4}}, int64 d = {{1}}, int64[1] a = {{1}}> {{
            i = Range(z, l, d)  u = Unsqueeze(i, a)  f = Cast<to = FLOAT>(u)  y = Add(x, f) }}""",
        after=f"""{_ADD} <int64 z = {{0}}, int64 o = {{0}}, int64 d = {{1}}, int64[1] a = {{1}}> {{
            s = Shape(x)  n = Gather(s, o)  i = Range(z, n, d)  u = Unsqueeze(i, a)  f = Cast<to = FLOAT>(u)
            y = Add(x, f) }}""",
    ),
    _fixed(
        "the end of a Slice",
        before=f"{_TABLE}, int64[1] e = {{4}}> {{ s = Slice(t, b, e, a)  y = Add(x, s) }}",
        after=f"""{_TABLE}, int64[1] o = {{0}}> {{ d = Shape(x)  n = Gather(d, o)
            s = Slice(t, b, n, a)  y = Add(x, s) }}""",
    ),
    Flagged(
        "the depth of a OneHot, which TensorRT requires to be constant",
        """g (float[N,3] x, int64[3] i) => (float[N,3] y) <int64 d = {4}, float[2] v = {0, 1}> {
            o = OneHot<axis = 0>(i, d, v)  y = Add(x, o) }""",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Silent(
        "different samples: BRC005", f"{_ADD} <float[2,2] b = {{1, 2, 1, 3}}> {{ y = Add(x, b) }}", runs=False
    ),
    Silent("one sample, which is broadcast", f"{_ADD} <float[1,2] b = {{1, 2}}> {{ y = Add(x, b) }}"),
    Silent(
        "the batch is static",
        "g (float[2,3] x) => (float[2,3] y) <int64[2] s = {2, 3}, float[1,3] z = {1,2,3}> "
        "{ e = Expand(z, s)  y = Add(x, e) }",
    ),
    Silent(
        "a Slice that starts later",
        f"{_TABLE.replace('{0}', '{1}', 1)}, int64[1] e = {{5}}> {{ s = Slice(t, b, e, a)  y = Add(x, s) }}",
        runs=False,
    ),
]
