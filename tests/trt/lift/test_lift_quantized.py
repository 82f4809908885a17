"""Quantization, read back from TensorRT's layers: what it reads as ONNX does, and what it reads otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from onnxfix.runtime.sandbox import Worker
from support import lifted
from support.ended import ended
from support.models import of_nodes
from support.real_tensorrt import REAL, within

pytestmark = REAL
F, H, B = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
I8, U8, I4, F8, F4 = 3, 2, 22, 17, 23
Q, DQ = "QuantizeLinear", "DequantizeLinear"


def array(values: Any, elem: int = F) -> np.ndarray[Any, Any]:
    return np.asarray(values).astype(helper.tensor_dtype_to_np_dtype(elem))


def model(
    nodes: list[NodeProto],
    weights: dict[str, Any],
    *,
    x: Any = (2, 3, 4),
    elem: int = F,
    to: int = F,
    opset: int = 21,
) -> ModelProto:
    """From ``x`` of ``elem`` to ``y`` of ``to``; opset 0 is ONNX's 21 with TensorRT's own operators."""
    versions: Any = {"opset": opset or 21, "ir_version": 10 if opset < 23 else 11}
    domains = {} if opset else {"trt": 1}
    return of_nodes(nodes, {"x": (elem, x)}, {"y": (to, None)}, weights, domains=domains, **versions)


def pair(scale: Any, zero: Any = None, *, elem: int = F, saturate: int = 1, **attributes: Any) -> ModelProto:
    """A QuantizeLinear and the DequantizeLinear behind it. ``over`` goes to ``model``."""
    over = attributes.pop("over", {})
    weights = {"s": array(scale, elem), **({} if zero is None else {"z": zero})}
    names = list(weights)
    kept = {key: value for key, value in attributes.items() if key != "output_dtype"}
    extra = {} if saturate else {"saturate": 0}
    nodes = [
        helper.make_node(Q, ["x", *names], ["q"], **attributes, **extra),
        helper.make_node(DQ, ["q", *names], ["y"], **kept),
    ]
    return model(nodes, weights, elem=over.pop("elem", elem), to=elem, **over)


def product(
    weight: Any, weights: dict[str, Any], *nodes: NodeProto, x: Any = ("n", 4), **over: Any
) -> ModelProto:
    """``x`` times a dequantized weight."""
    return model(
        [*nodes, helper.make_node("MatMul", ["x", "d"], ["y"])], {"w": weight, **weights}, x=x, **over
    )


def data(of: ModelProto) -> dict[str, Any]:
    """Values on both sides of 0, some at half a scale, some far out."""
    kind = of.graph.input[0].type.tensor_type
    shape = [dim.dim_value or 3 for dim in kind.shape.dim]
    count = int(np.prod(shape))
    values = np.resize([0.25, -0.75, 1.25, 6.0, -7.0, 3.1, 500.0, -900.0, 0.0, 0.011, -2.6, 33.3, 5.5], count)
    return {"x": array(values.reshape(shape), kind.elem_type)}


def node(op: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attributes)


Z8, ZF8 = np.int8(0), array(0, F8)
BLOCK = np.linspace(0.1, 2, 12).reshape(2, 3, 2)
#: Weights of which no two are alike, with the signs of 4 bits.
W4 = array([[-8, -7, -1, 0], [1, 2, 3, 7], [-3, 4, 5, 6], [-6, -5, -4, -2]], I4)
WF4 = array([[0, 0.5, 1, 1.5], [2, 3, 4, 6], [-0.5, -1, -1.5, -2], [-3, -4, -6, 0]], F4)
WF8 = array([[1, -2, 448, 0.5], [3, 4, -5, 6], [0.015625, 7, 8, 9], [-10, 11, 12, 13]], F8)
RESIDUAL = """g (float[N,2,4,4] x) => (float[N,2,4,4] y)
    <float s = {0.05}, float t = {0.125}, float[2] u = {0.01, 0.02}, int8 z = {0}, int8[2] v = {0, 0},
     int8[2,2,1,1] w = {100, -50, 25, -128}, float[2] b = {0.5, -1}> {
    q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
    k = DequantizeLinear<axis = 0>(w, u, v)
    c = Conv(d, k, b)
    p = QuantizeLinear(c, t, z)  e = DequantizeLinear(p, t, z)
    y = Add(e, d)
}"""

ALIKE = {
    "per tensor": pair(0.5, Z8),
    "per tensor, a vector of one scale": pair([0.5], array([0], I8)),
    "per tensor, a scalar zero point": pair([0.5], Z8, axis=2, over={"opset": 13}),
    "per tensor, dynamic batch": pair(0.05, Z8, over={"x": ("n", 4)}),
    "no zero point, by name": pair(0.5, output_dtype=I8),
    "opset 10": pair(0.5, Z8, over={"opset": 10}),
    "along axis 0": pair([0.5, 0.1], array([0, 0], I8), axis=0),
    "along axis 1": pair([0.5, 0.1, 2], array([0, 0, 0], I8)),
    "along the last axis": pair([0.5, 0.1, 2, 1], array([0] * 4, I8), axis=-1),
    "along axis 0 of 1": pair([0.5, 0.1, 2, 1], output_dtype=I8, axis=0, over={"x": (4,)}),
    "blocks along the last axis": pair(BLOCK, output_dtype=I8, axis=2, block_size=2),
    "blocks along axis 1": pair(
        np.linspace(0.1, 2, 16).reshape(2, 2, 4), output_dtype=I8, axis=1, block_size=2, over={"x": (2, 4, 4)}
    ),
    "one block": pair([[0.5], [0.1]], output_dtype=I8, axis=1, block_size=4, over={"x": (2, 4)}),
    "half": pair(0.1, Z8, elem=H),
    "half along an axis": pair([0.5, 0.1, 2], output_dtype=I8, elem=H),
    "half in blocks": pair(BLOCK, output_dtype=I8, axis=2, block_size=2, elem=H),
    "float8": pair(0.1, ZF8, over={"opset": 19}),
    "float8 by name, along an axis": pair([0.5, 0.1, 2], output_dtype=F8),
    "float8 in blocks": pair(BLOCK, output_dtype=F8, axis=2, block_size=2),
    "float8 of half": pair(0.1, ZF8, elem=H),
    "int4": pair(0.5, output_dtype=I4),
    "int4 in blocks": pair(BLOCK, output_dtype=I4, axis=2, block_size=2),
    "int8 weight": product(array(W4, I8), {"s": array(0.1), "z": Z8}, node(DQ, "w s z", "d")),
    "int8 weight along an axis": product(array(W4, I8), {"s": array([1, 2, 3, 4])}, node(DQ, "w s", "d")),
    "int4 weight in blocks": product(
        W4, {"s": array([[1, 2, 3, 4], [5, 6, 7, 8]])}, node(DQ, "w s", "d", axis=0, block_size=2)
    ),
    "int4 weight of an odd size": product(
        W4[:3, :3], {"s": array([1, 2, 3])}, node(DQ, "w s", "d"), x=("n", 3)
    ),
    "float8 weight": product(WF8, {"s": array([1, 2, 3, 4])}, node(DQ, "w s", "d")),
    "int8 weight in half": product(array(W4, I8), {"s": array(0.1, H)}, node(DQ, "w s", "d"), elem=H, to=H),
    "convolution and residual": lifted.text(RESIDUAL),
}
#: ONNX Runtime's CPU provider has no kernel for the original.
REFERENCE = {
    "bfloat16": pair(0.1, Z8, elem=B),
    "bfloat16 along an axis": pair([0.5, 0.1, 2], output_dtype=I8, elem=B),
    "bfloat16 along an axis of 300": pair(
        np.linspace(0.01, 3, 300), np.zeros(300, np.int8), elem=B, over={"x": (2, 300)}
    ),
    "bfloat16 in blocks": pair(BLOCK, output_dtype=I8, axis=2, block_size=2, elem=B),
    "float8 of bfloat16": pair(0.1, ZF8, elem=B),
    "float4": pair(0.5, output_dtype=F4, over={"opset": 23}),
    "float4 in blocks": pair(BLOCK, output_dtype=F4, axis=2, block_size=2, over={"opset": 23}),
    "float4 weight in blocks": product(
        WF4, {"s": array([[1, 2, 3, 4], [5, 6, 7, 8]])}, node(DQ, "w s", "d", axis=0, block_size=2), opset=23
    ),
    "float4 weight, float8 scales that are quantized themselves": product(
        WF4,
        {"t": array([[1, 2, 3, 4], [5, 6, 7, 8]], F8), "g": array(0.25)},
        node(DQ, "t g", "s"),
        node(DQ, "w s", "d", axis=0, block_size=2),
        opset=23,
    ),
    "half by a scale in float": pair(0.1, Z8, over={"elem": H, "opset": 23}),
    "half out of a scale in float": model(
        [node(Q, "x s z", "q"), node(DQ, "q s z", "y", output_dtype=H)],
        {"s": array(0.3), "z": Z8},
        to=H,
        opset=23,
    ),
    "float out of a scale in half": model(
        [node("Cast", "x", "h", to=H), node(Q, "h s z", "q"), node(DQ, "q s z", "y", output_dtype=F)],
        {"s": array(0.3, H), "z": Z8},
        opset=23,
    ),
}


#: Which releases of TensorRT-RTX refuse a model: from the first on, before the second.
REFUSED = {
    "int4 weight of an odd size": ("1.5", "1.7"),  # an assertion of its own: sizeInBits % 8 == 0
    "half out of a scale in float": ("1", "1.5"),
    "float out of a scale in half": ("1", "1.5"),
}


def is_refused(name: str, worker: Worker, folder: Path) -> bool:
    """Whether this release refuses the model; then it is asserted that it does."""
    if name not in REFUSED or not within(*REFUSED[name]):
        return False
    assert lifted.lifted(worker, {**ALIKE, **REFERENCE}[name], folder).status == "refused"
    return True


@pytest.mark.parametrize("name", ALIKE)
def test_read_alike(name: str, worker: Worker, tmp_path: Path) -> None:
    if is_refused(name, worker, tmp_path):
        return
    one, other = lifted.both(worker, ALIKE[name], tmp_path, data(ALIKE[name]))
    assert one[0].dtype == other[0].dtype
    np.testing.assert_array_equal(other[0], one[0])
    assert len(np.unique(one[0])) > 3  # something is left to compare


@pytest.mark.parametrize("name", REFERENCE)
def test_read_alike_where_only_the_reference_runs(name: str, worker: Worker, tmp_path: Path) -> None:
    """ONNX Runtime runs what is written, but for float4."""
    if is_refused(name, worker, tmp_path):
        return
    float4 = "float4" in name
    found = lifted.lifted(worker, REFERENCE[name], tmp_path)
    assert found.lifted, found.reason
    onnx.checker.check_model(found.path, full_check=True)
    assert onnx.load(found.path).opset_import[0].version == (23 if float4 else 21)
    feed = data(REFERENCE[name])
    one = lifted.run(tmp_path / "model.onnx", feed, "reference")[0]
    assert len(np.unique(one.astype(np.float32))) > 4
    for backend in ("reference",) if float4 else ("reference", "ort-cpu"):
        other = lifted.run(Path(found.path), feed, backend)[0]
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(other.astype(np.float32), one.astype(np.float32))


@pytest.mark.parametrize("scale", [0.5, [0.5]], ids=str)
def test_one_scale_is_written_as_a_scalar(scale: Any, worker: Worker, tmp_path: Path) -> None:
    """A vector of one element would be a scale for each channel, of which there are four."""
    found = lifted.lifted(worker, pair(scale, output_dtype=I8, over={"x": (1, 4)}), tmp_path)
    assert found.lifted, found.reason
    scales = [one.input[1] for one in onnx.load(found.path).graph.node if one.op_type in (Q, DQ)]
    assert [
        one.shape for one in ReferenceEvaluator(found.path).run(scales, {"x": np.ones((1, 4), np.float32)})
    ] == [(), ()]


def test_a_scale_of_run_time(worker: Worker, tmp_path: Path) -> None:
    made = lifted.text("""g (float[N,6] x, float[N,2] s) => (float[N,6] y) {
        q = QuantizeLinear<axis = 1, block_size = 3, output_dtype = 3>(x, s)
        y = DequantizeLinear<axis = 1, block_size = 3>(q, s)
    }""")
    feed = {"x": np.linspace(-9, 9, 12, dtype=np.float32).reshape(2, 6), "s": array([[0.5, 0.01], [2, 0.1]])}
    one, other = lifted.both(worker, made, tmp_path, feed)
    np.testing.assert_array_equal(other[0], one[0])


@pytest.mark.parametrize(("scale", "zero"), [("", ""), ("[1]", ""), ("", "[1]")])
def test_a_zero_point_of_run_time_counts(scale: str, zero: str, worker: Worker, tmp_path: Path) -> None:
    """The builder refuses it; its meaning is plain. The parser takes one element for a scalar."""
    made = lifted.text(f"""g (float[N,4] x, int8{zero} z) => (float[N,4] y, int8[N,4] q) <float{scale} s = {{0.5}}> {{
        q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }}""")
    found = lifted.lifted(worker, made, tmp_path)
    assert found.lifted, found.reason
    feed = {"x": array([[1, -90, 2, 90]]), "z": np.array([100] if zero else 100, np.int8)}
    for backend in ("ort-cpu", "reference"):
        y, q = lifted.run(Path(found.path), feed, backend)
        np.testing.assert_array_equal(y, [[1, -90, 2, 13.5]])
        np.testing.assert_array_equal(q, [[102, -80, 104, 127]])
    points = [one.input[2] for one in onnx.load(found.path).graph.node if one.op_type in (Q, DQ)]
    assert [one.shape for one in ReferenceEvaluator(found.path).run(points, feed)] == [(), ()]


# -- what TensorRT reads otherwise (QDQ015; the other misreadings are shown in tests/rules)


def test_saturation_cannot_be_turned_off(worker: Worker, tmp_path: Path) -> None:
    made = pair(1, ZF8, saturate=0, over={"x": (1, 4)})
    one, other = lifted.both(worker, made, tmp_path, {"x": array([[1, 448, 600, -600]])})
    np.testing.assert_array_equal(one[0], array([[1, 448, np.nan, np.nan]]))
    np.testing.assert_array_equal(other[0], array([[1, 448, 448, -448]]))


# -- TensorRT's own operators, which nothing else runs


def own(op: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    return node(op, inputs, output, domain="trt", **attributes)


def test_blocks_whose_size_is_given_are_a_gap(worker: Worker, tmp_path: Path) -> None:
    block: dict[str, Any] = {"block_shape": [2, 2]}
    nodes = [
        own("TRT_BlockQuantize", "x s", "q", output_dtype=F8, **block),
        own("TRT_BlockDequantize", "q s", "y", output_dtype=F, **block),
    ]
    scales = np.ones((2, 4), np.float32)
    found = ended("unlifted", lifted.lifted(worker, model(nodes, {"s": scales}, x=(4, 8), opset=0), tmp_path))
    assert "own operator" in found.reason


def test_scales_that_are_powers_of_two(worker: Worker, tmp_path: Path) -> None:
    """MXFP8: the scale is an exponent, E8M0, given as uint8."""
    exponents = np.array([[127, 130], [120, 126]], np.uint8)
    weight = array(np.linspace(-4, 4, 128).reshape(64, 2), F8)
    made = product(
        weight,
        {"s": exponents},
        own("TRT_MXFP8DequantizeLinear", "w s", "d", axis=0, block_size=32, output_dtype=F),
        x=("n", 64),
        opset=0,
    )
    found = lifted.lifted(worker, made, tmp_path)
    assert found.lifted, found.reason
    wanted = weight.astype(np.float32) * np.repeat(2.0 ** (exponents.astype(np.float32) - 127), 32, axis=0)
    np.testing.assert_array_equal(
        lifted.run(Path(found.path), {"x": np.eye(64, dtype=np.float32)})[0], wanted.astype(np.float32)
    )
    assert found.types["s_output"] == "E8M0"


def test_scales_made_at_run_time_are_a_gap(worker: Worker, tmp_path: Path) -> None:
    nodes = [
        own("TRT_MXFP8DynamicQuantize", "x", "q", axis=-1, block_size=32, output_dtype=F8),
        own("TRT_MXFP8DequantizeLinear", "q s", "y", axis=-1, block_size=32, output_dtype=F),
    ]
    nodes[0].output.append("s")
    found = ended("unlifted", lifted.lifted(worker, model(nodes, {}, x=("n", 64), opset=0), tmp_path))
    assert [gap.kind for gap in found.gaps] == ["DYNAMIC_QUANTIZE"]
    assert "FP8 with E8M0 scales that are not constant" in found.reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            """g (float[N,4] x, uint8 z) => (float[N,4] y) <float s = {0.5}> {
                q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
            "a zero point of UINT8 for INT8",
        ),
        (
            """g (float[N,6] x, float[2,6] s) => (float[N,6] y) {
                q = QuantizeLinear<axis = 0, block_size = 2, output_dtype = 3>(x, s)
                y = DequantizeLinear<axis = 0, block_size = 2>(q, s) }""",
            "blocks along axis 0, whose size is not known",
        ),
        (
            """g (bfloat16[N,4] x, bfloat16 s, int8 z) => (bfloat16[N,4] y) {
                q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
            "BF16 with a zero point that is not a constant of zeros",
        ),
    ],
    ids=["zero point", "blocks", "bfloat16"],
)
def test_forms_that_are_not_read_back(text: str, reason: str, worker: Worker, tmp_path: Path) -> None:
    found = ended("unlifted", lifted.lifted(worker, lifted.text(text), tmp_path))
    assert reason in found.gaps[0].reason
