"""GRA010: nodes whose inputs are constants."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import ModelProto, numpy_helper, parser

from onnxfix.rule import (
    Draft,
    Edit,
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
    name_of,
    rule,
    shared,
    target_of,
)
from onnxfix_rules.gra._common import grouped
from onnxfix_rules.gra._evaluate import FOLDABLE, Array, NotFoldable, evaluate, is_exact
from onnxfix_rules.int_._common import Refused, sums
from onnxfix_rules.int_._known import Known

GROWTH = 512
"""Maximum bytes by which the new constants may exceed those removed with the node."""
BUDGET = 1 << 26
"""Maximum bytes of results computed in one pass over a model."""


class Constants:
    """Values that constants alone determine; ``exact``: whether every backend computes the same bits."""

    def __init__(self, model: Model) -> None:
        self.arrays: dict[Value, Array] = {}
        self.exact: dict[Value, bool] = {}
        self._left = BUDGET
        self._refused = {"NonZero"} if target_of(model).imports("NonZero") is False else set()
        for scope in model.scopes:
            for node in model.orders[scope]:
                if node.op_type in FOLDABLE:
                    self._visit(node)

    def _visit(self, node: Node) -> None:
        if not all(value is None or self._is_known(value) for value in node.inputs):
            return
        if not node.is_onnx or None in node.outputs or self._left < 0:
            return
        inputs = [None if value is None else self._array(value) for value in node.inputs]
        if any(array is None and value is not None for array, value in zip(inputs, node.inputs, strict=True)):
            return
        try:
            results = evaluate(node, inputs)
        except (NotFoldable, UnknownAttribute):
            return
        size = sum(array.nbytes for array in results)
        self._left -= size
        source = copied(node)
        if source is None and node.op_type not in self._refused and size > GROWTH + self._freed(node):
            return
        exact = is_exact(node.op_type) and all(self.exact.get(v, True) for v in node.inputs if v is not None)
        for value, array in zip(node.outputs, results, strict=True):
            assert value is not None
            self.arrays[value], self.exact[value] = array, exact

    def _is_known(self, value: Value) -> bool:
        return value in self.arrays or value.is_constant

    def _array(self, value: Value) -> Array | None:
        found = self.arrays.get(value)
        return value.constant() if found is None else found

    def _freed(self, node: Node) -> int:
        """Bytes of the inputs that no other node reads."""
        freed = 0
        for value in dict.fromkeys(node.inputs):
            if value is not None and _only_for(value, node):
                array = self._array(value)
                freed += 0 if array is None else array.nbytes
        return freed

    def readers(self, value: Value) -> list[Node]:
        """The nodes that read the value and are not folded themselves; empty if it must not be replaced."""
        array, exact = self.arrays[value], self.exact[value]
        divides = any(use.node.op_type in ("Div", "Mod") and use.index == 1 for use in value.uses)
        if divides and array.dtype.kind in "iu" and not array.all():
            return []  # ONNX Runtime refuses to load a constant divisor of 0; a computed one may divide an empty tensor
        nodes = dict.fromkeys(use.node for use in value.uses)
        return [node for node in nodes if not self._is_folded(node, exact)]

    def _is_folded(self, node: Node, exact: bool) -> bool:
        """Whether all outputs of the node are known; with ``exact``, to the last bit."""
        return bool(node.outputs) and all(
            value is None or self.exact.get(value, False) or (not exact and value in self.exact)
            for value in node.outputs
        )


def copied(node: Node) -> Value | None:
    """The constant that an Identity copies: PyTorch's exporter adds one for each further use of a weight."""
    source = node.input(0) if node.op_type == "Identity" else None
    return source if source is not None and source.is_constant else None


def _only_for(value: Value, node: Node) -> bool:
    """Whether only ``node`` needs the value and the constant that it copies."""
    if not value.replaceable or any(use.node is not node for use in value.uses):
        return False
    source = None if value.producer is None else copied(value.producer)
    return source is None or value.producer is None or _only_for(source, value.producer)


