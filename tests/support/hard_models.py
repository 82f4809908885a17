"""Models that are hard on files, on shape inference or on verification: broken, endless, large or random ones."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto

from support.models import external, of_opset
from support.peer_models import f32, fill, ramp, unshaped_output

text_model = of_opset(17, 8)


def opset6_axis_broadcast() -> onnx.ModelProto:
    """Entry 7: before opset 7 an operand is aligned by ``axis``. Nothing at hand runs it."""
    return text_model(
        """g (float[2,3,3] x) => (float[2,3,3] y) {
      dead = Neg(x)  b = Constant<value = float[3] {1, 20, 300}>()  y = Add<broadcast=1, axis=1>(x, b)
    }""",
        opset=6,
        ir_version=3,
    )


def random_output() -> onnx.ModelProto:
    """Entry 16: an output that differs from run to run, so that models cannot be compared by it."""
    return text_model("""g (float[N] x) => (float[4] y, float[N] z) {
      y = RandomNormal<shape = [4]>()  d = Cast<to=11>(x)  z = Cast<to=1>(d)
    }""")


def endless_einsum() -> onnx.ModelProto:
    """Entry 36: two ellipses in one term; shape inference in C++ never returns."""
    return text_model("""g (float[2,2] x, float[2,2] v) => (float[A,B] y) {
      d = Cast<to=11>(x)  e = Cast<to=1>(d)  y = Einsum<equation = "......ii,...jj->...ij">(e, v)
    }""")


BOMBS = {
    "constant-of-shape": """<int64[1] n = {274877906944}> {
      big = ConstantOfShape(n)  m = ReduceMax<keepdims=0>(big)  y = Add(x, m) }""",
    "computed-size": """<int64[1] n = {524288}> {
      k = Mul(n, n)  big = ConstantOfShape(k)  m = ReduceMax<keepdims=0>(big)  y = Add(x, m) }""",
    "expand": """<int64[2] n = {524288, 524288}, float[1] c = {1}> {
      big = Expand(c, n)  m = ReduceMax<keepdims=0>(big)  y = Add(x, m) }""",
    "range": """<int64 a = {0}, int64 n = {274877906944}, int64 d = {1}> {
      big = Range(a, n, d)  i = ReduceMax<keepdims=0>(big)  m = Cast<to=1>(i)  y = Add(x, m) }""",
    "tile": """<int64[1] n = {274877906944}, float[1] c = {1}> {
      big = Tile(c, n)  m = ReduceMax<keepdims=0>(big)  y = Add(x, m) }""",
    "32-gigabytes": """<int64[1] n = {8589934592}> {
      big = ConstantOfShape(n)  m = ReduceMax<keepdims=0>(big)  y = Add(x, m) }""",
    "dead": """<int64[1] n = {274877906944}> {
      big = ConstantOfShape(n)  m = ReduceMax<keepdims=0>(big)  y = Neg(x) }""",
}


def bomb(word: str) -> onnx.ModelProto:
    """Entry 37: a few hundred bytes that ask for up to 2^38 elements."""
    return text_model("g (float[N] x) => (float[N] y) " + BOMBS[word])


def write_external(folder: Any, name: str = "model.onnx", data: str = "model.onnx.data") -> onnx.ModelProto:
    """Entries 9 and 10: a model with 4 kB of weights and a bias in ``data``, written into ``folder``."""
    model = text_model("""g (float[N,4,32] x) => (float[N,4,32] y) {
      d = Cast<to=11>(x)  e = Cast<to=1>(d)  m = MatMul(e, w)  y = Add(m, b)  dead = Neg(x)
    }""")
    weights, bias = ramp(32, 32, scale=0.011), ramp(32)
    for tensor_name, value, offset in (("w", weights, 0), ("b", bias, weights.nbytes)):
        fill(model, tensor_name, value)
        external(model.graph.initializer[-1], data, offset, value.nbytes)
    (folder / data).write_bytes(weights.tobytes() + bias.tobytes())
    (folder / name).write_bytes(model.SerializeToString())
    return model


BIG_ROWS = 137_500_000


def write_big(folder: Any) -> None:
    """Entry 5: 2.2 GB of weights in ``model.data``, a sparse file of which two rows are really written."""
    model = text_model("""g (float[N] x, int64[N] i) => (float[N,4] y) {
      d = Cast<to=11>(x)  e = Cast<to=1>(d)  k = Constant<value = int64[1] {1}>()  u = Unsqueeze(e, k)
      t = Gather<axis=0>(w, i)  y = Mul(t, u)  dead = Neg(x)
    }""")
    tensor = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[BIG_ROWS, 4])
    external(tensor, "model.data", 0, BIG_ROWS * 16)
    with open(folder / "model.data", "wb") as file:
        file.truncate(BIG_ROWS * 16)
        for row, value in ((3, f32(1, 2, 3, 4)), (BIG_ROWS - 1, f32(-5, 6, -7, 8))):
            file.seek(row * 16)
            file.write(value.tobytes())
    (folder / "model.onnx").write_bytes(model.SerializeToString())


DIFFERENT = {
    "rank": ("y = ReduceSum<keepdims=0>(x)", "y = ReduceSum<keepdims=1>(x)"),
    "leading-one": ("y = Neg(x)", "z = Constant<value = int64[1] {0}>()  n = Neg(x)  y = Unsqueeze(n, z)"),
    "type": ("y = Neg(x)", "n = Neg(x)  y = Cast<to=11>(n)"),
    "nan": ("s = Abs(x)  y = Sqrt(s)", "s = Neg(x)  t = Abs(s)  u = Neg(t)  y = Sqrt(u)"),
    "infinity": (
        "a = Abs(x)  z = Constant<value_float = 0.0>()  y = Div(a, z)",
        "a = Abs(x)  n = Neg(a)  z = Constant<value_float = 0.0>()  y = Div(n, z)",
    ),
    "batch-above-one": ("y = Identity(x)", "y = ReduceMax<axes = [0], keepdims=1>(x)"),
}


def different(word: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Entry 32: two models that do not do the same. The output's shape is declared by neither."""
    models: list[onnx.ModelProto] = []
    for body in DIFFERENT[word]:
        model = text_model("g (float[N] x) => (float[M] y) { " + body + " }")
        unshaped_output(model)
        model.graph.output[0].type.tensor_type.elem_type = (
            TensorProto.FLOAT if word != "type" or len(models) == 0 else TensorProto.DOUBLE
        )
        models.append(model)
    return models[0], models[1]


def steep_slopes() -> onnx.ModelProto:
    """Entry 11: a right fix (the Cast chain) beside operators that the toy rules of the tests break."""
    model = text_model("""g (float[N] x) => (float[N] y, float[M] z) {
      d = Cast<to=11>(x)  e = Cast<to=1>(d)  y = LeakyRelu<alpha = 0.25>(e)  z = ReduceSum<keepdims=0>(e)
    }""")
    model.graph.output[1].type.tensor_type.ClearField("shape")
    return model
