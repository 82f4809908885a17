"""What benchmarks/fuzzing found, each in its smallest form: it must not come back."""
# Long because: each input that broke something is here in its smallest form.

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fuzzing.judging import BUG
from onnx import AttributeProto, ModelProto, TensorProto, TypeProto

from onnxfix.model import Model
from onnxfix.runtime.sandbox import Worker
from support import models
from support.cli import refused, run, streams
from support.models import write
from support.patience import PATIENCE

pytestmark = pytest.mark.slow

DIMS = ",".join(["N", "4", *("2" for _ in range(70))])
TERA = 1 << 40
HALF, LESS, MORE = TERA // 2, TERA // 2 - 1, TERA + 2
MANY_AXES = ", ".join(map(str, range(65)))
ATTENTION = """g (float[1,1,{queries},2] q, float[1,1,{keys},2] k, float[1,1,{keys},2] v, int64[1] n, bool[1,N] m)
    => (float[1,1,{queries},2] y)"""
KEYS, QUERIES = ATTENTION.format(queries=2, keys=TERA), ATTENTION.format(queries=TERA, keys="N")
FOLDED = """g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {{1, 2, 3, 4}}, float[2] s = {{0.5, 0.25}}> {{
    t = {}  d = DequantizeLinear(t, s)  y = MatMul(x, d) }}"""


def model(text: str, opset: int = 18) -> ModelProto:
    return models.model(text, opset, domains={"com.microsoft": 1} if "com.microsoft" in text else {})


