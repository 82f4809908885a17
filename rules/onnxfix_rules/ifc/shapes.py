"""Shapes of inputs: unknown ones, and dimensions with a single value."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

import onnx
from onnx import ModelProto

from onnxfix.inputs.sizes.demands import Demand, Kind, Term
from onnxfix.inputs.sizes.operators import demanded
from onnxfix.rule import Dim, Flagged, Match, Model, Node, Severity, Silent, is_read, rule
from onnxfix.shapes import dimnames


@rule("IFC001", per="model", severity=Severity.ERROR, hazards=[48])
def input_without_shape(model: Model) -> Iterator[Match]:
    """A graph input has no declared shape, not even a rank.

    ## Why it matters
    TensorRT imports it as a scalar. Measured with TensorRT-RTX 1.7.1: a float input without shape becomes a network
    input of shape `()`, the shapes of all later layers are inferred from that, and the engine builds without an error
    or a warning. It then accepts one number where the model accepts a tensor. A named or unknown dimension is
    different: it is dynamic, and needs an optimization profile. ONNX Runtime's TensorRT provider refuses such a model
    instead: `TensorRT input: X has no shape specified. Please run shape inference`.

    ## Fix
    None: the rank is not known, and a guess would change the model. Declare the shape at export; give dynamic
    dimensions a name.

    ## References
    - https://github.com/microsoft/onnxruntime/issues/10443
    - https://github.com/microsoft/onnxruntime/issues/14849
    """
    for value in model.main.inputs:
        declared = value.declared
        if value.initializer is not None or value.sparse or declared is None:
            continue
        if declared.WhichOneof("value") == "tensor_type" and not declared.tensor_type.HasField("shape"):
            yield Match(f"input {value.name!r} has no shape: TensorRT imports it as a scalar", value=value)


_HEADER = '<ir_version: 9, opset_import: ["" : 18]>\n'


def _without_shape(text: str, name: str) -> Callable[[], ModelProto]:
    """The model without the shape of input ``name``, which the text format cannot express."""

    def build() -> ModelProto:
        model = onnx.parser.parse_model(_HEADER + text)
        for info in model.graph.input:
            if info.name == name:
                info.type.tensor_type.ClearField("shape")
        return model

    return build


_ONE = "g (float[2] x, float[2] z) => (float[2] y) { y = Add(x, z) }"


def _with_size_of_minus_one() -> ModelProto:
    model = onnx.parser.parse_model(_HEADER + "g (float[2] x) => (float[N] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    return model


def _body_without_shapes() -> ModelProto:
    model = onnx.parser.parse_model(
        _HEADER
        + """g (float[2] x, int64 n) => (float[2] y) { y = Loop(n, , x)
        <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {
            more = Constant<value = bool {1}>()  w = Neg(v) }> }"""
    )
    for info in model.graph.node[0].attribute[0].g.input:
        info.type.tensor_type.ClearField("shape")
    return model


input_without_shape.examples = [
    Flagged("one of two inputs", _without_shape(_ONE, "z")),
    Flagged(
        "an unused input", _without_shape("g (float[2] x, float[2] z) => (float[2] y) { y = Neg(x) }", "z")
    ),
    Silent("a scalar has a shape, with no dimensions", "g (float x) => (float y) { y = Neg(x) }"),
    Silent("dynamic dimensions", "g (float[N,M] x) => (float[N,M] y) { y = Neg(x) }"),
    Silent(
        "an input with an initializer, which has a shape",
        _without_shape(
            "g (float[2] x, float[2] z) => (float[2] y) <float[2] z = {1, 2}> { y = Add(x, z) }", "z"
        ),
    ),
    Silent("inputs of a loop body need no shape", lambda: _body_without_shapes(), runs=False),
    Silent(
        "a sequence has no shape",
        "g (seq(float[2]) s, float[2] x) => (float[2] y) { y = Neg(x) }",
        runs=False,
    ),
    Silent("a size of -1 counts as dynamic", lambda: _with_size_of_minus_one()),
]


_DEMANDING = frozenset(
    {
        "BatchNormalization", "Concat", "Conv", "ConvTranspose", "GRU", "Gemm", "InstanceNormalization", "LSTM",
        "LayerNormalization", "MatMul", "RMSNormalization", "RNN", "Split", "Squeeze",
    }
)  # fmt: skip
"""Operators that may require one size. The others with such requirements have rules of their own."""
_OF_CHANNELS = frozenset({"BatchNormalization", "Conv", "ConvTranspose", "InstanceNormalization"})
"""Operators that require a size of the channels only."""


@rule(
    "IFC007",
    per="model",
    severity=Severity.INFO,
    hazards=[40],
    differs={"branch": "about the inputs of the main graph and how it reads them"},
)
def single_valued_dimension(model: Model) -> Iterator[Match]:
    """An input dimension is declared dynamic, but the model accepts only one size of it.

    ## Why it matters
    Exporters configured to make every axis dynamic also name channels and features. An optimization profile then needs
    sizes for them, but TensorRT can build for only one: TensorRT-RTX 1.7.1 was measured to refuse a range for the
    length of a Split (`ISliceLayer has out of bounds access`), and to accept one for the channels of a Conv and the
    inner dimension of a MatMul, where every other size is wrong. TensorRT folds what depends on static sizes only.

    The size is proven from the requirements of operators in the main graph (equal channels, inner dimensions, parts of
    a Split, squeezed axes), not found by trial. RSH008 covers the same for Reshape.

    ## Fix
    None here, since the declaration belongs to the interface: `onnxfix apply MODEL --fix-dim NAME=SIZE` makes the
    dimension static, and proves the result for that size.
    """
    free = _free(model)
    reported: set[str] = set()
    for node in model.main.nodes if free else ():
        if node.op_type not in _DEMANDING or not _is_open(node, model):
            continue
        for about, term in demanded(node):
            name, size = _only(term)
            if name not in free or name in reported or size < 1:
                continue
            reported.add(name)
            demand = Demand(term, node.place, node.op_type, about)
            yield Match(
                f"dimension {name} of input {free[name]} is declared dynamic and can only be {size}: {demand} (apply "
                f"--fix-dim {shlex.quote(f'{name}={size}')} makes it static)",
                node=node,
            )


def _is_open(node: Node, model: Model) -> bool:
    """Whether the node's requirements can matter: an output is used, and its channels are not static."""
    data = node.input(0)
    shape = model.shapes.shape(data) if data is not None and node.op_type in _OF_CHANNELS else None
    known = shape is not None and len(shape) > 1 and shape[1].value is not None
    return not known and any(is_read(one) for one in node.outputs)


