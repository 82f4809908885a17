"""A target of several releases: its facts are what all of them take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxfix.targets import Support, Target


def for_all(answers: Iterable[bool | None]) -> bool | None:
    """Whether something holds for all releases; None if unknown."""
    given = set(answers)
    return False if False in given else None if None in given else True


def combine(releases: Iterable[Target]) -> Target:
    """The target of these releases, the oldest first and TensorRT-RTX last; that of a single one is itself.

    Its title has an "or", because a verb follows, and because one of them is enough: TensorRT 8.6, 10.3 or 11.2.
    """
    each = sorted(set(releases), key=lambda one: (one.package, one.oldest, one.newest))
    if len(each) == 1:
        return each[0]
    titles = [each[0].title, *(one.title.removeprefix("TensorRT ") for one in each[1:])]
    kinds = [one.types | one.reads_as.keys() for one in each]
    types = kinds[0].intersection(*kinds)
    imported = (name for name in each[0].operators if all(one.imports(name) for one in each))
    return replace(
        each[0],
        name=",".join(one.name for one in each),
        title=f"{', '.join(titles[:-1])} or {titles[-1]}",
        newest=max(one.newest for one in each if one.package == each[0].package),
        source="; ".join(dict.fromkeys(one.source for one in each)),
        types=types,
        inner=types.intersection(*(one.inner | one.reads_as.keys() for one in each)),
        reads_as={kind: other for one in each for kind, other in one.reads_as.items() if kind in types},
        operators={name: _support(name, each) for name in imported},
        missing={name: why for one in each for name, why in one.missing.items() if not one.has_plugin(name)},
        plugins=each[0].plugins.intersection(*(one.plugins for one in each)),
        refused=each[0].refused.union(*(one.refused for one in each)),
        calls_functions=all(one.calls_functions for one in each),
        ignores_axes=each[0].ignores_axes.union(*(one.ignores_axes for one in each)),
        requires_allowzero=any(one.requires_allowzero for one in each),
        dynamic_squeeze=all(one.dynamic_squeeze for one in each),
        strongly_typed_only=any(one.strongly_typed_only for one in each),
        types_measured=all(one.types_measured for one in each),
        max_rank=min(one.max_rank for one in each),
        members=tuple(each),
    )


def _support(name: str, releases: Sequence[Target]) -> Support:
    """The types that all take and those that any refuses, and the restrictions, by release where they differ."""
    every = [release.operators[name] for release in releases]
    notes = [support.notes for support in every]
    if len(set(notes)) > 1:
        notes = [f"{release.name}: {text or 'none'}" for release, text in zip(releases, notes, strict=True)]
    types = every[0].types.intersection(*(support.types for support in every))
    refused = every[0].refused.union(*(support.refused for support in every))
    return every[0]._replace(types=types, refused=refused, notes="; ".join(dict.fromkeys(notes)))
