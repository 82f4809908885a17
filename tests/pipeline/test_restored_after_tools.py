"""What a tool loses is put back, and what it may not lose is named: on results written by hand, without the tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, parser

import onnxfix
from onnxfix.pipeline.whole import steps
from onnxfix.pipeline.whole.remote import ToolResult
from onnxfix.pipeline.whole.restore import restore
from support.peer_models import PEERS
from test_whole_model_steps import CPU, the_step

HEADER = '<ir_version: %d, opset_import: ["" : 17]>\n'
TEXT = """g (float[N,2] x) => (float[N,2] y) <float[2] w = {1, 2}> {
    c = Constant<value = float[1] {3}>()  a = Mul(x, w)  d = Constant<value = float[1] {4}>()
    b = Add(a, c)  y = Sub(b, d) }"""


def model(text: str = TEXT, ir: int = 8) -> ModelProto:
    return parser.parse_model(HEADER % ir + text)


def copy(proto: ModelProto) -> ModelProto:
    return ModelProto.FromString(proto.SerializeToString())


def outputs(proto: ModelProto) -> list[str]:
    return [node.output[0] for node in proto.graph.node]


def test_constants_go_back_to_where_they_were() -> None:
    original, result = model(), model()
    nodes = [copy(result).graph.node[i] for i in (2, 0, 1, 3, 4)]
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    merged, lost = restore(original, result, None, None)
    assert lost == []
    assert merged.SerializeToString(deterministic=True) == original.SerializeToString(deterministic=True)


def test_an_order_that_the_new_nodes_forbid_is_not_forced() -> None:
    """``a`` reads ``d`` now, which stood behind it."""
    original, result = model(), model()
    result.graph.node[1].input[1] = "d"
    result.graph.node.insert(0, result.graph.node.pop(2))
    merged, _ = restore(original, result, None, None)
    assert outputs(merged).index("d") < outputs(merged).index("a")
    onnx.checker.check_model(merged)


def test_before_ir_4_a_new_weight_is_a_constant_node() -> None:
    text = "g (float[N,2] x) => (float[N,2] y) { k = Constant<value = float[1] {3}>()  y = Mul(x, k) }"
    original, result = model(text, 3), model(text, 3)
    tensor = result.graph.node[0].attribute[0].t
    result.graph.initializer.add().CopyFrom(tensor)
    result.graph.initializer[0].name = "folded"
    del result.graph.node[0]
    result.graph.node[0].input[1] = "folded"
    result.ir_version = 4
    merged, lost = restore(original, result, None, None)
    assert lost == []
    assert merged.ir_version == 3
    assert not merged.graph.initializer
    assert [node.op_type for node in merged.graph.node] == ["Constant", "Mul"]
    onnx.checker.check_model(merged)


def drop_annotated(result: ModelProto) -> None:
    del result.graph.initializer[0]
    result.graph.node[1].input[1] = "x"


def unused_input(result: ModelProto) -> None:
    del result.graph.input[0]
    result.graph.node[1].input[0] = "w"


@pytest.mark.parametrize("edit", [drop_annotated, unused_input], ids=["annotated", "input"])
def test_what_is_named_from_outside_comes_back(edit: Callable[[ModelProto], None]) -> None:
    original = model()
    original.graph.quantization_annotation.add(tensor_name="a").quant_parameter_tensor_names.add(
        key="SCALE_TENSOR", value="w"
    )
    result = copy(original)
    edit(result)
    merged, lost = restore(original, result, None, None)
    assert lost == []
    assert merged.graph.initializer == original.graph.initializer
    assert merged.graph.input == original.graph.input


def renamed(proto: ModelProto) -> str:
    node = proto.graph.node[1]
    node.output[0] = proto.graph.node[3].input[0] = "other"
    return "a quantization annotation names 'a', which was removed"


def baked(proto: ModelProto) -> str:
    del proto.graph.input[1], proto.graph.initializer[0]
    proto.graph.node[1].input[1] = "x"
    return "the default of input 'w' was built in"


def newer(proto: ModelProto) -> str:
    proto.opset_import[0].version = 18
    return "operator set 18 of ai.onnx instead of 17"


def foreign(proto: ModelProto) -> str:
    proto.opset_import.add(domain="com.microsoft", version=1)
    proto.graph.node[1].domain = "com.microsoft"
    return "it uses operators of com.microsoft"


@pytest.mark.parametrize("edit", [renamed, baked, newer, foreign])
def test_what_is_lost_for_good_is_named(edit: Callable[[ModelProto], str]) -> None:
    original = model()
    original.graph.quantization_annotation.add(tensor_name="a")
    original.graph.input.add(name="w").type.CopyFrom(original.graph.input[0].type)
    result = copy(original)
    words = edit(result)
    _, lost = restore(original, result, None, None)
    assert any(words in line for line in lost), lost


def test_notes_survive_and_what_the_tool_says_of_itself_does_not() -> None:
    original = model()
    original.metadata_props.add(key="author", value="me")
    original.doc_string = "of mine"
    original.graph.doc_string = "the graph"
    original.graph.node[1].doc_string = "scales"
    original.graph.value_info.add(name="a", doc_string="scaled").type.CopyFrom(original.graph.input[0].type)
    original.graph.initializer[0].doc_string = "weights"
    result = model()
    result.producer_name = "the tool"
    result.metadata_props.add(key="tool", value="was here")
    result.graph.value_info.add(name="b").type.CopyFrom(original.graph.input[0].type)
    del result.graph.node[4], result.graph.node[2]  # Sub and its constant
    result.graph.node[2].output[0] = "y"
    merged, lost = restore(original, result, None, None)
    assert lost == []
    assert (merged.doc_string, merged.producer_name) == ("of mine", "")
    assert list(merged.metadata_props) == list(original.metadata_props)
    assert merged.graph.doc_string == "the graph"
    assert merged.graph.node[1] == original.graph.node[1]
    assert list(merged.graph.value_info) == list(original.graph.value_info)
    assert merged.graph.initializer == original.graph.initializer


def regroups(source: str, output: str) -> ToolResult:
    """Stands in for onnxsim: as many nodes, and a weight under another name."""
    proto = onnx.load(source)
    proto.graph.initializer[0].name = "shared"
    proto.graph.node[1].input[1] = "shared"
    onnx.save(proto, output)
    return ToolResult()


def test_no_node_saved_is_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "regrouping.py").write_text("from test_restored_after_tools import regroups as simplify\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(steps, "REMOTE", "regrouping")
    original = model()
    report = onnxfix.apply(original, simplify=True, rungs=CPU, select=["OPS044"])
    assert (the_step(report).status, the_step(report).safety) == ("taken", "exact")
    assert report.model == original


@pytest.mark.parametrize("name", ["24-op8-fold-in-ir3", "30-metadata"])
def test_what_onnxsim_alone_cannot_do_is_done(name: str) -> None:
    """Folding before IR version 4; a weight that only an annotation names."""
    case = next(peer for peer in PEERS if peer.id == name)
    report = onnxfix.apply(case.model(), simplify=True, rungs=CPU, select=["OPS044"])
    assert the_step(report).status == "taken", the_step(report).reason
