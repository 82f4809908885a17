"""A file that is no ONNX model is named for what it is."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfix.errors import ModelError
from onnxfix.files.loading import HEAD, kind_of, load
from support.models import model

MODEL = model("g (float[2] x) => (float[2] y) { y = Neg(x) }")


def archive(**files: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        for name, data in files.items():
            packed.writestr(name.replace("__", "/").replace("_", "."), data)
    return stream.getvalue()


def tar() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as packed:
        packed.addfile(tarfile.TarInfo("m.onnx"))
    return stream.getvalue()


def arrays() -> tuple[bytes, bytes]:
    one, several = io.BytesIO(), io.BytesIO()
    np.save(one, np.zeros(3))
    np.savez(several, x=np.zeros(3))
    return one.getvalue(), several.getvalue()


def written(form: str) -> bytes:
    stream = io.BytesIO()
    onnx.save(MODEL, stream, format=form)
    return stream.getvalue()


SAMPLES = {
    "a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    "gzip data": gzip.compress(b"a"),
    "bzip2 data": bz2.compress(b"a"),
    "xz data": lzma.compress(b"a"),
    "zstd data": b"\x28\xb5\x2f\xfd\x04\x00",
    "a tar archive": tar(),
    "a TensorRT engine": b"ftrt\0\0\0\0\x02\0\0\0",
    "ONNX Runtime's ORT format": b"\x18\0\0\0ORTM\0\0",
    "a TensorFlow Lite model": b"\x1c\0\0\0TFL3",
    "an HDF5 file": b"\x89HDF\r\n\x1a\n",
    "safetensors": b'\x40\0\0\0\0\0\0\0{"w":{}}',
    "a NumPy array": arrays()[0],
    "NumPy's .npz": arrays()[1],
    "a Python pickle": pickle.dumps({"a": 1}),
    "a PyTorch checkpoint": archive(m__data_pkl=b"\x80\x02}q."),
    "a zip archive with an .onnx file in it": archive(m_onnx=b"a"),
    "a zip archive)": archive(m_txt=b"a"),
    "a file of zeros": bytes(64),
    "an HTML page": b"\n<!DOCTYPE html>\n<html></html>",
    "an OpenVINO model": b'<?xml version="1.0"?>\n<net name="m">',
    "a model in ONNX's text syntax": written("onnxtxt"),
    "a model as protobuf text": written("textproto"),
    "a model as JSON": written("json"),
    "JSON)": b'{"a": 1}',
    "text: 'hello, world')": b"hello,\n world\n",
    "blank lines": b" \n\n" * 4,
}


@pytest.mark.parametrize(("words", "data"), SAMPLES.items(), ids=SAMPLES)
def test_a_file_is_named_for_what_it_is(tmp_path: Path, words: str, data: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: not an ONNX model (looks like {words}")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("large", [False, True])
def test_large_files_too(tmp_path: Path, large: bool) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"<html>" + b"x" * (1 << 20 if large else 10))
    with pytest.raises(ModelError, match=r"looks like an HTML page\): the download failed"):
        load(path)


def test_models_and_noise_look_like_nothing() -> None:
    assert kind_of(MODEL.SerializeToString()) is None
    assert kind_of(np.random.default_rng(0).bytes(HEAD)) is None
    assert kind_of("ä".encode() * HEAD) is not None  # the head ends within a character
    assert kind_of(b"text\xff" + b"a" * 100) is None
    assert kind_of("some text".encode("utf-16")) is not None
    assert kind_of(b":\x1f") is None
    assert kind_of(b":a\n ") is None  # a model that was cut short


def test_text_is_shortened_and_printable() -> None:
    kind = kind_of(b"word " * 100)
    assert len(kind.what) < 60
    assert kind_of(b"\x1b[2J evil") is None
