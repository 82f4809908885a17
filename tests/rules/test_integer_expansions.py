"""OPS051, OPS052, OPS054, OPS061 and OPS062: arithmetic of integers that TensorRT refuses, written in other operators.

Compared with what Python and numpy say of every edge value. What TensorRT says is in test_expansions_of_node_models.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnxfix.model import Model
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety
from onnxfix_rules.ops._integers import range_of
from support import models, ort
from support.repairs import repaired

Array = np.ndarray[Any, Any]
CODES = {f"OPS0{number}" for number in (39, 51, 52, 53, 54, 55, 56, 57, 61, 62, 63, 64, 65, 66, 67)}
RULES = [rule for rule in registry().rules if rule.code in CODES]
INTEGERS = {"uint8": np.uint8, "int8": np.int8, "int32": np.int32, "int64": np.int64}


def model(text: str, opset: int = 18, **weights: Array) -> ModelProto:
    """A model from text, with initializers that the text names and does not hold."""
    return models.model(text, opset, 14 if opset > 20 else 9, **weights)


def after(proto: ModelProto, safety: Safety = Safety.NUMERIC, target: str = "rtx") -> ModelProto:
    """The model after these rules' fixes, of which there is at least one."""
    result, run = repaired(RULES, proto, safety=safety, target=target)
    assert run.applied
    onnx.checker.check_model(result)
    return result


def run(proto: ModelProto, **feed: Any) -> list[Any]:
    return ort.run_or_reference(proto, feed)


