"""Zeros in a Reshape's shape: that cannot be copied, and that a computed shape may hold (RSH004)."""
# Long because: three rules, with an example of each way to compute a shape.

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from onnx import TensorProto

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
    UnknownAttribute,
    Value,
    rule,
    shared,
    symbols,
)
from onnxfix_rules.gra._evaluate import NotFoldable, evaluate
from onnxfix_rules.int_._known import Known
from onnxfix_rules.rsh import _common as c

if TYPE_CHECKING:
    from numpy.typing import NDArray


@rule("RSH003", ops=["Reshape"], safety=Safety.UNSAFE, severity=Severity.ERROR, hazards=[35])
def nonempty_reshape_to_empty(node: Node, model: Model) -> Iterator[Match]:
    """A Reshape with ``allowzero=1`` to an empty tensor, from data that is not empty.

    ## Why it matters
    With ``allowzero=1`` a 0 is a size: the result is empty, so the data must be empty. TensorRT-RTX 1.7.1 fails
    (measured): ``reshape of non-empty tensor to empty tensor``; ONNX Runtime fails at run time. If the data is empty
    for some sizes of the inputs only, the Reshape works for those and fails for all others: a warning. Empty data is
    not reported ([0, 4] to [4, 0] parses and builds), nor is data of unknown shape.

    ## Fix
    Let the 0 copy the data's dimension (``allowzero=0``), which the exporter almost certainly intended. This is a
    guess, since the original model fails; not offered if copying cannot fit either.

    ## References
    ONNX, Reshape-14.
    """
    if not c.keeps_zero(node):
        return
    dims = c.requested(node, model)
    data = c.shape_of(node.input(0), model)
    if dims is None or data is None or not c.zeros(dims) or c.inferred(dims) is not None:
        return
    empty = symbols.is_zero(c.count(data))
    if empty.yes or any(d.value == 0 for d in data):
        return
    remedy = None
    if c.copy_fits(dims, data):
        draft = Draft(node)
        c.let_zero_copy(draft, node, model)
        remedy = Fix("copy the data's dimension for the 0 (allowzero=0)", draft.edits, Safety.UNSAFE)
    yield Match(
        _message(dims, data, certain=empty.no),
        node=node,
        fix=remedy,
        severity=Severity.ERROR if empty.no else Severity.WARNING,
    )


def _message(dims: Sequence[Dim], data: Sequence[Dim], *, certain: bool) -> str:
    what = f"allowzero=1 and the shape {c.text(dims)} request an empty tensor"
    if certain:
        return f"{what}, but the data {c.text(data)} is not empty: TensorRT and ONNX Runtime reject it"
    return f"{what}: it works only if the data {c.text(data)} is empty, and fails for all other sizes"


_BEFORE = "g (float[2,3] x) => (float[A,B] y) <int64[2] s = {0, 3}> { y = Reshape<allowzero=1>(x, s) }"
_fixed = partial(Fixed, runs=False, safety=Safety.UNSAFE)
_flagged = partial(Flagged, runs=False)


def _reshape(x: str, y: str, s_values: str, attributes: str, s: str = "2") -> str:
    return (
        f"g (float[{x}] x) => (float[{y}] y) <int64[{s}] s = {{{s_values}}}> {{ "
        f"y = Reshape{attributes}(x, s) }}"
    )


