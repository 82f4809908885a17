"""Results beside a model with external data: they have a data file of their own, or share the model's on request."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxfix
from onnxfix.errors import ModelError, UsageError
from support import models, ort
from support.cli import output, refused, run
from support.folders import names, snapshot

FIXABLE = (
    "g (float[64] x) => (float[64] y) { a = Cast<to=11>(x) b = Cast<to=1>(a) c = Add(b, w) y = Mul(c, v) }"
)
CLEAN = "g (float[64] x) => (float[64] y) { c = Add(x, w) y = Mul(c, v) }"


def exported(
    folder: Path, scale: float = 1.0, text: str = FIXABLE, files: tuple[str, ...] = ("m.onnx.data",)
) -> Path:
    """A model m.onnx whose weights w and v are in one file, or in two, as an exporter writes it."""
    proto = models.model(text, 18)
    folder.mkdir(exist_ok=True)
    written: dict[str, bytes] = {}
    for number, name in enumerate("wv"):
        location = files[number % len(files)]
        start = len(written.get(location, b""))
        weights = (np.arange(64, dtype=np.float32) + 1 + number) * np.float32(scale)
        tensor = proto.graph.initializer.add(name=name, data_type=1, dims=[64])
        if len(files) > 1:  # whole files, as exporters write one for each tensor
            models.external(tensor, location, checksum="of the file")
        else:
            models.external(tensor, location, start, weights.nbytes)
        written[location] = written.get(location, b"") + weights.tobytes()
    for location, data in written.items():
        (folder / location).write_bytes(data)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    return folder / "m.onnx"


def computed(path: Path) -> list[float]:
    return ort.run(path, {"x": np.ones(64, np.float32)})[0].tolist()


@pytest.mark.parametrize("text", [FIXABLE, CLEAN], ids=["fixed", "nothing to fix"])
@pytest.mark.parametrize("files", [("m.onnx.data",), ("w.bin", "v.bin")], ids=["one file", "two files"])
def test_the_result_runs_alone(tmp_path: Path, text: str, files: tuple[str, ...]) -> None:
    path = exported(tmp_path / "a", text=text, files=files)
    before, wanted = snapshot(path.parent), computed(path)
    report = onnxfix.apply(path, path.with_name("fixed.onnx"), rungs="ort-cpu")
    data = path.with_name("fixed.onnx.data")
    assert [(one.path, one.bytes, one.kind) for one in report.data] == [
        (str(data), data.stat().st_size, "own")
    ]
    assert {name: (path.parent / name).read_bytes() for name in before} == before
    assert report.model == onnx.load(path.with_name("fixed.onnx"), load_external_data=False)
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in ("fixed.onnx", "fixed.onnx.data"):
        shutil.move(path.with_name(name), alone / name)
    shutil.rmtree(path.parent)
    assert computed(alone / "fixed.onnx") == wanted
    onnx.checker.check_model(alone / "fixed.onnx")
    weights = {
        one.name: numpy_helper.to_array(one) for one in onnx.load(alone / "fixed.onnx").graph.initializer
    }
    assert weights["v"].tolist() == [number + 2.0 for number in range(64)]


def test_a_single_data_file_keeps_its_layout(tmp_path: Path) -> None:
    """With nothing to fix, only the name of the file is another."""
    path = exported(tmp_path, text=CLEAN)
    report = onnxfix.apply(path, tmp_path / "n.onnx", rungs="contract")
    assert not report.changed
    assert report.renamed
    assert (tmp_path / "n.onnx").read_bytes() == path.read_bytes().replace(b"m.onnx.data", b"n.onnx.data")
    assert (tmp_path / "n.onnx.data").read_bytes() == (tmp_path / "m.onnx.data").read_bytes()
    assert "byte for byte" not in str(report)


def test_a_new_export_leaves_the_result_and_the_next_run_replaces_both(tmp_path: Path) -> None:
    path, out = exported(tmp_path), tmp_path / "fixed.onnx"
    assert run("apply", path, "-o", out, "--rungs", "ort-cpu")[0] == 0
    wanted = computed(path)
    exported(tmp_path, scale=3.0)
    assert computed(path) != wanted
    assert computed(out) == wanted
    assert run("apply", path, "-o", out, "--rungs", "ort-cpu")[0] == 0
    assert computed(out) == computed(path)
    assert names(tmp_path) == ["fixed.onnx", "fixed.onnx.data", "m.onnx", "m.onnx.data"]


@pytest.mark.parametrize("text", [FIXABLE, CLEAN], ids=["fixed", "nothing to fix"])
def test_shared_data_is_recorded_and_a_change_is_noticed(tmp_path: Path, text: str) -> None:
    path, out = exported(tmp_path, text=text), tmp_path / "fixed.onnx"
    code, told, _ = run(
        "apply", path, "-o", out, "--share-data", "--rungs", "ort-cpu", "--report", tmp_path / "r.json"
    )
    assert code == 0
    assert "shared" in told
    (file,) = json.loads((tmp_path / "r.json").read_text())["reports"][0]["data"]
    assert (file["kind"], file["bytes"]) == ("shared", 512)
    (recorded,) = onnx.load(out).metadata_props
    assert (recorded.key, recorded.value) == ("onnxfix.shared_data:m.onnx.data", f"sha256:{file['sha256']}")
    assert not tmp_path.joinpath("fixed.onnx.data").exists()
    assert run("verify", out, "--rungs", "ort-cpu")[0] == 0
    assert run("verify", path, out, "--rungs", "ort-cpu")[0] == 0
    exported(tmp_path, scale=2.0, text=text)
    for pair in ([out], [path, out]):
        told = output(3, "verify", *pair, "--rungs", "ort-cpu")
        assert "m.onnx.data changed since fixed.onnx was written" in told
    err = refused("apply", out, "-o", tmp_path / "again.onnx", "--rungs", "ort-cpu")
    assert "m.onnx.data changed since fixed.onnx was written" in err
    with pytest.raises(ModelError, match="changed since"):
        onnxfix.apply(out)


def test_a_result_of_its_own_from_one_that_shares(tmp_path: Path) -> None:
    """What it has is its own, so that nothing is recorded any more."""
    path, out, own = exported(tmp_path), tmp_path / "fixed.onnx", tmp_path / "own.onnx"
    onnxfix.apply(path, out, share_data=True, verify=False)
    onnxfix.apply(out, own, verify=False)
    exported(tmp_path, scale=2.0)
    assert list(onnx.load(own).metadata_props) == []
    assert run("verify", own, "--rungs", "ort-cpu")[0] == 0


def test_where_data_cannot_be_shared(tmp_path: Path) -> None:
    path = exported(tmp_path)
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match="--share-data needs an output in the model's folder"):
        onnxfix.apply(path, tmp_path / "other" / "m.onnx", share_data=True)
    with pytest.raises(UsageError, match="--share-data has no effect with --in-place"):
        onnxfix.apply(path, in_place=True, share_data=True)
    assert names(tmp_path) == ["m.onnx", "m.onnx.data", "other"]


def test_in_place_the_data_file_is_the_models_own(tmp_path: Path) -> None:
    path = exported(tmp_path)
    wanted = computed(path)
    report = onnxfix.apply(path, in_place=True, rungs="ort-cpu")
    assert [one.kind for one in report.data] == ["kept"]
    assert names(tmp_path) == ["m.onnx", "m.onnx.data"]
    assert computed(path) == wanted


@pytest.mark.parametrize("same", [True, False])
def test_defaults_are_compared_whatever_file_they_are_in(tmp_path: Path, same: bool) -> None:
    path, out = exported(tmp_path), tmp_path / "fixed.onnx"
    proto = onnx.load(path, load_external_data=False)
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [64]))
    path.write_bytes(proto.SerializeToString())
    onnxfix.apply(path, out, verify=False)
    if not same:
        exported(tmp_path / "other", scale=2.0)
        shutil.copy(tmp_path / "other" / "m.onnx.data", tmp_path / "fixed.onnx.data")
    code, told, _ = run("verify", path, out, "--rungs", "contract")
    assert code == (0 if same else 3)
    assert ("the default of input 'w' was changed" in told) == (not same)
