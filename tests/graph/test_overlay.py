"""The overlay: links, scopes, constants, refusals, and bytes that stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, defs, helper, numpy_helper

from onnxfix.errors import ModelError
from onnxfix.files import loading, tensors
from onnxfix.graph.overlay import UnknownAttribute, is_read
from onnxfix.graph.signatures import contradicted
from onnxfix.model import Model
from onnxfix.rewrite.edits import SetAttribute
from onnxfix.rewrite.transaction import commit
from support.models import external, of_opset

proto_of = of_opset(18, domains={"my": 1})


def model_of(text: str) -> Model:
    return Model(proto_of(text))


NESTED = """g (float[N] x, bool c) => (float[N] y) <float[1] w = {2}> {
    a = Mul(x, w)
    y = If (c) <
        then_branch = t () => (float[N] p) {
            p = If (c) <then_branch = tt () => (float[N] q) { q = Add(a, w) },
                        else_branch = te () => (float[N] r) { r = Identity(x) }>
        },
        else_branch = e () => (float[N] s) { s = Neg(a) }>
}"""


def test_captures_count_as_uses() -> None:
    model = model_of(NESTED)
    value = model.main.values["a"]
    assert sorted(use.node.op_type for use in value.uses) == ["Add", "Neg"]
    assert {use.node.op_type for use in model.main.values["w"].uses} == {"Mul", "Add"}


def test_scope_paths_name_the_way() -> None:
    model = model_of(NESTED)
    assert [scope.path for scope in model.scopes] == [
        "",
        "y.then_branch",
        "y.then_branch / p.then_branch",
        "y.then_branch / p.else_branch",
        "y.else_branch",
    ]
    add = next(node for node in model.nodes() if node.op_type == "Add")
    assert add.place == "y.then_branch / p.then_branch / q"


def test_local_function_hides_a_standard_operator() -> None:
    text = """g (float[N] x) => (float[N] y) { y = Relu(x) }
    <opset_import: ["" : 15], domain: ""> Relu (x) => (y) { y = Neg(x) }"""
    model = model_of(text)
    assert not model.main.nodes[0].is_onnx


def test_attribute_reference_is_unknown() -> None:
    text = """g (float[N] x) => (float[N] y) { y = my.cast <to: int = 1> (x) }
    <opset_import: ["" : 18], domain: "my"> cast <to> (x) => (y) { y = Cast <to: int = @to> (x) }"""
    model = model_of(text)
    node = next(node for node in model.nodes() if node.op_type == "Cast")
    with pytest.raises(UnknownAttribute):
        node.attr("to")
    assert node.attr("saturate", 1) == 1


def test_overridable_initializer_is_no_constant() -> None:
    proto = proto_of("g (float[N] x, float[1] w) => (float[N] y) { y = Mul(x, w) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "w"))
    value = Model(proto).main.values["w"]
    assert value.is_input
    assert not value.is_constant
    assert value.constant() is None


@pytest.mark.parametrize(
    ("attribute", "wanted"),
    [
        (helper.make_attribute("value_float", 1.5), np.float32(1.5)),
        (helper.make_attribute("value_floats", [1.5, 2.0]), np.array([1.5, 2.0], np.float32)),
        (helper.make_attribute("value_int", 7), np.int64(7)),
        (helper.make_attribute("value_ints", [7]), np.array([7], np.int64)),
    ],
)
def test_constant_node_types(attribute: onnx.AttributeProto, wanted: np.ndarray) -> None:
    node = onnx.NodeProto(op_type="Constant", output=["c"], attribute=[attribute])
    output = helper.make_tensor_value_info("c", TensorProto.FLOAT, None)
    value = Model(helper.make_model(helper.make_graph([node], "g", [], [output]))).main.values["c"]
    array = value.constant()
    assert array is not None
    assert array.dtype == np.asarray(wanted).dtype
    assert array.shape == np.asarray(wanted).shape
    assert np.array_equal(array, wanted)


def test_constant_respects_its_cap() -> None:
    model = model_of("g (float[N] x) => (float[N] y) <float[3] w = {1, 2, 3}> { y = Add(x, w) }")
    value = model.main.values["w"]
    assert value.constant(max_bytes=11) is None
    assert value.constant(max_bytes=12) is not None
    assert value.constant(max_bytes=11) is None


@pytest.mark.parametrize("kind", ["list", "int4"])
def test_the_first_who_asks_for_a_constant_is_told_what_the_second_one_is(kind: str) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.INT4, dims=[400], raw_data=bytes(200))
    given = {"value_ints": range(400)} if kind == "list" else {"value": tensor}
    node = helper.make_node("Constant", [], ["c"], **given)
    output = helper.make_empty_tensor_value_info("c")
    proto = helper.make_model(helper.make_graph([node], "g", [], [output]))
    size = 400 * 8 if kind == "list" else 400
    for cap in (size - 1, size):
        value = Model(proto).main.values["c"]
        assert [value.constant(cap) is not None for _ in range(2)] == [cap == size] * 2


REFUSED = {
    "cycle": ("g (float[N] x) => (float[N] y) { a = Add(x, b) b = Neg(a) y = Neg(b) }", "cycle"),
    "dangling": ("g (float[N] x) => (float[N] y) { y = Add(x, nowhere) }", "nowhere"),
    "twice": ("g (float[N] x) => (float[N] y) { y = Neg(x) y = Abs(x) }", "defined twice"),
    "input twice": ("g (float[N] x) => (float[N] y) { x = Neg(x) y = Neg(x) }", "defined twice"),
    "output": ("g (float[N] x) => (float[N] z) { y = Neg(x) }", "'z'"),
}


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=REFUSED)
def test_senseless_names_are_refused(text: str, words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        model_of(text)
    assert "\n" not in str(caught.value)


def test_names_of_training_and_quantization_are_pinned() -> None:
    proto = proto_of("g (float[N] x) => (float[N] y) <float[1] s = {1}, float[1] t = {1}> "
                               "{ a = Neg(x) b = Abs(a) y = Mul(b, t) }")  # fmt: skip
    annotation = proto.graph.quantization_annotation.add(tensor_name="a")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    info = proto.training_info.add()
    info.update_binding.add(key="t", value="new_t")
    model = Model(proto)
    assert [name for name, value in model.main.values.items() if value.pinned] == ["s", "t", "a"]
    assert not model.main.values["a"].replaceable
    assert model.main.values["b"].replaceable


@pytest.mark.parametrize(
    "location", ["../w.bin", "sub/../../w.bin", "/etc/hostname", "missing.bin", "", "C:\\w.bin"]
)
def test_external_data_outside_is_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(64))
    write_external(folder / "m.onnx", location)
    with pytest.raises(ModelError, match="w"):
        loading.load(folder / "m.onnx")


@pytest.mark.parametrize("data", ["real.bin", "../real.bin"])
def test_external_data_behind_a_link_is_refused(tmp_path: Path, data: str) -> None:
    """onnx's own checker refuses links, wherever they lead."""
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / data).write_bytes(bytes(64))
    (folder / "w.bin").symlink_to(folder / data)
    write_external(folder / "m.onnx", "w.bin")
    with pytest.raises(ModelError, match=r"behind a symbolic link, 'w\.bin'"):
        loading.load(folder / "m.onnx")


