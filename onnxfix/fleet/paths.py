"""Models by local path, by glob and by URL: which files a command means, and where their results go.

``s3://bucket/x/**/*.onnx`` and the like go through fsspec, which is imported for them alone; each kind of store needs
its own package (s3fs, gcsfs, adlfs). ``file://`` names a local file like any other path. Bringing remote files here and
back is ``fleet.staging``.
"""

from __future__ import annotations

import contextlib
import glob
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from onnxfix.errors import MissingFile, OnnxfixError, UsageError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)://")
_MAGIC = re.compile(r"[*?\[]")
_LOCAL = ("file", "local")

READ = "cannot be read"


class Named(NamedTuple):
    """A model that the command names. ``source`` is a local path or a URL; ``inside`` is its path in an output folder,
    with slashes: its name, behind the folders between a glob's root and the model."""

    source: str
    inside: str


def remote(path: str) -> bool:
    """Whether ``path`` is a URL of something else than a local file."""
    found = _URL.match(path)
    return found is not None and found[1].lower() not in _LOCAL


def local(path: str) -> str:
    """A local path as the system knows it: ``file://`` taken away."""
    found = _URL.match(path)
    return path[found.end() :] if found is not None and not remote(path) else path


def name_of(source: str) -> str:
    """The last part of a path or URL."""
    return posixpath.basename(source) if remote(source) else os.path.basename(source)


def joined(folder: str, inside: str) -> str:
    """The path or URL of ``inside`` (with slashes) in a folder."""
    if remote(folder):
        return f"{folder.rstrip('/')}/{inside}"
    return os.path.join(local(folder), *inside.split("/"))


def beside(source: str, name: str) -> str:
    """The path or URL of another file in the folder of ``source``."""
    if remote(source):
        return f"{source.rpartition('/')[0]}/{name}"
    return str(Path(source).with_name(name))


def expand(patterns: Sequence[str]) -> list[Named]:
    """The models that paths, globs and URLs name: in the order of the patterns, those of one glob by name, none twice.

    A path without ``*``, ``?`` or ``[`` stands for itself, whether or not something is there; so does one that names a
    file as it is written. ``**`` is any number of folders. Folders that match are left out. Two links to one file are
    two models, but a file that two paths lead to by way of ``..`` or of linked folders is one.

    Raises:
        UsageError: a glob matches nothing, or a URL's protocol is not known or lacks its package.
        OnnxfixError: the store cannot be asked.
    """
    found: dict[str, Named] = {}
    for pattern in patterns:
        for one in _remote_matches(pattern) if remote(pattern) else _local_matches(local(pattern)):
            found.setdefault(canonical(one.source) if remote(one.source) else _entry(one.source), one)
    return list(found.values())


