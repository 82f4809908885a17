"""Models that are larger than one protobuf may be: their weights go to a file beside them.

The limit is lowered to some kilobytes. Files are no larger than that makes them, so that onnx and ONNX Runtime, which
know nothing of it, read originals and results alike.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxfix
from onnxfix.errors import ModelError, OnnxfixError
from onnxfix.files import lazy, loading, saving, tensors, walk, wire
from support import models, ort
from support.cli import refused, run
from support.folders import names
from support.models import external
from test_lazy_weights import tensor_of

pytestmark = pytest.mark.corpus

LIMIT = 12_000
W = np.linspace(-1, 1, 4096, dtype=np.float32).reshape(64, 64)
SHORT = np.arange(64, dtype=np.float32)


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PROTOBUF_LIMIT", LIMIT)
    monkeypatch.setattr(loading, "SMALL", 0)


def large_model(chain: bool = True) -> ModelProto:
    """Two weights of 16 kB, one of them a Constant's, floats in float_data, int64 in int64_data, and a short one."""
    first = "d = Cast<to=11>(x)  e = Cast<to=1>(d)" if chain else "d = Neg(x)  e = Neg(d)"
    text = f"""g (float[N,64] x) => (float[N,64] y) {{
        c = Constant<value = float[1] {{0}}>()  {first}  m = MatMul(e, w)  n = MatMul(m, c)  o = Add(n, f)
        p = Gather<axis=1>(o, i)  y = Add(p, s) }}"""
    model = models.model(text, 18)
    model.graph.node[0].attribute[0].t.CopyFrom(numpy_helper.from_array(-W, ""))
    floats = helper.make_tensor("f", TensorProto.FLOAT, [1, 64], W[0].tolist())
    indices = helper.make_tensor("i", TensorProto.INT64, [64], list(range(63, -1, -1)))
    model.graph.initializer.extend([tensor_of("w", W), floats, indices, tensor_of("s", SHORT)])
    return model


def written(folder: Path, model: ModelProto | None = None, name: str = "m.onnx") -> Path:
    path = folder / name
    path.write_bytes((model or large_model()).SerializeToString())
    assert path.stat().st_size > 2 * LIMIT
    return path


def computed(path: Path) -> np.ndarray:
    x = np.linspace(-2, 2, 128, dtype=np.float32).reshape(2, 64)
    return np.asarray(ort.run(path, {"x": x})[0])


# ---------------------------------------------------------------------------------------------------------- saving.save


def test_save_moves_what_stayed_in_the_file(tmp_path: Path) -> None:
    loaded = loading.load(written(tmp_path))
    assert loaded.oversize
    out, weights = tmp_path / "out.onnx", tmp_path / "out.onnx.data"
    assert saving.save(loaded.proto, out, weights)
    plain = onnx.load(out, load_external_data=False)
    moved = {t.name: t for t in walk.model_tensors(plain) if t.data_location == TensorProto.EXTERNAL}
    assert sorted(moved) == ["", "w"]
    found = {}
    for tensor in moved.values():
        info = {entry.key: entry.value for entry in tensor.external_data}
        assert list(info) == ["location", "offset", "length"]
        assert info["location"] == "out.onnx.data"
        assert int(info["offset"]) % 4096 == 0
        assert not tensor.HasField("raw_data")
        found[int(info["offset"])] = int(info["length"])
    assert found == {0: W.nbytes, 16384: W.nbytes}
    assert weights.stat().st_size == 2 * W.nbytes
    whole, original = onnx.load(out), large_model()
    for tensor in walk.model_tensors(whole):
        tensor.ClearField("data_location")
    assert whole == original
    assert np.array_equal(computed(out), computed(tmp_path / "m.onnx"))
    assert loading.load(out).proto == plain


def test_offsets_are_aligned_behind_odd_lengths(tmp_path: Path) -> None:
    arrays = [np.arange(size, dtype=np.uint8) % 251 for size in (5001, 4096, 1025, 8193)]
    model = large_model()
    model.graph.initializer.extend(tensor_of(f"b{index}", array) for index, array in enumerate(arrays))
    loaded = loading.load(written(tmp_path, model))
    assert saving.save(loaded.proto, tmp_path / "out.onnx", tmp_path / "data")
    whole = onnx.load(tmp_path / "out.onnx")
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in whole.graph.initializer}
    for index, array in enumerate(arrays):
        assert np.array_equal(values[f"b{index}"], array)
    plain = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    offsets = [int(t.external_data[1].value) for t in walk.model_tensors(plain) if t.external_data]
    assert len(offsets) == 6
    assert all(offset % 4096 == 0 for offset in offsets)
    assert len(set(offsets)) == 6