TEXTS: dict[int, dict[str, str]] = {
    5: {
        # OPS024 made a Mul of them, which the guard behind it refused as a bug.
        "integers in an opset that multiplies floats only": """g (int64 x) => (int64 y) {
            y = ReduceSumSquare<keepdims = 0>(x) }"""
    },
    17: {
        # OPS093 counted the elements of a number; ONNX's own operators are refused for that, others are not.
        "attribute of another domain has another type": """g (float[2,3,4] x, float[4,12] w, float[12]
            b) => (float[2,3,4] y) {
            y = com.microsoft.Attention<num_heads = "two", qkv_hidden_sizes = 3>(x, w, b) }""",
        # PRC009 took the size of an axis that is not there.
        "axis of a mean beyond its rank": """g (float16[N,256] x) => (float16[N,1] y) {
            v = ReduceMean<axes = [7]>(x)  y = Neg(v) }""",
        # OPS068 looked at the first factor's type alone.
        "factors of two types": """g (float[2,3] x, uint16[3,4] w) => (float[2,4] y) {
            y = com.microsoft.FusedMatMul(x, w) }""",
        # OPS068 and OPS092 to OPS094 made a number of it.
        "number of an operator of onnx runtime is a list": """g (float[2,3] x, float[3,4] w) => (float[2,4] y)
            { y = com.microsoft.FusedMatMul<alpha = [1.0, 2.0]>(x, w) }""",
        "epsilon of embeddings is a text": """g (int32[N,3] i, int32[N,3] o) => (float[N,3,4] y) <float[3,4]
            w = {1,2,3,4,5,6,7,8,9,1,2,3}, float[4] s = {1,2,3,4}> {
            y = com.microsoft.EmbedLayerNormalization<epsilon = "small">(i, , w, w, , s, s, , o) }""",
        "heads of an attention are a text": """g (float[2,3,4] q, float[2,3,4] k, float[2,3,4]
            v) => (float[2,3,4] y) {
            y = com.microsoft.MultiHeadAttention<num_heads = 2, scale = "half">(q, k, v) }""",
        # PRC009 asked for its size.
        "axis of a mean in half precision beyond its rank": """g (float16 x) => (float16 y) {
            m = ReduceMean<axes = [-1]>(x)  y = Sub(x, m) }""",
    },
    18: {
        # OPS060 put it in place of the call, and was blamed for the body's Neg.
        "body does not take what it is called with": """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (bool[2] x) => (bool[2] y) { y = my.Relu(x) }
            <domain: "my", opset_import: ["" : 18]> Relu (a) => (b) { b = Neg(a) }""",
        # Shape inference made an array of that many dimensions: an internal error for every command.
        "more dimensions than numpy has": f"g (int64[{'1,' * 79}1] x) => (int64[N] y) {{ y = Identity(x) }}",
        # INT003 paired the ends with axes, of which there were fewer.
        "ends of a slice without axes for them": """g (float[N,4] x) => (float[N,4] y) <int64[2] s = {0, 0},
            int64[2] e = {9, 9}, int64[1] a = {1}> { y = Slice(x, s, e, a) }""",
        # CTL020 made a number of an attribute that was not there.
        "sequence without an axis": "g (seq(float[N]) s) => (float[M] y) { y = ConcatFromSequence(s) }",
        # OPS032 did the same; what ONNX does not allow is named now, and no rule is blamed.
        "cast without a type": """g (int64[N] i) => (float[N,2] y) <uint16[3,2] w = {1, 2, 3, 4, 5, 6}> {
            e = Gather(w, i)  y = Cast(e) }""",
        # OPS032 replaced a node that holds a graph, from which its replacement would read.
        "graph as an attribute that the operator does not have": """g (uint8[2,3] x) => (int32[3,2] y) {
            t = Transpose(x) y = Cast<to = 6, then_branch = p () => (int32[3,2] u) { u = Cast<to = 6>(t) }>(t)
            }""",
        # CTL020 made a Concat of both.
        "tensors of a sequence have two types": """g (float[2] x, complex64[3] z) => (float[5] y) {
            e = SequenceEmpty()  a = SequenceInsert(e, x)  b = SequenceInsert(a, z)
            y = ConcatFromSequence<axis = 0>(b) }""",
        # INT002 wrote it into a constant.
        "dimensions whose product no integer holds": """g (float[N,3037000500,3037000500,2] x) => (float[N,K]
            y) <int64[1] m = {-1}, int64[1] z = {0}> { s = Shape(x)  n = Gather(s, z)
            t = Concat<axis = 0>(n, m)  y = Reshape(x, t) }""",
        # QDQ013 made a quantizer of a type that those of opset 18 do not take.
        "cast to float8 before there is one": """g (float16[N] x) => (float8e4m3fn[N] y) {
            y = Cast<to = 17>(x) }""",
        "INT006, 72 dimensions": f"g (int32[{DIMS}] x) => (int32[{DIMS}] y) {{ y = Relu(x) }}",
        "OPS020, 2**40 starts": f"""g (float[N,4] x, int64[K] k, int64[{TERA}] s, int64[{TERA}]
            e) => (float y) {{ r = Reshape(x, k)  t = Slice(r, s, e)  y = ReduceSum<keepdims = 0>(t) }}""",
        "OPS037, 2**31 windows": """g (float[N,2,8,2147483647] x) => (float[N,2,6,6] y) {
            y = MaxPool<kernel_shape = [2, 2], dilations = [2, 2]>(x) }""",
        "QDQ012, 65 axes": FOLDED.format(f"Transpose<perm = [{MANY_AXES}]>(w)"),
        "QDQ012, an axis that is not there": FOLDED.format("Transpose<perm = [1, 2]>(w)"),
        "QDQ012, an axis twice": FOLDED.format("Transpose<perm = [1, 1]>(w)"),
    },
    20: {
        "OPS025, 72 dimensions": f"""g (bool[{DIMS}] x) => (bool[{DIMS}] y) <int64[1] a = {{1}}> {{
            y = ReduceMax(x, a) }}"""
    },
    21: {
        "QDQ008, 2**40 scales in half precision": f"""g (int8[{TERA},4] a, float16[{TERA}] s, int8[{TERA}] z,
            int8[4,4] b, float t, int8 u, float v, int8 w) => (int8[{TERA},4] y) {{
            y = QLinearMatMul(a, s, z, b, t, u, v, w) }}""",
        "QDQ010, a block of 2**40": f"""g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {{1, 2, 3, 4}},
            float[1,2] s = {{0.5, -1}}> {{ d = DequantizeLinear<axis = 0, block_size = {TERA}>(w, s)
            y = MatMul(x, d) }}""",
        "QDQ005, blocks of 2**39": f"""g (int32[{TERA},2] x) => (float[{TERA},2] y) <float[3,2]
            s = {{1, 2, 3, 4, 5, 6}}> {{ y = DequantizeLinear<axis = 0, block_size = {LESS}>(x, s) }}""",
        "QDQ006, blocks of 2**39": f"""g (float[{TERA},2] x) => (float[{TERA},2] y) <float[3,2]
            s = {{1, 2, 3, 4, 5, 6}}, uint16[3,2] z = {{0, 0, 0, 0, 0, 0}}> {{
            q = QuantizeLinear<axis = 0, block_size = {LESS}>(x, s, z)
            y = DequantizeLinear<axis = 0, block_size = {LESS}>(q, s, z) }}""",
        "QDQ017, 2**39 blocks": f"""g (int8[{MORE},2] w, float[3,2] s) => (float[{MORE},2] y) {{
            y = DequantizeLinear<axis = 0, block_size = {HALF}>(w, s) }}""",
        "QDQ017, 2**39 blocks of constant scales": f"""g (int8[{MORE},2] w) => (float[{MORE},2] y) <float[3,2]
            s = {{1, 2, 3, 4, 5, 6}}> {{ y = DequantizeLinear<axis = 0, block_size = {HALF}>(w, s) }}""",
    },
    24: {
        # OPS015 compared them.
        "lengths of an attention are no numbers": """g (float[2,2,2,8] q, float[2,2,3,8] k, bool[2]
            n) => (float[2,2,2,8] y) { y = Attention(q, k, k, , , , n) }""",
        "OPS015, lengths of 2**40 keys": f"{KEYS} {{ y = Attention(q, k, v, , , , n) }}",
        "OPS015, 2**40 queries": f"{QUERIES} {{ y = Attention<is_causal = 1>(q, k, v, , , , n) }}",
        "OPS015, a mask of 2**40 queries": f"{QUERIES} {{ y = Attention(q, k, v, m, , , n) }}",
        "OPS065, 2**40 rows": """g (float[2,5,3] p, float[2,1099511627776,3] u, int64[2] w) => (float[2,5,3]
            y) { y = TensorScatter(p, u, w) }""",
        "OPS065, ranks that differ": """g (float[2,5,3,1,3,1] p, float[2,N,3] u, int64[2] w) => (float[2,5,3]
            y) { y = TensorScatter(p, u, w) }""",
    },
    26: {
        "OPS053, 72 dimensions": f"""g (float[{DIMS}] x) => (float[N,4] y) <int64 a = {{1}}> {{
            y = CumProd(x, a) }}"""
    },
}
"""Models by opset; rules made huge constants of what they declare, none that is valid, or failed."""

