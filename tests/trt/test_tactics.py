"""Tactics in a file: what a build chose, what a user changed, and who keeps none."""

from __future__ import annotations

import enum
import inspect
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onnxfix.errors import UsageError
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.files import Editor, Entry, Tactics, load_file
from onnxfix.tensorrt.layers import attempt
from onnxfix.tensorrt.reading import Autotuning, Candidate
from support.paths import FIXTURES
from support.patience import PATIENCE
from support.real_tensorrt import REAL

# The full TensorRT's editable timing cache, whose methods have the signatures of its bindings (11.4). Nothing is timed.


class TimingCacheKey:
    """16 bytes, made of their text alone."""

    def __init__(self) -> None:
        raise TypeError("TimingCacheKey: No constructor defined!")

    @staticmethod
    def parse(text: str) -> TimingCacheKey:
        if len(text) != 34 or not text.startswith("0x"):
            raise RuntimeError("Failed to parse the key")
        key = object.__new__(TimingCacheKey)
        key.number = int(text, 16)
        return key

    number: int

    def __str__(self) -> str:
        return f"0x{self.number:032x}"


class TimingCacheValue:
    def __init__(self, arg0: int, arg1: float) -> None:
        self.tacticHash, self.timingMSec = arg0, arg1


INVALID = 2**64 - 1


class ITimingCache:
    """Keys to (hash, milliseconds); ``usable`` are the hashes that ``update`` takes, None for all."""

    def __init__(self, entries: dict[int, tuple[int, float]], usable: set[int] | None = None) -> None:
        self.entries, self.usable = entries, usable

    def combine(self, input_cache: ITimingCache, ignore_mismatch: bool) -> bool:
        raise AssertionError("nothing combines caches")

    def reset(self) -> bool:
        self.entries.clear()
        return True

    def serialize(self) -> bytes:
        return json.dumps(list(self.entries.items())).encode()

    def queryKeys(self) -> list[TimingCacheKey]:
        return [TimingCacheKey.parse(f"0x{number:032x}") for number in self.entries]

    def query(self, key: TimingCacheKey) -> TimingCacheValue:
        return TimingCacheValue(*self.entries.get(key.number, (INVALID, -1.0)))

    def update(self, key: TimingCacheKey, value: TimingCacheValue) -> bool:
        if key.number not in self.entries or (
            self.usable is not None and value.tacticHash not in self.usable
        ):
            return False
        if math.isnan(value.timingMSec):
            del self.entries[key.number]
        else:
            self.entries[key.number] = value.tacticHash, value.timingMSec
        return True


class BuilderFlag(enum.Enum):
    EDITABLE_TIMING_CACHE = 1


class Config:
    """A builder's configuration. ``fits``: whether it takes a cache."""

    def __init__(self, *, fits: bool = True, usable: set[int] | None = None) -> None:
        self.fits, self.usable = fits, usable
        self.flags: set[BuilderFlag] = set()
        self.cache: ITimingCache | None = None

    def set_flag(self, flag: BuilderFlag) -> None:
        self.flags.add(flag)

    def create_timing_cache(self, serialized_timing_cache: bytes) -> ITimingCache:
        entries = json.loads(serialized_timing_cache or b"[]")
        return ITimingCache({key: tuple(value) for key, value in entries}, self.usable)

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        self.cache = cache if self.fits else None
        return self.fits


def module(**without: Any) -> Any:
    """The module; a keyword replaces one of its members."""
    members = {
        "__version__": "10.8.0.43",
        "BuilderFlag": BuilderFlag,
        "ITimingCache": ITimingCache,
        "TimingCacheKey": TimingCacheKey,
        "TimingCacheValue": TimingCacheValue,
    }
    return SimpleNamespace(
        **{name: value for name, value in {**members, **without}.items() if value is not None}
    )


A, B = f"0x{10:032x}", f"0x{11:032x}"
TUNED = Autotuning("matMul1", A, "0x5", (Candidate("fast", "0x5", 0.01), Candidate("slow", "0x6", 0.02)))


def built(entries: dict[int, tuple[int, float]], given: Tactics | None = None, **more: Any) -> Tactics:
    """What is recorded in a build that measures ``entries``, where the cache does not have them."""
    editor = Editor(module(), "tensorrt", "8.9", given)
    config = Config(**more)
    editor.attach(config)
    assert config.flags == {BuilderFlag.EDITABLE_TIMING_CACHE}
    assert config.cache is not None
    for key, value in entries.items():
        config.cache.entries.setdefault(key, value)
    return editor.collect([TUNED] if given is None else [])


FIRST = {10: (5, 0.01), 11: (7, 0.03)}


def test_what_a_build_chose_is_recorded() -> None:
    found = built(FIRST)
    assert (found.package, found.version, found.compute_capability) == ("tensorrt", "10.8.0.43", "8.9")
    assert found.entries == (Entry(A, "0x5", 0.01, "matMul1", TUNED.candidates), Entry(B, "0x7", 0.03))
    assert found.new == 2


def test_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "tactics.json"
    path.write_text(built(FIRST).to_json())
    assert load_file(path) == replace(built(FIRST), new=0)


def test_tactics_are_used_again_and_none_is_new(tmp_path: Path) -> None:
    found = built({10: (99, 1.0), 11: (98, 1.0)}, built(FIRST))
    assert [entry.tactic for entry in found.entries] == ["0x5", "0x7"]
    assert found.new == 0
    assert found.entries[0].timed == TUNED.candidates
    assert built({12: (9, 1.0)}, built(FIRST)).new == 1