def edges(kind: str) -> Array:
    """Numbers of a type where something may go wrong."""
    info = np.iinfo(INTEGERS[kind])
    found = {0, 1, 2, 3, 5, 100, info.max, info.max - 1, info.max // 2, info.max // 3}
    if info.min:
        found |= {-1, -2, -7, -100, info.min, info.min + 1, info.min // 2, info.min // 3}
    return np.array(sorted(found), INTEGERS[kind])


def wrap(value: int, kind: str) -> int:
    """Two's complement."""
    info = np.iinfo(INTEGERS[kind])
    return (value - info.min) % (1 << info.bits) + info.min


# ------------------------------------------------------------------------------------------- integers


def shifted(value: int, amount: int, kind: str, left: bool) -> int:
    """As opset 28 says."""
    if not 0 <= amount < np.iinfo(INTEGERS[kind]).bits:
        return -1 if value < 0 and not left else 0
    return wrap(value << amount, kind) if left else value >> amount


@pytest.mark.parametrize("constant", [False, True], ids=["at run time", "constant"])
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
@pytest.mark.parametrize("kind", INTEGERS)
def test_shifts(kind: str, left: bool, constant: bool) -> None:
    x, bits = edges(kind), np.iinfo(INTEGERS[kind]).bits
    last = {"uint8": 255}.get(kind, int(np.iinfo(INTEGERS[kind]).max))
    listed = [*range(bits + 3), last, *([-1, -bits, -last - 1] if kind != "uint8" else [])]
    amounts = np.array([a for a in listed if a <= last], INTEGERS[kind]).reshape(-1, 1)
    shape = f"{kind}[{len(amounts)},{len(x)}]"
    inputs = f"{kind}[N] x" + ("" if constant else f", {kind}[M,1] s")
    made = model(
        f'g ({inputs}) => ({shape} y) {{ y = BitShift<direction = "{"LEFT" if left else "RIGHT"}">(x, s) }}',
        28,
        **({"s": amounts} if constant else {}),
    )
    [got] = run(after(made, Safety.EXACT), x=x, **({} if constant else {"s": amounts}))
    wanted = [[shifted(int(v), int(a), kind, left) for v in x] for a in amounts[:, 0]]
    np.testing.assert_array_equal(got, np.array(wanted, INTEGERS[kind]))


@pytest.mark.parametrize("op", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
@pytest.mark.parametrize("kind", INTEGERS)
def test_bits_of_two_tensors_and_of_constants(kind: str, op: str) -> None:
    x = edges(kind)
    numpy_op = {"BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor}[op]
    made = model(f"g ({kind}[N] x, {kind}[M,1] z) => ({kind}[M,N] y) {{ y = {op}(x, z) }}")
    [got] = run(after(made, Safety.EXACT), x=x, z=x[:, None])
    np.testing.assert_array_equal(got, numpy_op(x, x[:, None]))
    made = model(f"g ({kind}[N] x) => ({kind}[M,N] y) {{ y = {op}(x, m) }}", m=x[:, None])
    np.testing.assert_array_equal(run(after(made, Safety.EXACT), x=x)[0], numpy_op(x, x[:, None]))
    for mask in (*x[::2], *np.array([6, 60, 85, 107], INTEGERS[kind])):
        made = model(f"g ({kind}[N] x) => ({kind}[N] y) {{ y = {op}(m, x) }}", m=mask)
        result = after(made, Safety.EXACT)
        np.testing.assert_array_equal(run(result, x=x)[0], numpy_op(mask, x), err_msg=f"mask {mask}")


class Div(OpRun):  # type: ignore[misc]
    """Of int32, by way of float32: TensorRT 10.6 divides large numbers inexactly."""

    def _run(self, a: Array, b: Array) -> tuple[Array]:
        return ((a.astype(np.float32) / b.astype(np.float32)).astype(np.int64).astype(np.int32),)


class Mod(OpRun):  # type: ignore[misc]
    """As TensorRT imports it: a - b * floor(a / b)."""

    def _run(self, a: Array, b: Array, fmod: int = 0) -> tuple[Array]:
        quotient = np.floor(a.astype(np.float32) / b.astype(np.float32)).astype(np.int64)
        return ((a - b * quotient).astype(np.int32),)


class ReduceSum(OpRun):  # type: ignore[misc]
    """Of int32, in float32."""

    def _run(self, data: Array, axes: Any, keepdims: int, noop_with_empty_axes: int = 0) -> tuple[Array]:
        total = data.astype(np.float32).sum(axis=tuple(axes), keepdims=bool(keepdims))
        return (total.astype(np.int64).astype(np.int32),)


@pytest.mark.parametrize("op", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
def test_bits_of_int32_need_no_exact_quotients_and_sums(op: str) -> None:
    numpy_op = {"BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor}[op]
    low, high = -(1 << 31), (1 << 31) - 1
    x = np.append(np.random.default_rng(0).integers(low, high, 500, np.int32), edges("int32"))
    inexact = [Div, Mod, ReduceSum]
    made = after(model(f"g (int32[N] x, int32[N] z) => (int32[N] y) {{ y = {op}(x, z) }}"), Safety.EXACT)
    [got] = ReferenceEvaluator(made, new_ops=inexact).run(None, {"x": x, "z": x[::-1]})
    np.testing.assert_array_equal(got, numpy_op(x, x[::-1]))
    for mask in (15, 0x7FFFFF, 0xFFFFFF, 0x3FFFFFFF, 0x40000000, 0x7F000000, -16, -65536, 0x12345678):
        text = f"g (int32[N] x) => (int32[N] y) <int32 m = {{{mask}}}> {{ y = {op}(x, m) }}"
        [got] = ReferenceEvaluator(after(model(text), Safety.EXACT), new_ops=inexact).run(None, {"x": x})
        np.testing.assert_array_equal(got, numpy_op(x, np.int32(mask)), err_msg=f"mask {mask}")


@pytest.mark.parametrize("kind", INTEGERS)
def test_bits_the_other_way_round(kind: str) -> None:
    made = model(f"g ({kind}[N] x) => ({kind}[N] y) {{ y = BitwiseNot(x) }}")
    np.testing.assert_array_equal(run(after(made, Safety.EXACT), x=edges(kind))[0], ~edges(kind))


@pytest.mark.parametrize(
    "op",
    ["Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"],
)
def test_all_pairs_of_bytes(op: str) -> None:
    x = np.arange(256, dtype=np.uint8)
    divides = op in ("Div", "Mod")
    z = x[1:, None] if divides else x[:, None]
    out = "bool" if op[:4] in ("Grea", "Less") else "uint8"
    made = model(f"g (uint8[N] x, uint8[M,1] z) => ({out}[M,N] y) {{ y = {op}(x, z) }}")
    names = {"Div": "floor_divide", "GreaterOrEqual": "greater_equal", "LessOrEqual": "less_equal"}
    numpy_op = getattr(np, names.get(op, {"Max": "maximum", "Min": "minimum"}.get(op, op.lower())), None)
    numpy_op = numpy_op or {"Sub": np.subtract, "Mul": np.multiply}[op]
    np.testing.assert_array_equal(run(after(made, Safety.EXACT), x=x, z=z)[0], numpy_op(x, z))


def test_all_pairs_of_signed_bytes() -> None:
    x = np.arange(-128, 128).astype(np.int8)
    z = x[x != 0][:, None]
    made = model("g (int8[N] x, int8[M,1] z) => (int8[M,N] y) { y = Mod(x, z) }")
    np.testing.assert_array_equal(run(after(made, Safety.EXACT), x=x, z=z)[0], np.mod(x, z))
    made = model("g (int8[N] x, int8 a, int8 b) => (int8[N] y) { y = Clip(x, a, b) }")
    result = after(made, Safety.EXACT)
    np.testing.assert_array_equal(
        run(result, x=x, a=np.array(-5, np.int8), b=np.array(9, np.int8))[0], np.clip(x, -5, 9)
    )


class Below(OpRun):  # type: ignore[misc]
    """A Div of floats that is one rounding too small."""

    op_schema, towards = onnx.defs.get_schema("Div", 14), -np.inf

    def _run(self, a: Array, b: Array) -> tuple[Array]:
        return (np.nextafter(a / b, np.float32(self.towards)),)


class Above(Below):
    """One that is too large."""

    towards = np.inf


@pytest.mark.parametrize("division", [Below, Above])
def test_all_quotients_of_signed_bytes_for_a_target_without_int8(division: type[OpRun]) -> None:
    """Whichever way the division of floats is rounded."""
    division.__name__ = "Div"
    x = np.arange(-128, 128).astype(np.int8)
    z = x[x != 0][:, None]
    wide = x.astype(np.int64), z.astype(np.int64)
    wanted = {"Div": np.trunc(wide[0] / wide[1]), "Mod": np.mod(*wide), "Mod<fmod = 1>": np.fmod(*wide)}
    for op, values in wanted.items():
        made = model(f"g (int8[N] x, int8[M,1] z) => (int8[M,N] y) {{ y = {op}(x, z) }}", 21)
        result = after(made, Safety.EXACT, "trt10.6")
        [got] = ReferenceEvaluator(result, new_ops=[division]).run(None, {"x": x, "z": z})
        np.testing.assert_array_equal(got, values.astype(np.int64).astype(np.int8), err_msg=op)


RANGES = {
    "Sub(a, b)": (-255, 255),
    "Add(a, b)": (0, 510),
    "Mul(a, s)": (-255 * 128, 255 * 127),
    "Mod(s, k)": (0, 6),
    "Mod(k, a)": None,
    "Mod<fmod = 1>(s, k)": (-6, 6),
    "Mod<fmod = 1>(a, k)": (0, 6),
    "Mod(s, m)": None,
    "Div(a, k)": (0, 255),
    "Div(s, k)": (-128, 127),
    "Div(s, m)": None,
    "Min(a, k)": (0, 7),
    "Max(s, k)": (7, 127),
    "Where(c, s, k)": (-128, 127),
    "Concat<axis = 0>(a, s)": (-128, 255),
    "Gather(s, c32)": (-128, 127),
    "Neg(a)": None,
    "Mul(w, w)": None,
}


@pytest.mark.parametrize("text", RANGES)
def test_ranges_hold(text: str) -> None:
    """a and b were uint8, s was int8, w is any int32, k is 7 and m is -7."""
    made = model(
        f"""g (uint8[4] a8, uint8[4] b8, int8[4] s8, int32[4] w, bool[4] c) => (int32[N] y)
        <int32 k = {{7}}, int32 m = {{-7}}> {{
        a = Cast<to = 6>(a8)  b = Cast<to = 6>(b8)  s = Cast<to = 6>(s8)  c32 = Cast<to = 6>(c)  y = {text} }}"""
    )
    found = Model(made)
    value = found.main.values["y"]
    whole = (-(2**31), 2**31 - 1)
    assert range_of(value, found) == (RANGES[text] or whole)


def test_what_may_leave_the_type_is_wrapped_around() -> None:
    """ONNX Runtime's Cast wraps too, and TensorRT's need not."""
    for op in ("Add", "Sub", "Mul"):
        made = model(f"g (uint8[N] x, uint8[N] z) => (uint8[N] y) {{ y = {op}(x, z) }}")
        assert [n.op_type for n in after(made).graph.node] == ["Cast", "Cast", op, "Mod", "Cast"]


def test_a_chain_of_bytes_leaves_no_byte_in_the_middle() -> None:
    """Unpack, centre and scale, as weights of four bits are: the bytes stay int32 until they are float."""
    made = model(
        """g (uint8[N] x) => (float[N] y) <uint8 f = {15}, uint8 s = {4}, uint8 k = {8}> {
            h = BitShift<direction = "RIGHT">(x, s)  l = BitwiseAnd(x, f)  a = Max(h, l)  d = Add(a, k)
            y = Cast<to = 1>(d) }"""
    )
    result = after(made, Safety.EXACT)
    kinds = [helper.get_node_attr_value(n, "to") for n in result.graph.node if n.op_type == "Cast"]
    assert TensorProto.UINT8 not in kinds
    x = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(run(result, x=x)[0], (np.maximum(x >> 4, x & 15) + 8).astype(np.float32))
