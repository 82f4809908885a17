"""How pytest-xdist hands out 14,000 tests: as with ``--dist=loadgroup``, without looking at all of them for each one.

Its scheduler counts again, after each test, all that a worker was ever given, and looks a test's number up from the
first one on: 30 s of a processor in the quick lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController


class Collected(list[str]):
    """The names of a worker's tests, which knows where each of them is."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self._places = {name: place for place, name in reversed(list(enumerate(names)))}

    def index(self, value: str, start: SupportsIndex = 0, stop: SupportsIndex = -1, /) -> int:
        """The first place of a name; only for whole lists."""
        return self._places[value]


class Groups(LoadGroupScheduling):
    """Forgets what has been done."""

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """Take what a worker has collected."""
        super().add_node_collection(node, collection)
        if node in self.registered_collections:
            self.registered_collections[node] = Collected(collection)

    def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
        for name in [name for name, tests in workload.items() if all(tests.values())]:
            del workload[name]
        return super()._pending_of(workload)