DYNAMIC = """g (float[N,2] x) => (float[N,2] y) <uint8[2,2] w = {1, 2, 3, 4}, float t = {0.5}, int8 v = {1}> {
    y = com.microsoft.DynamicQuantizeMatMul(x, w, t, v) }"""
INTEGERS = """g (int8[N,2] x, float s) => (float[N,2] y)
    <int8[2,2] w = {1, -2, 3, 4}, float[2] t = {0.5, 0.25}, int8 z = {3}, int8[2] v = {0, 1}> {
    y = com.microsoft.MatMulIntegerToFloat(x, w, s, t, z, v) }"""
SCATTER = """g (float[4] x, float[2] u) => (float[4] y) <int64[2,1] i = {0, 2}> {
    y = ScatterND<reduction = "mul">(x, i, u) }"""

TYPES: dict[str, tuple[int, str, str, int]] = {
    # OPS039 made a Mul of types that the ScatterND that it replaced does not take either, and was blamed for it.
    "replaced node takes no such type": (18, SCATTER, "u", TensorProto.FLOAT8E4M3FN),
    # OPS054 cast one that opset 18 casts from nothing.
    "operands of a comparison have two types": (
        18,
        "g (uint8[N,3] x, uint8[3] z) => (bool[N,3] y) { y = Greater(x, z) }",
        "z",
        TensorProto.FLOAT4E2M1,
    ),
    "QDQ021, a zero point of doubles": (17, DYNAMIC, "v", TensorProto.DOUBLE),
    "QDQ021, a zero point of 2 bits": (17, DYNAMIC, "v", TensorProto.INT2),
    "QDQ021, a zero point of 4 bits": (17, INTEGERS, "z", TensorProto.INT4),
    "QDQ021, a zero point with another sign": (17, INTEGERS, "v", TensorProto.UINT8),
}
"""Models of which an input or an initializer has another type than the text format can say."""

