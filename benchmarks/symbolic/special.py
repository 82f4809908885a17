"""Proven pairs on inputs full of special values: does ONNX Runtime compute the same bits for both?

    python -m benchmarks.symbolic.special [FOLDER ...] --draws 6

The pairs are the rules' examples, the exports in ``fixtures/`` and those in the folders (see ``pairs``). A difference
whose cause is known is in ``CAUSES``: then the runtime, not the fix, departs from what ONNX says, or ONNX says nothing.
The exit code is 1 if there is another one.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from benchmarks.command import parser_of
from benchmarks.symbolic.pairs import (
    Pair,
    decide_shapes,
    dtypes,
    example_pairs,
    fixture_pairs,
    list_pairs,
    load_pair,
    open_session,
    shapes_of,
    tell_apart,
)
from onnxfix.files.walk import nodes
from onnxfix.proof.symbolic.prove import prove
from onnxfix.runtime.sandbox import Worker

_SIZES = (3, 4, 2, 8, 1, 16)
"""Sizes of free dimensions: the first at which ONNX Runtime takes the model."""
_SHARES = (1.0, 0.5, 0.2, 0.05)
"""How many of the values are special: sums of many are NaN at once."""
_EDGES = [
    0.5,
    1.5,
    2.5,
    -2.5,
    1e-40,
    1e-7,
    65504,
    65520,
    1 << 24,
    (1 << 24) + 2,
    2147483648,
    -129,
    256,
    88.8,
    1e30,
]
# In single precision halfway between two of a half.
_EDGES += [1 + 2**-11 + 2**-30, 1 + 2**-8 + 2**-30, 0.49999997]
_LARGE = (1 << 60) + (1 << 36) + 1


_SIZED = {
    *(
        "Loop",
        "Range",
        "Tile",
        "Expand",
        "ConstantOfShape",
        "Pad",
        "Resize",
        "Upsample",
        "OneHot",
        "TopK",
        "EyeLike",
    ),
    *("Reshape", "CenterCropPad", "HannWindow", "HammingWindow", "BlackmanWindow", "NonMaxSuppression"),
}
"""Operators of which an integer may be a size: the models' integers are kept."""
MODULE = "benchmarks.symbolic.special"
_SECONDS = 15.0
"""Time for one pair: a loop may not come to an end for some values."""


_EXTREMES = {"Max", "Min", "Clip", "ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool", "Relu"}
_HALVES = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
CAUSES: dict[str, Callable[[Pair, list[NodeProto], str], bool]] = {
    "a local function is called like an operator of ONNX, and ONNX Runtime runs its own": lambda pair, both, what: (
        any(not one.domain for one in pair.original.functions)
    ),
    "ONNX Runtime's Where loses the sign of zero": lambda pair, both, what: (
        "0.0 and -0.0" in what.replace("-0.0 and 0.0", "0.0 and -0.0")
        and any(one.op_type in ("Where", "If") for one in both)
    ),
    "ONNX does not say what the largest of numbers and NaN is": lambda pair, both, what: (
        "nan" in what and any(one.op_type in _EXTREMES for one in both)
    ),
    "ONNX Runtime computes half precision in single, and inserts and drops Casts": lambda pair, both, what: (
        any(a.name == "to" and a.i in _HALVES for one in both for a in one.attribute)
        or any(one.type.tensor_type.elem_type in _HALVES for one in pair.original.graph.input)
    ),
}
"""Known causes of a difference, the first that fits the pair, the nodes of both models, and what differs."""


def special(kind: np.dtype[Any], shape: tuple[int, ...], share: float, draw: np.random.Generator) -> Any:
    """An array of a type in which a share of the values is special, and the others are small."""
    if kind.kind == "b":
        return draw.integers(0, 2, shape).astype(kind)
    if kind.kind in "iu" or kind.name in ("int4", "uint4"):
        info = ml_dtypes.iinfo(kind)
        numbers = [info.min, info.max, info.max - 1, 0, 1, 2, 7, -1, -7, 300, 1 << 30, _LARGE]
        edges = np.array([one for one in numbers if info.min <= one <= info.max], object)
        calm = draw.integers(0, 3, shape).astype(object)
    else:
        limits = ml_dtypes.finfo(kind)
        numbers = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, *_EDGES]
        numbers += [float(one) for one in (limits.max, -limits.max, limits.tiny, limits.smallest_subnormal)]
        edges, calm = np.array(numbers), draw.normal(size=shape)
        calm = np.where(draw.random(shape) < 0.5, calm, np.round(calm))  # equal ones among them
    with np.errstate(all="ignore"):
        return np.where(draw.random(shape) < share, draw.choice(edges, shape), calm).astype(kind)


