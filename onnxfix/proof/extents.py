"""The range of the data of quantizers inside a model on generated inputs, and what brings it to their limits.

The original runs twice at most, with that data for outputs: as it is, and with its inputs multiplied.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.inputs.feeds.inputs import shape_of
from onnxfix.inputs.feeds.plan import Feed
from onnxfix.inputs.feeds.quantizers import Range
from onnxfix.inputs.feeds.signature import Assignment, Signature
from onnxfix.proof.request import Request
from onnxfix.runtime import backends
from onnxfix.runtime.backends import ort_weights, reference

_MOST = 1e4
"""The greatest factor: beyond it a model shows little but its own overflow."""
_MORE = 1.25
"""How far beyond the limits to aim."""
_NAMED = 3

Extent = tuple[float, float]


@dataclass(frozen=True)
class Reach:
    """``gain`` is the factor that brings the most inner quantizers to their limits; ``missed`` are the others, as text,
    "" for none."""

    gain: float = 1.0
    missed: str = ""


#: The last original, with a key: a run that withdraws fixes needs it again for every candidate.
_LAST: list[tuple[object, Reach]] = []


def reach(request: Request, path: Path, sizes: Assignment) -> Reach:
    """The factor for a model file, whose signature is ``request.known``, at the given sizes.

    Raises:
        OnnxfixError: verification itself failed.
    """
    known = request.known
    if not known.quantizers.inside and not known.quantizers.hidden:
        return Reach()
    about = path.stat()
    file = (path, about.st_mtime_ns, about.st_size, about.st_ino)
    key = (file, request.seed, tuple(sorted(sizes.items())), known.pins)
    if _LAST and _LAST[0][0] == key:
        return _LAST[0][1]
    inside = known.quantizers.inside
    extents = _extents(request, path, Feed(sizes, "quantized", request.seed)) if inside else {}
    found = Reach(1.0, _words(known, extents))
    shares = (share for one in inside for share in _shares(one, extents))
    most = max((share for share in shares if math.isfinite(share)), default=1.0)
    if most > 1.0 and known.quantizers.scaled:  # a factor suffices for all that grow with the inputs
        gain = min(_MORE * most, _MOST)
        more = _extents(request, path, Feed(sizes, "quantized", request.seed, gain=gain))
        if _missed(inside, more) < _missed(inside, extents):
            found = Reach(gain, _words(known, more))
    _LAST[:] = [(key, found)]
    return found


def _words(known: Signature, extents: Mapping[str, Extent]) -> str:
    """The quantizers whose limits are not reached, and those that were not checked."""
    inside, hidden = known.quantizers.inside, known.quantizers.hidden
    names = [one.name for one in inside if extents and _missed([one], extents)]
    unseen = 0 if extents else len(inside)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    short = f"do not reach both limits on generated inputs: {', '.join(names[:_NAMED])}{more}"
    parts = [f"{len(names)} of {len(inside)} quantizers inside {short}"] if names else []
    for count, where in ((unseen, "inside"), (hidden, "in subgraphs or functions")):
        if count:
            parts.append(
                f"{count} quantizer{'s' * (count > 1)} {where} {'were' if count > 1 else 'was'} not checked"
            )
    return "; ".join(parts)


def _missed(inside: Sequence[Range], extents: Mapping[str, Extent]) -> int:
    """How many limits are not reached."""
    return sum(share > 1.0 for one in inside for share in _shares(one, extents))


def _shares(one: Range, extents: Mapping[str, Extent]) -> list[float]:
    """The factors by which the data would have to grow for the upper and for the lower limit; infinite where it has not
    that sign, or is not known."""
    least, most = extents.get(one.name, (one.center, one.center))
    shares = []
    for wanted, reached in (
        (one.high - one.center, most - one.center),
        (one.center - one.low, one.center - least),
    ):
        shares.append(0.0 if wanted <= 0.0 else wanted / reached if reached > 0.0 else math.inf)
    return shares


def _extents(request: Request, path: Path, feed: Feed) -> dict[str, Extent]:
    """Minimum and maximum finite value of the tensors on one feed; empty where no backend could run it."""
    known = request.known
    if ort_weights.weight_bytes(known.model) >= ort_weights.LARGE:  # two others are loaded
        return {}
    count = sum(math.prod(shape_of(known, one, feed.assignment)) for one in known.inputs)
    backend = "ort-cpu" if backends.missing("ort-cpu") is None else "reference"
    if backend == "reference" and reference.infeasible(known.model, count) is not None:
        return {}
    try:
        values = feed.values(known)
    except (UsageError, MemoryError):
        return {}
    names = tuple(dict.fromkeys(one.name for one in known.quantizers.inside))
    with tempfile.TemporaryDirectory(prefix="onnxfix-", ignore_cleanup_errors=True) as folder:
        arguments = {"backend": backend, "path": str(path), "names": names, "feed": values, "folder": folder}
        outcome = request.worker.call(f"{__name__}:measure", timeout=request.step, **arguments)
    if outcome.status == "error":
        raise OnnxfixError(f"verification itself failed, which is a bug of onnxfix: {outcome.message}")
    return dict(outcome.value) if outcome.ok else {}


# ------------------------------------------------------------------------------------------- in the sandbox's child


def measure(
    backend: str, path: str, names: tuple[str, ...], feed: dict[str, Any], folder: str
) -> dict[str, tuple[float, float]]:
    """Least and greatest finite value of tensors of the main graph on a feed; nothing where the model does not run."""
    try:
        model = onnx.load(path)
        own = {info.name for info in model.graph.output}
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in own)
        variant = Path(folder) / "variant.onnx"
        onnx.save(model, variant)
        session = backends.load(backend, str(variant))
        values = dict(zip(session.outputs, session.run(feed), strict=True))
    except Exception:  # a model that takes no such inputs: the checks say so
        return {}
    found = {}
    for name in names:
        array = np.asarray(values[name]).astype(np.float64)
        finite = array[np.isfinite(array)]
        if finite.size:
            found[name] = (float(finite.min()), float(finite.max()))
    return found
