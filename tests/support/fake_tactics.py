"""A stand-in for the full TensorRT's editable timing cache, whose methods have the signatures of its bindings (11.4).

Nothing is timed. ``test_tactics.py`` holds the signatures against those of the bindings that are installed.
"""

from __future__ import annotations

import enum
import json
import math
from types import SimpleNamespace
from typing import Any


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
