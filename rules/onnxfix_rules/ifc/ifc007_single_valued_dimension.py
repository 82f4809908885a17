"""IFC007: dynamic input dimensions for which only one size is possible."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from onnxfix.rule import Dim, Flagged, Match, Model, Node, Severity, Silent, is_read, rule
from onnxfix.shapes import dimnames
from onnxfix.sizes.demands import Demand, Kind, Term
from onnxfix.sizes.operators import demanded

_DEMANDING = frozenset(
    {
        "BatchNormalization", "Concat", "Conv", "ConvTranspose", "GRU", "Gemm", "InstanceNormalization", "LSTM",
        "LayerNormalization", "MatMul", "RMSNormalization", "RNN", "Split", "Squeeze",
    }
)  # fmt: skip
"""Operators that may require one size. Operators with a shape of their own are covered by other rules."""
_OF_CHANNELS = frozenset({"BatchNormalization", "Conv", "ConvTranspose", "InstanceNormalization"})
"""Operators of which only the channels may require one size."""


@rule("IFC007", per="model", severity=Severity.INFO, hazards=[10])
def single_valued_dimension(model: Model) -> Iterator[Match]:
    """A dynamic input dimension for which the model supports only one size.

    ## Why it matters
    Exporters that make every axis dynamic also name channels and features. An optimization profile then needs sizes
    for them, of which only one builds: TensorRT-RTX 1.7.1 was measured to refuse a range for the length of a Split
    (`ISliceLayer has out of bounds access`), and to accept one for the channels of a Conv and the inner dimension of
    a MatMul, where every other size is wrong. TensorRT folds what is known to be constant.

    The size is proven from the requirements of operators in the main graph (equal channels, inner dimensions, parts
    of a Split, squeezed axes), not found by trial. RSH008 covers Reshape.

    ## Fix
    None here, since the declaration is part of the interface: `onnxfix apply MODEL --fix-dim NAME=SIZE` makes it
    static, and verifies the result for that size.
    """
    free = _free(model)
    told: set[str] = set()
    for node in model.main.nodes if free else ():
        if node.op_type not in _DEMANDING or not _is_open(node, model):
            continue
        for about, term in demanded(node, model.shapes):
            name, size = _only(term)
            if name not in free or name in told or size < 1:
                continue
            told.add(name)
            demand = Demand(term, node.place, node.op_type, about)
            yield Match(
                f"dimension {name} of input {free[name]} is declared dynamic and can only be {size}: {demand} (apply "
                f"--fix-dim {shlex.quote(f'{name}={size}')} makes it static)",
                node=node,
            )


def _is_open(node: Node, model: Model) -> bool:
    """Whether a node's requirements need checking: it is used, and its channels are unknown."""
    data = node.input(0)
    shape = model.shapes.shape(data) if data is not None and node.op_type in _OF_CHANNELS else None
    known = shape is not None and len(shape) > 1 and shape[1].value is not None
    return not known and any(is_read(one) for one in node.outputs)


def _free(model: Model) -> dict[str, str]:
    """The symbols with free sizes, and the input in which each occurs first."""
    symbols = model.shapes.symbols
    return {
        name: where[0]
        for name, where in symbols.items()
        if symbols.keys().isdisjoint(set(dimnames.names(name) or ()).difference((name,)))
    }


def _only(term: Term) -> tuple[str, int]:
    """The symbol that a condition determines, and its size; an empty name if there is none."""
    fixed = term.kind is Kind.EXTENDS and term.left.value not in (None, 1)
    open_ends = term.left.value is None and term.right.value is None
    if open_ends or (term.kind is not Kind.EQUAL and not fixed):
        return "", 0
    return _root(term.left - term.right)


def _root(dim: Dim) -> tuple[str, int]:
    """Solve a multiple of one symbol plus a constant for 0."""
    found = {atoms: factor for atoms, factor in dim.terms if atoms}
    if len(found) != 1:
        return "", 0
    ((atoms, factor),) = found.items()
    rest = sum(number for inner, number in dim.terms if not inner)
    if len(atoms) != 1 or atoms[0].op != "symbol" or rest % factor:
        return "", 0
    return atoms[0].name, -rest // factor


_W = "float[4,3,1,1] w = {1,2,3,4,5,6,7,8,9,1,2,3}"
_M = "float[3,2] m = {1,2,3,4,5,6}"


single_valued_dimension.examples = [
    Flagged(
        "the channels of a convolution",
        f"g (float[N,C,H,W] x) => (float[N,4,H,W] y) <{_W}> {{ y = Conv(x, w) }}",
    ),
    Flagged(
        "the inner dimension of a product, unnamed",
        f"g (float[N,?] x) => (float[N,2] y) <{_M}> {{ y = MatMul(x, m) }}",
    ),
    Flagged(
        "the dimension of a transposed Gemm",
        f"g (float[K,N] x) => (float[N,2] y) <{_M}> {{ y = Gemm<transA = 1>(x, m) }}",
    ),
    Flagged(
        "twice the size plus one",
        f"""g (float[2,K] x, float[2,1] z) => (float[2,2] y) <{_M}> {{
            c = Concat<axis = 1>(x, x, z)  y = MatMul(c, m) }}""",
    ),
    Flagged(
        "fixed parts of a Split",
        """g (float[N] x) => (float[4] y, float[7] z) <int64[2] s = {4, 7}> {
            y, z = Split<axis = 0>(x, s) }""",
    ),
    Flagged(
        "the last axis of a norm",
        "g (float[N,C] x) => (float[N,C] y) <float[3] s = {1,2,3}> { y = LayerNormalization(x, s) }",
    ),
    Flagged(
        "a squeezed axis",
        "g (float[N,3] x) => (float[3] y) <int64[1] a = {0}> { y = Squeeze(x, a) }",
    ),
    Silent("a free batch dimension", f"g (float[N,3] x) => (float[N,2] y) <{_M}> {{ y = MatMul(x, m) }}"),
    Silent(
        "1 or 3, since it broadcasts",
        "g (float[N] x) => (float[3] y) <float[3] k = {1,2,3}> { y = Add(x, k) }",
    ),
    Silent("a multiple of 2", "g (float[N] x) => (float[A] y, float[B] z) { y, z = Split<axis = 0>(x) }"),
    Silent(
        "two dimensions that must be equal",
        "g (float[N,K] x, float[K2,2] z) => (float[N,2] y) { y = MatMul(x, z) }",
    ),
    Silent(
        "in a branch that may not run",
        f"""g (float[2,K] x, bool c) => (float[2,A] y) <{_M}> {{
            y = If(c)<then_branch = p () => (float[2,2] u) {{ u = MatMul(x, m) }},
                      else_branch = q () => (float[2,K] v) {{ v = Neg(x) }}> }}""",
    ),
    Silent(
        "a Reshape is covered by RSH008",
        "g (float[N,2] x) => (float[6] y) <int64[1] s = {6}> { y = Reshape(x, s) }",
    ),
    Silent("unused", f"g (float[N,K] x) => (float[N,K] y) <{_M}> {{ u = MatMul(x, m)  y = Neg(x) }}"),
]
