"""onnxfix on models that it was not written for: ONNX's own node models, its test data, and real exports."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from corpus import Case, Outcome, folder_cases, node_cases, onnx_data_folder, run

from onnxfix.runtime.sandbox import Worker
from support.paths import ROOT

pytestmark = pytest.mark.corpus
#: No runtime takes scalar bounds of a Slice, sizes of decoder_kv depend on each other, and the If is not valid ONNX.
LEFT_OUT = ("kinds/sliced_", "cases/decoder_kv", "cases/if_branch_declares_input")


def outcomes(cases: Iterator[Case], folder: Path) -> list[Outcome]:
    """Everything that ``corpus.run`` holds a result to; a fault is a line in ``Outcome.faults``."""
    with Worker() as worker:
        return [run(case, worker, folder) for case in cases]


def assert_sound(found: list[Outcome]) -> None:
    faults = {item.name: item.faults for item in found if item.faults}
    assert not faults
    unproven = [item.name for item in found if item.changed and not item.executed]
    assert not unproven, "changed, but no rung could run them"


@pytest.mark.corpus
@pytest.mark.xdist_group("nodes")
def test_onnx_node_models(tmp_path: Path, stride: int) -> None:
    found = outcomes(islice(node_cases(), 0, None, stride), tmp_path)
    assert len(found) > 1000 // stride
    changed = sum(item.changed for item in found)
    assert changed > 100 // stride, "the rules hardly did anything: the test shows nothing"
    assert_sound(found)


@pytest.mark.corpus
def test_onnx_data(tmp_path: Path) -> None:
    found = outcomes(folder_cases([onnx_data_folder()]), tmp_path)
    assert len(found) > 100
    assert_sound(found)


@pytest.mark.parametrize(
    "folder", [ROOT / "fixtures", ROOT.parent / "shared" / "models"], ids=lambda path: path.name
)
def test_real_exports(tmp_path: Path, folder: Path, short_stride: int) -> None:
    if not folder.is_dir():
        pytest.skip("the larger set of exports is not beside this checkout; fixtures/ stands for it")
    cases = (case for case in folder_cases([folder]) if not case.name.startswith(LEFT_OUT))
    found = outcomes(islice(cases, 0, None, short_stride), tmp_path)
    assert found
    assert_sound(found)
