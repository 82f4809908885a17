"""Inferred shapes, types and values of real exports and of ONNX's own models, against what they really are."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from onnxfix.model import Model
from onnxfix.shapes.shapes import Shapes
from support import shape_oracle as oracle
from support.paths import ROOT

pytestmark = [pytest.mark.corpus, pytest.mark.usefixtures("strict_shapes")]

FOLDERS = [ROOT / "fixtures", ROOT.parent / "shared" / "models"]
EXPORTS = sorted({p.name: p for folder in FOLDERS for p in folder.glob("*.onnx")}.values())


@pytest.mark.parametrize("path", EXPORTS, ids=lambda p: p.name)
def test_real_export(path: Path) -> None:
    proto = onnx.load(path)
    model = Model(proto)
    shapes = Shapes(model)
    values = [value for scope in model.scopes for value in scope.values.values()]
    decided = sum(shapes.rank(value) is not None for value in values)
    assert decided >= 0.99 * len(values)
    assert all(shapes.elem_type(value) is not None for value in values)
    total = oracle.Verdict()
    for seed, (batch, length) in enumerate(((1, 3), (2, 5))):
        sizes = {}
        for info in proto.graph.input:
            for axis, dim in enumerate(info.type.tensor_type.shape.dim):
                if dim.dim_param:
                    sizes[dim.dim_param] = batch if axis == 0 else length
        feeds = oracle.random_feeds(proto, sizes, seed)
        total += oracle.judge(proto, feeds, oracle.run_all(proto, feeds), shapes)
    assert total.wrong == []
    assert total.undecided == 0
    assert total.dims > 50


@pytest.mark.xdist_group("nodes")
@pytest.mark.parametrize("mode", oracle.MODES)
def test_onnx_node_models(mode: str) -> None:
    """A third of ONNX's node models in each mode."""
    total = oracle.Verdict()
    for case in oracle.node_cases()[oracle.MODES.index(mode) :: 3]:
        for inputs, outputs in case.data_sets:
            verdict = oracle.judge_case(case.model, inputs, outputs, mode)
            assert verdict.wrong == [], case.name
            total += verdict
    assert total.dims > 10_000
    assert total.undecided < 0.002 * total.dims
    assert total.unknown_ranks < 0.02 * total.ranks


def test_onnx_data_models() -> None:
    for index, (name, proto, inputs, outputs) in enumerate(oracle.data_cases()):
        verdict = oracle.judge_case(proto, inputs, outputs, oracle.MODES[index % 3])
        assert verdict.wrong == [], name