QUANTIZED = """g (float[N,2] x) => (float[N,2] y) <float[1] r = {0.2}, uint8 z = {128}> {
    q = QuantizeLinear(x, r, z)  y = DequantizeLinear(q, r, z) }"""
SHAPES: dict[str, tuple[str, list[int]]] = {
    # QDQ001 made a zero point like the scale.
    "scale of more dimensions than numpy has": (QUANTIZED, [1] * 80),
    "scale too large for numpy": (QUANTIZED, [2**62]),
    # OPS039 asked for the last one.
    "indices of a scatter have no dimension": (SCATTER.replace("mul", "max"), []),
    # QDQ005 made scales of as many.
    "data of a scale have more dimensions than numpy has": (
        """g (float[N] x) => (float[N] y) <int32[2] b = {1, 2}, float[2] s = {0.5, 0.25}> {
            d = DequantizeLinear<axis = 0>(b, s)  y = Add(x, d) }""",
        [1] * 80,
    ),
}
"""Models of which the first initializer has this shape."""


OWN = """<ir_version: 10, opset_import: ["" : 20, "own" : 1], producer_name: "maker", doc_string: "note">
    g (float[N] x) => (float[N] y) { a = Cast<to = 1>(x)  y = own.Twice(a) }
    <domain: "own", opset_import: ["" : 20]> Twice <factor> (x) => (y) { y = Add(x, x) }"""
UNCALLED = OWN.replace("own.Twice(a)", "Neg(a)").replace("Add(x, x)", "Softmax<axis = 1>(x)")
BRANCHES = """g (bool c, float[N] x) => (float[N] y) { y = If<then_branch = branch () => (float[N] a) { a = Neg(x) },
    else_branch = other () => (float[N] b) { b = Abs(x) }>(c) }"""
POOL = (
    "g (float[1,1,8,8] x) => (float[1,1,4,4] y) { y = MaxPool<dilations = [2, 2], kernel_shape = [3, 3]>(x) }"
)
MEAN = """g (float16[2,8] x) => (float16[2,8] y) <float16 e = {5145}> { q = Mul(x, x)
    v = ReduceMean<axes = [1]>(q)  a = Add(v, e)  s = Sqrt(a)  r = Reciprocal(s)  y = Mul(r, x) }"""

EDITED: dict[str, tuple[ModelProto, Callable[[ModelProto], object]]] = {
    # OPS039 made a list with an entry for each index: 2**40, of a model of 157 bytes.
    "index of a scatter is deeper than the data": (
        model(
            """g (float[4,3] x, float[2,3] u, int64[2,2] i) => (float[4,3] y) {
            y = ScatterND<reduction = "max">(x, i, u) }"""
        ),
        lambda made: setattr(made.graph.input[2].type.tensor_type.shape.dim[1], "dim_value", TERA),
    ),
    # OPS037 took the length of an attribute that decodes to nothing.
    "attribute has no type": (model(POOL), lambda made: made.graph.node[0].attribute[1].ClearField("type")),
    # PRC001 wrote the list again, for which make_node knows no type.
    "mean over an empty list of axes": (
        model(MEAN, 17),
        lambda made: made.graph.node[1].attribute[0].ints.pop(),
    ),
    # Shape inference asked onnx's C++ code for it, which takes 32 bits.
    "version of a function that onnx cannot look up": (
        model(UNCALLED),
        lambda made: setattr(made.functions[0].opset_import[0], "version", -(2**63)),
    ),
    # The contract compared unknown fields as texts of texts, 2**50 characters for 100 bytes.
    "groups in groups": (
        model("g (float[N] x) => (float[N] y) { a = Cast<to = 1>(x)  y = Neg(a) }"),
        lambda made: made.graph.MergeFromString(b"\x3b" * 50 + b"\x3c" * 50),
    ),
    # Shape inference made an array of the declared shape, of no elements, which numpy refuses.
    "empty tensor too large for numpy": (
        model("g (int64[0,1] x) => (int64[N] y) { a = Neg(x)  y = Neg(a) }"),
        lambda made: setattr(made.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 2**62),
    ),
    # GRA020 listed the axes from there on.
    "axis of a broadcast far before the first": (
        model("g (float[2,3] x, float[3] z) => (float[2,3] y) { y = Add<axis = 1, broadcast = 1>(x, z) }", 6),
        lambda made: setattr(made.graph.node[0].attribute[0], "i", -(2**63)),
    ),
}
"""Models with something that the text format cannot say."""

