"""What each target accepts, against itself, against the real TensorRT-RTX, and as rules read it."""

from __future__ import annotations

import re
from importlib.metadata import version
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import onnx
import pytest
import trt_types
from corpus import node_cases
from onnx import TensorProto

import onnxfix
from onnxfix.errors import UsageError
from onnxfix.files import dtypes
from onnxfix.rewrite.registry import registry
from onnxfix.runtime.sandbox import Worker
from onnxfix.targets import (
    DEFAULT,
    TARGETS,
    Support,
    documented,
    measured,
    mismatch,
    target_judging,
    target_named,
)
from onnxfix.tensorrt.build import attempt
from onnxfix.testing import findings
from support import models
from support.cli import output, run
from support.paths import FIXTURES
from support.patience import PATIENCE
from support.real_tensorrt import REAL

NAMES = {name: number for number in range(1, 64) if " " not in (name := dtypes.name_of(number).upper())}
RELEASES = [TARGETS[f"trt{major}.{minor}"] for major, minor in documented.RELEASES]
EVERY = pytest.mark.parametrize(
    "target",
    {one.name: one for one in (*TARGETS.values(), *RELEASES)}.values(),
    ids=lambda target: target.name,
)
#: After opset 24, so that the oldest onnx that is supported lacks them.
NEWEST = {"BitCast", "CausalConvWithState", "CumProd", "LinearAttention", "SwiGLU"}
RULES = {rule.code: rule for rule in registry().rules}


# ------------------------------------------------------------------------------------------------ the data


@EVERY
def test_the_data_is_consistent(target: Any) -> None:
    standard = set(trt_types.standard_operators()) | measured.OLD | NEWEST
    assert target.operators.keys() | target.missing.keys() <= standard
    assert not target.operators.keys() & target.missing.keys()
    assert len(target.operators) > 100
    assert target.source
    assert target.inner <= target.types <= NAMES.keys()
    for name, support in target.operators.items():
        assert not support.types & support.refused, name
        assert support.types | support.refused <= target.types | target.reads_as.keys() | {
            "UINT8",
            "BFLOAT16",
        }, name
        assert support.types <= target.types | target.reads_as.keys(), name


def test_a_newer_tensorrt_lacks_no_operator_that_an_older_one_has() -> None:
    assert len(RELEASES) == 29
    for older, newer in pairwise(RELEASES):
        assert newer.missing.keys() <= older.missing.keys()
        assert not older.operators.keys() & newer.missing.keys()


def test_the_lists_and_the_parser_agree_on_operators() -> None:
    """The list of 11.2 was read second-hand: but for what TensorRT-RTX leaves out, its parser says the same."""
    left_out = {"DFT", "DeformConv", *measured.NO_PLUGIN}
    imported = (
        measured.ACCEPTED.keys() | measured.REFUSED.keys() | measured.UNBUILT.keys()
    ) - measured.NO_PLUGIN
    newest = TARGETS["trt11"]
    assert newest.operators.keys() - left_out - measured.OLD == imported
    assert not newest.missing.keys() & imported
    assert newest.missing.keys() - {"CausalConvWithState", "LinearAttention"} <= measured.UNKNOWN


@EVERY
def test_every_operator_has_an_answer(target: Any) -> None:
    """Of ONNX's operators none is unknown, but for two of 8.4 that its list has and its source lacks."""
    unknown = {name for name in trt_types.standard_operators() if target.imports(name) is None}
    shipped = {name for name in unknown if name in target.missing and target.has_plugin(name)}
    assert unknown - shipped == (
        {"RandomNormal", "RandomNormalLike"} if target.oldest < (8, 5) and target.name != "rtx" else set()
    )
    restricted = {name for name, support in target.operators.items() if support.notes}
    assert 20 < len(restricted) < 60
    assert restricted >= {"If", "LSTM", "Resize", "RandomUniform"}


@pytest.mark.parametrize(
    ("operator", "since"),
    [
        ("OneHot", "8.5"), ("LayerNormalization", "8.6"), ("CastLike", "9.1"), ("Hardmax", "9.2"), ("Gelu", "10.0"),
        ("DeformConv", "10.1"), ("HannWindow", "10.4"), ("STFT", "10.5"), ("Attention", "10.14"),
        ("RMSNormalization", "10.15"), ("RotaryEmbedding", "10.15"), ("TensorScatter", "10.15"), ("Swish", "11.0"),
        ("DFT", "11.2"), ("HardSwish", "8.4"), ("Reciprocal", "8.4"), ("Shrink", "8.4"),
    ],
)  # fmt: skip
def test_the_release_that_an_operator_came_with(operator: str, since: str) -> None:
    assert next(target.name for target in RELEASES if target.imports(operator)) == f"trt{since}"
    before = RELEASES[: [target.name for target in RELEASES].index(f"trt{since}")]
    assert {target.imports(operator) for target in before} <= {False}


