"""What a file is that is no ONNX model, by its first bytes: a checkpoint, an engine, a download that failed."""

from __future__ import annotations

import re
from typing import NamedTuple

HEAD = 4096
"""Bytes that ``kind_of`` looks at."""
_SHOWN = 40
_SHORTEST = 8
"""Characters of a text: fewer may be the beginning of a model that was cut short."""


class Kind(NamedTuple):
    """What a file looks like, and what to do about it ("": nothing that is known)."""

    what: str
    advice: str = ""

    def __str__(self) -> str:
        """``not an ONNX model (looks like an HTML page): the download failed``."""
        return f"not an ONNX model (looks like {self.what})" + (f": {self.advice}" if self.advice else "")


_EXPORT = "export it with torch.onnx.export"
_UNPACK = "decompress it first"
_MAGIC: tuple[tuple[str, Kind], ...] = (
    (r"version https://git-lfs", Kind("a Git LFS pointer", "fetch the model itself with 'git lfs pull'")),
    (r"\x1f\x8b", Kind("gzip data", _UNPACK)),
    (r"BZh\d", Kind("bzip2 data", _UNPACK)),
    (r"\xfd7zXZ\0", Kind("xz data", _UNPACK)),
    (r"\x28\xb5\x2f\xfd", Kind("zstd data", _UNPACK)),
    (r"7z\xbc\xaf", Kind("a 7z archive", _UNPACK)),
    (r".{257}ustar", Kind("a tar archive", _UNPACK)),
    (r"[a-z]trt\0\0\0\0", Kind("a TensorRT engine", "an engine is built from an ONNX model; name that one")),
    (r"....ORTM", Kind("ONNX Runtime's ORT format", "name the .onnx file that it was made from")),
    (r"....TFL3", Kind("a TensorFlow Lite model", "convert it with tf2onnx")),
    (r"\x89HDF\r\n", Kind("an HDF5 file, as Keras writes", "convert it with tf2onnx")),
    (r"GGUF", Kind("a GGUF file of llama.cpp")),
    (r".{6}\0\0\{", Kind("safetensors: weights without a graph", _EXPORT)),
    (r"\x93NUMPY", Kind("a NumPy array", "inputs are given by --inputs")),
    (r"\x80[\x02-\x05](?:\x8a\nl\xfc\x9cF\xf9|.*torch)", Kind("a PyTorch checkpoint", _EXPORT)),
    (r"\x80[\x02-\x05][\x8a\x95}\](]", Kind("a Python pickle")),
    (r"PK\x03\x04.*(?:data\.pkl|/code/|constants\.pkl)", Kind("a PyTorch checkpoint", _EXPORT)),
    (r"PK\x03\x04.*\.onnx", Kind("a zip archive with an .onnx file in it", "unpack it first")),
    (r"PK\x03\x04.*\.npy", Kind("NumPy's .npz", "inputs are given by --inputs")),
    (r"PK\x03\x04", Kind("a zip archive", "unpack it first")),
    (r"\x7fELF", Kind("a program or library")),
    (r"\0{16}", Kind("a file of zeros", "the download or the copy failed")),
)
_AS_TEXT = "save it as a binary model: onnx.save(onnx.load(path, format={}), 'model.onnx')"
_TEXTS: tuple[tuple[str, Kind], ...] = (
    (r"<!doctype html|<html|<head", Kind("an HTML page", "the download failed, or needs a login")),
    (r"<\?xml.*<net\b|<net\b", Kind("an OpenVINO model", "name the .onnx file that it was made from")),
    (r"<\?xml", Kind("XML")),
    (r"<\s*ir_version\s*:", Kind("a model in ONNX's text syntax", _AS_TEXT.format("'onnxtxt'"))),
    (r"ir_version\s*:", Kind("a model as protobuf text", _AS_TEXT.format("'textproto'"))),
    (r"\{.*\"(?:ir_?version|opset_?import)\"", Kind("a model as JSON", _AS_TEXT.format("'json'"))),
    (r"[\{\[]", Kind("JSON")),
)
_BINARY = [(re.compile(pattern.encode("latin-1"), re.DOTALL), kind) for pattern, kind in _MAGIC]
_WRITTEN = [(re.compile(pattern, re.DOTALL | re.IGNORECASE), kind) for pattern, kind in _TEXTS]


def kind_of(head: bytes) -> Kind | None:
    """What a file that is no ONNX model looks like, by its first ``HEAD`` bytes; None if that is not known."""
    head = head[:HEAD]
    for pattern, kind in _BINARY:
        if pattern.match(head):
            return kind
    text = _text(head)
    if text is None:
        return None
    for words, kind in _WRITTEN:
        if words.match(text.lstrip("\ufeff \t\r\n")):
            return kind
    if len(text) < _SHORTEST:
        return None
    line = " ".join(text.split())
    return Kind(f"text: {line[:_SHOWN] + '…' if len(line) > _SHOWN else line!r}" if line else "blank lines")


def _text(head: bytes) -> str | None:
    """The bytes as text; None if they are none."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
        head = head[: len(head) // 2 * 2]
    else:
        encoding = "utf-8"
    try:
        text = head.decode(encoding)
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3 or len(head) < HEAD:  # the head may end within a character
            return None
        text = head[: error.start].decode(encoding, "ignore")
    return text if all(char.isprintable() or char in "\t\r\n\f\ufeff" for char in text) else None