NOT_UTF8: dict[str, tuple[str, bytes, bytes]] = {
    # Its attributes were looked up before its name was.
    "operator": ("g (float[N] x) => (float[N] y) { y = LRN<size = 3>(x) }", b"LRN", b"L\xffN"),
    # Shape inference copied the names of graphs and functions, the contract the texts of the model.
    "branch": (BRANCHES, b"\x12\x06branch", b"\x12\x06br\xffnch"),
    "function": (OWN, b"Twice", b"Tw\xffce"),
    "attribute of a function": (OWN, b"factor", b"f\xffctor"),
    "producer": (OWN, b"maker", b"m\xffker"),
    "note": (OWN, b"note", b"n\xfete"),
}
"""Models of which these bytes are replaced."""


def graph_that_a_function_is_to_set_outside_of_one() -> ModelProto:
    """CTL010 copied a branch that was only named."""
    found = model(
        """g (float[2] x, bool d) => (float[2] y) <bool c = {1}> { y = If(c) <
        then_branch = p () => (float[2] r) { r = If(d) <then_branch = t () => (float[2] u) { u = Neg(x) },
                                                       else_branch = e () => (float[2] v) { v = Abs(x) }> },
        else_branch = q () => (float[2] s) { s = Abs(x) }> }"""
    )
    inner = found.graph.node[0].attribute[0].g.node[0].attribute[0]
    inner.ref_attr_name = "k"
    inner.ClearField("g")
    return found


def version_that_onnx_cannot_look_up() -> ModelProto:
    """Shape inference asked onnx's C++ code for it, which takes 32 bits."""
    text = "g (float[N] x) => (int64[N] y) { y = ai.onnx.ml.Own(x) }"
    return models.model(text, 18, domains={"ai.onnx.ml": 2**40})


def annotation_names_no_utf8() -> ModelProto:
    """The names of one annotation were sorted: texts and bytes."""
    found = model("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    one = found.graph.quantization_annotation.add(tensor_name="x")
    one.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="@@")
    return ModelProto.FromString(found.SerializeToString().replace(b"@@", b"\xff@"))


def empty_zero_point_too_large_for_numpy() -> ModelProto:
    """QDQ003 made a copy of it, as wider integers."""
    found = model(
        """g (float[N] x) => (int8[N] y) <float[2] s = {0.5, 0.25}, int8[2] z = {1, 2}> {
        y = QuantizeLinear<axis = 0>(x, s, z) }"""
    )
    for tensor in found.graph.initializer:
        tensor.dims[:] = [0, 1 << 61]
        tensor.ClearField("int32_data" if tensor.name == "z" else "float_data")
    return found


def symbol_of_a_sparse_tensor() -> ModelProto:
    """GRA003 looked for it."""
    found = model("g (float[2,N] x) => (float[N] y) <float16[N] a> { a = Neg(x)  y = Abs(a) }")
    kind = found.graph.input[0].type
    dense = TypeProto.Tensor.FromString(kind.tensor_type.SerializeToString())
    kind.sparse_tensor_type.MergeFromString(dense.SerializeToString())
    return found


