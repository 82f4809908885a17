"""What became of each ONNX node: the log's list of layers, the inspector's document, and tables of real builds."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from onnxfix.files import loading
from onnxfix.model import Model
from onnxfix.place import Place
from onnxfix.sandbox import Worker
from onnxfix.trt import inspector, messages
from onnxfix.trt.layer_records import (
    Autotuning,
    Candidate,
    EngineLayer,
    ImportedLayer,
    LayerTable,
    LayerTensor,
    NodeLayers,
)
from onnxfix.trt.layers import attempt, differing, imported, layers_by_node, table
from onnxfix.trt.log import BuildLog, MessageLog
from onnxfix.trt.places import Places
from onnxfix.trt.records import TrtBuild
from support.paths import FIXTURES
from support.patience import PATIENCE
from support.real_tensorrt import REAL

LOGS = sorted(Path(__file__).with_name("logs").glob("*.json"))
RECORDED = pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)


def recorded(path: Path, verbosity: str = "DETAILED") -> BuildLog:
    log = BuildLog()
    for text in json.loads(path.read_text(encoding="utf-8"))["messages"][verbosity]:
        log.add(text)
    return log


# --------------------------------------------------------------------------------------------------- the recorded logs


def test_every_release_was_recorded() -> None:
    assert [path.stem.rsplit(".", 2)[0] for path in LOGS] == ["1.4", "1.5", "1.6", "1.7"]


@RECORDED
def test_all_layers_of_a_log_are_read(path: Path) -> None:
    [text] = [
        one for one in json.loads(path.read_text())["messages"]["DETAILED"] if one.startswith("Layers:")
    ]
    layers = recorded(path).layers
    assert layers is not None
    assert len(layers) == text.count("\nName: ")
    tensors = [one for layer in layers for one in (*layer.inputs, *layer.constants, *layer.outputs)]
    assert len(tensors) == text.count("{ Name: ")
    assert sum(len(layer.stamps) for layer in layers) == text.count("[ONNX Layer: ")
    assert {one.dtype for one in tensors} == {"float32", "float16", "bool"}
    assert all(one.layout for one in tensors)


@RECORDED
def test_a_layer_has_its_kernel_types_and_nodes(path: Path) -> None:
    layers = {layer.kind: layer for layer in recorded(path).layers or ()}
    convolution = layers["correlation"]
    assert convolution.name == "conv_myl0_2"
    assert convolution.stamps == ("conv", "relu")
    assert convolution.tactic == ""  # TensorRT-RTX chooses it when the engine is loaded
    assert convolution.inputs[0].dims == (1, 4, 8, 8)
    assert layers["kgen"].tactic.startswith("__myl_")
    stamps = [stamp for layer in recorded(path).layers or () for stamp in layer.stamps]
    assert "sigmoid | t (then_branch) | branch (If)" in stamps
    half = next(layer for layer in recorded(path).layers or () if layer.stamps == ("half",))
    assert (half.inputs[0].dtype, half.outputs[0].dtype) == ("float32", "float16")


@RECORDED
def test_a_log_of_names_has_the_region_and_its_nodes(path: Path) -> None:
    log = recorded(path, "LAYER_NAMES_ONLY")
    assert log.layers is not None
    [layer] = log.layers
    assert (layer.kind, layer.tactic_id) == ("Myelin", "0x0000000000000000")
    assert [(one.name, one.dtype, one.dims) for one in layer.outputs] == [
        ("y", "float32", (1, 8, 64)),
        ("z", "float32", (1, 4, 8, 8)),
    ]
    assert log.regions[layer.name][:3] == ("conv", "relu", "flat")
    assert "minus | e (else_branch) | branch (If)" in log.regions[layer.name]


# ------------------------------------------------------------------------------------------------- the expressions


@pytest.mark.parametrize(
    ("metadata", "stamps"),
    [
        ("", ()),
        ("[ONNX Layer: a]", ("a",)),
        ("[ONNX Layer: a][ONNX Layer: b]", ("a", "b")),
        ("[ONNX Layer: a]\x1e[ONNX Layer: b]\x1f[ONNX Layer: a]", ("a", "b")),
        ("[ONNX Layer: a[0][1]]\x1f[ONNX Layer: b]", ("a[0][1]", "b")),
        ("[ONNX Layer: x | call (G)][Other: y]", ("x | call (G)",)),
        ("[ONNX Layer: a] and more", ("a",)),
    ],
)
def test_stamps(metadata: str, stamps: tuple[str, ...]) -> None:
    assert messages.stamps_in(metadata) == stamps


def test_a_stamp_names_the_nodes_around() -> None:
    stamp = "node_of_t1 | t (then_branch) | node_of_y (If) | body (body) | loop (Loop)"
    assert messages.split_stamp(stamp) == (
        "node_of_t1",
        (("then_branch", "node_of_y"), ("body", "loop")),
    )
    assert messages.split_stamp("inner | call (G)") == ("inner", (("", "call"),))


def test_names_of_a_list_may_look_like_its_syntax() -> None:
    """A tensor whose name has the list's own punctuation."""
    line = (
        "Layers:\nName: a, b], LayerType: kgen, Inputs: [ { Name: x }, { y, Dimensions: [2,-1], Strides: [1,1], "
        "StrideOrder: [1,0], Datatype: BFloat16, Format: (Linear) Row major linear format }], Constants: [], Outputs: "
        "[ { Name: z, Location: Device, Dimensions: [], Format/Datatype: Channel major FP16 format where "
        "channel % 8 == 0 }], ParameterType: Convolution, TacticName: k, TacticValue: 0xAb1, StreamId: 0, Metadata: "
    )
    found = messages.listed_layers(line)
    assert found == (
        EngineLayer(
            "a, b]",
            "kgen",
            "k",
            "0xAb1",
            (LayerTensor("x }, { y", "bfloat16", (2, -1), "(Linear) Row major linear format"),),
            (),
            (LayerTensor("z", "float16", (), "Channel major FP16 format where channel % 8 == 0"),),
        ),
    )


