"""The external data files in the folder of a model's output."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePath

from onnxfix.errors import OnnxfixError
from onnxfix.files.folders import Folder, writing
from onnxfix.files.lazy import stamp
from onnxfix.files.temporary import Placed


class Beside:
    """The external data in the folder of a model's output: ``brought`` are the files copied there, by location, and
    ``found`` those that existed already, with their stamps. Close it at the end."""

    def __init__(self, home: Folder) -> None:
        self.home = home
        self.brought: dict[PurePath, Placed] = {}
        self.found: dict[Path, tuple[int, ...]] = {}
        self._folders: dict[PurePath, Folder] = {}

    def folder(self, where: PurePath) -> Folder:
        """The folder ``where`` inside the output's, created if it is missing. No link is followed: onnx follows none.

        Raises:
            OnnxfixError: a file or a link has that name.
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
                    f"{path}: is not a folder, and the model's external data needs one of that name; move it"
                ) from None
        return self._folders[where]

    def check(self) -> None:
        """Make sure that the files are still those that were copied or found.

        Raises:
            OnnxfixError: one was changed or replaced.
        """
        for placed in self.brought.values():
            placed.check()
        for path, known in self.found.items():
            if stamp(path) != known:
                raise OnnxfixError(f"{path}: was changed or replaced while the model was verified; run again")

    def drop(self, keep: Iterable[str] = ()) -> None:
        """Delete the copied files, except those of the locations ``keep``. Folders stay: another run may use them."""
        for location in self.brought.keys() - {PurePath(one) for one in keep}:
            self.brought[location].remove()
            del self.brought[location]

    def close(self) -> None:
        """Close the folders."""
        for folder in self._folders.values():
            folder.close()