FUNCTIONS: dict[str, Callable[[], ModelProto]] = {
    name: value
    for name, value in list(globals().items())
    if getattr(value, "__annotations__", None) == {"return": "ModelProto"}
}
"""The functions above, by name."""


def survived(*arguments: object) -> tuple[int, str, str]:
    """What a command says that ends as one may: no internal error, no rule to blame."""
    code, out, err = run(*arguments)
    assert 0 <= code <= 3
    assert not BUG.search(out + err), out + err
    return code, out, err


def checked_and_applied(made: ModelProto, folder: Path) -> None:
    path, data = folder / "model.onnx", made.SerializeToString()
    path.write_bytes(data)
    fixes = ("--no-verify", "--unsafe-fixes")
    for command in (("check", path, "-v"), ("apply", path, "-o", folder / "out.onnx", *fixes)):
        code, out, err = survived(*command)
        assert code != 2 or "not ONNX: " in out or len(err.splitlines()) == 1, err
    assert path.read_bytes() == data
    assert {one.name for one in folder.iterdir()} <= {"model.onnx", "out.onnx"}


@pytest.mark.parametrize(
    ("opset", "text"),
    [pytest.param(opset, text, id=name) for opset, some in TEXTS.items() for name, text in some.items()],
)
def test_models_from_text(opset: int, text: str, tmp_path: Path) -> None:
    checked_and_applied(model(text, opset), tmp_path)


@pytest.mark.parametrize(("opset", "text", "name", "kind"), TYPES.values(), ids=TYPES)
def test_other_types(opset: int, text: str, name: str, kind: int, tmp_path: Path) -> None:
    made = model(text, opset)
    for info in made.graph.input:
        if info.name == name:
            info.type.tensor_type.elem_type = kind
    for tensor in made.graph.initializer:
        if tensor.name == name:
            tensor.data_type = kind
    checked_and_applied(made, tmp_path)


@pytest.mark.parametrize(("text", "dims"), SHAPES.values(), ids=SHAPES)
def test_other_shapes(text: str, dims: list[int], tmp_path: Path) -> None:
    made = model(text)
    made.graph.initializer[0].dims[:] = dims
    checked_and_applied(made, tmp_path)


@pytest.mark.parametrize(("made", "edit"), EDITED.values(), ids=EDITED)
def test_edited_models(made: ModelProto, edit: Callable[[ModelProto], object], tmp_path: Path) -> None:
    made = ModelProto.FromString(made.SerializeToString())
    edit(made)
    checked_and_applied(made, tmp_path)


@pytest.mark.parametrize(("text", "before", "after"), NOT_UTF8.values(), ids=NOT_UTF8)
def test_texts_that_are_no_utf8(text: str, before: bytes, after: bytes, tmp_path: Path) -> None:
    data = model(text).SerializeToString()
    assert before in data
    checked_and_applied(ModelProto.FromString(data.replace(before, after)), tmp_path)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_models(name: str, tmp_path: Path) -> None:
    checked_and_applied(FUNCTIONS[name](), tmp_path)


def test_no_matrix_of_a_padded_transform(tmp_path: Path) -> None:
    text = "g (float[1048576,1,1] x, int64 a) => (float[A,B,2] y) <int64 n = {1}> { y = DFT(x, n, a) }"
    path = write(tmp_path / "m.onnx", model(text, 20))
    assert survived("check", path, "--target", "rtx1.7", "--select", "OPS057")[0] == 1


