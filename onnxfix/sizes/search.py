"""The search for sizes that a model takes, for each way that it can be made to take."""

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


class Search:
    """Finds sizes near to wished ones. What a model demands is worked out once for each way that it takes.

    ``base_dir`` is where the model's external data lies, and ``given`` are values that inputs have in any case.
    """

    def __init__(
        self, proto: ModelProto, base_dir: Path | None = None, given: Mapping[str, Any] | None = None
    ) -> None:
        self._proto, self._base_dir, self._given = proto, base_dir, dict(given or {})
        self._problems: dict[tuple[tuple[str, int], ...], Problem] = {}

    @cached_property
    def ways(self) -> list[Pins]:
        """Values of inputs that decide which way the model takes; [{}] where no input does."""
        found = deciding(self._proto)
        open_ones = [
            {name: value for name, value in pins.items() if name not in self._given} for pins in found
        ]
        return [one for place, one in enumerate(open_ones) if one not in open_ones[:place]]

    @cached_property
    def _large(self) -> bool:
        return self._proto.ByteSize() > _LARGEST

    def problem(self, pins: Mapping[str, int], sizes: Mapping[str, int] | None = None) -> Problem:
        """What the model demands, with these values of inputs and with some symbols replaced by their sizes.

        Models whose weights are in memory are not copied for that if they are large: then neither is given.
        """
        if self._large:
            pins, sizes = {}, None
        key = (*pins.items(), *((f"{name}.size", size) for name, size in (sizes or {}).items()))
        if key not in self._problems:
            self._problems[key] = problem_of(self._proto, {**self._given, **pins}, self._base_dir, sizes)
        return self._problems[key]

    def near(
        self,
        wish: Mapping[str, int],
        fixed: Mapping[str, int] | None = None,
        pins: Mapping[str, int] | None = None,
    ) -> Sizes | None:
        """Sizes near to ``wish`` that the model takes, as far as that is known; None where there are none.

        ``fixed`` sizes are not changed; ``pins`` are values of inputs.
        """
        pins = pins or {}
        whole = self.problem(pins)
        held = {name: size for name, size in (fixed or {}).items() if name in whole.free}
        found = fitted(whole, wish, held)
        if found is None or self._holds(found, pins, whole):
            return found
        # Which branches run, and what operators make of data, may hang on a size. With all sizes but one given, more is
        # known of that one.
        for name in whole.free:
            rest = {other: size for other, size in found.items() if other != name}
            one = fitted(self.problem(pins, rest), {name: wish.get(name, 1)}) if name not in held else None
            better = {**found, **one} if one is not None else found
            if better != found and self._holds(better, pins, whole):
                return better
        return found

    def _holds(self, sizes: Sizes, pins: Mapping[str, int], whole: Problem) -> bool:
        """Whether every demand is met, also those that show only once all sizes are given."""
        if not whole.likely and all(one.term.holds(whole.sizes(sizes)) for one in whole.demands):
            return True
        return not any(one.term.decided is False for one in self.problem(pins, sizes).demands)