@rule("GRA010", per="model", safety=Safety.EXACT, severity=Severity.INFO, hazards=[34])
def constant_subgraph(model: Model) -> Iterator[Match]:
    """Nodes that compute the same constant in every run.

    ## Why it matters
    Exporters leave arithmetic on weights in the graph: a divided scale, a transposed matrix, a mask made of
    comparisons, the copy of a weight that two nodes share. TensorRT's builder folds such nodes itself. Measured with
    TensorRT-RTX 1.7.1: 21 operands of this kind (a GRU's weights, BatchNormalization's and QuantizeLinear's scale,
    Resize's scales, ConvTranspose's kernel, ...) parsed and built unchanged, with more layers in the network. Older
    parsers require weights instead (`inputs.at(0) must be an initializer`, onnx-tensorrt's FAQ), and other rules know a
    value only if it is a constant. INT001 covers integers and sizes, axes among them.

    Information, but an error if a weight has an unsupported type (`Failed to import initializer: w`) and folding
    removes it.

    ## Fix
    The last values that constants alone determine become constants; nodes that computed only them are removed. Exact
    for data movement, integers, comparisons, casts, and float32 and float64 arithmetic of one rounding: IEEE 754
    defines the result. Sqrt, Reciprocal, Pow, Exp, Log, Sin, Cos and Tanh differ in the last bits between backends;
    values that depend on them require `--numeric-fixes`. So do factors of MatMul, Gemm, Conv and the like: ONNX Runtime
    packs constants before it runs, and then adds in another order.

    Not folded: random and quantizing operators, initializers that a caller can override, arithmetic in half precision
    (ONNX Runtime rounds once at the end of a chain) and inexact casts to it, integer division by zero and casts out of
    range, a Where with a -0.0 (ONNX Runtime loses the sign), slices with negative steps, results over 1 MiB, results
    over 512 bytes larger than the constants they replace (but those of a NonZero that the target lacks, as TensorRT-RTX
    does), and values that only a graph or branch output needs.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/faq.md
    - IEEE 754-2019, section 5.4
    """
    constants = Constants(model)
    found = {value: readers for value in constants.arrays if (readers := constants.readers(value))}
    exact = {value: constants.exact[value] and not any(map(sums, found[value])) for value in found}
    if found:
        for value in shared(model, Known).computed():  # INT001 folds integers and sizes
            found.pop(value, None)
    refused = Refused(
        model, lambda node: bool(node.outputs) and all(v in constants.arrays for v in node.outputs)
    )
    for group in grouped({value: [(one, exact[value]) for one in found[value]] for value in found}):
        safety = Safety.EXACT if exact[group[0]] else Safety.NUMERIC
        yield _match(constants.arrays, group, found, safety, refused.why(group))


def _match(
    arrays: dict[Value, Array],
    group: list[Value],
    found: dict[Value, list[Node]],
    safety: Safety,
    refused: str,
) -> Match:
    edits: list[Edit] = []
    drafts: dict[Node, Draft] = {}
    for value in group:
        assert value.producer is not None
        draft = drafts.setdefault(value.producer, Draft(value.producer))
        readers = set(found[value])
        uses = [use for use in value.uses if use.node in readers]
        source = copied(value.producer)
        if source is not None and all(use.node.scope.lookup(source.name) is source for use in uses):
            name = source.name
        else:
            name = draft.constant(arrays[value])
        for use in uses:
            draft.set_input(use.node, use.index, name)
    for draft in drafts.values():
        edits.extend(draft.edits)
    first = group[0]
    assert first.producer is not None
    title = "replace by a constant" if len(group) == 1 else f"replace by {len(group)} constants"
    return Match(
        _message(first, arrays[first], len(group) - 1) + refused,
        node=first.producer,
        fix=Fix(title, edits, safety),
        severity=Severity.ERROR if refused else None,
        reads=tuple(value.producer for value in group if value.producer is not None),
    )


def _message(value: Value, array: Array, more: int) -> str:
    assert value.producer is not None
    elem = name_of(value.scope.model.shapes.elem_type(value) or 0)
    shape = ", ".join(str(size) for size in array.shape)
    text = f"{value.producer.op_type} computes the same {elem}[{shape}] in every run"
    return f"{text}, and the same nodes read {more} more such constants" if more else text


_PAIR = "g (float[N,2] x) => (float[N,2] y)"
_OUT = "g (float[N,2] x) => (float[N,2] y, float[2] z)"
_MASKED = f"""g (float[9,8] x) => (float[K] y) <bool[9,8] m = {{{", ".join("1" * 72)}}}> {{
    n = NonZero(m)  i = Transpose<perm = [1,0]>(n)  y = GatherND(x, i) }}"""
_PLACES = ", ".join(f"{place // 8}, {place % 8}" for place in range(72))