def test_the_difference_of_an_operator_set_that_is_no_utf8(tmp_path: Path) -> None:
    """Its name was joined with texts."""
    found = model("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    seed = write(tmp_path / "seed.onnx", found)
    found.opset_import.add(domain="a@b", version=1)
    (tmp_path / "m.onnx").write_bytes(found.SerializeToString().replace(b"a@b", b"a\xffb"))
    err = refused("diff", tmp_path / "m.onnx", seed)
    assert "is not UTF-8" in err


@pytest.mark.parametrize("kind", ["undefined", "type_proto", "sparse_tensor"])
def test_boxes_show_an_attribute_that_is_no_number(kind: str, tmp_path: Path) -> None:
    """The pictures in a report in HTML made a list of it."""
    found = model("g (float[N] x) => (float[N] y) { a = Cast<to = 1>(x)  y = Neg(a) }")
    found.graph.node[0].attribute.add(name="k", type=AttributeProto.AttributeType.Value(kind.upper()))
    page = tmp_path / "report.html"
    survived(
        "apply", write(tmp_path / "m.onnx", found), "-o", tmp_path / "o.onnx", "--no-verify", "--report", page
    )
    assert f"k = {kind.replace('_', ' ')}" in page.read_text(encoding="utf-8")


def test_reduce_of_a_scan_without_a_number_of_inputs(tmp_path: Path) -> None:
    found = model(
        """g (float[2] s, float[T,2] xs) => (float[2] e) { e = Scan<body = b (float[2] a, float[2] x) => (float[2] c)
        { c = Add(a, x) }>(s, xs) }"""
    )
    path = write(tmp_path / "model.onnx", found)
    survived("reduce", path, "--check", "false {}", "-o", tmp_path / "small", "--time-limit", "20")


def test_diff_shows_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    data = model("g (float[N] x) => (float[N] y) { y = Neg(x) }").SerializeToString()
    (tmp_path / "a.onnx").write_bytes(data)
    (tmp_path / "b.onnx").write_bytes(data.replace(b"\x12\x01N", b"\x12\x01\xf5"))
    survived("diff", tmp_path / "a.onnx", tmp_path / "b.onnx", "-v")


def test_a_view_of_a_cast_to_a_number_that_no_type_has(tmp_path: Path) -> None:
    """The field of a type has 32 bits, an attribute 64."""
    found = model(
        "g (float[N,4] x) => (float[N,4] y) <float[4] w = {1, 2, 3, 4}> { a = Add(x, w)  y = Cast<to = 1>(a) }"
    )
    found.graph.node[1].attribute[0].i = 1 << 62
    (tmp_path / "m.onnx").write_bytes(found.SerializeToString())
    survived("view", tmp_path / "m.onnx", "-o", tmp_path / "p.onnx", "--rule", "BRC001")


def test_diff_in_json_of_an_attribute_whose_name_is_no_utf8(tmp_path: Path) -> None:
    seed = write(tmp_path / "seed.onnx", "g (float[N] x) => (float[N] y) { y = Elu<alpha = 1.0>(x) }")
    (tmp_path / "m.onnx").write_bytes(seed.read_bytes().replace(b"alpha", b"a\xffpha"))
    code, out, err = run("diff", seed, tmp_path / "m.onnx", "--format", "json")
    assert (code, err) == (1, "")
    assert "xffpha" in out


@pytest.mark.parametrize("of_a_node", [False, True])
@pytest.mark.parametrize("form", ["text", "json"])
def test_diff_shows_metadata_that_are_no_utf8(form: str, of_a_node: bool, tmp_path: Path) -> None:
    """JSON has no bytes, and the mark of rules in a node was taken for text."""
    found = model("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    seed = write(tmp_path / "seed.onnx", found)
    (found.graph.node[0] if of_a_node else found).metadata_props.add(key="onnxfix", value="a@b")
    found.graph.node[0].op_type = "Abs"
    path = tmp_path / "m.onnx"
    path.write_bytes(found.SerializeToString().replace(b"a@b", b"a\xffb"))
    code, out, err = run("diff", seed, path, "--format", form)
    assert (code, err) == (1, "")
    assert of_a_node or "xffb" in out
    survived("apply", path, "-o", tmp_path / "o.onnx", "--no-verify")


def test_the_difference_of_texts(tmp_path: Path) -> None:
    """An array of texts has texts for its parts, not arrays."""
    for name, word in (("a", "one"), ("b", "two")):
        write(tmp_path / f"{name}.onnx", model(
            f"""g (float[N] x) => (float[N] y, string[2] s) {{ y = Neg(x)
            s = Constant<value = string[2] {{"{word}", "same"}}>() }}""",
        ))  # fmt: skip
    code, out, err = run("diff", tmp_path / "a.onnx", tmp_path / "b.onnx", "-v")
    assert (code, err) == (1, "")
    assert "one" in out


@pytest.mark.parametrize("name", ["value.npy", "value.npz"])
def test_a_damaged_header_of_an_array_is_one_line(name: str, tmp_path: Path) -> None:
    """Numpy reads the header as Python, whose parser raises errors of its own."""
    (tmp_path / "m.onnx").write_bytes(
        model("g (float[2] x) => (float[2] y) { y = Neg(x) }").SerializeToString()
    )
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,\n".ljust(117) + b"\n"
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)
    if name.endswith("z"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("x.npy", array)
        option = ["--inputs", tmp_path / name]
    else:
        (tmp_path / name).write_bytes(array)
        option = ["--no-verify", "--fix-input", f"x=@{tmp_path / name}"]
    err = refused("apply", tmp_path / "m.onnx", "-o", tmp_path / "o.onnx", *option)
    assert "cannot be read" in err


def test_onnx_runtime_keeps_no_database_and_reports_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    variables = {"HOME": str(home), "XDG_CACHE_HOME": str(home), "XDG_DATA_HOME": str(home)}
    with Worker(variables=variables) as worker:
        done = worker.call("support.sessions:opened", timeout=PATIENCE)
    assert done.value == ["y"], done
    assert list(home.rglob("*")) == []


def test_a_value_fills_no_input_of_any_size(tmp_path: Path) -> None:
    """2 GiB for 26 bytes: `c=true` became a constant of the declared size."""
    path = write(tmp_path / "m.onnx", f"g (bool[{2**31 - 1}] c) => (bool[N] y) {{ y = Not(c) }}")
    code, _, err = run("apply", path, "--no-verify", "--unsafe-fixes", "--fix-input", "c=true")
    assert (code, "would fill 2,147,483,647 elements, which is more than 256 MiB" in err) == (2, True)


def test_places_of_many_nodes_without_names_are_found_at_once(tmp_path: Path) -> None:
    """80 kB of empty nodes took `diff` 35 s: each was looked for among all."""
    first = model("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    second = ModelProto.FromString(first.SerializeToString())
    for _ in range(20000):
        second.graph.node.add(op_type="A")
    graph = Model(second).main
    assert [graph.position(node) for node in graph.nodes] == [*range(20001)]
    graph.nodes = graph.nodes[::-1]
    assert graph.position(graph.nodes[0]) == 0
    began = time.process_time()
    assert [node.at.index for node in graph.nodes[:-1]] == [*range(20000)]
    assert time.process_time() - began < 5  # 0.1 s; 30 s before


@pytest.mark.parametrize("elem", [0, 99, -1])
@pytest.mark.parametrize("given", ["text", "file"])
def test_a_value_for_an_input_of_no_known_type_is_one_line(elem: int, given: str, tmp_path: Path) -> None:
    proto = model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    proto.graph.input[0].type.tensor_type.elem_type = elem
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    np.save(tmp_path / "v.npy", np.ones(2, np.float32))
    value = "x=1" if given == "text" else f"x=@{tmp_path / 'v.npy'}"
    err = refused("apply", tmp_path / "m.onnx", "--no-verify", "--unsafe-fixes", "--fix-input", value)
    assert ("which has no values" if elem else "a value without a type") in err


@pytest.mark.parametrize("option", [["--output-dir", "out"], ["--in-place"]])
def test_external_data_of_no_possible_name_is_one_line(option: list[str], tmp_path: Path) -> None:
    """The files to write are held against all data files first."""
    folder = tmp_path / "models"
    folder.mkdir()
    proto = model("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    models.external(proto.graph.initializer[0], "a\0b")
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    write(folder / "n.onnx", "g (float[2] x) => (float[2] y) { y = Neg(x) }")
    if option[0] == "--output-dir":
        option = [option[0], str(tmp_path / option[1])]
    out, err = streams(2, "apply", folder, "--no-verify", *option)
    assert "internal error" not in out + err
    assert "m.onnx" in out + err
