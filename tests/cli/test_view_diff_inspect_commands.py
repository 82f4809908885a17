"""Commands that show models: ``view`` (the nodes around a finding as a model that stands alone), ``diff`` and ``apply
--diff`` (what they print, their exit codes, and that nothing is written), ``inspect`` (what a model consists of)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from support.cli import errors, output, refused, reported, run, told
from support.models import model, write

TEXT = """
m (float[N,4] x) => (float[N,4] y) {
    a = Relu(x)
    b = Add(a, large)
    c = Cast<to: int = 1>(b)
    d = Mul(c, two)
    e = Neg(d)
    y = Abs(e)
}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(
        model(TEXT, large=np.ones((600, 4), np.float32)[:1].repeat(600, 0), two=np.full(4, 2, np.float32)),
        path,
    )
    return path


def test_the_part_is_valid_and_has_the_finding_in_its_documentation(path: Path) -> None:
    part = path.with_name("part.onnx")
    out = output(0, "view", path, "--rule", "CST002", "--around", "1", "-o", part)
    assert f"3 nodes → {part}" in out
    made = onnx.load(part)
    onnx.checker.check_model(made, full_check=True)
    assert [node.op_type for node in made.graph.node] == ["Add", "Cast", "Mul"]
    noted = [node.op_type for node in made.graph.node if node.doc_string]
    assert noted == ["Cast"]
    assert made.graph.node[1].doc_string.startswith("CST002 no-op-cast")
    assert "CST002" in made.graph.doc_string
    kinds = {
        one.name: [dim.dim_param or dim.dim_value for dim in one.type.tensor_type.shape.dim]
        for one in made.graph.input
    }
    assert kinds == {"a": ["N", 4], "large": [600, 4]}  # the weight is large, and keeps its shape
    assert [one.name for one in made.graph.initializer] == ["two"]
    assert [one.name for one in made.graph.output] == ["d"]


def test_a_place_is_chosen_by_name_and_json_has_the_finding(path: Path) -> None:
    part = path.with_name("part.onnx")
    code, found = told("view", path, "--rule", "no-op-cast", "--place", "c*", "--around", "0", "-o", part)
    assert (code, found["nodes"], found["finding"]["code"], found["complaint"]) == (0, 1, "CST002", "")
    error = errors(2, "view", path, "--rule", "CST002", "--place", "nowhere", "-o", part)
    assert "CST002 finds nothing at 'nowhere'" in error
    assert run("view", path, "--rule", "CST002", "-o", path)[0] == 2  # the model itself


@pytest.mark.parametrize("name", ["abs", "y"], ids=["of the node", "of its value"])
def test_a_node_by_its_name(path: Path, name: str) -> None:
    made = onnx.load(path)
    made.graph.node[-1].name = "abs"
    onnx.save(made, path)
    part = path.with_name("part.onnx")
    out = output(0, "view", path, "--node", name, "--around", "1", "-o", part)
    assert out.startswith(f"{path}  2 nodes → {part}\n")
    shown = onnx.load(part)
    onnx.checker.check_model(shown, full_check=True)
    assert [(node.op_type, bool(node.doc_string)) for node in shown.graph.node] == [
        ("Neg", False),
        ("Abs", True),
    ]


def test_a_node_is_shown_with_its_values_findings_and_neighbors_and_nothing_is_written(path: Path) -> None:
    made = onnx.load(path)
    made.graph.node[2].metadata_props.add(
        key="pkg.torch.onnx.stack_trace", value='File "net.py", line 7, in forward'
    )
    onnx.save(made, path)
    out = output(0, "view", path, "--node", "c", "--around", "1")
    assert out.splitlines() == [
        f"{path}  3 nodes",
        "  node      Cast  c",
        "            to = float",
        "  reads     b  float[600,4]  from Add b",
        "  writes    c  float[600,4]  to Mul d",
        "  from      net.py:7 (forward)",
        "  note      CST002 no-op-cast: Cast of float to float does nothing [fix: remove it (exact)]",
        "  around    Add b  B: float[600,4]",
        "            Mul d  B: float [2,2,2,2]",
    ]
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    code, found = told("view", path, "--node", "c")
    assert (code, found["output"], [one["code"] for one in found["findings"]]) == (0, "", ["CST002"])
    assert "Cast" in [box["title"] for box in found["around"]["boxes"] if box["focus"]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--node", "nowhere"], "has no node 'nowhere'"),
        ([], "name what to show: --rule RULE"),
        (["--node", "abs", "--rule", "CST002"], "name what to show: --rule RULE"),
        (["--node", "abs", "--place", "c"], "name what to show: --rule RULE"),
    ],
)
def test_one_thing_is_shown(path: Path, options: list[str], words: str) -> None:
    error = refused("view", path, *options, "-o", path.with_name("part.onnx"))
    assert words in error


def test_nodes_in_a_branch_get_what_they_capture_as_inputs(tmp_path: Path) -> None:
    text = """
    m (bool b, float[4] x) => (float[4] y) {
        h = Relu(x)
        y = If (b) <
            then_branch = t () => (float[4] p) { k = Cast<to: int = 1>(h)\n p = Neg(k) },
            else_branch = e () => (float[4] q) { q = Neg(x) }
        >
    }
    """
    path, part = tmp_path / "m.onnx", tmp_path / "part.onnx"
    onnx.save(model(text), path)
    assert run("view", path, "--rule", "CST002", "-o", part)[0] == 0
    made = onnx.load(part)
    onnx.checker.check_model(made, full_check=True)
    assert [one.name for one in made.graph.input] == ["h"]
    assert [node.op_type for node in made.graph.node] == ["Cast", "Neg"]


