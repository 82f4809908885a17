"""External data on its way to where the output goes: the system copies while the rules run."""

from __future__ import annotations

import contextlib
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from onnxfix.graph import wire


class Arriving:
    """A copy of a model's external data that has begun. For one thread, but for the copy itself."""

    def __init__(self, loaded: wire.Loaded, source: Path, destination: Path) -> None:
        locations = loaded.external
        self._names = {Path(location).name for location in locations}
        pool = ThreadPoolExecutor(1, "onnxfix-copy")
        self._wanted = True
        self._copy: Future[list[Path]] = pool.submit(
            wire.copy_external, locations, source, destination, lambda: self._wanted
        )
        pool.shutdown(wait=False)

    def __contains__(self, name: str) -> bool:
        """Whether a file of this name may be on its way."""
        return name in self._names

    def wait(self) -> list[Path]:
        """Return once all of it is there: the files that were not there before. An interrupt does not end the copy.

        Raises:
            OnnxfixError: another file stands in the way, or the disk is full.
        """
        return self._copy.result()

    def over(self) -> list[Path]:
        """End the copy, for nobody wants it; no interrupt ends that. Returns the files that are to be deleted."""
        self._wanted = False
        while not self._copy.done():
            with contextlib.suppress(KeyboardInterrupt):  # files that come after we have gone would stay
                futures.wait([self._copy])
        # One that failed has left nothing.
        return self._copy.result() if self._copy.exception() is None else []