MOVED = ("FLOAT", "DOUBLE", "COMPLEX64", "COMPLEX128")
STAYING = ("INT64", "INT32", "UINT64", "FLOAT16", "FLOAT8E4M3FN")


@pytest.mark.parametrize("kind", MOVED + STAYING)
def test_which_fields_can_be_moved(tmp_path: Path, kind: str) -> None:
    """What the wire format stores as raw data is; numbers in base 128 stay in the model, which has room for them."""
    moves, model, numbers = kind in MOVED, large_model(), (np.arange(1200) % 200).tolist()
    model.graph.initializer.append(
        helper.make_tensor("extra", TensorProto.DataType.Value(kind), [1200], numbers)
    )
    loaded = loading.load(written(tmp_path, model))
    tensor = loaded.proto.graph.initializer[-1]
    assert (lazy.range_of(tensor) is not None) == (
        len(model.graph.initializer[-1].SerializeToString()) > 1100
    )
    saving.save(loaded.proto, tmp_path / "out.onnx", tmp_path / "data")
    plain = onnx.load(tmp_path / "out.onnx", load_external_data=False).graph.initializer[-1]
    assert (plain.data_location == TensorProto.EXTERNAL) == moves
    found = onnx.load(tmp_path / "out.onnx").graph.initializer[-1]
    wanted = numpy_helper.to_array(model.graph.initializer[-1])
    assert numpy_helper.to_array(found).tobytes() == wanted.tobytes()
    if not moves:
        assert found == model.graph.initializer[-1]


@pytest.mark.parametrize("constant", [False, True])
def test_indices_of_sparse_tensors_stay(tmp_path: Path, constant: bool) -> None:
    """onnx's checker reads them, and only from the model itself."""
    model, indices = large_model(), np.arange(0, 1000, 4)
    made = helper.make_sparse_tensor(tensor_of("sp", W.reshape(-1)[:250]), tensor_of("", indices), [1000])
    if constant:
        made.values.name = ""
        model.graph.node.insert(0, helper.make_node("Constant", [], ["sp"], sparse_value=made))
    else:
        model.graph.sparse_initializer.append(made)
    loaded = loading.load(written(tmp_path, model), large=lazy.TOKEN_SIZE)
    assert saving.save(loaded.proto, tmp_path / "out.onnx", tmp_path / "data")
    plain = onnx.load(tmp_path / "out.onnx", load_external_data=False).graph
    found = plain.node[0].attribute[0].sparse_tensor if constant else plain.sparse_initializer[0]
    assert np.array_equal(numpy_helper.to_array(found.indices), indices)
    assert tensors.is_external(found.values)
    onnx.checker.check_model(tmp_path / "out.onnx")
    assert np.array_equal(computed(tmp_path / "out.onnx"), computed(tmp_path / "m.onnx"))


def test_what_cannot_be_moved_far_enough(tmp_path: Path) -> None:
    model = large_model()
    model.graph.initializer.append(helper.make_tensor("big", 7, [9000], list(range(1000, 10000))))
    loaded = loading.load(written(tmp_path, model))
    with pytest.raises(ModelError, match=r"does not fit into one protobuf \(2 GB\)"):
        saving.save(loaded.proto, tmp_path / "out.onnx", tmp_path / "data")
    with pytest.raises(ModelError, match="does not fit"):
        saving.save(loaded.proto, tmp_path / "out.onnx")
    with pytest.raises(ModelError, match="does not fit"):
        saving.serialize(loaded.proto)
    assert names(tmp_path) == ["m.onnx"]


def test_what_fits_is_not_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    size = path.stat().st_size
    loaded = loading.load(path)
    for limit, split in ((size, False), (size - 1, True)):
        monkeypatch.setattr(wire, "PROTOBUF_LIMIT", limit)
        assert saving.save(loaded.proto, tmp_path / "out.onnx", tmp_path / "data") is split
        assert (tmp_path / "data").exists() is split
        assert loaded.oversize is split


# ------------------------------------------------------------------------------------------------- whole runs


def assert_split(path: Path, like: Path) -> None:
    data = path.with_name(path.name + ".data")
    assert tensors.external_files(onnx.load(path, load_external_data=False)) == [data.name]
    assert path.stat().st_size < LIMIT
    onnx.checker.check_model(path)
    assert np.array_equal(computed(path), computed(like))


