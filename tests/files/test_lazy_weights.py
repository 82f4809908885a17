"""Stand-ins for weights that stay in their file: what they say, when they are the same, who may read them, what it
costs.
"""
# Long because: what stand-ins say, how they are written and what they cost, in small models that many tests share.

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
from google.protobuf.descriptor import FieldDescriptor
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import onnxfix
from onnxfix.errors import ModelError, OnnxfixError
from onnxfix.files import copying, lazy, loading, saving, scan, tensors, wire
from onnxfix.files.atomic import temporary_beside
from onnxfix.files.lazy import Pending
from onnxfix.model import Model
from onnxfix.runtime.forks import forked
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


# ------------------------------------------------------------------------------------------ field numbers of onnx.proto


def reachable() -> dict[str, Any]:
    """The messages that a model may hold, by name."""
    found: dict[str, Any] = {}
    stack = [ModelProto.DESCRIPTOR]
    while stack:
        message = stack.pop()
        if message.name not in found:
            found[message.name] = message
            stack.extend(f.message_type for f in message.fields if f.type == FieldDescriptor.TYPE_MESSAGE)
    return found


def test_every_field_that_leads_to_a_tensor_is_known() -> None:
    """By the descriptors of the onnx package that is installed."""
    messages = reachable()
    inner = {
        name: {
            f.number: f.message_type.name for f in message.fields if f.type == FieldDescriptor.TYPE_MESSAGE
        }
        for name, message in messages.items()
    }
    leading = {scan.TENSOR}
    while True:
        more = {name for name, held in inner.items() if leading.intersection(held.values())} - leading
        if not more:
            break
        leading |= more
    wanted = {
        name: {number: held for number, held in inner[name].items() if held in leading}
        for name in leading
        if name != scan.TENSOR
    }
    assert wanted == scan.INSIDE
    assert not leading.intersection(inner[scan.TENSOR].values()), "a tensor in a tensor"


def test_fields_that_protobuf_merges_are_known() -> None:
    messages = reachable()
    singular = {
        (name, number)
        for name, held in scan.INSIDE.items()
        for number, kind in held.items()
        if not wire.is_repeated(messages[name].fields_by_number[number])
        and kind in (scan.TENSOR, "SparseTensorProto")
    }
    assert singular == scan.SINGULAR


def test_payloads_are_known() -> None:
    """All fields of a tensor that may be long, but strings and what describes it."""
    descriptor = TensorProto.DESCRIPTOR
    assert {number: descriptor.fields_by_number[number].name for number in lazy.PAYLOADS} == lazy.PAYLOADS
    data = {f.number for f in descriptor.fields if f.name.endswith("_data")}
    assert data == {*lazy.PAYLOADS, scan.STRING_DATA, scan.EXTERNAL_DATA}
    assert descriptor.fields_by_name["data_type"].number == 2  # as the splicer reads it
    assert descriptor.fields_by_name["raw_data"].number == lazy.RAW


# ---------------------------------------------------------------------------------------------------------- stand-ins


def test_what_a_stand_in_says(tmp_path: Path) -> None:
    loaded = opened(tmp_path, tensor_of("w"), tensor_of("short", np.arange(3)))
    assert loaded.path is not None
    tensor, short = loaded.proto.graph.initializer
    where = lazy.range_of(tensor)
    assert where is not None
    assert (where.field, where.length) == (lazy.RAW, FLOATS.nbytes)
    assert loaded.path.read_bytes()[where.offset : where.offset + where.length] == FLOATS.tobytes()
    assert where.read() == FLOATS.tobytes()
    assert tensor.raw_data == where.token
    assert lazy.range_at(where.token) == where
    assert (tensor.name, tensor.data_type, list(tensor.dims)) == ("w", 1, [1000])
    assert not tensors.is_external(tensor)
    assert tensors.nbytes(tensor) == FLOATS.nbytes
    assert lazy.range_of(short) is None
    assert lazy.with_payload(short) is short
    assert lazy.with_payload(tensor) == tensor_of("w")
    assert lazy.range_of(tensor) == where, "whole changed the tensor itself"


def test_what_only_looks_like_a_stand_in_is_none() -> None:
    for raw in (b"", lazy.NONCE, lazy.NONCE + bytes(20), lazy.NONCE + bytes(22), bytes(lazy.TOKEN_SIZE)):
        assert lazy.range_of(TensorProto(raw_data=raw)) is None


