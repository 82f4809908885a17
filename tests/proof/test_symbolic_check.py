"""The check ``symbolic`` of a proof, as a user asks for it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from onnxfix.inputs.feeds.signature import signature
from onnxfix.proof.checks import symbolic
from onnxfix.proof.request import Request
from onnxfix.proof.symbolic.files import Proof, prove_files
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


# ---- models that no runtime on this machine runs: their fixes are proven for all values

CAST = "d = Cast<to = 11>(x) e = Cast<to = 1>(d)"
"""Two Casts that lose nothing, which a fix removes."""
PLUGINS = {
    "boxes": f"g (float[1, 8, 4] x, float[1, 8, 2] s) => (float[1, 10, 4] b) {{ {CAST}"
    " n, b, c, k = trt.EfficientNMS_TRT<max_output_boxes = 10>(e, s) }",
    "regions": f"g (float[n, 4, 8, 8] x, float[k, 4] r, int32[k] i) => (float[k, 4, 2, 2] y) {{ {CAST}"
    " y = trt.ROIAlign_TRT(e, r, i) }",
    "normalization": "g (float[n, 4, 8, 8] x) => (float[n, 4, 8, 8] y) <float[4] g = {1, 1, 1, 1}>"
    f" {{ {CAST} y = trt.InstanceNormalization_TRT(e, g, g) }}",
    "deformable": "g (float[n, 8, 2, 4] x) => (float[n, 8, 2, 4] y)"
    f" {{ {CAST} y = trt.MultiscaleDeformableAttnPlugin_TRT(e) }}",
    "attention": "g (float[n, 3, 4] x, float[n, 3, 4] q) => (float[n, 3, 3] y) <float[4] w = {1, 2, 3, 4}>"
    " { a = Add(x, w) y = trt.DisentangledAttention_TRT(a, q, q) }",
}
OTHERS = {
    "an operator of the user's": f"g (float[n, 4] x) => (float[n, 4] y) {{ {CAST} y = acme.Foo(e) }}",
    "beside such an operator": "g (float[n, 3, 4] x) => (float[n, 3, 4] y) <float[4] w = {1, 2, 3, 4}>"
    " { a = Add(x, w) b = acme.Foo<scale = 2.0>(x) y = acme.Bar(a, b) }",
    "a reshape to what it is": "g (float[n, 4] z) => (float[n, 4] y)"
    " { s = Shape(z) x = Reshape(z, s) y = acme.Foo(x) }",
    "words": "g (string[n] s, float[n, 3, 4] x) => (float[n, 3, 4] y) <float[4] w = {1, 2, 3, 4}>"
    " { i = acme.Tokens(s) a = Add(x, w) y = acme.Embed(a, i) }",
    "160 GB of products": "g (float[200000, 8] x) => (float y) <float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}>"
    " { a = Add(x, w) t = Transpose(a) m = MatMul(a, t) y = ReduceMax<keepdims = 0>(m) }",
}


@pytest.mark.parametrize("text", [*PLUGINS.values(), *OTHERS.values()], ids=[*PLUGINS, *OTHERS])
def test_what_no_runtime_runs_is_proven(text: str, tmp_path: Path) -> None:
    source = models.write(tmp_path / "model.onnx", models.model(text, domains={"trt": 1, "acme": 1}))
    output = tmp_path / "fixed.onnx"
    options = "--memory-limit 2000 --rungs contract,symbolic,reference,ort-cpu --ignore OPS101,IFC005"
    code, report = cli.reported("apply", source, "-o", output, *options.split())
    ran = {one["name"]: one["status"] for one in report["verdict"]["rungs"]}
    assert report["applied"], "nothing was fixed"
    assert ran == {"contract": "passed", "symbolic": "passed", "reference": "skipped", "ort-cpu": "skipped"}
    assert code == 0
    assert output.read_bytes() != source.read_bytes()


# ---- The proof for all values where the weights of the two models are in files

BEFORE = "g (float[2,M] x) => (float[2,N] y) {a = Identity(x) y = MatMul(a, w)}"
AFTER = "g (float[2,M] x) => (float[2,N] y) {y = MatMul(x, w)}"
SIZE = 700
NUMBERS = np.random.default_rng(1).normal(size=(SIZE, SIZE)).astype(np.float32)


def write_external(path: Path, text: str, array: np.ndarray | None = None, **external: object) -> Path:
    """A model whose weight ``w`` is an array in it, or external data."""
    model = models.model(text, 21)
    if array is not None:
        model.graph.initializer.append(numpy_helper.from_array(array, "w"))
    else:
        size = external.pop("size", SIZE)
        tensor = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[size, size])
        models.external(tensor, **external)
    return models.write(path, model)


def prove(first: Path, second: Path, *shape: int) -> Proof:
    """At a shape of x; 2 rows by default."""
    return prove_files(str(first), str(second), [({"x": shape or (2, SIZE)}, {})], 60.0)


@pytest.mark.parametrize("changed", [None, 0, 500_001, NUMBERS.nbytes - 1])
def test_a_copy_of_the_data_is_compared_byte_by_byte(tmp_path: Path, changed: int | None) -> None:
    data = bytearray(NUMBERS.tobytes())
    (tmp_path / "a.data").write_bytes(data)
    if changed is not None:
        data[changed] ^= 1
    (tmp_path / "b.data").write_bytes(b"\0" * 4096 + data)
    before = write_external(tmp_path / "a.onnx", BEFORE, location="a.data")
    after = write_external(tmp_path / "b.onnx", AFTER, location="b.data", offset=4096, length=len(data))
    assert (prove(before, after).trials == 1) == (changed is None)


@pytest.mark.parametrize("same", [True, False])
def test_two_places_of_one_file_may_differ(tmp_path: Path, same: bool) -> None:
    (tmp_path / "a.data").write_bytes(NUMBERS.tobytes() + (NUMBERS if same else NUMBERS + 1).tobytes())
    before = write_external(tmp_path / "a.onnx", BEFORE, location="a.data", length=NUMBERS.nbytes)
    place = {"offset": NUMBERS.nbytes, "length": NUMBERS.nbytes}
    after = write_external(tmp_path / "b.onnx", AFTER, location="a.data", **place)
    assert (prove(before, after).trials == 1) == same


def test_data_that_both_models_share_is_not_read(tmp_path: Path) -> None:
    size = 1 << 18
    (tmp_path / "a.data").touch()
    os.truncate(tmp_path / "a.data", 4 * size * size)  # 256 GiB, none of it on the disk
    before = write_external(tmp_path / "a.onnx", BEFORE, location="a.data", size=size)
    after = write_external(tmp_path / "b.onnx", AFTER, location="a.data", size=size)
    assert prove(before, after, 2, size) == Proof(1, "", ())


@pytest.mark.parametrize("same", [True, False])
def test_weights_in_models_of_any_size_are_compared(tmp_path: Path, same: bool) -> None:
    small = NUMBERS[:200, :200]
    before = write_external(tmp_path / "a.onnx", BEFORE, small)
    after = write_external(tmp_path / "b.onnx", AFTER, small if same else small + 1)
    model = onnx.load(after)
    model.graph.initializer.append(numpy_helper.from_array(NUMBERS, "unused"))
    onnx.save(model, after)
    assert (prove(before, after, 2, 200).trials == 1) == same


def test_a_changed_element_is_found_where_only_the_shape_of_a_weight_changes(tmp_path: Path) -> None:
    text = "g (float[2,3,N] x) => (float[2,3,N] y) {y = Add(x, w)}"
    bias = NUMBERS[0]
    before = write_external(tmp_path / "a.onnx", text, bias)
    after = write_external(tmp_path / "b.onnx", text, bias[None, None])
    assert prove(before, after, 2, 3, SIZE) == Proof(1, "", ())
    bias = bias.copy()
    bias[333] += 1
    after = write_external(tmp_path / "b.onnx", text, bias[None, None])
    assert prove(before, after, 2, 3, SIZE).trials == 0


def test_equal_bytes_in_another_shape_have_other_columns(tmp_path: Path) -> None:
    text = (
        "g (int64[1] i) => (float[64] y) <int64[1] s = {64}> {a = Gather<axis = 1>(w, i) y = Reshape(a, s)}"
    )
    before = write_external(tmp_path / "a.onnx", text, NUMBERS[0, :128].reshape(8, 2, 8))
    for shape, same in (((8, 2, 8), True), ((16, 2, 4), False)):
        after = write_external(tmp_path / "b.onnx", text, NUMBERS[0, :128].reshape(shape))
        trial = {"i": (1,)}, {"i": np.zeros(1, np.int64)}
        assert (prove_files(str(before), str(after), [trial], 60.0).trials == 1) == same


@pytest.mark.parametrize(("kind", "weight"), [("Conv", (4, 2, 3)), ("BatchNormalization", (5,))])
def test_operators_that_do_not_fit_are_not_proven(tmp_path: Path, kind: str, weight: tuple[int, ...]) -> None:
    inputs = "x, w" if kind == "Conv" else "x, w, w, w, w"
    text = f"g (float[1,3,9] x) => (float[1,N,M] y) {{y = {kind}({inputs})}}"
    array = NUMBERS.reshape(-1)[: int(np.prod(weight))].reshape(weight)
    before = write_external(tmp_path / "a.onnx", text, array)
    after = write_external(
        tmp_path / "b.onnx", text.replace("{y = ", "{a = Identity(x) y = ").replace("(x, w", "(a, w"), array
    )
    assert prove(before, after, 1, 3, 9).trials == 0