@pytest.mark.parametrize("chain", [True, False], ids=["fixed", "nothing to fix"])
def test_apply(tmp_path: Path, chain: bool) -> None:
    """A model of which nothing was changed is split as well: nobody else reads it as it is."""
    path, out = written(tmp_path, large_model(chain)), tmp_path / "out.onnx"
    before = path.read_bytes()
    report = onnxfix.apply(path, out)
    assert {rung.name: rung.status for rung in report.verdict.rungs}["ort-cpu"] == "passed"
    assert any("out.onnx.data, beside the model" in note for note in report.notes)
    assert report.changed
    assert bool([item for item in report.applied if item.code.startswith("CST")]) == chain
    assert names(tmp_path) == ["m.onnx", "out.onnx", "out.onnx.data"]
    assert path.read_bytes() == before
    assert_split(out, path)


def test_in_place(tmp_path: Path) -> None:
    path, like = written(tmp_path), written(tmp_path, name="like.onnx")
    code, _, err = run("apply", path, "--in-place")
    assert (code, err) == (0, "")
    assert names(tmp_path) == ["like.onnx", "m.onnx", "m.onnx.data"]
    assert_split(path, like)


@pytest.mark.parametrize("in_place", [True, False])
def test_not_through_links(tmp_path: Path, in_place: bool) -> None:
    """The weights would lie beside the file, and be looked for beside the link."""
    (tmp_path / "a").mkdir()
    path, link = written(tmp_path / "a"), tmp_path / "link.onnx"
    if not in_place:
        (tmp_path / "out.onnx").write_bytes(b"old")
    link.symlink_to("a/m.onnx" if in_place else "out.onnx")
    before = path.read_bytes(), names(tmp_path)
    target = [link, "--in-place"] if in_place else [path, "-o", link]
    err = refused("apply", *target, "--no-verify")
    assert f"{link}: is a symbolic link" in err
    assert "name the file itself" in err
    assert (path.read_bytes(), names(tmp_path)) == before


def test_in_place_the_weights_are_as_safe_as_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the disk before the only other copy of them goes, and for nobody's eyes who could not see them before."""
    path, done, real = written(tmp_path), [], os.replace
    path.chmod(0o600)
    monkeypatch.setattr(os, "fsync", lambda handle: done.append(os.fstat(handle).st_ino))
    monkeypatch.setattr(os, "replace", lambda *given, **where: (done.append(0), real(*given, **where)))
    onnxfix.apply(path, in_place=True, verify=False)
    for item in (path, tmp_path / "m.onnx.data"):
        assert item.stat().st_ino in done[: done.index(0)]
        assert item.stat().st_mode & 0o777 == 0o600