nonempty_reshape_to_empty.examples = [
    _fixed(
        "six elements cannot become an empty tensor", before=_BEFORE, after=_reshape("2,3", "A,B", "0, 3", "")
    ),
    Flagged("reported only, by default", _BEFORE, runs=False),
    _flagged(
        "copying would not fit either: [2, 5] from six elements",
        _reshape("2,3", "A,B", "0, 5", "<allowzero=1>"),
        safety=Safety.UNSAFE,
    ),
    _fixed(
        "works only if N is 0",
        before=_reshape("N,3", "A,B", "0, 3", "<allowzero=1>"),
        after=_reshape("N,3", "A,B", "0, 3", ""),
    ),
    Flagged("reported by default where N may be 0", _reshape("N,3", "A,B", "0, 3", "<allowzero=1>")),
    Silent("the data is empty: [0, 4] becomes [4, 0]", _reshape("0,4", "4,0", "4, 0", "<allowzero=1>")),
    Silent("the data is empty for every N", _reshape("0,N", "0,2,2", "0, 2, 2", "<allowzero=1>", s="3")),
    Silent("without allowzero the 0 copies", _reshape("2,3", "2,3", "0, 3", "")),
    Silent(
        "unknown data",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,3] x) => (float[A,B] y) <int64[2] s = {0, 3}> { u = my.op(x) y = Reshape<allowzero=1>(u, s) }""",
    ),
    Silent("no 0", _reshape("2,3", "A,B", "3, 2", "<allowzero=1>")),
]


@rule("RSH006", ops=["Reshape"], severity=Severity.ERROR, hazards=[35])
def zero_without_counterpart(node: Node, model: Model) -> Iterator[Match]:
    """A 0 ("copy") in a Reshape's shape at a position that the data does not have.

    ## Why it matters
    There is nothing to copy, so the model is invalid: ONNX Runtime reports ``The dimension with value zero exceeds
    the dimension size of the input tensor``, and TensorRT-RTX 1.7.1 fails to parse it (measured).

    ## Fix
    None: the intended size is unknown. Export again, or write the intended size.

    ## References
    ONNX, Reshape. onnxruntime #19119.
    """
    if not c.copies_zero(node):
        return
    dims = c.requested(node, model)
    data = c.shape_of(node.input(0), model)
    if dims is None or data is None:
        return
    wrong = [i for i in c.zeros(dims) if i >= len(data)]
    if wrong:
        yield Match(
            f"the 0 at position {wrong[0]} of the shape {c.text(dims)} copies a dimension that the data, of rank "
            f"{len(data)}, does not have: TensorRT and ONNX Runtime reject it",
            node=node,
        )


zero_without_counterpart.examples = [
    _flagged("position 2 of a tensor with axes 0 and 1", _reshape("2,6", "A,B,C", "2, 6, 0", "", s="3")),
    _flagged(
        "a known rank with unknown sizes; opset 13", _reshape("N,M", "A,B,C", "0, -1, 0", "", s="3"), opset=13
    ),
    _flagged(
        "the other elements of the shape are computed",
        """g (float[N] x) => (float[A,B] y) <int64[1] z = {0}> {
            d = Shape(x) s = Concat<axis=0>(d, z) y = Reshape(x, s) }""",
    ),
    _flagged("a scalar has no axes", "g (float x) => (float[A] y) <int64[1] s = {0}> { y = Reshape(x, s) }"),
    Silent("the last axis may be copied", _reshape("2,6", "A,6", "-1, 0", "")),
    Silent("with allowzero=1 nothing is copied", _reshape("0", "2,0", "2, 0", "<allowzero=1>")),
    Silent(
        "the rank is unknown",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,3] x) => (float[A,B] y) <int64[2] s = {3, 0}> { u = my.op(x) y = Reshape(u, s) }""",
    ),
    Silent(
        "a default that may be overridden is not a constant",
        "g (float[6] x, int64[2] s = {6, 0}) => (float[A,B] y) { y = Reshape(x, s) }",
    ),
]

MAX_STEPS = 64
"""Most nodes searched for the origin of an integer."""
TRIALS = 1024
"""Sizes that are tried to find one for which an element is 0."""


@rule("RSH004", ops=["Reshape"], safety=Safety.UNSAFE, hazards=[35])
def computed_shape_may_hold_zero(node: Node, model: Model) -> Iterator[Match]:
    """A computed Reshape shape that may contain a 0 where 0 means "copy".

    ## Why it matters
    Without ``allowzero=1`` a 0 from shape arithmetic, such as N / 2 at N = 1, silently copies the data's dimension.
    TensorRT-RTX 1.7.1 warns (measured) if the profile allows it: ``IShuffleLayer with zeroIsPlaceHolder=true has
    reshape dimension at position 0 that might or might not be zero. TensorRT resolves it at runtime, but this may
    cause excessive memory consumption and is usually a sign of a bug in the network.`` There is no warning if the
    profile's minimum sizes exclude the 0 (N / 2 with N of at least 2).

    Reported are floor division, subtraction, float arithmetic and integers that the caller provides. A dimension that
    is 0 only if the data is empty is not reported (TensorRT profiles start at 1), nor one that constants
    and static sizes alone make larger than 1.

    ## Fix
    ``allowzero=1`` removes the warning and made the engine smaller (164,762 to 158,628 bytes, measured). It is not
    equivalent: for an element of 0, the model copied a dimension before and fails afterwards (ONNX Runtime at N = 1:
    shape (1, 3, 4) against an error). So it requires `--numeric-fixes`. It is not offered before opset 14, nor if the
    shape contains a literal 0, which does mean "copy".

    ## References
    ONNX, Reshape-14. TensorRT, IShuffleLayer::setZeroIsPlaceholder. modelscope/dash-infer #92.
    """
    if not c.copies_zero(node):
        return
    dims = c.requested(node, model)
    if dims is None or c.sizes(dims) is not None:
        return
    data = c.shape_of(node.input(0), model)
    causes: dict[str, list[str]] = {}
    for i, dim in enumerate(dims):
        cause = _cause(node, model, i, dim, data)
        if cause:
            causes.setdefault(cause, []).append(str(i))
    if not causes:
        return
    remedy = None
    if node.opset >= 14 and not c.zeros(dims):
        draft = Draft(node)
        draft.set_attr(node, "allowzero", 1)
        remedy = Fix("interpret a 0 as size 0 (allowzero=1)", draft.edits, Safety.UNSAFE)
    where = "; ".join(f"position {', '.join(places)}: {cause}" for cause, places in causes.items())
    yield Match(
        f"the shape may contain a 0, which then copies the data's dimension ({where}); TensorRT warns and "
        "plans for both",
        node=node,
        fix=remedy,
    )


