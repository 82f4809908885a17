"""The eager path, kept as the oracle: a model's bytes are parsed at once and written by protobuf.

``opened`` is its opposite: a file of which every weight stays behind, however short, where onnxfix itself leaves alone
what takes less than a kilobyte. ``field`` and what follows it write messages by hand, also as no library would.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from onnx import ModelProto

from onnxfix.files import lazy, loading, saving, scan
from onnxfix.files.lazy import NONCE, TOKEN_SIZE, Source
from onnxfix.model import Model
from onnxfix.report.findings import finding_of
from onnxfix.report.report import plain
from onnxfix.rewrite import engine
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety
from onnxfix.runtime.causes import Problem
from onnxfix.targets import target_named


@dataclass(frozen=True)
class Done:
    """What all rules up to some safety made of a model: their words, and the bytes of the result."""

    applied: list[str]
    remaining: list[Any]
    problems: tuple[Problem, ...]
    touched: frozenset[str]
    data: bytes


def parsed(data: bytes) -> ModelProto:
    """What protobuf reads. Raises DecodeError."""
    proto = ModelProto()
    proto.ParseFromString(data)
    return proto


def written(proto: ModelProto) -> bytes:
    return bytes(proto.SerializeToString(deterministic=True))


def opened(path: Path, large: int = 1) -> loading.Loaded:
    """The model in a file, without its weights of ``large`` bytes and more.

    Raises:
        ModelError: it is no model.
    """

    def cut(source: Source, *_: object) -> list[scan.Piece]:
        parts = scan._Cutter(source, large, None).message("ModelProto", 0, source.size, 0)
        return parts.pieces if parts is not None else [lazy.whole(source)]

    with mock.patch.object(scan, "cut", cut):
        return loading.open_model(path, large=TOKEN_SIZE)


def stand_ins(loaded: loading.Loaded) -> int:
    return loaded.skeleton.count(NONCE)


def saved(proto: ModelProto, path: Path) -> bytes:
    """The bytes that the lazy path writes."""
    assert not saving.save(proto, path)
    return path.read_bytes()


def fixed_eagerly(data: bytes, base: Path | None, safety: Safety) -> Done:
    proto = parsed(data)
    return _fixed(proto, base, safety, lambda: written(proto))


def fixed_lazily(loaded: loading.Loaded, base: Path | None, safety: Safety, path: Path) -> Done:
    proto = loaded.fresh()
    return _fixed(proto, base, safety, lambda: saved(proto, path))


def _fixed(proto: ModelProto, base: Path | None, safety: Safety, write: Any) -> Done:
    model = Model(proto, base)
    model.target = target_named(None)
    run = engine.fix(model, registry().choose(), safety=safety)
    return Done(
        [f"{item.round} {item.safety.name} {item.key} {item.message}" for item in run.applied],
        plain([finding_of(item) for item in run.remaining]),
        run.problems,
        run.touched,
        write(),
    )


def open_files() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


# -------------------------------------------------------------------------------------------------- messages by hand


def varint(number: int, width: int = 0) -> bytes:
    """A number in base 128, in at least ``width`` bytes: longer than it need be, as the format allows."""
    number &= (1 << 64) - 1
    out = []
    while number > 0x7F or len(out) + 1 < width:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def tag(number: int, kind: int) -> bytes:
    return varint(number << 3 | kind)


def field(number: int, content: bytes | int, width: int = 0) -> bytes:
    """A field with bytes, or with a number; its length, or the number, in at least ``width`` bytes."""
    if isinstance(content, int):
        return tag(number, 0) + varint(content, width)
    return tag(number, 2) + varint(len(content), width) + content


def model_of_tensor(tensor: bytes) -> bytes:
    """A file with one initializer."""
    return field(1, 8) + field(7, field(5, tensor)) + field(8, field(2, 17))


def shuffled(rnd: random.Random, parts: list[bytes]) -> bytes:
    rnd.shuffle(parts)
    return b"".join(parts)
