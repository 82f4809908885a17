"""OPS098: reductions whose axes TensorRT before 11 ignores compute the same after the fix, for any elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety
from onnxfix.testing import fixed
from support import ort
from support.models import of_opset

RULES = [rule for rule in registry().rules if rule.code in ("OPS041", "OPS098")]
INF, NAN = np.inf, np.nan

model = of_opset(18)


def repaired(text: str, target: str, feed: dict[str, Any]) -> tuple[Any, Any, list[str]]:
    """The output before and after, and the operators after."""
    proto = model(text)
    result, run = fixed(RULES, proto, safety=Safety.NUMERIC, target=target)
    assert run.applied
    assert not run.problems
    before, after = (ort.run_or_reference(one, feed)[0] for one in (proto, result))
    return before, after, [node.op_type for node in result.graph.node]


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_logarithms_of_sums_of_infinite_and_huge_elements(kind: str, keep: int) -> None:
    rows = [
        [1, 2, 3], [-INF, -INF, -INF], [INF, 1, 2], [-INF, INF, 0], [NAN, 1, 2], [3.4e38, 3.3e38, -3.4e38],
        [-200, -201, -1e30], [250, 248, -INF],
    ]  # fmt: skip
    x = np.array(rows, {"float": np.float32, "double": np.float64}[kind])
    text = f"""g ({kind}[N,M] x) => ({kind}[{"N,A" if keep else "N"}] y) <int64[1] a = {{-1}}> {{
        y = ReduceLogSumExp<keepdims = {keep}>(x, a) }}"""
    before, after, operators = repaired(text, "trt10.6", {"x": x})
    assert "ReduceLogSumExp" not in operators
    np.testing.assert_allclose(after, before, rtol=1e-6)
