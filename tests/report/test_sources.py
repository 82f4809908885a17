"""Where findings come from: the line of the author's Python, as the exporters write it into a model. Fingerprints
stand while anything but the rule and the place changes, and tell any two findings apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import pytest

import onnxfix
from onnxfix.place import Place
from onnxfix.report.findings import LENGTH, fingerprints
from onnxfix.report.report import Finding
from onnxfix.source import Source, source_of
from support.cli import output
from support.models import model

SCHEMA = json.loads(
    (Path(__file__).parent / "schemas" / "sarif-schema-2.1.0.json").read_text(encoding="utf-8")
)
CODE = """\
import torch


class Block(torch.nn.Module):
    def forward(self, x):
        y = self.pool(x)
        return y.float().float()
"""
LIBRARY = "/usr/lib/python3.11/site-packages/pools/modules/pool.py"
TRACE = """File "{file}", line 6, in forward
    y = self.pool(x)
  File "{library}", line 21, in forward
    return torch.mean(x)
  File "/usr/lib/python3.11/site-packages/torch/_tensor.py", line 3, in mean
    return f(x)"""
CASTS = """g (float[2,3] x) => (float[2,3] y)
{ a = Cast<to: int = 1>(x)
  b = Cast<to: int = 1>(a)
  y = Relu(b) }"""


def traced(node: onnx.NodeProto, trace: str, scopes: str = "['', 'block', 'mean']") -> onnx.NodeProto:
    """The node with the metadata of PyTorch's dynamo exporter."""
    classes = "['__main__.Net', 'model.Block', 'aten.mean.default']"
    for key, value in (("stack_trace", trace), ("name_scopes", scopes), ("class_hierarchy", classes)):
        node.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    return node


def trace_of(file: str | Path, library: str = LIBRARY) -> str:
    return TRACE.format(file=file, library=library)