def test_external_data_that_is_too_short_is_refused(tmp_path: Path) -> None:
    write_external(tmp_path / "m.onnx", "w.bin")
    (tmp_path / "w.bin").write_bytes(bytes(15))
    with pytest.raises(ModelError, match="too short"):
        loading.load(tmp_path / "m.onnx")


def test_external_data_is_read_only_for_small_constants(tmp_path: Path) -> None:
    write_external(tmp_path / "m.onnx", "w.bin")
    (tmp_path / "w.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    loaded = loading.load(tmp_path / "m.onnx")
    value = Model(loaded.proto, loaded.base_dir).main.values["w"]
    assert value.constant(max_bytes=15) is None
    assert value.constant().tolist() == [0, 1, 2, 3]
    assert not loaded.proto.graph.initializer[0].raw_data


def write_external(path: Path, location: str) -> None:
    proto = proto_of("g (float[4] x) => (float[4] y) { y = Add(x, w) }")
    external(proto.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[4]), location)
    path.write_bytes(proto.SerializeToString())


@pytest.mark.parametrize(
    ("name", "dims", "wanted"),
    [("FLOAT", [2, 3], 24), ("INT4", [3], 2), ("UINT4", [4], 2), ("BFLOAT16", [2], 4), ("FLOAT", [0, 9], 0),
     ("FLOAT8E4M3FN", [5], 5), ("COMPLEX128", [], 16), ("FLOAT4E2M1", [5], 3)],
)  # fmt: skip
def test_nbytes(name: str, dims: list[int], wanted: int) -> None:
    assert tensors.nbytes(TensorProto(data_type=TensorProto.DataType.Value(name), dims=dims)) == wanted