def test_an_older_list_of_names() -> None:
    """Forms that TensorRT 8 and 10 log: tactics in decimal and in hexadecimal, types before brackets."""
    text = (
        "Engine Layer Information:\n"
        "Layer(Reformat): Reformatting CopyNode for Input Tensor 0 to conv1 + relu1, Tactic: 0x3e8, "
        "input[Float(1,3,224,224)] -> Reformatted Input Tensor 0 to conv1 + relu1[Half(1,3,224,224)]\n"
        "Layer(CaskConvolution): conv1 + relu1, Tactic: -2, a[Half(1,3)], b c[Int8(-7,8)] -> d[Half(1,4)]\n"
        "Layer(Constant): w, Tactic: 0,  -> w_out[Float(1,1,256)]"
    )
    reformat, convolution, constant = messages.listed_layers(text) or ()
    assert (reformat.kind, reformat.tactic_id) == ("Reformat", "0x3e8")
    assert reformat.outputs == (
        LayerTensor("Reformatted Input Tensor 0 to conv1 + relu1", "float16", (1, 3, 224, 224)),
    )
    assert convolution.tactic_id == hex(2**64 - 2)
    assert convolution.inputs == (LayerTensor("a", "float16", (1, 3)), LayerTensor("b c", "int8", (-7, 8)))
    assert constant.inputs == ()
    assert constant.outputs[0].dims == (1, 1, 256)
    known = ["conv1", "relu1", "add"]
    assert messages.joined_in("conv1 + relu1", known) == ("conv1", "relu1")
    assert messages.joined_in("PWN(PWN(relu1), add)", known) == ("relu1", "add")
    assert messages.joined_in("conv10", known) == ()


def test_other_messages_are_no_lists() -> None:
    for text in ("Layers: 3", "Local timing cache in use.", "", "Layer(Myelin): a"):
        assert messages.listed_layers(text) is None
        assert messages.region_in(text) is None


