"""GRA003: wrong declared types."""

from __future__ import annotations

from collections.abc import Iterator, Set

import onnx
from onnx import TypeProto, ValueInfoProto

from onnxfix.files.walk import clear_negative
from onnxfix.rule import (
    Context,
    Dim,
    Edit,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Safety,
    Scope,
    SetValueInfo,
    Severity,
    Silent,
    Value,
    dtypes,
    rule,
)
from onnxfix_rules.gra._common import contradicts, differs


@rule("GRA003", per="scope", safety=Safety.EXACT, hazards=[70])
def wrong_declared_type(scope: Scope, model: Model) -> Iterator[Match]:
    """A declared element type, rank or dimension contradicts what the graph computes.

    ## Why it matters
    TensorRT uses its own inference and gives no warning (measured with TensorRT-RTX 1.7.1: a wrong output type, output
    shape or value_info is accepted silently). Other tools trust the file: ONNX Runtime refuses to load a wrong element
    type and warns about every wrong shape, graph rewriters fold shapes by it, and a caller allocates an output buffer
    by the declared shape. Wrong declarations come from tools that change a graph and keep its value_info.

    - **error**: a graph output whose declared element type is wrong.
    - **info**: a graph output whose only wrong size is -1.
    - **warning**: everything else.

    ## Fix
    Only what is proven wrong is corrected: the element type, single dimensions, or the whole shape if the rank is
    wrong. Exact: value_info takes no part in the computation. Only contradictions count; another name for a symbolic
    dimension, or a size that may be right, is not changed. Graph outputs are the model's interface: they are reported
    and not changed, except for -1, which some exporters write for an unknown size. ONNX Runtime and TensorRT take it as
    that, and onnx.checker for a size, which contradicts what it infers as soon as a fix makes a shape constant: it
    becomes an unknown size.

    ## References
    - ONNX, "Static tensor shapes": https://onnx.ai/onnx/repo-docs/IR.html
    """
    infos: dict[str, list[ValueInfoProto]] = {}
    for info in getattr(scope.proto, "value_info", ()):
        infos.setdefault(info.name, []).append(info)
    for name, entries in infos.items():
        value = scope.values.get(name)
        if value is None:
            continue
        wrong = next((info for info in entries if contradicts(info.type, value, model, negative=True)), None)
        if wrong is not None:
            yield Match(
                f"declared {_text(wrong.type)}, but it is {_known(value, model)}",
                value=value,
                fix=Fix("correct the declared type", _correction(scope, entries, value, model)),
            )
    if scope is model.main:
        yield from _outputs(scope, model, infos.keys())


def _outputs(scope: Scope, model: Model, inner: Set[str]) -> Iterator[Match]:
    for info in model.proto.graph.output:
        value = scope.values.get(info.name)
        if value is None or value.is_input or not contradicts(info.type, value, model, negative=True):
            continue
        elem = model.shapes.elem_type(value)
        severity = Severity.WARNING
        if elem is not None and elem != info.type.tensor_type.elem_type:
            severity = Severity.ERROR
        opened, fix = clear_negative(info), None
        if opened != info and info.name not in inner and not contradicts(opened.type, value, model):
            severity = Severity.INFO
            fix = Fix("declare the size as unknown", [SetValueInfo(scope, info.name, opened)])
        message = f"this graph output is declared {_text(info.type)}, but it is {_known(value, model)}"
        yield Match(message, value=value, severity=severity, fix=fix)


def _correction(scope: Scope, entries: list[ValueInfoProto], value: Value, model: Model) -> list[Edit]:
    """Edits that replace all value_info entries of the name by one correct entry."""
    info = ValueInfoProto()
    info.CopyFrom(entries[0])
    tensor = info.type.tensor_type
    elem = model.shapes.elem_type(value)
    if elem is not None:
        tensor.elem_type = elem
    shape = model.shapes.shape(value) if tensor.HasField("shape") else None
    if shape is not None and len(shape) != len(tensor.shape.dim):
        tensor.ClearField("shape")
        for dim in shape:
            _write(tensor.shape.dim.add(), dim, model)
        tensor.shape.SetInParent()  # a scalar has a shape without dimensions
    elif shape is not None:
        for claim, dim in zip(tensor.shape.dim, shape, strict=True):
            if differs(claim, dim):
                _write(claim, dim, model)
    edits: list[Edit] = [SetValueInfo(scope, info.name, info)]
    return edits if len(entries) == 1 else [SetValueInfo(scope, info.name, None), *edits]


