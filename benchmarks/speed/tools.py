"""What is measured: onnxfix and its peers as the command lines that a user would type, each run as a whole process."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from acceptance import peer_child
from command import launched

_ONNXSCRIPT = (
    "import sys; import onnx_ir as ir; from onnxscript import optimizer; m = ir.load(sys.argv[1]); "
    "optimizer.optimize(m); ir.save(m, sys.argv[2], external_data=sys.argv[3] or None)"
)


@dataclass(frozen=True)
class Job:
    """A model and where a result of it belongs; ``external``: its weights lie beside it, and so shall the result's."""

    source: Path
    target: Path
    external: bool

    @property
    def data(self) -> str:
        """The name of the file for the result's weights."""
        return self.target.name + ".data" if self.external else ""


@dataclass(frozen=True)
class Tool:
    """A column of the tables.

    ``command`` gives the words after the interpreter of its environment. ``writes``: a model, which is judged.
    """

    name: str
    title: str
    command: Callable[[Job], list[str]]
    environment: Literal["onnxfix", "peers"] = "peers"
    writes: bool = True


def _onnxfix(job: Job) -> list[str]:
    options = ["--no-verify", "--fail-on", "never"]
    return [_script("onnxfix"), "apply", *options, str(job.source), "-o", str(job.target)]


def _polygraphy(job: Job) -> list[str]:
    command = [_script("polygraphy"), "surgeon", "sanitize", str(job.source), "-o", str(job.target)]
    return [*command, "--fold-constants", *(["--save-external-data", job.data] if job.external else [])]


def _script(name: str) -> str:
    """A program of the tool's environment: ``Bench.command`` knows its folder."""
    return f"@{name}"


def _simplifier(name: str, job: Job) -> list[str]:
    external = ["--save-as-external-data"] if job.external else []
    return [_script(name), str(job.source), str(job.target), *external]


CHECK = Tool(
    "check",
    "`onnxfix check`",
    lambda job: [_script("onnxfix"), "check", "--fail-on", "never", str(job.source)],
    "onnxfix",
    writes=False,
)
APPLY = Tool("apply", "`onnxfix apply --no-verify`", _onnxfix, "onnxfix")
OURS = (CHECK, APPLY)
PEERS = (
    Tool("onnxsim", "onnxsim", partial(_simplifier, "onnxsim")),
    Tool("onnxslim", "onnxslim", partial(_simplifier, "onnxslim")),
    Tool("polygraphy", "polygraphy surgeon sanitize --fold-constants", _polygraphy),
    Tool(
        "onnxscript",
        "onnxscript.optimizer",
        lambda job: ["-c", _ONNXSCRIPT, str(job.source), str(job.target), job.data],
    ),
    Tool(
        "onnxoptimizer",
        "onnxoptimizer",
        lambda job: ["-m", "onnxoptimizer", str(job.source), str(job.target)],
    ),
)


Cost = dict[str, Any]
"""One run: ``status`` (ok, refused, crash, timeout or memory), ``message``, and what launch.py says."""


@dataclass(frozen=True)
class Bench:
    """Where things are, and the limits of each run. ``pythons``: the interpreter of each environment."""

    pythons: dict[str, Path]
    scratch: Path
    timeout: float = 180.0
    memory_mb: int = 16_000

    def command(self, tool: Tool, job: Job) -> list[str]:
        """Absolute words; a program of the environment lies beside its interpreter."""
        python = self.pythons[tool.environment]
        words = tool.command(job)
        if words[0].startswith("@"):
            return [str(python), str(python.parent / words[0][1:]), *words[1:]]
        return [str(python), *words]

    def run(self, tool: Tool, job: Job, watch: bool = False) -> Cost:
        """Run it once; what an earlier run wrote is deleted first. See launch.py for ``watch``."""
        clear(job)
        words = self.scratch / f"words-{job.target.stem}.txt"
        limits = {"timeout": self.timeout, "memory_mb": self.memory_mb, "watch": watch}
        found = launched(self.command(tool, job), words, limits, env=_environment())
        said = words.read_text("utf-8", "replace")[-20_000:]
        for folder in (job.target.parent, job.source.parent, self.pythons[tool.environment].parents[1]):
            said = said.replace(f"{folder}/", "")
        words.unlink()
        status, message = status_of(found, said, job.target.exists() or not tool.writes)
        return {**found, "status": status, "message": message}


def clear(job: Job) -> None:
    """Delete a result, with everything beside it in its folder."""
    for file in job.target.parent.iterdir():
        file.unlink()


def status_of(found: dict[str, Any], said: str, written: bool) -> tuple[str, str]:
    """How a run ended, and in the tool's own words why it did not end well."""
    if found["status"] == "memory":
        return "memory", "took too much memory"
    return peer_child.status_of(found["code"] if found["status"] == "ended" else None, said, written)


def _environment() -> dict[str, str]:
    """A user's: nothing of the caller's Python (module paths, where compiled files lie, warnings), no color."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return {**kept, "NO_COLOR": "1"}
