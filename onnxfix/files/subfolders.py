"""The folders inside that of a model, in which external data may lie."""

from __future__ import annotations

from pathlib import PurePath

from onnxfix.errors import OnnxfixError
from onnxfix.files.folders import Folder, writing


class Subfolders:
    """Folders inside ``home``, by their path from there. Close it at the end."""

    def __init__(self, home: Folder) -> None:
        self.home = home
        self._folders: dict[PurePath, Folder] = {}

    def folder(self, where: PurePath) -> Folder:
        """The folder ``where``, created if it is missing. No link is followed: onnx follows none.

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

    def close(self) -> None:
        """Close the folders."""
        for folder in self._folders.values():
            folder.close()