def _entry(path: str) -> str:
    """Equal for two local paths that name one entry of one folder."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def _local_matches(pattern: str) -> Iterator[Named]:
    if not _MAGIC.search(pattern) or os.path.lexists(pattern):
        yield Named(pattern, os.path.basename(pattern))
        return
    names = [name for name in glob.glob(pattern, recursive=True) if os.path.isfile(name)]
    if not names:
        raise UsageError(f"{pattern}: no file matches")
    root = _root(pattern, os.sep)
    for name in sorted(names):
        yield Named(name, os.path.relpath(name, root or os.curdir).replace(os.sep, "/"))


def _remote_matches(pattern: str) -> Iterator[Named]:
    if not _MAGIC.search(pattern):
        filesystem(pattern)  # a missing package is said before any work
        yield Named(pattern, name_of(pattern))
        return
    system, path = filesystem(pattern)
    with telling(pattern, "cannot be listed"):
        if system.isfile(path):
            yield Named(pattern, name_of(pattern))
            return
        known = system.glob(path, detail=True)
        names = sorted(name for name, info in known.items() if info.get("type") == "file")
        urls = [str(system.unstrip_protocol(name)) for name in names]
    if not names:
        raise UsageError(f"{pattern}: no file matches")
    root = _root(path, "/")
    for name, url in zip(names, urls, strict=True):
        yield Named(url, posixpath.relpath(name, root or posixpath.curdir))


def _root(pattern: str, separator: str) -> str:
    """The folders of a glob before the first part with a wildcard."""
    found = _MAGIC.search(pattern)
    assert found is not None  # callers have looked
    before, slash, _ = pattern[: found.start()].rpartition(separator)
    return before + slash


def targets(
    models: Sequence[Named], output: str | None, output_dir: str | None, in_place: bool
) -> dict[str, str]:
    """Where each model's result goes, by source; empty for ``in_place``. Makes no folder.

    Raises:
        UsageError: options exclude each other, two results would go to one file, or one to a model of this run.
    """
    if sum((output is not None, output_dir is not None, in_place)) > 1:
        raise UsageError("choose one of --output, --output-dir and --in-place")
    if output is not None and len(models) > 1:
        raise UsageError("--output takes one model; use --output-dir for several")
    if in_place:
        for model in models:
            if remote(model.source):
                raise UsageError(
                    f"{model.source}: --in-place takes local files; use --output or --output-dir"
                )
        return {}
    sources = {_place(model.source): model.source for model in models}
    found: dict[str, str] = {}
    taken: set[str] = set()
    for model in models:
        target = _target(model, output, output_dir)
        place = _place(target)
        if place in taken:
            raise UsageError(f"two models would be written to {target}")
        other = sources.get(place)
        if other is not None and other != model.source:
            raise UsageError(
                f"the result of {model.source} would replace {other}, another model of this run; write elsewhere by "
                "--output-dir, or leave earlier results out of the glob"
            )
        taken.add(place)
        found[model.source] = target
    for target in found.values():
        if remote(target):
            filesystem(target)  # a missing package is said before any work
    return found


def _target(model: Named, output: str | None, output_dir: str | None) -> str:
    if output is not None:
        return output if remote(output) else local(output)
    if output_dir is not None:
        if ".." in model.inside.split("/"):
            raise UsageError(
                f"{model.source}: its '..' behind the beginning of a glob, or at its end, leads out of {output_dir}; "
                "name the model otherwise"
            )
        return joined(output_dir, model.inside)
    stem = posixpath.splitext(name_of(model.source))[0]
    return beside(model.source, f"{stem}.fixed.onnx")


def _place(path: str) -> str:
    """Equal for two paths that name one file, links followed."""
    return canonical(path) if remote(path) else os.path.realpath(path)


def canonical(url: str) -> str:
    """The URL as its file system spells it, so that two spellings of one place are equal."""
    system, path = filesystem(url)
    return str(system.unstrip_protocol(path))


def make_folders(paths: Sequence[str]) -> None:
    """Make the folders of local files that are to be written. Stores make theirs when they are written to.

    Raises:
        UsageError: one of them cannot be made.
    """
    for folder in dict.fromkeys(os.path.dirname(path) for path in paths if not remote(path)):
        try:
            os.makedirs(folder or os.curdir, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder}: cannot be made: {error.strerror or error}") from None


def filesystem(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path in it.

    Raises:
        UsageError: fsspec or the protocol's package is not installed, or nobody knows the protocol.
        OnnxfixError: the file system cannot be set up.
    """
    try:
        import fsspec
    except ImportError:
        raise UsageError(f"{url}: needs fsspec: pip install 'onnxfix[remote]'") from None
    if "::" in url:
        raise UsageError(f"{url}: chained URLs are not supported; name the file itself")
    protocol = url.partition("://")[0]
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:  # fsspec's text says which package
        raise UsageError(f"{url}: {protocol}:// needs another package: {error}") from None
    except ValueError as error:
        raise UsageError(f"{url}: {error}; fsspec knows no such protocol") from None
    except Exception as error:  # what the protocol's package makes of its settings
        raise OnnxfixError(f"{url}: {_words(error)}") from None
    return system, str(path)


def fingerprint(url: str) -> str:
    """What the store says of the file (entity tag, size, time), hashed; another one after the file was replaced.

    Raises:
        ModelError: it is not there.
        OnnxfixError: the store cannot be asked.
    """
    system, path = filesystem(url)
    with telling(url, READ):
        system.invalidate_cache()
        return str(system.ukey(path))


def size(url: str) -> int:
    """Bytes of the file; 0 where the store does not say.

    Raises:
        ModelError: it is not there.
        OnnxfixError: the store cannot be asked.
    """
    system, path = filesystem(url)
    with telling(url, READ):
        return int(system.size(path) or 0)


@contextlib.contextmanager
def telling(url: str, failure: str) -> Iterator[None]:
    """What goes wrong with a store, in one line that names the URL.

    Raises:
        ModelError: nothing is there.
        OnnxfixError: whatever else its package raises: each has exceptions of its own.
    """
    try:
        yield
    except OnnxfixError:
        raise
    except FileNotFoundError as error:
        if failure != READ:  # of a bucket that is not there, for one
            raise OnnxfixError(f"{url}: {failure}: {error.strerror or error}") from None
        raise MissingFile(f"{url}: no such file") from None
    except PermissionError as error:
        raise OnnxfixError(f"{url}: {failure}: permission denied{_more(error)}") from None
    except Exception as error:
        raise OnnxfixError(f"{url}: {failure}: {_words(error)}") from None


def _more(error: OSError) -> str:
    """What a store says besides "permission denied", if anything."""
    text = error.strerror or str(error)
    return "" if not text or text.lower() == "permission denied" else f" ({text})"


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