def _cause(node: Node, model: Model, index: int, dim: Dim, data: Sequence[Dim] | None) -> str | None:
    """Why ``dim`` may be 0 while the data is not empty, or None if it cannot or is unknown."""
    if symbols.is_zero(dim).no:
        return None
    if data is not None:
        if index < len(data) and symbols.equal(dim, data[index]).yes:
            return None
        if c.quotient(c.count(tuple(data)), dim) is not None:
            return None  # it divides the number of elements: 0 only where there are none
    if not dim.is_count:
        shape = node.input(1)
        return None if shape is None or _is_above_one(shape, index, model) else _source(shape, model)
    floors = {name: 1 if name in model.shapes.symbols else 0 for name in sorted(dim.symbols)}
    shifted = symbols.substitute(
        dim, {name: symbols.symbol(name) + low for name, low in floors.items() if low}
    )
    if symbols.positive(shifted).yes:
        return None
    found = _zero_at(dim, floors, c.count(tuple(data)) if data is not None else symbols.constant(1))
    return f"{dim}, which is 0 at {found}" if found else None


def _zero_at(dim: Dim, floors: dict[str, int], count: Dim) -> str:
    """Sizes for which ``dim`` is 0 and ``count`` (as far as known) is not; empty if none is found."""
    names = list(floors)
    span = max(2, int(TRIALS ** (1 / len(names)))) if names else 1
    ranges = [range(floors[name], floors[name] + span) for name in names]
    for values in itertools.islice(itertools.product(*ranges), TRIALS):
        env = dict(zip(names, values, strict=True))
        if symbols.evaluate(dim, env) != 0 or not _fills(count, env):
            continue
        if len(names) == 1:
            last = values[0]
            while last - values[0] < TRIALS and symbols.evaluate(dim, {names[0]: last + 1}) == 0:
                last += 1
            return f"{names[0]} = {values[0]}" + (f" to {last}" if last > values[0] else "")
        return ", ".join(f"{name} = {value}" for name, value in env.items())
    return ""


def _fills(count: Dim, env: dict[str, int]) -> bool:
    """Whether a tensor of ``count`` elements is not empty; symbols missing in ``env`` are 2."""
    found = symbols.evaluate(count, dict.fromkeys(count.symbols, 2) | env)
    return found is not None and found > 0


def _source(value: Value, model: Model) -> str | None:
    """The origin of integers that shapes do not determine: the caller, or floats; None for anything else."""
    todo, seen = [value], {id(value)}
    for value in todo:  # grows while it is walked
        node = value.producer
        if value.is_input:
            if value.scope.kind == "graph" and value.initializer is None and not value.sparse:
                return f"from {value.name!r}, which the caller provides"
            continue
        if node is None or not node.is_onnx or node.op_type in ("Shape", "Size", "Constant"):
            continue
        if node.op_type == "Cast" and _is_float(node.input(0), model):
            return "from float arithmetic"
        for read in node.inputs:
            if read is not None and id(read) not in seen and len(todo) < MAX_STEPS:
                seen.add(id(read))
                todo.append(read)
    return None


def _is_above_one(shape: Value, index: int, model: Model) -> bool:
    """Whether an element of a shape is a float that constants and static sizes alone determine, cast to an integer that
    no backend's rounding can make 0. Arithmetic after the Cast could make any number 0."""
    value: Value | None = shape
    while value is not None and (node := value.producer) is not None and node.is_onnx:
        if node.op_type == "Cast" and _is_float(node.input(0), model):
            array = _known(value, model, {})
            return array is not None and bool((array > 1).all())
        if node.op_type == "Concat":
            value, index = _part(node, index, model)
        elif node.op_type in ("Identity", "Unsqueeze"):
            value = node.input(0)
        else:
            return False
    return False