def test_check_and_verify(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = path.read_bytes()
    assert {item.code[:3] for item in onnxfix.check(path).findings} >= {"CST"}
    report = onnxfix.verify(path)
    assert report.verdict.passed
    onnxfix.apply(path, tmp_path / "out.onnx", verify=False)
    for pair in ((path, tmp_path / "out.onnx"), (tmp_path / "out.onnx", path)):
        both = onnxfix.verify(*pair)
        assert {rung.name: rung.status for rung in both.verdict.rungs}["ort-cpu"] == "passed"
    assert run("check", path)[0] in (0, 1)
    assert run("verify", path)[0] == 0
    assert path.read_bytes() == before
    assert names(tmp_path) == ["m.onnx", "out.onnx", "out.onnx.data"]


def test_twice_is_once(tmp_path: Path) -> None:
    path, first = written(tmp_path), tmp_path / "first.onnx"
    onnxfix.apply(path, first, verify=False)
    data = (tmp_path / "first.onnx.data").read_bytes()
    again = onnxfix.apply(first, tmp_path / "second.onnx", verify=False)
    assert not again.applied
    assert not again.changed
    plain = [onnx.load(tmp_path / f"{name}.onnx", load_external_data=False) for name in ("first", "second")]
    for tensor in walk.model_tensors(plain[1]):
        for entry in tensor.external_data:
            entry.value = "first.onnx.data" if entry.key == "location" else entry.value
    assert plain[0] == plain[1]
    assert [(tmp_path / f"{name}.onnx.data").read_bytes() for name in ("first", "second")] == [data, data]
    assert names(tmp_path) == ["first.onnx", "first.onnx.data", "m.onnx", "second.onnx", "second.onnx.data"]
    other = tmp_path / "other"
    other.mkdir()
    onnxfix.apply(path, other / "first.onnx", verify=False)
    assert (other / "first.onnx").read_bytes() == first.read_bytes()
    assert (other / "first.onnx.data").read_bytes() == data


@pytest.mark.parametrize("verify", [True, False])
def test_without_a_destination_nothing_is_in_the_way(tmp_path: Path, verify: bool) -> None:
    """The model's own external data may have the name that its moved weights would get beside an output."""
    model = large_model()
    (tmp_path / "m.onnx.data").write_bytes(SHORT.tobytes())
    external(model.graph.initializer[-1], "m.onnx.data", 0, SHORT.nbytes)
    report = onnxfix.apply(written(tmp_path, model), verify=verify)
    assert report.changed
    assert report.verdict.passed
    assert names(tmp_path) == ["m.onnx", "m.onnx.data"]
    assert (tmp_path / "m.onnx.data").read_bytes() == SHORT.tobytes()


@pytest.mark.parametrize("way", ["file", "folder", "dangling link"])
@pytest.mark.parametrize("in_place", [True, False])
def test_another_file_of_that_name(tmp_path: Path, way: str, in_place: bool) -> None:
    path = written(tmp_path)
    there = tmp_path / ("m.onnx.data" if in_place else "out.onnx.data")
    if way == "file":
        there.write_bytes(b"somebody's")
    elif way == "folder":
        there.mkdir()
    else:
        there.symlink_to("nowhere")
    before = path.read_bytes()
    for verify in ([], ["--no-verify"]):
        target = ["--in-place"] if in_place else ["-o", tmp_path / "out.onnx"]
        err = refused("apply", path, *target, *verify)
        assert f"{there}: is in the way of the weights" in err
        assert names(tmp_path) == sorted(["m.onnx", there.name])
        assert path.read_bytes() == before
    assert way != "file" or there.read_bytes() == b"somebody's"
    assert way != "dangling link" or os.readlink(there) == "nowhere"


def test_a_second_run_to_the_same_place(tmp_path: Path) -> None:
    """The weights of the first run are there, and are those of the second."""
    path = written(tmp_path)
    assert run("apply", path, "-o", tmp_path / "out.onnx", "--no-verify")[0] == 0
    before = {one.name: (one.read_bytes(), one.stat().st_ino) for one in tmp_path.iterdir()}
    assert run("apply", path, "-o", tmp_path / "out.onnx", "--no-verify")[0] == 0
    after = {one.name: (one.read_bytes(), one.stat().st_ino) for one in tmp_path.iterdir()}
    assert {name: data for name, (data, _) in after.items()} == {
        name: data for name, (data, _) in before.items()
    }
    assert after["out.onnx.data"] == before["out.onnx.data"]


def test_data_that_was_copied_for_nothing(tmp_path: Path) -> None:
    """It goes with the run that brought it."""
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    onnx.save(
        large_model(), tmp_path / "in" / "m.onnx", save_as_external_data=True, location="w", size_threshold=99
    )
    source, target = tmp_path / "in" / "m.onnx", tmp_path / "out" / "m.onnx"
    report = onnxfix.apply(source, target, require=["ort-cuda"], rungs=[])
    assert not report.output
    assert names(tmp_path / "out") == []


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_nothing_is_left_of_a_run_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The disk is full while the weights, or the model itself, are written."""
    path, real, calls = written(tmp_path), saving.write_pieces, [0]

    def write(*arguments: object) -> None:
        calls[0] += 1
        real(*arguments)
        if calls[0] == step:
            raise OnnxfixError("disk: cannot be written: No space left on device")

    monkeypatch.setattr(saving, "write_pieces", write)
    with pytest.raises(OnnxfixError, match="No space left"):
        onnxfix.apply(path, tmp_path / "out.onnx", verify=step > 2)  # where it is copied for backends first
    assert names(tmp_path) == ["m.onnx"]


@pytest.mark.parametrize("elsewhere", [True, False])
def test_with_external_data_besides(tmp_path: Path, elsewhere: bool) -> None:
    """A file over the limit, of which another weight is in a file of its own: both are found from the output."""
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    out.mkdir()
    model = large_model()
    (home / "s.bin").write_bytes(SHORT.tobytes())
    external(model.graph.initializer[-1], "s.bin", 0, SHORT.nbytes)
    path = written(home, model)
    target = (out if elsewhere else home) / "fixed.onnx"
    report = onnxfix.apply(path, target)
    assert report.output == str(target)
    assert tensors.external_files(onnx.load(target, load_external_data=False)) == ["fixed.onnx.data"]
    assert np.array_equal(computed(target), computed(path))
    assert names(home) == sorted(
        {"m.onnx", "s.bin"} | (set() if elsewhere else {"fixed.onnx", "fixed.onnx.data"})
    )
    assert names(out) == (["fixed.onnx", "fixed.onnx.data"] if elsewhere else [])