def source(node: onnx.NodeProto) -> Source:
    found = source_of(node)
    assert found is not None
    return found


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a module and its export: two Casts that do nothing come from line 7, Relu from a library."""
    for name in ("GITHUB_WORKSPACE", "CI_PROJECT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "model.py").write_text(CODE)
    save(tmp_path, tmp_path / "src" / "model.py")
    return tmp_path


def save(folder: Path, file: str | Path) -> None:
    """Write the export of a module that was in ``file``."""
    exported = model(CASTS)
    for node in exported.graph.node[:2]:
        traced(node, f'File "{file}", line 7, in forward\n    return y.float().float()')
    traced(exported.graph.node[2], trace_of(file))
    onnx.save(exported, folder / "m.onnx")


def sarif(*arguments: str) -> list[dict[str, Any]]:
    document = json.loads(output(0, "check", "m.onnx", "--format", "sarif", *arguments))
    jsonschema.validate(document, SCHEMA)
    results: list[dict[str, Any]] = document["runs"][0]["results"]
    return results


def lines(results: list[dict[str, Any]]) -> set[tuple[str, int]]:
    physical = [one["locations"][0]["physicalLocation"] for one in results]
    return {(one["artifactLocation"]["uri"], one["region"]["startLine"]) for one in physical}


# ---------------------------------------------------------------------------------------------------- of a node


def test_the_users_own_line_comes_first_and_the_librarys_behind_it() -> None:
    found = source(traced(onnx.NodeProto(), trace_of("/home/u/src/model.py")))
    assert (found.file, found.line, found.function) == ("/home/u/src/model.py", 6, "Block.forward")
    assert (found.code, found.module, found.class_name) == ("y = self.pool(x)", "block", "model.Block")
    assert found.library is not None
    assert found.library.where == "pools/modules/pool.py:21"
    assert found.text == "/home/u/src/model.py:6 (Block.forward): y = self.pool(x) → pools/modules/pool.py:21"


@pytest.mark.parametrize("file", [LIBRARY, "transformers/models/vit.py", "<frozen importlib>"])
def test_without_a_line_of_the_user_it_is_the_librarys(file: str) -> None:
    found = source(traced(onnx.NodeProto(), trace_of(file, "timm/layers/pool.py")))
    assert (found.file, found.line, found.library) == ("timm/layers/pool.py", 21, None)


def test_the_legacy_exporter_writes_modules_into_names_and_frames_into_doc_strings() -> None:
    node = onnx.NodeProto(name="/encoder/layers.0/attn/MatMul", output=["y"])
    assert source(node).text == "module encoder.layers.0.attn"
    calls = "/lib/python3.11/site-packages/torch/nn/modules/module.py(1768): _slow_forward\n"
    node.doc_string = f"/lib/python3.11/site-packages/torch/functional.py(9): matmul\n/w/m.py(4): f\n{calls}"
    assert source(node) == Source("/w/m.py", 4, "f", module="encoder.layers.0.attn")
    node.doc_string = ""
    node.name = ""
    assert source_of(node) is None
    node.output[0] = "encoder.layers.0.norm.weight"  # an Identity of a parameter
    assert source(node).module == "encoder.layers.0.norm"
    node.output[0] = "/Add_output_0"
    assert source(node).text == "the outermost module"


@pytest.mark.parametrize("text", ["", "[", "{}", "[1]", "['a'", "(" * 10_000, "__import__('os')"])
def test_metadata_that_is_something_else_is_harmless(text: str) -> None:
    node = onnx.NodeProto(doc_string="computes f(1): the sum")
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=text)
    assert source_of(node) is None or source(node).module in ("", "1")
    assert source_of(onnx.NodeProto.FromString(b"\x1a\x02\xff/")) is not None  # a name that is no UTF-8


def test_bodies_and_functions_come_from_where_their_nodes_do(tmp_path: Path) -> None:
    exported = model(
        """g (float[2,2] x, bool c) => (float y)
        { y = If(c)<then_branch = t () => (float a) { a = Det(x) },
                    else_branch = e () => (float b) { b = own.F(x) }> }
        <domain: "own", opset_import: ["" : 20]> F (x) => (z) { z = Det(x) }""",
        domains={"own": 1},
    )
    traced(exported.graph.node[0], trace_of("m.py"))
    report = onnxfix.check(exported, select="OPS056")
    found = {finding.place.output: finding.source for finding in report.findings}
    assert set(found) == {"a", "z"}
    assert {one.where for one in found.values() if one is not None} == {"m.py:6"}


def test_a_node_that_says_nothing_comes_from_where_the_nodes_around_it_agree_to() -> None:
    for line, found in ((6, {"m.py:6"}), (7, set())):
        exported = model(CASTS)
        traced(exported.graph.node[0], trace_of("m.py"))
        traced(exported.graph.node[2], trace_of("m.py").replace("line 6", f"line {line}"))
        findings = onnxfix.check(exported, select="CST002").findings
        assert {
            one.source.where for one in findings if one.source is not None and one.place.output == "b"
        } == found


# ------------------------------------------------------------------------------------------------- what people see


def test_a_fix_passes_on_where_its_nodes_come_from() -> None:
    exported = model("g (float[2,2] x) => (float y) { y = Det(x) }")
    traced(exported.graph.node[0], trace_of("m.py"))
    report = onnxfix.apply(exported, select="OPS056", rungs="contract", numeric_fixes=True)
    assert report.applied
    assert report.model is not None
    assert {source(node).where for node in report.model.graph.node} == {"m.py:6"}
    assert report.applied[0].source == source(exported.graph.node[0])


def test_the_text_report_names_the_line_once(repository: Path) -> None:
    text = output(0, "check", "m.onnx", "-v")
    assert text.count("    src/model.py:7 (Block.forward): return y.float().float()\n") == 1
    finding = json.loads(output(0, "check", "m.onnx", "--format", "jsonl"))["findings"][0]
    assert finding["place"]["source"]["line"] == 7
    assert finding["place"]["source"]["text"].startswith(
        str(repository / "src" / "model.py") + ":7 (Block.forward)"
    )


def test_sarif_shows_the_hazard_at_the_line_and_the_model_beside_it(repository: Path) -> None:
    results = sarif()
    assert lines(results) == {("src/model.py", 7)}
    for one in results:
        assert one["relatedLocations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "m.onnx"
    text = output(0, "check", "m.onnx", "--format", "gitlab")
    assert {(one["location"]["path"], one["location"]["lines"]["begin"]) for one in json.loads(text)} == {
        ("src/model.py", 7)
    }


def test_github_annotates_each_line_of_code(repository: Path) -> None:
    exported = model("g (float[2,2] x) => (float y, float z) { y = Det(x)  z = Det(x) }")
    for number, node in enumerate(exported.graph.node, 6):
        code = CODE.splitlines()[number - 1]
        traced(node, f'File "{repository}/src/model.py", line {number}, in forward\n    {code.strip()}')
    onnx.save(exported, "m.onnx")
    text = output(1, "check", "m.onnx", "--format", "github")
    assert [line.split(",title")[0] for line in text.splitlines() if "OPS056" in line] == [
        "::error file=src/model.py,line=6",
        "::error file=src/model.py,line=7",
    ]


def test_a_source_root_maps_the_folder_that_the_exporter_saw(repository: Path) -> None:
    save(repository, "/workspace/app/src/model.py")
    assert lines(sarif()) == {("m.onnx", 1)}
    assert lines(sarif("--source-root", "/workspace/app")) == {("src/model.py", 7)}
    (repository / "onnxfix.toml").write_text('source-root = ["/workspace/app/src=src"]\n')
    assert lines(sarif()) == {("src/model.py", 7)}


def test_a_line_that_moved_is_found_and_one_that_is_gone_is_not_claimed(repository: Path) -> None:
    file = repository / "src" / "model.py"
    file.write_text(f"# a new first line\n{CODE}")
    assert lines(sarif()) == {("src/model.py", 8)}
    file.write_text(CODE.replace(".float().float()", ""))
    assert lines(sarif()) == {("m.onnx", 1)}


@pytest.mark.parametrize("file", ["/etc/passwd", "../secret.py", "src/notes.txt", "src/gone.py", "a\0.py"])
def test_a_model_cannot_have_other_files_read(repository: Path, file: str) -> None:
    (repository.parent / "secret.py").write_text("\n" * 6 + "return y.float().float()\n")
    (repository / "src" / "notes.txt").write_text("\n" * 6 + "return y.float().float()\n")
    save(repository, file)
    assert lines(sarif()) == {("m.onnx", 1)}


def test_the_page_shows_the_lines_around(repository: Path) -> None:
    output(0, "check", "m.onnx", "--report", "r.html")
    page = (repository / "r.html").read_text(encoding="utf-8")
    assert "<mark>7  " in page
    assert "class Block(torch.nn.Module):" in page


ONE = Finding(
    "CST002", "no-op-cast", "info", Place(node="/a/Cast", op_type="Cast", output="c", index=7), "a Cast"
)


def test_only_the_rule_and_the_names_of_the_place_count() -> None:
    same = replace(
        ONE, message="reworded", severity="error", place=replace(ONE.place, index=9, op_type="Sub")
    )
    assert fingerprints([ONE]) == fingerprints([same])
    others = [
        replace(ONE, code="CST003"),
        replace(ONE, place=replace(ONE.place, node="/b/Cast")),
        replace(ONE, place=replace(ONE.place, output="d")),
        replace(ONE, place=replace(ONE.place, graph=("then",))),
        replace(ONE, place=Place(layer="c")),
        replace(ONE, place=Place()),
    ]
    assert len({fingerprints([one])[0] for one in (ONE, *others)}) == 7
    assert len({fingerprints([ONE], path)[0] for path in ("", "a.onnx", "b/a.onnx")}) == 3
    assert fingerprints([ONE], "b\\a.onnx") == fingerprints([ONE], "b/a.onnx")


def test_several_at_one_place_differ_and_the_first_stays() -> None:
    first, second, third = fingerprints([ONE, ONE, replace(ONE, code="X")])
    assert len({first, second, third}) == 3
    assert (first,) == fingerprints([ONE])
    assert {len(first), len(second)} == {LENGTH}


def test_without_a_place_the_message_counts() -> None:
    one, two = (replace(ONE, place=Place(), message=text) for text in ("a", "b"))
    assert fingerprints([two]) == fingerprints([one, two])[1:]


def test_names_may_hold_anything() -> None:
    odd = [Place(output=name) for name in ("\udcff", "\ud800", "a\nb", "12:", "")]
    assert len({*fingerprints([replace(ONE, place=place) for place in odd])}) == 5
    split = [Place(graph=("a", "b")), Place(graph=("ab",)), Place(graph=("a",), output="b")]
    assert len({*fingerprints([replace(ONE, place=place) for place in split])}) == 3
