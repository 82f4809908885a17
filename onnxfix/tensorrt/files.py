"""The files around a build: engines that are saved, and timing caches and tactics that are read and saved.

Tactics that a build chose are kept in a file, edited, and used again: TensorRT's editable timing cache. The file is
JSON. Each entry names an operation of the engine, its key in the cache, and the hash of its tactic; where the builder
logged them, also all tactics that it timed. Another one of those is used where the field ``tactic`` is changed. The
cache itself is in the file too, since TensorRT updates only keys that a cache has.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.files import folders
from onnxfix.files.apart import File
from onnxfix.files.atomic import temporary_beside
from onnxfix.runtime import confinement
from onnxfix.runtime.sandbox import one_line
from onnxfix.tensorrt.package import product
from onnxfix.tensorrt.reading import Autotuning, Candidate

if TYPE_CHECKING:
    from onnxfix.tensorrt.records import TrtOptions


def check_files(options: TrtOptions) -> None:
    """Refuse paths that cannot be written, before any work is done.

    Raises:
        UsageError: one is a directory, a device or a pipe, or its directory does not exist or takes no files.
    """
    for file in files(options):
        option, path = file.what, file.path
        try:
            if path.is_dir():
                raise OnnxfixError(f"{path}: is a directory; name a file")
            path = folders.destination(path)
            if not path.parent.is_dir():
                raise OnnxfixError(f"{path}: directory {path.parent} does not exist")
            if folders.status(path) is not None:
                with path.open("rb"):
                    pass
            confinement.name(path, whole=option == "--timing-cache")  # which a child writes
            with temporary_beside(path):
                pass
        except OSError as error:
            raise UsageError(f"{option} {path}: cannot be read: {error.strerror or error}") from None
        except OnnxfixError as error:
            raise UsageError(f"{option} {error}") from None


def files(options: TrtOptions) -> list[File]:
    """The files that a run with these options writes, by option."""
    named = (
        ("--save-engine", options.save_engine),
        ("--timing-cache", options.timing_cache),
        ("--save-tactics", options.save_tactics),
    )
    return [File(option, Path(name)) for option, name in named if name]


def timing_cache(config: Any, path: Path, messages: Callable[[], Sequence[str]]) -> Any:
    """The timing cache in the file, an empty one where there is no file yet, handed to the builder's ``config``.

    ``messages`` returns TensorRT's messages so far: where it cannot read the file, it only logs that, and goes on with
    an empty cache that would then replace the file.

    Raises:
        UsageError: the file cannot be read, or TensorRT does not accept its cache here.
    """
    try:
        data = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise UsageError(f"--timing-cache {path}: cannot be read: {error.strerror or error}") from None
    before = len(messages())
    cache = config.create_timing_cache(data)
    accepted = cache is not None and config.set_timing_cache(cache, False)
    errors = messages()[before:] if data else ()
    if not accepted or errors:
        reason = " ".join(errors[-1].split()) if errors else "made for another GPU or version"
        raise UsageError(
            f"--timing-cache {path}: TensorRT does not accept this cache ({reason}); delete it or name another file"
        )
    return cache


_FORMAT = 1
#: What an editable timing cache needs; TensorRT 10 has all of them.
_METHODS = ("queryKeys", "query", "update", "serialize")
SAVE, LOAD = "--save-tactics", "--load-tactics"


@dataclass(frozen=True)
class Entry:
    """The tactic of one operation: its ``key`` in the cache and the ``tactic``'s hash, both in hexadecimal, and
    milliseconds. Where the builder logged them, ``operation`` is its name and ``timed`` are all tactics to choose
    from."""

    key: str
    tactic: str
    ms: float
    operation: str = ""
    timed: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class Tactics:
    """The tactics of a build, with the TensorRT and the compute capability that they are for. ``cache`` is the timing
    cache as TensorRT serialized it. ``new`` counts the entries that were timed in this build, not loaded."""

    package: str
    version: str
    compute_capability: str
    entries: tuple[Entry, ...]
    cache: bytes = b""
    new: int = 0

    def to_json(self) -> str:
        """The content of a file of tactics."""
        document = {
            "format": _FORMAT,
            "package": self.package,
            "version": self.version,
            "compute_capability": self.compute_capability,
            "tactics": [dataclasses.asdict(entry) for entry in self.entries],
            "cache": base64.b64encode(self.cache).decode(),
        }
        return json.dumps(document, indent=2, allow_nan=False) + "\n"


def load_file(path: Path) -> Tactics:
    """Read a file of tactics.

    Raises:
        UsageError: it cannot be read, or is no such file.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != _FORMAT:
            raise UsageError(
                f"{LOAD} {path}: is of format {document['format']}; this onnxfix reads {_FORMAT}"
            )
        return Tactics(
            str(document["package"]),
            str(document["version"]),
            str(document["compute_capability"]),
            tuple(_entry(one) for one in document["tactics"]),
            base64.b64decode(document["cache"], validate=True),
        )
    except OSError as error:
        raise UsageError(f"{LOAD} {path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise UsageError(f"{LOAD} {path}: is no file of tactics: {one_line(error, 200)}") from None


def _entry(fields: dict[str, Any]) -> Entry:
    int(fields["key"], 16), int(fields["tactic"], 16)  # else it is no such file
    return Entry(
        str(fields["key"]),
        str(fields["tactic"]),
        float(fields["ms"]),
        str(fields.get("operation", "")),
        tuple(Candidate(str(o["kernel"]), str(o["tactic"]), float(o["ms"])) for o in fields.get("timed", ())),
    )


class Editor:
    """The editable timing cache of one build, in the sandbox. ``given`` are tactics to use."""

    def __init__(self, trt: Any, package: str, capability: str, given: Tactics | None) -> None:
        self.trt, self.package, self.capability, self.given = trt, package, capability, given
        self.version = str(trt.__version__)
        self.option = LOAD if given is not None else SAVE
        self._cache: Any = None

    def attach(self, config: Any) -> None:
        """Hand a cache with the tactics to the builder's ``config``.

        Raises:
            UsageError: this package has no editable timing cache, or does not take the tactics.
        """
        reason = _lacking(self.trt)
        if reason:
            raise UsageError(self._refusal(reason))
        # TensorRT-RTX has all of the methods, which do nothing: only its warnings say so.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            config.set_flag(self.trt.BuilderFlag.EDITABLE_TIMING_CACHE)
            empty = config.create_timing_cache(b"")
            if empty is not None:
                _keys(empty)
        obsolete = [str(one.message) for one in caught if issubclass(one.category, DeprecationWarning)]
        if obsolete:
            raise UsageError(self._refusal(f'it says "{one_line(obsolete[-1], 200)}"'))
        if self.given is not None:
            ours = (self.package, self.version, self.capability)
            theirs = (self.given.package, self.given.version, self.given.compute_capability)
            if ours != theirs:
                made, here = (f"{product(p, v)} for compute capability {c}" for p, v, c in (theirs, ours))
                raise UsageError(f"{LOAD}: these tactics are of {made}; this build is by {here}")
        cache = config.create_timing_cache(self.given.cache) if self.given is not None else empty
        if cache is None or not config.set_timing_cache(cache, False):
            made = "it takes none" if self.given is None else "the cache was made for another GPU or version"
            raise UsageError(self._refusal(made))
        self._update(cache)
        self._cache = cache

    def _refusal(self, reason: str) -> str:
        name = product(self.package, self.version)
        return f"{self.option}: {name} has no editable timing cache that can be used: {reason}"

    def _update(self, cache: Any) -> None:
        """Put the tactics that were changed in the file into the cache."""
        for entry in self.given.entries if self.given is not None else ():
            key = self.trt.TimingCacheKey.parse(entry.key)
            if int(cache.query(key).tacticHash) == int(entry.tactic, 16):
                continue
            known = (one.ms for one in entry.timed if int(one.tactic, 16) == int(entry.tactic, 16))
            value = self.trt.TimingCacheValue(int(entry.tactic, 16), next(known, entry.ms))
            if not cache.update(key, value):
                what = f" of {entry.operation}" if entry.operation else ""
                raise UsageError(
                    f"{LOAD}: TensorRT does not take tactic {entry.tactic}{what} for key {entry.key}"
                )

    def collect(self, autotuning: Sequence[Autotuning]) -> Tactics:
        """The tactics after the build.

        Raises:
            UsageError: the cache recorded none.
        """
        keys = _keys(self._cache)
        if not keys:
            raise UsageError(self._refusal("the build recorded no tactic in it"))
        logged = {int(one.key, 16): one for one in autotuning}
        before = {int(one.key, 16): one for one in (self.given.entries if self.given is not None else ())}
        entries = []
        for key in keys:
            text, value = str(key), self._cache.query(key)
            tuned, known = logged.get(int(text, 16)), before.get(int(text, 16))
            name = tuned.operation if tuned is not None else known.operation if known is not None else ""
            timed = tuned.candidates if tuned is not None else known.timed if known is not None else ()
            entries.append(Entry(text, hex(int(value.tacticHash)), float(value.timingMSec), name, timed))
        new = sum(int(one.key, 16) not in before for one in entries)
        serialized = bytes(memoryview(self._cache.serialize()))
        return Tactics(self.package, self.version, self.capability, tuple(entries), serialized, new)


def _lacking(trt: Any) -> str:
    """What an editable timing cache needs and the module does not have; "" for nothing."""
    if not hasattr(trt.BuilderFlag, "EDITABLE_TIMING_CACHE"):
        return "its builder has no such flag"
    cache = getattr(trt, "ITimingCache", None)
    names = [name for name in _METHODS if not hasattr(cache, name)]
    names += [name for name in ("TimingCacheKey", "TimingCacheValue") if not hasattr(trt, name)]
    return f"it has no {', '.join(names)}" if names else ""


def _keys(cache: Any) -> list[Any]:
    """The keys of a cache. TensorRT raises where it cannot list them, which is that of none."""
    try:
        return list(cache.queryKeys())
    except RuntimeError:
        return []
