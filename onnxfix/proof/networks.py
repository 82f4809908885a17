"""The networks and engines that TensorRT made of the models of one proof, for the checks that share them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from onnxfix.runtime.sandbox import Posted, Worker

if TYPE_CHECKING:
    from onnxfix.inputs.feeds.plan import Feed
    from onnxfix.tensorrt.lift.records import Lifted
    from onnxfix.tensorrt.records import TrtBuild


@dataclass(eq=False)
class Networks:
    """Models of one proof by path: ``lifted`` are those whose network was read back, into ``folder``; ``begun`` are
    builds under way, all in the child of ``worker``. ``builds`` have ended; the file ``engine`` is that of an accepted
    one. ``refused`` are the feeds that the original refuses in ONNX Runtime, if it accepts none."""

    folder: Path
    lifted: dict[Path, Lifted] = field(default_factory=dict)
    begun: dict[Path, Posted] = field(default_factory=dict)
    builds: dict[Path, TrtBuild] = field(default_factory=dict)
    worker: Worker | None = None
    refused: tuple[Feed, ...] = ()
    _files: dict[Path, Path] = field(default_factory=dict)

    def place(self, path: Path) -> Path:
        """The file for the network of a model; always the same for the same model."""
        return self._files.setdefault(path, self.folder / f"network{len(self._files)}.onnx")

    def engine(self, path: Path) -> Path:
        """The file for the engine of a model, where there is a GPU to execute it."""
        return engine_beside(self.place(path))

    def cancel(self) -> None:
        """End the builds that nobody waits for."""
        waiting, self.begun = self.begun, {}
        if self.worker is not None and any(one.outcome is None for one in waiting.values()):
            self.worker.close()


def engine_beside(network: Path) -> Path:
    """The file for the engine of a model whose network goes to the file ``network``."""
    return network.with_suffix(".engine")


@contextmanager
def networks() -> Iterator[Networks]:
    """Networks for one proof, whose files and builds end with it."""
    with TemporaryDirectory(prefix="onnxfix-", ignore_cleanup_errors=True) as folder:
        found = Networks(Path(folder))
        try:
            yield found
        finally:
            found.cancel()