@pytest.mark.parametrize(("number", "name"), lazy.PAYLOADS.items())
def test_stored_in(tmp_path: Path, number: int, name: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(eager.model_of_tensor(field(number, bytes(80))))
    loaded = eager.opened(path)
    lazily = loaded.proto.graph.initializer[0]
    eagerly = eager.parsed(path.read_bytes()).graph.initializer[0]
    assert lazy.range_of(lazily) is not None
    for other in (*lazy.PAYLOADS.values(), "string_data"):
        assert lazy.stored_in(lazily, other) == lazy.stored_in(eagerly, other) == (other == name)
    assert lazy.with_payload(lazily) == eagerly


def test_stored_in_of_what_is_empty() -> None:
    assert lazy.stored_in(TensorProto(raw_data=b""), "raw_data")
    assert not lazy.stored_in(TensorProto(), "raw_data")
    assert not lazy.stored_in(TensorProto(), "float_data")


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


def test_keyed_hides_no_difference_outside_of_weights(tmp_path: Path) -> None:
    """Several stand-ins in one message; the same weight at two places of the file has one key."""
    loaded = opened(tmp_path, tensor_of("w"), tensor_of("w"), tensor_of("v"), tensor_of("w", FLOATS[::-1]))
    first, again, named, turned = (t.SerializeToString() for t in loaded.proto.graph.initializer)
    assert first != again
    assert lazy.keyed(first) == lazy.keyed(again)
    assert lazy.keyed(first) != lazy.keyed(named)
    assert lazy.keyed(first) != lazy.keyed(turned)
    assert lazy.keyed(first + turned) == lazy.keyed(again + turned) != lazy.keyed(turned + again)
    assert lazy.NONCE not in lazy.keyed(first + again + named + turned)
    assert lazy.keyed(b"no stand-in") == b"no stand-in"


def test_pending_reads_once_and_leaves_the_model_alone(tmp_path: Path) -> None:
    loaded = opened(tmp_path, tensor_of("w"))
    before = loaded.proto.SerializeToString()
    pending = Pending(loaded.proto, loaded)
    assert pending.model() is pending.model()
    assert pending.model() == model_of(tensor_of("w"))
    assert loaded.proto.SerializeToString() == before == loaded.fresh().SerializeToString()


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
    assert report.model is not None
    assert report.model.SerializeToString() == path.read_bytes()
    loaded = loading.load(path)
    with pytest.raises(TypeError, match=r"m\.onnx: an open file can neither"):
        copy.deepcopy(loaded)


def test_a_model_closes_its_file(tmp_path: Path) -> None:
    path = written(tmp_path, tensor_of("w"))
    gc.collect()
    before = eager.open_files()
    loaded = loading.open_model(path, large=lazy.TOKEN_SIZE)
    assert eager.open_files() == before + 1
    pending = Pending(loaded.proto, loaded)
    del loaded
    assert pending.model() == model_of(tensor_of("w"))
    assert eager.open_files() == before + 1
    del pending
    assert eager.open_files() == before


def test_runs_leave_no_file_open(tmp_path: Path) -> None:
    path = written(tmp_path, tensor_of("w", np.zeros(100_000, np.float32)))
    onnxfix.check(path)
    gc.collect()
    before = eager.open_files()
    for _ in range(3):
        onnxfix.check(path)
        onnxfix.apply(path, tmp_path / "out.onnx", verify=False)
    gc.collect()
    assert eager.open_files() == before


def test_a_weight_of_a_closed_file_is_an_error(tmp_path: Path) -> None:
    loaded = opened(tmp_path, tensor_of("w"))
    proto, out = loaded.proto, tmp_path / "out.onnx"
    tensor = proto.graph.initializer[0]
    del loaded
    calls: list[Callable[[], object]] = [
        lambda: lazy.with_payload(tensor),
        lambda: lazy.range_of(tensor),
        lambda: lazy.keyed(tensor.SerializeToString()),
        lambda: tensors.to_array(tensor, None, 1 << 20),
        lambda: saving.save(proto, out),
        lambda: saving.serialize(proto),
    ]
    for call in calls:
        with pytest.raises(ModelError, match="the file with this weight was closed"):
            call()
    assert not out.exists()


def test_numbers_of_sources_are_not_used_twice(tmp_path: Path) -> None:
    """A stand-in of a file that was closed is not taken for one of the next file."""
    first = opened(tmp_path, tensor_of("w"))
    tensor = TensorProto()
    tensor.CopyFrom(first.proto.graph.initializer[0])
    del first
    other = opened(tmp_path, tensor_of("w", -FLOATS), name="other.onnx")
    with pytest.raises(ModelError, match="closed"):
        lazy.with_payload(tensor)
    assert other.source is not None


def _first_number(tensor: TensorProto) -> float:
    return float(numpy_helper.to_array(lazy.with_payload(tensor))[-1])


def test_a_fork_reads_what_its_parent_opened(tmp_path: Path) -> None:
    loaded = opened(tmp_path, tensor_of("w"))
    outcome = forked(_first_number, loaded.proto.graph.initializer[0], timeout=PATIENCE)
    assert outcome.ok, outcome.message
    assert outcome.value == 999
    assert _first_number(loaded.proto.graph.initializer[0]) == 999, "the fork closed the file of its parent"


def test_constants_of_the_overlay(tmp_path: Path) -> None:
    constant = helper.make_node("Constant", [], ["c"], value=tensor_of("t", FLOATS * 2))
    path = tmp_path / "m.onnx"
    path.write_bytes(model_of(tensor_of("w"), nodes=(constant,)).SerializeToString())
    loaded = loading.open_model(path, large=lazy.TOKEN_SIZE)
    assert eager.stand_ins(loaded) == 2
    values = Model(loaded.proto, None).main.values
    for name, wanted in (("w", FLOATS), ("c", FLOATS * 2)):
        assert values[name].constant(FLOATS.nbytes - 1) is None
        assert np.array_equal(values[name].constant(), wanted)


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
    "not for these files": lambda: refusing(errno.EINVAL),
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
    assert loaded.path is not None
    assert out.read_bytes() == loaded.path.read_bytes()
    copying.copy_file(loaded.path, out)
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


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG])
@pytest.mark.parametrize("calls", [0, 2])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, calls: int) -> None:
    path = written(tmp_path, tensor_of("w", BIG))
    loaded = loading.open_model(path)
    monkeypatch.setattr(os, "copy_file_range", failing_after(calls, code))
    for write in (
        lambda p: saving.save(loaded.proto, p),
        loaded.copy_to,
        lambda p: copying.copy_file(path, p),
    ):
        with (
            temporary_beside(tmp_path / "out.onnx") as temporary,
            pytest.raises(OnnxfixError, match=f"cannot be written: {os.strerror(code)}"),
        ):
            write(temporary)
    assert [item.name for item in tmp_path.iterdir()] == ["m.onnx"]


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
if command == "load":
    from onnxfix.files import loading
    loading.load(path)
