"""QDQ018: float8 and uint8 constants stored in 32-bit `int32_data`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfix.files import lazy, tensors
from onnxfix.rule import (
    AddInitializer,
    Draft,
    Edit,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    ReplaceUses,
    Safety,
    Scope,
    Severity,
    Silent,
    Value,
    name_of,
    rule,
    target_of,
)

_KINDS = (TensorProto.FLOAT8E4M3FN, TensorProto.UINT8)
"""The one-byte types that TensorRT imports but misreads from `int32_data`; int8 and bool are read correctly."""
_LIMIT = 256 << 20
"""Largest constant that is stored again, in bytes."""


@rule("QDQ018", per="scope", safety=Safety.EXACT, severity=Severity.ERROR, hazards=[22])
def bytes_in_int32_data(scope: Scope, model: Model) -> Iterator[Match]:
    """A float8e4m3fn or uint8 constant stored in ONNX's 32-bit `int32_data`.

    ## Why it matters
    ONNX allows this for types of up to 16 bits, and `onnx.helper.make_tensor` does it by default. TensorRT's parser
    uses the raw bytes of the 32-bit words as the values: 1, 2, 3, 4 become 1, 0, 0, 0, and three quarters of the
    constant are ignored, without an error or a warning. Measured with TensorRT-RTX 1.7.1, by the constants of the
    imported network, in graphs, branches and local functions alike. float16, bfloat16, int8, int4, float4 and bool
    are imported correctly; other float8 types are refused however they are stored (QDQ015).

    A single value, or one followed by zeros only, is correct by chance.

    ## Fix
    The same tensor as bytes in `raw_data`. Exact. No fix for an initializer that is also a graph input or output, and
    above 256 MiB.

    ## References
    - https://github.com/onnx/onnx/blob/main/onnx/onnx.proto (`TensorProto.int32_data`)
    """
    for tensor in getattr(scope.proto, "initializer", ()):
        value = scope.values.get(tensor.name)
        if value is not None and value.initializer is not None and _misread(tensor) and _read(value):
            yield Match(
                _message(tensor.name, tensor, model), value=value, fix=_initializer(value, tensor, model)
            )
    for node in scope.nodes:
        value = node.output(0)
        if node.op_type != "Constant" or not node.is_onnx or value is None:
            continue
        if (model.shapes.elem_type(value) or _KINDS[0]) not in _KINDS:
            continue
        held = next(
            (one.t for one in node.proto.attribute if one.name == "value" and one.HasField("t")), None
        )
        if held is not None and _misread(held) and _read(value):
            yield Match(_message(value.name, held, model), node=node, fix=_constant(node, held))


def _message(name: str, tensor: TensorProto, model: Model) -> str:
    kind, count = name_of(tensor.data_type), tensors.element_count(tensor.dims)
    return (
        f"{name!r} is stored in 32-bit words; {target_of(model).title} uses their first {count} bytes as "
        f"the {count} values of {kind}"
    )


def _read(value: Value) -> bool:
    return value.use_count > 0 or not value.replaceable


def _misread(tensor: TensorProto) -> bool:
    """Whether the bytes of the words differ from the values, the low byte of each."""
    if tensor.data_type not in _KINDS or tensors.is_external(tensor):
        return False
    where = lazy.range_of(tensor)  # of a payload that is still in the file
    if not tensor.int32_data if where is None else lazy.PAYLOADS[where.field] != "int32_data":
        return False
    tensor = lazy.with_payload(tensor)
    words = np.array(tensor.int32_data, dtype="<i4")
    if tensor.HasField("raw_data") or len(words) != tensors.element_count(tensor.dims):
        return False
    return not np.array_equal(words.view(np.uint8)[: len(words)], words.astype(np.uint8))


def _in_raw(tensor: TensorProto, name: str) -> TensorProto | None:
    """The same values as bytes; None if there are too many."""
    array = tensors.to_array(tensor, None, _LIMIT)
    return None if array is None else numpy_helper.from_array(array, name)


def _initializer(value: Value, tensor: TensorProto, model: Model) -> Fix | None:
    reader = next((use.node for use in value.uses), None)
    if reader is None or not value.replaceable or value.is_input or model.ir_version < 4:
        return None
    made = _in_raw(tensor, Draft(reader).name("bytes"))
    if made is None:
        return None
    edits: list[Edit] = [AddInitializer(value.scope, made), ReplaceUses(value, made.name)]
    return Fix(f"store {value.name!r} in bytes", edits)


def _constant(node: Node, tensor: TensorProto) -> Fix | None:
    made = _in_raw(tensor, tensor.name)
    if made is None:
        return None
    draft = Draft(node)
    draft.set_attr(node, "value", made)
    return Fix(f"store {node.first_output!r} in bytes", draft.edits)


_FLOAT8 = """g (float[N,2] x) => (float[N,2] y) <float8e4m3fn[2,2] w = {56, 64, 72, 48}, float s = {1}> {
    d = DequantizeLinear(w, s)  y = MatMul(x, d) }"""
_UINT8 = (
    """g (float[4] x) => (float[4] y) <uint8[4] w = {1, 2, 3, 4}> { c = Cast<to = 1>(w)  y = Add(x, c) }"""
)


def _in_bytes(text: str, opset: int = 19) -> ModelProto:
    """The model of ``text``, whose constants ONNX's text parser stores in words, with ``w`` in raw data."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]>\n{text}')
    for tensor in model.graph.initializer:
        if tensor.name == "w":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), "w"))
    return model


