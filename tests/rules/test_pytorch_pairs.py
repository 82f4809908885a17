"""The pairs "In PyTorch": the finding is there before and gone after, and the outputs are equal.

The committed exports are judged everywhere. Where PyTorch is installed, they are made again.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import onnx
import pytest
from exports.pairs import FOLDER, Pair, export

from onnxfix.report.pytorch import advise, describe_pair
from support.cli import run
from support.paths import FIXTURES

PAIRS = [Pair.read(path) for path in sorted(FOLDER.glob("*.py"))]
CASES = [(pair, exporter) for pair in PAIRS for exporter in pair.EXPORTERS]
MISSING = [name for name in ("torch", "onnxscript") if importlib.util.find_spec(name) is None]


def name_fixtures(pair: Pair, exporter: str) -> list[str]:
    return [f"{pair.code.lower()}.{side}.{exporter}.onnx" for side in ("before", "after")]


@pytest.mark.parametrize(("pair", "exporter"), CASES, ids=[f"{pair.code}-{name}" for pair, name in CASES])
def test_committed_exports(pair: Pair, exporter: str) -> None:
    before, after = (onnx.load(FIXTURES / "pytorch" / name) for name in name_fixtures(pair, exporter))
    assert {before.producer_name, after.producer_name} == {"pytorch"}
    assert pair.judge(before, after) == []


def test_every_pair_has_exports_and_every_export_a_pair() -> None:
    named = [name for pair, exporter in CASES for name in name_fixtures(pair, exporter)]
    assert sorted(path.name for path in (FIXTURES / "pytorch").iterdir()) == sorted(named)


@pytest.mark.parametrize("pair", PAIRS, ids=[pair.code for pair in PAIRS])
def test_pages_show_both_modules(pair: Pair) -> None:
    before, after = re.findall(r"```python\n(.+?)\n```", describe_pair(pair.code), re.DOTALL)
    for name, block in (("Before", before), ("After", after)):
        assert f"class {name}(" in block
        assert re.search(rf"\n\n\ntorch\.onnx\.export\(\s*{name}\(\)\.eval\(\),", block)
        # PyTorch ignores the dynamic axes of inputs without a name.
        assert "dynamic_axes=" not in block or "input_names=" in block
        compile(block, pair.code, "exec")


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed: pip install torch onnxscript")
@pytest.mark.filterwarnings("ignore")  # torch's, which are many
@pytest.mark.parametrize("pair", PAIRS, ids=[pair.code for pair in PAIRS])
def test_exports_made_now(pair: Pair) -> None:
    exports, faults = export(pair)
    assert set(exports) == set(pair.EXPORTERS)
    assert {exporter: found for exporter, found in faults.items() if found} == {}


def test_check_says_what_to_write_where_pytorch_made_the_model(tmp_path: Path) -> None:
    model = onnx.load(FIXTURES / "pytorch" / "brc001.before.dynamo.onnx")
    for producer in ("pytorch", "tf2onnx"):
        model.producer_name = producer
        onnx.save(model, path := tmp_path / f"{producer}.onnx")
        told = f"      in PyTorch: {advise('BRC001', {'Add'})}\n" in run("check", "-v", path)[1]
        assert told == (producer == "pytorch")
    assert "in PyTorch" not in run("check", tmp_path / "pytorch.onnx")[1]  # a note


def test_advice_is_about_the_operator_that_was_found() -> None:
    assert advise("OPS001", {"BitShift"})
    assert advise("OPS001", {"NonZero"}) == advise("OPS001", {"BitShift", "NonZero"}) == ""