@pytest.mark.parametrize(
    ("operator", "imports"),
    [
        ("Relu", [True] * 6),
        ("Unique", [False] * 6),
        ("LayerNormalization", [False, True, True, True, True, True]),
        ("Attention", [False, False, False, True, True, True]),
        ("DFT", [False, False, False, False, True, False]),
        ("NonZero", [False, True, True, True, True, False]),
        ("NonMaxSuppression", [True] * 6),
        ("OneHot", [False, True, True, True, True, True]),
        ("Swish", [False, False, False, False, True, True]),
        ("LinearAttention", [False] * 6),
        ("Frobnicate", [None] * 6),
    ],
)
def test_imports(operator: str, imports: list[bool | None]) -> None:
    assert [target.imports(operator) for target in TARGETS.values()] == imports
    supports = [isinstance(target.operator(operator), Support) for target in TARGETS.values()]
    assert supports == [answer is True for answer in imports]


@pytest.mark.parametrize(
    ("operator", "kind", "accepts"),
    [
        ("Add", "FLOAT", [True] * 6),
        ("Add", "INT64", [True] * 6),
        ("Add", "DOUBLE", [True] * 6),
        ("Add", "UINT8", [False] * 6),
        ("Add", "UINT16", [False] * 6),
        ("Add", "INT8", [None, None, False, None, None, None]),
        ("Add", "BFLOAT16", [False, False, True, True, True, True]),
        ("MatMul", "INT32", [False] * 6),
        ("MatMul", "INT64", [False] * 6),
        ("Relu", "INT32", [False] * 6),
        ("Relu", "INT64", [False, False, True, True, True, True]),
        ("ReduceL2", "INT64", [False] * 6),
        ("Mish", "BFLOAT16", [False] * 6),
        ("Equal", "BOOL", [None, None, None, True, True, True]),
        ("Attention", "FLOAT", [False, False, False, None, None, None]),
        ("Attention", "FLOAT16", [False, False, False, True, True, True]),
        ("NonMaxSuppression", "FLOAT", [True, True, True, True, True, False]),
        ("NonZero", "FLOAT", [False, True, True, True, True, False]),
        ("DequantizeLinear", "INT8", [True] * 6),
        ("Frobnicate", "FLOAT", [None] * 6),
    ],
)
def test_accepts(operator: str, kind: str, accepts: list[bool | None]) -> None:
    assert [target.accepts(operator, NAMES[kind]) for target in TARGETS.values()] == accepts


def test_a_number_that_is_no_type_is_not_known() -> None:
    assert DEFAULT.accepts("Add", TensorProto.UNDEFINED) is None
    assert not DEFAULT.has_type(TensorProto.UNDEFINED)


