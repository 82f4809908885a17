"""Casts that change nothing."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, dtypes, rule
from onnxfix_rules.cst import _common as cst


@rule("CST001", ops=cst.CASTS, safety=Safety.EXACT, severity=Severity.INFO, hazards=[32])
def redundant_cast_chain(node: Node, model: Model) -> Iterator[Match]:
    """Two consecutive Casts whose intermediate type changes no value.

    ## Why it matters
    TensorRT 11 and TensorRT-RTX are strongly typed: the Casts in the graph define the precision, and each one is
    imported as a layer. A step through a wider type has no effect on precision but obscures it, and some steps are
    not supported at all:

    - **error**: TensorRT's parser refuses a Cast to int16, uint16, uint32 or uint64 (`Unsupported data type for the
      Cast operator!`) and a uint8 between two nodes (`TensorRT does not support UINT8 types for intermediate
      tensors`), measured with TensorRT-RTX 1.7.1. `bool → uint8 → float` does not parse, `bool → float` does.
    - **warning**: TensorRT computes double as float, so `int32 → double → int64` loses what is above 2**24.
    - **info**: everything else; the builder merges such Casts itself.

    Every Cast between two types that TensorRT has was measured to build, so the direct Cast is never worse.

    ## Fix
    The second Cast reads the original value; the first one is removed if it has no other reader. Exact if the
    intermediate type holds every value of the first type: the integers in its range, for floats also every
    significant bit, every exponent, NaN, the infinities and -0.0. Integers wrap and floats round by their value
    alone, so the last step gives the same result. One restriction: ONNX leaves the cast of an out-of-range float to
    an integer undefined, while integers wrap. If the intermediate type is a float and the last one an integer, the
    last one must hold every value of the first type as well.

    Not covered: strings (formatted differently), and direct Casts between float8, int4 and the like and another type,
    which some backends lack.

    ## References
    - ONNX, operator Cast, on rounding, wrapping and `saturate`: https://onnx.ai/onnx/operators/onnx__Cast.html
    - TensorRT documentation, migration from 10.x to 11.x: weak typing is removed
    - NVIDIA/TensorRT issue 4019: Casts and precision under weak typing
    """
    pair = cst.pair_at(node, model)
    if pair is None or pair.a == pair.c or not cst.ORDINARY.issuperset((pair.a, pair.c)):
        return
    if not cst.same_values(pair.a, pair.b, pair.c) or _goes_back(pair, model):
        return
    draft = Draft(node)
    draft.set_input(node, 0, pair.source)
    a, b, c = (dtypes.name_of(t) for t in (pair.a, pair.b, pair.c))
    yield Match(
        f"Casts {pair.chain}: {b} holds every {a}, so the step changes nothing",
        node=node,
        fix=Fix(f"cast {a} to {c} directly", draft.edits),
        severity=cst.severity_of(pair),
        reads=pair.reads,
    )


def _goes_back(pair: cst.Pair, model: Model) -> bool:
    """Whether a reader casts straight back to the intermediate type without loss.

    CST003 then makes that reader use the intermediate value. Collapsing first would cast it a second time.
    """
    output = pair.node.output(0)
    if output is None or not cst.same_values(pair.b, pair.c, pair.b):
        return False
    readers = [use.node for use in output.uses if use.index == 0 and cst.is_cast(use.node)]
    return any(cst.cast_type(r, model) == pair.b and cst.keeps_values(r, pair.b) for r in readers)


def _casts(a: str, c: str, first: str, second: str) -> str:
    return f"g ({a}[N] x) => ({c}[N] y) {{ a = Cast<{first}>(x)  y = Cast<{second}>(a) }}"


redundant_cast_chain.examples = [
    Fixed(
        "int64 holds every int32",
        before=_casts("int32", "float", "to=INT64", "to=FLOAT"),
        after="g (int32[N] x) => (float[N] y) { y = Cast<to=FLOAT>(x) }",
    ),
    Fixed(
        "TensorRT does not support uint8 between two nodes",
        before=_casts("bool", "float", "to=UINT8", "to=FLOAT"),
        after="g (bool[N] x) => (float[N] y) { y = Cast<to=FLOAT>(x) }",
    ),
    Fixed(
        "float to double preserves NaN, infinities and the sign of zero",
        before=_casts("float", "bool", "to=DOUBLE", "to=BOOL"),
        after="g (float[N] x) => (bool[N] y) { y = Cast<to=BOOL>(x) }",
    ),
    Fixed(
        "bfloat16 is a float with fewer bits",
        before=_casts("bfloat16", "double", "to=FLOAT", "to=DOUBLE"),
        after="g (bfloat16[N] x) => (double[N] y) { y = Cast<to=DOUBLE>(x) }",
    ),
    Fixed(
        "an int16 fits int32, so the path through float is defined",
        before=_casts("int16", "int32", "to=FLOAT", "to=INT32"),
        after="g (int16[N] x) => (int32[N] y) { y = Cast<to=INT32>(x) }",
    ),
    Fixed(
        "a long chain collapses to one Cast",
        before="g (uint8[N] x) => (double[N] y) "
        "{ a = Cast<to=4>(x)  b = Cast<to=6>(a)  c = Cast<to=7>(b)  d = Cast<to=1>(c)  y = Cast<to=11>(d) }",
        # int64 to float rounds in general, but what started as a uint8 does not.
        after="g (uint8[N] x) => (double[N] y) { y = Cast<to=DOUBLE>(x) }",
    ),
    Fixed(
        "the first Cast stays for another reader",
        before="g (int32[N] x) => (float[N] y, int64[N] z) { a = Cast<to=7>(x)  y = Cast<to=1>(a)  z = Neg(a) }",
        after="g (int32[N] x) => (float[N] y, int64[N] z) { a = Cast<to=INT64>(x)  y = Cast<to=FLOAT>(x)  z = Neg(a) }",
    ),
    Fixed(
        "the first Cast produces a graph output",
        before="g (int32[N] x) => (int64[N] a, float[N] y) { a = Cast<to=INT64>(x)  y = Cast<to=FLOAT>(a) }",
        after="g (int32[N] x) => (int64[N] a, float[N] y) { a = Cast<to=INT64>(x)  y = Cast<to=FLOAT>(x) }",
    ),
    Fixed(
        "in a function the first type is known from a Cast",
        before="""<ir_version: 9, opset_import: ["" : 18, "d" : 1]> g (float[N] x) => (float[N] y) { y = d.f(x) }
            <domain: "d", opset_import: ["" : 18]> f (u) => (w)
            { a = Cast<to=INT32>(u)  b = Cast<to=INT64>(a)  c = Cast<to=DOUBLE>(b)  w = Cast<to=FLOAT>(c) }""",
        # What the function is given is unknown, so the first Cast stays.
        after="""<ir_version: 9, opset_import: ["" : 18, "d" : 1]> g (float[N] x) => (float[N] y) { y = d.f(x) }
            <domain: "d", opset_import: ["" : 18]> f (u) => (w) { a = Cast<to=INT32>(u)  w = Cast<to=FLOAT>(a) }""",
    ),
    Fixed(
        "CastLike",
        before="g (int32[N] x, double[1] t) => (double[N] y, double[1] u) "
        "{ a = Cast<to=INT64>(x)  y = CastLike(a, t)  u = Neg(t) }",
        after="g (int32[N] x, double[1] t) => (double[N] y, double[1] u) { y = CastLike(x, t)  u = Neg(t) }",
    ),
    Silent(
        "a round trip later in the chain is covered by CST003",
        "g (float16[N] x) => (float[N] y, float[N] z) "
        "{ a = Cast<to=FLOAT>(x)  b = Cast<to=DOUBLE>(a)  c = Cast<to=FLOAT>(b)  y = Neg(a)  z = Exp(c) }",
    ),
    Silent(
        "a no-op second Cast is covered by CST002",
        "g (int32[N] x) => (int64[N] y) { a = Cast<to=INT64>(x)  b = Cast<to=INT64>(a)  y = Neg(b) }",
    ),
    Silent(
        "a no-op first Cast is covered by CST002",
        "g (int32[N] x) => (int64[N] y) { a = Cast<to=INT32>(x)  b = Cast<to=INT64>(a)  y = Neg(b) }",
    ),
    Silent("float to half rounds", _casts("float", "double", "to=FLOAT16", "to=DOUBLE")),
    Silent("int64 to int32 wraps", _casts("int64", "float", "to=INT32", "to=FLOAT")),
    Silent(
        "a double that passes through float is rounded twice",
        _casts("double", "float16", "to=FLOAT", "to=FLOAT16"),
    ),
    Silent("int32 above 2**24 rounds in float", _casts("int32", "int64", "to=FLOAT", "to=INT64")),
    Silent("bool keeps only zero or nonzero", _casts("float", "int64", "to=BOOL", "to=INT64")),
    Silent(
        "doubles that do not fit uint8 are undefined, integers wrap",
        _casts("uint32", "uint8", "to=DOUBLE", "to=UINT8"),
    ),
    Silent(
        "NaN has no integer, so results for float types may differ",
        _casts("float16", "int64", "to=FLOAT", "to=INT64"),
    ),
    Silent("number formatting in strings varies", _casts("int32", "string", "to=INT64", "to=STRING")),
    Silent(
        "not every backend casts half to float8 directly",
        _casts("float16", "float8e4m3fn", "to=FLOAT", "to=FLOAT8E4M3FN"),
        opset=19,
    ),
    Silent(
        "the declared type of an internal value may be wrong",
        """<ir_version: 9, opset_import: ["" : 18, "d" : 1]> g (float[N] x) => (float[N] y) <int32[N] u>
            { u = d.Unknown(x)  a = Cast<to=INT64>(u)  y = Cast<to=FLOAT>(a) }""",
        runs=False,
    ),
    Silent(
        "the intermediate type depends on the function's caller",
        """<ir_version: 9, opset_import: ["" : 18, "d" : 1]> g (float[N] x) => (float[N] y) { y = d.f<t=10>(x) }
            <domain: "d", opset_import: ["" : 18]> f <t> (u) => (w)
            { v = Cast<to=FLOAT>(u)  a = Cast<to: int = @t>(v)  w = Cast<to=FLOAT>(a) }""",
    ),
    Fixed(
        "a uint8 graph output stays without other readers",
        before="g (bool[N] x) => (uint8[N] a, float[N] y) { a = Cast<to=UINT8>(x)  y = Cast<to=FLOAT>(a) }",
        after="g (bool[N] x) => (uint8[N] a, float[N] y) { a = Cast<to=UINT8>(x)  y = Cast<to=FLOAT>(x) }",
    ),
]


@rule("CST002", ops=cst.CASTS, safety=Safety.EXACT, severity=Severity.INFO, hazards=[32])
def no_op_cast(node: Node, model: Model) -> Iterator[Match]:
    """A Cast to the type that its input already has.

    ## Why it matters
    Exporters leave them behind (`x.float()` of a float). TensorRT imports each as a layer and folds it during the
    build; until then it breaks pattern matching (a Cast between a MatMul and its bias, between Q and DQ), and a Cast
    from uint8 to uint8 between two nodes is refused (`TensorRT does not support UINT8 types for intermediate
    tensors`, TensorRT-RTX 1.7.1).

    ## Fix
    Its readers use its input instead; if its result is a graph output, the producer of the input gets that name.
    Exact: a Cast to the same type preserves every value. The exceptions are not removed: float8e5m2, whose infinities
    a Cast makes finite unless `saturate` is 0, and float8e8m0, whose smallest value the ONNX reference doubles.

    The input's type must be proven from the graph: declared types of internal values may be wrong. Not reported if
    only an Identity could replace the Cast, as between a graph input and a graph output.

    ## References
    - ONNX, operator Cast: https://onnx.ai/onnx/operators/onnx__Cast.html
    """
    source = node.require(0)
    source_type, target = cst.types_at(node, model)
    if target is None or source_type != target or target not in cst.NUMBERS:
        return
    if not cst.keeps_values(node, target) or not cst.removable(node, source):
        return
    draft = Draft(node)
    draft.bypass(node, source)
    name = dtypes.name_of(target)
    yield Match(
        f"{node.op_type} of {name} to {name} does nothing", node=node, fix=Fix("remove it", draft.edits)
    )


no_op_cast.examples = [
    Fixed(
        "float to float",
        before="g (float[N] x) => (float[N] y) { a = Cast<to=FLOAT>(x)  y = Neg(a) }",
        after="g (float[N] x) => (float[N] y) { y = Neg(x) }",
    ),
    Fixed(
        "the result is a graph output: the producer gets its name",
        before="g (float[N] x) => (float[N] y) { a = Neg(x)  b = Abs(a)  y = Cast<to=FLOAT>(b) }",
        after="g (float[N] x) => (float[N] y) { a = Neg(x)  y = Abs(a) }",
    ),
    Fixed(
        "the same Cast twice",
        before="g (float[N] x) => (float16[N] y) { a = Cast<to=10>(x)  b = Cast<to=10>(a)  y = Cast<to=10>(b) }",
        after="g (float[N] x) => (float16[N] y) { y = Cast<to=FLOAT16>(x) }",
    ),
    Fixed(
        "CastLike to the same type",
        before="g (float[N] x, float[1] t) => (float[N] y) { a = CastLike(x, t)  y = Neg(a) }",
        after="g (float[N] x, float[1] t) => (float[N] y) { y = Neg(x) }",
    ),
    Fixed(
        "a constant of that type",
        before="g (float[N,2] x) => (float[N,2] y) <float[2] c = {1, 2}> { a = Cast<to=FLOAT>(c)  y = Add(x, a) }",
        after="g (float[N,2] x) => (float[N,2] y) <float[2] c = {1, 2}> { y = Add(x, c) }",
    ),
    Fixed(
        "the output of Shape is always int64",
        before="g (float[N] x) => (float[M] y) { s = Shape(x)  a = Cast<to=INT64>(s)  y = Reshape(x, a) }",
        after="g (float[N] x) => (float[M] y) { s = Shape(x)  y = Reshape(x, s) }",
    ),
    Fixed(
        "float8e5m2 without saturation keeps infinities",
        before=_casts("float8e5m2", "float", "to=FLOAT8E5M2, saturate=0", "to=FLOAT"),
        after="g (float8e5m2[N] x) => (float[N] y) { y = Cast<to=FLOAT>(x) }",
        opset=19,
    ),
    Silent(
        "a Cast to float8e5m2 that saturates makes infinities finite",
        _casts("float8e5m2", "float", "to=FLOAT8E5M2", "to=FLOAT"),
        opset=19,
    ),
    Silent(
        "float8e8m0 does not keep 2**-127",
        "g (float8e8m0[N] x) => (float[N] y) { a = Cast<to=FLOAT8E8M0>(x)  y = Cast<to=FLOAT>(a) }",
        opset=24,
    ),
    Silent(
        "between a graph input and a graph output only an Identity is possible",
        "g (float[N] x) => (float[N] y) { y = Cast<to=FLOAT>(x) }",
    ),
    Silent(
        "both ends are graph outputs",
        "g (float[N] x) => (float[N] a, float[N] y) { a = Neg(x)  y = Cast<to=FLOAT>(a) }",
    ),
    Silent(
        "a branch returns the captured value under its own name",
        """g (float[2] x, bool k) => (float[2] y) { a = Neg(x)
            y = If(k)<then_branch = t () => (float[2] p) { p = Cast<to=FLOAT>(a) },
                      else_branch = e () => (float[2] q) { q = Abs(a) }> }""",
    ),
    Silent("a different type", "g (float[N] x) => (float16[N] y) { a = Cast<to=FLOAT16>(x)  y = Neg(a) }"),
    Silent(
        "the declared type of an internal value may be wrong",
        """<ir_version: 9, opset_import: ["" : 18, "d" : 1]> g (float[N] x) => (float[N] y) <float[N] u>
            { u = d.Unknown(x)  a = Cast<to=FLOAT>(u)  y = Neg(a) }""",
        runs=False,
    ),
    Silent(
        "the type depends on the function's caller",
        """<ir_version: 9, opset_import: ["" : 18, "d" : 1]>
            g (float[N] x) => (float16[N] y) { y = d.f<t=10>(x) }
            <domain: "d", opset_import: ["" : 18]> f <t> (u) => (w)
            { v = Cast<to=FLOAT>(u)  a = Cast<to: int = @t>(v)  w = Neg(a) }""",
    ),
]
