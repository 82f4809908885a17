"""``onnxfix view``: the nodes around a finding as a model that stands alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from support.cli import errors, output, refused, run, told
from support.models import model

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
