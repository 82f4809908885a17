"""PyTorch, through the few of its functions that an export and its proof need, and what is compared with a module's own
outputs: its arguments, others of their kind, and other sizes. torch is imported when it is called.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds.signature import Signature

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
    """
    given = {"verbose": False, **options}
    if exporter_of(options) == "dynamo":
        # Weights beside the model get in the way of the next export to the same place.
        weights = [*getattr(module, "parameters", tuple)(), *getattr(module, "buffers", tuple)()]
        size = sum(one.numel() * one.element_size() for one in weights)
        given.setdefault("external_data", size > EMBEDDED)
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
            like, half = leaves[number], array.dtype == ml_dtypes.bfloat16
            tensor = self._torch.from_numpy(np.array(array).view(np.int16) if half else np.array(array))
            tensor = tensor.view(self._torch.bfloat16) if half else tensor
            leaves[number] = tensor.to(device=like.device, dtype=like.dtype)
        args, kwargs = self._tree.tree_unflatten(leaves, self._spec)
        devices = [*range(self._torch.cuda.device_count())] if self._torch.cuda.is_initialized() else []
        self._runs += 1
        with self._torch.no_grad(), self._torch.random.fork_rng(devices=devices):
            self._torch.manual_seed(self._runs)  # random draws differ from run to run, so that they show
            found = self._call(*args, **kwargs)
        return [array_of(one) for one in self._tree.tree_leaves(found) if self._is_tensor(one)]


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


@dataclass(frozen=True)
class Given:
    """A tensor among the arguments: its array, and the name of its parameter ("" where it lies within one)."""

    name: str
    array: Any


@dataclass(frozen=True)
class Case:
    """Inputs to compare on: ``label`` says which, ``arrays`` are in the order of ``Subject.given``."""

    label: str
    arrays: tuple[Any, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)


_LARGEST = 1 << 26
"""Elements of all inputs up to which larger ones are made."""


def wire_inputs(given: Sequence[Given], known: Signature) -> tuple[dict[int, str], str]:
    """Which given tensor is which input of the exported model: number -> name; and why that is not known, else "".

    By name where a parameter has the input's, and the rest by order. Exporters drop what nothing reads, and make
    constants of some arguments: where fewer inputs are left than tensors, order alone does not say which.
    """
    inputs = [one.name for one in known.inputs if one.default is None]
    wires = {number: one.name for number, one in enumerate(given) if one.name in inputs}
    rest = [number for number in range(len(given)) if number not in wires]
    left = [name for name in inputs if name not in wires.values()]
    if len(rest) == len(left) or not left:
        wires.update(zip(rest, left, strict=False) if left else ())
    else:
        count = f"{len(given)} tensor{'s' * (len(given) != 1)}"
        return {}, f"{count} were given and the exported model has {len(inputs)} inputs ({', '.join(inputs)})"
    for number, name in wires.items():
        dims, shape = known[name].dims, np.shape(given[number].array)
        fits = dims is None or (
            len(dims) == len(shape)
            and all(isinstance(dim, str) or dim == size for dim, size in zip(dims, shape, strict=True))
        )
        if not fits:
            return {}, f"input {name} is declared {list(dims or ())}, and was given with shape {list(shape)}"
    return wires, ""


def cases(
    given: Sequence[Given],
    wires: Mapping[int, str],
    known: Signature,
    bounds: Mapping[str, tuple[int, int]],
    seed: int,
) -> Iterator[Case]:
    """The given inputs, two of other values, and others of up to four other sizes where dimensions are dynamic."""
    arrays = tuple(one.array for one in given)
    yield Case("the given inputs", arrays)
    rng = np.random.default_rng(seed)
    for _ in range(2):
        drawn = tuple(_drawn(one, np.shape(one), rng) if n in wires else one for n, one in enumerate(arrays))
        yield Case("other values", drawn)
    for sizes in _sizes(arrays, wires, known, bounds):
        shapes = _shapes(arrays, wires, known, sizes)
        if sum(int(np.prod(shape)) for shape in shapes.values()) <= _LARGEST:
            label = ", ".join(f"{name}={size}" for name, size in sizes.items())
            made = (_drawn(one, shapes[n], rng) if n in shapes else one for n, one in enumerate(arrays))
            yield Case(label, tuple(made), sizes)


def _drawn(array: Any, shape: Sequence[int], rng: np.random.Generator) -> Any:
    """Values like those of an array: floats of its mean, spread and range; of anything else, some of its own, which
    are known to be valid (indices, masks)."""
    if not array.size:
        return np.zeros(shape, array.dtype)
    if array.dtype.kind not in "fV":  # V: ml_dtypes' floats
        return rng.choice(array.reshape(-1), size=tuple(shape))
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)] if np.isfinite(wide).any() else np.zeros(1)
    values = rng.normal(finite.mean(), finite.std(), tuple(shape))
    return np.clip(values, finite.min(), finite.max()).astype(array.dtype)


def _sizes(
    arrays: Sequence[Any], wires: Mapping[int, str], known: Signature, bounds: Mapping[str, tuple[int, int]]
) -> Iterator[dict[str, int]]:
    """Other sizes of the symbols: a little larger, twice as large, and the first (most often the batch) at 1.

    Symbols of one size stay of one size: exporters name one dimension differently in each input. Once, each becomes
    larger by another amount, so that none passes for another.
    """
    base = {
        dim: size
        for number, name in wires.items()
        for dim, size in zip(known[name].dims or (), np.shape(arrays[number]), strict=True)
        if isinstance(dim, str) and known.free(dim) == (dim,)
    }
    rank = {size: number for number, size in enumerate(dict.fromkeys(base.values()))}
    first = next(iter(base.values()), 0)
    wanted = [
        {name: size + 1 + rank[size] for name, size in base.items()},
        {name: size + 1 + number for number, (name, size) in enumerate(base.items())},
        {name: 2 * size + (0 if size > 1 else rank[size]) for name, size in base.items()},
        {name: 1 if size == first else size for name, size in base.items()},
    ]
    seen = [base]
    for sizes in wanted:
        low_high = {name: bounds.get(name, (0, size)) for name, size in sizes.items()}
        sizes = {name: min(max(size, low_high[name][0]), low_high[name][1]) for name, size in sizes.items()}
        if sizes and sizes not in seen:
            seen.append(sizes)
            yield sizes


def _shapes(
    arrays: Sequence[Any], wires: Mapping[int, str], known: Signature, sizes: Mapping[str, int]
) -> dict[int, tuple[int, ...]]:
    """The shape of every input under these sizes; a dimension that does not follow keeps its size."""
    found = {}
    for number, name in wires.items():
        pairs = zip(known[name].dims or (), np.shape(arrays[number]), strict=True)
        follow = ((known.size(dim, sizes), size) for dim, size in pairs)
        found[number] = tuple(size if new is None else new for new, size in follow)
    return found
