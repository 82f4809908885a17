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

from fuzzing import seeds, structure, wire
from fuzzing.seeds import WEIGHTS

FORMATS = ("json", "jsonl", "sarif", "github", "gitlab", "junit", "markdown")
REPORTS = ("r.json", "r.jsonl", "r.sarif", "r.xml", "r.md", "r.html", "r.gitlab.json")
TARGETS = ("trt8.4", "trt8.6", "trt10", "trt11", "rtx", "10.3")
VERIFIED_SHARE = 0.004
"""How many commands start ONNX Runtime or TensorRT, which costs a hundred times as much."""


TIMEOUT = ("--timeout", "40")
"""A hostile model may run for ever; whoever runs strangers' models sets a limit."""


@dataclass(frozen=True)
class Command:
    """Command lines that are run one after the other, in the folder of ``model.onnx``."""

    name: str
    steps: tuple[tuple[str, ...], ...]
    writes: tuple[str, ...] = ()
    """Names in that folder that a run may make or change."""
    verified: bool = False
    """Whether the model is executed."""

    @property
    def text(self) -> str:
        """For people."""
        return " && ".join(" ".join(("onnxfix", *step)) for step in self.steps)


def _line(text: str, *more: str) -> tuple[str, ...]:
    """A command line: words with spaces between them, and more."""
    return *text.split(), *more


def _model(name: str, *more: str) -> tuple[str, ...]:
    """What a command that writes a model may write."""
    return name, f"{name}.data", *more


def _some(generator: random.Random, share: float, *words: str) -> tuple[str, ...]:
    return words if generator.random() < share else ()


