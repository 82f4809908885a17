"""External data on its way to where the output goes: the system copies while the rules run."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from onnxfix.graph import wire


class Arriving:
    """A copy of a model's external data that has begun. For one thread, but for the copy itself."""

    def __init__(self, loaded: wire.Loaded, source: Path, destination: Path) -> None:
        self._names = {Path(name).name for name in loaded.external}
        pool = ThreadPoolExecutor(1, "onnxfix-copy")
        self._copy: Future[list[Path]] | None = pool.submit(
            wire.copy_external, loaded.proto, source, destination
        )
        pool.shutdown(wait=False)

    def __contains__(self, name: str) -> bool:
        """Whether a file of this name may be on its way."""
        return self._copy is not None and name in self._names

    def wait(self) -> list[Path]:
        """Return once all of it is there: the files that were not there before, or none where that was told before.

        Raises:
            OnnxfixError: another file stands in the way, or the disk is full.
        """
        if self._copy is None:
            return []
        copy, self._copy = self._copy, None
        return copy.result()
