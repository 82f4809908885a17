"""What a tool may not lose is named: on results written by hand, without the tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto

import onnxfix
from onnxfix.verbs.whole import steps
from onnxfix.verbs.whole.adopt import adopt
from support import models
from support.peer_models import PEERS
from test_whole_model_steps import CPU, the_step

TEXT = """g (float[N,2] x) => (float[N,2] y) <float[2] w = {1, 2}> {
    c = Constant<value = float[1] {3}>()  a = Mul(x, w)  d = Constant<value = float[1] {4}>()
    b = Add(a, c)  y = Sub(b, d) }"""


def model(text: str = TEXT, ir: int = 8) -> ModelProto:
    return models.model(text, 17, ir)


def copy(proto: ModelProto) -> ModelProto:
    return ModelProto.FromString(proto.SerializeToString())


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
def test_what_is_lost_for_good_is_named(edit: Callable[[ModelProto], str], tmp_path: Path) -> None:
    original = model()
    original.graph.quantization_annotation.add(tensor_name="a")
    original.graph.input.add(name="w").type.CopyFrom(original.graph.input[0].type)
    result = copy(original)
    words = edit(result)
    _, lost = adopt(original, result, None, tmp_path)
    assert any(words in line for line in lost), lost


def regroups(source: str, output: str) -> str:
    """Stands in for onnxsim: as many nodes, and a weight under another name."""
    proto = onnx.load(source)
    proto.graph.initializer[0].name = "shared"
    proto.graph.node[1].input[1] = "shared"
    onnx.save(proto, output)
    return ""


def test_no_node_saved_is_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "regrouping.py").write_text("from test_adopted_results import regroups as simplify\n")
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
