"""A model's external data in the folder of its output."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePath

from onnxfix.errors import OnnxfixError
from onnxfix.files.folders import Folder, writing
from onnxfix.files.lazy import stamp
from onnxfix.files.temporary import Placed


class Beside:
    """A model's external data in the folder of its output: the files that were brought there, by location, and those
    that were there. Close it at the end."""

    def __init__(self, home: Folder) -> None:
        self.home = home
        self.brought: dict[PurePath, Placed] = {}
        self.found: dict[Path, tuple[int, ...]] = {}
        self._folders: dict[PurePath, Folder] = {}

    def folder(self, where: PurePath) -> Folder:
        """The folder ``where`` in the output's, made if it is not there. No link is followed: onnx follows none.

        Raises:
            OnnxfixError: something else is there.
        """
        if where == PurePath():
            return self.home
        if where not in self._folders:
            around = self.folder(where.parent)
            path = around.path / where.name
            with writing(path):
                around.make(where.name)
            try:
                self._folders[where] = around.enter(where.name)
            except OSError:
                raise OnnxfixError(
                    f"{path}: is no folder, where the model's external data has one; move it"
                ) from None
        return self._folders[where]

    def check(self) -> None:
        """Make sure that the files are still those that were brought or found.

        Raises:
            OnnxfixError: one was changed or replaced.
        """
        for placed in self.brought.values():
            placed.check()
        for path, known in self.found.items():
            if stamp(path) != known:
                raise OnnxfixError(f"{path}: was changed or replaced while the model was verified; run again")

    def drop(self, keep: Iterable[str] = ()) -> None:
        """Delete the files that were brought, but those of these locations. Their folders stay: another run may be
        about to use them."""
        for location in self.brought.keys() - {PurePath(one) for one in keep}:
            self.brought[location].remove()
            del self.brought[location]

    def close(self) -> None:
        """Let go of the folders."""
        for folder in self._folders.values():
            folder.close()
