"""The search for sizes that a model accepts, for each path through its control flow."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from onnx import ModelProto

from onnxfix.sizes.problem import Problem, problem_of
from onnxfix.sizes.solve import Sizes, fitted
from onnxfix.sizes.values import Pins, deciding

_LARGEST = 64 << 20  # bytes of a model that is copied
_VAIN = 3  # searches without a result after which there are no more


class Search:
    """Finds valid sizes near to wanted ones. The demands are computed once for each path through the control flow.

    ``base_dir`` is the folder of the model's external data, and ``given`` are fixed values of inputs.
    """

    def __init__(
        self, proto: ModelProto, base_dir: Path | None = None, given: Mapping[str, Any] | None = None
    ) -> None:
        self._proto, self._base_dir, self._given = proto, base_dir, dict(given or {})
        self._problems: dict[tuple[tuple[str, int], ...], Problem] = {}
        self._near: dict[tuple[tuple[tuple[str, int], ...], ...], Sizes | None] = {}

    @cached_property
    def ways(self) -> list[Pins]:
        """Values of inputs, one set for each path through the control flow; [{}] if no input selects one."""
        found = deciding(self._proto)
        open_ones = [
            {name: value for name, value in pins.items() if name not in self._given} for pins in found
        ]
        return [one for place, one in enumerate(open_ones) if one not in open_ones[:place]]

    @cached_property
    def _large(self) -> bool:
        return self._proto.ByteSize() > _LARGEST

    def problem(self, pins: Mapping[str, int], sizes: Mapping[str, int] | None = None) -> Problem:
        """The demands of the model with these values of inputs and with some symbols replaced by their sizes.

        A large model with its weights in memory is not copied for that: values and sizes are ignored then.
        """
        if self._large:
            pins, sizes = {}, None
        key = (*pins.items(), *((f"{name}.size", size) for name, size in (sizes or {}).items()))
        if key not in self._problems:
            self._problems[key] = problem_of(self._proto, {**self._given, **pins}, self._base_dir, sizes)
        return self._problems[key]

    @property
    def in_vain(self) -> bool:
        """Whether no search has found sizes."""
        return bool(self._near) and all(found is None for found in self._near.values())

    def near(
        self,
        wish: Mapping[str, int],
        fixed: Mapping[str, int] | None = None,
        pins: Mapping[str, int] | None = None,
    ) -> Sizes | None:
        """Sizes near to ``wish`` that the model accepts, as far as known; None if there are none.

        ``fixed`` sizes are not changed; ``pins`` are values of inputs.
        """
        fixed, pins = fixed or {}, pins or {}
        key = tuple(tuple(one.items()) for one in (wish, fixed, pins))
        if key not in self._near:
            vain = self.in_vain and len(self._near) >= _VAIN * len(self.ways)
            self._near[key] = None if vain else self._nearest(wish, fixed, pins)
        found = self._near[key]
        return None if found is None else dict(found)

    def _nearest(
        self, wish: Mapping[str, int], fixed: Mapping[str, int], pins: Mapping[str, int]
    ) -> Sizes | None:
        problem = self.problem(pins)
        unchanged = {name: size for name, size in fixed.items() if name in problem.free}
        found = fitted(problem, wish, unchanged)
        if found is None or self._holds(found, pins, problem):
            return found
        # Which branches run, and shapes that are computed from data, may depend on a size. With all other sizes known,
        # more is known about the last one.
        for name in problem.free:
            rest = {other: size for other, size in found.items() if other != name}
            one = (
                fitted(self.problem(pins, rest), {name: wish.get(name, 1)}) if name not in unchanged else None
            )
            better = {**found, **one} if one is not None else found
            if better != found and self._holds(better, pins, problem):
                return better
        return found

    def _holds(self, sizes: Sizes, pins: Mapping[str, int], problem: Problem) -> bool:
        """Whether every demand holds, including those that are known only with all sizes."""
        if not problem.likely and problem.met(sizes):
            return True
        return not any(one.term.decided is False for one in self.problem(pins, sizes).demands)
