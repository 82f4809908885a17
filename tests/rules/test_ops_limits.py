"""OPS020 to OPS046 and GRA006 to GRA008 against the real TensorRT-RTX: what they find is refused, what they repair is
accepted, and what they are silent about builds. Their examples are run by test_rules.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Rule, Safety
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import assert_same_outputs, findings, fixed
from support.real_tensorrt import REAL, built

RULES: dict[str, Rule] = {rule.code: rule for rule in registry().rules}


E, N, U = Safety.EXACT, Safety.NUMERIC, Safety.UNSAFE


# ------------------------------------------------------------------------- what the text format cannot say


def sparse_model(*, constant: bool) -> ModelProto:
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    sparse = helper.make_sparse_tensor(
        values, helper.make_tensor("at", TensorProto.INT64, [2, 2], [0, 1, 1, 2]), [2, 3]
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2, 3])
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    if constant:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse))
    graph = helper.make_graph(nodes, "g", [x], [y], sparse_initializer=[] if constant else [sparse])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@REAL
@pytest.mark.parametrize(
    ("code", "constant", "words"),
    [
        ("GRA006", True, "does not support the sparse_value"),
        ("GRA007", False, "Node input was not registered"),
    ],
)
def test_sparse_constants(code: str, constant: bool, words: str, worker: Worker, tmp_path: Path) -> None:
    model = sparse_model(constant=constant)
    assert words in built(worker, model, tmp_path).reason
    result, run = fixed([RULES[code]], model)
    assert not run.problems
    assert built(worker, result, tmp_path).accepted
    assert_same_outputs(model, result)


def test_a_large_sparse_tensor_is_not_written_out() -> None:
    values = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    at = helper.make_tensor("at", TensorProto.INT64, [1], [5])
    model = sparse_model(constant=False)
    model.graph.sparse_initializer[0].CopyFrom(helper.make_sparse_tensor(values, at, [1 << 20, 1 << 20]))
    found = findings(RULES["GRA007"], model)
    assert len(found) == 1
    assert found[0].match.fix is None


@pytest.mark.parametrize(
    ("places", "valid"), [([0, 5], True), ([0, 6], False), ([-1, 2], False), ([3, 3], False)]
)
def test_sparse_places(places: list[int], valid: bool) -> None:
    from onnxfix_rules.gra import constants

    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    sparse = helper.make_sparse_tensor(
        values, helper.make_tensor("at", TensorProto.INT64, [2], places), [2, 3]
    )
    tensor = constants.dense(sparse, "d", None)
    assert (tensor is not None) is valid
    if tensor is not None:
        assert onnx.numpy_helper.to_array(tensor).tolist() == [[1, 0, 0], [0, 0, 2]]


def test_every_arrangement_of_merged_axes() -> None:
    """OPS045 on random shapes and permutations of nine axes, against numpy."""
    from onnxfix_rules.ops.limits.sizes import _merged

    random = np.random.default_rng(0)
    for _ in range(300):
        sizes = tuple(int(s) for s in random.choice([1, 1, 2, 3], 9))
        order = [int(a) for a in random.permutation(9)]
        data = np.arange(int(np.prod(sizes)))
        shape, perm = _merged(sizes, order)
        wanted = data.reshape(sizes).transpose(order).reshape(-1)
        assert (data.reshape(shape).transpose(perm).reshape(-1) == wanted).all()


def test_a_turn_that_differs_from_call_to_call_hides_no_other_finding() -> None:
    """OPS045 in a function: the Reshape before it is not judged, and what comes after is."""
    wide = "s = Constant<value = int64[9] {2,1,1,1,1,1,1,1,2}>()"
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
        g (float[4] x) => (float[4] y, float[2,1,1,1,1,1,1,1,2] z) {{
            u = my.F<p = [8,7,6,5,4,3,2,1,0]>(x)  {wide}  z = Reshape(u, s)  y = Neg(u) }}
        <domain: "my", opset_import: ["" : 20]> F <p> (x) => (y) {{
            {wide}  f = Constant<value = int64[1] {{4}}>()  r = Reshape(x, s)  t = Transpose<perm: ints = @p>(r)
            y = Reshape(t, f) }}""")
    assert [item.match.place.text for item in findings(RULES["OPS045"], model)] == ["z"]
