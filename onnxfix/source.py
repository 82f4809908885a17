"""Where in the code of a model's author a node comes from, as exporters write it down.

PyTorch's dynamo exporter gives each node its stack trace, modules and classes as metadata. The legacy exporter puts the
modules into the node's name, and with ``verbose=True`` the trace into its doc string. tf2onnx's scopes are names, too.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from onnxfix.errors import decoded

if TYPE_CHECKING:
    from onnx import NodeProto

TRACE, SCOPES, CLASSES = (
    f"pkg.torch.onnx.{name}" for name in ("stack_trace", "name_scopes", "class_hierarchy")
)
"""Keys of a node's metadata: Python's traceback, the names of the modules around the node, and their classes."""
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in ([^\n]+)(?:\n {4,}([^\n]+))?')
_LEGACY_FRAME = re.compile(r"(?m)^([^\n]+)\((\d+)\): ([^\n]+)$")
_PARAMETER = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
_INSTALLED = re.compile(r"^(?:.*[/\\])?(?:(?:site|dist)-packages|lib[/\\]python3\.\d+)[/\\]|^<")
_LIBRARIES = frozenset({"accelerate", "diffusers", "onnxscript", "peft", "timm", "torch", "torchaudio"}
                       | {"torchvision", "transformers", "ultralytics"})  # fmt: skip
"""Packages whose files are libraries' even where only the path within the package is known."""


@dataclass(frozen=True)
class Frame:
    """A line of Python that ran: its file as the exporter saw it, the line (from 1 on), the function, and the text of
    the line ("": unknown)."""

    file: str = ""
    line: int = 0
    function: str = ""
    code: str = ""

    @property
    def installed(self) -> str:
        """The file within the folder of installed packages; "" for a file of the user's."""
        match = _INSTALLED.search(self.file)
        path = self.file[match.end() if match and match[0] != "<" else 0 :].replace("\\", "/")
        return path if match or path.partition("/")[0] in _LIBRARIES else ""

    @property
    def where(self) -> str:
        """File and line, for people."""
        return f"{self.installed or self.file}:{self.line}" if self.file else ""


@dataclass(frozen=True)
class Source(Frame):
    """Where a node comes from: the innermost frame of the user's own code, the frame of a library that this one called,
    and the module.

    ``module`` is the module's path in the model (``encoder.layers.0.attn``) and ``class_name`` its class. If all
    frames are in libraries, the innermost one outside of PyTorch stands in for the user's. Without a trace, ``file``
    is "" and only the module is known.
    """

    module: str = ""
    class_name: str = ""
    library: Frame | None = None

    #: Properties that JSON has besides the fields.
    RENDERED: ClassVar[tuple[str, ...]] = ("text",)

    @property
    def text(self) -> str:
        """For people: ``model.py:45 (Block.forward): scores = q @ k``, or ``module encoder.layers.0``."""
        if not self.file:
            name = f"module {self.module}" if self.module else "the outermost module"
            return f"{name} ({self.class_name})" if self.class_name else name
        code = f": {self.code}" if self.code else ""
        behind = f" → {self.library.where}" if self.library is not None else ""
        return f"{self.where} ({self.function}){code}{behind}"


def source_of(node: NodeProto) -> Source | None:
    """Where a node comes from by its own metadata, doc string or name, in this order; None if they do not say it."""
    said = {decoded(entry.key): entry.value for entry in node.metadata_props[:]}
    if TRACE in said or SCOPES in said:
        return _read(*(decoded(said.get(key, "")) for key in (TRACE, SCOPES, CLASSES)))
    names = [decoded(name) for name in (node.name, *node.output[:])]
    scoped = next((name for name in names if "/" in name), "")
    parameter = next((name for name in names if _PARAMETER.fullmatch(name)), "")
    if not (scoped or parameter or node.doc_string):
        return None
    module = ".".join(part for part in scoped.split("/")[:-1] if part) or parameter.rpartition(".")[0]
    return _read_legacy(decoded(node.doc_string), module, bool(scoped or parameter))


@lru_cache(4096)
def _read(trace: str, scopes: str, classes: str) -> Source | None:
    frames = [Frame(file, int(line), function, code) for file, line, function, code in _FRAME.findall(trace)]
    # The last scope is the operator's own.
    modules, types = _listed(scopes)[:-1], _listed(classes)[:-1]
    return source_at(frames, modules[-1] if modules else "", types) if frames or modules else None


@lru_cache(4096)
def _read_legacy(trace: str, module: str, named: bool) -> Source | None:
    """The frames of a doc string, innermost first there, without those of PyTorch that call a module. ``named``: the
    module is known, which is "" for the outermost one."""
    frames = [
        Frame(file, int(line), function)
        for file, line, function in _LEGACY_FRAME.findall(trace)
        if function not in ("_slow_forward", "_call_impl", "_wrapped_call_impl")
    ]
    return source_at(frames[::-1], module, ()) if named or frames else None


def source_at(frames: Sequence[Frame], module: str, types: Sequence[str]) -> Source:
    """Where code is that ran, by its frames, outermost first, and by the module and the classes around it."""
    class_name = types[-1] if types else ""
    own = next((number for number, frame in reversed([*enumerate(frames)]) if not frame.installed), None)
    beyond = [frame for frame in frames[0 if own is None else own + 1 :] if not _is_torch(frame)]
    if own is None:
        frame = (beyond or frames or [Frame()])[-1]
        return Source(frame.file, frame.line, _method(frame, types), frame.code, module, class_name)
    frame = frames[own]
    library = beyond[-1] if beyond else None
    return Source(frame.file, frame.line, _method(frame, types), frame.code, module, class_name, library)


def _is_torch(frame: Frame) -> bool:
    """Whether the code is PyTorch's, or generated (``<eval_with_key>``)."""
    return frame.installed.startswith(("torch/", "<"))


def _method(frame: Frame, types: Sequence[str]) -> str:
    """The function of a frame, with the innermost class that its file defines."""
    stem = (frame.installed or frame.file).replace("\\", "/").removesuffix(".py").replace("/", ".")
    for one in reversed(types):
        home, _, name = one.rpartition(".")
        if home and (f".{stem}".endswith(f".{home}") or (home == "__main__" and not frame.installed)):
            return f"{name}.{frame.function}"
    return frame.function


def _listed(text: str) -> list[str]:
    """A list of strings as Python writes it; an empty one for anything else."""
    try:
        found = literal_eval(text) if text else []
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    return [str(one) for one in found] if isinstance(found, list) else []


def inherit(new: Iterable[NodeProto], old: NodeProto) -> None:
    """Give new nodes that do not say where they come from what ``old`` says, in its own form."""
    said = [entry for entry in old.metadata_props if entry.key in (TRACE, SCOPES, CLASSES)]
    traced = _LEGACY_FRAME.search(decoded(old.doc_string)) is not None
    for node in new if said or traced else ():
        if not any(entry.key == TRACE for entry in node.metadata_props):
            node.metadata_props.extend(said)
        if traced and not node.doc_string:
            node.doc_string = old.doc_string