def test_types_of_tensors() -> None:
    has = {name for name, number in NAMES.items() if DEFAULT.has_type(number)}
    between = {name for name, number in NAMES.items() if DEFAULT.between(number)}
    assert has - between == {"UINT8", "FLOAT8E4M3FN", "INT4", "FLOAT4E2M1"}
    assert between == {"FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "BOOL", "INT8", "INT32", "INT64"}
    assert [t.has_type(TensorProto.BFLOAT16) for t in TARGETS.values()] == [False] * 2 + [True] * 4
    assert DEFAULT.read_as(TensorProto.DOUBLE) == TensorProto.FLOAT
    assert DEFAULT.read_as(TensorProto.INT64) == TensorProto.INT64
    assert TARGETS["trt8.6"].read_as(TensorProto.INT64) == TensorProto.INT32
    assert [t.int64 for t in TARGETS.values()] == [False] * 2 + [True] * 4


def test_target_named() -> None:
    assert target_named(None) is DEFAULT
    assert target_named("rtx").package == "tensorrt-rtx"
    with pytest.raises(UsageError, match=r"choose from trt8.*, or a release from trt8\.4 to trt11\.4"):
        target_named("trt9")
    with pytest.raises(
        UsageError, match=r"unknown JetPack 'jetpack6'; choose from jetpack5\.0\.2, .*jetpack7\.2\.1"
    ):
        target_named("jetpack6")


def test_a_release_has_what_was_measured_with_its_generation() -> None:
    target = target_named("10.3.0")
    assert (target.name, target.title, target.oldest, target.newest) == (
        "trt10.3", "TensorRT 10.3", (10, 3), (10, 3),
    )  # fmt: skip
    assert target is target_named("jetpack6.2")
    assert target.source == (
        "onnx-tensorrt's docs/operators.md of 10.1 and 10.6, and TensorRT 10.6.0, measured"
    )
    assert (
        target.accepts("Add", TensorProto.INT8)
        is TARGETS["trt10.6"].accepts("Add", TensorProto.INT8)
        is False
    )
    assert "NMS_TRT" in target.plugins
    assert [one.name for one in RELEASES if "ReduceLogSumExp" in one.ignores_axes][-1] == "trt10.13"
    assert [one.name for one in RELEASES if "ReduceMean" in one.ignores_axes][-1] == "trt9.3"
    assert next(one.name for one in RELEASES if "FLOAT4E2M1" in one.types) == "trt10.8"
    assert next(one.name for one in RELEASES if one.int64) == "trt9.0"


#: Body, and the first release that gives no error for it.
_FORMS = {
    "Attention": ("g (float16[1,2,4,16] x) => (float16[1,2,4,16] y) { y = Attention(x, x, x) }", 23, "10.14"),
    "RMSNormalization": ("g (float[2,3] x, float[3] s) => (float[2,3] y) { y = RMSNormalization(x, s) }", 23, "10.15"),
    "GridSample": (
        "g (float[1,1,2,3,4] x, float[1,2,2,2,3] p) => (float[1,1,2,2,2] y) { y = GridSample(x, p) }", 20, "11.2",
    ),
    "Slice": (
        "g (float[4,N] x, int64[1] s, int64[1] e, int64[1] a) => (float[A,B] y) { y = Slice(x, s, e, a) }", 18, "10.3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("operator", _FORMS)
def test_check_knows_the_release(operator: str) -> None:
    text, opset, since = _FORMS[operator]
    first = [target.name for target in RELEASES].index(f"trt{since}")
    for target in ("10.2", "10.3", "jetpack6.2", "10.15", "11.1", "11.2"):
        report = onnxfix.check(models.model(text, opset), target=target)
        known = target_named(target)
        assert report.target == known.name
        assert f"(target {known.name}," in " ".join(str(report).split())
        errors = {finding.code for finding in report.findings if finding.severity == "error"}
        assert bool(errors) is (RELEASES.index(known) < first), (target, errors)


def test_targets_lists_the_releases_and_what_differs() -> None:
    code, out, _ = run("targets")
    lines = out.splitlines()
    assert code == 0
    assert len(lines) == len(RELEASES) + 3
    assert lines[10] == (
        "trt10.3   opset 20-22; JetPack 6.1, 6.2, 6.2.1, 6.2.2; onnx-tensorrt's docs/operators.md of 10.1 and 10.6, "
        "and TensorRT 10.6.0, measured"
    )
    out = output(0, "targets", "jetpack6.2", "11.2")
    assert re.search("^  only trt11.2 .*Attention, .*DFT, .*Swish, TensorScatter$", out, re.MULTILINE)
    assert re.search("^  only trt10.3 +–$", out, re.MULTILINE)
    assert re.search("^  types +Clip, CumSum, Pow: also INT32 INT64$", out, re.MULTILINE)
    assert re.search(
        "^  GridSample +trt10.3: .*4D input; trt11.2: Input must be 4D or 5D$", out, re.MULTILINE
    )
    assert run("targets", "10.3")[0] == 2


@pytest.mark.parametrize(
    ("distribution", "version", "said"),
    [
        ("tensorrt_cu12_bindings", "10.6.0.post1", "(target trt10.6: TensorRT 10.6.0 is installed, "),
        ("tensorrt", "11.2.1.9", "(target trt11.2: TensorRT 11.2.1 is installed, "),
        ("tensorrt", "9.3.0", "(target trt9.3: TensorRT 9.3.0 is installed, "),
        ("tensorrt", "11.9.0", "(target trt11: TensorRT 11.9.0 is installed, "),
        ("tensorrt", "7.2.1", "(target trt11, "),
    ],
)
def test_the_installed_tensorrt_is_the_target(
    distribution: str, version: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorrt").mkdir()
    (tmp_path / "tensorrt" / "__init__.py").write_text("raise ImportError('nobody needs to load it')")
    (info := tmp_path / f"{distribution}-{version}.dist-info").mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    model = FIXTURES / "misread" / "decoder.onnx"
    assert said in " ".join(str(onnxfix.check(model)).split())
    assert "(target trt10, " in " ".join(str(onnxfix.check(model, target="trt10")).split())


@pytest.mark.parametrize(
    ("package", "version", "meant"),
    [
        ("tensorrt", "8.0.3.4", "trt8.4"),
        ("tensorrt", "8.4.1.5", "trt8.4"),
        ("tensorrt", "8.4.2.4", ""),
        ("tensorrt", "8.5.3.1", ""),
        ("tensorrt", "8.6.1.post1", "trt8.6"),
        ("tensorrt", "9.2.0", ""),
        ("tensorrt", "10.3.0.30", ""),
        ("tensorrt", "10.6.0.26", "trt10.6"),
        ("tensorrt", "10.14.1.48", ""),
        ("tensorrt", "10.15.1.29", "trt10"),
        ("tensorrt", "11.1.0.1", ""),
        ("tensorrt", "11.4.0.106", "trt11"),
        ("tensorrt-rtx", "1.7.1.116", "rtx"),
        ("tensorrt-rtx", "2.0.0.1", ""),
        ("tensorrt-rtx", "11.0.0.1", ""),
        ("tensorrt", "1.7.1", ""),
    ],
)
def test_mismatch(package: str, version: str, meant: str) -> None:
    silent = [name for name, target in TARGETS.items() if not mismatch(target, package, version)]
    assert silent == ([meant] if meant else [])


def test_the_judge_of_another_release() -> None:
    assert not mismatch(target_named("10.3"), "tensorrt", "10.3.0.30")
    assert mismatch(target_named("10.3"), "tensorrt", "10.6.0.26") == (
        "TensorRT 10.6.0 judged the model, not the target TensorRT 10.3: what it accepts may differ"
    )
    judges = ("10.3.0.30", "11.2.1.9", "11.9.0", "7.2.1", "unknown")
    found = [target_judging("tensorrt", version) for version in judges]
    assert [one and one.name for one in found] == ["trt10.3", "trt11.2", "trt11", None, None]
    assert target_judging("tensorrt-rtx", "1.7.1.116") is TARGETS["rtx"]
    assert target_judging("tensorrt-rtx", "10.3.0") is None


def test_a_mismatch_is_one_line() -> None:
    said = mismatch(TARGETS["trt8.6"], "tensorrt-rtx", "1.7.1.116")
    assert said == (
        "TensorRT-RTX 1.7.1 judged the model, not the target TensorRT 8.6: what it accepts may differ"
    )
    assert mismatch(DEFAULT, "tensorrt", "unknown").startswith("TensorRT unknown judged")


# ------------------------------------------------------------------------------------------ the real module


@REAL
@pytest.mark.corpus
def test_tensorrt_says_what_the_data_say(stride: int) -> None:
    installed = version("tensorrt-rtx")
    if mismatch(TARGETS["rtx"], "tensorrt-rtx", installed) or not installed.startswith(measured.VERSION):
        pytest.skip(f"measured with {measured.VERSION}, not with {installed}: see benchmarks/trt_types.py")
    imports = trt_types.supported("tensorrt-rtx", trt_types.standard_operators())
    assert len(imports) > 100
    answers = trt_types.measure("tensorrt-rtx", jobs=2, timeout=PATIENCE, stride=stride)
    assert sum(len(kinds) for found in answers.values() for kinds in found.values()) > 800 // stride
    assert list(trt_types.differences(answers, imports)) == []
    if stride == 1 and onnx.defs.onnx_opset_version() >= trt_types.LATEST:  # an older onnx allows fewer types
        for stage, held in (("ACCEPTED", measured.ACCEPTED), ("REFUSED", measured.REFUSED)):
            assert answers[stage] == {name: set(types) for name, types in held.items()}


@REAL
@pytest.mark.xdist_group("nodes")
@pytest.mark.corpus
def test_every_flagged_node_model_is_refused(worker: Worker, tmp_path: Path, short_stride: int) -> None:
    """OPS001, OPS002 and INT006 for TensorRT-RTX, over ONNX's own node models."""
    path = tmp_path / "model.onnx"
    wrong, counts = [], dict.fromkeys(("OPS001", "OPS002", "INT006"), 0)
    for case in islice(node_cases(), 0, None, short_stride):
        model = onnx.load_from_string(case.data)
        codes = [code for code in counts if findings(RULES[code], model, "rtx")]
        if codes:
            counts.update({code: counts[code] + 1 for code in codes})
            path.write_bytes(case.data)
            if attempt(worker, path, package="tensorrt-rtx").status == "accepted":
                wrong.append((case.name, codes))
    assert wrong == []
    assert counts["OPS001"] > 250 // short_stride
    assert counts["OPS002"] > 20 // short_stride


# -------------------------------------------------------------------------------------- rules read the data


@EVERY
def test_the_message_names_the_target_and_its_source(target: Any) -> None:
    model = models.model("g (float[2,3,3] x) => (float[2] y) { y = Det(x) }", 18)
    [found] = findings(RULES["OPS001"], model, target.name)
    assert found.match.message == f"{target.title} does not import Det (source: {target.source})"
    assert found.severity.name == "ERROR"
