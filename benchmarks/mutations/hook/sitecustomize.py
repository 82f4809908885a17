"""Loads the files with switches, and answers which mutant is switched on.

Python imports this by its name, in the test run and in every interpreter that tests start. It must load little: there
are tests of what a process loads.
"""

import builtins
import marshal
import mmap
import os
from importlib.machinery import SourceFileLoader

TESTS = 1 << 16
SLOTS = 64
"""Test runs at a time, each with four bytes at the head of the map for the test that it is at."""
FORKED, SPAWNED = 1, 2


class Switchboard:
    """Which mutant is on; or, where none is, a map of which test reaches which: a byte for each of both."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        with open(os.path.join(folder, "files"), "rb") as stream:
            self.width, self.files = marshal.load(stream)
        with open(os.path.join(folder, "map"), "r+b") as stream:
            self.map = mmap.mmap(stream.fileno(), 0)
        self.flag = SPAWNED
        self.active = -1
        self.use(int(os.environ.get("MUTATIONS_SLOT", "0")), int(os.environ.get("MUTATIONS_ACTIVE", "-1")))

    def use(self, slot: int, active: int = -1) -> None:
        """Belong to a test run; switch a mutant on, or record what is reached."""
        self.head = 4 * slot
        self.active = active
        os.environ.update(MUTATIONS_SLOT=str(slot), MUTATIONS_ACTIVE=str(active))
        builtins.__mutant__ = self.reached if active < 0 else active.__eq__  # type: ignore[attr-defined]

    def at(self, test: int) -> None:
        """The test that this test run is at, in all its processes."""
        self.map[self.head : self.head + 4] = test.to_bytes(4, "little")

    def reached(self, number: int) -> bool:
        head = self.head
        test = int.from_bytes(self.map[head : head + 4], "little")
        self.map[4 * SLOTS + test * self.width + number] |= self.flag
        return False

    def row(self, test: int) -> bytes:
        """What a test reached."""
        start = 4 * SLOTS + test * self.width
        return self.map[start : start + self.width]

    def load(self) -> None:
        """From now on, import the files that have switches with them."""
        usual = SourceFileLoader.get_code
        files, folder = self.files, self.folder

        def get_code(loader: SourceFileLoader, fullname: str) -> object:
            name = files.get(loader.path)
            if name is None:
                return usual(loader, fullname)
            with open(os.path.join(folder, name), "rb") as stream:
                return marshal.load(stream)

        SourceFileLoader.get_code = get_code  # type: ignore[assignment,method-assign]


if "MUTATIONS_FOLDER" in os.environ:
    switchboard = Switchboard(os.environ["MUTATIONS_FOLDER"])
    switchboard.load()
