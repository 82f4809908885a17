"""The files around a build: engines that are saved, and timing caches that are read and saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.files import regular
from onnxfix.files.apart import File
from onnxfix.files.atomic import temporary_beside
from onnxfix.runtime import confinement

if TYPE_CHECKING:
    from onnxfix.tensorrt.records import TrtOptions


def check_files(options: TrtOptions) -> None:
    """Refuse paths that cannot be written, before any work is done.

    Raises:
        UsageError: one is a directory, a device or a pipe, or its directory does not exist or takes no files.
    """
    for file in files(options):
        option, path = file.what, file.path
        try:
            if path.is_dir():
                raise OnnxfixError(f"{path}: is a directory; name a file")
            path = regular.destination(path)
            if not path.parent.is_dir():
                raise OnnxfixError(f"{path}: directory {path.parent} does not exist")
            if regular.status(path) is not None:
                with path.open("rb"):
                    pass
            confinement.name(path, whole=option == "--timing-cache")  # which a child writes
            with temporary_beside(path):
                pass
        except OSError as error:
            raise UsageError(f"{option} {path}: cannot be read: {error.strerror or error}") from None
        except OnnxfixError as error:
            raise UsageError(f"{option} {error}") from None


def files(options: TrtOptions) -> list[File]:
    """The files that a run with these options writes, by option."""
    named = (
        ("--save-engine", options.save_engine),
        ("--timing-cache", options.timing_cache),
        ("--save-tactics", options.save_tactics),
    )
    return [File(option, Path(name)) for option, name in named if name]


def timing_cache(config: Any, path: Path, messages: Callable[[], Sequence[str]]) -> Any:
    """The timing cache in the file, an empty one where there is no file yet, handed to the builder's ``config``.

    ``messages`` returns TensorRT's messages so far: where it cannot read the file, it only logs that, and goes on with
    an empty cache that would then replace the file.

    Raises:
        UsageError: the file cannot be read, or TensorRT does not accept its cache here.
    """
    try:
        data = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise UsageError(f"--timing-cache {path}: cannot be read: {error.strerror or error}") from None
    before = len(messages())
    cache = config.create_timing_cache(data)
    accepted = cache is not None and config.set_timing_cache(cache, False)
    errors = messages()[before:] if data else ()
    if not accepted or errors:
        reason = " ".join(errors[-1].split()) if errors else "made for another GPU or version"
        raise UsageError(
            f"--timing-cache {path}: TensorRT does not accept this cache ({reason}); delete it or name another file"
        )
    return cache
