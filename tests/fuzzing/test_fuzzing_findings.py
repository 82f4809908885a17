"""What benchmarks/fuzzing found, each in its smallest form: it must not come back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fuzzing.judging import BUG
from onnx import ModelProto, TensorProto

from onnxfix.sandbox import Worker
from support.cli import run
from support.models import model
from support.patience import PATIENCE


def replaced_node_takes_no_such_type() -> ModelProto:
    """OPS039 made a Mul of types that the ScatterND that it replaced does not take either, and was blamed for it."""
    found = model(
        """g (float[4] x, float[2] u) => (float[4] y) <int64[2,1] i = {0, 2}> {
        y = ScatterND<reduction = "mul">(x, i, u) }""",
        18,
    )
    found.graph.input[1].type.tensor_type.elem_type = TensorProto.FLOAT8E4M3FN
    return found


MODELS: dict[str, Callable[[], ModelProto]] = {
    one.__name__: one for one in (replaced_node_takes_no_such_type,)
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, tmp_path: Path) -> None:
    path, target = tmp_path / "model.onnx", tmp_path / "out.onnx"
    data = MODELS[name]().SerializeToString()
    path.write_bytes(data)
    commands = ("check", path, "-v"), ("apply", path, "-o", target, "--no-verify", "--unsafe-fixes")
    for command in commands:
        code, out, err = run(*command)
        assert 0 <= code <= 3
        assert not BUG.search(out + err), out + err
        assert code != 2 or len(err.splitlines()) == 1, err
        assert target.exists() == (command[0] == "apply" and code < 2)
    assert path.read_bytes() == data
    assert {one.name for one in tmp_path.iterdir()} <= {"model.onnx", "out.onnx"}


@pytest.mark.slow
def test_onnx_runtime_keeps_no_database_and_reports_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    variables = {"HOME": str(home), "XDG_CACHE_HOME": str(home), "XDG_DATA_HOME": str(home)}
    with Worker(variables=variables) as worker:
        done = worker.call("support.sessions:opened", timeout=PATIENCE)
    assert done.value == ["y"], done
    assert list(home.rglob("*")) == []