def _made(values: list[float]) -> ModelProto:
    """``_FLOAT8`` with the tensor that ``onnx.helper.make_tensor`` builds from the values."""
    model = _in_bytes(_FLOAT8)
    model.graph.initializer[0].CopyFrom(helper.make_tensor("w", TensorProto.FLOAT8E4M3FN, [2, 2], values))
    return model


bytes_in_int32_data.examples = [
    Fixed("a float8 weight", before=_FLOAT8, after=_FLOAT8, opset=19),
    Fixed(
        "as onnx.helper.make_tensor writes it",
        before=partial(_made, [1.0, 2.0, 4.0, 0.5]),
        after=_FLOAT8,
        opset=19,
    ),
    Fixed("uint8", before=_UINT8, after=_UINT8),
    Fixed(
        "a Constant",
        before="""g (float[4] x) => (float[4] y) {
            w = Constant<value = uint8[4] {1, 2, 3, 4}>()  c = Cast<to = 1>(w)  y = Add(x, c) }""",
        after=_UINT8,
    ),
    Flagged(
        "the constant may be overridden",
        """g (float[4] x, uint8[4] w) => (float[4] y) <uint8[4] w = {1, 2, 3, 4}> {
            c = Cast<to = 1>(w)  y = Add(x, c) }""",
    ),
    Flagged(
        "up to IR version 3 every initializer is a graph input",
        """g (float[4] x, uint8[4] w) => (float[4] y) <uint8[4] w = {1, 2, 3, 4}> {
            c = Cast<to = 1>(w)  y = Add(x, c) }""",
        opset=8,
        ir_version=3,
    ),
    Flagged("an invalid value in a word", _UINT8, opset=8, ir_version=3),
    Flagged(
        "also a graph output",
        """g (float[4] x) => (float[4] y, uint8[4] w) <uint8[4] w = {1, 2, 3, 4}> {
            c = Cast<to = 1>(w)  y = Add(x, c) }""",
    ),
    Silent("float8 in bytes", partial(_in_bytes, _FLOAT8)),
    Silent("uint8 in bytes", partial(_in_bytes, _UINT8, 18)),
    Silent(
        "one value: its byte comes first",
        """g (float[N,2] x) => (float[N,2] y) <float8e4m3fn[2,2] w = {0, 0, 0, 0}, float8e4m3fn z = {0},
            float s = {1}, uint8 k = {3}> {
            d = DequantizeLinear(w, s, z)  m = MatMul(x, d)  c = Cast<to = 1>(k)  y = Add(m, c) }""",
        opset=19,
    ),
    Silent(
        "int8 and bool are imported correctly",
        """g (float[N,2] x) => (float[N,2] y)
            <int8[2,2] w = {1, 2, 3, 4}, float s = {1}, bool[2] b = {1, 0}> {
            d = DequantizeLinear(w, s)  m = MatMul(x, d)  y = Where(b, m, x) }""",
    ),
    Silent("unused", "g (float[4] x) => (float[4] y) <uint8[4] w = {1, 2, 3, 4}> { y = Neg(x) }"),
]
