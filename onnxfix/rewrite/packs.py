"""Which rule packs are installed, and which of them this process may load. Nothing of them is imported here.

A pack is an entry point of the group ``onnxfix.rules``; loading it runs its code. ``ONNXFIX_PACKS`` (``--packs`` of the
command line, ``packs`` of a configuration file) names those to load besides the built-in rules: "none", or names with
commas between them. Without it all are loaded. ``chosen`` (``packs=`` in Python) comes before it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import metadata

from onnxfix.errors import UsageError

GROUP = "onnxfix.rules"
BUILT_IN = "onnxfix_rules"
"""The package of the built-in rules; a source tree without metadata has no entry point for it."""
VARIABLE = "ONNXFIX_PACKS"
"""Environment variable: the packs to load; child processes and workers have the same."""
NONE = "none"
_CHOSEN: ContextVar[str | None] = ContextVar("packs", default=None)


@dataclass(frozen=True)
class Pack:
    """An installed rule pack: its entry point (``name`` and ``module``), the distribution that brings it, with its
    version, the folder that this is in ("" where that is unknown), and whether it is ``loaded``."""

    name: str
    module: str
    distribution: str = ""
    version: str = ""
    folder: str = ""
    loaded: bool = True


def installed(*, origins: bool = False) -> tuple[Pack, ...]:
    """All packs, the built-in one first. ``origins``: with their distributions, versions and folders.

    Raises:
        UsageError: the environment variable names a pack that is not installed.
    """
    found: dict[str, Pack] = {}
    for entry in metadata.entry_points(group=GROUP):
        found.setdefault(entry.value, Pack(entry.name, entry.value, *(_origin(entry) if origins else ())))
    found.setdefault(BUILT_IN, Pack("core", BUILT_IN))
    packs = sorted(found.values(), key=lambda pack: (pack.module != BUILT_IN, pack.module, pack.name))
    wanted = _wanted()
    if wanted is None:
        return tuple(packs)
    unknown = sorted(wanted - {pack.name for pack in packs})
    if unknown:
        there = ", ".join(pack.name for pack in packs)
        where = f"{VARIABLE} or --packs: " if _CHOSEN.get() is None else ""
        raise UsageError(f"{where}no rule pack {unknown[0]!r}; choose from {there}, or {NONE}")
    return tuple(
        Pack(**{**vars(pack), "loaded": pack.module == BUILT_IN or pack.name in wanted}) for pack in packs
    )


def setting() -> str:
    """The names as one text; "" for all."""
    found = _CHOSEN.get()
    return os.environ.get(VARIABLE, "").strip() if found is None else found


def text_of(names: Sequence[str]) -> str:
    """Names as the environment variable has them."""
    return ",".join(names) or NONE


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Set the environment variable back at the end, whatever was done to it inside the context."""
    before = os.environ.get(VARIABLE)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before


@contextlib.contextmanager
def chosen(names: Sequence[str] | None) -> Iterator[None]:
    """Load these packs inside the context, whatever the environment says; None changes nothing.

    Raises:
        UsageError: one is not installed.
    """
    token = _CHOSEN.set(_CHOSEN.get() if names is None else text_of(names))
    try:
        if names is not None:
            installed()
        yield
    finally:
        _CHOSEN.reset(token)


def _wanted() -> set[str] | None:
    """The names of the packs to load; None for all."""
    text = setting()
    if not text:
        return None
    return {name.strip() for name in text.split(",") if name.strip()} - {NONE}


def _origin(entry: metadata.EntryPoint) -> tuple[str, str, str]:
    """Distribution, version and folder of an entry point; "" for what damaged metadata do not say."""
    with contextlib.suppress(Exception):  # whatever other people's metadata hold
        if entry.dist is not None:
            return entry.dist.name or "", entry.dist.version or "", str(entry.dist.locate_file(""))
    return "", "", ""