def _free(model: Model) -> dict[str, str]:
    """Symbols that do not depend on other symbols, each with the first input that uses it."""
    symbols = model.shapes.symbols
    return {
        name: where[0]
        for name, where in symbols.items()
        if symbols.keys().isdisjoint(set(dimnames.names(name) or ()).difference((name,)))
    }


def _only(term: Term) -> tuple[str, int]:
    """The symbol that a condition limits to one size, and that size; an empty name if there is none."""
    fixed = term.kind is Kind.EXTENDS and term.left.value not in (None, 1)
    open_ends = term.left.value is None and term.right.value is None
    if open_ends or (term.kind is not Kind.EQUAL and not fixed):
        return "", 0
    return _root(term.left - term.right)


def _root(dim: Dim) -> tuple[str, int]:
    """The symbol and the size for which ``dim``, a multiple of one symbol plus a number, is 0."""
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
        "channels of a convolution", f"g (float[N,C,H,W] x) => (float[N,4,H,W] y) <{_W}> {{ y = Conv(x, w) }}"
    ),
    Flagged(
        "inner dimension of a MatMul, unnamed",
        f"g (float[N,?] x) => (float[N,2] y) <{_M}> {{ y = MatMul(x, m) }}",
    ),
    Flagged(
        "inner dimension of a transposed Gemm",
        f"g (float[K,N] x) => (float[N,2] y) <{_M}> {{ y = Gemm<transA = 1>(x, m) }}",
    ),
    Flagged(
        "inner dimension of the form 2 * K + 1",
        f"""g (float[2,K] x, float[2,1] z) => (float[2,2] y) <{_M}> {{
            c = Concat<axis = 1>(x, x, z)  y = MatMul(c, m) }}""",
    ),
    Flagged(
        "explicit sizes of a Split",
        """g (float[N] x) => (float[4] y, float[7] z) <int64[2] s = {4, 7}> {
            y, z = Split<axis = 0>(x, s) }""",
    ),
    Flagged(
        "normalized axis of a LayerNormalization",
        "g (float[N,C] x) => (float[N,C] y) <float[3] s = {1,2,3}> { y = LayerNormalization(x, s) }",
    ),
    Flagged("squeezed axis", "g (float[N,3] x) => (float[3] y) <int64[1] a = {0}> { y = Squeeze(x, a) }"),
    Silent("batch dimension", f"g (float[N,3] x) => (float[N,2] y) <{_M}> {{ y = MatMul(x, m) }}"),
    Silent(
        "1 or 3 by broadcasting", "g (float[N] x) => (float[3] y) <float[3] k = {1,2,3}> { y = Add(x, k) }"
    ),
    Silent("any multiple of 2", "g (float[N] x) => (float[A] y, float[B] z) { y, z = Split<axis = 0>(x) }"),
    Silent(
        "two symbols that must be equal",
        "g (float[N,K] x, float[K2,2] z) => (float[N,2] y) { y = MatMul(x, z) }",
    ),
    Silent(
        "a Reshape, which RSH008 reports",
        "g (float[N,2] x) => (float[6] y) <int64[1] s = {6}> { y = Reshape(x, s) }",
    ),
    Silent("a dead node", f"g (float[N,K] x) => (float[N,K] y) <{_M}> {{ u = MatMul(x, m)  y = Neg(x) }}"),
]
