"""PyTorch, through the few of its functions that an export and its proof need. torch is imported when it is called."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from onnxfix.errors import UsageError
from onnxfix.verbs.exporting.cases import Given

INSTALL = "pip install torch onnxscript"
EMBEDDED = 1 << 30
"""Bytes of weights up to which the exported file holds them, unless ``external_data`` is given."""
_COLOR = re.compile("\x1b\\[[0-9;]*m")
_ITSELF = ("model", "args", "f")
"""Parameters of torch.onnx.export that ``onnxfix.export`` fills in."""


class ExportFailed(UsageError):
    """PyTorch's exporter failed; its exception is ``__cause__``."""


def torch() -> Any:
    """The package.

    Raises:
        UsageError: it is not installed, or does not load.
    """
    try:
        module = importlib.import_module("torch")
        importlib.import_module("torch.onnx")
    except ImportError as error:
        raise UsageError(f"onnxfix.export needs PyTorch ({error}): {INSTALL}") from error
    return module


def check_options(options: Mapping[str, Any]) -> None:
    """Find keywords that torch.onnx.export does not have.

    Raises:
        UsageError: there is one.
    """
    known = set(inspect.signature(torch().onnx.export).parameters)
    odd = sorted((set(options) - known) | (set(options) & set(_ITSELF)))
    if odd:
        raise UsageError(f"neither onnxfix.export nor torch.onnx.export takes {', '.join(odd)} as a keyword")


def write(module: Any, args: Any, path: Path, options: Mapping[str, Any]) -> None:
    """``torch.onnx.export`` to a file, with its weights beside it where torch puts them.

    Raises:
        ExportFailed: torch raises.
        UsageError: ``check_options`` raises.
    """
    check_options(options)
    given = {"verbose": False, **options}
    if exporter_of(options) == "dynamo":
        # Weights beside the model get in the way of the next export to the same place.
        given.setdefault("external_data", weights_of(module) > EMBEDDED)
    try:
        torch().onnx.export(module, args, str(path), **given)
    except Exception as error:
        raise ExportFailed(f"torch.onnx.export failed: {first_line(error)}") from error
    if not path.exists():
        raise ExportFailed("torch.onnx.export wrote no file")


def first_line(error: BaseException) -> str:
    """The first line of the exception that an exception came from: torch wraps it in advice on several lines."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = _COLOR.sub("", str(error)).splitlines()
    said = next((line.strip() for line in lines if line.strip()), "")
    return f"{type(error).__name__}: {said}"


def weights_of(module: Any) -> int:
    """Bytes of the parameters and buffers; 0 where they are not known."""
    found = [*getattr(module, "parameters", tuple)(), *getattr(module, "buffers", tuple)()]
    return sum(one.numel() * one.element_size() for one in found)


def save(program: Any, path: Path) -> None:
    """Write a program that torch.onnx.export returned, with its weights beside it if they do not fit into the file.

    Raises:
        ExportFailed: torch raises.
    """
    try:
        program.save(str(path))
    except Exception as error:
        raise ExportFailed(f"the program cannot be saved: {first_line(error)}") from error


def of_module(module: Any, args: Any, options: Mapping[str, Any]) -> Subject:
    """A module with the arguments that it is exported with."""
    positional, keywords = arguments_of(args, options.get("kwargs"))
    exported = hasattr(module, "graph_signature") and callable(getattr(module, "module", None))
    return Subject(
        module.module() if exported else module,
        positional,
        keywords,
        exporter=exporter_of(options),
        bounds=bounds_of(options.get("dynamic_shapes")),
        names=names_of(module),
    )


def of_program(program: Any) -> Subject | str:
    """What a program was exported from, or why that is not known."""
    exported = getattr(program, "exported_program", None)
    if exported is None:
        return "the program does not keep what it was exported from"
    if getattr(exported, "example_inputs", None) is None:
        return "the program does not keep the inputs that it was exported with"
    args, kwargs = exported.example_inputs
    return Subject(exported.module(), tuple(args), kwargs, exporter="dynamo")


def is_training(options: Mapping[str, Any]) -> bool:
    """Whether these keywords export a module in another mode than evaluation."""
    mode = options.get("training")
    return mode is not None and getattr(mode, "name", str(mode)) != "EVAL"


def exporter_of(options: Mapping[str, Any]) -> str:
    """Which of torch's two exporters these keywords choose."""
    default = inspect.signature(torch().onnx.export).parameters["dynamo"].default
    return "dynamo" if options.get("dynamo", default) else "legacy"


