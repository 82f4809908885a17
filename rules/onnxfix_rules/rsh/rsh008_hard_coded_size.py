"""RSH008."""

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
    rule,
    symbols,
)
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
    yield Match(
        f"{what}: it works only {when}, and fails for {others}{more}",
        node=node,
        fix=_freed(node, model, case),
    )


def _freed(node: Node, model: Model, case: _Case) -> Fix | None:
    """Replace the first possible literal by -1; None if that would fold the batch into another axis."""
    position = next((i for i in range(len(case.target)) if case.target[i] > 0 and _stands_for(case, i)), None)
    if position is None:
        return None
    old = case.target[position]
    target = (*case.target[:position], -1, *case.target[position + 1 :])
    if _mixed(case._replace(target=target, fixed=case.fixed // old), model) is not None:
        return None
    draft = Draft(node)
    draft.set_input(node, 1, draft.constant(np.array(target, dtype=np.int64), "shape"))
    return Fix(f"replace the {old} at position {position} by -1", draft.edits, Safety.UNSAFE)


def _stands_for(case: _Case, position: int) -> bool:
    """Whether the other literals divide the number of elements for all sizes, so that a -1 fits at ``position``."""
    return c.quotient(case.left, symbols.constant(case.fixed // case.target[position])) is not None


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
    target = np.array([0, *case.target[1:]], dtype=np.int64)
    draft.set_input(node, 1, draft.constant(target, "shape"))
    if c.keeps_zero(node):
        c.let_zero_copy(draft, node, model)
    yield Match(
        f"the shape {list(case.target)} has {lead} where the data {c.text(case.data)} has {batch}: for any "
        f"other size the -1 becomes {whole}, which mixes samples if the {lead} is the traced batch",
        node=node,
        fix=Fix(
            f"copy the data's first dimension instead of the leading {lead} (0)", draft.edits, Safety.UNSAFE
        ),
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