def test_a_node_of_a_function_is_shown_where_its_types_are_known(tmp_path: Path) -> None:
    text = """
    m (float[N] x) => (float[N] y) { y = my.F(x) }
    <domain: "my", opset_import: ["" : 17]>
    F (v) => (w) {
        a = Abs(v)  b = Cast<to=1>(a)  s = Constant<value_ints=[2, 3]>()  r = Reshape(b, s)  c = Neg(r)  w = Sign(c)
    }
    """
    path, part = tmp_path / "m.onnx", tmp_path / "part.onnx"
    onnx.save(model(text, 17, 8, {"my": 1}), path)
    for node, words in (("a", "a: the type of v"), ("r", "r: the rank of b")):
        error = refused("view", path, "--node", node, "-o", part, "--around", "0")
        assert f"fn my::F / {words} is set by each call of the function" in error
    out = output(0, "view", path, "--node", "c", "-o", part, "--around", "0")
    assert out.startswith(f"{path}  1 node → {part}\n")
    onnx.checker.check_model(onnx.load(part), full_check=True)


CAST = "m (float[N,4] x) => (float[N,4] y) { c = Cast<to: int = 1>(x)\n y = Relu(c) }"


@pytest.fixture
def cast(tmp_path: Path) -> Path:
    path = write(tmp_path / "cast.onnx", model(CAST))
    return path


def test_apply_diff_shows_what_would_change_and_writes_nothing(cast: Path) -> None:
    before = cast.read_bytes()
    out = output(1, "apply", cast, "--diff", "--no-verify")
    assert "1 would be fixed" in out
    assert "- Cast  c  CST002" in out
    assert "~ Relu  y  X: c → x  CST002" in out
    assert [one.name for one in cast.parent.iterdir()] == ["cast.onnx"]
    assert cast.read_bytes() == before


def test_apply_diff_is_0_where_nothing_would_change_whatever_is_left(tmp_path: Path) -> None:
    path = tmp_path / "left.onnx"
    onnx.save(model("m (double[2] x) => (double[2] y) { y = Add(x, w) }", w=np.array([1e300, 1.0])), path)
    assert run("check", path, "--fail-on", "info")[0] == 1  # there are findings, and no fix
    code, report = reported("apply", path, "--diff", "--no-verify", "--fail-on", "info")
    assert (code, report["exit_code"], report["difference"]["changes"]) == (0, 0, [])


@pytest.mark.parametrize("options", [("-o", "a.onnx"), ("--output-dir", "d"), ("--in-place",), ("--resume",)])
def test_diff_contradicts_options_about_files(options: tuple[str, ...], cast: Path) -> None:
    error = errors(2, "apply", cast, "--diff", *options)
    assert "--diff writes no model" in error


def test_diff_of_two_files(cast: Path) -> None:
    fixed = cast.with_name("fixed.onnx")
    assert run("apply", cast, "--no-verify", "-o", fixed)[0] == 0
    code, out, _ = run("diff", cast, fixed)
    assert (code, "- Cast  c  CST002" in out) == (1, True)
    code, document = told("diff", cast, fixed)
    assert (code, document["exit_code"], document["removed"], document["added"], document["changed"]) == (
        1,
        1,
        1,
        0,
        1,
    )
    assert [one["rules"] for one in document["changes"]] == [["CST002"], ["CST002"]]
    assert run("diff", cast, cast, "-q")[:2] == (0, f"{cast} → {cast}  no difference\n")
    report = cast.with_name("report.json")
    report.write_text('{"reports": [{"output": "fixed.onnx", "applied": []}]}')
    assert output(1, "diff", cast, fixed, "--fixes", report) == out
    assert "is not the JSON report of an apply" in errors(2, "diff", cast, fixed, "--fixes", fixed)
    error = refused("diff", cast, cast.with_name("none.onnx"))
    assert "no such file" in error


MODEL = """g (float[batch,3] x, bool c) => (float[batch,4] y)
{ a = MatMul(x, w)
  b = If(c)<then_branch = t () => (float[batch,4] p) { p = Relu(a) },
            else_branch = e () => (float[batch,4] q) { q = own.F(a) }>
  d = Det(square)
  y = Add(b, d) }
<domain: "own", opset_import: ["" : 20]> F (x) => (z) { z = Neg(x) }"""


def test_one_screen_tells_what_a_model_is(tmp_path: Path) -> None:
    weights = {"w": np.ones((3, 4), np.float32), "square": np.ones((2, 2), np.float32)}
    exported = model(MODEL, domains={"own": 1}, **weights)
    exported.producer_name, exported.producer_version = "pytorch", "2.13.0"
    path = write(tmp_path / "m.onnx", exported)
    screen = output(0, "inspect", path).splitlines()
    assert screen[0].startswith(str(path))
    assert screen[0].endswith("(pytorch 2.13.0, IR 10, opset 20, own 1)")
    assert screen[1].split() == ["inputs", "x", "float[batch,3]"]
    assert screen[2].split() == ["c", "bool[]"]
    assert screen[3].split() == ["outputs", "y", "float[batch,4]"]
    assert "16 numbers in 2 tensors: float 64 bytes" in screen[4]
    assert screen[5].split()[1:6] == ["7,", "2", "subgraphs,", "1", "function:"]
    assert "own.F 1" in screen[5]
    assert "1 error" in screen[6]
    assert "trt11" in screen[6]
    found = json.loads(output(0, "inspect", path, "--format", "json", "--target", "8.6"))
    assert found["target"] == "trt8.6"
    assert (found["weights"], found["subgraphs"]) == ({"float": 64}, 2)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert "no such file" in refused("inspect", tmp_path / "gone.onnx").lower()