def test_a_profile_is_that_of_the_graph() -> None:
    names = ["a_myl0_1", "a [profile 1]_myl1_1", "__myl_Tran_myl1_2", "b [profile 2]", "c"]
    found = messages.of_profiles([EngineLayer(name, "kgen") for name in names])
    assert [layer.profile for layer in found] == [0, 1, 1, 2, 0]


#: From NVIDIA's README of sampleEditableTimingCache (TensorRT 10.8), where no such TensorRT can be run here.
AUTOTUNING = """Autotuning op matMul1(key: 0x1814870c44ff0f8574df6e3dda04cbd7):
Sorted table of all evaluated tactics:
tactic_id, cost(in ms), cost/fastest_cost, prediction_correlation, kernel_name, tactic_hash, tunable_parameter
   3, 0.0112640, 1.00000, 0.50673, sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize32x32x64, 0x665ded9abbf88,
   5, 0.0118784, 1.05455, 0.51157, sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x32x64, 0x393e4ef8ad243,
The selected tactic is (tactic hash, cost(in ms)):0x665ded9abbf88,  0.011264
Writing the best tactic (0x665ded9abbf88) to cache"""
TUNED = Autotuning(
    "matMul1",
    "0x1814870c44ff0f8574df6e3dda04cbd7",
    "0x665ded9abbf88",
    (
        Candidate("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize32x32x64", "0x665ded9abbf88", 0.011264),
        Candidate("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x32x64", "0x393e4ef8ad243", 0.0118784),
    ),
)


@pytest.mark.parametrize(
    "lines", [[AUTOTUNING], AUTOTUNING.split("\n")], ids=["one message", "a message a line"]
)
def test_autotuning_is_read(lines: list[str]) -> None:
    log = BuildLog()
    for text in [*lines, "Timing something else", *lines]:
        log.add(text)
    assert log.autotuning == (TUNED, TUNED)


def test_verbose_messages_are_read_only_where_somebody_wants_them() -> None:
    log = MessageLog()
    log.add("VERBOSE", AUTOTUNING)
    log.detail = BuildLog()
    log.add("INFO", AUTOTUNING)
    assert log.detail.autotuning == ()
    log.add("VERBOSE", AUTOTUNING)
    assert log.detail.autotuning == (TUNED,)


# ---------------------------------------------------------------------------------------------------- the inspector

#: Field names as NVIDIA documents them for TensorRT 10, and for 11 ("Migrating IEngineInspector Usage").
OLD = {
    "Name": "x",
    "Location": "Device",
    "Dimensions": [1, 3],
    "Format/Datatype": "Row major linear FP16 format",
}
NEW = {"Name": "x", "Dimensions": [1, 3], "Datatype": "Half", "Format": "(Linear) Row major linear format"}


@pytest.mark.parametrize("tensor", [OLD, NEW], ids=["TensorRT 10", "TensorRT 11"])
def test_the_inspectors_document_is_read(tensor: dict[str, Any]) -> None:
    layer = {
        "Name": "conv + relu",
        "LayerType": "CaskConvolution",
        "Inputs": [tensor],
        "Outputs": [tensor],
        "TacticName": "sm80_xmma",
        "TacticValue": "0x1f",
        "StreamId": 0,
        "Metadata": "[ONNX Layer: conv]\u001e[ONNX Layer: relu]",
    }
    [found, name] = inspector.layers_of(json.dumps({"Layers": [layer, "only a name"], "Bindings": ["x"]}))
    assert (found.kind, found.tactic, found.tactic_id) == ("CaskConvolution", "sm80_xmma", "0x1f")
    assert found.stamps == ("conv", "relu")
    assert (found.inputs[0].dtype, found.inputs[0].dims) == ("float16", (1, 3))
    assert found.inputs[0].layout.endswith("format")
    assert name == EngineLayer("only a name", "")