def test_a_tactic_that_was_changed_in_the_file_is_used() -> None:
    first = built(FIRST)
    edited = replace(first, entries=(replace(first.entries[0], tactic="0x6"), first.entries[1]))
    found = built({}, edited, usable={6})
    assert [entry.tactic for entry in found.entries] == ["0x6", "0x7"]
    assert [entry.ms for entry in found.entries] == [0.02, 0.03]  # of the tactic that was named
    with pytest.raises(UsageError, match=rf"does not take tactic 0x6 of matMul1 for key {A}"):
        built({}, edited, usable={7})


def test_a_key_that_the_cache_does_not_have_is_refused() -> None:
    first = built(FIRST)
    with pytest.raises(
        UsageError, match=r"--load-tactics: TensorRT does not take tactic 0x1 for key 0x0*5\Z"
    ):
        built({}, replace(first, entries=(Entry(f"0x{5:032x}", "0x1", 1.0),)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"version": "10.9.0.1"},
            "TensorRT 10.9.0 for compute capability 8.9; this build is by TensorRT 10.8.0",
        ),
        ({"compute_capability": "9.0"}, "for compute capability 9.0; this build is by"),
        ({"package": "tensorrt-rtx"}, "are of TensorRT-RTX 10.8.0"),
    ],
)
def test_tactics_of_another_tensorrt_or_gpu_are_refused(change: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        built({}, replace(built(FIRST), **change))


def test_a_cache_that_does_not_fit_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"--load-tactics: TensorRT 10\.8\.0 .*made for another GPU or version"
    ):
        built({}, built(FIRST), fits=False)


@pytest.mark.parametrize(
    ("lacks", "words"),
    [
        ({"BuilderFlag": SimpleNamespace()}, "its builder has no such flag"),
        ({"ITimingCache": SimpleNamespace(query=1, serialize=1)}, "it has no queryKeys, update"),
        ({"TimingCacheKey": None}, "it has no TimingCacheKey"),
    ],
)
def test_a_package_without_such_a_cache_is_refused(lacks: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=rf"--save-tactics: TensorRT 10\.8\.0 has no editable .*{words}"):
        Editor(module(**lacks), "tensorrt", "8.9", None).attach(Config())


def test_a_build_that_recorded_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="the build recorded no tactic in it"):
        built({})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read: No such file"),
        ("nonsense", "is no file of tactics: JSONDecodeError"),
        ("[]", "is no file of tactics"),
        ("{}", "is no file of tactics: KeyError"),
        ('{"format": 2}', "is of format 2; this onnxfix reads 1"),
        ("\x00", "is no file of tactics"),
    ],
)
def test_a_file_that_is_none_is_refused(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "tactics.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=rf"--load-tactics .*tactics\.json: {words}"):
        load_file(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [("key", "12z"), ("key", 3), ("tactic", ""), ("ms", "fast"), ("timed", [{"kernel": "k"}])],
)
def test_an_entry_that_is_none_is_refused(field: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "tactics.json"
    document = json.loads(built(FIRST).to_json())
    document["tactics"][0][field] = value
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match="is no file of tactics"):
        load_file(path)


# ----------------------------------------------------------------------------------------------------- the real one


@REAL
def test_rtx_refuses_to_keep_tactics_and_says_why(worker: Worker) -> None:
    path = FIXTURES / "mixed_precision.legacy.op17.onnx"
    with pytest.raises(
        UsageError, match=r"--save-tactics: TensorRT-RTX [\d.]+ has no .*: it says \".*no-ops.*\""
    ):
        attempt(worker, path, package="tensorrt-rtx", timeout=PATIENCE, edit=True)
    # The process that was asked goes on.
    assert attempt(worker, path, package="tensorrt-rtx", timeout=PATIENCE)[0].build.accepted


FAKES: dict[str, type] = {kind.__name__: kind for kind in (ITimingCache, Config, TimingCacheKey)}


def real_signatures() -> dict[str, list[str]]:
    """In the sandbox: the names of the parameters of the real methods, as their documentation begins."""
    import tensorrt_rtx as trt  # lazy: only in the sandbox

    kinds = {
        "ITimingCache": trt.ITimingCache,
        "Config": trt.IBuilderConfig,
        "TimingCacheKey": trt.TimingCacheKey,
    }
    found = {}
    for name, kind in kinds.items():
        for method in vars(FAKES[name]):
            text = str(getattr(getattr(kind, method, None), "__doc__", ""))
            match = re.match(rf"{method}\((.*)\) -> ", text)
            if match is not None:
                found[f"{name}.{method}"] = re.findall(r"(\w+): ", match[1])
    return found


@REAL
def test_the_stand_in_has_the_signatures_of_the_bindings(worker: Worker) -> None:
    outcome = worker.call(f"{__name__}:real_signatures", timeout=PATIENCE)
    assert outcome.ok, outcome.message
    assert {"ITimingCache.update", "Config.create_timing_cache", "TimingCacheKey.parse"} <= set(outcome.value)
    for name, parameters in outcome.value.items():
        kind, _, method = name.partition(".")
        ours = inspect.signature(getattr(FAKES[kind], method))
        assert list(ours.parameters) == parameters, name
