"""Stand-ins for weights that stay in their file: what they say, when they are the same, who may read them, what it
costs.
"""

from __future__ import annotations

import copy
import errno
import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import onnxfix
from onnxfix.errors import ModelError, OnnxfixError
from onnxfix.files import lazy, loading, saving, walk, wire
from support import eager
from support.eager import field
from support.patience import PATIENCE

FLOATS = np.arange(1000, dtype=np.float32)


def tensor_of(name: str, array: Any = FLOATS, **fields: Any) -> TensorProto:
    tensor = numpy_helper.from_array(np.asarray(array), name)
    for key, value in fields.items():
        setattr(tensor, key, value)
    return tensor


def model_of(*weights: TensorProto, nodes: tuple[NodeProto, ...] = ()) -> ModelProto:
    infos = [helper.make_tensor_value_info(name, 1, ["N"]) for name in "xy"]
    node = helper.make_node("Neg", ["x"], ["y"])
    graph = helper.make_graph([*nodes, node], "g", infos[:1], infos[1:], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def written(folder: Path, *weights: TensorProto, name: str = "m.onnx") -> Path:
    path = folder / name
    path.write_bytes(model_of(*weights).SerializeToString())
    return path


def opened(folder: Path, *weights: TensorProto, name: str = "m.onnx") -> loading.Loaded:
    return loading.open_model(written(folder, *weights, name=name), large=lazy.TOKEN_SIZE)


# ---------------------------------------------------------------------------------------------------------- stand-ins


def test_what_only_looks_like_a_stand_in_is_none() -> None:
    for raw in (b"", lazy.NONCE, lazy.NONCE + bytes(20), lazy.NONCE + bytes(22), bytes(lazy.TOKEN_SIZE)):
        assert lazy.range_of(TensorProto(raw_data=raw)) is None


def pairs() -> dict[str, tuple[TensorProto, TensorProto, bool]]:
    numbers = TensorProto(name="w", data_type=1, dims=[1000], float_data=FLOATS)
    other = FLOATS.copy()
    other[999] += 1
    zero = FLOATS.copy()
    zero[0] = -0.0
    return {
        "equal": (tensor_of("w"), tensor_of("w"), True),
        "last number": (tensor_of("w"), tensor_of("w", other), False),
        "sign of zero": (tensor_of("w"), tensor_of("w", zero), False),
        "length": (tensor_of("w"), tensor_of("w", np.append(FLOATS, 0)), False),
        "name": (tensor_of("w"), tensor_of("v"), False),
        "type": (tensor_of("w"), tensor_of("w", data_type=6), False),
        "field": (tensor_of("w"), numbers, False),
        "floats": (numbers, numbers, True),
        "words": (tensor_of("w"), tensor_of("w", doc_string="d"), False),
        "short": (tensor_of("w"), tensor_of("w", FLOATS[:3]), False),
    }


@pytest.mark.parametrize("word", pairs())
def test_same(tmp_path: Path, word: str) -> None:
    """In two files, in one, and where one of them is in memory."""
    first, second, equal = pairs()[word]
    one, other = opened(tmp_path, first), opened(tmp_path, second, name="other.onnx")
    both = opened(tmp_path, first, second, name="both.onnx")
    a, b = one.proto.graph.initializer[0], other.proto.graph.initializer[0]
    assert lazy.range_of(a) is not None
    assert lazy.same(a, b) == equal
    assert lazy.same(b, a) == equal
    assert lazy.same(a, second) == equal
    assert lazy.same(first, b) == equal
    assert lazy.same(first, second) == equal
    assert lazy.same(*both.proto.graph.initializer) == equal
    assert lazy.same(a, a)
    keys = [lazy.keyed(tensor.SerializeToString(deterministic=True)) for tensor in (a, b)]
    assert (keys[0] == keys[1]) == equal


# ---------------------------------------------------------------------------------------------- sources and their life


def test_a_report_can_be_copied_and_sent(tmp_path: Path) -> None:
    """With its model, and without the open file: a copy that closes it would close another process's, or ours."""
    path = written(tmp_path, tensor_of("w", np.arange(100_000, dtype=np.float32)))
    report = onnxfix.check(path)
    for copied in (copy.deepcopy(report), pickle.loads(pickle.dumps(report))):
        assert copied == report
        assert copied.model.SerializeToString() == path.read_bytes()
    del copied
    gc.collect()
    assert report.model.SerializeToString() == path.read_bytes()
    loaded = loading.load(path)
    with pytest.raises(TypeError, match=r"m\.onnx: an open file can neither"):
        copy.deepcopy(loaded)


def test_runs_leave_no_file_open(tmp_path: Path) -> None:
    path = written(tmp_path, tensor_of("w", np.zeros(100_000, np.float32)))
    for run in range(4):
        onnxfix.check(path)
        onnxfix.apply(path, tmp_path / "out.onnx", verify=False)
        gc.collect()
        if run == 0:  # what is opened once stays open
            before = eager.open_files()
    assert eager.open_files() == before


def test_numbers_of_sources_are_not_used_twice(tmp_path: Path) -> None:
    """A stand-in of a file that was closed is not taken for one of the next file."""
    first = opened(tmp_path, tensor_of("w"))
    tensor = walk.copied(first.proto.graph.initializer[0])
    del first
    other = opened(tmp_path, tensor_of("w", -FLOATS), name="other.onnx")
    with pytest.raises(ModelError, match="closed"):
        lazy.with_payload(tensor)
    assert other.source is not None


# --------------------------------------------------------------------------------------------------- how it is written


def refusing(code: int) -> Callable[..., int]:
    def copy(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    return copy


def halving() -> Callable[..., int]:
    """Copies less than it is asked for, as the kernel may."""
    real = os.copy_file_range

    def copy(source: int, destination: int, count: int, offset: int) -> int:
        return real(source, destination, max(1, count // 2), offset)

    return copy


def failing_after(calls: int, code: int) -> Callable[..., int]:
    real, done = os.copy_file_range, [0]

    def copy(source: int, destination: int, count: int, offset: int) -> int:
        done[0] += 1
        if done[0] > calls:
            raise OSError(code, os.strerror(code))
        return real(source, destination, min(count, 50_000), offset)

    return copy


BIG = np.arange(100_000, dtype=np.float32)
FALLBACKS = {
    "another file system": lambda: refusing(errno.EXDEV),
    "not on this system": lambda: refusing(errno.ENOSYS),
    "nothing copied": lambda: lambda *_: 0,
    "absent": lambda: None,
    "in small steps": halving,
    "half-way to another file system": lambda: failing_after(2, errno.EXDEV),
}


@pytest.mark.parametrize("way", FALLBACKS)
def test_copying_in_every_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    wanted = model_of(tensor_of("w", BIG), tensor_of("v", BIG[::-1]), tensor_of("s"))
    loaded, out = opened(tmp_path, *wanted.graph.initializer), tmp_path / "out.onnx"
    copy = FALLBACKS[way]()
    if copy is None:
        monkeypatch.delattr(os, "copy_file_range")
    else:
        monkeypatch.setattr(os, "copy_file_range", copy)
    assert not saving.save(loaded.proto, out)
    assert out.read_bytes() == wanted.SerializeToString(deterministic=True)
    loaded.copy_to(out)
    assert out.read_bytes() == loaded.path.read_bytes()
    saving.copy_file(loaded.path, out)
    assert out.read_bytes() == loaded.path.read_bytes()


def test_short_reads_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may read and write less than it is asked for."""
    wanted, read, write = model_of(tensor_of("w", BIG)), os.pread, os.write
    loaded, out = opened(tmp_path, *wanted.graph.initializer), tmp_path / "out.onnx"
    monkeypatch.setattr(os, "copy_file_range", refusing(errno.EXDEV))
    monkeypatch.setattr(os, "pread", lambda fd, count, offset: read(fd, min(count, 77_777), offset))
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:33_333]))
    saving.save(loaded.proto, out)
    assert out.read_bytes() == wanted.SerializeToString(deterministic=True)
    assert lazy.with_payload(loaded.proto.graph.initializer[0]) == tensor_of("w", BIG)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_full_disk_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_place: bool) -> None:
    chain = (helper.make_node("Cast", ["x"], ["a"], to=11), helper.make_node("Cast", ["a"], ["b"], to=1))
    path = tmp_path / "m.onnx"
    path.write_bytes(model_of(tensor_of("w", BIG), nodes=chain).SerializeToString())
    before = path.read_bytes()
    monkeypatch.setattr(os, "copy_file_range", refusing(errno.ENOSPC))
    output = None if in_place else tmp_path / "out.onnx"
    with pytest.raises(OnnxfixError, match="No space left"):
        onnxfix.apply(path, output, in_place=in_place, verify=False, ignore=["GRA"])
    assert [item.name for item in tmp_path.iterdir()] == ["m.onnx"]
    assert path.read_bytes() == before


# ------------------------------------------------------------------------------------------------------------- memory

MEASURE = r"""
import re, sys
import onnxfix
command, path, out = sys.argv[1:]
if command == "check":
    onnxfix.check(path)
else:
    report = onnxfix.apply(path, out, verify=False)
    assert report.output and report.applied, report
# Not ru_maxrss: that begins with what the process that started this one held.
print(int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) // 1024)
"""
WEIGHT = 75_000_000  # bytes of each of four


def heavy(path: Path) -> None:
    """A model with 300 MB of zeros in a sparse file, and Casts to remove."""
    graph, heads, last = [_node("Cast", ["x"], ["c"], to=11), _node("Cast", ["c"], ["d"], to=1)], [], "d"
    for index in range(4):
        graph.append(_node("Add", [last, f"w{index}"], [f"s{index}"]))
        last = f"s{index}"
        heads.append(_head(f"w{index}"))
    graph.append(_node("Identity", [last], ["y"]))
    for number, name in ((11, "x"), (12, "y")):
        graph.append(field(number, helper.make_tensor_value_info(name, 1, [WEIGHT // 4]).SerializeToString()))
    length = sum(len(head) + WEIGHT for head in heads) + len(b"".join(graph))
    with path.open("wb") as file:
        file.write(field(1, 8) + field(8, field(2, 17)) + wire.prefix(7, length))
        for head in heads:
            file.write(head)
            file.seek(WEIGHT, os.SEEK_CUR)
        file.write(b"".join(graph))


def _node(op_type: str, inputs: list[str], outputs: list[str], **attributes: int) -> bytes:
    return field(1, helper.make_node(op_type, inputs, outputs, **attributes).SerializeToString())


def _head(name: str) -> bytes:
    """What stands before a weight's bytes: an initializer's beginning."""
    tensor = TensorProto(name=name, data_type=1, dims=[WEIGHT // 4]).SerializeToString()
    tensor += wire.prefix(lazy.RAW, WEIGHT)
    return wire.prefix(5, len(tensor) + WEIGHT) + tensor


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "apply"])
def test_memory_follows_the_graph(tmp_path: Path, command: str) -> None:
    path = tmp_path / "m.onnx"
    heavy(path)
    words = [sys.executable, "-c", MEASURE, command, str(path), str(tmp_path / "out.onnx")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150, "somebody read weights"
    (tmp_path / "out.onnx").unlink(missing_ok=True)
    path.unlink()