@pytest.mark.parametrize("text", ["[]", "{}", '{"Layers": 3}', "nonsense"])
def test_another_document_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        inspector.layers_of(text)


def test_an_engine_that_does_not_load_has_a_reason() -> None:
    class Runtime:
        def __init__(self, log: object) -> None: ...

        def deserialize_cuda_engine(self, engine: bytes) -> None: ...

    found, reason = inspector.layers(SimpleNamespace(Runtime=Runtime), None, b"")
    assert found == ()
    assert "does not load on this machine" in reason


# -------------------------------------------------------------------------------------------------------- the table

SMALL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[4] x, bool c) => (float[4] y, float[4] z) {
  [twin] a = Abs(x)
  [twin] b = Neg(a)
  k = Constant<value_float = 2.0>()
  d = Mul(b, k)
  y = If(c) <then_branch = t () => (float[4] t1) { [twin] t1 = Exp(d) },
             else_branch = e () => (float[4] e1) { [twin] e1 = Sin(d) }>
  [gone] z = Identity(x)
}"""


@pytest.fixture
def places(tmp_path: Path) -> Places:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(SMALL), path)
    return Places(str(path))


def layer(name: str, *stamps: str, reads: str = "", writes: str = "", kind: str = "kgen") -> EngineLayer:
    one = [LayerTensor(n, "float32", (4,), "a b") if n else None for n in (reads, writes)]
    tensors = [(tensor,) if tensor is not None else () for tensor in one]
    return EngineLayer(name, kind, f"k_{name}", "", tensors[0], (), tensors[1], stamps)


def test_each_node_is_in_the_table_once(places: Places) -> None:
    made = [
        ImportedLayer("twin", "twin", "UNARY", ("float32",), ("float32",)),
        ImportedLayer("node_of_d", "d", "CAST", ("float32",), ("float16",)),
        ImportedLayer("node_of_d", "d2", "ELEMENTWISE", ("float16",), ("float16",)),
        ImportedLayer("twin | t (then_branch) | node_of_y (If)", "t1", "UNARY"),
    ]
    layers = [
        layer("L0", "twin", "node_of_d", reads="x", writes="d"),
        layer("L1", "twin | t (then_branch) | node_of_y (If)", reads="d", writes="y"),
    ]
    rows = {row.place.output: row for row in table(places, made, layers)}
    assert list(rows) == ["a", "b", "d", "y", "z", "t1", "e1"]  # no Constant
    assert [row.fate for row in rows.values()] == [
        "engine", "engine", "engine", "inside", "folded", "engine", "folded"
    ]  # fmt: skip
    assert rows["d"].layers == ("L0",)
    assert [one.output for one in rows["d"].fused_with] == ["a", "b"]  # both are called twin
    assert (rows["d"].imported, rows["d"].inputs, rows["d"].outputs) == (
        ("CAST", "ELEMENTWISE"),
        ("float32",),
        ("float16",),
    )
    assert rows["d"].tactics == ("k_L0",)
    assert rows["t1"].layers == ("L1",)  # of the nodes called twin, the one in that branch
    assert not rows["t1"].fused


def test_what_is_not_known_is_not_said(places: Places) -> None:
    made = [ImportedLayer("node_of_d", "d", "ELEMENTWISE", ("float32",), ("float32",))]
    fates = Counter(row.fate for row in table(places, made, None))
    assert fates == {"unknown": 1, "folded": 5, "inside": 1}
    fates = Counter(row.fate for row in table(places, made, None, complete=False))
    assert fates == {"unknown": 6, "inside": 1}
    [merged] = [row for row in table(places, made, []) if row.fate == "merged"]
    assert merged.place.output == "d"


def test_a_reformat_changes_layout_or_type_and_nothing_else(places: Places) -> None:
    def reformat(name: str, before: LayerTensor, after: LayerTensor, kind: str = "kgen") -> EngineLayer:
        return EngineLayer(name, kind, inputs=(before,), outputs=(after,))

    x, d = LayerTensor("x", "float32", (4,), "row major"), LayerTensor("d", "float32", (4,), "row major")
    node = EngineLayer("L", "kgen", inputs=(d,), outputs=(x,), stamps=("node_of_d",))

    def around(*others: EngineLayer) -> tuple[str, ...]:
        [row] = [row for row in table(places, [], [node, *others]) if row.fate == "engine"]
        return row.reformats

    other = LayerTensor("i", "float32", (4,), "channel major")
    assert around(reformat("in", other, d)) == ("in",)
    assert around(reformat("out", x, other)) == ("out",)
    assert around(reformat("far", other, other)) == ()
    assert around(reformat("copy", LayerTensor("i", "float32", (4,), "row major"), d)) == ()
    assert around(reformat("cast", LayerTensor("i", "float16", (4,), "row major"), d)) == ("cast",)
    assert around(reformat("slice", LayerTensor("i", "float32", (8,), "channel major"), d)) == ()
    assert around(reformat("undescribed", LayerTensor("i", "float32", (4,), "Float"), d)) == ("undescribed",)
    assert around(reformat("said", LayerTensor("i", "float32", (8,), "row major"), d, "Reformat")) == (
        "said",
    )


def test_engines_differ_where_tactics_or_fusions_do(places: Places) -> None:
    def made(*layers: EngineLayer) -> LayerTable:
        return LayerTable(TrtBuild("accepted"), tuple(table(places, [], layers)), layers, "log")

    first = made(layer("L0", "node_of_d", "gone"))
    assert differing(first, made(layer("L7", "node_of_d", "gone"))) != ()  # the kernel is called after it
    renamed = EngineLayer("L7", "kgen", "k_L0", stamps=("node_of_d", "gone"))
    assert differing(first, made(renamed)) == ()
    other = EngineLayer("L0", "gemm", "k_L0", stamps=("node_of_d", "gone"))
    assert [one.output for one in differing(first, made(other))] == ["d", "z"]
    apart = made(EngineLayer("L0", "kgen", "k_L0", stamps=("node_of_d",)))
    assert [one.output for one in differing(first, apart)] == ["d", "z"]


def test_layers_by_node() -> None:
    place = Place((), "n", "Relu", "y")
    found = LayerTable(TrtBuild("accepted"), (NodeLayers(place, "engine", layers=("a", "b")),))
    assert layers_by_node(found) == {Place((), "n", "Relu", "y", 7): ("a", "b")}


# ------------------------------------------------------------------------------------------------------- real builds


@REAL
@pytest.mark.parametrize(
    ("name", "fused"),
    [
        ("bert.legacy.op17", {"MatMul", "Add", "LayerNormalization", "Softmax"}),
        ("vit.legacy.op17", {"Add", "LayerNormalization", "Erf"}),
        ("segformer.dynamo.op20", {"Add", "Conv", "MatMul"}),
        ("bert_fp16.legacy.op13", {"MatMul", "Cast", "Sqrt"}),
    ],
)
def test_every_node_of_a_fixture_is_in_the_table_once(name: str, fused: set[str], worker: Worker) -> None:
    path = FIXTURES / f"{name}.onnx"
    found, tactics = attempt(worker, path, package="tensorrt-rtx", timeout=PATIENCE)
    assert found.build.accepted, found.build.reason
    assert (found.source, tactics) == ("log", None)
    model = Model(loading.load(path).proto, path.parent)
    nodes = [node for node in model.nodes() if node.op_type != "Constant"]
    assert [row.place for row in found.nodes] == [node.at for node in nodes]
    rows = {row.place: row for row in found.nodes}
    assert len(rows) == len(nodes)
    names = {layer.name: layer for layer in found.layers}
    for row in found.nodes:
        assert set(row.layers) <= set(names)
        assert bool(row.layers) == (row.fate == "engine")
        assert all(set(row.layers) & set(rows[other].layers) for other in row.fused_with)
    # Each node that computes with floats is in a layer, but for what only moves or renames data.
    heavy = {"MatMul", "Gemm", "Conv", "Softmax", "LayerNormalization", "Erf", "Tanh", "Sqrt", "ReduceMean"}
    assert {row.fate for row in found.nodes if row.place.op_type in heavy} == {"engine"}
    assert fused <= {row.place.op_type for row in found.nodes if row.fused}
    stamped = {stamp for layer in found.layers for stamp in layer.stamps}
    assert stamped, "the log names no node"
    assert stamped <= {row.place.node for row in found.nodes}


@REAL
def test_precision_is_that_of_the_network(worker: Worker) -> None:
    path = FIXTURES / "mixed_precision.legacy.op17.onnx"
    found, _ = attempt(worker, path, package="tensorrt-rtx", timeout=PATIENCE)
    types = {row.place.op_type: set() for row in found.nodes}
    for row in found.nodes:
        types[row.place.op_type].add((row.inputs, row.outputs))
    assert (("float32",), ("float16",)) in types["Cast"]
    assert (("float16",), ("float16",)) in types["MatMul"]
    assert any("Cast" in {one.op_type for one in row.fused_with} for row in found.nodes)


@REAL
def test_a_refused_model_has_rows_and_a_reason(worker: Worker) -> None:
    path = FIXTURES / "trt" / "int32_relu_in_functions.onnx"
    found, _ = attempt(worker, path, package="tensorrt-rtx", timeout=PATIENCE)
    assert (found.build.status, found.source, found.layers) == ("refused", "", ())
    assert {row.fate for row in found.nodes} == {"unknown", "inside"}


@REAL
def test_nodes_in_branches_have_their_own_layers(worker: Worker, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(SMALL), path)
    found, _ = attempt(worker, path, package="tensorrt-rtx", timeout=PATIENCE)
    rows = {row.place.output: row for row in found.nodes}
    assert rows["t1"].fate == rows["e1"].fate == "engine"
    assert set(rows["t1"].layers).isdisjoint(rows["e1"].layers)
    assert rows["t1"].place.graph == ("y.then_branch",)


@REAL
def test_the_log_is_listened_to_only_meanwhile(worker: Worker) -> None:
    """A build that asks for no layers, in the same process, must not collect any."""
    attempt(worker, FIXTURES / "mixed_precision.legacy.op17.onnx", package="tensorrt-rtx", timeout=PATIENCE)
    outcome = worker.call(f"{__name__}:listening", timeout=PATIENCE)
    assert (outcome.ok, outcome.value) == (True, False), outcome.message


def listening() -> bool:
    """In the sandbox: whether its log is still read for layers."""
    import tensorrt_rtx as trt  # lazy: only in the sandbox

    from onnxfix.trt.log import logger_of  # lazy: only in the sandbox

    return logger_of(trt)[1].detail is not None


def test_the_networks_layers_are_read_without_constants() -> None:
    def native(name: str, kind: str, metadata: str, *types: str) -> Any:
        tensors = [SimpleNamespace(dtype=SimpleNamespace(name=one)) if one else None for one in types]
        return SimpleNamespace(
            name=name,
            metadata=metadata,
            type=SimpleNamespace(name=kind),
            num_inputs=len(tensors),
            num_outputs=1,
            get_input=lambda place: tensors[place],
            get_output=lambda place: SimpleNamespace(dtype=SimpleNamespace(name="BF16")),
        )

    layers = [
        native("w", "CONSTANT", "[ONNX Layer: a]"),
        native("helper", "SHUFFLE", ""),
        native("n", "MATRIX_MULTIPLY", "[ONNX Layer: a | call (G)]", "HALF", "", "HALF", "FLOAT"),
    ]
    network = SimpleNamespace(num_layers=3, get_layer=lambda number: layers[number])
    assert imported(network) == [
        ImportedLayer("a | call (G)", "n", "MATRIX_MULTIPLY", ("float16", "float32"), ("bfloat16",))
    ]
