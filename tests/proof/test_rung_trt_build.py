"""Rung trt-build: real models before and after ``apply``, and models that TensorRT dies of.

Those marked REAL ask the installed TensorRT-RTX. Nothing executes an engine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from acceptance.cases import AS_IS, EXACT, node_cases
from acceptance.faults import lost, rescued
from acceptance.measure import Settings, measure_all

import onnxfix
from onnxfix.proof.verdict import RungResult
from onnxfix.proof.verify import verify
from onnxfix.tensorrt.package import Choice
from onnxfix.tensorrt.records import TrtOptions
from support.cli import output, run
from support.ended import ended
from support.models import model, write
from support.paths import ROOT
from support.patience import PATIENCE
from support.real_tensorrt import REAL, since

EXPORTS = sorted((ROOT / "fixtures").glob("*.onnx"))
QUICKEST = ("vit.dynamo", "mixed")
SWIN = ROOT / "fixtures" / "swin.legacy.op13.onnx"
RELU = "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"
#: TensorRT-RTX 1.7.1 dies of these. ONNX does not allow them; whoever writes an exporter makes such models.
DEADLY = {
    "SIGFPE": "g (float[1,1,4,6] x) => (float[1,4,2,3] y) { y = SpaceToDepth<blocksize = 0>(x) }",
    "SIGSEGV": "g (float[3] x, float a, float b) => (float[3] y) { y = Clip(x, a, b, b) }",
}
DEAD_NODE = (
    "g (float[1,1,4,6] x) => (float[1,1,4,6] y) { u = SpaceToDepth<blocksize = 0>(x)  y = Relu(x) }",
    "g (float[1,1,4,6] x) => (float[1,1,4,6] y) { y = Relu(x) }",
)


def climbed(original: Path, fixed: Path | None = None, *, inherit: bool = False, **asked: Any) -> RungResult:
    """The rung alone, with what is asked of TensorRT."""
    options = TrtOptions(package="tensorrt-rtx", **asked)
    verdict = verify(
        original, fixed or original, exact=True, rungs=["trt-build"], trt=options, inherit=inherit
    )
    return verdict.rungs[0]


# ------------------------------------------------------------------------------------------------ real models


@REAL
@pytest.mark.parametrize(
    "path",
    [
        *(path for path in EXPORTS if path.stem.startswith(QUICKEST)),
        *(
            pytest.param(path, marks=pytest.mark.corpus)
            for path in EXPORTS
            if not path.stem.startswith(QUICKEST)
        ),
    ],
    ids=lambda path: path.stem,
)
def test_an_export_is_accepted_before_and_after_apply(path: Path) -> None:
    report = onnxfix.apply(path, rungs=("contract", "trt-build"), require=("trt-build",))
    assert report.verdict.passed
    rung = report.verdict.rung("trt-build")
    before, after = rung.builds
    assert before.accepted, before.reason
    assert after.accepted, after.reason
    assert 0 < after.layer_count <= before.layer_count
    assert min(before.engine_bytes, after.engine_bytes) > 0
    assert before.profiles == after.profiles
    assert f"{before.layer_count} → {after.layer_count} layers" in rung.reason


@REAL
@pytest.mark.xdist_group("nodes")
@pytest.mark.corpus
def test_a_sample_of_onnxs_node_models_loses_nothing(tmp_path: Path, stride: int) -> None:
    """Every 72nd, and in the full lane every sixth; ``benchmarks/acceptance/node_models.py`` takes all of them."""
    choice = Choice("tensorrt-rtx", "", "8.9")
    settings = Settings(choice, (EXACT,), None, timeout=PATIENCE)
    rows = measure_all(node_cases()[5 :: max(6, 3 * stride)], 1, settings, lambda _: None)
    before, after = ([row.results[tool.name] for row in rows] for tool in (AS_IS, EXACT))
    assert len(rows) > 300 // stride
    assert sum(one.accepted for one in before) > 100 // stride
    assert sum(one.made.changed for one in after) > 30 // stride, "the rules hardly did anything"
    assert any(rescued(row, EXACT) for row in rows)
    assert not [(row.name, row.results[EXACT.name].words) for row in rows if lost(row, EXACT)]
    assert {one.status for one in (*before, *after)} == {"accepted", "refused"}


ROI_ALIGN = """
g (float[1,1,10,10] x, float[3,4] rois, int64[3] batch) => (float[3,1,5,5] y) {{
    y = RoiAlign<coordinate_transformation_mode = "{}", output_height = 5, output_width = 5, sampling_ratio = 2,
        spatial_scale = 1.0>(x, rois, batch)
}}"""


@REAL
@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
def test_the_node_models_that_crash_a_second_logger_are_refused(mode: str, tmp_path: Path) -> None:
    """ONNX's test_roialign_aligned_true and _false crash TensorRT in a process that gave it one logger after the
    other. Here it keeps its first, and refuses them time and again."""
    path = write(tmp_path / "model.onnx", ROI_ALIGN.format(mode))
    for _ in range(3):
        rung = ended("failed", climbed(path))
        assert rung.builds[0].status == "refused"
        assert rung.builds[0].errors[0].place.op_type == "RoiAlign"
    assert climbed(write(path, RELU)).status == "passed"


# ----------------------------------------------------------------------------------------------------- deaths


@REAL
@pytest.mark.parametrize("signal", DEADLY)
def test_a_model_that_crashes_tensorrt_is_a_failed_rung(signal: str, tmp_path: Path) -> None:
    rung = climbed(write(tmp_path / "deadly.onnx", DEADLY[signal]))
    assert (rung.status, rung.builds[0].status, rung.builds[0].stage) == ("failed", "crash", "parse")
    assert rung.reason.startswith("TensorRT-RTX ")
    assert rung.reason.endswith(f"crashes on the model: the parser was killed by {signal}")
    assert climbed(write(tmp_path / "next.onnx", RELU)).status == "passed"


@REAL
def test_a_crash_that_the_fixed_model_does_not_share_is_told(tmp_path: Path) -> None:
    original, fixed = (
        write(tmp_path / f"{name}.onnx", text) for name, text in zip("ab", DEAD_NODE, strict=True)
    )
    rung = ended("passed", climbed(original, fixed))
    assert rung.reason.endswith("; it crashed on the original: the parser was killed by SIGFPE")
    back = climbed(fixed, original)
    assert back.refutes
    assert "accepts the original and crashes on the new model" in back.reason


@REAL
def test_a_crash_of_both_is_no_fault_of_a_fix(tmp_path: Path) -> None:
    original = write(tmp_path / "a.onnx", DEADLY["SIGFPE"])
    fixed = write(tmp_path / "b.onnx", DEADLY["SIGFPE"].replace("g (", "h ("))
    rung = climbed(original, fixed, inherit=True)
    assert (rung.status, rung.refutes) == ("failed", False)
    assert "crashes on the new model as it does the original" in rung.reason
    assert climbed(original, fixed).refutes


@REAL
def test_a_build_over_the_time_limit_is_a_failed_rung(tmp_path: Path) -> None:
    path = write(tmp_path / "first.onnx", RELU)
    assert climbed(path).status == "passed"  # TensorRT is loaded by now
    rung = climbed(SWIN, timeout=0.05)
    assert (rung.status, rung.builds[0].status) == ("failed", "timeout")
    assert "fails on the model: the " in rung.reason
    assert rung.reason.endswith("er took more than 0.05 s and was stopped")  # parser or builder
    assert climbed(write(tmp_path / "next.onnx", RELU)).status == "passed"


LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited on Linux only")


@REAL
@LINUX
@pytest.mark.parametrize(
    "megabytes", [64, *(pytest.param(more, marks=pytest.mark.slow) for more in (96, 104, 112, 128))]
)
def test_a_build_over_the_memory_limit_says_nothing_about_the_model(tmp_path: Path, megabytes: int) -> None:
    """Where TensorRT notices it says so; it also goes on with a null pointer, or waits for a thread that never was."""
    rung = climbed(SWIN, memory_mb=megabytes, timeout=20.0)
    assert (rung.status, rung.builds[0].status) == ("skipped", "memory"), rung.reason
    assert "memory" in rung.reason.partition("gave no result: ")[2][:60]
    assert rung.reason.endswith(f" (memory is limited to {megabytes} MiB: --memory-limit sets it)")
    assert not rung.builds[0].judged
    assert climbed(write(tmp_path / "next.onnx", RELU)).status == "passed"


@REAL
def test_the_next_model_of_the_same_command_is_done(tmp_path: Path) -> None:
    deadly = write(tmp_path / "deadly.onnx", DEADLY["SIGFPE"])
    live = write(tmp_path / "live.onnx", "g (float[2] x) => (float[2] y) { a = Identity(x)  y = Relu(a) }")
    out = output(0, "apply", deadly, live, "--rungs", "contract,trt-build", "--fail-on", "never")
    first, _, second = out.partition("\n" + str(live))
    assert (
        "crash: SpaceToDepth: the parser was killed by SIGFPE; the smallest part that fails: SpaceToDepth y"
        in first
    )
    assert "crashes on it" in " ".join(first.split())
    assert (tmp_path / "live.fixed.onnx").is_file()
    assert "builds it" in " ".join(second.split())
    code, _, error = run("verify", deadly, "--rungs", "trt-build", "--require", "trt-build")
    assert (code, error) == (3, "")


@REAL
@since("1.6", "refusal of a mode that does not exist: an older one samples the nearest element")
def test_a_text_of_tensorrts_that_is_no_text_is_a_result(tmp_path: Path) -> None:
    """What the parser quotes of a model may be no UTF-8; NVIDIA's Python module then raises."""
    text = 'g (float[1,1,4,4] x, float[1,2,2,2] i) => (float[1,1,2,2] y) { y = GridSample<mode = "z">(x, i) }'
    proto = model(text)
    proto.graph.node[0].attribute[0].s = b"\xff\xfe"
    rung = climbed(write(tmp_path / "model.onnx", proto))
    assert (rung.status, rung.builds[0].status) == ("failed", "refused"), rung.reason
    assert "GridSample" in rung.reason
