"""Models that no runtime on this machine runs: their fixes are proven for all values, and ``apply`` ends with 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import cli, models

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