def feeds(
    model: ModelProto, base: Mapping[str, Any], kept: tuple[str, ...], draws: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Inputs with special values. ``kept`` inputs, which decide shapes, have those of ``base``; half of the draws keep
    all integers, which may be indices."""
    draw = np.random.default_rng(seed)
    names = {node.op_type for node in nodes(model.graph.node)}
    for number, share in zip(range(draws), itertools.cycle(_SHARES), strict=False):
        feed = dict(base)
        for name, value in base.items():
            whole = value.dtype.kind in "iu"
            if name in kept or value.dtype.kind in "OSU" or (whole and (number % 2 or names & _SIZED)):
                continue
            feed[name] = special(value.dtype, value.shape, share, draw)
            if whole and names & {"Div", "Mod"}:  # ONNX Runtime's process ends when it divides by zero
                feed[name] = np.maximum(feed[name], np.ones((), value.dtype))
        yield feed


def differ(one: Any, other: Any) -> str:
    """The first values of two outputs that differ in a bit; all NaN are one."""
    first, second = np.asarray(one), np.asarray(other)
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return f"{first.dtype}{first.shape} and {second.dtype}{second.shape}"
    wrong = np.asarray(first != second)
    if first.dtype.kind not in "OSUbiu":
        wrong = (wrong | (np.signbit(first) != np.signbit(second))) & ~(np.isnan(first) & np.isnan(second))
    if not wrong.any():
        return ""
    place = int(np.argmax(wrong))
    return f"{first.reshape(-1)[place]!s} and {second.reshape(-1)[place]!s}"


def calm_feed(pair: Pair) -> dict[str, Any] | None:
    """Inputs that ONNX Runtime takes; None if it takes none of those tried."""
    if pair.feed:
        return pair.feed
    kinds, draw = dtypes(pair.original), np.random.default_rng(0)
    with contextlib.suppress(Exception):  # it raises what it likes
        runtime = open_session(pair.original)
        for size in _SIZES:
            with contextlib.suppress(Exception):
                shapes = shapes_of(pair.original, size)
                feed = {name: special(kinds[name], shape, 0.0, draw) for name, shape in shapes.items()}
                runtime.run(None, feed)
                return feed
    return None


def apart(
    pair: Pair, base: Mapping[str, Any] | None, kept: tuple[str, ...], draws: int, seed: int = 1
) -> str | None:
    """What differs on special values, as ``tell_apart`` says it; None without a base."""
    if base is None:
        return None
    return tell_apart(pair.original, pair.fixed, feeds(pair.original, base, kept, draws, seed), differ)


def judge(pair: Pair, draws: int, seed: int) -> str:
    """What is to be said of a pair: a word to count, or "different: CAUSE (WHERE)"."""
    base = calm_feed(pair)
    if base is None:
        return "not run"
    shapes = {name: np.shape(value) for name, value in base.items()}
    outcome = prove(pair.original, pair.fixed, shapes, decide_shapes(base))
    if not outcome.proven:
        return "not proven"
    difference = apart(pair, base, outcome.given, draws, seed)
    if not difference:
        return "proven, not run with special values" if difference is None else "proven, equal bits"
    both = [*nodes(pair.original.graph.node), *nodes(pair.fixed.graph.node)]
    cause = next((text for text, fits in CAUSES.items() if fits(pair, both, difference)), "not known")
    return f"different: {cause} ({difference})"


def main() -> None:
    """Print the differences and count the pairs."""
    parser = parser_of(__doc__)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    folders = (map(load_pair, list_pairs(folder)) for folder in arguments.folders)
    counts: collections.Counter[str] = collections.Counter()
    given = {"draws": arguments.draws, "seed": arguments.seed}
    with Worker() as worker:
        for pair in itertools.chain(*folders, example_pairs(), fixture_pairs()):
            done = worker.call(f"{MODULE}:judge", timeout=_SECONDS, pair=pair, **given)
            word = done.value if done.ok else f"ONNX Runtime: {done.status}"
            if word.startswith(("different", "ONNX")):
                print(f"{pair.name}: {word}", flush=True)
            counts[word.partition(" (")[0]] += 1
    for word, count in counts.most_common():
        print(f"{count:6} {word}")
    sys.exit(any("not known" in word for word in counts))


if __name__ == "__main__":
    main()
