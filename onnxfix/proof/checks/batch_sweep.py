"""Static against dynamic: a model of symbolic batch is built for batch 1 alone and for batch 1 to N, and compared.

That is where broadcasting goes wrong: a batch that an exporter froze builds for that size only, and a dimension of 1
that was meant as the batch broadcasts. Without a GPU acceptance, warnings and imported layers are compared; with one,
the outputs of both engines for a batch of 1.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnxfix.errors import OnnxfixError
from onnxfix.files import loading, saving, tensors
from onnxfix.inputs.feeds.inputs import make_inputs
from onnxfix.inputs.feeds.profiles import symbols_of
from onnxfix.inputs.feeds.signature import Signature
from onnxfix.proof.compare.compare import Terms, compare_outputs, different
from onnxfix.proof.request import Request
from onnxfix.proof.verdict import Pair, SweepResult
from onnxfix.shapes import dimnames
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.records import Profile, Sizes, TrtBuild

#: Builds a model file with profiles, and writes the engine to a file ("" for none).
Build = Callable[[Path, Sequence[Profile], str], TrtBuild]
#: Executes an engine file on inputs.
Run = Callable[[Path, Mapping[str, Any]], Ran]
DEFAULT_GREATEST = 2


def batch_symbols(known: Signature) -> tuple[str, ...]:
    """The symbols that are the batch: those that lead the inputs' shapes and stand nowhere else in them.

    There may be several, for exporters give one dimension a name in each input (PyTorch's ``s12`` and ``s86``). Lists
    (inputs of rank 1) count only where there is nothing else: their length is rarely a batch.
    """
    shapes = [one.dims for one in known.inputs if one.kind == "tensor" and one.default is None and one.dims]
    behind = {dim for dims in shapes for dim in dims[1:]}
    leading = {dims[0]: len(dims) > 1 for dims in sorted(shapes, key=len)}
    found = [dim for dim in leading if dim not in behind]
    wide = [dim for dim in found if leading[dim]]
    return tuple(dim for dim in known.symbols if dim in (wide or found))


def sweep(
    request: Request,
    given: Sequence[Profile] | None,
    build: Build,
    *,
    greatest: int = DEFAULT_GREATEST,
    run: Run | str = "no engine was executed",
) -> SweepResult:
    """Build the original and, unless it is the same file, the fixed model both ways. The files are not changed.

    ``given`` are the user's profiles: all sizes but the batch come from them, else from the model's symbols, and are
    the same in both builds. They also set the greatest batch, unless ``greatest`` is not the default. ``run`` executes
    an engine, or is the reason why none is executed.
    """
    symbols = batch_symbols(request.known)
    if not symbols:
        return SweepResult("skipped", "the model has no symbolic batch")
    profiles = [given[0]] if given else [Profile()]
    others = symbols_of(profiles[0], request.known)
    greatest, span = _range([others[name] for name in symbols if name in others], greatest)
    batch: dict[str, Sizes] = dict.fromkeys(symbols, (1, greatest, greatest))
    profile = Profile(values=profiles[0].values, symbols={**others, **batch})
    single = request.fixed == request.original
    models = {"the model": request.fixed}
    if not single:
        models = {"the original": request.original, "the new model": request.fixed}
    pairs = []
    for name, path in models.items():
        with tempfile.TemporaryDirectory(prefix="onnxfix-") as folder:
            engines = [Path(folder, which) for which in ("static.engine", "dynamic.engine")]
            saved = ["", ""] if isinstance(run, str) else [str(engine) for engine in engines]
            static = build(at_batch_one(path, symbols, Path(folder)), [profile], saved[0])
            dynamic = build(path, [profile], saved[1])
            differing = unproven = ""
            if static.accepted and dynamic.accepted:
                differing, unproven = _compare_outputs(request, symbols, engines, dynamic, run)
            pairs.append(Pair(name, static, dynamic, differing, unproven))
    return replace(_conclude(symbols, greatest, tuple(pairs)), span=span)


def _range(given: Sequence[Sizes], greatest: int) -> tuple[int, str]:
    """The greatest batch of the sweep, and how the user's profile relates to it: ``given`` are its batches."""
    if not given or all((least, most) == (1, greatest) for least, _, most in given):
        return greatest, ""
    most = {sizes[2] for sizes in given}
    if greatest == DEFAULT_GREATEST and len(most) == 1 and max(most) >= greatest:
        return max(most), f"its greatest batch, {max(most)}, is that of the optimization profile given"
    spans = (f"{least} to {most}" if least < most else str(least) for least, _, most in given)
    batches = ", ".join(dict.fromkeys(spans))
    return (
        greatest,
        f"it has its own range, batch 1 to {greatest}; the optimization profile given has batch {batches}",
    )


def _conclude(symbols: tuple[str, ...], greatest: int, pairs: tuple[Pair, ...]) -> SweepResult:
    last, name = pairs[-1], ", ".join(symbols)
    span = f"batch 1 alone and a profile of batch 1 to {greatest} ({name})"
    if last.wrong:
        reason = f"{last.name} differs between {span}: {last.wrong}"
        return SweepResult("failed", reason, symbols, greatest, pairs)
    if not last.dynamic.accepted:
        reason = f"{last.name} is built neither for {span.replace(' and ', ' nor for ', 1)}"
        return SweepResult("skipped", reason, symbols, greatest, pairs)
    proven = f"; outputs {last.unproven}" if last.unproven else ", with the same outputs"
    reason = f"{last.name} is built for {span}{proven}"
    return SweepResult("passed", reason, symbols, greatest, pairs)


def _compare_outputs(
    request: Request, symbols: Sequence[str], engines: Sequence[Path], dynamic: TrtBuild, run: Run | str
) -> tuple[str, str]:
    """What differs in the two engines' outputs at batch 1, and why nothing could be compared."""
    if isinstance(run, str):
        return "", f"were not compared: {run}"
    known, sizes = request.known, {}
    for profile in dynamic.profiles[:1]:
        sizes = {name: usual for name, (_, usual, _) in symbols_of(profile, known).items()}
    try:
        feed = make_inputs(known, {**sizes, **dict.fromkeys(symbols, 1)}, request.seed)
    except OnnxfixError as error:
        return "", f"were not compared: {error}"
    static, spread = (run(engine, feed) for engine in engines)
    for one, which in ((static, "batch 1 alone"), (spread, "the profile")):
        if one.error:
            return "", f"were not compared: the engine for {which} fails: {one.error}"
    names = [name for name in static.outputs if name in spread.outputs and name not in (known.drawn or ())]
    if not names:
        return "", "were not compared: none could be read, or all are random"
    terms = Terms(coarse=request.coarse)
    for part in different(compare_outputs(names, static.outputs, spread.outputs, terms)):
        far = f", by up to {part.relative:.1e} of its largest magnitude" if part.max_abs else ""
        return f"output {part.output} of the engine for the profile {part.reason}{far}", ""
    return "", ""


def at_batch_one(path: Path, symbols: Sequence[str], folder: Path) -> Path:
    """A copy of the model in ``folder`` with the symbols 1 in its inputs; its external data can be reached from there.

    Raises:
        OnnxfixError: the model cannot be read, or the copy not be written.
    """
    proto = loading.parse(loading.read(path), str(path))
    sizes = dict.fromkeys(symbols, 1)
    dims = ((v.name, *one) for v in proto.graph.input for one in enumerate(v.type.tensor_type.shape.dim))
    for name, axis, dim in dims:
        if dim.HasField("dim_value"):
            continue
        size = dimnames.replace(dimnames.own(dim.dim_param) or f"{name}.{axis}", sizes)
        if isinstance(size, int):
            dim.dim_value = size
        elif dimnames.own(dim.dim_param):
            dim.dim_param = size
    tensors.link_data(proto, path.parent, folder)
    copy = folder / "batch1.onnx"
    saving.write(saving.serialize(proto), copy)
    return copy