def bounds_of(dynamic_shapes: Any) -> dict[str, tuple[int, int]]:
    """The least and the greatest size of each ``torch.export.Dim`` with a name and a range."""
    found: dict[str, tuple[int, int]] = {}
    waiting = [dynamic_shapes]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            waiting.extend(one.values())
        elif isinstance(one, (list, tuple)):
            waiting.extend(one)
        elif all(isinstance(getattr(one, name, None), int) for name in ("min", "max")):
            found[str(getattr(one, "__name__", one))] = int(one.min), int(one.max)
    return found


def arguments_of(args: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional arguments and keywords, as torch.onnx.export takes them: also a single tensor, or a last dict of
    keywords."""
    if not isinstance(args, (tuple, list)):
        return (args,), dict(kwargs or {})
    if args and isinstance(args[-1], dict) and kwargs is None:
        return tuple(args[:-1]), dict(args[-1])
    return tuple(args), dict(kwargs or {})


class Subject:
    """A module, or another callable of PyTorch, with the arguments that it was exported with.

    ``torch`` is the version that runs it, ``exporter`` "dynamo", "legacy" or "". ``given`` are the tensors among its
    arguments, in order; ``names`` are those of its parameters. ``bounds`` are the least and the greatest size of
    dynamic dimensions, by name, where the user set any.
    """

    def __init__(
        self,
        call: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        exporter: str = "",
        bounds: Mapping[str, tuple[int, int]] | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self._torch = torch()
        self._tree = importlib.import_module("torch.utils._pytree")
        self.torch = str(self._torch.__version__).partition("+")[0]
        self.exporter, self.bounds = exporter, dict(bounds or {})
        self._call, self._runs = call, 0
        leaves, self._spec = self._tree.tree_flatten((args, dict(kwargs)))
        self._leaves = leaves
        known = {id(one): name for name, one in (*zip(names, args, strict=False), *kwargs.items())}
        self._at = [number for number, one in enumerate(leaves) if self._is_tensor(one)]
        self.given = [Given(known.get(id(leaves[n]), ""), array_of(leaves[n])) for n in self._at]

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, self._torch.Tensor)

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """The tensors of its outputs, for these in the place of the given ones.

        Raises:
            Exception: whatever the module raises.
        """
        leaves = list(self._leaves)
        for number, array in zip(self._at, arrays, strict=True):  # new tensors: a module may write into them
            leaves[number] = self._tensor(array, leaves[number])
        args, kwargs = self._tree.tree_unflatten(leaves, self._spec)
        devices = [*range(self._torch.cuda.device_count())] if self._torch.cuda.is_initialized() else []
        self._runs += 1
        with self._torch.no_grad(), self._torch.random.fork_rng(devices=devices):
            self._torch.manual_seed(self._runs)  # random draws differ from run to run, so that they show
            found = self._call(*args, **kwargs)
        return [array_of(one) for one in self._tree.tree_leaves(found) if self._is_tensor(one)]

    def _tensor(self, array: Any, like: Any) -> Any:
        if array.dtype == ml_dtypes.bfloat16:
            made = self._torch.from_numpy(np.array(array).view(np.int16)).view(self._torch.bfloat16)
        else:
            made = self._torch.from_numpy(np.array(array))  # a copy, of rank 0 too
        return made.to(device=like.device, dtype=like.dtype)


def array_of(tensor: Any) -> Any:
    """A tensor as an array of its own."""
    here = tensor.detach().cpu()
    if here.is_sparse or here.is_quantized:
        raise TypeError("sparse and quantized tensors have no counterpart in ONNX's outputs")
    if str(here.dtype) == "torch.bfloat16":
        return np.array(here.contiguous().view(torch().int16).numpy()).view(ml_dtypes.bfloat16)
    return np.array(here.resolve_conj().resolve_neg().numpy())


@contextlib.contextmanager
def untouched(module: Any) -> Iterator[None]:
    """The module in evaluation mode; afterwards every part is in the mode that it was in, and every buffer holds what
    it held. Random numbers that are drawn inside are not missing outside."""
    library = torch()
    if not isinstance(module, library.nn.Module):  # a function, or a program without a mode
        with library.random.fork_rng():
            yield
        return
    modes = [(part, part.training) for part in module.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        with library.random.fork_rng():
            module.eval()
            yield
    finally:
        for part, training in modes:
            part.training = training
        with library.no_grad():
            for buffer, before in buffers:
                if buffer.shape == before.shape and not library.equal(buffer, before):
                    buffer.copy_(before)


def names_of(module: Any) -> list[str]:
    """The names of the module's parameters, in order; none where they are not known."""
    try:
        return list(inspect.signature(getattr(module, "forward", module)).parameters)
    except (TypeError, ValueError):
        return []
