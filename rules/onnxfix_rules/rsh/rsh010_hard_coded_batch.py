"""RSH010."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import partial

import numpy as np

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Safety, Silent, Value, rule, shared
from onnxfix_rules.brc._baked import Baked, BakedSizes
from onnxfix_rules.brc._common import BROADCASTING


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
    place = draft.constant(np.array(axis, np.int64), "axis")
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
_fixed = partial(Fixed, runs=False, safety=Safety.UNSAFE)


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