def test_constants_of_all_forms_are_read_and_one_is_edited() -> None:
    model = Model(
        proto_of("""<ir_version: 9, opset_import: ["" : 18]> g (int64[2] x) => (int64[2] y) {
            a = Constant<value = int64[2] {1, 2}>()  b = Constant<value = int64[2] {1, 2}>()
            c = Constant<value = int64[2] {1, 3}>()  d = Constant<value_ints = [1, 2]>()  e = Constant<value_int = 1>()
            f = Constant<value = string[1] {"s"}>() y = Sum(x, a, b, c, d, e) }""")
    )
    a, b, c, d, e, f = (model.main.values[name] for name in "abcdef")
    assert a.constant() is not None
    assert b.constant(15) is None
    assert [value.constant().tolist() for value in (a, c, d, e, f)] == [[1, 2], [1, 3], [1, 2], 1, ["s"]]
    with pytest.raises(ValueError, match="read-only"):
        a.constant()[0] = 5
    array = numpy_helper.from_array(np.array([7, 8], np.int64))
    commit(model, [[SetAttribute(b.producer, "value", helper.make_attribute("value", array))]])
    assert (a.constant().tolist(), b.constant().tolist()) == ([1, 2], [7, 8])


def test_what_an_annotation_names_is_read() -> None:
    proto = proto_of("""<ir_version: 9, opset_import: ["" : 18]> g (float[N] x) => (float[N] y) {
        y = Neg(x)  a = Abs(x)  b = Exp(x)  c = Sin(x)  d = Cos(c) }""")
    proto.graph.quantization_annotation.add(tensor_name="a")
    values = Model(proto).main.values
    assert [name for name, value in values.items() if is_read(value)] == ["x", "y", "a", "c"]
    assert not is_read(None)


# -- attributes' types ------------------------------------------------------------------------------------------------


def schemas() -> Iterator[tuple[defs.OpSchema, int]]:
    """ONNX's own operators of every version, each with the newest operator set that it is of."""
    newest: dict[str, int] = {}
    known = [schema for schema in defs.get_all_schemas_with_history() if schema.domain == ""]
    for schema in sorted(known, key=lambda one: -one.since_version):
        yield schema, newest.get(schema.name, defs.onnx_opset_version() + 1) - 1
        newest[schema.name] = schema.since_version


def test_a_type_that_is_not_onnxs_is_told_of_every_attribute_in_every_operator() -> None:
    kinds = sorted(onnx.AttributeProto.AttributeType.values())
    for schema, version in schemas():
        for name, attribute in schema.attributes.items():
            wanted = int(attribute.type.value)  # type: ignore[attr-defined]
            told = {kind: contradicted(schema.name, version, name, kind) for kind in kinds}
            assert told == {kind: None if kind == wanted else wanted for kind in kinds}, (
                schema.name,
                version,
                name,
            )
        assert contradicted(schema.name, version, "of_nobody", 1) is None
    assert contradicted("OfNobody", 17, "axis", 1) is None


@pytest.mark.parametrize(
    ("node", "words"), [("Cast<to = [1]>", "'to'.* as ints; Cast has int"), ("LRN<size = 1.5>", "'size'")]
)
def test_an_attribute_of_another_type_is_refused(node: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        model_of(f"g (float[N] x) => (float[N] y) {{ y = {node}(x) }}")