def _shared_weight() -> ModelProto:
    """A weight of 4 KiB that is read both directly and transposed."""
    model = parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[N,32] x) => (float[N,32] y) <float[1] w = {1}> {
        t = Transpose(w)  a = MatMul(x, w)  y = MatMul(a, t) }""")
    weight = np.arange(1024, dtype=np.float32).reshape(32, 32)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    return model


constant_subgraph.examples = [
    Fixed(
        "arithmetic on weights with one rounding each",
        before=f"""{_PAIR} <float[2] w = {{4, 9}}, float[2] v = {{0.5, 3}}> {{
            a = Div(w, v)  b = Sub(a, v)  y = Mul(x, b) }}""",
        after=f"{_PAIR} <float[2] b = {{7.5, 0}}> {{ y = Mul(x, b) }}",
    ),
    Fixed(
        "Transpose, Slice and Split of a weight, in opset 9",
        before="""g (float[N,3] x) => (float[N,3] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}> {
            t = Transpose(w)  s = Slice<starts = [0], ends = [9223372036854775807]>(t)
            a, b = Split<axis = 1>(s)  c = Squeeze<axes = [1]>(b)  d = Unsqueeze<axes = [-2]>(c)  y = Mul(x, d) }""",
        after="g (float[N,3] x) => (float[N,3] y) <float[1,3] d = {4, 5, 6}> { y = Mul(x, d) }",
        opset=9,
        ir_version=8,
    ),
    Fixed(
        "Split, Concat and Cast of a weight, in opset 18",
        before="""g (double[N,3] x) => (double[N,3] y) <float[1,6] w = {1, 2, 3, 4, 5, 6}, float[1,1] v = {8}> {
            a = Flatten(w)  p, q, r = Split<axis = -1, num_outputs = 3>(a)  j = Concat<axis = 1>(p, v)
            d = Cast<to = 11>(j)  b = Abs(r)  e = Cast<to = 11>(b)  u = Mul(x, d)
            m, n = Split<axis = 1, num_outputs = 2>(e)  y = Add(u, n) }""",
        after="""g (double[N,3] x) => (double[N,3] y) <double[1,3] d = {1, 2, 8}, double[1,1] n = {6}> {
            u = Mul(x, d)  y = Add(u, n) }""",
    ),
    Fixed(
        "value_float is a float32",
        before="""g (float[N] x) => (float[N] y) {
            a = Constant<value_float = 0.1>()  b = Constant<value_floats = [75.0]>()  c = Mul(a, b)  y = Add(x, c) }""",
        after="g (float[N] x) => (float[N] y) <float[1] c = {7.5}> { y = Add(x, c) }",
    ),
    Fixed(
        "an Identity of a weight: its readers read the weight",
        before=f"{_PAIR} <float[2] w = {{1, 2}}> {{ i = Identity(w)  a = Mul(x, w)  y = Add(a, i) }}",
        after=f"{_PAIR} <float[2] w = {{1, 2}}> {{ a = Mul(x, w)  y = Add(a, w) }}",
    ),
    Fixed(
        "data movement in half precision",
        before="""g (float16[2,2] x) => (float16[2,2] y) <float16[2,2] w = {f16(6e-08, 1e-07, 2e-07, 2.4e-07)}> {
            t = Transpose(w)  y = Mul(x, t) }""",
        after="g (float16[2,2] x) => (float16[2,2] y) <float16[2,2] t = {1, 3, 2, 4}> { y = Mul(x, t) }",
    ),
    Fixed(
        "a constant factor, with which ONNX Runtime adds in another order",
        before=f"{_PAIR} <float[2,2] w = {{1, 2, 3, 4}}> {{ t = Transpose(w)  y = MatMul(x, t) }}",
        after="g (float[N,2] x) => (float[N,2] y) <float[2,2] t = {1, 3, 2, 4}> { y = MatMul(x, t) }",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "a constant factor requires --numeric-fixes",
        f"{_PAIR} <float[2,2] w = {{1, 2, 3, 4}}> {{ t = Transpose(w)  y = MatMul(x, t) }}",
    ),
    Fixed(
        "a graph output is kept, its other reader gets the constant",
        before=f"{_OUT} <float[2] w = {{1, 2}}> {{ z = Neg(w)  y = Mul(x, z) }}",
        after=f"{_OUT} <float[2] w = {{1, 2}}, float[2] c = {{-1, -2}}> {{ z = Neg(w)  y = Mul(x, c) }}",
    ),
    Fixed(
        "Sqrt and Pow, which differ in the last bit between backends",
        before=f"""{_PAIR} <float[2] w = {{4, 9}}, float[2] v = {{2, 2}}> {{
            r = Sqrt(w)  p = Pow(r, v)  y = Mul(x, p) }}""",
        after=f"{_PAIR} <float[2] p = {{4, 9}}> {{ y = Mul(x, p) }}",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "exact up to the Sqrt",
        before=f"{_PAIR} <float[2] w = {{4, 9}}> {{ a = Neg(w)  b = Neg(a)  r = Sqrt(b)  y = Mul(x, r) }}",
        after=f"{_PAIR} <float[2] b = {{4, 9}}> {{ r = Sqrt(b)  y = Mul(x, r) }}",
    ),
    Fixed(
        "the places of a mask, which are more than 512 bytes, for a TensorRT that lacks NonZero",
        before=_MASKED,
        after=f"""g (float[9,8] x) => (float[K] y) <int64[72,2] i = {{{_PLACES}}}> {{
            y = GatherND(x, i) }}""",
        target="rtx",
    ),
    Silent("places more than 512 bytes larger than their mask, for one that has it", _MASKED),
    Silent(
        "integers, sizes, and floats computed from them, which INT001 folds",
        """g (int64[N] x, float[N] u) => (int64[N] y, float[N] v)
            <int64 s = {6}, int64 t = {7}, float[2] w = {1, 2}> {
            k = Mul(s, t)  y = Add(x, k)  g = Gather(w, k0)  k0 = Sub(t, s)  v = Add(u, g) }""",
    ),
    Silent(
        "an initializer that is a graph input, hence only a default",
        "g (float[N,2] x, float[2] w) => (float[N,2] y) <float[2] w = {1, 2}> { n = Neg(w)  y = Mul(x, n) }",
    ),
    Silent(
        "random numbers differ in each run",
        f"{_PAIR} {{ r = RandomNormal<shape = [2]>()  n = Neg(r)  y = Mul(x, n) }}",
        runs=False,
    ),
    Silent(
        "quantized weights, which the QDQ rules cover",
        f"""{_PAIR} <float[2] w = {{1, 2}}, float s = {{0.5}}, int8 z = {{0}}> {{
            q = QuantizeLinear(w, s, z)  d = DequantizeLinear(q, s, z)  n = Neg(d)  y = Mul(x, n) }}""",
    ),
    Silent(
        "a constant far larger than the node's inputs",
        """g (float[N,40] x) => (float[N,40] y) <float one = {1}, int64[2] n = {50, 40}> {
            e = Expand(one, n)  m = Transpose(e)  z = MatMul(x, m)  y = MatMul(z, e) }""",
    ),
    Silent(
        "a result of 2**38 elements",
        """g (float[N] x) => (float[M] y) <float o = {1}, int64[1] n = {274877906944}> {
            e = Expand(o, n)  y = Add(x, e) }""",
        runs=False,
    ),
    Silent("a weight with another reader, which would be stored twice", lambda: _shared_weight()),
    Silent(
        "arithmetic in half precision, rounded after each operator except by ONNX Runtime",
        """g (float16[N,2] x) => (float16[N,2] y) <float16[2] w = {f16(6e-08, 1e-07)}, float[2] f = {0.1, 0.2}> {
            a = Add(w, w)  b = Cast<to = 10>(f)  c = Mul(a, b)  y = Mul(x, c) }""",
    ),
    Silent(
        "a cast out of the integer type's range, whose result depends on the processor",
        """g (int32[N,2] x) => (int32[N,2] y) <float[2] w = {3000000000, 1}> {
            i = Cast<to = 6>(w)  y = Add(x, i) }""",
    ),
    Silent(
        "a divisor of 0, and a Slice with a negative step",
        """g (float[N,2] x, int32[N,2] i) => (float[N,2] y, int32[N,2] j)
            <float[2] w = {1, 2}, int64[1] b = {1}, int64[1] e = {-3}, int64[1] a = {0}, int64[1] m = {-1},
             int32[2] o = {1, 2}, int32[2] z = {0, 1}> {
            s = Slice(w, b, e, a, m)  y = Mul(x, s)  d = Div(o, z)  j = Add(i, d) }""",
        runs=False,
    ),
    Silent(
        "a -0 in a Where, which ONNX Runtime changes to 0",
        f"""{_PAIR} <float[2] w = {{-0.0, 1}}, float[2] v = {{1, 2}}, bool[2] c = {{1, 0}}> {{
            s = Where(c, w, v)  y = Mul(x, s) }}""",
    ),
    Silent("only for a graph output", "g (float[N] x) => (float[2] y) <float[2] w = {1, 2}> { y = Neg(w) }"),
]
