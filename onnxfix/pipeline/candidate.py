"""The files of a fixed model before they have their names: where they are written, proven, and installed from."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from onnx import ModelProto

from onnxfix.errors import OnnxfixError
from onnxfix.files import atomic, copying, lazy, loading, saving, tensors
from onnxfix.files.beside import Beside
from onnxfix.files.folders import Folder, thoroughly, writing
from onnxfix.files.temporary import Stamp, Temporary, temporary_in

if TYPE_CHECKING:
    from onnxfix.files.arriving import Arriving


@dataclass(frozen=True)
class _Split:
    """A model and the weights that do not fit into one protobuf with it, in a folder of their own under the names that
    they will have: the model calls its weights by name, and is installed as it was proven."""

    folder: Folder
    model: Temporary
    weights: Temporary


class Candidate:
    """The fixed model in the folder where it will be installed, or with ``destination`` None in any where its external
    data is found. ``original`` is where the original is read, ``copies`` are files that were made for that. All is
    deleted at the end of ``stack``, unless installed.

    Raises:
        OnnxfixError: the folder takes no files.
    """

    def __init__(
        self,
        loaded: loading.Loaded,
        destination: Path | None,
        original: Path,
        stack: ExitStack,
        *,
        copies: Sequence[Temporary] = (),
        leave_data: bool,
    ) -> None:
        self._loaded, self._stack, self._leave_data, self._copies = loaded, stack, leave_data, copies
        self._arriving: Arriving | None = None
        path = destination.parent if destination is not None else self._anywhere(original)
        with writing(destination or path):
            self._home = stack.enter_context(Folder(path))
        self._name = destination.name if destination is not None else original.name
        self._most = loaded.mode
        self._beside = Beside(self._home)
        self._model = self._plain = self.spare()
        stack.callback(self._close)
        if destination is not None and loaded.external and loaded.base_dir is not None:
            from onnxfix.files.arriving import Arriving  # threads, of which most runs have no need

            self._arriving = Arriving(loaded, loaded.base_dir, self._beside)
        self._split: _Split | None = None
        self._theirs: Stamp | None = None
        # With no destination, the folder may hold files of the user's: the weights get a name that nobody else has
        # taken, without the two dots with which onnx takes no location to begin.
        name = self._name if destination is not None else self._plain.name.replace("..", ".")
        self.location = f"{name}.data"

    def _anywhere(self, original: Path) -> Path:
        if self._loaded.external:
            return original.parent
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))

    @property
    def path(self) -> Path:
        """Where the model can be read."""
        return self._model.path

    @property
    def split(self) -> bool:
        """Whether its weights are in a file beside it because they do not fit into one protobuf with it."""
        return self._model is not self._plain

    def spare(self) -> Temporary:
        """Another temporary file in the same folder."""
        return self._stack.enter_context(temporary_in(self._home, self._name, most=self._most))

    @property
    def scratch(self) -> Temporary:
        """The temporary file of a model that is not split."""
        return self._plain

    def arrived(self) -> None:
        """Wait until the external data is where the candidate looks for it.

        Raises:
            OnnxfixError: another file stands in the way, or the disk is full.
        """
        if self._arriving is not None:
            self._arriving.wait()
            self._arriving = None

    def save(self, proto: ModelProto) -> None:
        """Write the candidate.

        Raises:
            OnnxfixError: the disk is full, or another file has the name that the weights need.
        """
        layout = saving.laid_out(proto, self.location)
        if not layout.moved:
            self._model = self._plain
            layout.write(self._plain)
            return
        self.arrived()
        own = PurePath(self.location)
        locations = {PurePath(location) for location in tensors.external_files(proto)}
        if own in locations:
            raise self._in_the_way()
        split = self._staged()
        self._show(locations, split)
        layout.write(split.model, split.weights)
        self._theirs = self._found(split)
        self._model = split.model

    def _staged(self) -> _Split:
        if self._split is None:
            folder = self._stack.enter_context(self._home.private(self._name))
            files = []
            for name in (PurePath(self.location).stem, self.location):
                final = self._name if name != self.location else name
                with writing(self._home.path / final):
                    file = Temporary(folder, name, self._home, final, most=self._most)
                self._stack.callback(file.close)
                files.append(file)
            self._split = _Split(folder, *files)
        return self._split

    def _show(self, locations: Iterable[PurePath], split: _Split) -> None:
        """Copy the other external data of a split model beside it: onnx follows links of no kind. Such models are rare,
        since whoever keeps weights in files of their own seldom has 2 GB left in the model."""
        staged = Beside(split.folder)
        try:
            for location in locations:
                folder = staged.folder(location.parent)
                with writing(folder.path / location.name):
                    if folder.lookup(location.name) is not None:
                        continue  # for a candidate before
                    file = Temporary(folder, location.name, folder, location.name)
                try:
                    copying.copy_file(self._home.path / location, file)
                finally:
                    file.leave()
        finally:
            staged.close()

    def _found(self, split: _Split) -> Stamp | None:
        """The file that has the weights' name, if it holds the same: an earlier run's is as good as ours.

        Raises:
            OnnxfixError: it holds something else.
        """
        path = self._home.path / self.location
        with writing(path):
            there = self._home.lookup(self.location)
        if there is None:
            return None
        if path.is_symlink() or not path.is_file() or not atomic.same_bytes(split.weights.path, path):
            raise self._in_the_way()
        return lazy.stamp_of(there)

    def _in_the_way(self) -> OnnxfixError:
        return OnnxfixError(
            f"{self._home.path / self.location}: is in the way of the weights, which do not fit into one protobuf "
            "(2 GB) with the model; move it"
        )

    def copy(self) -> None:
        """Write the model as it was read, byte for byte.

        Raises:
            OnnxfixError: the disk is full, or the model has changed.
        """
        self._model = self._plain
        self._loaded.copy_to(self._plain)

    def check(self) -> None:
        """Make sure that the files are what was written, for whoever has read them since.

        Raises:
            OnnxfixError: somebody else has changed or replaced one.
        """
        for file in (*self._copies, self._model):
            file.check()
        if self.split and self._split is not None:
            self._split.weights.check()
            if self._theirs is not None and lazy.stamp(self._home.path / self.location) != self._theirs:
                raise OnnxfixError(f"{self._home.path / self.location}: was changed or replaced; run again")
        self._beside.check()

    def install(self, proto: ModelProto, *, in_place: bool) -> None:
        """Give the files their names, those that ``proto`` refers to and the model last.

        Raises:
            OnnxfixError: somebody else has changed one, or they cannot be written.
        """
        self.check()
        if not self._leave_data:
            self._beside.drop(keep=tensors.external_files(proto))
        files = [self._model]
        if self.split and self._split is not None and self._theirs is None:
            files.insert(0, self._split.weights)
        atomic.install(
            files,
            needs=list(self._beside.brought.values()),
            backup=in_place,
            replaced=self._loaded.stamp if in_place else (),
        )

    def _close(self) -> None:
        if self._arriving is not None:  # the run failed before it was there
            self._arriving.over()
        if not self._model.placed and not self._leave_data:
            thoroughly(self._beside.drop)
        self._beside.close()
