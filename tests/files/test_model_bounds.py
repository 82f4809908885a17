"""What a model may take of memory and time is decided before it is parsed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from onnx import ModelProto
from typer.testing import CliRunner

import onnxfix
from onnxfix.cli.app import app
from onnxfix.errors import ModelError, OnnxfixError
from onnxfix.files import bounds, loading
from onnxfix.files.bounds import TooLarge
from onnxfix.files.wire import varint
from onnxfix.runtime.allowance import STRUCTURE_MB
from support.wire import field, model, node, tensor, times, whole

MIB = 1 << 20


def attribute(more: bytes) -> bytes:
    return field(1, node(field(5, field(1, b"a") + more)))


LARGE = {
    "empty nodes": lambda size: model(times(1, b"", size)),
    "nodes with a short name": lambda size: model(times(1, field(4, b"A"), size)),
    "empty value infos": lambda size: model(times(13, b"", 2 * size)),
    "empty attributes": lambda size: model(nodes=field(1, node(times(5, b"", size)))),
    "attributes with a name": lambda size: model(nodes=field(1, node(times(5, field(1, b"a"), size)))),
    "empty graphs in an attribute": lambda size: model(nodes=attribute(times(11, b"", size))),
    "empty tensors in an attribute": lambda size: model(nodes=attribute(times(10, b"", size))),
    "outputs of a node": lambda size: model(nodes=field(1, node(times(2, b"", size)))),
    "empty functions": lambda size: model(more=times(25, b"", size)),
    "empty training graphs": lambda size: model(more=times(20, b"", size)),
    "empty initializers": lambda size: model(times(5, b"", size)),
    "the graph again and again": lambda size: model(more=times(7, b"", size)),
    "imports": lambda size: model(more=times(8, b"", 2 * size)),
    "nodes behind a tag of two bytes": lambda size: model((varint(1 << 3 | 2 | 0x80)[:1] + b"\0\0") * (size // 3)),
    "nodes behind a group": lambda size: model(varint(50 << 3 | 3) + varint(50 << 3 | 4) + times(1, b"", size)),
    "nodes before what is no field": lambda size: model(times(1, b"", size) + b"\0\0"),
    "nodes behind a weight": lambda size: model(field(5, tensor(more=field(9, bytes(size)))) + times(1, b"", size)),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_a_model_that_fills_memory_is_refused_before_it_is_parsed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "BASE", 1 * MIB)
    (path := tmp_path / "m.onnx").write_bytes(LARGE[name](64 << 10))
    with (
        mock.patch.object(loading, "parse", side_effect=AssertionError("it was parsed")),
        pytest.raises(TooLarge, match=r"m\.onnx: its structure would .* ONNXFIX_STRUCTURE_MB sets another"),
    ):
        loading.load(path)


MANY = {
    "dimensions": lambda: model(field(5, tensor((2,) * 9))),
    "a list of many numbers": lambda: model(nodes=attribute(field(8, b"\1" * 10**5) + whole(20, 7))),
    "the same, a field each": lambda: model(nodes=attribute(b"\x40\x01" * 10**5 + whole(20, 7))),
    "a list of many floats": lambda: model(nodes=attribute(b"\x3d\0\0\0\0" * 10**5 + whole(20, 6))),
    "a long text": lambda: model(field(10, b"d" * 5 * MIB)),
    "a large weight": lambda: model(field(5, tensor((MIB,), field(9, bytes(4 * MIB))))),
    "twenty thousand nodes": lambda: model(
        b"".join(field(1, node(output=b"o%d" % number)) for number in range(20_000))
    ),
}


@pytest.mark.parametrize("name", MANY)
def test_what_a_real_model_may_hold_is_within_the_limit(name: str) -> None:
    bounds.check(MANY[name]())


def charged(data: bytes) -> int:
    """The charge of a small model, which is otherwise not looked at."""
    with mock.patch.dict(os.environ, {STRUCTURE_MB: "1"}), pytest.raises(TooLarge):
        bounds.measure(data, bounds.Budget())
    with mock.patch.dict(os.environ, {STRUCTURE_MB: str(10**5)}):
        budget = bounds.Budget()
        budget.allowance = lambda size: -1
        return bounds.measure(data, budget)


def test_two_million_nodes_are_within_the_limit() -> None:
    some = b"".join(
        field(1, node(output=b"v%06d" % number, read=b"v%06d" % number)) for number in range(20_000)
    )
    share = charged(model(some)) / len(some)
    size = len(some) * 100
    assert 1 << 30 < share * size < bounds.Budget().allowance(size)


@pytest.mark.slow
def test_the_environment_sets_the_limit_of_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = model(b"".join(field(1, node(output=b"o%d" % number)) for number in range(2000)))
    Path("m.onnx").write_bytes(data)
    line = "its structure would take too much memory"
    more = {
        "view": ["--rule", "GRA001", "-o", "part.onnx"],
        "diff": ["m.onnx"],
        "diagnose": ["--against", "fp16"],
        "reduce": ["--check", "ort-cpu"],
        "precision": ["-o", "low.onnx", "--to", "fp16", "--max-error", "0.1"],
    }
    monkeypatch.setenv(STRUCTURE_MB, "1")
    for command in (*more, "check", "apply", "verify", "lift", "layers"):
        done = CliRunner().invoke(app, [command, "m.onnx", *more.get(command, [])])
        assert (done.exit_code, line in done.stderr, done.stderr.count("\n")) == (2, True, 1), command
    for call in (onnxfix.check, onnxfix.apply, onnxfix.verify):
        for source in ("m.onnx", data, ModelProto.FromString(data)):
            with pytest.raises(ModelError, match=line):
                call(source)
    monkeypatch.setenv(STRUCTURE_MB, "100")
    assert len(loading.load(Path("m.onnx")).proto.graph.node) == 2001
    monkeypatch.setenv(STRUCTURE_MB, "much")
    with pytest.raises(OnnxfixError, match="ONNXFIX_STRUCTURE_MB=much: is not a number"):
        loading.load(Path("m.onnx"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["empty nodes", "empty functions"])
def test_the_whole_process_stays_small(name: str, tmp_path: Path) -> None:
    (path := tmp_path / "m.onnx").write_bytes(LARGE[name](5 * MIB))
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (700 << 20,) * 2)\n"
        "from onnxfix.cli.app import main; sys.argv = ['onnxfix', 'check', sys.argv[1]]; main()"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 2, done.stderr
    assert "ONNXFIX_STRUCTURE_MB" in done.stderr
