"""The temporary files of a fixed model: written, proven, and then installed under their final names."""

from __future__ import annotations

import contextlib
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath

from onnx import ModelProto

from onnxfix.errors import OnnxfixError
from onnxfix.files import apart, atomic, lazy, loading, saving, tensors, walk
from onnxfix.files.atomic import Stamp, Temporary, temporary_in
from onnxfix.files.folders import GONE, Folder, writing
from onnxfix.files.saving import Whole
from onnxfix.verbs.job import Job


@dataclass(frozen=True)
class _Split:
    """A model and its data file, in a folder of their own under their final names: the model refers to its weights by
    name, and is installed as it was proven."""

    folder: Folder
    model: Temporary
    weights: Temporary


class Candidate:
    """The fixed model in the folder where it will be installed, or without a destination in one where its external
    data are found. ``original`` is the file that the original is read from, ``copies`` are files that were made for
    that. Everything that is not installed is deleted at the end of ``stack``. ``locations`` name its data files, and
    ``shared`` has the SHA-256 of each that is the original's.

    The fixed model gets a data file of its own, which holds the original's data files whole; unless it replaces the
    original, or the options want the data shared.

    Raises:
        OnnxfixError: no files can be written to the folder.
    """

    def __init__(self, job: Job, original: Path, copies: Sequence[Temporary], stack: ExitStack) -> None:
        loaded, destination, output = job.loaded, job.destination, job.plan.options.output
        self._loaded, self._stack, self._copies = loaded, stack, copies
        if destination is not None:
            path = destination.parent
        elif loaded.external:
            path = original.parent
        else:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))
        with writing(destination or path):
            self._home = stack.enter_context(Folder(path))
        self._name = destination.name if destination is not None else original.name
        self._model = self._plain = self._temporary(self._home)
        self._own: dict[str, Whole] = {}
        self.shared: dict[str, str] = {}
        if destination is not None and loaded.base_dir is not None and not output.in_place:
            if output.share_data and loaded.external:
                self.shared = saving.hashes(loaded.base_dir, loaded.external)
            elif not output.share_data:
                files = {location: loaded.base_dir / location for location in loaded.external}
                self._own = {location: Whole(path, path.stat().st_size) for location, path in files.items()}
        self._split: _Split | None = None
        self._moved: Sequence[object] = ()
        self._existing: Stamp | None = None
        self._replaced: Stamp = ()
        self.locations = loaded.external
        # Without a destination, the folder may have files of the user's: the weights get an unused name. onnx accepts
        # no location that starts with two dots.
        name = self._name if destination is not None else self._plain.name.replace("..", ".")
        self.location = f"{name}.data"

    def _temporary(self, folder: Folder) -> Temporary:
        return self._stack.enter_context(temporary_in(folder, self._name, most=self._loaded.mode))

    @property
    def path(self) -> Path:
        """The file of the model."""
        return self._model.path

    @property
    def split(self) -> bool:
        """Whether it has a data file of its own, ``location``."""
        return self._model is not self._plain

    @property
    def rewritten(self) -> bool:
        """Whether it differs from the original even where nothing is fixed: by the names of its data files, or by what
        it records of shared ones."""
        return bool(self._own or self.shared)

    @cached_property
    def _data(self) -> Folder:
        """A folder with the original's external data: the output's own, or a private one with copies.

        Raises:
            OnnxfixError: the disk is full, or the original's external data has changed.
        """
        if not self._own or apart.keeps_data_near(self._loaded, self._home.path / self._name):
            return self._home
        assert self._loaded.base_dir is not None
        folder = self._stack.enter_context(self._home.private(self._name))
        self._show(map(PurePath, self._own), folder, self._loaded.base_dir)
        return folder

    @cached_property
    def scratch(self) -> Temporary:
        """A temporary file for models that refer to the original's external data, which is found beside it."""
        return self._plain if self._data is self._home else self.spare()

    def spare(self) -> Temporary:
        """Another such file."""
        return self._temporary(self._data)

    def save(self, proto: ModelProto) -> None:
        """Write the candidate.

        Raises:
            OnnxfixError: the disk is full, or another file has the name that the weights need.
        """
        used = tensors.external_files(proto)
        if self.shared or (self._own and saving.has_record(proto)):
            recorded = walk.copied(proto)
            saving.set_record(recorded, {name: self.shared[name] for name in used if self.shared})
            proto = recorded
        layout = saving.laid_out(proto, self.location, self._own)
        self.proto = layout.proto
        self.locations = [] if self._own else used
        if not layout.moved:
            self._model = self._plain
            layout.write(self._plain)
            return
        locations = {PurePath(location) for location in self.locations}
        if PurePath(self.location) in locations:
            raise self._in_the_way()
        self.locations.append(self.location)
        split = self._staged()
        self._show(locations, split.folder, self._home.path)
        # Weights are most of a model, and few fixes touch them: they are copied once for all attempts.
        fresh = layout.moved != self._moved
        self._moved = ()
        layout.write(split.model, split.weights if fresh else None)
        self._moved = layout.moved
        self._existing = self._match_existing(split)
        self._model = split.model

    def _staged(self) -> _Split:
        if self._split is None:
            folder = self._stack.enter_context(self._home.private(self._name))
            files = []
            for name in (PurePath(self.location).stem, self.location):
                final = self._name if name != self.location else name
                with writing(self._home.path / final):
                    file = Temporary(folder, name, self._home, final, most=self._loaded.mode)
                self._stack.callback(file.close)
                files.append(file)
            self._split = _Split(folder, *files)
        return self._split

    def _show(self, locations: Iterable[PurePath], where: Folder, source: Path) -> None:
        """Copy external data from the folder ``source`` into a private one: onnx follows no links."""
        for location in locations:
            with ExitStack() as stack:
                folder = where
                for part in location.parent.parts:
                    with writing(folder.path / part):
                        folder.make(part)
                        folder = stack.enter_context(folder.enter(part))
                with writing(folder.path / location.name):
                    if folder.lookup(location.name) is not None:
                        continue  # copied for an earlier candidate
                    file = Temporary(folder, location.name, folder, location.name)
                try:
                    saving.copy_file(source / location, file)
                finally:
                    file.leave()

    def _match_existing(self, split: _Split) -> Stamp | None:
        """The file that has the data file's name already, if it is identical: an earlier run may have written it. One
        of another content is replaced together with the model that it belongs to.

        Raises:
            OnnxfixError: it is another file.
        """
        path = self._home.path / self.location
        with writing(path):
            status = self._home.lookup(self.location)
        self._replaced = ()
        if status is None:
            return None
        regular = stat.S_ISREG(status.st_mode)
        alone = regular and status.st_nlink == 1  # onnx reads no file of several names
        if alone and atomic.same_bytes(split.weights.path, path):
            return lazy.stamp_of(status)
        # Is it the data file of the model to be replaced, as an earlier run wrote it?
        if regular and not self._home.exposed:
            with contextlib.suppress(OnnxfixError):
                if loading.load(self._home.path / self._name).external == [self.location]:
                    self._replaced = lazy.stamp_of(status)
        if not self._replaced:
            raise self._in_the_way()
        return None

    def _in_the_way(self) -> OnnxfixError:
        return OnnxfixError(
            f"{self._home.path / self.location}: is in the way of the weights of the result; move it, or name another "
            "output"
        )

    @contextlib.contextmanager
    def staying(self) -> Iterator[None]:
        """A context in which others read the candidate by its path, which must lead to it all the time.

        Raises:
            OnnxfixError: the folder is another one at the end, whatever was raised for the lack of the file.
        """
        try:
            yield
        finally:
            if not self._home.reached():
                raise OnnxfixError(f"{self._home.path / self._name}: {GONE}") from None

    def copy(self) -> None:
        """Write the model as it was read, byte for byte.

        Raises:
            OnnxfixError: the disk is full, or the model has changed.
        """
        self._model = self._plain
        self._loaded.copy_to(self._plain)
        self.locations = self._loaded.external

    def check(self) -> None:
        """Check that the files still are what was written: others have read them since.

        Raises:
            OnnxfixError: one was changed or replaced.
        """
        for file in (*self._copies, self._model):
            file.check()
        if self.split and self._split is not None:
            self._split.weights.check()
            known = self._existing or self._replaced
            if known and lazy.stamp(self._home.path / self.location) != known:
                raise OnnxfixError(f"{self._home.path / self.location}: was changed or replaced; run again")

    def install(self, *, in_place: bool) -> None:
        """Rename the files to their final names, the model last.

        Raises:
            OnnxfixError: one was changed, or they cannot be written.
        """
        self.check()
        files = [self._model]
        if self.split and self._split is not None and self._existing is None:
            files.insert(0, self._split.weights)
        atomic.install(files, replaced=self._loaded.stamp if in_place else (), together=bool(self._replaced))