def _part(node: Node, index: int, model: Model) -> tuple[Value | None, int]:
    """The input of a Concat that has the element, and the element's index there; None if that is unknown."""
    for value in node.inputs:
        dims = None if value is None else model.shapes.shape(value)
        length = dims[0].value if dims is not None and len(dims) == 1 else None
        if length is None or index < length:
            return (None if length is None else value), index
        index -= length
    return None, index


def _known(value: Value, model: Model, found: dict[Value, NDArray[Any] | None]) -> NDArray[Any] | None:
    """A value that constants and static sizes alone determine, up to rounding; ``found`` holds those looked at."""
    if value not in found and len(found) < MAX_STEPS:
        found[value] = None
        found[value] = _computed(value, model, found)
    return found.get(value)


def _computed(value: Value, model: Model, found: dict[Value, NDArray[Any] | None]) -> NDArray[Any] | None:
    array, node = shared(model, Known).array(value), value.producer
    if array is not None or node is None or not node.is_onnx:
        return array
    inputs: list[NDArray[Any] | None] = []
    for read in node.inputs:
        inputs.append(None if read is None else _known(read, model, found))
        if read is not None and inputs[-1] is None:
            return None
    try:
        return evaluate(node, inputs)[node.outputs.index(value)]
    except (NotFoldable, UnknownAttribute):
        return None


def _is_float(value: Value | None, model: Model) -> bool:
    floats = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    return value is not None and model.shapes.elem_type(value) in floats


_SHAPE = "<int64[1] i = {0}, int64[1] two = {2}, int64[1] m = {-1}, int64[1] k = {4}>"
_HALF = f"""g (float[N,2,2] x) => (float[A,B,C] y) {_SHAPE} {{
    d = Shape(x) n = Gather(d, i) h = Div(n, two) s = Concat<axis=0>(h, m, k) y = Reshape%s(x, s) }}"""


