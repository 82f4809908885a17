"""What TensorRT says of an engine's layers, read: recorded logs of four releases, and the inspector's document."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onnxfix.tensorrt import layers, messages
from onnxfix.tensorrt.log import BuildLog
from onnxfix.tensorrt.reading import Autotuning, Candidate, EngineLayer, LayerTensor

LOGS = sorted(Path(__file__).with_name("logs").glob("*.json"))
RECORDED = pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)


def recorded(path: Path) -> BuildLog:
    log = BuildLog()
    for text in json.loads(path.read_text(encoding="utf-8"))["messages"]:
        log.add(text)
    return log


# --------------------------------------------------------------------------------------------------- the recorded logs


def test_every_release_was_recorded() -> None:
    assert [path.stem.rsplit(".", 2)[0] for path in LOGS] == ["1.4", "1.5", "1.6", "1.7"]


@RECORDED
def test_all_layers_of_a_log_are_read(path: Path) -> None:
    messages = json.loads(path.read_text(encoding="utf-8"))["messages"]
    [text] = [message for message in messages if message.startswith("Layers:")]
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
def test_a_log_has_the_region_and_its_nodes(path: Path) -> None:
    [stamps] = recorded(path).regions.values()
    assert stamps[:3] == ("conv", "relu", "flat")
    assert "minus | e (else_branch) | branch (If)" in stamps


# ------------------------------------------------------------------------------------------------- the expressions


@pytest.mark.parametrize(
    ("metadata", "stamps"),
    [
        ("", ()),
        ("[ONNX Layer: a]\x1e[ONNX Layer: b]\x1f[ONNX Layer: a]", ("a", "b")),
        ("[ONNX Layer: a[0][1]]\x1f[ONNX Layer: b]", ("a[0][1]", "b")),
        ("[ONNX Layer: x | call (G)][Other: y]", ("x | call (G)",)),
    ],
)
def test_stamps(metadata: str, stamps: tuple[str, ...]) -> None:
    assert messages.stamps_in(metadata) == stamps


def test_a_stamp_names_the_nodes_around() -> None:
    stamp = "node_of_t1 | t (then_branch) | node_of_y (If) | body (body) | loop (Loop)"
    assert messages.split_stamp(stamp) == ("node_of_t1", (("then_branch", "node_of_y"), ("body", "loop")))
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


def test_names_of_layers_that_were_joined() -> None:
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
    stray = "The selected tactic is (tactic hash, cost(in ms)):0x1, 0.5"  # of an operation that was not named
    for text in [stray, *lines, stray, *lines]:
        log.add(text)
    assert log.autotuning == [TUNED, TUNED]


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
    [found, name] = layers.layers_of(json.dumps({"Layers": [layer, "only a name"], "Bindings": ["x"]}))
    assert (found.kind, found.tactic, found.tactic_id) == ("CaskConvolution", "sm80_xmma", "0x1f")
    assert found.stamps == ("conv", "relu")
    assert (found.inputs[0].dtype, found.inputs[0].dims) == ("float16", (1, 3))
    assert found.inputs[0].layout.endswith("format")
    assert name == EngineLayer("only a name", "")


@pytest.mark.parametrize("text", ["[]", "{}", '{"Layers": 3}', "nonsense"])
def test_another_document_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        layers.layers_of(text)


def test_an_engine_that_does_not_load_has_a_reason() -> None:
    class Runtime:
        def __init__(self, log: object) -> None: ...

        def deserialize_cuda_engine(self, engine: bytes) -> None: ...

    found, reason = layers._inspect(SimpleNamespace(Runtime=Runtime), None, b"")
    assert found == ()
    assert "does not load on this machine" in reason
