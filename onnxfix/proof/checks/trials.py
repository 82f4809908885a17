"""Inputs for engines: those that the original accepts in ONNX Runtime, and profiles that cover them."""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.inputs import Kind
from onnxfix.inputs.feeds.plan import Feed
from onnxfix.inputs.feeds.profiles import of_one_rank, symbols_of
from onnxfix.proof.checks.builder import Builder
from onnxfix.proof.request import ENOUGH, MILDER, SEARCH, Budget, Request, Trial
from onnxfix.proof.verdict import FeedResult
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.records import Profile, Triple

#: Runs the original on inputs; None where no backend works.
Expect = Callable[[dict[str, Any]], "Ran | None"]


@dataclass
class Finder:
    """Looks for trials. ``refused`` collects the feeds that the original rejects, with the reason. ``profile`` is the
    user's optimization profile, ``planned`` are feeds to try instead of those of a proof's plan. ``empty``: accept
    empty tensors. ``budget`` says which of the made feeds are tried besides the first that is accepted, and is told
    what they cost; ``spared`` collects the others. ``ran`` are feeds that cost half, since the model has run already.
    """

    request: Request
    expect: Expect
    profile: Profile | None = None
    planned: Sequence[Feed] = ()
    empty: bool = False
    budget: Budget | None = None
    ran: Sequence[Feed] = ()
    found: list[Trial] = field(default_factory=list)
    refused: list[FeedResult] = field(default_factory=list)
    spared: list[Feed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.request.total

    def find(self) -> list[Trial]:
        """All trials: of the user's inputs, else of generated ones.

        Raises:
            UsageError: no input can be made for this model.
        """
        if self.request.given is None:
            self._make()
        else:
            for trial in self.request.trials():
                self._try(trial)
        return self.found

    def _make(self) -> None:
        request = self.request
        sweep = plan.assignments(request.known, request.shapes)
        # Never the limits of the types: TensorRT and ONNX Runtime round and order sums differently.
        feeds = [*self.planned] or plan.feeds(request.known, sweep, request.seed, exact=False)
        refused = request.networks.refused if request.networks is not None else ()
        if self.profile is not None:
            feeds = self._inside(self.profile)
        elif refused:  # ONNX Runtime has looked for others
            self._take(refused[0])
            return
        for feed in feeds:
            if not feed.override:
                self._take(feed)
        self._deadline = min(self._deadline, time.monotonic() + SEARCH)
        for feed in (Feed(one.assignment, kind, one.seed) for one in feeds[:3] for kind in MILDER):
            if self.found:
                break
            self._take(feed)
        if len(sweep) > 1 and self.profile is None:
            self._grow(request.seed + 100)

    def _inside(self, profile: Profile) -> list[Feed]:
        """Feeds of the minimum, the maximum and the opt sizes of a profile."""
        bound = symbols_of(profile, self.request.known)
        kinds: tuple[tuple[int, Kind], ...] = ((0, "normal"), (2, "normal"), (1, "edge"))
        found = []
        for column, kind in kinds:
            sizes = {**{name: triple[column] for name, triple in bound.items()}, **self.request.shapes}
            mixed = plan.assignments(self.request.known, sizes)[:3][-1]
            found.append(Feed(mixed, kind, self.request.seed + column))
        return found

    def _grow(self, seed: int) -> None:
        """Try larger shapes while too few were found."""
        for turn, sizes in enumerate(plan.grown(self.request.known, self.request.shapes), 1):
            if len(shapes(self.found) | _sizes(self.spared)) >= ENOUGH:
                return
            self._take(Feed(sizes, "small", seed + turn))

    def _take(self, feed: Feed) -> bool:
        budget, times = self.budget, 1 if feed in self.ran else 2
        if self.found and budget is not None and not budget.allows(*[feed.assignment] * times):
            self.spared.append(feed)
            return False
        try:
            values = feed.values(self.request.known)
        except MemoryError:
            return False
        if any(map(self._is_empty, values.values())):
            return False  # engines are not run on empty tensors
        accepted = self._try(Trial(feed.label, feed, values))
        expected = self.found[-1].expected if accepted else None
        if budget is not None and expected is not None:
            for _ in range(times if len(self.found) > 1 else 1):  # the first one is the price, not spent
                budget.ran(feed.assignment, expected.seconds / times)
        return accepted

    def _try(self, trial: Trial) -> bool:
        """Keep inputs that the original accepts, with its outputs; returns whether it does."""
        if time.monotonic() > self._deadline:
            return False
        reason = self._unfit(trial.values)
        if reason:
            self.refused.append(trial.result("not counted", reason))
            return False
        expected = self.expect(trial.values)
        if expected is not None and expected.error:
            said, cause = expected.error, expected.cause or "refused"
            reason = f"the original fails: {said}"
            self.refused.append(
                trial.result("not counted", reason, stopped="original", said=said, cause=cause)
            )
            return False
        self.found.append(replace(trial, expected=expected))
        return True

    def _is_empty(self, value: Any) -> bool:
        return not self.empty and isinstance(value, np.ndarray) and not value.size

    def _unfit(self, values: Mapping[str, Any]) -> str:
        for name, value in values.items():
            if self.request.known[name].default is not None:
                return f"TensorRT keeps the default of input {name}: it takes no other value"
            if self._is_empty(value):
                return f"input {name} is empty"
        return ""


def key_of(request: Request, found: Builder) -> object:
    """All that depends on the original and TensorRT alone depends on, whatever the candidate. The user's inputs, which
    are loaded again for every run, are in it by a hash."""
    about = request.original.stat()
    given = pickle.dumps([dict(feed) for feed in request.given or ()])
    return (
        (request.original, about.st_mtime_ns, about.st_size, about.st_ino),
        (found.choice, replace(found.options, benchmark=False), request.coarse),
        (tuple(request.shapes.items()), request.seed, request.effort, request.total > 0),
        (hashlib.blake2b(given).digest(), request.known.pins),
    )


def shapes(trials: Iterable[Trial]) -> set[tuple[tuple[str, int], ...]]:
    """The distinct assignments of made inputs."""
    return _sizes(one.feed for one in trials if one.feed is not None)


def _sizes(feeds: Iterable[Feed]) -> set[tuple[tuple[str, int], ...]]:
    return {tuple(sorted(feed.assignment.items())) for feed in feeds}


def profiles(
    trials: Sequence[Trial], given: tuple[Profile, ...] | None, bound: Profile | None = None
) -> list[tuple[Profile, ...] | None]:
    """Optimization profiles to try, in order: the user's; else for all trials, for the last alone, and derived sizes
    (None), which may leave trials outside. ``bound`` are sizes that the user fixed: no other is derived for those."""
    if given is not None:
        return [given]
    alike = of_one_rank([one.values for one in trials])
    derived = (bound,) if bound is not None else None
    found: list[tuple[Profile, ...] | None] = [(Profile.of_feeds(alike),)]
    return [*found, (Profile.of_feeds(alike[-1:]),), derived] if len(alike) > 1 else [*found, derived]


def outside(profiles: Sequence[Profile], values: Mapping[str, Any]) -> str:
    """Why inputs do not fit the first profile, which is the one that runs; "" where they do."""
    for what, row, (least, _, most) in _rows(profiles, values):
        fits = len(row) == len(least) and all(a <= b <= c for a, b, c in zip(least, row, most, strict=True))
        if not fits:
            return f"{what} outside the optimization profile"
    return ""


def usual(trials: Sequence[Trial], profiles: Sequence[Profile]) -> Trial:
    """The trial at the opt shapes and values of the first profile, for which engines are tuned; else the last trial
    that fits it."""
    fitting = [one for one in trials if not outside(profiles, one.values)] or [*trials]
    exact = [
        one
        for one in fitting
        if all(row == tuple(opt) for _, row, (_, opt, _) in _rows(profiles, one.values))
    ]
    return (exact or fitting)[-1]


def _rows(
    profiles: Sequence[Profile], values: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[int, ...], Triple]]:
    """The shapes and values of inputs that the first profile limits, each as text, as numbers, and with its limits."""
    for profile in profiles[:1]:
        for name, limits in profile.shapes.items():
            if name in values:
                shape = tuple(np.shape(values[name]))
                yield f"input {name} of shape {list(shape)} is", shape, limits
        for name, limits in profile.values.items():
            if name in values:
                yield (
                    f"the values of input {name} are",
                    tuple(np.asarray(values[name]).reshape(-1).tolist()),
                    limits,
                )
