"""The folder that ``reduce`` writes: the reduced model, and all that reproduces its failure."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from onnx import ModelProto

from onnxfix._version import __version__
from onnxfix.errors import UsageError
from onnxfix.files import atomic, loading, saving
from onnxfix.files.atomic import PLAIN, temporary_beside
from onnxfix.files.folders import writing
from onnxfix.inputs.feeds.files import check_inputs, load_inputs
from onnxfix.inputs.feeds.signature import signature
from onnxfix.place import Place
from onnxfix.reduction import case as cases
from onnxfix.reduction.against import OTHER, AgainstCheck
from onnxfix.reduction.case import Case, Failure, Reduction
from onnxfix.reduction.checks import Check, npz
from onnxfix.reduction.search import Reducer
from onnxfix.report.render.results import readme, script
from onnxfix.runtime.nvidia import driver_there, gpus

STATE, MODEL, INPUTS = "reduction.json", "model.onnx", "inputs.npz"
EXPECTED, SEEN = "expected.npz", "seen.npz"
README, SCRIPT, VERSIONS = "README.md", "reproduce.py", "versions.json"
FILES = (STATE, MODEL, INPUTS, EXPECTED, SEEN, README, SCRIPT, VERSIONS, OTHER, "error.txt")
"""All names that a folder may have."""
FORMAT = 1
_STATE, _IDENTITY = ("cwd", "names"), ("check", "match", "package", "capability")
"""What else the state and its identity must have."""
COMMAND = f"python {SCRIPT}"
_PACKAGES = ("onnx", "onnxruntime", "onnxruntime-gpu", "numpy", "ml_dtypes", "protobuf")


@dataclass(frozen=True)
class Saved:
    """What a folder holds: the reduced model with its inputs, its failure, the second model (None: there is none), and
    the ``state``: how the failure was found."""

    case: Case
    failure: Failure
    other: Path | None
    state: Mapping[str, Any]

    @contextlib.contextmanager
    def workplace(self) -> Iterator[None]:
        """The folder in which onnxfix was started then, where it is there: a command may name files in it."""
        cwd = self.state["cwd"]
        with contextlib.chdir(cwd) if os.path.isdir(cwd) else contextlib.nullcontext():
            yield


class Folder:
    """The folder of a reduction. ``identity`` is what it is made for.

    Raises:
        UsageError: the folder holds something else.
        OnnxfixError: it cannot be created.
    """

    def __init__(self, folder: Path, loaded: loading.Loaded, identity: Mapping[str, Any]) -> None:
        self.path, self.identity = folder, identity
        self.most = loaded.mode if loaded.path is not None else PLAIN
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder}: is not a folder; name another one with --output")
        if not folder.parent.is_dir():
            raise UsageError(f"{folder.parent}: no such folder for the result")
        foreign = sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []
        if foreign and (STATE not in foreign or not set(foreign) <= set(FILES)):
            strange = next((one for one in foreign if one not in FILES), foreign[0])
            raise UsageError(f"{folder}: holds {strange}, which onnxfix did not write; name another folder")

    def finish(self, found: Reduction, reducer: Reducer, check: Check) -> Reduction:
        """Write the whole folder. Returns the result with what was learnt on the way.

        Raises:
            OnnxfixError: the folder cannot be written.
        """
        case = reducer.case
        with writing(self.path):
            self.path.mkdir(exist_ok=True)
        self._put(MODEL, case.model)
        self._put(INPUTS, npz(case.inputs))
        environment = versions(check)
        found = replace(
            found,
            folder=str(self.path),
            bytes_after=(self.path / MODEL).stat().st_size,
            operators=tuple(node.op_type for node in case.model.graph.node[:20]),
            environment=environment,
            command=COMMAND,
        )
        expected, other = reducer.values.run(case).values, check.seen(case, self.path / MODEL)
        part = check.part(case) if isinstance(check, AgainstCheck) else None
        contents: dict[str, bytes | ModelProto | None] = {
            EXPECTED: npz(expected) if expected else None,
            SEEN: npz(other) if other else None,
            "error.txt": f"{reducer.seen.text}\n".encode(),
            OTHER: part.model if part is not None else None,
            VERSIONS: json.dumps(environment, indent=2).encode() + b"\n",
            SCRIPT: script().encode(),
        }
        there = [name for name in FILES if contents.get(name, b"") is not None]
        contents[README] = readme(found, there).encode()
        contents[STATE] = self._state(reducer)
        for name, content in contents.items():
            self._put(name, content)
        return found

    def _state(self, reducer: Reducer) -> bytes:
        check, case, names = reducer.terms.check, reducer.case, None
        if (
            isinstance(check, AgainstCheck) and check.names is not None
        ):  # of the tensors that both parts share
            shared = (*case.inputs, *case.cut, *case.outputs)
            names = {name: check.names[name] for name in shared if name in check.names}
        document = {
            "onnxfix": FORMAT,
            "identity": self.identity,
            "failure": dataclasses.asdict(reducer.failure),
            "cut": sorted(reducer.case.cut),
            "names": names,
            "cwd": os.getcwd(),
        }
        return json.dumps(document, indent=2).encode() + b"\n"

    def _put(self, name: str, content: bytes | ModelProto | None) -> None:
        """Write a file; None: remove that of an earlier run."""
        path = self.path / name
        if content is None:
            with writing(path):
                path.unlink(missing_ok=True)
            return
        with temporary_beside(path, most=self.most) as file:
            if isinstance(content, ModelProto):
                saving.save(content, file)
            else:
                saving.write(content, file)
            atomic.install([file])


def versions(check: Check) -> dict[str, str]:
    """Versions of all that takes part, and the GPU where there is one."""
    found = {"onnxfix": __version__, "python": sys.version.split()[0], "platform": platform.platform()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    found.update(check.environment())
    if driver_there():
        found["gpu"] = ", ".join(f"{one.name} ({one.capability})" for one in gpus())
    return found


def read_folder(folder: Path) -> Saved:
    """What a folder holds.

    Raises:
        UsageError: it is no folder of a reduction.
        OnnxfixError: its model cannot be read.
    """
    try:
        state = json.loads((folder / STATE).read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder}: is not a folder that onnxfix reduce wrote: {error}") from None
    if not isinstance(state, dict) or state.get("onnxfix") != FORMAT:
        raise UsageError(f"{folder / STATE}: was written by another version of onnxfix")
    loaded = loading.load(folder / MODEL)
    try:
        inputs = load_inputs(folder / INPUTS)[0] if (folder / INPUTS).exists() else {}
        [inputs] = check_inputs(signature(loaded.proto), [inputs]) if inputs else [{}]
        case = cases.case_of(loaded, {})
        stored = {
            one.name: cases.array_of(one) for one in case.model.graph.initializer if one.name in state["cut"]
        }
        cut = {name: inputs.get(name, stored.get(name)) for name in state["cut"]}
        read = {info.name for info in case.model.graph.input}
        case = replace(
            case,
            inputs={name: value for name, value in inputs.items() if name in read},
            cut={name: value for name, value in cut.items() if value is not None},
        )
        identity = state["identity"]
        for record, names in ((state, _STATE), (identity, _IDENTITY)):
            if missing := [name for name in names if name not in record]:
                raise KeyError(*missing)
        several = len(identity["models"]) > 1
        other = folder / OTHER if several and (folder / OTHER).exists() else None
        failure = state["failure"]
        return Saved(case, Failure(**{**failure, "place": _place(failure["place"])}), other, state)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{folder / STATE}: cannot be read: {error!r}") from None


def _place(fields: dict[str, Any]) -> Place:
    around = _place(fields["around"]) if fields["around"] else None
    return Place(**{**fields, "graph": tuple(fields["graph"]), "around": around, "source": None})
