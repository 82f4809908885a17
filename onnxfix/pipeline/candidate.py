"""The temporary files of a fixed model: written, proven, and then installed under their final names."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from onnx import ModelProto

from onnxfix.errors import OnnxfixError
from onnxfix.files import atomic, copying, lazy, loading, saving, tensors
from onnxfix.files.beside import Beside
from onnxfix.files.folders import GONE, Folder, thoroughly, writing
from onnxfix.files.sweeping import prefix
from onnxfix.files.temporary import Stamp, Temporary, temporary_in
from onnxfix.record import record

if TYPE_CHECKING:
    from onnxfix.files.arriving import Arriving


@record
class _Split:
    """A model and the weights that do not fit into one protobuf with it, in a folder of their own under their final
    names: the model refers to its weights by name, and is installed as it was proven."""

    folder: Folder
    model: Temporary
    weights: Temporary


class Candidate:
    """The fixed model in the folder where it will be installed, or with ``destination`` None in one where its external
    data are found. ``original`` is the file that the original is read from, ``copies`` are files that were made for
    that. Everything that is not installed is deleted at the end of ``stack``.

    Raises:
        OnnxfixError: no files can be written to the folder.
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
            from onnxfix.files.arriving import Arriving  # lazy: start-up, it loads threads

            self._arriving = Arriving(loaded, loaded.base_dir, self._beside)
        self._split: _Split | None = None
        self._existing: Stamp | None = None
        # Without a destination, the folder may have files of the user's: the weights get an unused name. onnx accepts
        # no location that starts with two dots.
        name = self._name if destination is not None else self._plain.name.replace("..", ".")
        self.location = f"{name}.data"

    def _anywhere(self, original: Path) -> Path:
        if self._loaded.external:
            return original.parent
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix())))

    @property
    def path(self) -> Path:
        """The file of the model."""
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
            OnnxfixError: another file has the name, or the disk is full.
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
        self._existing = self._found(split)
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
        """Copy the other external data of a split model beside it: onnx follows no links. Such models are rare: with
        weights in external files, a model seldom has 2 GB of its own."""
        staged = Beside(split.folder)
        try:
            for location in locations:
                folder = staged.folder(location.parent)
                with writing(folder.path / location.name):
                    if folder.lookup(location.name) is not None:
                        continue  # copied for an earlier candidate
                    file = Temporary(folder, location.name, folder, location.name)
                try:
                    copying.copy_file(self._home.path / location, file)
                finally:
                    file.leave()
        finally:
            staged.close()

    def _found(self, split: _Split) -> Stamp | None:
        """The file that has the weights' name already, if it is identical: an earlier run may have written it.

        Raises:
            OnnxfixError: it is another file.
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

    @contextlib.contextmanager
    def staying(self) -> Iterator[None]:
        """A context in which others read the candidate by its path, which must lead to it all the time.

        Raises:
            OnnxfixError: the folder is another one at the end, whatever was raised for the lack of the file.
        """
        try:
            yield
        except Exception:
            self._stayed()
            raise
        self._stayed()

    def _stayed(self) -> None:
        if not self._home.reached():
            raise OnnxfixError(f"{self._home.path / self._name}: {GONE}") from None

    def copy(self) -> None:
        """Write the model as it was read, byte for byte.

        Raises:
            OnnxfixError: the disk is full, or the model has changed.
        """
        self._model = self._plain
        self._loaded.copy_to(self._plain)

    def check(self) -> None:
        """Check that the files still are what was written: others have read them since.

        Raises:
            OnnxfixError: one was changed or replaced.
        """
        for file in (*self._copies, self._model):
            file.check()
        if self.split and self._split is not None:
            self._split.weights.check()
            if self._existing is not None and lazy.stamp(self._home.path / self.location) != self._existing:
                raise OnnxfixError(f"{self._home.path / self.location}: was changed or replaced; run again")
        self._beside.check()

    def install(self, proto: ModelProto, *, in_place: bool) -> None:
        """Rename the files to their final names, first those that ``proto`` refers to, and the model last.

        Raises:
            OnnxfixError: one was changed, or they cannot be written.
        """
        self.check()
        if not self._leave_data:
            self._beside.drop(keep=tensors.external_files(proto))
        files = [self._model]
        if self.split and self._split is not None and self._existing is None:
            files.insert(0, self._split.weights)
        atomic.install(
            files,
            needs=list(self._beside.brought.values()),
            backup=in_place,
            replaced=self._loaded.stamp if in_place else (),
        )

    def _close(self) -> None:
        if self._arriving is not None:  # the run failed before the copy was complete
            self._arriving.over()
        if not self._model.placed and not self._leave_data:
            thoroughly(self._beside.drop)
        self._beside.close()
