"""What ``diff`` finds between two models, and the rules that it names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from onnxfix.model import Model
from onnxfix.place import Place
from onnxfix.report.render.difference import difference_lines
from onnxfix.verbs.difference.compare import difference
from onnxfix.verbs.difference.records import ModelChange, ModelDifference
from support.models import model

BEFORE = """
m (float[N,4] x) => (float[N,4] y) {
    s = Shape(x)
    r = Reshape(x, s)
    c = Cast<to: int = 1>(r)
    y = Add(c, w)
}
"""
ONE = np.ones(4, np.float32)


def found(one: ModelProto, other: ModelProto, **options: object) -> ModelDifference:
    return difference(Model(one), Model(other), ("a", "b"), **options)  # type: ignore[arg-type]


def texts(difference: ModelDifference, *, verbose: bool = False) -> list[str]:
    """The lines below the first, with single spaces."""
    return [" ".join(str(each).split()) for each in list(difference_lines(difference, verbose=verbose))[1:]]


def mark(made: ModelProto, output: str, code: str) -> None:
    node = next(one for one in made.graph.node if output in one.output)
    node.metadata_props.add(key="onnxfix", value=code)


def test_a_model_and_itself_in_another_order_do_not_differ() -> None:
    text = "m (float[2] x) => (float[2] y, float[2] z) { y = Relu(x)\n z = Abs(x) }"
    turned = "m (float[2] x) => (float[2] y, float[2] z) { z = Abs(x)\n y = Relu(x) }"
    same = found(model(text), model(turned))
    assert (same.changes, same.exit_code) == ((), 0)
    assert [str(each) for each in difference_lines(same)] == ["a → b  no difference"]


def test_nodes_that_are_gone_new_or_changed_have_the_marks_of_their_rules() -> None:
    after = model(
        "m (float[N,4] x) => (float[N,4] y) { r = Reshape(x, k)\n n = Neg(r)\n y = Add(n, w) }",
        w=ONE,
        k=np.array([-1, 4]),
    )
    mark(after, "r", "INT002")
    mark(after, "y", "CST002")
    both = found(model(BEFORE, w=ONE), after)
    assert texts(both) == [
        "- Shape s INT002",
        "~ Reshape r shape: [N,4] → [-1,4] INT002",
        "- Cast c CST002",
        "+ Neg n CST002",
        "~ Add y A: c → n CST002",
        "constants 1 added (-v lists them)",
    ]
    assert (both.removed, both.added, both.changed, both.exit_code) == (2, 1, 2, 1)
    assert "+ initializer k int64 [-1,4] INT002" in texts(both, verbose=True)


def test_fixes_of_a_report_name_the_rule_where_the_file_can_hold_no_mark() -> None:
    after = model(
        "m (float[N,4] x) => (float[N,4] y) { s = Shape(x)\n r = Reshape(x, s)\n y = Add(r, w) }", w=ONE
    )
    both = found(model(BEFORE, w=ONE), after, applied=[("CST002", Place(output="c"))])
    assert texts(both) == ["- Cast c CST002", "~ Add y A: c → r CST002"]
    assert [one.rules for one in found(model(BEFORE, w=ONE), after).changes] == [(), ()]


def test_nodes_of_a_fix_stay_its_own_where_another_fix_changed_one_of_them() -> None:
    before = model("m (float[N,4] x) => (float[N,4] y) { a = Abs(x)\n y = Softplus(a) }")
    after = model(
        "m (float[N,4] x) => (float[N,4] y) { a = Abs(x)\n e = Exp(a)\n b = Add(e, w)\n y = Log(b) }", w=ONE
    )
    applied = [("OPS056", Place(output="y")), ("BRC001", Place(output="b"))]
    assert [line.split()[-1] for line in texts(found(before, after, applied=applied))[:3]] == ["OPS056"] * 3


def test_weights_are_compared_by_content_however_they_are_stored() -> None:
    before = model(BEFORE, w=ONE)
    typed = model(BEFORE, w=ONE)
    typed.graph.initializer[0].ClearField("raw_data")
    typed.graph.initializer[0].float_data.extend([1.0] * 4)
    assert not found(before, typed).changes
    assert texts(found(before, model(BEFORE, w=2 * ONE))) == [
        "~ initializer w float [1,1,1,1] → float [2,2,2,2]"
    ]
    large = np.zeros((1, 4000), np.float32)
    text = "m (float[1,4000] x) => (float[1,4000] y) { y = Add(x, w) }"
    other = large.copy()
    other[0, 3999] = -0.0  # equal as a number, and other bits
    assert texts(found(model(text, w=large), model(text, w=other))) == [
        "~ initializer w float[1,4000] → float[1,4000] with other values"
    ]


def test_a_constant_of_another_name_with_the_same_content_changes_no_reader() -> None:
    before = model("m (float[4] x) => (float[4] y) { y = Add(x, w) }", w=ONE)
    after = model("m (float[4] x) => (float[4] y) { y = Add(x, v) }", v=ONE)
    changes = found(before, after).changes
    assert {(one.sign, one.subject, one.place.output) for one in changes} == {
        ("removed", "initializer", "w"),
        ("added", "initializer", "v"),
    }


def test_an_output_with_another_name_is_no_new_node() -> None:
    before = model("m (float[4] x) => (float[4] y) { h = Relu(x)\n y = Abs(h) }")
    after = model("m (float[4] x) => (float[4] y) { other = Relu(x)\n y = Abs(other) }")
    assert texts(found(before, after)) == ["~ Relu h output: h → other"]


def test_interface_opsets_attributes_and_operators() -> None:
    before = model("m (float[N,4] x, float z) => (float[N,4] y) { y = Softmax<axis: int = 0>(x) }", opset=17)
    after = model(
        "m (float[2,4] x) => (float[2,4] y) { y = LogSoftmax<axis: int = 1>(x) }", opset=20, ir_version=9
    )
    after.metadata_props.add(key="made", value="by hand")
    assert texts(found(before, after)) == [
        "~ model IR version: 10 → 9",
        "~ model metadata made: none → by hand",
        "~ opset ai.onnx 17 → 20",
        "~ input x float[N,4] → float[2,4]",
        "- input z float[]",
        "~ output y float[N,4] → float[2,4]",
        "~ Softmax y Softmax → LogSoftmax; axis: 0 → 1",
    ]


def test_subgraphs_and_local_functions() -> None:
    text = """
    m (bool b, float[4] x) => (float[4] y) {
        y = If (b) <
            then_branch = t () => (float[4] p) { p = OP(x) },
            else_branch = e () => (float[4] q) { q = Neg(x) }
        >
    }
    """
    both = found(model(text.replace("OP", "Relu")), model(text.replace("OP", "Abs")))
    (change,) = both.changes
    assert change.place.graph
    assert [(one.name, one.before, one.after) for one in change.details] == [("operator", "Relu", "Abs")]
    called = """<ir_version: 10, opset_import: ["" : 20, "f" : 1]>
    m (float[4] x) => (float[4] y) { y = f.g(x) }
    <domain: "f", opset_import: ["" : 20]> g (u) => (v) { v = OP(u) }
    """
    (change,) = found(model(called.replace("OP", "Relu")), model(called.replace("OP", "Abs"))).changes
    assert (change.sign, change.place.output, len(change.place.graph)) == ("changed", "v", 1)


def test_names_are_escaped_and_long_values_cut() -> None:
    before = model("m (float[4] x) => (float[4] y) { y = Relu(x) }")
    after = ModelProto()
    after.CopyFrom(before)
    after.graph.node[0].name = "evil\n\x1b[2J"
    after.metadata_props.add(key="long", value="a" * 500)
    told = texts(found(before, after))
    assert told[1] == "~ Relu y name: none → evil\\n\\x1b[2J"
    assert len(told[0]) < 150


@pytest.mark.parametrize("kind", ["value_ints", "value"])
def test_constant_nodes_show_their_values(kind: str) -> None:
    node = (
        "k = Constant<value_ints: ints = [1, 4]>()"
        if kind == "value_ints"
        else "k = Constant<value = int64[2] {1, 4}>()"
    )
    before = model("m (float[4] x) => (float[1,4] y) { " + node + "\n y = Reshape(x, k) }")
    after = model("m (float[4] x) => (float[1,4] y) { y = Reshape(x, k) }", k=np.array([1, 4]))
    changes: dict[str, ModelChange] = {one.sign: one for one in found(before, after).changes}
    assert changes["removed"].details[0].before == "int64 [1,4]"
    assert changes["added"].details[0].after == "int64 [1,4]"
    assert len(changes) == 2


def test_external_weights_are_read_from_the_folder_of_each_model(tmp_path: Path) -> None:
    loaded = []
    for name, value in (("a", 1.0), ("b", 2.0)):
        made = model(
            "m (float[4000] x) => (float[4000] y) { y = Add(x, w) }", w=np.full(4000, value, np.float32)
        )
        (tmp_path / name).mkdir()
        path = tmp_path / name / "m.onnx"
        onnx.save(made, path, save_as_external_data=True, location="w.bin", size_threshold=0)
        loaded.append(Model(onnx.load(path, load_external_data=False), path.parent))
    assert len(difference(loaded[0], loaded[1], ("a", "b")).changes) == 1
    assert not difference(loaded[0], loaded[0], ("a", "a")).changes
    same = Model(model("m (float[4000] x) => (float[4000] y) { y = Add(x, w) }", w=np.ones(4000, np.float32)))
    assert numpy_helper.to_array(same.proto.graph.initializer[0])[0] == 1
    assert not difference(loaded[0], same, ("a", "c")).changes


def _norms(count: int, decomposed: bool) -> ModelProto:
    """Blocks that end in a norm, of one node or of seven; before them a Cast that only the decomposed model has."""
    lines = ["h0 = Cast<to: int = 1>(x)" if decomposed else "h0 = Relu(x)"]
    for at in range(count):
        lines.append(f"m{at} = Relu(h{at})")
        if decomposed:
            lines += [
                f"a{at} = ReduceMean<axes: ints = [-1]>(m{at})  s{at} = Sub(m{at}, a{at})  p{at} = Mul(s{at}, s{at})",
                f"v{at} = ReduceMean<axes: ints = [-1]>(p{at})  q{at} = Sqrt(v{at})  d{at} = Div(s{at}, q{at})",
                f"h{at + 1} = Mul(d{at}, g)",
            ]
        else:
            lines.append(f"h{at + 1} = LayerNormalization(m{at}, g)")
    body = "\n".join(lines)
    return model(f"m (float[N,4] x) => (float[N,4] h{count}) {{ {body} }}", 17, g=ONE)


def test_many_changes_are_grouped_by_what_was_replaced() -> None:
    both = found(_norms(4, True), _norms(4, False))
    assert texts(both) == [
        "4 times: 2 ReduceMean, 2 Mul, 1 Sub, 1 Sqrt, 1 Div → 1 LayerNormalization",
        "at a0, a1, a2",
        "1 Cast → 1 Relu",
        "at h0 (Cast → Relu)",
    ]
    assert len(texts(both, verbose=True)) == len(both.changes) == 29
    first = both.groups[0]
    assert (first.rule, first.times, first.added) == ("", 4, {"LayerNormalization": 4})
    assert sorted(number for one in both.groups for number in one.changes) == [*range(29)]


def test_many_changes_are_grouped_by_the_rule_that_is_behind_most_of_them() -> None:
    applied = [("PRC001", Place(output=f"h{at}")) for at in range(1, 5)]
    both = found(_norms(4, True), _norms(4, False), applied=[*applied, ("CST002", Place(output="h1"))])
    lines = texts(both)
    assert lines[0].startswith("PRC001 decomposed-norm-in-half-precision: 8 ReduceMean, 8 Mul, 4 Sub")
    assert [one.rule for one in both.groups] == ["PRC001", ""]