def _write(target: onnx.TensorShapeProto.Dimension, dim: Dim, model: Model) -> None:
    """Write the dimension as far as ONNX can express it: a size, or a symbol that a graph input declares."""
    target.ClearField("dim_value")
    if dim.value is not None:
        target.dim_value = dim.value
        return
    name = str(dim)
    place = model.shapes.symbols.get(name)
    declared = [i.type for i in model.proto.graph.input if place is not None and i.name == place[0]]
    # A sparse tensor may have the symbol too.
    dims = [dim.dim_param for one in declared for dim in one.tensor_type.shape.dim]
    if place is not None and name in dims[place[1] : place[1] + 1]:
        target.dim_param = name


def _text(declared: TypeProto) -> str:
    tensor = declared.tensor_type
    name = dtypes.name_of(tensor.elem_type) if tensor.elem_type else "a tensor"
    if not tensor.HasField("shape"):
        return name
    dims = (str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim)
    return f"{name}[{','.join(dims)}]"


def _known(value: Value, model: Model) -> str:
    elem, shape = model.shapes.elem_type(value), model.shapes.shape(value)
    name = "a tensor" if elem is None else dtypes.name_of(elem)
    return name if shape is None else f"{name}[{','.join(str(dim) for dim in shape)}]"


_MAIN: dict[Context, str] = {
    "branch": "no output of the main graph",
    "function": "the call's output has the type that the body gives it",
}


def _abs(a: str, x: str = "N,3", y: str = "N,3", elem: str = "float") -> str:
    return f"g (float[{x}] x) => (float[{y}] y) <{elem}[{a}] a> {{ a = Neg(x)  y = Abs(a) }}"


wrong_declared_type.examples = [
    Fixed(
        "wrong element type", before=_abs("N", x="N", y="N", elem="float16"), after=_abs("N", x="N", y="N")
    ),
    Fixed("wrong dimension", before=_abs("N,4"), after=_abs("N,3")),
    Fixed("wrong rank", before=_abs("3"), after=_abs("N,3")),
    Fixed(
        "graph output: -1 for a size that the graph determines",
        before="g (float[N,3] x) => (float[N,-1] y) { y = Neg(x) }",
        after="g (float[N,3] x) => (float[N,?] y) { y = Neg(x) }",
        differs=_MAIN,
    ),
    Fixed("an inner -1", before=_abs("-1,-1"), after=_abs("-1,3")),
    Flagged(
        "graph output: -1, and a wrong size",
        "g (float[2,3] x) => (float[-1,4] y) { y = Neg(x) }",
        differs=_MAIN,
    ),
    Flagged("graph output: wrong shape", "g (float[N,3] x) => (float[N,4] y) { y = Neg(x) }", differs=_MAIN),
    Flagged(
        "graph output: wrong element type", "g (float[N] x) => (float16[N] y) { y = Neg(x) }", differs=_MAIN
    ),
    Silent("correct", _abs("N,3")),
    Silent(
        "other names for the same dimension do not contradict it",
        "g (float[N,3] x) => (float[A,B] y) <float[M,K] a, float[P,3] b> { a = Neg(x)  b = Exp(a)  y = Abs(b) }",
    ),
    Silent("-1 for a dynamic size", "g (float[N] x) => (float[-1] y) { y = Neg(x) }"),
    Silent("N may be 3", _abs("3", x="N", y="3")),
    Silent(
        "unknown result of a custom operator",
        """<ir_version: 9, opset_import: ["" : 18, "d" : 1]> g (float[N] x) => (float[N] y) <float16[7] a>
            { a = d.Unknown(x)  y = d.Other(a) }""",
        runs=False,
    ),
    Silent(
        "an entry for a name that does not exist",
        "g (float[N] x) => (float[N] y) <float16[7] ghost> { y = Neg(x) }",
    ),
    Silent(
        "pads with auto_pad (OPS016): ONNX's shape inference counts the pads, ONNX Runtime does not",
        """g (float[1,1,5,5] x) => (float[1,1,A,B] y) <float[1,1,5,5] p> {
            p = AveragePool<kernel_shape = [3,3], auto_pad = "VALID", pads = [1,1,1,1]>(x)  y = Ceil(p) }""",
    ),
    Silent(
        "a last pooling window in the padding (OPS075), which ONNX's shape inference before opset 22 counts",
        """g (float[1,2,3,3] x) => (float[1,2,A,B] y) <float[1,2,3,3] p> { p = AveragePool<kernel_shape = [2,2],
            strides = [2,2], pads = [1,1,1,1], count_include_pad = 1, ceil_mode = 1>(x)  y = Neg(p) }""",
    ),
]
