"""Object stores through fsspec: listing, identity and errors.

Each kind of store needs its own package: s3fs, gcsfs, adlfs, ...
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator
from typing import Any

from onnxfix.errors import MissingFile, OnnxfixError, UsageError
from onnxfix.fleet.paths import Named, glob_root, is_glob, name_of

READ = "cannot be read"


def matches(pattern: str) -> Iterator[Named]:
    """The models that a URL, or a URL with wildcards, names. Matches are sorted by name.

    Raises:
        UsageError: the glob matches no file, or the protocol is unknown or its package is missing.
        OnnxfixError: the store cannot be listed.
    """
    system, path = filesystem(pattern)  # a missing package is reported before any work
    if not is_glob(pattern):
        yield Named(pattern, name_of(pattern))
        return
    with one_line_errors(pattern, "cannot be listed"):
        if system.isfile(path):
            yield Named(pattern, name_of(pattern))
            return
        found = system.glob(path, detail=True)
        names = sorted(name for name, info in found.items() if info.get("type") == "file")
        urls = [str(system.unstrip_protocol(name)) for name in names]
    if not names:
        raise UsageError(f"{pattern}: no file matches")
    root = glob_root(path, "/")
    for name, url in zip(names, urls, strict=True):
        yield Named(url, posixpath.relpath(name, root or posixpath.curdir))


def canonical(url: str) -> str:
    """The URL as its file system spells it, so that two spellings of one place are equal."""
    system, path = filesystem(url)
    return str(system.unstrip_protocol(path))


def filesystem(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path in it.

    Raises:
        UsageError: fsspec or the protocol's package is not installed, or the protocol is unknown.
        OnnxfixError: the file system cannot be set up.
    """
    try:
        import fsspec  # lazy: optional package
    except ImportError:
        raise UsageError(f"{url}: needs fsspec: pip install 'onnxfix[remote]'") from None
    if "::" in url:
        raise UsageError(f"{url}: chained URLs are not supported; name the file itself")
    protocol = url.partition("://")[0]
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:  # fsspec's text names the package
        raise UsageError(f"{url}: {protocol}:// needs another package: {error}") from None
    except ValueError as error:
        raise UsageError(f"{url}: {error}; fsspec knows no such protocol") from None
    except Exception as error:  # the protocol's package rejects its settings
        raise OnnxfixError(f"{url}: {_described(error)}") from None
    return system, str(path)


def fingerprint(url: str) -> str:
    """A hash of the store's metadata of the file (entity tag, size, time); it changes when the file is replaced.

    Raises:
        ModelError: the file does not exist.
        OnnxfixError: the store cannot be read.
    """
    system, path = filesystem(url)
    with one_line_errors(url, READ):
        system.invalidate_cache()
        return str(system.ukey(path))


def size(url: str) -> int:
    """Bytes of the file; 0 where the store does not report it.

    Raises:
        ModelError: the file does not exist.
        OnnxfixError: the store cannot be read.
    """
    system, path = filesystem(url)
    with one_line_errors(url, READ):
        return int(system.size(path) or 0)


@contextlib.contextmanager
def one_line_errors(url: str, failure: str) -> Iterator[None]:
    """Turn what a store raises into one line that names the URL and the ``failure``.

    Raises:
        ModelError: the file does not exist.
        OnnxfixError: any other failure; each store's package has exceptions of its own.
    """
    try:
        yield
    except OnnxfixError:
        raise
    except FileNotFoundError as error:
        if failure != READ:  # a missing bucket, for example
            raise OnnxfixError(f"{url}: {failure}: {error.strerror or error}") from None
        raise MissingFile(f"{url}: no such file") from None
    except PermissionError as error:
        raise OnnxfixError(f"{url}: {failure}: permission denied{_details(error)}") from None
    except Exception as error:
        raise OnnxfixError(f"{url}: {failure}: {_described(error)}") from None


def _details(error: OSError) -> str:
    """What a store adds to "permission denied", if anything."""
    text = error.strerror or str(error)
    return "" if not text or text.lower() == "permission denied" else f" ({text})"


def _described(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
