"""The models of fixtures/misread: what make.py makes, and what the README's first screen says of them."""

from __future__ import annotations

from pathlib import Path

import onnxfix
from support.paths import FIXTURES
from support.real_tensorrt import REAL
from support.scripts import script

FOLDER = FIXTURES / "misread"


def test_the_files_are_what_make_writes() -> None:
    models = script(FOLDER / "make.py").MODELS
    assert {path.stem for path in FOLDER.glob("*.onnx")} == set(models)
    for name, model in models.items():
        assert (FOLDER / f"{name}.onnx").read_bytes() == model().SerializeToString(deterministic=True)


@REAL
def test_the_decoder_is_found_repaired_and_proven(tmp_path: Path) -> None:
    report = onnxfix.apply(FOLDER / "decoder.onnx", tmp_path / "fixed.onnx")
    assert [one.code for one in report.applied] == ["OPS013"]
    assert report.applied[0].confirmed.startswith("ConvTranspose: tensor upsampled at [0, 0, 10, 8] is -1.48")
    assert not report.findings
    assert report.verdict is not None
    rung = report.verdict.rung("trt-network")
    assert rung is not None
    assert rung.status == "passed"
    assert "TensorRT reads the original differently: upsampled (decode): ConvTranspose" in rung.reason
    assert report.exit_code == 0


@REAL
def test_without_its_rule_the_decoder_is_left_and_reported(tmp_path: Path) -> None:
    report = onnxfix.apply(FOLDER / "decoder.onnx", tmp_path / "fixed.onnx", ignore=["OPS013"])
    assert [(one.code, one.severity) for one in report.findings] == [("TRT004", "error")]
    assert report.exit_code == 1


@REAL
def test_check_names_the_rule_that_mends_it() -> None:
    """One finding for one cause at one node: the rule's, with TensorRT's words."""
    [found] = onnxfix.check(FOLDER / "decoder.onnx", trt=True).findings
    assert (found.code, found.place.node) == ("OPS013", "decode")
    assert found.confirmed.startswith("ConvTranspose: tensor upsampled at [0, 0, 10, 8] is -1.48")
    [alone] = onnxfix.check(FOLDER / "decoder.onnx", select=["TRT"], trt=True).findings
    assert (alone.code, alone.message, alone.pointer) == ("TRT004", found.confirmed, "")