elif command == "check":
    onnxfix.check(path)
else:
    report = onnxfix.apply(path, out, verify=False)
    assert report.output and report.applied, report
# Not ru_maxrss: that begins with what the process that started this one held.
print(int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) // 1024)
"""
WEIGHT = 75_000_000  # bytes of each of four


def heavy(path: Path, constants: bool) -> None:
    """A model with 300 MB of zeros in a sparse file, and Casts to remove."""
    graph, heads, last = [_node("Cast", ["x"], ["c"], to=11), _node("Cast", ["c"], ["d"], to=1)], [], "d"
    for index in range(4):
        graph.append(_node("Add", [last, f"w{index}"], [f"s{index}"]))
        last = f"s{index}"
        heads.append(_head(f"w{index}", constants))
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


def _head(name: str, constant: bool) -> bytes:
    """What stands before a weight's bytes: an initializer's beginning, or a Constant's."""
    tensor = TensorProto(name=name, data_type=1, dims=[WEIGHT // 4]).SerializeToString()
    tensor += wire.prefix(lazy.RAW, WEIGHT)
    head = wire.prefix(5, len(tensor) + WEIGHT) + tensor
    if not constant:
        return head
    head = field(1, b"value") + field(20, 4) + head
    head = field(2, name.encode()) + field(4, b"Constant") + wire.prefix(5, len(head) + WEIGHT) + head
    return wire.prefix(1, len(head) + WEIGHT) + head


@pytest.mark.slow
@pytest.mark.parametrize("constants", [False, True], ids=["initializers", "constants"])
@pytest.mark.parametrize("command", ["load", "check", "apply"])
def test_memory_follows_the_graph(tmp_path: Path, command: str, constants: bool) -> None:
    path = tmp_path / "m.onnx"
    heavy(path, constants)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, command, str(path), str(tmp_path / "out.onnx")],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150, "somebody read weights"
    (tmp_path / "out.onnx").unlink(missing_ok=True)
    path.unlink()