computed_shape_may_hold_zero.examples = [
    Fixed(
        "N / 2 is 0 for N = 1; with allowzero=1 that call fails instead of copying the 1",
        before=_HALF % "",
        after=_HALF % "<allowzero=1>",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged("reported only, by default", _HALF % ""),
    Flagged("an explicit allowzero=0 is equivalent", _HALF % "<allowzero=0>"),
    Flagged(
        "before opset 14, without allowzero",
        _HALF % "",

        opset=13,
        safety=Safety.UNSAFE,
    ),
    Flagged(
        "a literal 0 copies, and allowzero=1 would change it too",
        f"""g (float[M,N,4] x) => (float[A,B,C] y) {_SHAPE} {{
            d = Shape<start=1, end=2>(x) h = Div(d, two) z = Constant<value_ints = [0]>()
            s = Concat<axis=0>(z, h, m) y = Reshape(x, s) }}""",

        safety=Safety.UNSAFE,
    ),
    Flagged(
        "N - 1 is 0 for N = 1",
        """g (float[N,4] x) => (float[A,B] y) <int64[1] i = {0}, int64[1] one = {1}, int64[1] m = {-1}> {
            d = Shape(x) n = Gather(d, i) h = Sub(n, one) s = Concat<axis=0>(h, m) y = Reshape(x, s) }""",
    ),
    Flagged(
        "the shape is a graph input",
        "g (float[N,4] x, int64[2] s) => (float[A,B] y) { y = Reshape(x, s) }",
    ),
    Flagged(
        "float arithmetic: 0.5 * N is not proven to be at least 1",
        """g (float[N,4] x) => (float[A,B] y) <int64[1] i = {0}, float[1] half = {0.5}, int64[1] m = {-1}> {
            d = Shape(x) n = Gather(d, i) f = Cast<to=FLOAT>(n) g = Mul(f, half) h = Floor(g) q = Cast<to=INT64>(h)
            s = Concat<axis=0>(q, m) y = Reshape(x, s) }""",
    ),
    Silent(
        "the root of a constant, which an exporter computes as a float (DPT's 24 by 24 patches)",
        """g (float[N,4,576] x) => (float[A,B,C,D] y)
            <float n = {576}, float half = {0.5}, int64[1] z = {0}, int64[2] m = {-1, 4}> {
            p = Pow(n, half) q = Cast<to=INT64>(p) u = Unsqueeze(q, z)
            s = Concat<axis=0>(u, u, m) t = Reshape(x, s) y = Identity(t) }""",
    ),
    Silent(
        "the root of a static size",
        """g (float[N,4,576] x) => (float[A,B,C,D] y)
            <int64 i = {2}, float half = {0.5}, int64[1] z = {0}, int64[2] m = {-1, 4}> {
            d = Shape(x) n = Gather(d, i) f = Cast<to=FLOAT>(n) p = Pow(f, half) q = Cast<to=INT64>(p)
            u = Unsqueeze(q, z) s = Concat<axis=0>(u, u, m) t = Reshape(x, s) y = Identity(t) }""",
    ),
    Flagged(
        "what is subtracted from a root may be the same",
        """g (float[N,4] x) => (float[A,B] y) <float n = {576}, float half = {0.5}, int64[1] k = {24}, int64[1] z = {0},
            int64[1] m = {-1}> { p = Pow(n, half) q = Cast<to=INT64>(p) u = Unsqueeze(q, z) d = Sub(u, k)
            s = Concat<axis=0>(d, m) y = Reshape(x, s) }""",
        runs=False,
    ),
    Flagged(
        "the root of a constant that may be rounded to 0",
        """g (float[N,4] x) => (float[A,B] y) <float n = {1}, float half = {0.5}, int64[1] z = {0}, int64[1] m = {-1}> {
            p = Pow(n, half) q = Cast<to=INT64>(p) u = Unsqueeze(q, z) s = Concat<axis=0>(u, m) y = Reshape(x, s) }""",
    ),
    Flagged(
        "the count of nonzero elements may be 0",
        """g (float[4,4] x) => (float[A,B] y) <int64[1] one = {1}, int64[1] m = {-1}> {
            n = NonZero(x) d = Shape(n) k = Gather(d, one) s = Concat<axis=0>(k, m) y = Reshape(x, s) }""",
    ),
    Silent(
        "N itself: 0 only where the data is empty",
        """g (float[N,2,2] x) => (float[N,4] y) <int64[1] i = {0}, int64[1] four = {4}> {
            d = Shape(x) n = Gather(d, i) s = Concat<axis=0>(n, four) y = Reshape(x, s) }""",
    ),
    Silent(
        "N * M: 0 only where the data is empty",
        """g (float[N,M,2] x) => (float[K,2] y)
            <int64 i = {0}, int64 j = {1}, int64[1] a = {0}, int64[1] two = {2}> {
            d = Shape(x) n = Gather(d, i) k = Gather(d, j) p = Mul(n, k) q = Unsqueeze(p, a)
            s = Concat<axis=0>(q, two) y = Reshape(x, s) }""",
    ),
    Silent(
        "N / 2 + 1 is never 0",
        """g (float[N,4] x) => (float[A,B] y)
            <int64[1] i = {0}, int64[1] two = {2}, int64[1] one = {1}, int64[1] m = {-1}> {
            d = Shape(x) n = Gather(d, i) h = Div(n, two) k = Add(h, one)
            s = Concat<axis=0>(k, m) y = Reshape(x, s) }""",
    ),
    Silent(
        "N - 1 is the data's own dimension: both interpretations of 0 agree",
        """g (float[N,4] x) => (float[A,B,C] y)
            <int64[1] i = {0}, int64[1] one = {1}, int64[1] end = {1000000}, int64[2] t = {2, 2}> {
            c = Slice(x, one, end, i) d = Shape(c) n = Gather(d, i) s = Concat<axis=0>(n, t) y = Reshape(c, s) }""",
    ),
    Silent(
        "an overridable default, which TensorRT treats as a weight",
        "g (float[N,4] x, int64[2] s = {-1, 2}) => (float[A,B] y) { y = Reshape(x, s) }",
    ),
    Silent(
        "repeats from the caller: if one is 0 the data is empty",
        """g (float[1,1] x, int64[2] n) => (float[A,B] y) <int64[2] swap = {1, 0}> {
            t = Tile(x, n) s = Gather(n, swap) y = Reshape(t, s) }""",
    ),
    Silent(
        "a constant 0 copies on purpose",
        "g (float[N,2,2] x) => (float[N,4] y) <int64[2] s = {0, 4}> { y = Reshape(x, s) }",
    ),
    Silent("allowzero=1 already", _HALF % "<allowzero=1>"),
    Silent(
        "the sum of a dimension and a positive constant",
        """g (float[N,4] x, float[M,4] z) => (float[A,B,C] y) <int64[1] i = {0}, int64[2] t = {2, 2}> {
            d = Shape(x) e = Shape(z) n = Gather(d, i) k = Gather(e, i) p = Add(n, k)
            w = Concat<axis=0>(x, z) s = Concat<axis=0>(p, t) y = Reshape(w, s) }""",
    ),
]  # fmt: skip
