"""Demands on sizes against models that nobody wrote for them: what runs is not excluded, what is excluded fails."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxfix.inputs.sizes.problem import Problem, open_graph, problem_of
from support import shape_oracle

pytestmark = pytest.mark.corpus

#: Models whose sizes break a demand although ONNX gives expected values for them, with the reason.
EXCUSED: dict[str, str] = {}


def sizes_of(proto: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> dict[str, int]:
    """The sizes of the symbols of a symbolized model for these inputs."""
    return {
        dim.dim_param: arrays[info.name].shape[axis]
        for info in proto.graph.input
        if info.name in arrays
        for axis, dim in enumerate(info.type.tensor_type.shape.dim)
        if dim.dim_param
    }


def fails(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> bool | None:
    """Whether ONNX Runtime fails with these inputs; None where it does not load the model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:
        return None
    try:
        session.run(None, feeds)
    except Exception:
        return True
    return False


@pytest.mark.xdist_group("nodes")
@pytest.mark.parametrize("constants", [False, True])
def test_sizes_that_run_are_not_excluded_and_excluded_ones_fail(constants: bool, stride: int) -> None:
    """ONNX's node models with all sizes of their inputs unknown; each again with one size changed."""
    cases = shape_oracle.node_cases()[::stride]
    demanding = changed = 0
    wrong: dict[str, str] = {}
    rnd = np.random.default_rng(7)
    for case in cases:
        for inputs, _ in case.data_sets[:1]:
            arrays = {
                info.name: array
                for info, array in zip(case.model.graph.input, inputs, strict=False)
                if isinstance(array, np.ndarray)
            }
            proto = shape_oracle.symbolized(case.model, inputs, constants)
            problem = problem_of(open_graph(proto))
            sizes = sizes_of(proto, arrays)
            demanding += bool(problem.demands)
            broken = problem.broken(sizes)
            if broken and case.name not in EXCUSED:
                wrong[case.name] = str(broken[0])
            changed += judged(case.name, proto, problem, arrays, sizes, rnd, wrong)
    assert not wrong
    assert demanding > 150 // stride
    assert changed > 60 // stride


def judged(
    name: str,
    proto: onnx.ModelProto,
    problem: Problem,
    arrays: dict[str, np.ndarray],
    sizes: dict[str, int],
    rnd: np.random.Generator,
    wrong: dict[str, str],
) -> bool:
    """Change one size so that a demand breaks, and see ONNX Runtime fail; whether there was one to change."""
    for symbol in sizes:
        other = {**sizes, symbol: sizes[symbol] + int(rnd.integers(1, 3))}
        broken = problem.broken(other)
        if not broken:
            continue
        feeds = {}
        for info in proto.graph.input:
            if info.name not in arrays:
                return False
            dims = [other.get(dim.dim_param, dim.dim_value) for dim in info.type.tensor_type.shape.dim]
            feeds[info.name] = np.resize(arrays[info.name], dims).astype(arrays[info.name].dtype)
        ended = fails(proto, feeds)
        if ended is False and name not in EXCUSED:
            wrong[f"{name} with {symbol}={other[symbol]}"] = str(broken[0])
        return ended is True
    return False
