"""OPS061: the bits of one integer type interpreted as another."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    dtypes,
    rule,
    target_of,
)
from onnxfix_rules.ops._integers import Computer

_BYTES = (TensorProto.UINT8, TensorProto.INT8)


@rule("OPS061", ops=["BitCast"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[43])
def bit_cast_of_bytes(node: Node, model: Model) -> Iterator[Match]:
    """A BitCast between int8 and uint8, or from bool.

    ## Why it matters
    TensorRT does not import it: `Plugin not found, are the plugin name, version, and namespace correct?`, measured with
    TensorRT-RTX 1.7.1.

    ## Fix
    int32 modulo 256, and from bool a Cast: exact. The bits of floats cannot be computed by other operators at
    reasonable cost, so there is no fix for those.

    TensorRT layers: 1 to 12.

    ## References
    - https://onnx.ai/onnx/operators/onnx__BitCast.html
    """
    data, output, to = node.input(0), node.require_output(), node.attr("to", 0)
    elem = None if data is None else model.shapes.elem_type(data)
    target = target_of(model)
    if data is None or elem is None or to not in _BYTES or not target.has_type(to):
        return
    if target.imports("BitCast") is not False or not target.has_type(elem):
        return
    draft = Draft(node)
    if elem in (to, TensorProto.BOOL):
        draft.remove(node)
        draft.add("Cast", [data], output=output.name, to=to)
    elif elem in _BYTES:
        wide = Computer(draft, model, elem).widened(data)
        computer = Computer(draft, model, to)
        computer.finish(computer.wrapped(wide), output)
    else:
        return
    yield Match(
        f"TensorRT has no BitCast; this one, {dtypes.name_of(elem)} to {dtypes.name_of(to)}, can be arithmetic",
        node=node,
        fix=Fix("compute it in int32" if elem in _BYTES else "replace by Cast", draft.edits),
    )


bit_cast_of_bytes.examples = [
    Fixed(
        "int8 as uint8",
        before="g (int8[N] x) => (uint8[N] y) { y = BitCast<to = UINT8>(x) }",
        after="""g (int8[N] x) => (uint8[N] y) <int32 m = {256}> {
            w = Cast<to = INT32>(x)  r = Mod(w, m)  y = Cast<to = UINT8>(r) }""",
        opset=26,
        ir_version=13,
    ),
    Fixed(
        "uint8 as int8",
        before="g (uint8[N] x) => (int8[N] y) { y = BitCast<to = INT8>(x) }",
        after="""g (uint8[N] x) => (int8[N] y) <int32 h = {128}, int32 m = {256}> {
            w = Cast<to = INT32>(x)  a = Add(w, h)  r = Mod(a, m)  s = Sub(r, h)  y = Cast<to = INT8>(s) }""",
        opset=26,
        ir_version=13,
    ),
    Fixed(
        "booleans, which are bytes of 0 and 1",
        before="g (bool[N] x) => (uint8[N] y) { y = BitCast<to = UINT8>(x) }",
        after="g (bool[N] x) => (uint8[N] y) { y = Cast<to = UINT8>(x) }",
        opset=26,
        ir_version=13,
    ),
    Silent(
        "the bits of a float",
        "g (float[N] x) => (int32[N] y) { y = BitCast<to = INT32>(x) }",
        opset=26,
        ir_version=13,
    ),
]
