"""Which models the command line names, by local path, folder, glob or URL, and where their results go."""

from __future__ import annotations

import glob
import os
import posixpath
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from onnxfix import system
from onnxfix.errors import UsageError
from onnxfix.fleet.paths import Named, beside, glob_root, is_glob, is_remote, local, name_of


class Results(NamedTuple):
    """Where results of a run go: beside the models (None) or to a folder."""

    folder: str | None = None


def expand(patterns: Sequence[str], results: Results | None = None) -> list[Named]:
    """The models that paths, folders, globs and URLs name, each once: in the order of the patterns, those of a glob or
    a folder by name.

    A folder stands for the .onnx files in it and below, but not for hidden folders, and not for the ``results`` of
    earlier runs. Any other path without wildcards is taken as it is, whether or not the file exists; so is one with
    wildcards that is the name of an existing file. ``**`` matches any number of folders. Folders are never matched by
    a glob. Two links to one file are two models; a file reached through ``..`` or through linked folders twice is one.

    Raises:
        UsageError: a glob or a folder has no such file, or a URL's protocol is unknown or its package is missing.
        OnnxfixError: the store cannot be listed.
    """
    models: dict[str, Named] = {}
    for pattern in patterns:
        for model in _match(pattern, results):
            if is_remote(model.source):
                key = _canonical(model.source)
            else:  # links in its folders are resolved, but not one that is the file itself
                folder, name = os.path.split(model.source)
                key = os.path.join(os.path.realpath(folder), name)
            models.setdefault(key, model)
    return list(models.values())


def _match(pattern: str, results: Results | None) -> Iterable[Named]:
    if is_remote(pattern):
        from onnxfix.fleet import remote  # lazy: URLs only

        return remote.matches(pattern)
    pattern = local(pattern)
    if os.path.isdir(pattern):
        return _list_folder(pattern, results)
    if not is_glob(pattern) or os.path.lexists(pattern):
        return [Named(pattern, os.path.basename(pattern))]
    paths = [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
    if not paths:
        raise UsageError(f"{pattern}: no file matches")
    return _relative_to(glob_root(pattern, os.sep) or os.curdir, paths)


def _list_folder(folder: str, results: Results | None) -> Iterator[Named]:
    """The .onnx files in a folder and below, by path."""
    paths = []
    avoided = os.path.realpath(results.folder) if results is not None and results.folder is not None else None
    for place, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(os.path.join(place, name)) != avoided
        ]
        models = [name for name in files if name.lower().endswith(".onnx") and not name.startswith(".")]
        earlier = {_fixed(name) for name in models} if results is not None else set()
        paths += [os.path.join(place, name) for name in models if name not in earlier]
    if not paths:
        raise UsageError(f"{folder}: no .onnx file in this folder or below it")
    return _relative_to(folder, paths)


def _relative_to(root: str, paths: Iterable[str]) -> Iterator[Named]:
    return (Named(path, os.path.relpath(path, root).replace(os.sep, "/")) for path in sorted(paths))


def _fixed(name: str) -> str:
    """The file name of a result beside its model."""
    return f"{posixpath.splitext(name)[0]}.fixed.onnx"


def _canonical(url: str) -> str:
    from onnxfix.fleet import remote  # lazy: URLs only

    return remote.canonical(url)


def targets(
    models: Sequence[Named], output: str | None, output_dir: str | None, in_place: bool
) -> dict[str, str]:
    """Where each model's result goes, by source; empty for ``in_place``. Makes no folder.

    Raises:
        UsageError: options exclude each other, two results would go to one file, or one to a model of this run, or the
            system has no files of such a name.
    """
    if sum((output is not None, output_dir is not None, in_place)) > 1:
        raise UsageError("choose one of --output, --output-dir and --in-place")
    if output is not None and len(models) > 1:
        raise UsageError("--output takes one model; use --output-dir for several")
    if in_place:
        for model in models:
            if is_remote(model.source):
                raise UsageError(
                    f"{model.source}: --in-place takes local files; use --output or --output-dir"
                )
        return {}
    sources = {_file(model.source): model.source for model in models}
    files: dict[str, str] = {}
    alike: dict[str, str] = {}
    for model in models:
        target = _target(model, output, output_dir)
        _refuse_unusable(model, target)
        file = _file(target)
        if file in files.values():
            raise UsageError(f"two models would be written to {target}")
        other = sources.get(file)
        if other is not None and other != model.source:
            raise UsageError(
                f"the result of {model.source} would replace {other}, another model of this run; write elsewhere by "
                "--output-dir, or leave earlier results out of the glob"
            )
        near = alike.setdefault(_folded(file), file)
        if near != file and not is_remote(target) and system.ignores_case(os.path.dirname(file)):
            raise UsageError(
                f"two models would be written to {target}: the file system takes it and {os.path.basename(near)} for "
                "one name; write them to two folders"
            )
        files[model.source] = file
    return {model.source: _target(model, output, output_dir) for model in models}


def _target(model: Named, output: str | None, output_dir: str | None) -> str:
    if output is not None:
        return local(output)
    if output_dir is None:
        return beside(model.source, _fixed(name_of(model.source)))
    if ".." in model.inside.split("/"):
        raise UsageError(
            f"{model.source}: '..' after a wildcard or at the end of the path leads out of {output_dir}; "
            "name the model by another path"
        )
    if is_remote(output_dir):
        return f"{output_dir.rstrip('/')}/{model.inside}"
    return os.path.join(local(output_dir), *model.inside.split("/"))


def _file(path: str) -> str:
    """Equal for two paths that name one file, with links followed."""
    return _canonical(path) if is_remote(path) else os.path.realpath(path)


def _refuse_unusable(model: Named, target: str) -> None:
    path = "" if is_remote(target) else os.path.splitdrive(target)[1]
    bad = next(filter(system.unusable, path.replace(os.sep, "/").split("/")), None)
    if bad is not None:
        raise UsageError(
            f"{model.source}: {target}: this system has no files named {bad}; write elsewhere by --output"
        )


def _folded(path: str) -> str:
    """Equal for two paths that are one where case and forms of accents do not count."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def make_folders(paths: Sequence[str]) -> None:
    """Make the folders of local files that will be written. Stores make theirs on upload.

    Raises:
        UsageError: a folder cannot be made.
    """
    for folder in dict.fromkeys(os.path.dirname(path) for path in paths if not is_remote(path)):
        try:
            os.makedirs(folder or os.curdir, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder}: cannot be made: {error.strerror or error}") from None
