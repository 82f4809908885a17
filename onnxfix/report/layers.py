"""What ``layers`` found: the engine's layers by node, several builds compared, and the files that were written."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfix.proof.checks.builds import Builds
from onnxfix.shown import Shown
from onnxfix.tensorrt.layer_records import LayerTable
from onnxfix.tensorrt.tactics import Tactics


@dataclass(frozen=True, repr=False)
class LayerReport(Shown):
    """``path`` is the model, ``table`` its nodes in the engine (the one that was kept), ``product`` the TensorRT that
    built it. ``builds`` are the engines that were compared (None: one was built). ``engine`` and ``tactics_file`` are
    the files that were written ("": none), and ``tactics`` what the second has, or what was loaded and used.
    """

    path: str
    table: LayerTable
    product: str
    builds: Builds | None = None
    engine: str = ""
    tactics: Tactics | None = None
    tactics_file: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0: an engine was built. 1: TensorRT refuses the model, or the outputs of every engine are wrong. 3: it could
        not be found out."""
        build = self.table.build
        if not build.accepted:
            return 1 if build.status == "refused" else 3
        best = self.builds.best if self.builds is not None else None
        return 1 if self.builds is not None and (best is None or best.outcome == "wrong") else 0

    def _facts(self) -> dict[str, object]:
        build = self.table.build
        counts = {"nodes": len(self.table.nodes), "layers": len(self.table.layers)} if build.accepted else {}
        return {"path": self.path, "product": self.product, "status": build.status, **counts}
