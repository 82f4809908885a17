"""ONNX's node models after every tool, in one small file for a machine that has a GPU and not the tools.

The original models and their data are in every installation of onnx: the file has their digests.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import onnx
from acceptance.cases import NodeCase
from acceptance.judging import same_graph
from acceptance.tools import Made, Peers, Tool, run_onnxfix
from google.protobuf.message import DecodeError

import onnxfix
from onnxfix.errors import OnnxfixError
from onnxfix.sandbox import Worker

ORIGINAL = "as-is"
_MANIFEST = "manifest.json"
_MEMORY_MB = 4096


def digest_of(data: bytes) -> str:
    """A name for a model: what it holds decides."""
    return hashlib.sha256(data).hexdigest()[:16]


class Maker:
    """Every tool in turn on one model; ``python`` is the interpreter of the peers' environment, None: without peers."""

    def __init__(self, tools: Sequence[Tool], python: Path | None, timeout: float, stack: ExitStack) -> None:
        self.tools = [tool for tool in tools if not tool.peer or python is not None]
        self._timeout = timeout
        self._fixer = stack.enter_context(Worker(memory_mb=_MEMORY_MB))
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))
        self._peers: Peers | None = None
        if python is not None:
            self._peers = stack.enter_context(Peers(python, timeout, _MEMORY_MB))

    @property
    def versions(self) -> dict[str, str]:
        """Of everything that wrote models."""
        peers = self._peers.versions if self._peers is not None else {}
        own = {"onnxfix": onnxfix.__version__, "onnx": onnx.__version__}
        return {**own, **{f"{name} (of the peers)": version for name, version in peers.items()}}

    def make(self, case: NodeCase) -> tuple[dict[str, dict[str, Any]], dict[str, bytes]]:
        """What each tool did, by its name, and the models by digest; the original is not among these."""
        own = digest_of(case.data)
        entries = {ORIGINAL: _entry(Made("ok"), own)}
        models: dict[str, bytes] = {}
        source, target = self._folder / "original.onnx", self._folder / "rewritten.onnx"
        source.write_bytes(case.data)
        for tool in self.tools:
            target.unlink(missing_ok=True)
            made = self._run(tool, source, target)
            digest = ""
            if made.status == "ok":
                data = target.read_bytes() if made.changed else case.data
                digest = own if not made.changed or _same(case.data, data) else digest_of(data)
                if digest != own:
                    models[digest] = data
            entries[tool.name] = _entry(made, digest)
        return entries, models

    def _run(self, tool: Tool, source: Path, target: Path) -> Made:
        if not tool.peer:
            return run_onnxfix(self._fixer, tool, source, target, False, self._timeout)
        assert self._peers is not None
        return self._peers.run(tool, source, target)


def _entry(made: Made, digest: str) -> dict[str, Any]:
    return {"status": made.status, "message": made.message, "digest": digest, "codes": made.codes}


def _same(original: bytes, rewritten: bytes) -> bool:
    """Whether two models compute by the same nodes and weights."""
    try:
        return same_graph(*map(onnx.load_model_from_string, (original, rewritten)))
    except DecodeError:
        return False


def pack(path: Path, cases: Sequence[NodeCase], maker: Maker) -> dict[str, Any]:
    """Run all tools on all cases and write the file; returns its manifest."""
    began = time.monotonic()
    made: dict[str, Any] = {}
    known: set[str] = set()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for case in cases:
            made[case.name], models = maker.make(case)
            for digest, data in models.items():
                if digest not in known:
                    file.writestr(f"{digest}.onnx", data)
            known |= set(models)
            if len(made) % 100 == 0:
                spent = time.monotonic() - began
                print(f"{len(made)} of {len(cases)}, {spent:.0f} s", file=sys.stderr, flush=True)
        manifest = {"versions": maker.versions, "made": made}
        file.writestr(_MANIFEST, json.dumps(manifest))
    return manifest


class Carried:
    """A file that ``pack`` wrote. Not for two threads at once.

    Raises:
        OnnxfixError: it is none.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = zipfile.ZipFile(path)
            self.manifest: dict[str, Any] = json.loads(self._file.read(_MANIFEST))
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise OnnxfixError(f"{path}: is no file of models that `prepare` wrote: {error}") from None

    def __enter__(self) -> Carried:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __contains__(self, case: NodeCase) -> bool:
        """Whether it is about this very model."""
        entries = self.manifest["made"].get(case.name)
        return entries is not None and entries[ORIGINAL]["digest"] == digest_of(case.data)

    def models(self, case: NodeCase, tools: Sequence[str]) -> dict[str, bytes]:
        """The different models that these tools made of a case, the original among them where one is that."""
        entries = self.manifest["made"][case.name]
        wanted = {entries[tool]["digest"] for tool in tools if tool in entries} - {""}
        own = entries[ORIGINAL]["digest"]
        return {one: case.data if one == own else self._file.read(f"{one}.onnx") for one in sorted(wanted)}
