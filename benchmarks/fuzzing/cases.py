"""A case: a model, what damages it and a command, all drawn by a seed and a number."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto

from fuzzing import commands, seeds, structure, wire
from fuzzing.handmade import WEIGHTS

STRUCTURE = {f"structure.{one.__name__}": one for one in structure.MUTATORS}
BYTES = {f"wire.{one.__name__}": one for one in wire.MUTATORS}
FAMILIES = (
    (0.42, ("structure",)), (0.24, ("structure", "structure")), (0.08, ("structure",) * 4), (0.13, ("bytes",)),
    (0.05, ("bytes", "bytes")), (0.08, ("structure", "bytes")),
)  # fmt: skip
"""How many models get which sequence of mutators."""


@dataclass(frozen=True)
class Case:
    """One number of a seed."""

    seed: str
    number: int
    model: str
    """The name of the model that is damaged."""
    original: bytes
    mutators: tuple[str, ...]
    data: bytes
    """What is in ``model.onnx``."""
    command: commands.Command

    @property
    def generator(self) -> random.Random:
        """What the files beside the model are drawn by."""
        return random.Random(f"{self.seed} {self.number} files")


def drawn(
    seed: str,
    number: int,
    groups: Sequence[str] = seeds.ALL,
    verified: float = commands.VERIFIED_SHARE,
    skip: frozenset[int] = frozenset(),
) -> Case:
    """The case of a number. ``skip`` are places in its sequence of mutators that are left out."""
    generator = random.Random(f"{seed} {number}")
    name, data = seeds.draw(generator, groups)
    _, other = seeds.draw(generator, groups)
    kinds = generator.choices([one for _, one in FAMILIES], [weight for weight, _ in FAMILIES])[0]
    mutators = tuple(
        generator.choices(list(STRUCTURE), list(structure.MUTATORS.values()))[0]
        if kind == "structure"
        else generator.choice(list(BYTES))
        for kind in kinds
    )
    command = commands.draw(generator, verified)
    damaged = data
    for place, mutator in enumerate(mutators):
        if place not in skip:
            damaged = mutated(random.Random(f"{seed} {number} {place}"), mutator, damaged, other)
    kept = tuple(mutator for place, mutator in enumerate(mutators) if place not in skip)
    return Case(seed, number, name, data, kept, damaged, command)


def mutated(generator: random.Random, mutator: str, data: bytes, other: bytes) -> bytes:
    """Damaged bytes; the same bytes where the mutator finds nothing to damage."""
    if mutator in BYTES:
        return BYTES[mutator](generator, data, other)
    try:
        model, second = ModelProto.FromString(data), ModelProto.FromString(other)
        for _ in range(5):
            STRUCTURE[mutator](generator, model, second)
            changed = model.SerializeToString(deterministic=True)
            if changed != data:
                return changed
    except (DecodeError, EncodeError):
        pass  # bytes that are no model any more, or a model that is nested too deeply to be written
    return data


def lay_out(case: Case, folder: Path) -> None:
    """Write what a case needs into ``folder``, which the command is run in."""
    write(folder / "model.onnx", case.data)
    words = " ".join(word for step in case.command.steps for word in step)
    generator = case.generator
    if "seed.onnx" in words or case.command.name == "apply FOLDER":
        write(folder / "seed.onnx", case.original)
    if b"location" in case.data or b"location" in case.original:
        surroundings(folder)
    if "value.np" in words:
        write(folder / "value.npy", damaged(generator, array(np.ones((2, 3), np.float32))))
        write(folder / "value.npz", damaged(generator, array({"x": np.ones((2, 4), np.float32)})))
    if "settings.toml" in words:
        write(
            folder / "settings.toml",
            damaged(generator, (seeds.ROOT / "fixtures/settings/onnxfix.toml").read_bytes()),
        )
    if "known.json" in words:
        write(folder / "known.json", damaged(generator, BASELINE))
    if "--resume" in words and generator.random() < 0.5:
        (folder / "out").mkdir()
        write(folder / "out" / ".onnxfix-journal.jsonl", damaged(generator, JOURNAL))


BASELINE = b'{"onnxfix-baseline": 1, "models": {"model.onnx": [{"fingerprint": "a", "code": "CST002", "place": "b"}]}}'
JOURNAL = b"""{"onnxfix-journal": 1}
{"key": "0", "command": "apply", "source": "model.onnx", "target": "out/model.onnx", "read": [{"path": "model.onnx",
"quick": "", "sha256": "0"}], "written": [], "report": {"schema": 2, "exit_code": 0}}
{"key": "1", "source": "fifo.bin", "target": "/dev/stdin", "read": [{"path": "/dev/zero"}], "written": 1, "report": []}
"""


def write(path: Path, data: bytes) -> None:
    with open(path, "xb", buffering=0) as stream:
        stream.write(data)


def array(value: Any) -> bytes:
    """The bytes of a .npy or .npz file."""
    stream = io.BytesIO()
    if isinstance(value, dict):
        np.savez(stream, **value)
    else:
        np.save(stream, value)
    return stream.getvalue()


def damaged(generator: random.Random, data: bytes) -> bytes:
    """The bytes of a file beside the model, damaged more often than not."""
    for _ in range(generator.choice((0, 1, 1, 2))):
        data = generator.choice(
            (wire.flip_bits, wire.set_bytes, wire.truncate, wire.cut, wire.insert, wire.repeat)
        )(generator, data, data)
    return data


def surroundings(folder: Path) -> None:
    """Files that external data may name: right ones, links of all kinds, a pipe, one outside."""
    write(folder / "weights.bin", WEIGHTS)
    outside = folder.parent / "outside.bin"
    write(outside, WEIGHTS)
    (folder / "sub").mkdir()
    write(folder / "sub" / "weights.bin", WEIGHTS)
    os.symlink("../outside.bin", folder / "link.bin")
    os.symlink("loop.bin", folder / "loop.bin")
    os.link(outside, folder / "hard.bin")
    os.mkfifo(folder / "fifo.bin")