def _look(generator: random.Random) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Options about the report, and what they write."""
    format = generator.choice(FORMATS) if generator.random() < 0.4 else "text"
    report = generator.choice(REPORTS) if generator.random() < 0.2 else ""
    words = (
        *(("--format", format) if format != "text" else generator.choice(((), (), ("-v",), ("-q",)))),
        *(("--report", report) if report else ()),
        *_some(generator, 0.15, "--target", generator.choice(TARGETS)),
    )
    return words, (report,) if report else ()


def _check(generator: random.Random) -> Command:
    words, writes = _look(generator)
    if generator.random() < 0.1:
        words, writes = ("--statistics",), ()
    return Command("check", (("check", "model.onnx", *words),), writes)


def _fixes(generator: random.Random) -> tuple[str, ...]:
    return (
        *generator.choice(((), (), ("--numeric-fixes",), ("--unsafe-fixes",))),
        *_some(generator, 0.05, "--fix-dim", "N=2"),
        *_some(generator, 0.03, "--fix-input", generator.choice(("x=1", "x=@value.npy", "c=true", "n=3"))),
        *_some(generator, 0.02, "--static"),
    )


def _apply(generator: random.Random) -> Command:
    words, writes = _look(generator)
    line = _line("apply model.onnx -o out.onnx --no-verify", *_fixes(generator), *words)
    return Command("apply", (line,), _model("out.onnx", *writes))


def _in_place(generator: random.Random) -> Command:
    line = _line("apply model.onnx --in-place --no-verify", *_fixes(generator))
    return Command("apply --in-place", (line,), _model("model.onnx"))


def _difference(generator: random.Random) -> Command:
    return Command("apply --diff", (_line("apply model.onnx --diff --no-verify", *_fixes(generator)),))


def _folder(generator: random.Random) -> Command:
    options = (*_some(generator, 0.1, "--jobs", "2"), *_some(generator, 0.5, "--resume"))
    words, writes = _look(generator)
    line = _line("apply . --output-dir out --no-verify", *options, *words)
    return Command("apply FOLDER", (line,), ("out", *writes))


def _twice(generator: random.Random) -> Command:
    first = _line("apply model.onnx -o out.onnx --no-verify")
    second = _line("apply out.onnx -o again.onnx --no-verify")
    return Command("apply twice", (first, second), (*_model("out.onnx"), *_model("again.onnx")))


def _agree(generator: random.Random) -> Command:
    target = _some(generator, 0.3, "--target", generator.choice(TARGETS))
    first = _line("check model.onnx --format json", *target)
    second = _line("apply model.onnx -o out.onnx --no-verify --format json", *target)
    return Command("check and apply", (first, second), _model("out.onnx"))


def _settings(generator: random.Random) -> Command:
    option = generator.choice(
        (("--config", "settings.toml"), ("--baseline", "known.json"), ("--write-baseline", "new.json"))
    )
    return Command("check with settings", (("check", "model.onnx", *option),), ("new.json",))


def _diff(generator: random.Random) -> Command:
    pair = generator.choice((("seed.onnx", "model.onnx"), ("model.onnx", "seed.onnx")))
    options = (*_some(generator, 0.4, "--format", "json"), *_some(generator, 0.3, "-v"))
    return Command("diff", (("diff", *pair, *options),))


def _view(generator: random.Random) -> Command:
    rule = generator.choice(("CST002", "GRA010", "GRA011", "BRC001", "INT001", "INT005", "OPS001", "IFC001"))
    return Command("view", (_line("view model.onnx -o part.onnx --rule", rule),), _model("part.onnx"))


CHEAP = (
    (0.40, _check), (0.27, _apply), (0.04, _in_place), (0.03, _difference), (0.04, _folder), (0.06, _twice),
    (0.06, _agree), (0.02, _settings), (0.05, _diff), (0.03, _view),
)  # fmt: skip


def _proven(generator: random.Random) -> Command:
    rungs = generator.choice((("--rungs", "reference,ort-cpu"), ("--rungs", "ort-cpu"), ()))
    inputs = (*_some(generator, 0.15, "--inputs", "value.npz"), *TIMEOUT)
    more = (*_fixes(generator), *rungs, *inputs, *_look(generator)[0][:2])
    line = _line("apply model.onnx -o out.onnx", *more)
    return Command("apply, verified", (line,), _model("out.onnx", *REPORTS), verified=True)


def _verify(generator: random.Random) -> Command:
    models = generator.choice((("model.onnx",), ("seed.onnx", "model.onnx"), ("model.onnx", "seed.onnx")))
    rungs = generator.choice((("--rungs", "reference,ort-cpu"), ("--rungs", "trt-build,trt-network"), ()))
    return Command("verify", (("verify", *models, *TIMEOUT, *rungs),), verified=True)


def _asked(generator: random.Random) -> Command:
    option = generator.choice(("--trt", "--inputs-help"))
    return Command(f"check {option}", (("check", "model.onnx", *TIMEOUT, option),), verified=True)


def _lift(generator: random.Random) -> Command:
    return Command("lift", (_line("lift model.onnx -o lifted.onnx"),), _model("lifted.onnx"), verified=True)


def _diagnose(generator: random.Random) -> Command:
    other = generator.choice((("seed.onnx",), ("--against", "fp16"), ("--against", "ort-cpu")))
    return Command("diagnose", (("diagnose", "model.onnx", *other, "--timeout", "20"),), verified=True)


def _precision(generator: random.Random) -> Command:
    line = _line("precision model.onnx --to fp16 --max-error 0.01 --timeout 20 -o half.onnx")
    return Command("precision", (line,), _model("half.onnx"), verified=True)


def _reduce(generator: random.Random) -> Command:
    check = generator.choice(("ort-cpu", "trt-build"))
    line = _line(f"reduce model.onnx --check {check} -o small --timeout 20 --time-limit 20")
    return Command("reduce", (line,), ("small",), verified=True)


VERIFIED = (
    (0.40, _proven), (0.28, _verify), (0.10, _asked), (0.06, _lift), (0.06, _diagnose), (0.05, _precision),
    (0.05, _reduce),
)  # fmt: skip


def draw(generator: random.Random, verified: float = VERIFIED_SHARE) -> Command:
    """A command. ``verified`` is the share of those that execute the model."""
    table = VERIFIED if generator.random() < verified else CHEAP
    make = generator.choices([one for _, one in table], [weight for weight, _ in table])[0]
    return make(generator)


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
    command: Command

    @property
    def generator(self) -> random.Random:
        """What the files beside the model are drawn by."""
        return random.Random(f"{self.seed} {self.number} files")


def drawn(
    seed: str,
    number: int,
    groups: Sequence[str] = seeds.ALL,
    verified: float = VERIFIED_SHARE,
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
    command = draw(generator, verified)
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
