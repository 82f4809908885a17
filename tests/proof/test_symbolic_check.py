"""The check ``symbolic`` of a proof, as a user asks for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from onnxfix.inputs.feeds.signature import signature
from onnxfix.proof.checks import symbolic
from onnxfix.proof.request import Request
from onnxfix.runtime.sandbox import Worker
from support import cli, models
from support.paths import FIXTURES

MAGIC = (
    "g (float[2,N] x) => (float[2,N] y) {a = Transpose(x) b = Transpose(a) c = custom.Magic(b) y = Relu(c)}"
)


def write(path: Path, text: str) -> Path:
    return models.write(path, models.model(text, 21, domains={"custom": 1}))


def test_a_fixed_export_is_proven_for_all_values(tmp_path: Path) -> None:
    source, output = FIXTURES / "bert.legacy.op17.onnx", tmp_path / "out.onnx"
    out = cli.output(0, "apply", source, "-o", output)
    words = " ".join(out.split())
    assert (
        "VERIFIED: for all values at 3 shapes (symbolic), ort-cpu bit-identical (4 feeds, 4 shapes)" in words
    )
    code, report = cli.reported("verify", source, output, "--rungs", "symbolic")
    results = {one["name"]: one for one in report["verdict"]["rungs"]}
    assert (code, results["symbolic"]["status"]) == (0, "passed")


def test_a_model_that_no_runtime_runs_is_proven(tmp_path: Path) -> None:
    source = write(tmp_path / "a.onnx", MAGIC)
    plain = MAGIC.replace("a = Transpose(x) b = Transpose(a) c = custom.Magic(b)", "c = custom.Magic(x)")
    fixed = write(tmp_path / "b.onnx", plain)
    assert cli.run("verify", source, fixed, "--rungs", "ort-cpu")[0] == 3
    out = cli.output(0, "verify", source, fixed, "--rungs", "symbolic,ort-cpu")
    assert "for all values at 3 shapes (symbolic)" in out


def test_what_is_not_decided_proves_nothing(tmp_path: Path) -> None:
    text = "g (float[N] x) => (float[M] y) {a = NonZero(x) b = Cast<to=1>(a) c = Squeeze(b) y = KEY(c)}"
    source = write(tmp_path / "a.onnx", text.replace("KEY", "Relu"))
    fixed = write(tmp_path / "b.onnx", text.replace("KEY", "Abs"))
    out = cli.output(3, "verify", source, fixed, "--rungs", "symbolic")
    assert "NOT VERIFIED: symbolic could not decide" in out
    assert "NonZero (a): " in out
    assert cli.run("verify", source, source, "--require", "symbolic", "--rungs", "symbolic")[0] == 0
    assert cli.run("verify", source, fixed, "--require", "symbolic", "--rungs", "symbolic,ort-cpu")[0] == 3


def test_inputs_that_decide_shapes_are_named(tmp_path: Path) -> None:
    head = "g (float[6] x, int64[1] s) => (float[N] y) <int64[1] e = {9}>"
    source = write(tmp_path / "a.onnx", head + " {a = Slice(x, s, e) y = Relu(a)}")
    fixed = write(tmp_path / "b.onnx", head + " {a = Relu(x) y = Slice(a, s, e)}")
    out = cli.output(0, "verify", source, fixed, "--rungs", "symbolic")
    assert "for these values of s, which decide shapes" in out


def test_what_it_proves_the_evaluator_need_not_show(tmp_path: Path) -> None:
    source = write(tmp_path / "a.onnx", "g (float[N] x) => (float[N] y) {y = Relu(x)}")
    _, report = cli.reported("verify", source, source)
    reference = next(one for one in report["verdict"]["rungs"] if one["name"] == "reference")
    assert (reference["status"], reference["cause"]) == ("skipped", "redundant")
    _, out, _ = cli.run("verify", source, source, "--effort", "thorough")
    assert "for all values at 3 shapes (symbolic), reference, ort-cpu bit-identical" in " ".join(out.split())


def test_what_differs_by_rounding_alone_is_the_same_as_real_numbers(tmp_path: Path) -> None:
    head = "g (float[N] x) => (float[N] y) <float a = {1}, float b = {2}, float c = {C}>"
    source = write(tmp_path / "a.onnx", head.replace("C", "3") + " {t = Add(x, a) u = Add(t, b) y = Relu(u)}")
    for sum_of_both, words in (
        ("3", "differently, from Add (u) on; the same as real numbers"),
        ("4", "from Add (u) on\n"),
    ):
        fixed = write(tmp_path / "b.onnx", head.replace("C", sum_of_both) + " {u = Add(x, c) y = Relu(u)}")
        code, out, _ = cli.run("verify", source, fixed, "--rungs", "symbolic,ort-cpu")
        assert code == (0 if sum_of_both == "3" else 3)
        assert words in out


def test_exact_fixes_are_proven_beside_numeric_ones(tmp_path: Path) -> None:
    source, output = FIXTURES / "vit_fp16.legacy.op16.onnx", tmp_path / "out.onnx"
    options = ("--rungs", "symbolic,reference", "--require", "contract,reference")
    out = cli.output(0, "apply", source, "-o", output, "--numeric-fixes", *options)
    assert "; the exact fixes alone: for all values at 3 shapes" in " ".join(out.split())
    assert onnx.load(output).graph.node


def test_what_was_proven_within_the_time_limit_stays_proven(tmp_path: Path) -> None:
    waves = "g (float[N,N] x) => (float[N,N] y) {a = Transpose(x) b = Sin(a) c = Sin(b) d = Sin(c) y = Transpose(d)}"
    plain = "g (float[N,N] x) => (float[N,N] y) {b = Sin(x) c = Sin(b) y = Sin(c)}"
    paths = write(tmp_path / "a.onnx", waves), write(tmp_path / "b.onnx", plain)
    feeds = [{"x": np.zeros((size, size), np.float32)} for size in (3, 3000)]
    with Worker() as worker:
        request = Request(*paths, signature(paths[0]), worker, True, 0, {}, feeds, total=0.3)
        result = symbolic.run(request)
    assert (result.status, result.reason) == ("passed", "for all values at 1 of 2 shapes")
